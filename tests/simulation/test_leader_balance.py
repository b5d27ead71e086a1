"""The clock of the controller that has leadership go back to the preferred replicas."""

from __future__ import annotations

import pytest

from barnabas.coordination.client import Client
from barnabas.coordination.layout.admin import PREFERRED_REPLICA_ELECTION_PATH, PreferredReplicaElection
from barnabas.coordination.layout.topics import (
    PartitionState,
    ReplicaAssignment,
    TopicAssignment,
    partition_state_path,
    topic_path,
)
from barnabas.kernel.host import Host
from barnabas.kernel.ids import Uuid
from barnabas.kernel.metrics import MetricName, Timing
from barnabas.testing.simulation import Simulation
from barnabas.wire.topics import TopicPartition
from tests.simulation.controller_cluster import Cluster
from tests.simulation.scripted_broker import SESSION_TIMEOUT_MS
from tests.simulation.test_controller_office import with_client

EXPIRY_SECONDS = SESSION_TIMEOUT_MS / 1000 + 3.0
INTERVAL_SECONDS = 60
FIRST_CHECK_SECONDS = 5.0
PARTITIONS = 12


def led_by_all(broker_ids: list[int]) -> TopicAssignment:
    """Each broker is the preferred leader of as many partitions, and the first one is never last."""
    first, second, third = broker_ids
    orders = [(first, second, third), (second, first, third), (third, first, second)]
    assigned = {number: ReplicaAssignment(orders[number % 3]) for number in range(PARTITIONS)}
    return TopicAssignment(assigned, Uuid(b"t" * 16))


async def states(client: Client) -> list[PartitionState]:
    paths = [partition_state_path("t", number) for number in range(PARTITIONS)]
    return [PartitionState.decode((await client.get_data(path)).data, path) for path in paths]


def is_settled(cluster: Cluster) -> bool:
    async def read(client: Client, _host: Host) -> bool:
        return all(len(state.isr) == 3 for state in await states(client))

    return bool(with_client(cluster, read))


def leaders(cluster: Cluster) -> list[int]:
    async def read(client: Client, _host: Host) -> list[int]:
        return [state.leader for state in await states(client)]

    found: list[int] = with_client(cluster, read)
    return found


def checks(cluster: Cluster, broker_id: int, name: str = "AutoLeaderBalanceRateAndTimeMs") -> int:
    timing = cluster.running[broker_id].metrics.get(MetricName("kafka.controller", "ControllerStats", name))
    assert isinstance(timing, Timing)
    return timing.durations_ms.count


def without_balance(cluster: Cluster) -> tuple[int, list[int]]:
    """The controller, and the preferred leaders of a topic of which another broker has lost what it led."""
    active = cluster.elect()
    others = [broker_id for broker_id in cluster.brokers if broker_id != active]
    assignment = led_by_all([active, *others])

    async def create(client: Client, _host: Host) -> None:
        await client.create(topic_path("t"), assignment.encode())

    with_client(cluster, create)
    cluster.simulation.run_for(2.0)
    preferred = [replicas.replicas[0] for replicas in assignment.partitions.values()]
    assert leaders(cluster) == preferred
    cluster.brokers[others[0]].crash()
    cluster.simulation.run_for(EXPIRY_SECONDS)
    assert others[0] not in leaders(cluster)
    cluster.start(others[0])
    cluster.simulation.run_for(5.0)
    assert is_settled(cluster)
    return active, preferred


@pytest.mark.parametrize("seed", [1, 2])
def test_leadership_goes_back_after_the_interval_and_not_before(seed: int) -> None:
    with Simulation(seed) as simulation:
        cluster = Cluster(simulation, INTERVAL_SECONDS)
        active = cluster.elect()
        began = simulation.now
        simulation.run_for(FIRST_CHECK_SECONDS - 1.0)
        assert checks(cluster, active) == 0
        simulation.run_for(2.0)
        assert checks(cluster, active) == 1
        active, preferred = without_balance(cluster)
        simulation.run_for(began + FIRST_CHECK_SECONDS + INTERVAL_SECONDS - 2.0 - simulation.now)
        assert leaders(cluster) != preferred
        simulation.run_for(5.0)
        assert leaders(cluster) == preferred
        assert checks(cluster, active) == 2


def test_a_controller_that_takes_over_looks_soon() -> None:
    with Simulation(3) as simulation:
        cluster = Cluster(simulation, INTERVAL_SECONDS)
        active, preferred = without_balance(cluster)
        cluster.brokers[active].crash()
        simulation.run_until(lambda: bool(set(cluster.active()) - {active}), EXPIRY_SECONDS)
        (second,) = cluster.active()
        cluster.start(active)
        simulation.run_for(FIRST_CHECK_SECONDS + 1.0)
        assert checks(cluster, second) == 1
        assert leaders(cluster) == preferred


def test_nothing_goes_back_by_itself_where_that_is_off_and_all_of_it_when_somebody_asks() -> None:
    with Simulation(4) as simulation:
        cluster = Cluster(simulation)
        active, preferred = without_balance(cluster)
        simulation.run_for(700.0)
        assert leaders(cluster) != preferred
        assert checks(cluster, active) == 0

        async def ask(client: Client, _host: Host) -> None:
            partitions = tuple(TopicPartition("t", number) for number in range(PARTITIONS))
            await client.create(PREFERRED_REPLICA_ELECTION_PATH, PreferredReplicaElection(partitions).encode())

        for count in (1, 2):
            with_client(cluster, ask)
            simulation.run_for(1.0)
            assert leaders(cluster) == preferred
            # One for the request, and one for its deletion.
            assert checks(cluster, active, "ManualLeaderBalanceRateAndTimeMs") == 2 * count
