"""`{1,2,3} -> {4,5,6}` on production brokers and the coordinator: the rows that the coordinator holds, in their order.

Every write into the coordinator's tree is looked at, so that no row between two looks is missed.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from barnabas.client.admin import Admin, NewTopic
from barnabas.client.client import Client
from barnabas.client.producer import Producer
from barnabas.client.records import ProducerRecord
from barnabas.client.settings import ClientSettings, ProducerSettings
from barnabas.coordination.client import Client as StoreClient
from barnabas.coordination.embedded.tree import ZnodeTree
from barnabas.coordination.layout.admin import REASSIGN_PARTITIONS_PATH, Reassignment
from barnabas.coordination.layout.topics import PartitionState, TopicAssignment, partition_state_path, topic_path
from barnabas.coordination.session_settings import ClientSettings as StoreSettings
from barnabas.kernel.host import Host
from barnabas.testing.probes import after
from barnabas.testing.simulation import Simulation
from barnabas.wire.topics import TopicPartition
from tests.simulation.broker_machines import BrokerMachines

BROKERS = (1, 2, 3, 4, 5, 6)
PORT = 9092
TOPIC = "payments"
T0 = TopicPartition(TOPIC, 0)
RECORDS = 50
SECONDS_MAX = 60.0
Row = tuple[frozenset[int], int, frozenset[int]]
"""The assigned replicas, the leader and the ISR."""
OLD, BOTH, NEW = frozenset({1, 2, 3}), frozenset(BROKERS), frozenset({4, 5, 6})
SIX_ROWS = [(OLD, 1, OLD), (BOTH, 1, OLD), (BOTH, 1, BOTH), (BOTH, 4, BOTH), (BOTH, 4, NEW), (NEW, 4, NEW)]


def properties(broker_id: int) -> str:
    return "\n".join(
        [
            f"broker.id={broker_id}",
            f"listeners=PLAINTEXT://:{PORT}",
            "zookeeper.connect=coordinator:2181",
            "log.dirs=/data",
            "min.insync.replicas=2",
            "auto.leader.rebalance.enable=false",
        ]
    )


class Rows:
    """The rows as they come, each once."""

    def __init__(self) -> None:
        self.seen: list[Row] = []

    @contextmanager
    def probes(self) -> Iterator[None]:
        with after(ZnodeTree, "set_data", self._written), after(ZnodeTree, "create", self._written):
            yield

    def _written(self, _result: object, tree: ZnodeTree, *_arguments: Any) -> None:
        assigned, led = tree.find(topic_path(TOPIC)), tree.find(partition_state_path(*T0))
        if assigned is None or led is None:
            return
        assignment = TopicAssignment.decode(assigned[0], TOPIC).partitions[0]
        state = PartitionState.decode(led[0], TOPIC)
        row = frozenset(assignment.replicas), state.leader, frozenset(state.isr)
        if not self.seen or self.seen[-1] != row:
            self.seen.append(row)


async def with_client(host: Host, act: Callable[[Client], Awaitable[None]]) -> None:
    settings = ClientSettings(bootstrap_servers=tuple(f"broker{each}:{PORT}" for each in BROKERS))
    async with Client(host, settings, logging.getLogger("test")) as client:
        await act(client)


async def produce(client: Client) -> None:
    producer = Producer(client, ProducerSettings())
    sent = [await producer.send(ProducerRecord(TOPIC, b"%d" % number, partition=0)) for number in range(RECORDS)]
    for each in sent:
        await each
    await producer.close()


async def create(client: Client) -> None:
    async with Admin(client) as admin:
        await admin.create_topics([NewTopic(TOPIC, assignment={0: (1, 2, 3)})])


async def reassign(client: Client) -> None:
    async with Admin(client) as admin:
        await admin.alter_partition_reassignments({T0: (4, 5, 6)}, timeout_ms=10_000)


async def reassign_by_znode(host: Host) -> None:
    store = StoreClient(host, StoreSettings("coordinator:2181"), logger=logging.getLogger("test"))
    await store.connect(10_000)
    await store.create(REASSIGN_PARTITIONS_PATH, Reassignment({T0: (4, 5, 6)}).encode())
    await store.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("is_api", [True, False])
def test_all_replicas_are_replaced_in_exactly_six_rows(is_api: bool, seed: int) -> None:
    rows = Rows()
    with rows.probes(), Simulation(seed) as simulation:
        cluster = BrokerMachines(simulation, BROKERS, properties)
        user = simulation.machine("user")

        def all_know_all() -> bool:
            images = [broker.components.metadata_cache.image for broker in cluster.brokers.values()]
            return len(images) == len(BROKERS) and all(set(image.brokers) == set(BROKERS) for image in images)

        def logs() -> dict[int, int]:
            found = {}
            for broker_id, broker in cluster.brokers.items():
                replica = broker.components.replica_manager.find_partition(T0)
                if replica is not None and replica.log is not None:
                    found[broker_id] = replica.log.log_end_offset
            return found

        simulation.run_until(all_know_all, SECONDS_MAX)
        simulation.run_on(user, functools.partial(with_client, act=create))
        simulation.run_until(lambda: set(logs()) == OLD, SECONDS_MAX)
        simulation.run_on(user, functools.partial(with_client, act=produce))
        simulation.run_on(user, functools.partial(with_client, act=reassign) if is_api else reassign_by_znode)
        simulation.run_until(lambda: rows.seen[-1] == SIX_ROWS[-1] and set(logs()) == NEW, SECONDS_MAX)
        # Nothing follows.
        simulation.run_for(10.0)
        assert logs() == dict.fromkeys(NEW, RECORDS)
    assert joined(rows.seen) == SIX_ROWS


def joined(rows: list[Row]) -> list[Row]:
    """Without the rows between in which only some of the new replicas are in sync: each joins as it has caught up."""
    return [row for row in rows if row[2] in {OLD, BOTH, NEW}]
