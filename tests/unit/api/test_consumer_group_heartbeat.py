"""ConsumerGroupHeartbeat from the frame of the request to that of the response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.api import consumer_group_heartbeat
from barnabas.api.consumer_group_heartbeat import ConsumerGroupHeartbeatHandler
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ConsumerGroupHeartbeatRequest
from tests.unit.api.calling import Calls
from tests.unit.coordinators.consumer_group.consumer_world import ConsumerWorld

Listed = ConsumerGroupHeartbeatRequest.TopicPartitions


class Broker:
    """A coordinator of group `g` and topic `t` of six partitions behind the handler, and one client."""

    def __init__(self) -> None:
        self.world = ConsumerWorld()
        handler = ConsumerGroupHeartbeatHandler(self.world.coordinator, lambda: ErrorCode.NONE, is_offered=True)
        self.caller = Calls(self.world.host, handler).connect()

    def call(self, version: int = 1, **fields: Any) -> Any:
        self.caller.send(ConsumerGroupHeartbeatRequest(group_id="g", **fields), version)
        for _ in range(10):
            self.world.pass_ms(10)
            answers = self.caller.received()
            if answers:
                (answer,) = answers
                return answer
        raise AssertionError("not answered")

    def join(self, member_id: str) -> Any:
        return self.call(
            member_id=member_id,
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )

    def beat(self, member_id: str, epoch: int, *entries: list[int]) -> Any:
        topic_id = self.world.topics.id("t")
        listed = [Listed(topic_id=topic_id, partitions=numbers) for numbers in entries]
        return self.call(member_id=member_id, member_epoch=epoch, topic_partitions=listed)


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.world.close()


def test_a_member_says_what_it_owns_in_as_many_entries_as_it_likes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many steps they are taken in: one that is passed over counts as given up, and goes to another member."""
    monkeypatch.setattr(consumer_group_heartbeat, "_TOPICS_PER_STEP", 2)
    broker.join("first")
    broker.join("second")
    told = broker.beat("first", 1, [0], [1], [2], [3], [4], [5])
    kept = told.assignment.topic_partitions[0].partitions
    others = [number for number in range(6) if number not in kept]
    assert len(others) == 3
    assert broker.beat("first", 1, *([number] for number in (*others, *kept))).member_epoch == 1
    assert broker.beat("second", 2).assignment is None
    assert broker.beat("first", 1, *([number] for number in kept)).member_epoch == 2
    assert len(broker.beat("second", 2).assignment.topic_partitions[0].partitions) == 3


@pytest.mark.parametrize("version", [0, 1])
def test_members_bring_an_id_of_their_own_since_version_1(broker: Broker, version: int) -> None:
    answer = broker.call(
        version,
        member_id="",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    error = ErrorCode.for_code(answer.error_code)
    assert (error, bool(answer.member_id)) == (
        (ErrorCode.INVALID_REQUEST, False) if version else (ErrorCode.NONE, True)
    )
