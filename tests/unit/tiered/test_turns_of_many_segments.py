"""How much of a partition with very many segments is looked at in one turn of the loop, counted in look-ups."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from barnabas.kernel import turns
from barnabas.kernel.turns import yield_to_loop
from barnabas.log.directories.checkpoints import EpochEntry
from barnabas.log.partition.leader_epochs import LeaderEpochCache
from barnabas.log.segments.log_segments import LogSegments
from barnabas.tiered import remote_log_manager, remote_reads
from barnabas.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from tests.unit.log.log_broker import FLIGHTS
from tests.unit.tiered import test_remote_log_manager
from tests.unit.tiered.test_metadata_cache import segment, update
from tests.unit.tiered.test_remote_log_manager import Run
from tests.unit.tiered.tiered_broker import TIERED, TOPIC_ID, TieredBroker

run = test_remote_log_manager.run
COUNT = 3_000
OFFSETS = 10
ALLOWED_PER_TURN = 1_000
"""Elements that are looked at. Of 20 us each that would be 20 ms."""


class Looks:
    """Counts, from one turn to the next."""

    def __init__(self) -> None:
        self.total = self.in_turn = self.most = 0

    def count(self) -> None:
        self.total += 1
        self.in_turn += 1
        self.most = max(self.most, self.in_turn)

    async def turn(self) -> None:
        self.in_turn = 0
        await yield_to_loop()

    def take(self) -> tuple[int, int]:
        found = self.total, self.most
        self.total = self.in_turn = self.most = 0
        return found


class CountedSegments(dict[RemoteLogSegmentId, RemoteLogSegmentMetadata]):
    def __init__(self, looks: Looks) -> None:
        self.looks = looks

    def get(self, *arguments: Any) -> Any:
        self.looks.count()
        return super().get(*arguments)

    def __getitem__(self, key: RemoteLogSegmentId) -> RemoteLogSegmentMetadata:
        self.looks.count()
        return super().__getitem__(key)


class PlayedSegment:
    def __init__(self, base_offset: int, looks: Looks) -> None:
        self.base_offset = base_offset
        self._looks = looks

    @property
    def size_bytes(self) -> int:
        self._looks.count()
        return 100


class PlayedLog:
    """Of as many segments, all of which are here and in remote storage."""

    def __init__(self, looks: Looks) -> None:
        self.partition = FLIGHTS
        self.topic_id = TOPIC_ID
        self.is_closed, self.is_tiered = False, True
        self.config = TIERED
        self.log_start_offset = self.local_log_start_offset = self.remote_end_offset = self.truncations = 0
        self.log_end_offset = self.high_watermark = self.last_stable_offset = (COUNT + 1) * OFFSETS
        self.leader_epochs = LeaderEpochCache([EpochEntry(0, 0)])
        self.segments = LogSegments(
            PlayedSegment(number * OFFSETS, looks)  # type: ignore[misc]
            for number in range(COUNT + 1)
        )

    def copied_to(self, end_offset: int) -> None:
        self.remote_end_offset = end_offset

    def increase_log_start_offset(self, *_: object) -> None:
        return


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Every other wait gives way, too: so what is counted is at least what a turn has."""
    found = Looks()
    for module in (remote_log_manager, remote_reads, turns):
        monkeypatch.setattr(module, "yield_to_loop", found.turn)
    return found


def partition_with_many(tiered: TieredBroker, looks: Looks, state: RemoteLogSegmentState) -> None:
    key = TopicIdPartition(TOPIC_ID, FLIGHTS)
    cache = tiered.topic.cache(key)
    cache._segments = CountedSegments(looks)
    for number in range(COUNT):
        template = segment(number + 1, number * OFFSETS, (number + 1) * OFFSETS - 1)
        each = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(key, template.segment_id.id),
            template.start_offset,
            template.end_offset,
            *(template.max_timestamp_ms, 1, 7, 100, template.leader_epochs),
        )
        cache.apply(each)
        if state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            cache.apply(update(each, RemoteLogSegmentState.COPY_SEGMENT_FINISHED))
        if state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            cache.apply(update(each, state))
    tiered.partition.log = PlayedLog(looks)  # type: ignore[assignment]
    looks.take()


@pytest.mark.parametrize("state", list(RemoteLogSegmentState)[:3])
def test_a_round_of_a_leader(
    run: Run, looks: Looks, monkeypatch: pytest.MonkeyPatch, state: RemoteLogSegmentState
) -> None:
    async def body(tiered: TieredBroker) -> None:
        partition_with_many(tiered, looks, state)
        deleted: list[RemoteLogSegmentMetadata] = []
        copied: list[int] = []

        async def delete(each: RemoteLogSegmentMetadata) -> None:
            deleted.append(each)
            await looks.turn()

        async def copy(_: object, candidate: Any, *_more: object) -> RemoteLogSegmentMetadata:
            copied.append(candidate.end_offset)
            await looks.turn()
            await asyncio.sleep(0)
            raise OSError("the storage is full")

        monkeypatch.setattr(tiered.manager, "_delete", delete)
        monkeypatch.setattr(tiered.manager._copier, "copy", copy)
        log: Any = tiered.partition.log
        log.log_directory = tiered.log.log_directory
        log.config = replace(TIERED, retention_bytes=100 * COUNT // 2)
        await tiered.round()
        total, most = looks.take()
        assert total > COUNT
        assert most <= ALLOWED_PER_TURN
        is_whole = state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        assert log.remote_end_offset == (COUNT * OFFSETS if is_whole else 0)
        assert bool(copied) != is_whole
        assert len(deleted) in ((COUNT // 2, COUNT // 2 + 1) if is_whole else (0, COUNT))

        tiered.partition.is_leader = False
        await tiered.round()
        total, _ = looks.take()
        assert total <= 2, "a follower goes on from what was found"
        await tiered.reads.find_timestamp(log, 1 << 40)
        assert looks.take() == (0, 0)
        log.local_log_start_offset = COUNT * OFFSETS
        await tiered.reads.find_timestamp(log, 1 << 40)
        total, most = looks.take()
        assert (total >= COUNT) is is_whole
        assert most <= ALLOWED_PER_TURN

    run(body)
