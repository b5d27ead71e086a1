"""Moves partitions to other brokers: what is asked for, and what has a reassignment go on.

A reassignment is in the assignment of its topic: the replicas being added, and those being removed. Its steps are in
`reassignment_steps`. It is taken up again wherever it was broken off: by the next controller, when a broker starts,
when an ISR has changed, and after a while when a step has failed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import ITEMS_PER_PIECE, Steps, give_way, pieces
from barnabas.controller.partition_state_machine import PartitionStateMachine
from barnabas.controller.reassignment_faults import ReassignmentFaults
from barnabas.controller.reassignment_requests import ReassignmentRequests, complaint_of
from barnabas.controller.reassignment_steps import ReassignmentSteps
from barnabas.controller.replica_state_machine import ReplicaStateMachine
from barnabas.controller.settings import PARTITIONS_PER_BATCH, ControllerSettings
from barnabas.controller.topic_deletion import TopicDeletionManager
from barnabas.controller.topic_znodes import TopicReader, ZnodeWriteError
from barnabas.coordination.layout.topics import ReplicaAssignment
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition

Target = tuple[int, ...] | None
"""The replicas that a partition shall have, the preferred leader first; None cancels."""
REFUSALS_SHOWN_MAX = 100
"""In one line of the log."""
WAITING_SHOWN_MAX = 10
"""In one line of the log."""


class Reassignments:
    """Every method that returns steps is a part of an event, and may raise `ControllerMovedError`."""

    def __init__(
        self,
        context: ControllerContext,
        settings: ControllerSettings,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        deletion: TopicDeletionManager,
        reader: TopicReader,
        logger: logging.Logger,
    ) -> None:
        self._context = context
        self._logger = logger
        self._requests = ReassignmentRequests(reader.watches, logger)
        self._is_znode_unprocessed = False
        self._changed: dict[TopicPartition, None] = {}
        self._faults = ReassignmentFaults(logger)
        self._steps = ReassignmentSteps(
            context, settings, partitions, replicas, deletion, reader, self._requests, self._faults, logger
        )

    # What is asked for.

    def alter(self, targets: Mapping[TopicPartition, Target]) -> Steps[dict[TopicPartition, KafkaError | None]]:
        """Begins, replaces and cancels reassignments, as the API asks; returns the error of each partition, None where
        the reassignment has begun. It takes the place of what the znode asks for the same partition.
        """
        outcomes: dict[TopicPartition, KafkaError | None] = {}
        accepted: dict[TopicPartition, ReplicaAssignment] = {}
        for number, (partition, target) in enumerate(targets.items(), start=1):
            answer = self._decide(partition, target)
            if isinstance(answer, KafkaError):
                outcomes[partition] = answer
            else:
                accepted[partition] = answer
            if not number % PARTITIONS_PER_BATCH:
                yield from give_way()
        outcomes |= yield from self._displace(accepted)
        return {partition: outcomes[partition] for partition in targets}

    def _displace(
        self, wanted: Mapping[TopicPartition, ReplicaAssignment]
    ) -> Steps[dict[TopicPartition, KafkaError | None]]:
        """Begins reassignments in the place of what the znode asks for."""
        if wanted:
            yield from self._requests.forget(lambda partition, _: partition in wanted, self._context.epoch_version)
        return (yield from self._steps.begin(wanted))

    def under_way(
        self, partitions: Sequence[TopicPartition] | None = None
    ) -> Steps[dict[TopicPartition, ReplicaAssignment]]:
        """The assignments of the partitions that are being reassigned: of these, or of all."""
        found: dict[TopicPartition, ReplicaAssignment] = {}
        for piece in pieces(self._context.reassigned_partitions if partitions is None else partitions):
            found |= {
                partition: self._context.assignment(partition)
                for partition in piece
                if self._context.is_being_reassigned(partition)
            }
            yield from give_way()
        return found

    def process_znode(self) -> Steps[frozenset[TopicPartition]]:
        """Begins what `/admin/reassign_partitions` asks for, and removes what cannot be done; returns the partitions
        that were begun. The targets need not be alive.
        """
        self._is_znode_unprocessed = True
        try:
            wanted = yield from self._requests.read_news()
            begun = yield from self._process_requests(wanted)
            self._is_znode_unprocessed = False
        finally:
            if self._is_znode_unprocessed:
                self._requests.doubt()
        return begun

    def _process_requests(self, wanted: Mapping[TopicPartition, tuple[int, ...]]) -> Steps[frozenset[TopicPartition]]:
        accepted: dict[TopicPartition, ReplicaAssignment] = {}
        refused: dict[TopicPartition, KafkaError] = {}
        for number, (partition, target) in enumerate(wanted.items(), start=1):
            if not number % PARTITIONS_PER_BATCH:
                yield from give_way()
            current = self._context.assignment(partition)
            if current.is_being_reassigned and current.target_replicas == target:
                continue
            answer = self._decide(partition, target, must_be_alive=False)
            if isinstance(answer, KafkaError):
                refused[partition] = answer
            else:
                accepted[partition] = answer
        outcomes = yield from self._steps.begin(accepted)
        refused |= {partition: error for partition, error in outcomes.items() if error is not None}
        if refused:
            some = islice(refused.items(), REFUSALS_SHOWN_MAX)
            self._logger.warning(
                "Ignoring %d reassignments that /admin/reassign_partitions asks for, among them %s",
                len(refused),
                "; ".join(f"{partition.topic}-{partition.partition}: {error}" for partition, error in some),
            )
            try:
                yield from self._requests.forget(lambda partition, _: partition in refused, self._context.epoch_version)
            except ZnodeWriteError as error:
                self._logger.warning("Reassignments that are refused are still asked for, delete the znode: %s", error)
        return frozenset(accepted.keys() - refused.keys())

    def _decide(
        self, partition: TopicPartition, target: Target, *, must_be_alive: bool = True
    ) -> ReplicaAssignment | KafkaError:
        """The assignment while the partition is moved, or why it is not moved."""
        context = self._context
        current = context.assignment(partition)
        if target is None:
            if not current.is_being_reassigned:
                return KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
            # Also of a topic that is to be deleted, which waits for it: the target may never come back.
            return current.reassigned_to(current.origin_replicas)
        complaint = complaint_of(target)
        if complaint is not None:
            return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, complaint)
        wanted = current.reassigned_to(target)
        alive = frozenset(context.live_brokers)
        dead = [replica for replica in wanted.adding_replicas if replica not in alive]
        if dead and must_be_alive:
            return KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Replica assignment has brokers that are not alive: {dead} of {list(target)}; alive are "
                f"{sorted(context.live_brokers)}.",
            )
        if not current.replicas or context.is_queued_for_deletion(partition.topic):
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
        return wanted

    # What lets them go on.

    def start_up(self) -> Steps[None]:
        """For a controller that has just started its state machines: takes up what is in the znode, and what former
        controllers have left.
        """
        begun = yield from self.process_znode()
        yield from self._steps.advance(
            [partition for partition in self._context.reassigned_partitions if partition not in begun]
        )
        yield from self.give_up_for_deletions()

    def resume_for(self, broker_ids: Iterable[int]) -> Steps[None]:
        """Resumes those that wait for one of these brokers, which have started."""
        started = frozenset(broker_ids)
        waiting: list[TopicPartition] = []
        for piece in pieces(self._context.reassigned_partitions):
            waiting += [
                partition
                for partition in piece
                if not started.isdisjoint(self._context.assignment(partition).target_replicas)
            ]
            if len(piece) == ITEMS_PER_PIECE:
                yield from give_way()
        yield from self._steps.advance(waiting)

    def tell_waiting_for(self, broker_ids: Iterable[int]) -> Steps[None]:
        """Logs, in one line, that reassignments wait for replicas on these brokers, which have just gone offline."""
        gone = frozenset(broker_ids)
        waiting: list[TopicPartition] = []
        missed: set[int] = set()
        for piece in pieces(self._context.reassigned_partitions if gone else ()):
            for partition in piece:
                offline = {
                    replica
                    for replica in gone.intersection(self._context.assignment(partition).target_replicas)
                    if not self._context.is_replica_online(replica, partition)
                }
                if offline:
                    waiting.append(partition)
                    missed |= offline
            if len(piece) == ITEMS_PER_PIECE:
                yield from give_way()
        if waiting:
            self._logger.warning(
                "%d reassignments wait for brokers %s, whose replicas have gone offline: start them, or cancel these. "
                "Among them are %s",
                len(waiting),
                sorted(missed),
                "; ".join(
                    f"{partition.topic}-{partition.partition} to "
                    f"{list(self._context.assignment(partition).target_replicas)}"
                    for partition in waiting[:WAITING_SHOWN_MAX]
                ),
            )

    def note_changes(self, partitions: Iterable[TopicPartition]) -> None:
        """The ISRs of these partitions have changed."""
        self._changed.update(
            (partition, None) for partition in partitions if self._context.is_being_reassigned(partition)
        )

    def go_on(self) -> Steps[None]:
        """Completes those whose target has come into sync since."""
        if self._changed:
            changed, self._changed = self._changed, {}
            present = [partition for partition in changed if self._context.is_being_reassigned(partition)]
            yield from self._faults.or_again(present, self._steps.complete_ready(present))

    @property
    def is_any_failed(self) -> bool:
        """Whether a step has failed, and is to be tried again."""
        return bool(self._faults) or self._is_znode_unprocessed

    def retry(self) -> Steps[None]:
        """Tries again where a step has failed."""
        failed = self._faults.take(self._context.is_being_reassigned)
        yield from self._steps.advance(
            [partition for partition in failed if self._context.assignment(partition).replicas]
        )
        yield from self.give_up_for_deletions()
        if self._is_znode_unprocessed:
            yield from self.process_znode()

    def give_up_for_deletions(self) -> Steps[None]:
        """Cancels what cannot go on of topics that are to be deleted, since these wait for it: a partition of such a
        topic that has lost its leader gets none any more, and has nothing to lose.
        """
        context = self._context
        if not context.topics_queued_for_deletion:
            return
        stuck: dict[TopicPartition, ReplicaAssignment] = {}
        for piece in pieces(context.reassigned_partitions):
            for partition in piece:
                known = context.leadership(partition)
                is_led = known is not None and context.is_replica_online(known.leader, partition)
                if not is_led and context.is_queued_for_deletion(partition.topic):
                    current = context.assignment(partition)
                    stuck[partition] = current.reassigned_to(current.origin_replicas)
                    self._logger.warning(
                        "Giving up the reassignment of %s-%d, which has no leader and is to be deleted", *partition
                    )
            if len(piece) == ITEMS_PER_PIECE:
                yield from give_way()
        outcomes = yield from self._faults.or_again(stuck, self._displace(stuck))
        for partition, error in outcomes.items():
            if error is not None:
                self._faults.fail(partition, error)
