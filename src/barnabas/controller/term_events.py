"""The events of a term: each says which steps of the term it stands for.

Those that come from a request carry a future, which is answered in any case: by the event, or with NOT_CONTROLLER when
the controller resigns before it comes to them.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from barnabas.controller.effects import BrokerRequest, Steps
from barnabas.controller.events import ControllerEvent
from barnabas.controller.features import FeatureUpdate, UpdateOutcomes
from barnabas.controller.reassignment import Target
from barnabas.controller.replica_elections import ElectionOutcomes
from barnabas.controller.states import ControllerState
from barnabas.controller.term import ControllerTerm
from barnabas.coordination.layout.cluster import ProducerIdBlock
from barnabas.coordination.layout.topics import ReplicaAssignment
from barnabas.wire.classes import Message
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from barnabas.wire.stopped_partitions import stopped_partitions
from barnabas.wire.topics import ElectionType, TopicPartition


class TermEvent(ControllerEvent, ABC):
    """An event for the active controller only; any other broker ignores it."""

    __slots__ = ()

    def concerns(self, term: ControllerTerm) -> bool:
        """Whether the event is for this term."""
        del term
        return True

    @abstractmethod
    def steps(self, term: ControllerTerm) -> Steps[Any]:
        """What the term does for the event."""


@dataclass(frozen=True, slots=True)
class OneTermEvent(TermEvent):
    """An event for the controller of this epoch only, which asked or waited for it; a later one ignores it."""

    epoch: int

    def concerns(self, term: ControllerTerm) -> bool:
        return self.epoch == term.context.epoch


@dataclass(frozen=True, slots=True)
class ControllerEpochChange(TermEvent):
    """`/controller_epoch` was written or deleted."""

    state = ControllerState.CONTROLLER_CHANGE

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.epoch_changed()


@dataclass(frozen=True, slots=True)
class BrokerChange(TermEvent):
    """Children of `/brokers/ids` came or went."""

    state = ControllerState.BROKER_CHANGE

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.brokers_changed()


@dataclass(frozen=True, slots=True)
class BrokerModifications(TermEvent):
    """The registration of a broker was rewritten."""

    broker_id: int
    state = ControllerState.BROKER_CHANGE

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.broker_modified(self.broker_id)


@dataclass(frozen=True, slots=True)
class TopicChange(TermEvent):
    """Children of `/brokers/topics` came or went."""

    state = ControllerState.TOPIC_CHANGE

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.topics_changed()


@dataclass(frozen=True, slots=True)
class PartitionModifications(TermEvent):
    """The assignment of a topic was rewritten."""

    topic: str
    state = ControllerState.TOPIC_CHANGE

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.topic_modified(self.topic)


@dataclass(frozen=True, slots=True)
class TopicDeletion(TermEvent):
    """Children of `/admin/delete_topics` came or went."""

    state = ControllerState.TOPIC_DELETION

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.deletions_changed()


@dataclass(frozen=True, slots=True)
class IsrChangeNotification(TermEvent):
    """Children of `/isr_change_notification` came or went."""

    state = ControllerState.ISR_CHANGE

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.isr_changes_announced()


@dataclass(frozen=True, slots=True)
class LogDirEventNotification(TermEvent):
    """Children of `/log_dir_event_notification` came or went."""

    state = ControllerState.LOG_DIR_CHANGE

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.log_dir_failures_announced()


@dataclass(frozen=True, slots=True)
class ZkPartitionReassignment(TermEvent):
    """`/admin/reassign_partitions` was made, written or deleted."""

    state = ControllerState.ALTER_PARTITION_REASSIGNMENT

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.reassignment_znode_changed()


@dataclass(frozen=True, slots=True)
class PreferredElectionsRequested(TermEvent):
    """`/admin/preferred_replica_election` was made, changed or deleted."""

    state = ControllerState.MANUAL_LEADER_BALANCE

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.replica_elections.requested_by_znode()


@dataclass(frozen=True, slots=True, eq=False)
class AutoPreferredReplicaLeaderElection(OneTermEvent):
    """It is time to look whether leadership is balanced. `when_over` is called with the epoch afterwards."""

    when_over: Callable[[int], None]
    state = ControllerState.AUTO_LEADER_BALANCE

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.replica_elections.rebalance()

    def finish(self) -> None:
        self.when_over(self.epoch)


@dataclass(frozen=True, slots=True)
class UncleanLeaderElectionEnable(TermEvent):
    """unclean.leader.election.enable became true for the cluster."""

    state = ControllerState.UNCLEAN_LEADER_ELECTION_ENABLE

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.try_online()


@dataclass(frozen=True, slots=True)
class TopicUncleanLeaderElectionEnable(TermEvent):
    """unclean.leader.election.enable became true for a topic."""

    topic: str
    state = ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.try_online(self.topic)


@dataclass(frozen=True, slots=True, eq=False)
class ReadAgain(OneTermEvent):
    """It is time to read again what could not be read. `when_over` is called with the epoch afterwards."""

    when_over: Callable[[int], None]
    state = ControllerState.ISR_CHANGE

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.read_again()

    def finish(self) -> None:
        self.when_over(self.epoch)


@dataclass(frozen=True, slots=True)
class UncleanElectionDelayOver(OneTermEvent):
    """The controller has waited long enough for in-sync replicas to come back."""

    state = ControllerState.UNCLEAN_LEADER_ELECTION_ENABLE

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.allow_unclean_elections()


# Responses of brokers.


@dataclass(frozen=True, slots=True)
class ResponseReceived(OneTermEvent):
    """A broker has answered."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponseReceived(ResponseReceived):
    """A broker has answered LeaderAndIsr; `broker_epoch` is the one that the request was meant for."""

    broker_epoch: int
    response: LeaderAndIsrResponse
    state = ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.leader_and_isr_answered(self.broker_id, self.broker_epoch, self.response)


@dataclass(frozen=True, slots=True)
class UpdateMetadataResponseReceived(ResponseReceived):
    """A broker has answered UpdateMetadata."""

    response: UpdateMetadataResponse
    state = ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.update_metadata_answered(self.broker_id, self.response)


@dataclass(frozen=True, slots=True)
class TopicDeletionStopReplicaResponseReceived(ResponseReceived):
    """A broker has answered a request to delete replicas."""

    request: StopReplicaRequest
    response: StopReplicaResponse
    state = ControllerState.TOPIC_DELETION

    def steps(self, term: ControllerTerm) -> Steps[None]:
        return term.replicas_deleted(self.broker_id, self.request, self.response)


def response_event(epoch: int, request: BrokerRequest, response: Message) -> ResponseReceived | None:
    """The event that the response of a broker becomes; None for one that changes nothing."""
    match request.message, response:
        case LeaderAndIsrRequest(broker_epoch=broker_epoch), LeaderAndIsrResponse():
            return LeaderAndIsrResponseReceived(epoch, request.broker_id, broker_epoch, response)
        case UpdateMetadataRequest(), UpdateMetadataResponse():
            return UpdateMetadataResponseReceived(epoch, request.broker_id, response)
        case StopReplicaRequest() as asked, StopReplicaResponse() if _deletes(asked):
            return TopicDeletionStopReplicaResponseReceived(epoch, request.broker_id, asked, response)
    return None


def _deletes(request: StopReplicaRequest) -> bool:
    return any(partition.delete for partition in stopped_partitions(request))


# Requests to the controller.


@dataclass(frozen=True, slots=True, eq=False)
class AnsweredEvent(TermEvent):
    """An event that somebody waits for; the result of its steps is the answer, and `KafkaError` a refusal."""

    answer: asyncio.Future[Any]

    def complete(self, result: object) -> None:
        """Answers, if somebody still waits."""
        if not self.answer.done():
            self.answer.set_result(result)

    def refuse(self, error: KafkaError) -> None:
        """Answers with an error, if somebody still waits."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def later_steps(self, term: ControllerTerm) -> Steps[None] | None:
        """What the term does for the event once it is answered, if anything."""
        del term
        return None

    def finish(self) -> None:
        self.refuse(not_controller())


def not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")


@dataclass(frozen=True, slots=True, eq=False)
class AlterPartitionReceived(AnsweredEvent):
    """A leader proposes ISRs."""

    answer: asyncio.Future[AlterPartitionResponse]
    request: AlterPartitionRequest
    version: int
    state = ControllerState.ISR_CHANGE

    def steps(self, term: ControllerTerm) -> Steps[AlterPartitionResponse]:
        return term.alter_partition(self.request, self.version)

    def later_steps(self, term: ControllerTerm) -> Steps[None]:
        # Kafka's PartitionReassignmentIsrChange.
        return term.reassignments.go_on()


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaLeaderElection(AnsweredEvent):
    """Somebody asks for leaders of these partitions."""

    answer: asyncio.Future[ElectionOutcomes]
    partitions: Sequence[TopicPartition]
    election_type: ElectionType
    state = ControllerState.MANUAL_LEADER_BALANCE

    def steps(self, term: ControllerTerm) -> Steps[ElectionOutcomes]:
        return term.replica_elections.elect(self.partitions, self.election_type)


@dataclass(frozen=True, slots=True, eq=False)
class ControlledShutdown(AnsweredEvent):
    """A broker wants to stop, and to give up its leaderships."""

    answer: asyncio.Future[list[TopicPartition]]
    broker_id: int
    broker_epoch: int
    state = ControllerState.CONTROLLED_SHUTDOWN

    def steps(self, term: ControllerTerm) -> Steps[list[TopicPartition]]:
        return term.shut_down(self.broker_id, self.broker_epoch)


@dataclass(frozen=True, slots=True, eq=False)
class AllocateProducerIds(AnsweredEvent):
    """A broker needs a block of producer ids."""

    answer: asyncio.Future[ProducerIdBlock]
    broker_id: int
    broker_epoch: int

    def steps(self, term: ControllerTerm) -> Steps[ProducerIdBlock]:
        return term.allocate_producer_ids(self.broker_id, self.broker_epoch)


@dataclass(frozen=True, slots=True, eq=False)
class ApiPartitionReassignment(AnsweredEvent):
    """Partitions shall be moved, or not be moved any more."""

    answer: asyncio.Future[dict[TopicPartition, KafkaError | None]]
    targets: Mapping[TopicPartition, Target]
    state = ControllerState.ALTER_PARTITION_REASSIGNMENT

    def steps(self, term: ControllerTerm) -> Steps[dict[TopicPartition, KafkaError | None]]:
        return term.reassignments.alter(self.targets)


@dataclass(frozen=True, slots=True, eq=False)
class ListPartitionReassignments(AnsweredEvent):
    """Somebody asks what is being moved; None asks for all partitions."""

    answer: asyncio.Future[dict[TopicPartition, ReplicaAssignment]]
    partitions: Sequence[TopicPartition] | None
    state = ControllerState.LIST_PARTITION_REASSIGNMENT

    def steps(self, term: ControllerTerm) -> Steps[dict[TopicPartition, ReplicaAssignment]]:
        return term.reassignments.under_way(self.partitions)


@dataclass(frozen=True, slots=True, eq=False)
class UpdateFeatures(AnsweredEvent):
    """Levels of features shall be finalized, or be finalized no more."""

    answer: asyncio.Future[UpdateOutcomes]
    updates: Sequence[FeatureUpdate]
    validate_only: bool
    state = ControllerState.UPDATE_FEATURES

    def steps(self, term: ControllerTerm) -> Steps[UpdateOutcomes]:
        return term.update_features(self.updates, validate_only=self.validate_only)
