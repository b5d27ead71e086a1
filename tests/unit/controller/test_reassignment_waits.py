"""Reassignments whose targets go offline after the beginning: the log says who waits for whom, and what to do."""

from __future__ import annotations

import pytest

from barnabas.coordination.layout.topics import ReplicaAssignment
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import LeaderAndIsrResponse
from barnabas.wire.topics import TopicPartition
from tests.unit.controller.test_reassignment import T0, with_topic


def test_a_target_that_dies_later_is_told_once_and_can_be_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    terms = with_topic((1, 2, 3), (1, 2), (2, 3))
    terms.reassign(T0, 1, 4)
    terms.reassign(TopicPartition("t", 1), 1, 4, 5)
    terms.reassign(TopicPartition("t", 2), 2, 3, 6)
    terms.stop_broker(3)  # which only leaves
    terms.settle()
    assert "t-0 to [1, 4]" not in caplog.text
    caplog.clear()
    for broker_id in (4, 5):
        terms.stop_broker(broker_id)
    terms.settle()
    (line,) = [record.getMessage() for record in caplog.records if "wait for brokers" in record.getMessage()]
    assert line.startswith("2 reassignments wait for brokers [4, 5], whose replicas have gone offline: start them, or")
    assert "t-0 to [1, 4]; t-1 to [1, 4, 5]" in line
    assert "t-2" not in line
    assert terms.reassign(T0) is None
    assert terms.assignment("t").replicas == (1, 2, 3)
    assert terms.refusals() == []


def test_a_target_that_bounces_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    terms = with_topic((1, 2, 3))
    terms.reassign(T0, 1, 4)
    terms.stop_broker(4)
    terms.start_broker(4)
    terms.settle()
    assert "wait for brokers" not in caplog.text
    assert terms.propose(T0, 1, 2, 3, 4) is ErrorCode.NONE
    assert terms.assignment("t") == ReplicaAssignment((1, 4))


def test_a_target_whose_log_directory_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    terms = with_topic()
    terms.reassign(T0, 1, 4)
    context = terms.term.context
    failed = LeaderAndIsrResponse.LeaderAndIsrTopicError(
        topic_id=context.topic_id("t"),  # type: ignore[arg-type]
        partition_errors=[
            LeaderAndIsrResponse.LeaderAndIsrPartitionError(partition_index=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        ],
    )
    epoch = context.live_or_shutting_down_brokers[4].epoch
    terms.run(terms.term.leader_and_isr_answered(4, epoch, LeaderAndIsrResponse(topics=[failed])))
    assert "1 reassignments wait for brokers [4], whose replicas have gone offline" in caplog.text
