"""The events of the controller: everything that changes what it knows is one of these, on one queue.

Those that come from a request carry a future, which is answered in any case: by the event, or with NOT_CONTROLLER when
the controller resigns before it comes to them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

from barnabas.controller.states import ControllerState
from barnabas.coordination.layout.cluster import ProducerIdBlock
from barnabas.wire.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from barnabas.wire.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class ControllerEvent:
    """The base of all; `state` is what the controller is in while it processes one."""

    state: ClassVar[ControllerState] = ControllerState.IDLE


@dataclass(frozen=True, slots=True)
class Startup(ControllerEvent):
    """The broker has started: it stands for election."""

    state = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class ControllerChange(ControllerEvent):
    """`/controller` was made or changed: one that is no longer its owner resigns."""

    state = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class ControllerMoved(ControllerEvent):
    """A write has shown that the epoch is another one: this broker is no longer the controller."""

    state = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class Reelect(ControllerEvent):
    """`/controller` is gone, or a back-off is over: resign, then stand for election."""

    state = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True)
class RegisterBrokerAndReelect(ControllerEvent):
    """A new session has begun, the one of this number: register the broker in it, and stand for election."""

    session: int
    state = ControllerState.CONTROLLER_CHANGE


@dataclass(frozen=True, slots=True, eq=False)
class Expire(ControllerEvent):
    """The session is over: resign, before anything else. `done` hears when that has happened."""

    done: asyncio.Future[None]
    state = ControllerState.CONTROLLER_CHANGE


class TermEvent(ControllerEvent):
    """An event for the active controller only; any other broker ignores it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class OneTermEvent(TermEvent):
    """An event for the controller of this epoch only, which asked or waited for it; a later one ignores it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ResponseReceived(OneTermEvent):
    """A broker has answered."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class BrokerChange(TermEvent):
    """Children of `/brokers/ids` came or went."""

    state = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class BrokerModifications(TermEvent):
    """The registration of a broker was written anew."""

    broker_id: int
    state = ControllerState.BROKER_CHANGE


@dataclass(frozen=True, slots=True)
class TopicChange(TermEvent):
    """Children of `/brokers/topics` came or went."""

    state = ControllerState.TOPIC_CHANGE


@dataclass(frozen=True, slots=True)
class PartitionModifications(TermEvent):
    """The assignment of a topic was written anew."""

    topic: str
    state = ControllerState.TOPIC_CHANGE


@dataclass(frozen=True, slots=True)
class TopicDeletion(TermEvent):
    """Children of `/admin/delete_topics` came or went."""

    state = ControllerState.TOPIC_DELETION


@dataclass(frozen=True, slots=True)
class IsrChangeNotification(TermEvent):
    """Children of `/isr_change_notification` came or went."""

    state = ControllerState.ISR_CHANGE


@dataclass(frozen=True, slots=True)
class LogDirEventNotification(TermEvent):
    """Children of `/log_dir_event_notification` came or went."""

    state = ControllerState.LOG_DIR_CHANGE


@dataclass(frozen=True, slots=True)
class UncleanLeaderElectionEnable(TermEvent):
    """unclean.leader.election.enable became true for the cluster."""

    state = ControllerState.UNCLEAN_LEADER_ELECTION_ENABLE


@dataclass(frozen=True, slots=True)
class TopicUncleanLeaderElectionEnable(TermEvent):
    """unclean.leader.election.enable became true for a topic."""

    topic: str
    state = ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE


@dataclass(frozen=True, slots=True)
class ReadAgain(OneTermEvent):
    """The controller looks whether what it could not read is mended."""

    state = ControllerState.ISR_CHANGE


@dataclass(frozen=True, slots=True)
class UncleanElectionDelayOver(OneTermEvent):
    """The controller has waited long enough for replicas in sync to come."""

    state = ControllerState.UNCLEAN_LEADER_ELECTION_ENABLE


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponseReceived(ResponseReceived):
    """A broker has answered LeaderAndIsr; `broker_epoch` is the life of the broker that was meant."""

    broker_epoch: int
    response: LeaderAndIsrResponse
    state = ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED


@dataclass(frozen=True, slots=True)
class UpdateMetadataResponseReceived(ResponseReceived):
    """A broker has answered UpdateMetadata."""

    response: UpdateMetadataResponse
    state = ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED


@dataclass(frozen=True, slots=True)
class TopicDeletionStopReplicaResponseReceived(ResponseReceived):
    """A broker has answered a request to delete replicas."""

    request: StopReplicaRequest
    response: StopReplicaResponse
    state = ControllerState.TOPIC_DELETION


@dataclass(frozen=True, slots=True, eq=False)
class AnsweredEvent(TermEvent):
    """An event that somebody waits for."""

    answer: asyncio.Future[Any]


@dataclass(frozen=True, slots=True, eq=False)
class AlterPartitionReceived(AnsweredEvent):
    """A leader proposes ISRs."""

    answer: asyncio.Future[AlterPartitionResponse]
    request: AlterPartitionRequest
    version: int
    state = ControllerState.ISR_CHANGE


@dataclass(frozen=True, slots=True, eq=False)
class ControlledShutdown(AnsweredEvent):
    """A broker wants to stop, and to give up what it leads."""

    answer: asyncio.Future[list[TopicPartition]]
    broker_id: int
    broker_epoch: int
    state = ControllerState.CONTROLLED_SHUTDOWN


@dataclass(frozen=True, slots=True, eq=False)
class AllocateProducerIds(AnsweredEvent):
    """A broker needs a block of producer ids."""

    answer: asyncio.Future[ProducerIdBlock]
    broker_id: int
    broker_epoch: int
    state = ControllerState.IDLE
