"""The committed offsets of one group, those that are on their way, and those of open transactions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from barnabas.coordinators.group.records import NO_EXPIRATION, CommittedOffset
from barnabas.kernel.steps import Steps
from barnabas.wire.topics import TopicPartition

_FREED_PER_STEP: Final = 4096


def emptied_mapping(mapping: dict[Any, Any]) -> Steps[None]:
    """Takes everything out, a few thousand items in each step; none for few."""
    while mapping:
        for _ in range(min(len(mapping), _FREED_PER_STEP)):
            mapping.popitem()
        if mapping:
            yield


class StoredOffset(NamedTuple):
    """An offset and the base offset of the batch it was written in.

    Two writers, a consumer and a transaction, may commit the same partition in one order and be decided in another;
    what was written last counts, also after compaction.
    """

    base_offset: int
    committed: CommittedOffset


class RemovedOffsets(NamedTuple):
    """What was taken away: committed offsets, and others that were being appended. Both are in the log."""

    committed: Mapping[TopicPartition, StoredOffset]
    pending: Mapping[TopicPartition, list[CommittedOffset]]

    @property
    def partitions(self) -> list[TopicPartition]:
        """Those that need a tombstone."""
        return [*self.committed, *(partition for partition in self.pending if partition not in self.committed)]


class GroupOffsets:
    """Only `replay` and `complete_transaction`, with what is in the log, change what is committed, and only removal
    takes it away. An offset that is being appended is pending, and not to be seen.
    """

    __slots__ = ("_committed", "_pending", "_transactional")

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, StoredOffset] = {}
        self._pending: dict[TopicPartition, list[CommittedOffset]] = {}
        """Several where a commit came before the one before it was committed: each has its own outcome."""
        self._transactional: dict[int, dict[TopicPartition, StoredOffset]] = {}

    def __len__(self) -> int:
        return len(self._committed)

    @property
    def has_any(self) -> bool:
        """Whether there is anything to keep the group for."""
        return bool(self._committed or self._pending or self._transactional)

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """Those with a committed offset."""
        return self._committed.keys()

    @property
    def written_partitions(self) -> list[TopicPartition]:
        """Those with an offset in the log: committed ones, and ones that are being appended."""
        return [*self._committed, *(partition for partition in self._pending if partition not in self._committed)]

    def is_written(self, partition: TopicPartition) -> bool:
        return partition in self._committed or partition in self._pending

    def get(self, partition: TopicPartition) -> CommittedOffset | None:
        stored = self._committed.get(partition)
        return None if stored is None else stored.committed

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether an offset of the partition is being appended or is part of an open transaction."""
        return partition in self._pending or any(partition in offsets for offsets in self._transactional.values())

    # A commit: staged, appended, and then replayed or dropped.

    def stage(self, partition: TopicPartition, committed: CommittedOffset) -> None:
        """The offset is about to be appended."""
        pending = self._pending.get(partition)
        if pending is None:
            self._pending[partition] = [committed]
        else:
            pending.append(committed)

    def unstage(self, partition: TopicPartition, committed: CommittedOffset) -> bool:
        """The append ended. False where it was not pending any more: the partition's offsets were deleted."""
        pending = self._pending.get(partition, ())
        for position, each in enumerate(pending):
            if each is committed:
                if len(pending) == 1:
                    del self._pending[partition]
                else:
                    del self._pending[partition][position]
                return True
        return False

    def replay(self, partition: TopicPartition, base_offset: int, committed: CommittedOffset) -> None:
        """The offset is in the log; an older one in the log does not replace a newer one."""
        stored = self._committed.get(partition)
        if stored is None or stored.base_offset < base_offset:
            self._committed[partition] = StoredOffset(base_offset, committed)

    def replay_transactional(
        self, producer_id: int, partition: TopicPartition, base_offset: int, committed: CommittedOffset | None
    ) -> None:
        """The offset, or a tombstone, is in the log as part of a transaction that is not decided yet."""
        offsets = self._transactional.setdefault(producer_id, {})
        if committed is None:
            offsets.pop(partition, None)
        else:
            offsets[partition] = StoredOffset(base_offset, committed)

    def complete_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """The marker that decides the producer's transaction is in the log."""
        offsets = self._transactional.pop(producer_id, {})
        if is_commit:
            for partition, stored in offsets.items():
                self.replay(partition, stored.base_offset, stored.committed)

    # Removal.

    def emptied(self) -> Steps[None]:
        """Gives back the offsets of a group that is here no more; freed all at once, very many take long."""
        yield from emptied_mapping(self._committed)
        yield from emptied_mapping(self._pending)
        for offsets in self._transactional.values():
            yield from emptied_mapping(offsets)

    def remove(self, partitions: Iterable[TopicPartition]) -> RemovedOffsets:
        """Takes the offsets away, pending ones too."""
        removed: dict[TopicPartition, StoredOffset] = {}
        removed_pending: dict[TopicPartition, list[CommittedOffset]] = {}
        for partition in partitions:
            pending = self._pending.pop(partition, None)
            if pending is not None:
                removed_pending[partition] = pending
            for offsets in self._transactional.values():
                offsets.pop(partition, None)
            stored = self._committed.pop(partition, None)
            if stored is not None:
                removed[partition] = stored
        return RemovedOffsets(removed, removed_pending)

    def put_back(self, removed: RemovedOffsets, partitions: Iterable[TopicPartition]) -> None:
        """The tombstones of removed offsets could not be written: they are there again, unless newer ones are. To be
        called in the turn of the removal, before a pending one can have ended.
        """
        for partition in partitions:
            if partition in removed.committed:
                self._committed.setdefault(partition, removed.committed[partition])
            if partition in removed.pending:
                self._pending.setdefault(partition, removed.pending[partition])

    def remove_expired(
        self,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        retention_ms: int,
        base_timestamp_ms: Callable[[CommittedOffset], int],
        subscribed_topics: Collection[str] = (),
    ) -> dict[TopicPartition, StoredOffset]:
        """Takes away, and returns, what of the partitions has expired: by its own expiration where it has one,
        otherwise when the retention has passed since `base_timestamp_ms` of the offset. Subscribed topics and pending
        offsets stay.
        """

        def has_expired(committed: CommittedOffset) -> bool:
            if committed.expire_timestamp_ms != NO_EXPIRATION:
                return now_ms >= committed.expire_timestamp_ms
            return now_ms - base_timestamp_ms(committed) >= retention_ms

        expired = {}
        for partition in partitions:
            stored = self._committed.get(partition)
            if (
                stored is not None
                and partition.topic not in subscribed_topics
                and partition not in self._pending
                and has_expired(stored.committed)
            ):
                expired[partition] = stored
                del self._committed[partition]
        return expired
