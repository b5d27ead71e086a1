"""Very many partitions: they are counted once for each image, off the loop, whoever looks."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from barnabas.client.client import Client
from barnabas.client.cluster import BrokerNode, Cluster, PartitionInfo, TopicInfo
from barnabas.client.settings import ClientSettings
from barnabas.console import poller as poller_module
from barnabas.console.access import Access, Tokens
from barnabas.console.app import App
from barnabas.console.configs import ConfigReader
from barnabas.console.figures import Figures
from barnabas.console.history import PARTITIONS_PER_STEP, History
from barnabas.console.http import Request
from barnabas.console.poller import Poller
from barnabas.console.records_read import RecordReader
from barnabas.kernel.real_host import RealHost, run
from barnabas.wire.topics import TopicPartition


class Walked(dict[int, PartitionInfo]):
    """Partitions of a topic, which count how often somebody goes through them."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.walks = 0

    def items(self) -> Any:
        self.walks += 1
        return super().items()

    def values(self) -> Any:
        self.walks += 1
        return super().values()


def cluster_of(partitions: int, seed: int = 1, isr: tuple[int, ...] | None = None) -> Cluster:
    draw = random.Random(seed)
    infos = Walked()
    for number in range(partitions):
        replicas = tuple(draw.sample((1, 2, 3, 4), 3))
        in_sync = replicas[: draw.randint(1, 3)] if isr is None else isr
        infos[number] = PartitionInfo(draw.choice((-1, *in_sync)), 0, replicas, in_sync, ())
    topics = {"wide": TopicInfo("wide", bytes(16), is_internal=False, partitions=infos)}
    return Cluster("c", 1, {number: BrokerNode(number, "h", 9092) for number in (1, 2, 3)}, topics)


def with_console(cluster: Cluster, body: Callable[[Poller, App], Awaitable[None]]) -> None:
    async def on_host(host: RealHost) -> None:
        client = Client(host, ClientSettings(bootstrap_servers=("127.0.0.1:1",)), logging.getLogger("tests.many"))
        poller, configs = Poller(client), ConfigReader(client)
        poller.cluster.value, poller.cluster.answers = cluster, 1
        poller.cluster.answered_ms = host.clock.time_ms()
        try:
            await body(poller, App(poller, RecordReader(client), Access("127.0.0.1"), Tokens(b"s"), configs, "b"))
        finally:
            await poller.close()
            await client.close()

    run(on_host, name="test")


def test_figures_are_what_counting_by_hand_gives() -> None:
    cluster = cluster_of(300)
    infos = dict(cluster.topics["wide"].partitions)
    found = Figures.of(cluster)
    assert found.partitions == 300
    assert found.leaderless == sum(info.leader_id < 0 for info in infos.values()) > 0
    assert found.behind == sum(len(info.isr) < 3 for info in infos.values()) > 0
    for broker in (1, 2, 3, 4):
        mine = [number for number, info in infos.items() if broker in info.replicas]
        late = [number for number in mine if broker not in infos[number].isr]
        assert found.leads[broker] == sum(info.leader_id == broker for info in infos.values())
        assert found.behind_on[broker] == len(late)
        assert [each.partition for each in found.replicas[broker]] == [*late, *(n for n in mine if n not in late)]


@pytest.mark.parametrize("path", ["", "brokers", "brokers/1", "topics/wide", "topics/wide/5", "groups", "alerts"])
def test_a_page_does_not_go_through_all_partitions(path: str) -> None:
    cluster = cluster_of(poller_module.SMALL_PARTITIONS + 1)
    walked: Any = cluster.topics["wide"].partitions

    async def body(poller: Poller, app: App) -> None:
        poller.figures(cluster)
        poller.problems()
        walked.walks = 0
        request = Request("GET", tuple(filter(None, path.split("/"))), headers={"host": "127.0.0.1"})
        assert [(await app.answer(request)).status for _ in range(3)] == [200] * 3
        assert walked.walks == 0

    with_console(cluster, body)


def test_what_is_wrong_with_very_many_is_looked_at_off_the_loop_and_the_former_finding_stays_meanwhile() -> None:
    whole = cluster_of(poller_module.SMALL_PARTITIONS + 1, isr=(1, 2, 3, 4))
    broken = cluster_of(poller_module.SMALL_PARTITIONS + 1)

    async def body(poller: Poller, _app: App) -> None:
        before = poller.problems()
        poller.cluster.value, poller.cluster.answers = broken, 2
        assert poller.problems() is before
        async with asyncio.timeout(60):
            while poller.problems() is before:
                await asyncio.sleep(0.001)
        assert any(each.kind == "under_replicated" for each in poller.problems())
        assert not any(each.kind == "under_replicated" for each in before)

    with_console(whole, body)


def test_an_image_is_taken_in_steps() -> None:
    history = History()
    first, second = cluster_of(3 * PARTITIONS_PER_STEP, 1), cluster_of(3 * PARTITIONS_PER_STEP, 2)

    def steps(found: Iterator[None]) -> int:
        return sum(1 for _ in found)

    assert steps(history.steps(first, 1)) == 3
    assert history.changed("wide") == []
    assert steps(history.steps(second, 2)) == 6
    changed = history.changed("wide")
    assert 0 < len(changed) <= 3 * PARTITIONS_PER_STEP
    assert all(len(history.of(each)) == 2 for each in changed)
    assert history.shrinks_since(0) > 0
    history.see(Cluster("c", 1, {}, {}), 3)
    assert history.changed("wide") == []
    assert history.of(TopicPartition("wide", 0)) == []
