"""Moves replicas between their states: takes the dead out of the ISR, and tells the brokers.

A call moves many. Illegal transitions and failures are reported for each replica; the others go on.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from barnabas.controller.broker_requests import RequestBatch
from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import StateChange, Steps, each_in_pieces, give_way, pieces, told
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.partition_znodes import (
    ATTEMPTS_MAX,
    StateChangeFailedError,
    read_leadership,
    write_leadership,
)
from barnabas.controller.recent_transitions import StateTransition, to_be_told
from barnabas.controller.replica_states import REPLICA_TRANSITIONS, PartitionReplica, ReplicaState
from barnabas.controller.settings import PARTITIONS_PER_BATCH, ControllerSettings
from barnabas.coordination.layout.topics import ReplicaAssignment
from barnabas.kernel.transitions import IllegalTransitionError
from barnabas.wire.topics import TopicPartition


@dataclass(slots=True)
class ReplicaMoves:
    """The outcome of a call: the replicas that moved, the illegal transitions, and the failures."""

    moved: list[PartitionReplica] = field(default_factory=list)
    refused: dict[PartitionReplica, IllegalTransitionError] = field(default_factory=dict)
    failed: dict[PartitionReplica, Exception] = field(default_factory=dict)

    def add(self, moves: ReplicaMoves) -> None:
        """Takes in what became of a part of the call."""
        self.moved += moves.moved
        self.refused |= moves.refused
        self.failed |= moves.failed


@dataclass(slots=True)
class _Removals:
    """The leadership of partitions after replicas have left their ISRs; None where there is nothing to leave."""

    leadership: dict[TopicPartition, LeaderAndIsr | None] = field(default_factory=dict)
    failed: dict[TopicPartition, Exception] = field(default_factory=dict)


class ReplicaStateMachine:
    """Every method is a part of an event and may raise `ControllerMovedError`, after which nothing more is sent."""

    def __init__(
        self,
        context: ControllerContext,
        settings: ControllerSettings,
        *,
        is_debug_logged: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_debug_logged` says whether lines for moves as they should be are worth making; there is one for every
        replica.
        """
        self._context = context
        self._settings = settings
        self._is_debug_logged = is_debug_logged

    def start_up(self) -> Steps[None]:
        """For a controller that has just loaded its context: tells live replicas who leads them, and takes those of
        dead brokers offline.

        These begin as ineligible for deletion, since their broker must come back for it.
        """
        partitions = iter(self._context.partitions)
        while batch := list(islice(partitions, PARTITIONS_PER_BATCH)):
            yield from self._start_up(batch)

    def _start_up(self, partitions: list[TopicPartition]) -> Steps[None]:
        context = self._context
        online: list[PartitionReplica] = []
        offline: list[PartitionReplica] = []

        def begin(partition: TopicPartition) -> None:
            for broker_id in context.assignment(partition).replicas:
                replica = PartitionReplica(partition, broker_id)
                if context.is_replica_online(broker_id, partition):
                    context.set_replica_state(replica, ReplicaState.ONLINE)
                    online.append(replica)
                else:
                    context.set_replica_state(replica, ReplicaState.DELETION_INELIGIBLE)
                    offline.append(replica)

        yield from each_in_pieces(begin, partitions)
        # What became of each is not gathered: it would be more than all that is kept of the replicas.
        yield from self.move(online, ReplicaState.ONLINE)
        yield from self.move(offline, ReplicaState.OFFLINE)

    def move(self, replicas: Iterable[PartitionReplica], target: ReplicaState) -> Steps[ReplicaMoves]:
        """Moves replicas to `target`, those of so many partitions at a time.

        Replicas of one partition go together: when all of an ISR go offline, all of them stay in it.
        """
        replicas_of: dict[TopicPartition, list[PartitionReplica]] = {}
        for piece in pieces(replicas):
            for replica in piece:
                replicas_of.setdefault(replica.partition, []).append(replica)
            if len(replicas_of) >= PARTITIONS_PER_BATCH:
                yield from give_way()
        all_moves = ReplicaMoves()
        remaining = iter(replicas_of.values())
        while batch := list(islice(remaining, PARTITIONS_PER_BATCH)):
            moves = yield from self._move([replica for together in batch for replica in together], target)
            all_moves.add(moves)
            if len(batch) == PARTITIONS_PER_BATCH:
                yield from give_way()
        return all_moves

    def _move(self, replicas: list[PartitionReplica], target: ReplicaState) -> Steps[ReplicaMoves]:
        context = self._context
        before = {replica: context.replica_state(replica) for replica in replicas}
        advanced = REPLICA_TRANSITIONS.advance_all(before.items(), target)
        moves = ReplicaMoves(refused=dict(advanced.refusals))
        batch = RequestBatch(context, self._settings)
        if target is ReplicaState.OFFLINE:
            yield from self._take_offline(advanced.states, moves, batch)
        else:
            yield from each_in_pieces(
                lambda replica: self._move_one(replica, before[replica], target, moves, batch), advanced.states
            )
            if target is ReplicaState.NON_EXISTENT:
                yield from self._forget(moves.moved)
        yield from each_in_pieces(lambda replica: context.set_replica_state(replica, target), moves.moved)
        yield from told(self._lines(before, target, moves))
        effects = yield from batch.effects()
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
            case ReplicaState.ONLINE if known is not None and not self._is_lost_leader(replica, known):
                batch.add_leader_and_isr([broker_id], partition, known, is_new=False)
            case ReplicaState.DELETION_STARTED:
                batch.add_stop_replica([broker_id], partition, delete=True)
            case _:
                pass
        moves.moved.append(replica)

    def _forget(self, replicas: Iterable[PartitionReplica]) -> Steps[None]:
        """Takes replicas out of their assignments, those of one partition together."""
        leaving: dict[TopicPartition, set[int]] = {}
        for partition, broker_id in replicas:
            leaving.setdefault(partition, set()).add(broker_id)
        context = self._context
        yield from each_in_pieces(
            lambda partition: context.set_assignment(
                partition, _without(context.assignment(partition), leaving[partition])
            ),
            leaving,
        )

    def _is_lost_leader(self, replica: PartitionReplica, known: LeaderAndIsr) -> bool:
        """Whether it has started anew while the state cannot be read: it is not to lead in its old epoch."""
        return known.leader == replica.broker_id and known.leader in self._context.lost_members.get(
            replica.partition, ()
        )

    def _ensure_assigned(self, replica: PartitionReplica) -> None:
        assignment = self._context.assignment(replica.partition)
        if replica.broker_id not in assignment.replicas:
            extended = dataclasses.replace(assignment, replicas=(*assignment.replicas, replica.broker_id))
            self._context.set_assignment(replica.partition, extended)

    def _take_offline(
        self, replicas: Iterable[PartitionReplica], moves: ReplicaMoves, batch: RequestBatch
    ) -> Steps[None]:
        """Stops replicas, takes them out of their ISRs, and tells the other replicas."""
        context = self._context
        leaving: dict[TopicPartition, list[int]] = {}

        def stop(replica: PartitionReplica) -> None:
            partition, broker_id = replica
            batch.add_stop_replica([broker_id], partition, delete=False)
            if context.leadership(partition) is not None:
                leaving.setdefault(partition, []).append(broker_id)
            else:
                batch.add_update_metadata(context.live_or_shutting_down_brokers, [partition])
                moves.moved.append(replica)
                self._lose(partition, [broker_id])

        yield from each_in_pieces(stop, replicas)
        removals = yield from self._remove_from_isrs(leaving)
        for partition, error in removals.failed.items():
            moves.failed.update((PartitionReplica(partition, broker_id), error) for broker_id in leaving[partition])

        def tell_others(partition: TopicPartition) -> None:
            known, gone = removals.leadership[partition], leaving[partition]
            moves.moved.extend(PartitionReplica(partition, broker_id) for broker_id in gone)
            if known is not None and not context.is_queued_for_deletion(partition.topic):
                others = [replica for replica in context.assignment(partition).replicas if replica not in gone]
                batch.add_leader_and_isr(others, partition, known, is_new=False)

        yield from each_in_pieces(tell_others, removals.leadership)

    def _lose(self, partition: TopicPartition, broker_ids: Iterable[int]) -> None:
        """Whoever goes while a state cannot be read leaves the ISR as soon as it can, also when it is back by then."""
        if partition in self._context.unreadable_partitions:
            self._context.lost_members.setdefault(partition, {}).update(dict.fromkeys(broker_ids))

    def _remove_from_isrs(self, leaving: Mapping[TopicPartition, list[int]]) -> Steps[_Removals]:
        removals = _Removals()
        remaining = tuple(leaving)
        for _ in range(ATTEMPTS_MAX):
            if not remaining:
                return removals
            remaining = yield from self._remove_from_isrs_once({key: leaving[key] for key in remaining}, removals)
        for partition in remaining:
            removals.failed[partition] = StateChangeFailedError(
                f"the state in ZooKeeper changed before each of {ATTEMPTS_MAX} writes"
            )
        return removals

    def _remove_from_isrs_once(
        self, leaving: Mapping[TopicPartition, list[int]], removals: _Removals
    ) -> Steps[tuple[TopicPartition, ...]]:
        context = self._context
        found = yield from read_leadership(context, leaving)
        settled: dict[TopicPartition, LeaderAndIsr] = {}
        changes: dict[TopicPartition, LeaderAndIsr] = {}

        def leave(partition: TopicPartition) -> None:
            known = found[partition]
            if isinstance(known, LeaderAndIsr):
                change = known.without(leaving[partition]).by_controller(context.epoch)
                if (change.leader, change.isr) != (known.leader, known.isr):
                    changes[partition] = change
                else:
                    settled[partition] = known.by_controller(context.epoch)
            elif known is not None:
                removals.failed[partition] = known
                self._lose(partition, leaving[partition])
            elif context.is_queued_for_deletion(partition.topic):
                removals.leadership[partition] = None
            else:
                removals.failed[partition] = StateChangeFailedError("the partition's state in ZooKeeper is gone")

        yield from each_in_pieces(leave, found)
        written = yield from write_leadership(context, changes)
        removals.failed.update(written.failed)
        left = {**settled, **written.leadership}

        def take_over(partition: TopicPartition) -> None:
            context.set_leadership(partition, left[partition])
            removals.leadership[partition] = left[partition]

        yield from each_in_pieces(take_over, left)
        return written.conflicts

    def _lines(
        self, before: Mapping[PartitionReplica, ReplicaState], target: ReplicaState, moves: ReplicaMoves
    ) -> Iterator[StateChange]:
        """One line per replica, with the epochs."""
        head = f"controller {self._settings.broker_id} epoch {self._context.epoch}: replica"
        all_of_them = self._is_debug_logged() or bool(moves.refused or moves.failed)
        for replica, state in to_be_told(before, all_of_them=all_of_them):
            fault = moves.refused.get(replica) or moves.failed.get(replica)
            known = self._context.leadership(replica.partition)
            move = StateTransition(
                *replica.partition,
                replica.broker_id,
                state.name,
                target.name,
                known,
                fault=None if fault is None else str(fault),
            )
            change = f"{head} {replica} from {state.name} to {target.name}"
            if fault is not None:
                yield StateChange(logging.ERROR, f"{change} failed: {fault}", move)
                continue
            leads = (
                ""
                if known is None
                else f": leader {known.leader}, leader epoch {known.leader_epoch}, in sync {list(known.isr)}"
            )
            yield StateChange(logging.DEBUG, f"{change}{leads}", move)


def _without(assignment: ReplicaAssignment, broker_ids: Collection[int]) -> ReplicaAssignment:
    return ReplicaAssignment(
        *(
            tuple(replica for replica in replicas if replica not in broker_ids)
            for replicas in (assignment.replicas, assignment.adding_replicas, assignment.removing_replicas)
        )
    )
