"""Offsets that cannot be committed are warned of, and never stop a run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from barnabas.client.records import OffsetAndMetadata
from barnabas.pipelines import group_offsets
from barnabas.pipelines.group_offsets import committing
from barnabas.wire.topics import TopicPartition
from tests.support.ports import free_port


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_offsets, "_COMMIT_TIMEOUT_MS", 300)


def test_brokers_that_are_away_are_a_warning_and_one_more_at_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    warnings: list[str] = []
    with committing("barnabas-pipeline-delays", f"127.0.0.1:{free_port()}", warnings.append) as group:
        group.finished({"flights": {0: 5}})
        group.finished({"flights": {0: 6}})
    assert len(warnings) == 2
    assert "group barnabas-pipeline-delays not committed yet" in warnings[0]
    assert "trying with the next batch" in warnings[0]
    assert "could not be committed; the next run commits them" in warnings[1]
    assert capfd.readouterr() == ("", "")


def test_without_a_batch_nobody_is_asked() -> None:
    warnings: list[str] = []
    with committing("barnabas-pipeline-delays", f"127.0.0.1:{free_port()}", warnings.append):
        pass
    assert warnings == []


class SlowCluster:
    """Takes commits, each of which lasts until the test lets it end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commits: list[Mapping[TopicPartition, OffsetAndMetadata]] = []
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        monkeypatch.setattr(group_offsets, "Client", lambda *_: self)
        monkeypatch.setattr(group_offsets, "Admin", lambda _: self)

    async def start(self, _timeout_ms: float) -> None: ...

    async def close(self) -> None: ...

    async def alter_group_offsets(self, _group: str, offsets: Mapping[Any, Any], _timeout_ms: float) -> None:
        self.commits.append(offsets)
        self.begun.release()
        await asyncio.to_thread(self.may_end.acquire, timeout=30)


def test_what_is_told_while_a_commit_lasts_is_committed_next(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SlowCluster(monkeypatch)
    warnings: list[str] = []
    place = TopicPartition("flights", 0)
    with committing("barnabas-pipeline-delays", "b:1", warnings.append) as group:
        group.finished({"flights": {0: 5}})
        assert cluster.begun.acquire(timeout=30)
        group.finished({"flights": {0: 6}})
        group.finished({"flights": {0: 7}})
        cluster.may_end.release()
        assert cluster.begun.acquire(timeout=30), "nobody commits what was told meanwhile"
        assert cluster.commits[-1] == {place: OffsetAndMetadata(7)}
        cluster.may_end.release()
    assert [commit[place].offset for commit in cluster.commits] == [5, 7]
    assert warnings == []


def test_what_is_told_in_the_last_commit_is_committed_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SlowCluster(monkeypatch)
    warnings: list[str] = []
    with committing("barnabas-pipeline-delays", "b:1", warnings.append) as group:
        group.finished({"flights": {0: 5}})
        assert cluster.begun.acquire(timeout=30)
        group.finished({"flights": {0: 6}})
        cluster.may_end.release(2)
    assert cluster.commits[-1][TopicPartition("flights", 0)].offset == 6
    assert warnings == []
