"""What a controller is doing: the state while it processes an event, as Kafka's gauge and timings show it."""

from __future__ import annotations

import enum
from typing import Self


class ControllerState(enum.Enum):
    """The value is that of the gauge `ControllerState`; `timing_name` is None for what has no timing in Kafka."""

    timing_name: str | None

    def __new__(cls, number: int, timing_name: str | None) -> Self:
        member = object.__new__(cls)
        member._value_ = number
        member.timing_name = timing_name
        return member

    IDLE = 0, None
    CONTROLLER_CHANGE = 1, "ControllerChangeRateAndTimeMs"
    BROKER_CHANGE = 2, "LeaderElectionRateAndTimeMs"
    TOPIC_CHANGE = 3, "TopicChangeRateAndTimeMs"
    TOPIC_DELETION = 4, "TopicDeletionRateAndTimeMs"
    ALTER_PARTITION_REASSIGNMENT = 5, "PartitionReassignmentRateAndTimeMs"
    AUTO_LEADER_BALANCE = 6, "AutoLeaderBalanceRateAndTimeMs"
    MANUAL_LEADER_BALANCE = 7, "ManualLeaderBalanceRateAndTimeMs"
    CONTROLLED_SHUTDOWN = 8, "ControlledShutdownRateAndTimeMs"
    ISR_CHANGE = 9, "IsrChangeRateAndTimeMs"
    LEADER_AND_ISR_RESPONSE_RECEIVED = 10, "LeaderAndIsrResponseReceivedRateAndTimeMs"
    LOG_DIR_CHANGE = 11, "LogDirChangeRateAndTimeMs"
    CONTROLLER_SHUTDOWN = 12, "ControllerShutdownRateAndTimeMs"
    UNCLEAN_LEADER_ELECTION_ENABLE = 13, "UncleanLeaderElectionEnableRateAndTimeMs"
    TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE = 14, "TopicUncleanLeaderElectionEnableRateAndTimeMs"
    LIST_PARTITION_REASSIGNMENT = 15, "ListPartitionReassignmentRateAndTimeMs"
    UPDATE_METADATA_RESPONSE_RECEIVED = 16, None
    UPDATE_FEATURES = 17, "UpdateFeaturesRateAndTimeMs"
