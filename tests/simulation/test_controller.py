"""Three controllers over the embedded coordinator: at most one per epoch, a leader for every partition that can have
one, and deletions that end, whatever crashes, pauses, expires or is cut off on the way.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from barnabas.controller.topic_assignment import BrokerRack, assign_replicas
from barnabas.coordination.client import Client
from barnabas.coordination.errors import CoordinationError, NodeExistsError, NoNodeError
from barnabas.coordination.layout.admin import DELETE_TOPICS_PATH, delete_topic_path
from barnabas.coordination.layout.controller import CONTROLLER_PATH
from barnabas.coordination.layout.topics import (
    TOPICS_PATH,
    PartitionState,
    ReplicaAssignment,
    TopicAssignment,
    partition_state_path,
    topic_path,
)
from barnabas.kernel.host import Host
from barnabas.kernel.ids import Uuid
from barnabas.kernel.timers import Timers
from barnabas.testing.faults import FaultKind, FaultSchedule, Nemesis
from barnabas.testing.simulated_host import Main
from barnabas.testing.simulation import Simulation, SimulationLimitError, simulation_seeds
from barnabas.wire.topics import TopicPartition
from tests.simulation.controller_cluster import BROKERS, Cluster

TOPICS = tuple(f"topic-{number}" for number in range(6))
HEAL_SECONDS = 90.0
BALANCE_SECONDS = 4


async def create_topic(client: Client, host: Host, topic: str, partitions: int, replication_factor: int) -> None:
    brokers = [BrokerRack(broker_id) for broker_id in BROKERS]
    assigned = assign_replicas(brokers, partitions, replication_factor, host.random)
    assignment = TopicAssignment(
        {partition: ReplicaAssignment(replicas) for partition, replicas in assigned.items()},
        Uuid.generate(host.entropy),
    )
    await client.create(topic_path(topic), assignment.encode())


async def add_partition(client: Client, host: Host, topic: str) -> None:
    found = await client.get_data(topic_path(topic))
    before = TopicAssignment.decode(found.data, topic_path(topic))
    added = {len(before.partitions): ReplicaAssignment((host.random.choice(BROKERS),))}
    after = TopicAssignment({**before.partitions, **added}, before.topic_id)
    await client.set_data(topic_path(topic), after.encode(), found.stat.version)


async def change_something(client: Client, host: Host, source: random.Random, cluster: Cluster) -> None:
    topic = source.choice(TOPICS)
    try:
        match source.choice(["create", "create", "delete", "add"]):
            case "create":
                await create_topic(client, host, topic, source.randint(1, 4), source.randint(1, 3))
            case "delete":
                await client.get_data(topic_path(topic))
                await client.create(delete_topic_path(topic), None)
                cluster.seen.count("deletions")
            case "add":
                await add_partition(client, host, topic)
    except (NodeExistsError, NoNodeError):
        pass


def administrator(cluster: Cluster) -> Main:
    """Creates and deletes topics, and adds partitions, until it is killed."""

    async def main(host: Host) -> None:
        timers = Timers(host.loop)
        while True:
            client = Client(host, cluster.settings)
            try:
                await client.connect()
                while True:
                    await timers.sleep(host.random.uniform(50, 1_500))
                    await change_something(client, host, host.random, cluster)
            except CoordinationError:
                await client.close()

    return main


@dataclass(slots=True)
class Znodes:
    """What ZooKeeper holds when all is quiet."""

    assignments: dict[str, TopicAssignment] = field(default_factory=dict)
    states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    versions: dict[TopicPartition, int] = field(default_factory=dict)

    def faults(self, cluster: Cluster) -> list[str]:
        """What is not as it must be in the end: every partition has all its replicas in sync, and every broker knows
        and has what ZooKeeper says, and nothing else.
        """
        found = [f"controllers: {cluster.active()}"] * (len(cluster.active()) != 1)
        for topic, assignment in self.assignments.items():
            for number, replicas in assignment.partitions.items():
                state = self.states[TopicPartition(topic, number)]
                if state.leader not in state.isr or set(state.isr) != set(replicas.replicas):
                    found.append(f"{topic}-{number} on {replicas.replicas}: {state}")
        leaders = {partition: state.leader for partition, state in self.states.items()}
        for broker_id, broker in cluster.running.items():
            if not cluster.brokers[broker_id].running or broker.replicas.metadata != leaders:
                found.append(f"broker {broker_id} does not know who leads")
            hosted = {
                TopicPartition(topic, number): assignment.topic_id
                for topic, assignment in self.assignments.items()
                for number, replicas in assignment.partitions.items()
                if broker_id in replicas.replicas
            }
            if broker.replicas.disk.replicas != hosted:
                found.append(f"broker {broker_id} has other replicas than it should have")
            led = {partition: state.leader_epoch for partition, state in broker.replicas.led.items()}
            if led != {
                partition: state.leader_epoch for partition, state in self.states.items() if state.leader == broker_id
            }:
                found.append(f"broker {broker_id} leads what it should not, or not what it should")
        return found


async def read_znodes(client: Client) -> Znodes | None:
    """None while something is being deleted, or changes."""
    await client.sync()
    if (await client.get_children(DELETE_TOPICS_PATH)).names:
        return None
    if await client.exists(CONTROLLER_PATH) is None:
        return None
    znodes = Znodes()
    for topic in sorted((await client.get_children(TOPICS_PATH)).names):
        found = await client.get_data(topic_path(topic))
        znodes.assignments[topic] = TopicAssignment.decode(found.data, topic_path(topic))
        for number in znodes.assignments[topic].partitions:
            partition = TopicPartition(topic, number)
            try:
                state = await client.get_data(partition_state_path(*partition))
            except NoNodeError:
                return None
            znodes.states[partition] = PartitionState.decode(state.data, partition_state_path(*partition))
            znodes.versions[partition] = state.stat.version
    return znodes


def observer(cluster: Cluster, faults: list[str]) -> Main:
    """Looks until nothing is wrong, twice in a row with some seconds between."""

    async def main(host: Host) -> None:
        timers = Timers(host.loop)
        client = Client(host, cluster.settings)
        await client.connect()
        quiet = 0
        while quiet < 2:
            znodes = await read_znodes(client)
            faults[:] = ["something is being deleted or made"] if znodes is None else znodes.faults(cluster)
            quiet = 0 if faults else quiet + 1
            await timers.sleep(5_000 if quiet else 200)

    return main


def wait_until_healed(cluster: Cluster) -> None:
    faults: list[str] = []
    process = cluster.simulation.machine("observer").start(observer(cluster, faults))
    try:
        cluster.simulation.run_until(lambda: not process.running, HEAL_SECONDS)
    except SimulationLimitError as error:
        raise AssertionError(f"not healed: {faults}") from error
    assert cluster.seen.alarming_lines == []


FAULTS = FaultSchedule(
    {
        FaultKind.CRASH: 6.0,
        FaultKind.POWER: 2.0,
        FaultKind.PAUSE: 4.0,
        FaultKind.PARTITION: 2.0,
        FaultKind.CUT: 3.0,
        FaultKind.RESET: 8.0,
        FaultKind.SLOW_DISK: 1.0,
    },
    down_at_most=2,
)


@pytest.mark.parametrize("seed", simulation_seeds(15))
def test_whatever_fails_there_is_one_controller_every_partition_is_led_and_deletions_end(seed: int) -> None:
    with Simulation(seed) as simulation:
        cluster = Cluster(simulation, BALANCE_SECONDS if seed % 2 else None)
        cluster.elect()
        machine = simulation.machine("administrator")
        machine.start(administrator(cluster))
        nemesis = Nemesis(simulation, [cluster.coordinator, *cluster.brokers.values()], FAULTS)
        nemesis.start()
        cluster.shut_down_some(45.0)
        simulation.run_for(60.0)
        nemesis.stop()
        machine.crash()
        wait_until_healed(cluster)
