"""A client without a network: the test says what the cluster is, and what brokers answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from barnabas.client.client import Client
from barnabas.client.cluster import BrokerNode, Cluster, PartitionInfo, TopicInfo
from barnabas.client.connections import Lane
from barnabas.client.settings import ClientSettings
from barnabas.client.versions import VERSIONS
from barnabas.kernel.host import Host
from barnabas.kernel.turns import yield_to_loop
from barnabas.link.client import OnFailure, OnResponse
from barnabas.testing.simulation import Simulation

NODE = BrokerNode(1, "broker", 9092)
TOPIC_ID = b"t" * 16

Ask = Callable[[Any, Lane], Awaitable[Any]]
"""(request, lane) -> the answer, or raises."""


def cluster_of(topics: Mapping[str, int], nodes: tuple[BrokerNode, ...] = (NODE,)) -> Cluster:
    """Topics by name with their partition counts, all led by the first node."""
    return Cluster(
        controller_id=nodes[0].node_id,
        brokers={node.node_id: node for node in nodes},
        topics={
            name: TopicInfo(
                name,
                TOPIC_ID,
                is_internal=False,
                partitions={number: PartitionInfo(nodes[0].node_id, 0, (1,), (1,), ()) for number in range(count)},
            )
            for name, count in topics.items()
        },
    )


@dataclass(slots=True)
class Sent:
    """A request that was started and has no answer yet."""

    message: Any
    timeout_ms: float
    on_response: OnResponse
    on_failure: OnFailure


class ScriptedOutgoing:
    """Keeps what is started in `sent`, to be answered by the test."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []

    async def ready(self, _timeout_ms: float) -> None:
        return

    def version_of(self, _api_key: int, _lowest: int, highest: int) -> int:
        return highest

    def start(
        self, message: Any, _version: int, timeout_ms: float, on_response: OnResponse, on_failure: OnFailure
    ) -> None:
        self.sent.append(Sent(message, timeout_ms, on_response, on_failure))


class ScriptedConnections:
    """One connection, whatever the lane and the broker."""

    def __init__(self) -> None:
        self.outgoing = ScriptedOutgoing()
        self.lanes = 0
        self.node_ids: set[int] = set()

    def new_lane(self) -> Lane:
        self.lanes += 1
        return Lane(self.lanes)

    def to_node(self, _lane: Lane, _node: BrokerNode) -> ScriptedOutgoing:
        return self.outgoing

    async def close_lane(self, _lane: Lane) -> None:
        return

    async def close(self) -> None:
        return


class ScriptedClient(Client):
    """Its metadata are never refreshed; change `metadata.cluster` instead."""

    def __init__(self, host: Host, ask: Ask, topics: Mapping[str, int], settings: ClientSettings | None = None) -> None:
        settings = settings or ClientSettings(bootstrap_servers=("broker:9092",))
        super().__init__(host, settings, logging.getLogger("scripted-client"))
        self.scripted = ScriptedConnections()
        self.connections = self.scripted  # type: ignore[assignment]
        self.asked: list[tuple[Any, Lane, float | None]] = []
        self._ask = ask
        self.metadata.cluster = cluster_of(topics)

    async def ask_by_version(
        self,
        node: BrokerNode,
        lane: Lane,
        api_key: int,
        build: Callable[[int], Any],
        timeout_ms: float | None = None,
        *,
        highest: int | None = None,
    ) -> Any:
        request = build(highest or VERSIONS[api_key][1])
        self.asked.append((request, lane, timeout_ms))
        return await self._ask(request, lane)


def simulated(main: Callable[[Host], Coroutine[Any, Any, Any]]) -> Any:
    """Runs `main(host)` to its end in virtual time."""
    with Simulation(seed=1) as simulation:
        return simulation.run_on(simulation.machine("client"), main)


async def turns(count: int = 20) -> None:
    """Lets everything happen that needs no time."""
    for _ in range(count):
        await yield_to_loop()
