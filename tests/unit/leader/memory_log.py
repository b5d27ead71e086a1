"""A partition's log in memory, for tests of who leads and who follows: it holds one value per offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from barnabas.kernel.ids import Uuid
from barnabas.log.partition.appending import UnexpectedOffsetError
from barnabas.log.partition.leader_epochs import EpochEnd, LeaderEpochCache
from barnabas.log.partition.log_config import LogConfig
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.wire.sentinels import NO_EPOCH
from barnabas.wire.topics import TopicPartition

TOPIC_ID = Uuid(bytes(range(16)))


class Entry(NamedTuple):
    """A record."""

    offset: int
    epoch: int
    value: object


class FollowerAppend(NamedTuple):
    """As much of `AppendResult` as a fetcher looks at."""

    size_bytes: int


class MemoryLog:
    """As much of `PartitionLog` as replication uses; records are lists of values, or of entries for followers."""

    has_unwritten = False

    def __init__(self, partition: TopicPartition, *, min_insync_replicas: int = 1) -> None:
        self.partition = partition
        self.topic_id: Uuid | None = TOPIC_ID
        self.config = LogConfig(min_insync_replicas=min_insync_replicas)
        self.entries: list[Entry] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.leader_epochs = LeaderEpochCache()
        self.is_offline = False
        self.check: Callable[[], object] = lambda: None
        """Called before each append of a follower; may raise."""
        self.wait: Callable[[], object] = lambda: None
        """Called where a truncation waits for the recovery point."""

    @property
    def append_end_offset(self) -> int:
        return self.log_end_offset

    def assign_topic_id(self, topic_id: Uuid) -> None:
        self.topic_id = topic_id

    @property
    def as_log(self) -> PartitionLog:
        return cast("PartitionLog", self)

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark

    @property
    def latest_epoch(self) -> int | None:
        epoch = self.leader_epochs.latest_epoch
        return None if epoch == NO_EPOCH else epoch

    def append_as_leader(self, records: Any, leader_epoch: int, **_options: object) -> int:
        first = self.log_end_offset
        for value in records:
            self._add(Entry(self.log_end_offset, leader_epoch, value))
        return first

    def append_as_follower(self, records: Any, _leader_epoch: int | None = None) -> FollowerAppend | None:
        self.check()
        if records and records[0].offset < self.log_end_offset:
            raise UnexpectedOffsetError(records[0].offset, self.log_end_offset)
        for entry in records:
            self._add(entry)
        return FollowerAppend(len(records)) if records else None

    def _add(self, entry: Entry) -> None:
        self.leader_epochs.assign(entry.epoch, entry.offset)
        self.entries.append(entry)
        self.log_end_offset = entry.offset + 1

    def read(self, offset: int, count: int) -> list[Entry]:
        return [entry for entry in self.entries if entry.offset >= offset][:count]

    def begin_epoch(self, leader_epoch: int, start_offset: int) -> None:
        self.leader_epochs.assign(leader_epoch, start_offset)

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    def update_high_watermark(self, offset: int) -> int:
        self.high_watermark = max(min(offset, self.log_end_offset), self.log_start_offset)
        return self.high_watermark

    def increase_high_watermark(self, offset: int) -> bool:
        if offset <= self.high_watermark:
            return False
        assert offset <= self.log_end_offset
        self.high_watermark = offset
        return True

    def cut(self, offset: int) -> None:
        """What `truncate_to` does when it goes on."""
        self.entries = [entry for entry in self.entries if entry.offset < offset]
        self.log_end_offset = min(self.log_end_offset, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.leader_epochs.truncate_from_end(offset)

    async def truncate_to(self, offset: int, is_still_due: Callable[[], bool] = lambda: True) -> bool:
        self.wait()
        if not is_still_due():
            return False
        before = self.log_end_offset
        self.cut(offset)
        return self.log_end_offset < before

    async def truncate_fully_and_start_at(
        self, offset: int, log_start_offset: int | None = None, is_still_due: Callable[[], bool] = lambda: True
    ) -> None:
        self.wait()
        if not is_still_due():
            return
        self.entries = []
        self.leader_epochs.clear()
        self.log_start_offset = offset if log_start_offset is None else log_start_offset
        self.log_end_offset = self.high_watermark = offset

    def delete_records_to(self, offset: int) -> int:
        self.log_start_offset = self.high_watermark if offset == -1 else offset
        return self.log_start_offset

    def increase_log_start_offset(self, offset: int, _reason: str) -> bool:
        moved = offset > self.log_start_offset
        self.log_start_offset = max(self.log_start_offset, offset)
        return moved
