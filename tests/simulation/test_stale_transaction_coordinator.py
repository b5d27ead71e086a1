"""A transaction coordinator that is cut off, and does not know that another one has its place, acknowledges nothing.

Production brokers in virtual time. The coordinator of a transactional id has ended a transaction, and is cut off then
from the other brokers and from ZooKeeper, but not from the client. The next transaction begins with the coordinator
that takes its place; its end is asked of the former one, to which it looks like the last one's, repeated.
"""

from __future__ import annotations

import logging
from collections import Counter

from barnabas.client.admin import Admin, NewTopic
from barnabas.client.client import Client
from barnabas.client.cluster import BrokerNode
from barnabas.client.settings import ClientSettings
from barnabas.kernel.host import Host
from barnabas.testing.cluster_history import RecordId
from barnabas.testing.cluster_logs import StoredLog
from barnabas.testing.simulation import Simulation
from barnabas.testing.transaction_ledger import seen
from barnabas.testing.transactional_producer import TransactionalProducer
from barnabas.wire.topics import TRANSACTION_TOPIC, TopicPartition
from tests.simulation.broker_machines import BrokerMachines

BROKERS = (1, 2, 3)
PORT = 9092
TOPIC = "payments"
STATE = TopicPartition(TRANSACTION_TOPIC, 0)
TIMEOUT_MS = 30_000
FIRST, SECOND = RecordId(1, 0), RecordId(2, 0)


def properties(broker_id: int) -> str:
    return "\n".join(
        [
            f"broker.id={broker_id}",
            f"listeners=PLAINTEXT://:{PORT}",
            "zookeeper.connect=coordinator:2181",
            "zookeeper.session.timeout.ms=4000",
            "log.dirs=/data",
            "min.insync.replicas=2",
            "transaction.state.log.num.partitions=1",
            "request.timeout.ms=3000",
        ]
    )


class Cluster(BrokerMachines):
    """The machines, and the brokers that run on them now."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, BROKERS, properties)

    def forms(self) -> bool:
        images = [broker.components.metadata_cache.image for broker in self.brokers.values()]
        return len(images) == len(BROKERS) and all(set(image.brokers) == set(BROKERS) for image in images)

    def leads(self, broker_id: int, partition: TopicPartition) -> bool:
        """Whether it believes so of itself."""
        replica = self.brokers[broker_id].components.replica_manager.find_partition(partition)
        return replica is not None and replica.is_leader

    def leader(self, partition: TopicPartition, but_for: int = 0) -> int | None:
        """Who leads, as he believes of himself."""
        return next((each for each in BROKERS if each != but_for and self.leads(each, partition)), None)


def test_a_coordinator_that_was_replaced_does_not_acknowledge_a_commit() -> None:
    with Simulation(1) as simulation:
        cluster = Cluster(simulation)
        simulation.run_until(cluster.forms, 30)
        network = cluster.coordinator.network

        async def use(host: Host) -> TopicPartition:
            settings = ClientSettings(
                bootstrap_servers=tuple(f"broker{each}:{PORT}" for each in BROKERS), request_timeout_ms=4_000
            )
            async with Client(host, settings, logging.getLogger("test")) as client:
                assignment = {0: (1, 2, 3), 1: (2, 3, 1)}
                await Admin(client).create_topics([NewTopic(TOPIC, assignment=assignment)])
                producer = TransactionalProducer(client, "x", TIMEOUT_MS, Counter())
                await producer.init()
                former = cluster.leader(STATE)
                assert former is not None
                partition = TopicPartition(TOPIC, 1 if former == 1 else 0)
                await producer.add_partitions([partition])
                await producer.send(partition, [FIRST])
                await producer.end(is_commit=True)
                await producer.end(is_commit=True)  # all partitions are told
                await client.timers.sleep(1_000)

                others = [f"broker{each}" for each in BROKERS if each != former]
                network.partition([f"broker{former}"], [*others, "coordinator"])
                while (successor := cluster.leader(STATE, former)) is None or cluster.leader(partition, former) is None:
                    await client.timers.sleep(50)
                await client.timers.sleep(500)
                assert cluster.leads(former, STATE), "it does not know yet"
                producer.turn_to(BrokerNode(successor, f"broker{successor}", PORT))
                await producer.add_partitions([partition])
                await producer.send(partition, [SECOND])
                producer.turn_to(BrokerNode(former, f"broker{former}", PORT))
                simulation.after(8.0, network.heal_all)
                await producer.end(is_commit=True)
                await client.timers.sleep(TIMEOUT_MS * 2)
                return partition

        partition = simulation.run_on(simulation.machine("client"), use, 200)
        leader = cluster.leader(partition)
        assert leader is not None
        log = StoredLog(cluster.machines[leader].disk, ["/data"], partition)
        records, is_open = seen(log.raw_batches())
    assert [record for _, record in records] == [FIRST, SECOND], "the second was acknowledged as committed"
    assert not is_open
