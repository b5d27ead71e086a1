"""What a broker tells of the leaders and ISRs that were, over the wire and no more than it may at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.api.describe_leadership_changes import CHANGES_MAX, DescribeLeadershipChangesHandler
from barnabas.cluster.image import PartitionMetadata
from barnabas.cluster.leadership_changes import LeadershipChange
from barnabas.kernel.ids import Uuid
from barnabas.wire import codec
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeLeadershipChangesRequest, DescribeLeadershipChangesResponse
from barnabas.wire.topics import TopicPartition
from tests.unit.api.test_controller_requests import handle

P = TopicPartition("flights", 3)
ID = Uuid(b"f" * 16)
BEFORE = PartitionMetadata(1, 4, (1, 2), (1, 2, 3), (), 8, 1)
AFTER = PartitionMetadata(-1, 5, (2,), (1, 2, 3), (1,), 9, 1)


class Remembered:
    """Many changes; what was asked for is noted."""

    since_ms: int | None = 50
    last = 10_000

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def after(self, number: int, limit: int) -> list[tuple[int, LeadershipChange]]:
        self.asked.append((number, limit))
        return [(7, LeadershipChange(60, P, ID, BEFORE, AFTER)), (8, LeadershipChange(70, P, ID, None, AFTER))]


def handler(changes: Remembered) -> DescribeLeadershipChangesHandler:
    return DescribeLeadershipChangesHandler(cast("Any", changes), cast("Any", SimpleNamespace(time_ms=lambda: 99)))


def test_changes_are_told_with_what_was_before() -> None:
    changes = Remembered()
    response = handle(handler(changes), DescribeLeadershipChangesRequest(after=6, changes_max=2), 0)
    assert isinstance(response, DescribeLeadershipChangesResponse)
    assert (response.error_code, response.now_ms, response.since_ms, response.last) == (0, 99, 50, 10_000)
    first, second = response.changes
    assert (first.number, first.time_ms, first.topic, first.partition, bytes(first.topic_id)) == (7, 60, *P, ID)
    assert (first.leader, first.leader_epoch, first.isr, first.replicas) == (-1, 5, [2], [1, 2, 3])
    assert (first.leader_before, first.leader_epoch_before) == (1, 4)
    assert (first.isr_before, first.replicas_before) == ([1, 2], [1, 2, 3])
    assert (second.number, second.leader_epoch_before, second.isr_before) == (8, -1, [])
    assert changes.asked == [(6, 2)]


@pytest.mark.parametrize(("asked", "told"), [(2**31 - 1, CHANGES_MAX), (CHANGES_MAX, CHANGES_MAX), (0, 0)])
def test_one_answer_is_bounded(asked: int, told: int) -> None:
    changes = Remembered()
    handle(handler(changes), DescribeLeadershipChangesRequest(changes_max=asked), 0)
    assert changes.asked == [(-1, told)]


def test_a_broker_that_knows_no_partition_has_no_history_and_a_refusal_is_at_the_top() -> None:
    changes = Remembered()
    changes.since_ms = None
    response = handle(handler(changes), DescribeLeadershipChangesRequest(), 0)
    assert isinstance(response, DescribeLeadershipChangesResponse)
    assert response.since_ms == -1
    error = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    refused = handler(changes).error_response(cast("Any", None), cast("Any", None), error)
    data = b"".join(codec.encode(refused, 0))
    decoded = codec.decode(DescribeLeadershipChangesResponse, 0, data)
    assert decoded.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
