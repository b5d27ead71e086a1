"""What the present term does for each event of it."""

from __future__ import annotations

from barnabas.controller.effects import Steps
from barnabas.controller.events import (
    BrokerChange,
    BrokerModifications,
    IsrChangeNotification,
    LeaderAndIsrResponseReceived,
    LogDirEventNotification,
    OneTermEvent,
    PartitionModifications,
    ReadAgain,
    TermEvent,
    TopicChange,
    TopicDeletion,
    TopicDeletionStopReplicaResponseReceived,
    TopicUncleanLeaderElectionEnable,
    UncleanElectionDelayOver,
    UncleanLeaderElectionEnable,
    UpdateMetadataResponseReceived,
)
from barnabas.controller.term import ControllerTerm


def steps_of(event: TermEvent, term: ControllerTerm) -> Steps[None] | None:
    """What the term does for an event; None for an answer to the controller of another epoch."""
    if isinstance(event, OneTermEvent) and event.epoch != term.context.epoch:
        return None
    match event:
        case BrokerChange():
            return term.brokers_changed()
        case BrokerModifications():
            return term.broker_modified(event.broker_id)
        case TopicChange():
            return term.topics_changed()
        case PartitionModifications():
            return term.topic_modified(event.topic)
        case TopicDeletion():
            return term.deletions_changed()
        case IsrChangeNotification():
            return term.isr_changes_announced()
        case LogDirEventNotification():
            return term.log_dir_failures_announced()
        case UncleanLeaderElectionEnable():
            return term.try_online()
        case TopicUncleanLeaderElectionEnable():
            return term.try_online(event.topic)
        case ReadAgain():
            return term.read_again()
        case UncleanElectionDelayOver():
            return term.allow_unclean_elections()
        case LeaderAndIsrResponseReceived():
            return term.leader_and_isr_answered(event.broker_id, event.broker_epoch, event.response)
        case UpdateMetadataResponseReceived():
            return term.update_metadata_answered(event.broker_id, event.response)
        case TopicDeletionStopReplicaResponseReceived():
            return term.replicas_deleted(event.broker_id, event.request, event.response)
    return None
