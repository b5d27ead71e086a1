"""How far each partition of a consumer has been read, sans I/O.

A position is trusted for one leader epoch. When the partition has a newer leader, it is held against that leader's log
before anything more is read, so that a truncated log is noticed and not read over (KIP-320).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from barnabas.kernel.facts import fact
from barnabas.kernel.transitions import TransitionTable
from barnabas.wire.sentinels import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_EPOCH

if TYPE_CHECKING:
    from barnabas.client.cluster import Cluster
    from barnabas.wire.topics import TopicPartition


class PositionState(enum.Enum):
    """What has to happen next."""

    UNKNOWN = "unknown"  # the committed offset is to be asked for, or the position to be reset
    RESETTING = "resetting"  # the offset of a timestamp is to be asked for
    VALIDATING = "validating"  # the position is to be held against the leader's log
    FETCHING = "fetching"


class PositionEvent(enum.Enum):
    """What happens to a position."""

    POSITIONED = "positioned"
    RESET = "reset"
    NEW_LEADER = "new leader"


_S = PositionState
_E = PositionEvent
POSITION = TransitionTable(
    "position",
    start=PositionState.UNKNOWN,
    transitions={
        (_S.UNKNOWN, _E.POSITIONED): _S.FETCHING,
        (_S.UNKNOWN, _E.RESET): _S.RESETTING,
        (_S.RESETTING, _E.POSITIONED): _S.FETCHING,
        (_S.RESETTING, _E.RESET): _S.RESETTING,
        (_S.VALIDATING, _E.POSITIONED): _S.FETCHING,
        (_S.VALIDATING, _E.RESET): _S.RESETTING,
        (_S.VALIDATING, _E.NEW_LEADER): _S.VALIDATING,
        (_S.FETCHING, _E.POSITIONED): _S.FETCHING,
        (_S.FETCHING, _E.RESET): _S.RESETTING,
        (_S.FETCHING, _E.NEW_LEADER): _S.VALIDATING,
    },
)


@fact
class Position:
    """The offset of the next record, the epoch of the last one read (-1: not known), and the leader epoch for which
    both are trusted.
    """

    offset: int
    offset_epoch: int = NO_EPOCH
    leader_epoch: int = NO_EPOCH


class PartitionState:
    """What a consumer knows of one partition that is assigned to it."""

    __slots__ = (
        "generation",
        "high_watermark",
        "is_paused",
        "partition",
        "position",
        "processed",
        "reset_timestamp_ms",
        "retry_at",
        "state",
        "topic_id",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.state = PositionState.UNKNOWN
        self.position = Position(-1)
        """Means nothing while the state is UNKNOWN or RESETTING."""
        self.processed: Position | None = None
        """How far the user has processed it, as far as is known: where the last poll began, or what was committed by
        hand since. Automatic commits go no further. None while nothing is known that is true of the present log.
        """
        self.generation = 0
        """Incremented whenever the position is set from outside: answers to earlier requests are void."""
        self.reset_timestamp_ms = LATEST_TIMESTAMP
        self.topic_id: bytes | None = None
        """The id of the topic that the position is in; None while that is not known."""
        self.is_paused = False
        self.retry_at = 0.0
        """A fetch that failed is not repeated before; never, without a new position, after one out of range."""
        self.high_watermark = -1

    @property
    def is_fetchable(self) -> bool:
        return self.state is PositionState.FETCHING and not self.is_paused

    @property
    def has_position(self) -> bool:
        """`position` is known; one that is being validated is as good for a commit as any."""
        return self.state in (PositionState.FETCHING, PositionState.VALIDATING)

    def came_back(self) -> None:
        """The user polls again: what earlier polls returned has been processed."""
        if self.has_position:
            self.processed = self.position

    def seek(self, position: Position) -> None:
        """Goes on from there; trusted for no leader epoch yet. It changes nothing of what was processed before."""
        self._advance(PositionEvent.POSITIONED)
        self.position = position
        self.generation += 1
        self.retry_at = 0.0

    def reset(self, timestamp_ms: int) -> None:
        """Goes on from the first record of that time, once its offset is known."""
        self._advance(PositionEvent.RESET)
        self.reset_timestamp_ms = timestamp_ms
        self.generation += 1
        self.processed = None  # the log may be another one, or begin behind it

    def truncated(self, position: Position) -> None:
        """The log parts there from what was read: other records have taken the place of those behind it."""
        self.seek(position)
        if self.processed is not None and self.processed.offset > position.offset:
            self.processed = position

    def validated(self) -> None:
        """The position is in the leader's log."""
        self._advance(PositionEvent.POSITIONED)

    def follow(self, leader_epoch: int) -> None:
        """The partition has a leader of that epoch. A position without the epoch of its record cannot be checked."""
        position = self.position
        if not self.has_position or leader_epoch <= position.leader_epoch:
            return
        self.position = Position(position.offset, position.offset_epoch, leader_epoch)
        if position.offset_epoch != NO_EPOCH:
            self._advance(PositionEvent.NEW_LEADER)

    def revalidate(self) -> None:
        """A leader said that it does not agree with us on the epoch: holds the position against its log."""
        if self.state is PositionState.FETCHING and self.position.offset_epoch != NO_EPOCH:
            self._advance(PositionEvent.NEW_LEADER)

    def consumed(self, next_offset: int, offset_epoch: int) -> None:
        """Records below `next_offset` were handed out."""
        self.position = Position(next_offset, offset_epoch, self.position.leader_epoch)

    def _advance(self, event: PositionEvent) -> None:
        self.state = POSITION.advance(self.partition, self.state, event)


class Positions:
    """The partitions that are assigned to a consumer."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, PartitionState] = {}

    def __iter__(self) -> Iterator[PartitionState]:
        return iter(self._states.values())

    def get(self, partition: TopicPartition) -> PartitionState | None:
        return self._states.get(partition)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """What is assigned."""
        return tuple(self._states)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Exactly these are assigned; those that were before keep their positions."""
        self._states = {
            partition: self._states.get(partition) or PartitionState(partition)
            for partition in dict.fromkeys(partitions)
        }

    def follow(self, cluster: Cluster) -> None:
        """The image of the cluster has changed. Everything in a topic that was created again is new."""
        for state in self._states.values():
            topic = cluster.topics.get(state.partition.topic)
            info = cluster.partition(state.partition)
            if topic is None or info is None or info.leader_id not in cluster.brokers:
                continue
            if state.topic_id is not None and state.topic_id != topic.topic_id:
                if state.state is not PositionState.UNKNOWN:
                    state.reset(EARLIEST_TIMESTAMP)
            else:
                state.follow(info.leader_epoch)
            state.topic_id = topic.topic_id

    def rotate(self, partitions: Iterable[TopicPartition]) -> None:
        """Puts partitions that had their turn behind all others."""
        for partition in partitions:
            state = self._states.pop(partition, None)
            if state is not None:
                self._states[partition] = state
