"""An operator spoils one znode, and the controller fails over: whatever else there is goes on, no record and no
committed offset is lost, and once the znode is mended everything works.

Production brokers on the embedded coordinator, in virtual time; every kind of znode that a broker reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

from barnabas.client.admin import Admin, NewTopic
from barnabas.client.client import Client
from barnabas.client.producer import Producer
from barnabas.client.records import OffsetAndMetadata, ProducerRecord
from barnabas.client.settings import ClientSettings, ProducerSettings
from barnabas.coordination import client as coordination
from barnabas.coordination import session_settings
from barnabas.coordination.errors import NoNodeError
from barnabas.coordination.layout.admin import (
    PREFERRED_REPLICA_ELECTION_PATH,
    REASSIGN_PARTITIONS_PATH,
    delete_topic_path,
)
from barnabas.coordination.layout.brokers import broker_id_path
from barnabas.coordination.layout.cluster import CLUSTER_ID_PATH, FEATURE_PATH, MIGRATION_PATH, PRODUCER_ID_BLOCK_PATH
from barnabas.coordination.layout.configs import CONFIG_CHANGES_PATH, DEFAULT_ENTITY, ConfigEntityType, config_path
from barnabas.coordination.layout.controller import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH
from barnabas.coordination.layout.notifications import ISR_CHANGES_PATH, LOG_DIR_EVENTS_PATH
from barnabas.coordination.layout.topics import partition_state_path, topic_path
from barnabas.kernel.host import Host
from barnabas.testing.simulation import Simulation
from barnabas.wire.topics import OFFSETS_TOPIC, TopicPartition
from tests.simulation.broker_machines import BrokerMachines

BROKERS = (1, 2, 3)
PORT = 9092
HEALTHY, SPOILED = "healthy", "spoiled"
PARTITIONS = 3
TOPICS = (HEALTHY, SPOILED, OFFSETS_TOPIC)
GROUP = "readers"
SESSION_TIMEOUT_SECONDS = 4.0
MENDED_SECONDS = 30.0
LAG_SECONDS = 3.0
GARBAGE = {"no JSON": b"\xff{garbage", "nothing": b"", "another object": b'{"version":true}'}
PROPERTIES = f"""
listeners=PLAINTEXT://:{PORT}
zookeeper.connect=coordinator:2181
zookeeper.session.timeout.ms={SESSION_TIMEOUT_SECONDS * 1000:.0f}
log.dirs=/data
offsets.topic.num.partitions=1
offsets.topic.replication.factor=3
replica.lag.time.max.ms={LAG_SECONDS * 1000:.0f}
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of znode. `path` is given the ids of the controller and of another broker."""

    path: Callable[[int, int], str]
    harms_offsets: bool = False
    """Offsets cannot be asked for while it is spoiled."""
    allows_failover: bool = True
    allows_restart: bool = True
    """A broker starts while it is spoiled."""


KINDS = {
    "a topic's assignment": Kind(lambda *_: topic_path(SPOILED)),
    "a partition's state": Kind(lambda *_: partition_state_path(SPOILED, 1)),
    "the assignment of __consumer_offsets": Kind(lambda *_: topic_path(OFFSETS_TOPIC), harms_offsets=True),
    "the state of __consumer_offsets": Kind(lambda *_: partition_state_path(OFFSETS_TOPIC, 0), harms_offsets=True),
    "a broker's registration": Kind(lambda _, other: broker_id_path(other)),
    "a broker that is none": Kind(lambda *_: broker_id_path(0) + "x"),
    "a topic's config": Kind(lambda *_: config_path(ConfigEntityType.TOPICS, SPOILED)),
    "a broker's config": Kind(lambda _, other: config_path(ConfigEntityType.BROKERS, str(other))),
    "the brokers' config": Kind(lambda *_: config_path(ConfigEntityType.BROKERS, DEFAULT_ENTITY)),
    "an announcement of a config": Kind(lambda *_: f"{CONFIG_CHANGES_PATH}/config_change_0000000900"),
    "an announcement that is none": Kind(lambda *_: f"{CONFIG_CHANGES_PATH}/garbage"),
    "the controller": Kind(lambda *_: CONTROLLER_PATH),
    "the controller's epoch": Kind(lambda *_: CONTROLLER_EPOCH_PATH, allows_failover=False),
    "the features": Kind(lambda *_: FEATURE_PATH),
    "the block of producer ids": Kind(lambda *_: PRODUCER_ID_BLOCK_PATH),
    "the deletion of a topic that is none": Kind(lambda *_: delete_topic_path("no topic")),
    "a request for reassignments": Kind(lambda *_: REASSIGN_PARTITIONS_PATH),
    "a request for preferred leaders": Kind(lambda *_: PREFERRED_REPLICA_ELECTION_PATH),
    "a change of ISRs": Kind(lambda *_: f"{ISR_CHANGES_PATH}/isr_change_0000000900"),
    "an event of log directories": Kind(lambda *_: f"{LOG_DIR_EVENTS_PATH}/log_dir_event_0000000900"),
    "the cluster's id": Kind(lambda *_: CLUSTER_ID_PATH, allows_restart=False),
    "the state of a migration": Kind(lambda *_: MIGRATION_PATH, allows_restart=False),
}

# JSON as Kafka writes it, with what no cluster has: what is added to it, or looked up by it, must not fail either.
IMPOSSIBLE = {
    "a topic's assignment": {
        "a partition above 32 bits": b'{"partitions":{"4294967296":[1,2,3]},"version":3}',
        "brokers below zero": b'{"partitions":{"0":[-7,-2147483648],"1":[2,3,1],"2":[3,1,2]},"version":3}',
    },
    "a partition's state": {
        "the last leader epoch": b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":2147483647,"isr":[1]}',
        "a leader epoch below zero": b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":-9,"isr":[1]}',
        "a leader below zero": b'{"controller_epoch":1,"leader":-9,"version":1,"leader_epoch":900,"isr":[1,2,3]}',
        "a later controller": b'{"controller_epoch":2147483647,"leader":1,"version":1,"leader_epoch":9,"isr":[1]}',
    },
    "a broker's registration": {
        "no endpoint": b'{"version":5,"endpoints":[],"timestamp":"1"}',
    },
    "the controller": {
        "a broker that is not there": b'{"version":2,"brokerid":2147483647,"timestamp":"1","kraftControllerEpoch":-1}',
    },
    "the controller's epoch": {
        "the last": b"2147483647",
    },
    "the block of producer ids": {
        "the last": b'{"version":1,"broker":1,"block_start":"9223372036854774808","block_end":"9223372036854775807"}',
    },
    "a topic's config": {
        "numbers above 64 bits": b'{"version":1,"config":{"retention.ms":"99999999999999999999","segment.bytes":"-4"}}',
    },
    "a broker's config": {
        "numbers above 64 bits": b'{"version":1,"config":{"num.io.threads":"99999999999999999999"}}',
    },
    "a request for reassignments": {
        "no such partition": b'{"version":1,"partitions":[{"topic":"spoiled","partition":2147483647,"replicas":[1]}]}',
        "no such broker": b'{"version":1,"partitions":[{"topic":"spoiled","partition":0,"replicas":[-1,2147483647]}]}',
    },
    "a request for preferred leaders": {
        "no such partition": b'{"version":1,"partitions":[{"topic":"spoiled","partition":2147483647}]}',
    },
    "a change of ISRs": {
        "no such partition": b'{"version":1,"partitions":[{"topic":"no topic","partition":-1}]}',
    },
    "an event of log directories": {"no such broker": b'{"version":1,"broker":2147483647,"event":1}'},
    "an announcement of a config": {
        "no such entity": b'{"version":2,"entity_path":"brokers/2147483648"}',
        "no such topic": b'{"version":2,"entity_path":"topics/../x"}',
    },
}


class Cluster(BrokerMachines):
    """The machines, and the brokers that run on them now."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, BROKERS, lambda broker_id: f"broker.id={broker_id}\n{PROPERTIES}")

    def kill(self, broker_id: int) -> None:
        self.machines[broker_id].crash()
        self.brokers.pop(broker_id, None)

    def cut_off(self, broker_id: int) -> None:
        """From the other brokers; its session lives."""
        others = [f"broker{each}" for each in BROKERS if each != broker_id]
        self.simulation.network.partition([f"broker{broker_id}"], others)

    def controller(self) -> int | None:
        active = [broker_id for broker_id, broker in self.brokers.items() if broker.components.controller.is_active]
        return active[0] if len(active) == 1 else None

    def is_known(self, broker_id: int) -> bool:
        """Whether that broker knows all topics whole."""
        topics = self.brokers[broker_id].components.metadata_cache.image.topics
        return all(
            topic in topics and len(topics[topic].partitions) == (1 if topic == OFFSETS_TOPIC else PARTITIONS)
            for topic in TOPICS
        )

    def is_whole(self) -> bool:
        """All run, and know all partitions, each led and with all replicas in sync."""
        images = [broker.components.metadata_cache.image for broker in self.brokers.values()]
        return (
            set(self.brokers) == set(BROKERS)
            and self.controller() is not None
            and all(map(self.is_known, BROKERS))
            and all(
                set(image.brokers) == set(BROKERS)
                and all(
                    partition.leader in BROKERS and set(partition.isr) == set(BROKERS)
                    for topic in TOPICS
                    for partition in image.topics[topic].partitions.values()
                )
                for image in images
            )
        )

    async def on_client(self, host: Host, use: Callable[[Client], object], first: Iterable[int]) -> None:
        settings = ClientSettings(bootstrap_servers=tuple(f"broker{broker_id}:{PORT}" for broker_id in first))
        async with Client(host, settings, logging.getLogger("test")) as client:
            await use(client)  # type: ignore[misc]

    def use(self, use: Callable[[Client], object], first: Iterable[int] = BROKERS) -> None:
        """`first` are those of whom one is asked for the others."""
        self.simulation.run_on(self.simulation.machine("client"), lambda host: self.on_client(host, use, first), 60)

    def write(self, path: str, data: bytes | None) -> bytes | None:
        """Writes a znode as an operator does, and returns what it held: None deletes it, or says that none was."""
        before: list[bytes | None] = []

        async def write(host: Host) -> None:
            settings = session_settings.ClientSettings("coordinator:2181", 10_000)
            client = coordination.Client(host, settings)
            await client.connect()
            try:
                try:
                    before.append((await client.get_data(path)).data or b"")
                except NoNodeError:
                    before.append(None)
                if data is None:
                    with contextlib.suppress(NoNodeError):  # who reads announcements deletes them
                        await client.delete(path)
                elif before[0] is None:
                    await client.create(path, data)
                else:
                    await client.set_data(path, data)
            finally:
                await client.close()

        self.simulation.run_on(self.simulation.machine("operator"), write)
        return before[0]


async def begin(client: Client) -> None:
    async with Admin(client) as admin:
        await admin.create_topics(
            [NewTopic(name, PARTITIONS, 3, configs={"min.insync.replicas": "1"}) for name in (HEALTHY, SPOILED)]
        )
        await produce(client, HEALTHY, SPOILED)
        offsets = {
            TopicPartition(topic, number): OffsetAndMetadata(1) for topic in (HEALTHY, SPOILED) for number in range(3)
        }
        await admin.alter_group_offsets(GROUP, offsets)


async def produce(client: Client, *topics: str) -> None:
    async with Producer(client, ProducerSettings(delivery_timeout_ms=20_000, idempotent=False)) as producer:
        await asyncio.gather(
            *(
                producer.send_and_wait(ProducerRecord(topic, b"value", partition=number))
                for topic in topics
                for number in range(PARTITIONS)
            )
        )


async def produce_one(client: Client) -> None:
    """To the partition whose state is spoiled; its leader alone acknowledges it."""
    async with Producer(client, ProducerSettings(acks=1, idempotent=False)) as producer:
        await producer.send_and_wait(ProducerRecord(SPOILED, b"value", partition=1))


async def check_offsets(client: Client) -> None:
    async with Admin(client) as admin:
        found = await admin.list_group_offsets(GROUP)
    assert {partition: found[partition].offset for partition in sorted(found)} == {
        TopicPartition(topic, number): 1 for topic in (HEALTHY, SPOILED) for number in range(PARTITIONS)
    }


BY_NIGHT = pytest.mark.night("a second for each; by day a znode is spoiled in one of these three ways")
# By day each znode is spoiled in one of the ways that all have, in turn, and in all that are its own.
CASES = [
    pytest.param(
        name,
        garbage,
        id=f"{name}: {called}",
        marks=BY_NIGHT if called in GARBAGE and (number - turn) % len(GARBAGE) else (),
    )
    for number, name in enumerate(KINDS)
    for turn, (called, garbage) in enumerate({**GARBAGE, **IMPOSSIBLE.get(name, {})}.items())
]


@pytest.mark.parametrize(("name", "garbage"), CASES)
def test_a_spoiled_znode_harms_itself_only_and_is_recovered_from(name: str, garbage: bytes) -> None:
    kind = KINDS[name]
    with Simulation(1) as simulation:
        cluster = Cluster(simulation)
        simulation.run_until(lambda: cluster.controller() is not None and set(cluster.brokers) == set(BROKERS), 30)
        cluster.use(begin)
        simulation.run_until(cluster.is_whole, 30)
        controller = cluster.controller()
        assert controller is not None
        other = next(broker_id for broker_id in BROKERS if broker_id != controller)
        path = kind.path(controller, other)
        before = cluster.write(path, garbage)
        simulation.run_for(1.0)
        witnesses = list(BROKERS)
        if kind.allows_failover:
            cluster.kill(controller)
            witnesses.remove(controller)
            simulation.run_until(lambda: cluster.controller() is not None, 30)
            if kind.allows_restart:
                cluster.machines[controller].restart()
            simulation.run_for(2 * SESSION_TIMEOUT_SECONDS)
        assert all(map(cluster.is_known, witnesses)), "nobody forgets what cannot be read"
        for broker_id in sorted(cluster.brokers):  # none of them sends clients astray
            cluster.use(lambda client: produce(client, HEALTHY), first=[broker_id])
        if not kind.harms_offsets:
            cluster.use(check_offsets)
        if path != CONTROLLER_PATH:  # the one that was spoiled has gone with its session
            cluster.write(path, before)
        if kind.allows_failover and not kind.allows_restart:
            cluster.machines[controller].restart()
        simulation.run_until(cluster.is_whole, MENDED_SECONDS)
        cluster.use(lambda client: produce(client, HEALTHY, SPOILED))
        cluster.use(check_offsets)


@pytest.mark.parametrize("noticed", [False, True], ids=["mended at once", "mended after it was noticed"])
def test_a_leader_changes_its_isr_again_after_its_state_was_spoiled_and_mended(noticed: bool) -> None:
    with Simulation(1) as simulation:
        cluster = Cluster(simulation)
        simulation.run_until(lambda: cluster.controller() is not None and set(cluster.brokers) == set(BROKERS), 30)
        cluster.use(begin)
        simulation.run_until(cluster.is_whole, 30)
        controller = cluster.controller()
        assert controller is not None
        partition = cluster.brokers[controller].components.metadata_cache.image.topics[SPOILED].partitions[1]
        follower = next(broker_id for broker_id in BROKERS if broker_id not in {controller, partition.leader})
        path = partition_state_path(SPOILED, 1)
        before = cluster.write(path, b"{garbage")
        if noticed:
            cluster.cut_off(follower)
            cluster.use(produce_one)
            simulation.run_for(2 * LAG_SECONDS)
            cluster.simulation.network.heal_all()
            simulation.run_for(2 * LAG_SECONDS)
        cluster.write(path, before)
        simulation.run_for(2 * MENDED_SECONDS)
        cluster.cut_off(follower)
        cluster.use(produce_one)

        def isr() -> set[int]:
            image = cluster.brokers[controller].components.metadata_cache.image
            return set(image.topics[SPOILED].partitions[1].isr)

        simulation.run_until(lambda: follower not in isr(), MENDED_SECONDS)
        simulation.network.heal_all()
        simulation.run_until(cluster.is_whole, MENDED_SECONDS)


async def create_another(client: Client) -> None:
    async with Admin(client) as admin:
        await admin.create_topics([NewTopic("another", 1, 3)], 20_000)


@pytest.mark.parametrize("happens", ["nothing", "the controller dies", "all start anew"])
def test_the_epoch_goes_on_where_somebody_deletes_its_znode(happens: str) -> None:
    """Brokers obey no lesser epoch, and controllers believe no state of a greater one."""
    with Simulation(1) as simulation:
        cluster = Cluster(simulation)
        simulation.run_until(lambda: cluster.controller() is not None and set(cluster.brokers) == set(BROKERS), 30)
        cluster.use(begin)
        for _ in range(2):
            simulation.run_until(cluster.is_whole, 30)
            cluster.write(CONTROLLER_PATH, None)
            simulation.run_for(3.0)
        simulation.run_until(cluster.is_whole, 30)
        controller = cluster.controller()
        assert controller is not None
        assert cluster.brokers[controller].components.controller.epoch == 3
        doomed = {"nothing": (), "the controller dies": (controller,), "all start anew": BROKERS}[happens]
        cluster.write(CONTROLLER_EPOCH_PATH, None)
        for broker_id in doomed:
            cluster.kill(broker_id)
        simulation.run_for(2 * SESSION_TIMEOUT_SECONDS)
        for broker_id in doomed:
            cluster.machines[broker_id].restart()
        simulation.run_until(cluster.is_whole, MENDED_SECONDS)
        successor = cluster.controller()
        assert successor is not None
        # What all have forgotten is in the states, of which the first controller has written most.
        assert cluster.brokers[successor].components.controller.epoch >= (2 if happens == "all start anew" else 4)
        cluster.use(create_another)
        cluster.use(lambda client: produce(client, HEALTHY, SPOILED))
        cluster.use(check_offsets)


@pytest.mark.parametrize("of_controller", [False, True])
def test_a_broker_whose_registration_somebody_deletes_registers_again(of_controller: bool) -> None:
    """Without it nobody counts on the broker, which goes on as the leader of what others lead."""
    with Simulation(1) as simulation:
        cluster = Cluster(simulation)
        simulation.run_until(lambda: cluster.controller() is not None and set(cluster.brokers) == set(BROKERS), 30)
        cluster.use(begin)
        simulation.run_until(cluster.is_whole, 30)
        controller = cluster.controller()
        assert controller is not None
        broker_id = controller if of_controller else next(each for each in BROKERS if each != controller)
        registration = cluster.brokers[broker_id].components.registration
        for _ in range(2):
            before = registration.broker_epoch
            cluster.write(broker_id_path(broker_id), None)
            simulation.run_for(1.0)
            assert registration.broker_epoch > before
            simulation.run_until(cluster.is_whole, MENDED_SECONDS)
            cluster.use(lambda client: produce(client, HEALTHY, SPOILED), first=[broker_id])
        assert cluster.controller() == controller
        # A broker that stops is not registered again.
        cluster.kill(broker_id)
        simulation.run_for(3 * SESSION_TIMEOUT_SECONDS)
        assert cluster.write(broker_id_path(broker_id), None) is None
