"""`barnabas topic copy`: what is refused before anybody is asked, and the file that says how far it is.

What it copies is tested with brokers (tests/support/copy_command_suite.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.cli.connection import CommandError
from barnabas.cli.topic_copy_state import CopyState
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import FakeCluster

Barnabas = Callable[..., Done]


def state(target: str = "t", source_id: str = "ab") -> CopyState:
    return CopyState("cluster-1", "s", source_id, "cluster-2", target)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("s",), "Missing argument"),
        (("s:", "t"), "'s:' names no partitions"),
        (("s", ""), "a topic needs a name"),
        (("s", "t", "--from", "soon"), "'soon' is no place"),
        (("s", "t", "--until", "soon"), "'soon' is no place"),
        (("s", "t", "--follow", "--until", "5"), "leave --until out"),
        (("s", "t", "--to-command-config", "f"), "goes with --to"),
        (("s", "t", "--replication-factor", "1"), "goes with --create"),
        (("s", "t", "--transactional", "x", "--state", "f"), "leave --state out"),
        (("s", "t", "--transactional", ""), "needs a name"),
        (("s", "t", "--groups", "*", "--partitions", "key"), "leave --partitions out"),
        (("s", "t", "--rate", "0"), "0.0 is not in the range"),
        (("s", "t", "--rate", "nan"), "no number above 0"),
        (("s", "t", "--rate", "inf"), "no number above 0"),
        (("s", "t", "--to", ":0"), "Invalid value for --to: ':0' is not the address"),
        (("s", "t", "--partitions", "6"), "'6' is not one of"),
    ],
)
def test_what_makes_no_sense_is_refused(
    cluster: FakeCluster, barnabas: Barnabas, arguments: tuple[str, ...], expected: str
) -> None:
    done = barnabas("topic", "copy", *arguments)
    assert (done.status, cluster.created) == (2, [])
    assert expected in " ".join(done.errors.split())


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert not state().read(path)
    written = state()
    written.offsets = {3: 7, 0: 2**62}
    written.found_target("cd", path)
    written.write(path)
    found = state()
    assert found.read(path)
    assert found.offsets == written.offsets
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff\x00",
        b'{"version": 1}',
        b'{"version": 2, "offsets": {}}',
        b'{"version": 1, "offsets": [1]}',
        b'{"version": 1, "offsets": {"0": -1}}',
        b'{"version": 1, "offsets": {"0": "x"}}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_is_no_state_is_refused_and_stays(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "state"
    path.write_bytes(data)
    with pytest.raises(CommandError, match="is no state of a copy"):
        state().read(path)
    assert path.read_bytes() == data


def test_the_state_of_a_former_target_is_refused_and_of_the_same_is_not(tmp_path: Path) -> None:
    written = state()
    written.found_target("cd", None)
    written.write(tmp_path / "state")
    found = state()
    found.read(tmp_path / "state")
    found.found_target("cd", tmp_path / "state")
    with pytest.raises(CommandError, match="made again since"):
        found.found_target("ef", tmp_path / "state")


def test_a_link_to_the_state_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    state().write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert state().read(tmp_path / "file")


@pytest.mark.parametrize("other", [state(target="u"), state(source_id="cd")])
def test_the_state_of_another_copy_is_refused(tmp_path: Path, other: CopyState) -> None:
    other.write(tmp_path / "state")
    with pytest.raises(CommandError, match="is the state of another copy"):
        state().read(tmp_path / "state")
