"""The steps of a reassignment, and what each of them leaves for a successor.

The numbered steps are those of Kafka. Each first writes what a successor must know, so that the work is taken up again
wherever it was broken off.

Invariant: a replica is deleted only after it has left the ISR, and while another replica that stays is in sync and
there. So whatever is committed is on a replica that nobody deletes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from barnabas.controller.broker_requests import RequestBatch
from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import Steps, each_in_pieces, give_way
from barnabas.controller.elections import ElectionStrategy
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.partition_state_machine import PartitionStateMachine
from barnabas.controller.partition_states import PartitionState
from barnabas.controller.partition_znodes import begin_leader_epoch, read_leadership
from barnabas.controller.reassignment_faults import ReassignmentFaults
from barnabas.controller.reassignment_requests import ReassignmentRequests
from barnabas.controller.replica_state_machine import ReplicaStateMachine
from barnabas.controller.replica_states import PartitionReplica, ReplicaState
from barnabas.controller.settings import PARTITIONS_PER_BATCH, ControllerSettings
from barnabas.controller.topic_deletion import TopicDeletionManager
from barnabas.controller.topic_znodes import TopicReader, ZnodeWriteError, replace_assignments
from barnabas.coordination.layout.topics import ReplicaAssignment, partition_state_path
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition


class ReassignmentSteps:
    """Every method that returns steps is a part of an event, and may raise `ControllerMovedError`."""

    def __init__(
        self,
        context: ControllerContext,
        settings: ControllerSettings,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        deletion: TopicDeletionManager,
        reader: TopicReader,
        requests: ReassignmentRequests,
        faults: ReassignmentFaults,
        logger: logging.Logger,
    ) -> None:
        """`requests` loses what is done; `faults` gets the partitions of which a step has failed."""
        self._context = context
        self._settings = settings
        self._partitions = partitions
        self._replicas = replicas
        self._deletion = deletion
        self._reader = reader
        self._requests = requests
        self._faults = faults
        self._logger = logger

    def begin(
        self, wanted: Mapping[TopicPartition, ReplicaAssignment]
    ) -> Steps[dict[TopicPartition, KafkaError | None]]:
        """Step 1 and what follows; returns the error of each partition, None where its assignment was written."""
        outcomes: dict[TopicPartition, KafkaError | None] = {}
        remaining = iter(wanted.items())
        while batch := dict(islice(remaining, PARTITIONS_PER_BATCH)):
            outcomes |= yield from self._begin_batch(batch)
            if len(batch) == PARTITIONS_PER_BATCH:
                yield from give_way()
        return outcomes

    def _begin_batch(
        self, wanted: Mapping[TopicPartition, ReplicaAssignment]
    ) -> Steps[dict[TopicPartition, KafkaError | None]]:
        context = self._context
        before = {partition: context.assignment(partition) for partition in wanted}
        begun: dict[TopicPartition, None] = {}
        try:
            outcomes = yield from self._release(wanted)
            released = [partition for partition in wanted if outcomes[partition] is None]
            written = yield from replace_assignments(
                self._reader, {partition: wanted[partition] for partition in released}, context.epoch_version
            )

            def begin(partition: TopicPartition) -> None:
                error = written[partition]
                if error is None:
                    begun[partition] = None
                    context.set_assignment(partition, wanted[partition])
                else:
                    self._logger.error("Partition %s-%d is not reassigned: %s", *partition, error)
                    outcomes[partition] = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))

            yield from each_in_pieces(begin, written)
        finally:
            self._restore({partition: known for partition, known in before.items() if partition not in begun})
        yield from each_in_pieces(
            lambda partition: self._logger.info(
                "Reassigning %s-%d from %s to %s", *partition, before[partition], wanted[partition]
            ),
            begun,
        )
        yield from self.advance(begun)
        return outcomes

    def _release(
        self, wanted: Mapping[TopicPartition, ReplicaAssignment]
    ) -> Steps[dict[TopicPartition, KafkaError | None]]:
        """Deletes the replicas that a reassignment was adding, and that its replacement does not have.

        Before the assignment is written, since nobody would know of them afterwards: a successor that finds the former
        assignment goes on with the former reassignment, and makes them anew.
        """
        context = self._context
        outcomes: dict[TopicPartition, KafkaError | None] = dict.fromkeys(wanted)
        unneeded: dict[TopicPartition, tuple[int, ...]] = {}
        for partition, assignment in wanted.items():
            current = context.assignment(partition)
            leaving = tuple(replica for replica in current.replicas if replica not in assignment.replicas)
            if leaving and self._would_lose_records(partition, leaving):
                outcomes[partition] = KafkaError(
                    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                    f"What is committed is on the replicas {list(leaving)} only, which would be deleted: no other one "
                    "is in sync and alive. Try again when one is.",
                )
            elif leaving:
                unneeded[partition] = leaving
                # Nobody else sees this one: it says who may be elected.
                context.set_assignment(partition, ReplicaAssignment(current.replicas, (), leaving))
        led = [
            partition
            for partition, leaving in unneeded.items()
            if (known := context.leadership(partition)) is not None
            and known.leader in leaving
            and not context.is_queued_for_deletion(partition.topic)
        ]
        moves = yield from self._partitions.move(led, PartitionState.ONLINE, ElectionStrategy.REASSIGN)
        for partition in led:
            if partition not in moves.elected:
                outcomes[partition] = _failed(moves.failed.get(partition) or moves.refused.get(partition))
                del unneeded[partition]
        removed = frozenset((yield from self._remove(unneeded)))
        for partition in unneeded:
            if partition not in removed:
                outcomes[partition] = _failed(None)
        return outcomes

    def _would_lose_records(self, partition: TopicPartition, leaving: tuple[int, ...]) -> bool:
        known = self._context.leadership(partition)
        return (
            known is not None
            # Of a topic that is to be deleted there is nothing to lose, and it may wait for this very cancel.
            and not self._context.is_queued_for_deletion(partition.topic)
            and not frozenset(known.isr).isdisjoint(leaving)
            and not any(
                member not in leaving and self._context.is_replica_online(member, partition) for member in known.isr
            )
        )

    def advance(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Completes those whose target is in sync, and has the others' new replicas made."""
        wanted = list(partitions)
        yield from self._faults.or_again(wanted, self._advance_each(wanted))

    def _advance_each(self, partitions: Sequence[TopicPartition]) -> Steps[None]:
        remaining = iter(partitions)
        while batch := list(islice(remaining, PARTITIONS_PER_BATCH)):
            self._faults.discard(batch)
            yield from self._bring_online(batch)
            ready = yield from self._ready(batch)
            complete = frozenset(ready)
            yield from self._make_replicas(
                [partition for partition in batch if partition not in complete and partition not in self._faults]
            )
            yield from self._complete(ready)
            if len(batch) == PARTITIONS_PER_BATCH:
                yield from give_way()

    def complete_ready(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Completes those whose target is in sync; the others go on waiting."""
        remaining = iter(partitions)
        while batch := list(islice(remaining, PARTITIONS_PER_BATCH)):
            ready = yield from self._ready(batch)
            yield from self._complete(ready)
            if len(batch) == PARTITIONS_PER_BATCH:
                yield from give_way()

    def _bring_online(self, partitions: list[TopicPartition]) -> Steps[None]:
        """Those that never had a leader, since none of their replicas was alive, may get one among the new ones."""
        context = self._context
        new = [
            partition
            for partition in partitions
            if context.partition_state(partition) is PartitionState.NEW
            and not context.is_queued_for_deletion(partition.topic)
        ]
        if new:
            yield from self._move_unmade(new)
            yield from self._partitions.move(new, PartitionState.ONLINE, ElectionStrategy.OFFLINE)

    def _ready(self, partitions: Iterable[TopicPartition]) -> Steps[list[TopicPartition]]:
        """The partitions all of whose target is in sync (step 3), and where one of it can lead; also those that were
        cancelled, or whose replicas only change their order. Those whose state is not to be had fail.
        """
        context = self._context
        wanted = list(partitions)
        ready = [partition for partition in wanted if not context.is_being_reassigned(partition)]
        found = yield from read_leadership(context, filter(context.is_being_reassigned, wanted))
        for partition, known in found.items():
            if known is None and context.leadership(partition) is not None:
                self._faults.fail(partition, f"{partition_state_path(*partition)} is gone: make it again")
            elif isinstance(known, Exception):
                self._faults.fail(partition, known)
            if not isinstance(known, LeaderAndIsr):
                continue
            context.set_leadership(partition, known)
            target = context.assignment(partition).target_replicas
            if frozenset(known.isr).issuperset(target) and any(
                context.is_replica_online(replica, partition) for replica in target
            ):
                ready.append(partition)
        return ready

    def _make_replicas(self, partitions: list[TopicPartition]) -> Steps[None]:
        """The end of step 1, and step 2: all replicas learn of the reassignment in a new leader epoch, and the new ones
        begin to fetch.
        """
        if not partitions:
            return
        context = self._context
        begun = yield from begin_leader_epoch(context, partitions)
        batch = self._batch()

        def tell(partition: TopicPartition) -> None:
            known = begun[partition]
            if not isinstance(known, LeaderAndIsr):
                self._faults.fail(partition, known)
                return
            assignment = context.assignment(partition)
            batch.add_leader_and_isr(assignment.origin_replicas, partition, known, is_new=False)
            for replica in assignment.adding_replicas:
                # A new replica may be made although a log directory of its broker has failed. One that is in sync has
                # been made: if it is not to be found, it must not come back without what is committed.
                batch.add_leader_and_isr([replica], partition, known, is_new=replica not in known.isr)

        yield from each_in_pieces(tell, begun)
        effects = yield from batch.effects()
        if effects:
            yield effects
        yield from self._move_unmade(partitions)
        for partition in partitions:
            dead = [
                replica
                for replica in context.assignment(partition).target_replicas
                if not context.is_replica_online(replica, partition)
            ]
            if dead:
                self._logger.warning(
                    "The reassignment of %s-%d to %s waits for brokers %s, whose replicas are offline: start them, or "
                    "cancel it",
                    *partition,
                    list(context.assignment(partition).target_replicas),
                    dead,
                )

    def _move_unmade(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        replicas = (
            PartitionReplica(partition, broker_id)
            for partition in partitions
            for broker_id in self._context.assignment(partition).adding_replicas
        )
        unmade = [each for each in replicas if self._context.replica_state(each) is ReplicaState.NON_EXISTENT]
        yield from self._replicas.move(unmade, ReplicaState.NEW)

    def _complete(self, partitions: list[TopicPartition]) -> Steps[None]:
        """Steps 4 to 11: the target is in sync."""
        if not partitions:
            return
        context = self._context
        before = {partition: context.assignment(partition) for partition in partitions}
        after = {partition: ReplicaAssignment(known.target_replicas) for partition, known in before.items()}
        ended: dict[TopicPartition, None] = {}
        try:
            # 4
            yield from self._replicas.move(self._online_additions(before), ReplicaState.ONLINE)
            # 5
            yield from each_in_pieces(lambda partition: context.set_assignment(partition, after[partition]), partitions)
            # 6
            led = yield from self._lead(before)
            # 7 and 8
            removed = yield from self._remove({partition: before[partition].removing_replicas for partition in led})
            # 9
            written = yield from replace_assignments(
                self._reader, {partition: after[partition] for partition in removed}, context.epoch_version
            )
            for partition, error in written.items():
                if error is None:
                    ended[partition] = None
                else:
                    self._faults.fail(partition, error)
        finally:
            self._restore({partition: known for partition, known in before.items() if partition not in ended})
        # 10
        done = {partition: after[partition].replicas for partition in ended}
        try:
            yield from self._requests.forget(
                lambda partition, target: done.get(partition) == target, context.epoch_version
            )
        except ZnodeWriteError as error:
            # Whoever keeps writing it has it looked at again, and the partitions are where it wants them.
            self._logger.warning("Reassignments that are done are still asked for: %s", error)
        # 11
        batch = self._batch()
        batch.add_update_metadata(context.live_or_shutting_down_brokers, ended)
        if ended:
            yield (yield from batch.effects())
        yield from each_in_pieces(
            lambda partition: self._logger.info(
                "%s-%d is reassigned to %s", *partition, list(after[partition].replicas)
            ),
            ended,
        )
        yield from self._deletion.resume_for(partition.topic for partition in ended)

    def _online_additions(self, assignments: Mapping[TopicPartition, ReplicaAssignment]) -> list[PartitionReplica]:
        return [
            PartitionReplica(partition, replica)
            for partition, assignment in assignments.items()
            for replica in assignment.adding_replicas
            if self._context.is_replica_online(replica, partition, include_shutting_down=True)
        ]

    def _lead(self, partitions: Mapping[TopicPartition, ReplicaAssignment]) -> Steps[list[TopicPartition]]:
        """Has a replica of the target lead, each in a new leader epoch; returns the partitions where one does, and
        those that lose no replica, whoever leads them. `partitions` has the assignments before.
        """
        context = self._context
        kept: list[TopicPartition] = []
        moved: list[TopicPartition] = []
        for partition in partitions:
            known = context.leadership(partition)
            stays = (
                known is not None
                and known.leader in context.assignment(partition).replicas
                and context.is_replica_online(known.leader, partition)
            )
            (kept if stays else moved).append(partition)
        begun = yield from begin_leader_epoch(context, kept)
        batch = self._batch()
        led: list[TopicPartition] = []

        def tell(partition: TopicPartition) -> None:
            known = begun[partition]
            if isinstance(known, LeaderAndIsr):
                led.append(partition)
                replicas = context.assignment(partition).replicas
                batch.add_leader_and_isr(replicas, partition, known, is_new=False)
            else:
                self._faults.fail(partition, known)

        yield from each_in_pieces(tell, begun)
        effects = yield from batch.effects()
        if effects:
            yield effects
        moves = yield from self._partitions.move(moved, PartitionState.ONLINE, ElectionStrategy.REASSIGN)
        for partition in moved:
            if partition in moves.elected or not partitions[partition].is_being_reassigned:
                led.append(partition)
            else:
                self._faults.fail(partition, moves.failed.get(partition) or moves.refused.get(partition))
        return led

    def _remove(self, leaving: Mapping[TopicPartition, tuple[int, ...]]) -> Steps[list[TopicPartition]]:
        """Takes replicas out of their ISRs, and has them deleted, without waiting for that; returns the partitions for
        which it was done. A replica that has not left the ISR is not deleted.
        """
        context = self._context
        replicas = [
            PartitionReplica(partition, broker_id)
            for partition, broker_ids in leaving.items()
            for broker_id in broker_ids
        ]
        present = [each for each in replicas if context.replica_state(each) is not ReplicaState.NON_EXISTENT]
        moves = yield from self._replicas.move(present, ReplicaState.OFFLINE)
        faults = {replica.partition: fault for replica, fault in {**moves.refused, **moves.failed}.items()}
        for partition, fault in faults.items():
            self._faults.fail(partition, fault)
        stopped = [replica for replica in present if replica.partition not in faults]
        for state in (ReplicaState.DELETION_STARTED, ReplicaState.DELETION_SUCCESSFUL, ReplicaState.NON_EXISTENT):
            yield from self._replicas.move(stopped, state)
        return [partition for partition in leaving if partition not in faults]

    def _restore(self, assignments: Mapping[TopicPartition, ReplicaAssignment]) -> None:
        """The znode still has these assignments, so they are in force and go on before long; replicas of them that were
        deleted are as a controller that takes over finds them.
        """
        for partition, assignment in assignments.items():
            if self._context.assignment(partition) == assignment:
                continue
            self._context.set_assignment(partition, assignment)
            self._faults.add([partition])
            for broker_id in assignment.replicas:
                replica = PartitionReplica(partition, broker_id)
                if self._context.replica_state(replica) is ReplicaState.NON_EXISTENT:
                    self._context.set_replica_state(replica, ReplicaState.OFFLINE)

    def _batch(self) -> RequestBatch:
        return RequestBatch(self._context, self._settings)


def _failed(reason: object) -> KafkaError:
    detail = "a replica that is no longer needed could not be stopped" if reason is None else str(reason)
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, detail)
