"""What a broker finds or makes in ZooKeeper before it registers."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.coordination.layout.brokers import BROKER_SEQUENCE_ID_PATH
from barnabas.coordination.layout.cluster import CLUSTER_ID_PATH, MIGRATION_PATH, ClusterId, MigrationState
from barnabas.coordination.operations import Create, Exists, GetData
from barnabas.kernel.host import Host
from barnabas.kernel.ids import Uuid
from barnabas.server.cluster_identity import PERSISTENT_PATHS, generate_broker_id, join_cluster
from barnabas.server.errors import BrokerStartError
from barnabas.testing.simulation import Simulation, simulation_seeds
from tests.unit.server.coordinated import Lines, run_on_broker, session_on, start_coordinator

SEEDS = simulation_seeds(3)


async def join(host: Host) -> str:
    session = session_on(host, Lines())
    await session.connect()
    cluster_id = await join_cluster(session, host.entropy)
    for path in PERSISTENT_PATHS:
        assert await session.perform(Exists(path)) is not None, path
    assert ClusterId.decode((await session.perform(GetData(CLUSTER_ID_PATH))).data).id == cluster_id
    await session.close()
    return cluster_id


@pytest.mark.parametrize("seed", SEEDS)
def test_all_brokers_agree_on_the_cluster_id_that_one_of_them_draws(seed: int) -> None:
    with Simulation(seed) as simulation:
        start_coordinator(simulation)
        processes = [simulation.machine(f"broker{number}").start(join) for number in range(3)]
        simulation.run_until(lambda: all(process.ended for process in processes))
        found = {process.result() for process in processes}
        assert len(found) == 1
        Uuid.from_text(found.pop())
        # And so does one that comes later.
        assert simulation.run_on(simulation.machine("late"), join) == processes[0].result()


@pytest.mark.parametrize("seed", SEEDS)
def test_makes_the_path_that_the_connection_string_ends_with(seed: int) -> None:
    async def join_below(host: Host) -> None:
        session = session_on(host, Lines(), chroot="/kafka/one")
        await session.connect()
        cluster_id = await join_cluster(session, host.entropy)
        await session.close()
        above = session_on(host, Lines())
        await above.connect()
        found = await above.perform(GetData(f"/kafka/one{CLUSTER_ID_PATH}"))
        assert ClusterId.decode(found.data).id == cluster_id
        await above.close()

    run_on_broker(seed, join_below)


@pytest.mark.parametrize("controller_id", [3000, -1])
def test_a_cluster_that_migrates_to_kraft_is_refused(controller_id: int) -> None:
    async def migrate_and_join(host: Host) -> None:
        session = session_on(host, Lines())
        await session.connect()
        await session.perform(Create(MIGRATION_PATH, MigrationState(controller_id, 1, -1, -1).encode()))
        try:
            await join_cluster(session, host.entropy)
        finally:
            await session.close()

    with Simulation(1) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("broker")
        if controller_id < 0:  # the znode of a cluster where it has not begun
            simulation.run_on(machine, migrate_and_join)
        else:
            with pytest.raises(BrokerStartError, match="migrate to KRaft"):
                simulation.run_on(machine, migrate_and_join)


@pytest.mark.parametrize("seed", SEEDS)
def test_generated_ids_are_above_the_reserved_ones_and_never_twice(seed: int) -> None:
    async def generate(host: Host) -> list[int]:
        session = session_on(host, Lines())
        await session.connect()
        await join_cluster(session, host.entropy)
        ids = await asyncio.gather(*(generate_broker_id(session, 1000) for _ in range(5)))
        assert (await session.perform(GetData(BROKER_SEQUENCE_ID_PATH))).stat.version == 5
        await session.close()
        return list(ids)

    with Simulation(seed) as simulation:
        start_coordinator(simulation)
        assert sorted(simulation.run_on(simulation.machine("broker"), generate)) == [1001, 1002, 1003, 1004, 1005]
