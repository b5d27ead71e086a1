"""A topic that allows unclean elections keeps what its ISR acknowledged when everything ends and comes back.

Production brokers in virtual time. Broker 3 is away, or cut off, and out of every ISR, when records are acknowledged by
brokers 1 and 2, which sync each of them. Then the power fails, all processes are killed, or every session expires, and
the brokers come back one after the other: none of the records may be missing as long as a member comes back in time.
"""

from __future__ import annotations

import asyncio
import functools
import logging

import pytest

from barnabas.client.admin import Admin, NewTopic
from barnabas.client.client import Client
from barnabas.client.producer import Producer
from barnabas.client.records import ProducerRecord
from barnabas.client.settings import ClientSettings, ProducerSettings
from barnabas.kernel.host import Host
from barnabas.testing.simulated_host import SimulatedMachine
from barnabas.testing.simulation import Simulation, simulation_seeds
from barnabas.wire.topics import TopicPartition
from tests.simulation.broker_machines import BrokerMachines

SEEDS = simulation_seeds(12)
BROKERS = (1, 2, 3)
PORT = 9092
TOPIC = "payments"
ASSIGNMENT = {0: (3, 1, 2), 1: (1, 3, 2), 2: (2, 1, 3), 3: (3, 2, 1)}
PARTITIONS = [TopicPartition(TOPIC, number) for number in ASSIGNMENT]
RECORDS = 20
SESSION_TIMEOUT_SECONDS = 4.0
UNCLEAN_ELECTION_DELAY_SECONDS = SESSION_TIMEOUT_SECONDS
"""From a takeover on."""
SPREAD_SECONDS = 3.5
"""Within which the brokers start: less than the delay, since none takes over before it has started."""


def properties(broker_id: int) -> str:
    return "\n".join(
        [
            f"broker.id={broker_id}",
            f"listeners=PLAINTEXT://:{PORT}",
            "zookeeper.connect=coordinator:2181",
            f"zookeeper.session.timeout.ms={SESSION_TIMEOUT_SECONDS * 1000:.0f}",
            "log.dirs=/data",
            "log.flush.interval.messages=1",
            "min.insync.replicas=2",
            "replica.lag.time.max.ms=3000",
        ]
    )


class Cluster(BrokerMachines):
    """The machines, and the brokers that run on them now."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, BROKERS, properties)

    def forms(self, *broker_ids: int) -> bool:
        """Each of these brokers runs, and knows just these."""
        images = [self.brokers[each].components.metadata_cache.image for each in broker_ids if each in self.brokers]
        return len(images) == len(broker_ids) and all(set(image.brokers) == set(broker_ids) for image in images)

    def leaders(self) -> dict[TopicPartition, int]:
        """Of the partitions that a broker leads, by what the brokers believe of themselves."""
        return {
            partition: broker_id
            for broker_id, broker in self.brokers.items()
            for partition in PARTITIONS
            if (replica := broker.components.replica_manager.find_partition(partition)) is not None
            and replica.is_leader
        }

    def isrs(self, broker_id: int) -> list[tuple[int, ...]]:
        """As that broker knows them."""
        topic = self.brokers[broker_id].components.metadata_cache.image.topics.get(TOPIC)
        return [] if topic is None else [partition.isr for partition in topic.partitions.values()]

    def log_ends(self) -> dict[TopicPartition, int]:
        """The ends of the leaders' logs."""
        ends = {}
        for partition, leader in self.leaders().items():
            replica = self.brokers[leader].components.replica_manager.find_partition(partition)
            assert replica is not None
            assert replica.log is not None
            ends[partition] = replica.log.log_end_offset
        return ends

    def kill(self, broker_id: int) -> None:
        self.machines[broker_id].crash()
        self.brokers.pop(broker_id, None)


async def use(host: Host, cluster: Cluster, *, create: bool) -> None:
    settings = ClientSettings(bootstrap_servers=tuple(f"broker{broker_id}:{PORT}" for broker_id in BROKERS))
    async with Client(host, settings, logging.getLogger("test")) as client:
        if create:
            async with Admin(client) as admin:
                configs = {"unclean.leader.election.enable": "true"}
                await admin.create_topics([NewTopic(TOPIC, configs=configs, assignment=ASSIGNMENT)])
            return
        async with Producer(client, ProducerSettings(batch_bytes=100)) as producer:
            for number in range(RECORDS):
                await asyncio.gather(
                    *(
                        producer.send_and_wait(ProducerRecord(TOPIC, b"%d" % number, partition=partition))
                        for partition in ASSIGNMENT
                    )
                )


def begin(simulation: Simulation) -> Cluster:
    cluster = Cluster(simulation)
    simulation.run_until(lambda: cluster.forms(*BROKERS), 30)
    simulation.run_on(simulation.machine("client"), lambda host: use(host, cluster, create=True))
    return cluster


def acknowledge(cluster: Cluster) -> None:
    """Records that brokers 1 and 2 alone have."""
    simulation = cluster.simulation
    simulation.run_until(
        lambda: len(cluster.isrs(1)) == len(ASSIGNMENT) and all(set(isr) == {1, 2} for isr in cluster.isrs(1)), 60
    )
    simulation.run_on(simulation.machine("client"), lambda host: use(host, cluster, create=False))


def restart(cluster: Cluster, machines: list[SimulatedMachine]) -> None:
    """In any order, within a time in which the members may be expected."""
    source = cluster.simulation.world.random("restart")
    for machine in machines:
        cluster.simulation.after(source.uniform(0.0, SPREAD_SECONDS), machine.restart)


def check(cluster: Cluster) -> None:
    simulation = cluster.simulation
    simulation.run_until(lambda: cluster.forms(*BROKERS), 60)
    simulation.run_until(lambda: len(cluster.leaders()) == len(PARTITIONS), 60)
    simulation.run_for(3 * UNCLEAN_ELECTION_DELAY_SECONDS)
    assert cluster.log_ends() == dict.fromkeys(PARTITIONS, RECORDS)
    simulation.run_until(lambda: all(set(isr) == set(BROKERS) for isr in cluster.isrs(3)), 60)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("end", ["power", "kill -9", "kill -9 of the brokers"])
def test_what_the_isr_has_acknowledged_outlives_the_end_of_everything(seed: int, end: str) -> None:
    with Simulation(seed) as simulation:
        cluster = begin(simulation)
        cluster.kill(3)
        acknowledge(cluster)
        machines = list(cluster.machines.values())
        if end != "kill -9 of the brokers":
            machines.append(cluster.coordinator)
        for machine in machines:
            if end == "power":
                machine.power_fail()
            else:
                machine.crash()
        cluster.brokers.clear()
        # Shorter and longer than the sessions last.
        simulation.run_for(simulation.world.random("off").choice((0.5, 3.0, 12.0)))
        restart(cluster, machines)
        check(cluster)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_isr_has_acknowledged_outlives_an_outage_in_which_every_session_expires(seed: int) -> None:
    with Simulation(seed) as simulation:
        cluster = begin(simulation)
        network = simulation.network
        cluster.kill(3)
        acknowledge(cluster)
        # Broker 3 is alive, and cannot come into sync.
        network.partition(["broker3"], ["broker1", "broker2"])
        cluster.machines[3].restart()
        known = cluster.brokers[1].components.metadata_cache
        simulation.run_until(lambda: set(known.image.brokers) == set(BROKERS), 30)
        for broker_id in BROKERS:
            network.partition(["coordinator"], [f"broker{broker_id}"])
        simulation.run_for(3 * SESSION_TIMEOUT_SECONDS)
        source = simulation.world.random("mend")

        def mend(broker_id: int) -> None:
            for other in ("coordinator", *(f"broker{each}" for each in BROKERS if each != broker_id)):
                network.heal(f"broker{broker_id}", other)
                network.heal(other, f"broker{broker_id}")

        for broker_id in BROKERS:
            simulation.after(source.uniform(0.0, SPREAD_SECONDS), functools.partial(mend, broker_id))
        simulation.run_for(SPREAD_SECONDS)
        check(cluster)


@pytest.mark.parametrize("seed", SEEDS[::4])
def test_a_stale_replica_leads_once_no_member_has_come_in_time(seed: int) -> None:
    with Simulation(seed) as simulation:
        cluster = begin(simulation)
        cluster.kill(3)
        acknowledge(cluster)
        for broker_id in (1, 2):
            cluster.kill(broker_id)
        simulation.run_for(3 * SESSION_TIMEOUT_SECONDS)
        cluster.machines[3].restart()
        simulation.run_until(lambda: cluster.forms(3), 30)
        assert cluster.leaders() == {}
        simulation.run_until(lambda: len(cluster.leaders()) == len(PARTITIONS), UNCLEAN_ELECTION_DELAY_SECONDS + 1)
        assert set(cluster.leaders().values()) == {3}
