"""What a crash leaves in a partition directory, and what becomes of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from barnabas.kernel.real_files import RealFiles
from barnabas.log.manager.leftovers import remove_leftovers
from tests.unit.log.log_batches import batch

LOGGER = logging.getLogger("leftovers")


def names(directory: Path) -> list[str]:
    """Files, without the zeros that they begin with."""
    return sorted(path.name.lstrip("0") for path in directory.iterdir())


def make(directory: Path, offset: int, *endings: str, last_offset: int | None = None) -> None:
    for ending in endings:
        data = b""
        if ending.startswith(".log"):
            count = (offset if last_offset is None else last_offset) - offset + 1
            data = batch(offset, [1] * count).data
        (directory / f"{offset:020d}{ending}").write_bytes(data)


def clean(directory: Path) -> list[str]:
    found = remove_leftovers(RealFiles(), str(directory), LOGGER)
    assert found == sorted(path.name for path in directory.iterdir())
    return names(directory)


def test_deleted_and_cleaned_and_temporary_files_go(tmp_path: Path) -> None:
    make(tmp_path, 1, ".log", ".index.deleted", ".log.cleaned", ".snapshot.deleted")
    (tmp_path / "leader-epoch-checkpoint.tmp").touch()
    assert clean(tmp_path) == ["1.log"]


def test_whole_replacements_take_their_places(tmp_path: Path) -> None:
    """Segments 10 and 20 were compacted into one; 30 is none of its business, and snapshots stay."""
    make(tmp_path, 10, ".log", ".index", ".snapshot", ".log.swap", ".index.swap", last_offset=25)
    make(tmp_path, 20, ".log", ".index", ".timeindex")
    make(tmp_path, 30, ".log")
    assert clean(tmp_path) == ["10.index", "10.log", "10.snapshot", "30.log"]
    assert (tmp_path / f"{10:020d}.log").stat().st_size == len(batch(10, [1] * 16).data)


def test_a_replacement_that_is_not_whole_goes(tmp_path: Path) -> None:
    make(tmp_path, 10, ".log", ".log.swap")
    make(tmp_path, 20, ".log", ".log.swap", ".log.cleaned")
    make(tmp_path, 30, ".log.swap")
    assert clean(tmp_path) == ["10.log", "20.log"]


def test_an_index_without_its_log_replaces_nothing(tmp_path: Path) -> None:
    """A loss of power may have brought it back; that of the log which it would replace is right, or is built again."""
    make(tmp_path, 10, ".log", ".index", ".index.swap", ".txnindex.swap", last_offset=25)
    (tmp_path / f"{10:020d}.index").write_bytes(b"good")
    assert clean(tmp_path) == ["10.index", "10.log"]
    assert (tmp_path / f"{10:020d}.index").read_bytes() == b"good"


@pytest.mark.parametrize("crash_after", range(6))
def test_a_crash_in_between_changes_nothing_in_the_end(tmp_path: Path, crash_after: int) -> None:
    class Dying(RealFiles):
        """Ends after so many changes."""

        __slots__ = ()
        left = crash_after

        def unlink(self, path: str, /) -> None:  # type: ignore[override]
            self.count()
            RealFiles.unlink(path)

        def rename(self, source: str, target: str, /) -> None:  # type: ignore[override]
            self.count()
            RealFiles.rename(source, target)

        @classmethod
        def count(cls) -> None:
            cls.left -= 1
            if cls.left < 0:
                raise InterruptedError("killed")

    make(tmp_path, 10, ".log", ".log.swap", ".index.swap", last_offset=25)
    make(tmp_path, 20, ".log", ".index")
    with pytest.raises(InterruptedError):
        remove_leftovers(Dying(), str(tmp_path), LOGGER)
        raise InterruptedError("was through")
    found = clean(tmp_path)
    assert found in (["10.index", "10.log"], ["10.log"])
    assert (tmp_path / f"{10:020d}.log").stat().st_size == len(batch(10, [1] * 16).data)
