"""Whose the log directories are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from barnabas.kernel.real_host import real_host
from barnabas.server.errors import MetaPropertiesError
from barnabas.server.log_directories import LogDirectories, read_log_directories, write_log_directories

Run = Callable[[Coroutine[Any, Any, Any]], Any]
CLUSTER = "kP3-pV7TRXyEj8Rj3fNZ4g"


async def read(*paths: Path) -> LogDirectories:
    async with real_host("test", asyncio.get_running_loop()) as host:
        return await read_log_directories(host, tuple(map(str, paths)))


async def write(directories: LogDirectories, broker_id: int, cluster_id: str) -> LogDirectories:
    async with real_host("test", asyncio.get_running_loop()) as host:
        return await write_log_directories(host, directories, broker_id, cluster_id)


def put(path: Path, **properties: object) -> Path:
    path.mkdir(parents=True)
    lines = [f"{name.replace('_', '.')}={value}" for name, value in properties.items()]
    (path / "meta.properties").write_text("\n".join(["#", *lines]) + "\n")
    return path


def test_new_directories_are_made_and_marked(run: Run, tmp_path: Path) -> None:
    found = run(read(tmp_path / "a" / "b", tmp_path / "c"))
    assert found.stored_broker_id() is None
    assert found.stored_cluster_id() is None
    found.check(CLUSTER, -1)
    run(write(found, 3, CLUSTER))
    again = run(read(tmp_path / "a" / "b", tmp_path / "c"))
    assert again.stored_broker_id() == 3
    assert again.stored_cluster_id() == CLUSTER
    again.check(CLUSTER, 3)
    again.check(CLUSTER, -1)
    assert "version=0" in (tmp_path / "c" / "meta.properties").read_text()


def test_the_id_of_a_directory_is_kept(run: Run, tmp_path: Path) -> None:
    path = put(tmp_path / "a", version=0, broker_id=3, directory_id=CLUSTER)
    run(write(run(read(path)), 3, CLUSTER))
    text = (path / "meta.properties").read_text()
    assert f"directory.id={CLUSTER}" in text
    assert f"cluster.id={CLUSTER}" in text


def test_what_is_right_is_not_written_again(run: Run, tmp_path: Path) -> None:
    path = put(tmp_path / "a", version=0, broker_id=3, cluster_id=CLUSTER)
    before = (path / "meta.properties").stat().st_mtime_ns
    run(write(run(read(path)), 3, CLUSTER))
    assert (path / "meta.properties").stat().st_mtime_ns == before


def test_a_directory_of_another_broker_is_refused(run: Run, tmp_path: Path) -> None:
    found = run(read(put(tmp_path / "a", version=0, broker_id=3, cluster_id=CLUSTER)))
    with pytest.raises(MetaPropertiesError, match=r"belong to broker 3, but broker\.id is 4"):
        found.check(CLUSTER, 4)


def test_a_directory_of_another_cluster_is_refused(run: Run, tmp_path: Path) -> None:
    found = run(read(put(tmp_path / "a", version=0, broker_id=3, cluster_id="another")))
    with pytest.raises(MetaPropertiesError, match=r"belong to the cluster another"):
        found.check(CLUSTER, 3)


def test_directories_that_disagree_are_refused(run: Run, tmp_path: Path) -> None:
    one = put(tmp_path / "a", version=0, broker_id=3)
    other = put(tmp_path / "b", version=0, broker_id=4)
    with pytest.raises(MetaPropertiesError, match=r"disagree on broker\.id"):
        run(read(one, other)).check(CLUSTER, -1)


def test_a_directory_of_kraft_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(MetaPropertiesError, match="version 1"):
        run(read(put(tmp_path / "a", version=1, node_id=3)))


def test_a_directory_that_cannot_be_made_leaves_the_others_serving(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = run(read(tmp_path / "file" / "below", tmp_path / "good"))
    assert list(found.usable) == [str(tmp_path / "good")]
    assert list(found.failed) == [str(tmp_path / "file" / "below")]
    with pytest.raises(MetaPropertiesError, match="None of the log directories"):
        run(read(tmp_path / "file" / "below"))
