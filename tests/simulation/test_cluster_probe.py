"""Whether a cluster can be used, as `barnabas up` asks it: brokers in virtual time."""

from __future__ import annotations

from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordinators.shard import ShardState
from barnabas.kernel.host import Host
from barnabas.server.broker import Broker
from barnabas.server.cluster_probe import ClusterProbe
from barnabas.server.entry import broker_main, coordinator_main
from barnabas.testing.simulation import Simulation
from barnabas.wire.topics import OFFSETS_TOPIC
from tests.simulation.test_broker_start import PORT, properties

ADDRESSES = [f"broker{broker_id}:{PORT}" for broker_id in (1, 2)]
PARTITIONS = 4


def start(simulation: Simulation, brokers: dict[int, Broker], replicas: int = 1) -> None:
    simulation.machine("coordinator").start(coordinator_main(CoordinatorConfig("/data", host="0.0.0.0")))
    offsets = f"offsets.topic.num.partitions={PARTITIONS}\noffsets.topic.replication.factor={replicas}"
    for broker_id in (1, 2):
        simulation.machine(f"broker{broker_id}").start(
            broker_main(
                f"{properties(broker_id)}\n{offsets}",
                on_started=lambda broker: brokers.update({broker.broker_id: broker}),
            )
        )


def test_waits_until_all_brokers_know_each_other_and_has_the_offsets_topic_made() -> None:
    brokers: dict[int, Broker] = {}

    async def probe(host: Host) -> bool:
        asked = ClusterProbe(host, ADDRESSES)
        await asked.until_formed()
        for broker in brokers.values():
            assert set(broker.components.metadata_cache.image.brokers) == {1, 2}
            assert OFFSETS_TOPIC not in broker.components.metadata_cache.image.topics
        return await asked.until_groups_can_form(10)

    with Simulation(1) as simulation:
        start(simulation, brokers)
        assert simulation.run_on(simulation.machine("client"), probe)
        image = brokers[1].components.metadata_cache.image
        assert len(image.topics[OFFSETS_TOPIC].partitions) == PARTITIONS


def test_waits_while_a_broker_reads_groups_that_it_coordinates() -> None:
    """A client of any group is refused nothing afterwards."""
    brokers: dict[int, Broker] = {}

    async def probe(host: Host) -> list[bool]:
        asked = ClusterProbe(host, ADDRESSES)
        await asked.until_formed()
        found = [await asked.until_groups_can_form(10)]
        for state in (ShardState.LOADING, ShardState.ACTIVE):
            for broker in brokers.values():
                for shard in broker.components.coordinators.groups._runtime._shards.values():
                    shard.state = state
            found.append(await asked.until_groups_can_form(2))
        return found

    with Simulation(1) as simulation:
        start(simulation, brokers)
        assert simulation.run_on(simulation.machine("client"), probe) == [True, False, True]


def test_gives_up_in_time_where_the_groups_partition_has_no_leader() -> None:
    brokers: dict[int, Broker] = {}

    async def make(host: Host) -> bool:
        asked = ClusterProbe(host, ADDRESSES)
        await asked.until_formed()
        return await asked.until_groups_can_form(10)

    with Simulation(1) as simulation:
        start(simulation, brokers)
        client = simulation.machine("client")
        assert simulation.run_on(client, make)
        leader = brokers[1].components.coordinators.groups.partition_for("barnabas-up")
        topic = brokers[1].components.metadata_cache.image.topics[OFFSETS_TOPIC]
        lost = topic.partitions[leader].leader
        other = 3 - lost
        simulation.machine(f"broker{lost}").crash()
        image = brokers[other].components.metadata_cache
        simulation.run_until(lambda: set(image.image.brokers) == {other}, 30)

        async def ask(host: Host) -> tuple[bool, float]:
            began = host.loop.time()
            found = await ClusterProbe(host, [f"broker{other}:{PORT}"]).until_groups_can_form(3)
            return found, host.loop.time() - began

        found, took = simulation.run_on(client, ask)
    assert not found
    assert 3 <= took < 3.1


def test_tells_a_topic_that_cannot_be_made_from_one_without_leaders() -> None:
    async def probe(host: Host) -> tuple[bool, bool]:
        asked = ClusterProbe(host, ADDRESSES)
        await asked.until_formed()
        return await asked.until_groups_can_form(2), await asked.has_offsets_topic()

    for replicas in (1, 3):
        with Simulation(1) as simulation:
            start(simulation, {}, replicas)
            found = simulation.run_on(simulation.machine("client"), probe)
        assert found == ((True, True) if replicas == 1 else (False, False))
