"""The states of the controller, as Kafka's gauge and timings show them."""

from __future__ import annotations

from barnabas.controller.states import ControllerState

NOT_TIMED = {ControllerState.IDLE, ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED}
"""What has no timing in Apache Kafka 3.9 either (`ControllerState.hasRateAndTimeMetric`)."""


def test_the_gauge_counts_from_nothing_to_the_last_state() -> None:
    assert [state.value for state in ControllerState] == list(range(18))


def test_every_state_is_timed_under_kafkas_name_but_the_two_that_are_not() -> None:
    renamed = {"BROKER_CHANGE": "LeaderElection", "ALTER_PARTITION_REASSIGNMENT": "PartitionReassignment"}
    for state in ControllerState:
        if state in NOT_TIMED:
            assert state.timing_name is None
        else:
            words = renamed.get(state.name, "".join(word.capitalize() for word in state.name.split("_")))
            assert state.timing_name == f"{words}RateAndTimeMs"
