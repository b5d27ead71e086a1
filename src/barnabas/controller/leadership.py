"""The leader and the ISR of a partition, with the epochs that fence them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from barnabas.coordination.layout import topics
from barnabas.coordination.layout.payload import NO_EXTRA
from barnabas.kernel.ids import Uuid
from barnabas.wire.sentinels import NO_LEADER
from barnabas.wire.topics import LeaderRecoveryState

INITIAL_LEADER_EPOCH = 0
INITIAL_PARTITION_EPOCH = 0
_SHARED_BYTES_MAX: Final = 256
_SHARED_MEMBERS_MAX: Final = 32
_SHARED_MAX: Final = 8_192
"""States of so many bytes or members, and so many of them, are kept at most, to be used for all partitions that have
the same.
"""


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """The leadership of one partition, as in its state znode.

    `partition_epoch` is the znode's version; `extra` is what the znode holds beyond the known fields, which every
    rewrite keeps.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    partition_epoch: int = INITIAL_PARTITION_EPOCH
    extra: Mapping[str, Any] = NO_EXTRA

    @classmethod
    def initial(cls, live_replicas: tuple[int, ...], controller_epoch: int) -> LeaderAndIsr:
        """The leadership of a new partition: the first live replica leads, and all live replicas are in sync."""
        if not live_replicas:
            raise ValueError("a new partition needs a live replica")
        return cls(live_replicas[0], INITIAL_LEADER_EPOCH, live_replicas, controller_epoch)

    @classmethod
    def decode(cls, data: bytes | None, path: str, version: int) -> LeaderAndIsr:
        """The leadership that a state znode of this version holds. Raises `LayoutError`."""
        if data is not None and len(data) <= _SHARED_BYTES_MAX:
            shared = _decode_plain(data, version)
            if shared is not None:
                return shared
        return cls.from_znode(topics.PartitionState.decode(data, path), version)

    @classmethod
    def from_znode(cls, state: topics.PartitionState, version: int) -> LeaderAndIsr:
        return cls(
            state.leader,
            state.leader_epoch,
            state.isr,
            state.controller_epoch,
            state.leader_recovery_state,
            version,
            state.extra,
        )

    def to_znode(self) -> topics.PartitionState:
        return topics.PartitionState(
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            isr=self.isr,
            controller_epoch=self.controller_epoch,
            leader_recovery_state=self.leader_recovery_state,
            extra=self.extra,
        )

    def elect(
        self, leader: int, isr: tuple[int, ...], leader_recovery_state: LeaderRecoveryState | None = None
    ) -> LeaderAndIsr:
        """The same partition in its next leader epoch; the recovery state stays unless one is given."""
        state = self.leader_recovery_state if leader_recovery_state is None else leader_recovery_state
        epoch = self.leader_epoch + 1
        return LeaderAndIsr(leader, epoch, isr, self.controller_epoch, state, self.partition_epoch, self.extra)

    def without(self, gone: Collection[int]) -> LeaderAndIsr:
        """The next epoch without these replicas. The last members of an ISR stay in it, several when they go together:
        each of them has every committed record, and no other replica need have.
        """
        leader = NO_LEADER if self.leader in gone and self.leader in self.isr else self.leader
        isr = tuple(replica for replica in self.isr if replica not in gone)
        return self.elect(leader, isr or self.isr)

    def holds_the_same(self, other: LeaderAndIsr) -> bool:
        """Whether both mean the same to brokers, whatever their controller epoch and znode version."""
        return (
            self.leader_epoch == other.leader_epoch
            and self.isr == other.isr
            and self.leader == other.leader
            and self.leader_recovery_state is other.leader_recovery_state
        )

    # These are made for every partition of a failover, where `dataclasses.replace` would cost most of the time.

    def by_controller(self, controller_epoch: int) -> LeaderAndIsr:
        return self._written(controller_epoch, self.partition_epoch)

    def at_version(self, partition_epoch: int) -> LeaderAndIsr:
        return self._written(self.controller_epoch, partition_epoch)

    def _written(self, controller_epoch: int, partition_epoch: int) -> LeaderAndIsr:
        """The same, written by this controller in this version; one object for all that are equal, as after reading."""
        state = self.leader_recovery_state
        if self.extra is NO_EXTRA and len(self.isr) <= _SHARED_MEMBERS_MAX:
            return _shared(self.leader, self.leader_epoch, self.isr, controller_epoch, state, partition_epoch)
        return LeaderAndIsr(
            self.leader, self.leader_epoch, self.isr, controller_epoch, state, partition_epoch, self.extra
        )


@lru_cache(maxsize=_SHARED_MAX)
def _shared(
    leader: int,
    leader_epoch: int,
    isr: tuple[int, ...],
    controller_epoch: int,
    leader_recovery_state: LeaderRecoveryState,
    partition_epoch: int,
) -> LeaderAndIsr:
    return LeaderAndIsr(leader, leader_epoch, isr, controller_epoch, leader_recovery_state, partition_epoch)


@lru_cache(maxsize=_SHARED_MAX)
def _decode_plain(data: bytes, version: int) -> LeaderAndIsr | None:
    """A controller that takes over reads the states of all partitions, of which many are equal: those share one object,
    which is quicker to find than to make.
    """
    fields = topics.PartitionState.plain_fields(data)
    return None if fields is None else LeaderAndIsr(*fields, LeaderRecoveryState.RECOVERED, version)


ToldOfTopic = Callable[[int], LeaderAndIsr | None]
"""What this broker has heard from controllers about this partition of a topic."""
ToldLeadership = Callable[[str, Uuid | None], ToldOfTopic | None]
"""Likewise about the topic of this name and id; None where that is nothing."""


def nothing_was_told(_topic: str, _topic_id: Uuid | None) -> None:
    """For a broker that has not heard from any controller."""
