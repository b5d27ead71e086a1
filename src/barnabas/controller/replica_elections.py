"""Elections that somebody asks for, by ElectLeaders or by `/admin/preferred_replica_election`, and the return of
leadership to the preferred replicas (Kafka's processReplicaLeaderElection and checkAndTriggerAutoLeaderRebalance).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import ITEMS_PER_PIECE, Steps, give_way, operate, pieces, write_as_controller
from barnabas.controller.elections import ElectionStrategy
from barnabas.controller.partition_state_machine import PartitionMoves, PartitionStateMachine
from barnabas.controller.partition_states import PartitionState
from barnabas.controller.partition_znodes import NobodyElectedError, StateChangeFailedError
from barnabas.controller.settings import ControllerSettings
from barnabas.controller.watches import ControllerWatches
from barnabas.coordination.errors import BadVersionError, NoNodeError
from barnabas.coordination.layout.admin import PREFERRED_REPLICA_ELECTION_PATH, PreferredReplicaElection
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import Delete, Exists, GetData
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import ElectionType, TopicPartition

ElectionOutcomes = Mapping[TopicPartition, int | KafkaError]
"""The new leader of each partition, or why none was elected."""

_STRATEGIES = {
    ElectionType.PREFERRED: ElectionStrategy.PREFERRED,
    ElectionType.UNCLEAN: ElectionStrategy.OFFLINE_UNCLEAN,
}
_KAFKA_STRATEGIES = {
    ElectionType.PREFERRED: "PreferredReplicaPartitionLeaderElectionStrategy",
    ElectionType.UNCLEAN: "OfflinePartitionLeaderElectionStrategy(true)",
}
_NOBODY_ELECTED = {
    ElectionType.PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ElectionType.UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}


class ReplicaElections:
    """Every method is a part of an event, and may raise `ControllerMovedError`."""

    def __init__(
        self,
        context: ControllerContext,
        settings: ControllerSettings,
        partitions: PartitionStateMachine,
        watches: ControllerWatches,
        logger: logging.Logger,
    ) -> None:
        self._context = context
        self._settings = settings
        self._partitions = partitions
        self._watches = watches
        self._logger = logger

    def elect(self, partitions: Iterable[TopicPartition], election_type: ElectionType) -> Steps[ElectionOutcomes]:
        """Elects where it is needed; each partition has its own outcome, and is answered for once.

        The errors are Kafka's: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION for a topic that is being deleted,
        ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE; UNKNOWN_SERVER_ERROR where
        the state or the config that decides cannot be read.
        """
        outcomes: dict[TopicPartition, int | KafkaError] = {}
        electable: list[TopicPartition] = []
        for piece in pieces(partitions):
            for partition in piece:
                refusal = self._refusal(partition, election_type)
                if refusal is not None:
                    outcomes[partition] = refusal
                elif partition not in outcomes:
                    outcomes[partition] = KafkaError(_NOBODY_ELECTED[election_type])
                    electable.append(partition)
            if len(piece) == ITEMS_PER_PIECE:
                yield from give_way()
        if electable:
            self._logger.info(
                "Starting %s elections of %d partitions, %s among them",
                election_type.name.lower(),
                len(electable),
                electable[0],
            )
        moves = yield from self._partitions.move(electable, PartitionState.ONLINE, _STRATEGIES[election_type])
        for partition, known in moves.elected.items():
            outcomes[partition] = known.leader
        for partition, fault in {**moves.refused, **moves.failed}.items():
            outcomes[partition] = _as_kafka_error(partition, fault, election_type)
        return outcomes

    def _refusal(self, partition: TopicPartition, election_type: ElectionType) -> KafkaError | None:
        """Why there is nothing to elect; None where there is."""
        context = self._context
        assignment = context.assignment(partition)
        if not assignment.replicas:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
        if context.is_queued_for_deletion(partition.topic):
            return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
        known = context.leadership(partition)
        if known is None:
            return None
        if election_type is ElectionType.PREFERRED:
            is_needed = known.leader != assignment.replicas[0]
        else:
            is_needed = not context.is_replica_online(known.leader, partition)
        if is_needed:
            return None
        return KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")

    def requested_by_znode(self) -> Steps[None]:
        """Elects the preferred leaders that `/admin/preferred_replica_election` asks for, if it is there, and deletes
        it, whatever came of them; sets the watch of the term.

        A controller that ends before the deletion leaves the znode to the next one. What is written over the request
        meanwhile is a request of its own: the deletion is of the version that was read, and the watch has fired.
        """
        path = PREFERRED_REPLICA_ELECTION_PATH
        (found,) = yield from operate([Exists(path, self._watches.preferred_elections)])
        if found is None:
            return
        (data,) = yield from operate([GetData(path)])
        if isinstance(data, NoNodeError):
            return
        for outcome in (found, data):
            if isinstance(outcome, Exception):
                raise outcome
        try:
            partitions = PreferredReplicaElection.decode(data.data, path).partitions
        except LayoutError as error:
            self._logger.warning("Deleting a request for preferred leaders that cannot be read: %s", error)
            partitions = ()
        outcomes = yield from self.elect(partitions, ElectionType.PREFERRED)
        for partition, result in outcomes.items():
            if isinstance(result, int):
                self._logger.info("Partition %s is led by its preferred replica %d", partition, result)
            else:
                self._logger.warning("Partition %s has got no other leader: %s", partition, result)
        (deleted,) = yield from write_as_controller([Delete(path, data.stat.version)], self._context.epoch_version)
        if isinstance(deleted, Exception) and not isinstance(deleted, BadVersionError | NoNodeError):
            raise deleted

    def rebalance(self) -> Steps[None]:
        """Has partitions led by their preferred replicas again, for brokers that do not lead more than
        `leader_imbalance_per_broker_percentage` of those that are theirs.

        All of them move in one call, so that each broker is told of them at once. Left out are partitions that are
        being reassigned, whose preferred replica has yet to come, and those whose preferred replica is not live or not
        in sync, which would fail.
        """
        preferred: Counter[int] = Counter()
        led_elsewhere: dict[int, list[TopicPartition]] = {}
        for piece in pieces(self._context.partitions):
            for partition in piece:
                replicas = self._context.assignment(partition).replicas
                if not replicas or self._context.is_queued_for_deletion(partition.topic):
                    continue
                preferred[replicas[0]] += 1
                known = self._context.leadership(partition)
                if known is not None and known.leader != replicas[0]:
                    led_elsewhere.setdefault(replicas[0], []).append(partition)
            if len(piece) == ITEMS_PER_PIECE:
                yield from give_way()
        candidates: list[TopicPartition] = []
        for broker_id, partitions in led_elsewhere.items():
            ratio = len(partitions) / preferred[broker_id]
            if ratio <= self._settings.leader_imbalance_per_broker_percentage / 100:
                continue
            for piece in pieces(partitions):
                candidates += [partition for partition in piece if self._can_lead(broker_id, partition)]
                if len(piece) == ITEMS_PER_PIECE:
                    yield from give_way()
        if not candidates:
            return
        self._logger.info("%d partitions go back to their preferred leaders", len(candidates))
        moves = yield from self._partitions.move(candidates, PartitionState.ONLINE, ElectionStrategy.PREFERRED)
        self._report(moves)

    def _can_lead(self, broker_id: int, partition: TopicPartition) -> bool:
        context = self._context
        assignment, known = context.assignment(partition), context.leadership(partition)
        return (
            not assignment.adding_replicas
            and not assignment.removing_replicas
            and known is not None
            and broker_id in known.isr
            and context.is_replica_online(broker_id, partition)
        )

    def _report(self, moves: PartitionMoves) -> None:
        for partition, fault in {**moves.refused, **moves.failed}.items():
            self._logger.error("Partition %s could not go back to its preferred leader: %s", partition, fault)


def _as_kafka_error(partition: TopicPartition, fault: Exception, election_type: ElectionType) -> KafkaError:
    """Kafka's sentence, and behind it the reason, which Kafka leaves to the controller's log."""
    if isinstance(fault, StateChangeFailedError):
        failed = f"Failed to elect leader for partition {partition} under strategy {_KAFKA_STRATEGIES[election_type]}"
        reason = fault.reason if isinstance(fault, NobodyElectedError) else str(fault)
        return KafkaError(_NOBODY_ELECTED[election_type], f"{failed}: {reason}")
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
