"""What the poller makes of answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from barnabas.client.client import Client
from barnabas.client.cluster import BrokerNode, Cluster, PartitionInfo, TopicInfo
from barnabas.client.cluster_health import Observed, Problem, diagnose
from barnabas.client.reassignments import PartitionReassignment
from barnabas.client.settings import ClientSettings
from barnabas.console.groups import Group, GroupsAndEnds
from barnabas.console.history import SERIES_MAX
from barnabas.console.poller import CLUSTER, Poller
from barnabas.kernel.real_host import real_host
from barnabas.wire.topics import TopicPartition


def _with_poller(body: Callable[[Poller], Awaitable[None]]) -> None:
    """Runs `body` with a poller that asks nobody."""

    async def run() -> None:
        async with real_host("poller", asyncio.get_running_loop()) as host:
            settings = ClientSettings(bootstrap_servers=("127.0.0.1:1",))
            client = Client(host, settings, logging.getLogger("tests.poller"))
            poller = Poller(client)
            try:
                await body(poller)
            finally:
                await poller.close()
                await client.close()

    asyncio.run(run())


def _ends(time_ms: int, *ends: tuple[str, int, int]) -> GroupsAndEnds:
    return GroupsAndEnds({}, {TopicPartition(topic, number): end for topic, number, end in ends}, time_ms)


def test_rates_are_of_partitions_that_were_known_before() -> None:
    async def body(poller: Poller) -> None:
        poller._take_writes(_ends(0, ("a", 0, 100), ("b", 0, 5)))
        poller._take_writes(_ends(2_000, ("a", 0, 300), ("a", 1, 9_000), ("b", 0, 3)))
        assert poller.writes.of(CLUSTER) == [(2_000, 100.0)]

    _with_poller(body)


def test_the_rate_of_the_whole_cluster_has_a_place_however_many_topics_there_are() -> None:
    async def body(poller: Poller) -> None:
        names = [f"t{number}" for number in range(SERIES_MAX + 100)]
        poller._take_writes(_ends(0, *((name, 0, 0) for name in names)))
        poller._take_writes(_ends(1_000, *((name, 0, 2) for name in names)))
        assert poller.writes.of(CLUSTER) == [(1_000, 2.0 * len(names))]

    _with_poller(body)


def test_lags_go_with_their_groups_unless_a_broker_did_not_tell() -> None:
    partition = TopicPartition("a", 0)
    group = Group("g", "Empty", "consumer", "", 1, (), {partition: 7})

    async def body(poller: Poller) -> None:
        poller._take_lags(GroupsAndEnds({"g": group}, {partition: 10}, 1))
        poller._take_lags(GroupsAndEnds({}, {}, 2, failed={1: "gone"}))
        assert poller.lags.of("g") == [(1, 3.0)]
        poller._take_lags(GroupsAndEnds({}, {}, 3))
        assert poller.lags.of("g") == []

    _with_poller(body)


def test_a_lag_is_unknown_without_an_end_and_never_negative() -> None:
    one, other = TopicPartition("a", 0), TopicPartition("a", 1)
    group = Group("g", "Empty", "consumer", "", 1, (), {one: 7, other: 8})
    assert group.lag_of_all({}) is None
    assert group.lag_of_all({one: 9}) == 2
    assert group.lag_of_all({one: 5, other: 9}) == 1
    assert Group("g", "Empty", "consumer", "", 1, (), {}).lag_of_all({}) == 0


def test_what_is_wrong_is_looked_for_once_for_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Observed] = []

    def look(observed: Observed) -> list[Problem]:
        looked.append(observed)
        return diagnose(observed)

    monkeypatch.setattr("barnabas.console.poller.diagnose", look)
    info = PartitionInfo(-1, 0, (1,), (1,), ())
    topic = TopicInfo("a", bytes(16), is_internal=False, partitions={0: info})

    async def body(poller: Poller) -> None:
        assert poller.problems() == []
        poller.cluster.value = Cluster("c", 1, {1: BrokerNode(1, "h", 1)}, {"a": topic})
        poller.cluster.answers = 1
        for _ in range(3):
            assert [each.kind for each in poller.problems()] == ["without_leader"]
        assert len(looked) == 1
        poller.cluster.answers = 2
        poller.problems()
        assert len(looked) == 2

    _with_poller(body)


def test_replicas_that_are_being_made_are_not_behind_as_soon_as_that_is_known() -> None:
    info = PartitionInfo(1, 0, (2, 1), (1,), ())
    topic = TopicInfo("a", bytes(16), is_internal=False, partitions={0: info})

    async def body(poller: Poller) -> None:
        poller.cluster.value = Cluster("c", 1, {1: BrokerNode(1, "h", 1), 2: BrokerNode(2, "h", 2)}, {"a": topic})
        assert [each.kind for each in poller.problems()] == ["under_replicated"]
        poller.reassignments.value = {TopicPartition("a", 0): PartitionReassignment((2, 1), (2,), ())}
        poller.reassignments.answers += 1
        assert poller.problems() == []
        # Nor do pages call them that; the other replica would be.
        assert poller.missing(TopicPartition("a", 0), info) == []
        assert poller.being_made(poller.cluster.value) == {TopicPartition("a", 0): [2]}
        assert poller.missing(TopicPartition("a", 0), replace(info, isr=())) == [1]
        poller.reassignments.value = {TopicPartition("gone", 0): PartitionReassignment((2, 1), (2,), ())}
        assert poller.being_made(poller.cluster.value) == {}
        assert poller.missing(TopicPartition("a", 0), info) == [2]

    _with_poller(body)
