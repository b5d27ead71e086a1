"""Moves replicas between their states: takes the dead out of the ISR, and tells the brokers.

A call moves many, broker by broker. What the table refuses, and what fails, is reported replica by replica; the rest
goes on.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from barnabas.controller.broker_requests import RequestBatch
from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import StateChange, Steps
from barnabas.controller.leadership import NO_LEADER, LeaderAndIsr
from barnabas.controller.partition_znodes import (
    ATTEMPTS_MAX,
    StateChangeFailedError,
    read_leadership,
    write_leadership,
)
from barnabas.controller.replica_states import REPLICA_TRANSITIONS, PartitionReplica, ReplicaState
from barnabas.controller.settings import ControllerSettings
from barnabas.coordination.layout.topics import ReplicaAssignment, TopicPartition
from barnabas.kernel.transitions import IllegalTransitionError


@dataclass(slots=True)
class ReplicaMoves:
    """What became of a call: the replicas that moved, what the table refused, and what failed."""

    moved: list[PartitionReplica] = field(default_factory=list)
    refused: dict[PartitionReplica, IllegalTransitionError] = field(default_factory=dict)
    failed: dict[PartitionReplica, Exception] = field(default_factory=dict)


@dataclass(slots=True)
class _Removals:
    """The leadership of partitions after a replica has left their ISRs; None where there is nothing to leave."""

    leadership: dict[TopicPartition, LeaderAndIsr | None] = field(default_factory=dict)
    failed: dict[TopicPartition, Exception] = field(default_factory=dict)


class ReplicaStateMachine:
    """Every method is a part of an event and may raise `ControllerMovedError`, after which nothing more is sent."""

    def __init__(self, context: ControllerContext, settings: ControllerSettings) -> None:
        self._context = context
        self._settings = settings

    def start_up(self) -> Steps[ReplicaMoves]:
        """For a controller that has just loaded its context: tells live replicas who leads them, and takes those of
        dead brokers offline.

        These begin as ineligible for deletion, since their broker must come back for it.
        """
        context = self._context
        online: list[PartitionReplica] = []
        offline: list[PartitionReplica] = []
        for partition in context.partitions:
            for broker_id in context.assignment(partition).replicas:
                replica = PartitionReplica(partition, broker_id)
                if context.is_replica_online(broker_id, partition):
                    context.set_replica_state(replica, ReplicaState.ONLINE)
                    online.append(replica)
                else:
                    context.set_replica_state(replica, ReplicaState.DELETION_INELIGIBLE)
                    offline.append(replica)
        moves = yield from self.move(online, ReplicaState.ONLINE)
        others = yield from self.move(offline, ReplicaState.OFFLINE)
        return ReplicaMoves(
            [*moves.moved, *others.moved], {**moves.refused, **others.refused}, {**moves.failed, **others.failed}
        )

    def move(self, replicas: Iterable[PartitionReplica], target: ReplicaState) -> Steps[ReplicaMoves]:
        """Moves replicas to `target`."""
        context = self._context
        before = {replica: context.replica_state(replica) for replica in replicas}
        advanced = REPLICA_TRANSITIONS.advance_all(before.items(), target)
        moves = ReplicaMoves(refused=dict(advanced.refusals))
        batch = RequestBatch(context, self._settings.broker_id, self._settings.inter_broker_listener_name)
        by_broker: dict[int, list[PartitionReplica]] = {}
        for replica in advanced.states:
            by_broker.setdefault(replica.broker_id, []).append(replica)
        for broker_id, on_broker in by_broker.items():
            if target is ReplicaState.OFFLINE:
                yield from self._take_offline(broker_id, on_broker, moves, batch)
            else:
                for replica in on_broker:
                    self._move_one(replica, before[replica], target, moves, batch)
        for replica in moves.moved:
            context.set_replica_state(replica, target)
        effects = (*self._lines(before, target, moves), *batch.effects())
        if effects:
            yield effects
        return moves

    def _move_one(
        self,
        replica: PartitionReplica,
        before: ReplicaState,
        target: ReplicaState,
        moves: ReplicaMoves,
        batch: RequestBatch,
    ) -> None:
        """Any move that needs no write."""
        context, (partition, broker_id) = self._context, replica
        known = context.leadership(partition)
        match target:
            case ReplicaState.NEW if known is not None and known.leader == broker_id:
                moves.failed[replica] = StateChangeFailedError("it leads its partition, so it cannot be new")
                return
            case ReplicaState.NEW if known is not None:
                batch.add_leader_and_isr([broker_id], partition, known, is_new=True)
            case ReplicaState.ONLINE if before is ReplicaState.NEW:
                self._ensure_assigned(replica)
            case ReplicaState.ONLINE if known is not None:
                batch.add_leader_and_isr([broker_id], partition, known, is_new=False)
            case ReplicaState.DELETION_STARTED:
                batch.add_stop_replica([broker_id], partition, delete=True)
            case ReplicaState.NON_EXISTENT:
                context.set_assignment(partition, _without(context.assignment(partition), broker_id))
            case _:
                pass
        moves.moved.append(replica)

    def _ensure_assigned(self, replica: PartitionReplica) -> None:
        assignment = self._context.assignment(replica.partition)
        if replica.broker_id not in assignment.replicas:
            extended = dataclasses.replace(assignment, replicas=(*assignment.replicas, replica.broker_id))
            self._context.set_assignment(replica.partition, extended)

    def _take_offline(
        self, broker_id: int, replicas: Iterable[PartitionReplica], moves: ReplicaMoves, batch: RequestBatch
    ) -> Steps[None]:
        """Stops the replicas of one broker, takes them out of their ISRs, and tells the other replicas."""
        context = self._context
        led: list[TopicPartition] = []
        for replica in replicas:
            partition = replica.partition
            batch.add_stop_replica([broker_id], partition, delete=False)
            if context.leadership(partition) is not None:
                led.append(partition)
            else:
                batch.add_update_metadata(context.live_or_shutting_down_brokers, [partition])
                moves.moved.append(replica)
        removals = yield from self._remove_from_isr(broker_id, led)
        for partition, error in removals.failed.items():
            moves.failed[PartitionReplica(partition, broker_id)] = error
        for partition, known in removals.leadership.items():
            moves.moved.append(PartitionReplica(partition, broker_id))
            if known is not None and not context.is_queued_for_deletion(partition.topic):
                others = [replica for replica in context.assignment(partition).replicas if replica != broker_id]
                batch.add_leader_and_isr(others, partition, known, is_new=False)

    def _remove_from_isr(self, broker_id: int, partitions: Iterable[TopicPartition]) -> Steps[_Removals]:
        removals = _Removals()
        remaining = tuple(partitions)
        for _ in range(ATTEMPTS_MAX):
            if not remaining:
                return removals
            remaining = yield from self._remove_from_isr_once(broker_id, remaining, removals)
        for partition in remaining:
            removals.failed[partition] = StateChangeFailedError(
                f"the state in ZooKeeper changed before each of {ATTEMPTS_MAX} writes"
            )
        return removals

    def _remove_from_isr_once(
        self, broker_id: int, partitions: Iterable[TopicPartition], removals: _Removals
    ) -> Steps[tuple[TopicPartition, ...]]:
        context = self._context
        found = yield from read_leadership(context, partitions)
        settled: dict[TopicPartition, LeaderAndIsr] = {}
        changes: dict[TopicPartition, LeaderAndIsr] = {}
        for partition, known in found.items():
            if isinstance(known, LeaderAndIsr):
                if broker_id in known.isr:
                    changes[partition] = _without_replica(known, broker_id).by_controller(context.epoch)
                else:
                    settled[partition] = known.by_controller(context.epoch)
            elif known is not None:
                removals.failed[partition] = known
            elif context.is_queued_for_deletion(partition.topic):
                removals.leadership[partition] = None
            else:
                removals.failed[partition] = StateChangeFailedError("the partition's state in ZooKeeper is gone")
        written = yield from write_leadership(context, changes)
        removals.failed.update(written.failed)
        for partition, known in {**settled, **written.leadership}.items():
            context.set_leadership(partition, known)
            removals.leadership[partition] = known
        return written.conflicts

    def _lines(
        self, before: Mapping[PartitionReplica, ReplicaState], target: ReplicaState, moves: ReplicaMoves
    ) -> Iterable[StateChange]:
        """One line per replica, with the epochs."""
        head = f"controller {self._settings.broker_id} epoch {self._context.epoch}: replica"
        lines: list[StateChange] = []
        for replica, state in before.items():
            change = f"{head} {replica} from {state.name} to {target.name}"
            fault = moves.refused.get(replica) or moves.failed.get(replica)
            if fault is not None:
                lines.append(StateChange(logging.ERROR, f"{change} failed: {fault}"))
                continue
            known = self._context.leadership(replica.partition)
            leads = (
                ""
                if known is None
                else f": leader {known.leader}, leader epoch {known.leader_epoch}, in sync {list(known.isr)}"
            )
            lines.append(StateChange(logging.DEBUG, f"{change}{leads}"))
        return lines


def _without_replica(known: LeaderAndIsr, broker_id: int) -> LeaderAndIsr:
    """The next epoch without the replica. The last of an ISR stays in it: it alone has every record."""
    leader = NO_LEADER if known.leader == broker_id else known.leader
    isr = known.isr if len(known.isr) == 1 else tuple(replica for replica in known.isr if replica != broker_id)
    return known.elect(leader, isr)


def _without(assignment: ReplicaAssignment, broker_id: int) -> ReplicaAssignment:
    return ReplicaAssignment(
        *(
            tuple(replica for replica in replicas if replica != broker_id)
            for replicas in (assignment.replicas, assignment.adding_replicas, assignment.removing_replicas)
        )
    )
