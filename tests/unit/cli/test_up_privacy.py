"""`barnabas up --secure`: whose its data directory must be, and what of a directory it does not touch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.cli.up import _keep_private
from barnabas.server.cluster_plan import ClusterPlan


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def keep_private(directory: Path) -> None:
    _keep_private(ClusterPlan(data_directory=str(directory), secure=True))


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def refused(directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        keep_private(directory)
    assert ended.value.code == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("there", [False, True])
def test_a_directory_that_is_new_or_empty_is_made_the_users_alone(tmp_path: Path, there: bool) -> None:
    data = tmp_path / "above" / "data"
    if there:
        data.mkdir(parents=True)
    keep_private(data)
    assert mode(data) == 0o700


def test_that_of_a_secured_cluster_is_closed_again(tmp_path: Path) -> None:
    for directory in (tmp_path / "data", tmp_path / "data" / "security"):
        directory.mkdir()
        directory.chmod(0o755)
    keep_private(tmp_path / "data")
    assert mode(tmp_path / "data") == mode(tmp_path / "data" / "security") == 0o700


def test_a_directory_with_something_else_is_not_taken_from_those_who_use_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "homes").mkdir()
    assert f"{tmp_path} has other files, and others may come in" in refused(tmp_path, capsys)
    assert mode(tmp_path) == 0o755
    tmp_path.chmod(0o700)
    keep_private(tmp_path)


def test_that_of_an_open_cluster_is_refused_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "coordinator").mkdir()
    assert "was made without --secure" in refused(tmp_path, capsys)
    assert mode(tmp_path) == 0o755


def test_a_file_system_that_keeps_no_rights_keeps_no_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAT, or another system's disk: chmod says that all is well."""
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(os, "chmod", lambda *_: None)
    assert f"others may come into {tmp_path}/data whatever" in refused(tmp_path / "data", capsys)


def test_secrets_are_not_written_where_somebody_has_laid_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    data = tmp_path / "data"
    data.mkdir()
    (data / "security").symlink_to(tmp_path / "elsewhere")
    assert f"{data}/security is no directory of this user's own" in refused(data, capsys)


@pytest.mark.parametrize("planted", ["security", "security/authority.key"])
def test_what_another_user_has_laid_there_is_not_taken_for_the_clusters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    """While others could write to the directory: by an authority of his he would be every broker."""
    (tmp_path / "security").mkdir()
    (tmp_path / "security" / "authority.key").write_text("")
    lstat = os.lstat

    def of_another(path: str, **named: Any) -> os.stat_result:
        found = list(lstat(path, **named))
        if str(path).endswith(planted):
            found[4] += 1
        return os.stat_result(found)

    monkeypatch.setattr(os, "lstat", of_another)
    assert f"{tmp_path}/{planted} is " in refused(tmp_path, capsys)
