"""The offsets of one group as the log has them: committed, on their way, and of open transactions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple

from barnabas.coordinators.group.records import NO_EXPIRATION, CommittedOffset
from barnabas.kernel.steps import Steps
from barnabas.wire.topics import TopicPartition

_FREED_PER_STEP: Final = 4096
_SETTLED_PER_STEP: Final = 1024


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


class GroupOffsets:
    """Changed only by what is in the log: by `replay`, `replay_pending`, `replay_transactional`,
    `complete_transaction`. An offset is pending, and not to be seen, until it is known whether it is committed; where
    that is not known in time it is in doubt, and not to be seen either before the high watermark has passed it.

    Invariant: an offset to be seen is committed, or was in the log when the shard was loaded (Kafka loads all that the
    leader has, too). What was shown because it is committed is in the log of every leader that is elected cleanly.
    """

    __slots__ = ("_committed", "_in_doubt", "_pending", "_transactional")

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, StoredOffset] = {}
        self._pending: dict[TopicPartition, list[tuple[int, CommittedOffset]]] = {}
        """By base offset. A partition has several, in the order of the log, where a commit came before the last one was
        committed. Plain tuples, since very many may come in one turn."""
        self._in_doubt: dict[TopicPartition, StoredOffset] = {}
        """The last one of each partition: what those before it would show is not missed for long."""
        self._transactional: dict[int, dict[TopicPartition, StoredOffset]] = {}

    def __len__(self) -> int:
        return len(self._committed)

    @property
    def has_any(self) -> bool:
        """Whether there is anything to keep the group for."""
        return bool(self._committed or self._pending or self._in_doubt or self._transactional)

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """Those with a committed offset."""
        return self._committed.keys()

    @property
    def written_partitions(self) -> list[TopicPartition]:
        """Those with an offset in the log: committed ones, ones that are being appended, and ones in doubt."""
        return list(dict.fromkeys((*self._committed, *self._pending, *self._in_doubt)))

    def has_others(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether there is anything to keep the group for beside the offsets of these partitions, each named once."""
        committed, pending, in_doubt = self._committed, self._pending, self._in_doubt
        return (
            bool(self._transactional)
            or len(committed) > sum(partition in committed for partition in partitions)
            or len(pending) > sum(partition in pending for partition in partitions)
            or len(in_doubt) > sum(partition in in_doubt for partition in partitions)
        )

    def is_written(self, partition: TopicPartition) -> bool:
        return partition in self._committed or partition in self._pending or partition in self._in_doubt

    def get(self, partition: TopicPartition) -> CommittedOffset | None:
        stored = self._committed.get(partition)
        return None if stored is None else stored.committed

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether an offset of the partition is being appended or is part of an open transaction. One in doubt is not:
        its client was told that it is not committed, as Apache Kafka forgets it then.
        """
        return partition in self._pending or any(partition in offsets for offsets in self._transactional.values())

    # What is in the log.

    def replay(self, partition: TopicPartition, base_offset: int, committed: CommittedOffset | None) -> None:
        """The offset is in the log, and to be seen; an older one in the log does not replace a newer one. None is a
        tombstone, which takes away what is pending, too.
        """
        if committed is not None:
            self._show(partition, base_offset, committed)
            return
        self._pending.pop(partition, None)
        self._in_doubt.pop(partition, None)
        for offsets in self._transactional.values():
            offsets.pop(partition, None)
        self._committed.pop(partition, None)

    def replay_pending(self, partition: TopicPartition, base_offset: int, committed: CommittedOffset) -> None:
        """The offset is in the log, and not to be seen before `settle`."""
        pending = self._pending.get(partition)
        if pending is None:
            self._pending[partition] = [(base_offset, committed)]
        else:
            pending.append((base_offset, committed))

    def settle(self, partition: TopicPartition, base_offset: int) -> None:
        """The offset that was pending is committed. Nothing happens where it is not pending any more: the partition's
        offsets were deleted.
        """
        committed = self._take_pending(partition, base_offset)
        if committed is not None:
            self._show(partition, base_offset, committed)

    def settle_doubts(self, offset: int) -> Steps[None]:
        """What is in doubt is committed up to this offset of the log."""
        left = _SETTLED_PER_STEP
        for partition in tuple(self._in_doubt):
            stored = self._in_doubt.get(partition)
            if stored is not None and stored.base_offset <= offset:
                del self._in_doubt[partition]
                self._show(partition, *stored)
            left -= 1
            if not left:
                yield
                left = _SETTLED_PER_STEP

    def doubt(self, partition: TopicPartition, base_offset: int) -> None:
        """The offset that was pending is in the log and was not committed in time: it may be, or be lost with this
        leader. Nothing happens where it is not pending any more.
        """
        committed = self._take_pending(partition, base_offset)
        in_doubt = self._in_doubt.get(partition)
        if committed is not None and (in_doubt is None or in_doubt.base_offset < base_offset):
            self._in_doubt[partition] = StoredOffset(base_offset, committed)

    def _take_pending(self, partition: TopicPartition, base_offset: int) -> CommittedOffset | None:
        pending = self._pending.get(partition, ())
        for position, (replayed_at, committed) in enumerate(pending):
            if replayed_at == base_offset:
                if len(pending) == 1:
                    del self._pending[partition]
                else:
                    del self._pending[partition][position]
                return committed
        return None

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
                self._show(partition, *stored)

    def _show(self, partition: TopicPartition, base_offset: int, committed: CommittedOffset) -> None:
        present = self._committed.get(partition)
        if present is None or present.base_offset < base_offset:
            self._committed[partition] = StoredOffset(base_offset, committed)

    # Removal.

    def emptied(self) -> Steps[None]:
        """Gives back the offsets of a group that is here no more; freed all at once, very many take long."""
        yield from emptied_mapping(self._committed)
        yield from emptied_mapping(self._pending)
        yield from emptied_mapping(self._in_doubt)
        for offsets in self._transactional.values():
            yield from emptied_mapping(offsets)

    def expired(
        self,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        retention_ms: int,
        base_timestamp_ms: Callable[[CommittedOffset], int],
        subscribed_topics: Collection[str] = (),
    ) -> list[TopicPartition]:
        """Those of the partitions whose offset has expired: by its own expiration where it has one, otherwise when the
        retention has passed since `base_timestamp_ms` of the offset. Subscribed topics and
        offsets that are pending or in doubt stay.
        """

        def has_expired(committed: CommittedOffset) -> bool:
            if committed.expire_timestamp_ms != NO_EXPIRATION:
                return now_ms >= committed.expire_timestamp_ms
            return now_ms - base_timestamp_ms(committed) >= retention_ms

        expired = []
        for partition in partitions:
            stored = self._committed.get(partition)
            if (
                stored is not None
                and partition.topic not in subscribed_topics
                and partition not in self._pending
                and partition not in self._in_doubt
                and has_expired(stored.committed)
            ):
                expired.append(partition)
        return expired
