"""Five faults put into the brokers, one at a time: the simulation has to find each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from barnabas.controller import effects, partition_znodes
from barnabas.controller.alter_partition import AlterPartitionProcessor, Proposal
from barnabas.controller.context import ControllerContext
from barnabas.coordination.operations import Check, SetData
from barnabas.coordination.protocol import ANY_VERSION
from barnabas.leader.partition import Partition
from barnabas.leader.wake_ups import WakeUps
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.replicas import role_changes
from barnabas.replicas.controller_fence import ControllerFence
from barnabas.replicas.leader_and_isr import Judgement, RequestedPartition, Verdict
from barnabas.serving.acknowledgements import Acknowledgements, Answer
from barnabas.testing.cluster_plan import Plan
from barnabas.testing.cluster_plans import KEEPING, LATE, POWER
from barnabas.wire.sentinels import NO_EPOCH
from barnabas.wire.stopped_partitions import StoppedPartition


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault, and the plan of runs that is tried on it."""

    name: str
    plan: Plan
    plant: Callable[[pytest.MonkeyPatch], None]


def acknowledge_before_replication(patch: pytest.MonkeyPatch) -> None:
    """acks=all is answered as acks=1 is."""

    def when_all_replicated(
        self: Acknowledgements,
        partition: Partition,
        log: PartitionLog,
        waiting: Iterable[tuple[int, Answer]],
        _timeout_ms: int,
    ) -> None:
        for _, answer in waiting:
            self.when_written(partition, log, answer)

    patch.setattr(Acknowledgements, "when_all_replicated", when_all_replicated)


def change_isr_without_version(patch: pytest.MonkeyPatch) -> None:
    """The controller takes whatever ISR a broker proposes, in whatever epochs, for what the present leader wants."""
    decide = AlterPartitionProcessor._decide

    def decide_blindly(self: AlterPartitionProcessor, partition: Any, proposal: Proposal, version: int) -> Any:
        known = self._context.leadership(partition)
        if known is not None and known.leader >= 0:
            isr = {known.leader: -1, **proposal.isr}
            proposal = dataclasses.replace(
                proposal,
                leader=known.leader,
                leader_epoch=known.leader_epoch,
                partition_epoch=known.partition_epoch,
                isr=dict.fromkeys(isr, -1),
            )
        return decide(self, partition, proposal, version)

    patch.setattr(AlterPartitionProcessor, "_decide", decide_blindly)


def truncate_to_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Followers do not compare epochs: they cut their logs off at their own high watermarks (before KIP-101)."""
    patch.setattr(PartitionLog, "latest_epoch", property(lambda _self: None))


def fence_no_epochs(patch: pytest.MonkeyPatch) -> None:
    """Brokers follow every controller, and serve everybody whatever epoch he names; a controller takes every leader
    for the present one, and writes whoever has been elected since.
    """
    _fence_no_brokers(patch)
    _fence_no_controllers(patch)


def _fence_no_brokers(patch: pytest.MonkeyPatch) -> None:
    readable_log = Partition.readable_log
    become_leader = Partition.become_leader
    become_follower = Partition.become_follower

    def readable(self: Partition, _current_leader_epoch: int = NO_EPOCH, *, leader_only: bool) -> PartitionLog:
        return readable_log(self, NO_EPOCH, leader_only=leader_only)

    def judge(told: RequestedPartition, broker_id: int, **_known: Any) -> Judgement:
        return Judgement(Verdict.LEAD if told.state.leader == broker_id else Verdict.FOLLOW)

    def lead(self: Partition, *arguments: Any) -> bool:
        self.partition_epoch = -1
        self.leader_epoch = min(self.leader_epoch, arguments[0].leader_epoch - 1)
        return become_leader(self, *arguments)

    def follow(self: Partition, *arguments: Any) -> bool:
        self.partition_epoch = -1
        self.leader_epoch = min(self.leader_epoch, arguments[0].leader_epoch - 1)
        return become_follower(self, *arguments)

    patch.setattr(Partition, "readable_log", readable)
    patch.setattr(Partition, "become_leader", lead)
    patch.setattr(Partition, "become_follower", follow)
    patch.setattr(role_changes, "judge", judge)
    patch.setattr(StoppedPartition, "is_fenced_by", lambda _self, _leader_epoch: False)
    # A controller's epoch counts for nothing: it is never known.
    patch.setattr(ControllerFence, "epoch", property(lambda _self: -1, lambda _self, _epoch: None), raising=False)


def _fence_no_controllers(patch: pytest.MonkeyPatch) -> None:
    decide = AlterPartitionProcessor._decide
    decode = partition_znodes._decode

    def decide_in_any_epoch(self: AlterPartitionProcessor, partition: Any, proposal: Proposal, version: int) -> Any:
        known = self._context.leadership(partition)
        if known is not None:
            proposal = dataclasses.replace(
                proposal, leader_epoch=known.leader_epoch, partition_epoch=known.partition_epoch
            )
        return decide(self, partition, proposal, version)

    def decode_of_any_controller(_context: Any, *znode: Any) -> Any:
        return decode(ControllerContext(epoch=2**31 - 1), *znode)

    patch.setattr(AlterPartitionProcessor, "_decide", decide_in_any_epoch)
    patch.setattr(partition_znodes, "_decode", decode_of_any_controller)
    patch.setattr(partition_znodes, "SetData", lambda path, data, _version: SetData(path, data))
    patch.setattr(effects, "Check", lambda path, _version: Check(path, ANY_VERSION))


def lose_wake_ups(patch: pytest.MonkeyPatch) -> None:
    """Nobody who waits in a purgatory is told that a partition has changed."""

    def run(self: WakeUps) -> None:
        changed, self._changed = self._changed, {}
        for partition in changed:
            for watcher in tuple(partition.watchers):
                watcher.partition_changed(partition)

    patch.setattr(WakeUps, "run", run)


MUTANTS = (
    Mutant("acks before replication", KEEPING, acknowledge_before_replication),
    Mutant("ISR change without version check", POWER, change_isr_without_version),
    Mutant("truncation to the high watermark", POWER, truncate_to_high_watermark),
    Mutant("no epoch fencing", LATE, fence_no_epochs),
    Mutant("lost purgatory wake-up", KEEPING, lose_wake_ups),
)
