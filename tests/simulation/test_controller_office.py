"""The office of the controller: who gets it, who loses it, and what those who ask are told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from barnabas.controller.effects import Steps, give_way
from barnabas.controller.term import ControllerTerm
from barnabas.coordination.client import Client
from barnabas.coordination.layout.cluster import PRODUCER_ID_BLOCK_PATH
from barnabas.coordination.layout.controller import (
    CONTROLLER_EPOCH_PATH,
    CONTROLLER_PATH,
    ControllerRegistration,
    decode_controller_epoch,
    encode_controller_epoch,
)
from barnabas.kernel.host import Host
from barnabas.kernel.metrics import Gauge, MetricName, Timing
from barnabas.testing.simulation import Simulation
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import AlterPartitionRequest
from barnabas.wire.topics import TopicPartition
from tests.simulation.controller_cluster import Cluster
from tests.simulation.scripted_broker import SESSION_TIMEOUT_MS, ScriptedBroker

EXPIRY_SECONDS = SESSION_TIMEOUT_MS / 1000 + 3.0


def with_client(cluster: Cluster, work: Callable[[Client, Host], Awaitable[Any]]) -> Any:
    async def main(host: Host) -> Any:
        client = Client(host, cluster.settings)
        await client.connect()
        try:
            return await work(client, host)
        finally:
            await client.close()

    return cluster.simulation.run_on(cluster.simulation.machine("admin"), main)


async def read_office(client: Client, _host: Host) -> tuple[int, int]:
    """Who the controller is, and its epoch."""
    registration = ControllerRegistration.decode((await client.get_data(CONTROLLER_PATH)).data)
    return registration.broker_id, decode_controller_epoch((await client.get_data(CONTROLLER_EPOCH_PATH)).data)


def gauge(broker: ScriptedBroker, name: str) -> float:
    found = broker.metrics.get(MetricName("kafka.controller", "KafkaController", name))
    assert isinstance(found, Gauge)
    return found.read()


def test_one_of_three_is_elected_and_the_others_know_it() -> None:
    with Simulation(1) as simulation:
        cluster = Cluster(simulation)
        active = cluster.elect()
        simulation.run_for(1.0)
        assert cluster.active() == [active]
        assert with_client(cluster, read_office) == (active, 1)
        for broker_id, broker in cluster.running.items():
            assert broker.controller.controller_id == active
            assert broker.controller.epoch == (1 if broker_id == active else 0)
            assert gauge(broker, "ActiveControllerCount") == (broker_id == active)
            assert gauge(broker, "ActiveBrokerCount") == (3 if broker_id == active else 0)
        timing = cluster.running[active].metrics.get(
            MetricName("kafka.controller", "ControllerStats", "ControllerChangeRateAndTimeMs")
        )
        assert isinstance(timing, Timing)


STATS = [
    *("AutoLeaderBalance", "ControlledShutdown", "ControllerChange", "ControllerShutdown", "IsrChange"),
    *("LeaderAndIsrResponseReceived", "LeaderElection", "ListPartitionReassignment", "LogDirChange"),
    *("ManualLeaderBalance", "PartitionReassignment", "TopicChange", "TopicDeletion"),
    *("TopicUncleanLeaderElectionEnable", "UncleanLeaderElectionEnable", "UpdateFeatures"),
]
GAUGES = [
    *("ActiveBrokerCount", "ActiveControllerCount", "ControllerState", "FencedBrokerCount", "GlobalPartitionCount"),
    *("GlobalTopicCount", "OfflinePartitionsCount", "PreferredReplicaImbalanceCount"),
    *("ReplicasIneligibleToDeleteCount", "ReplicasToDeleteCount", "TopicsIneligibleToDeleteCount"),
    *("TopicsToDeleteCount", "ZkMigrationState"),
]
MBEANS = [
    "type=ControllerChannelManager,name=TotalQueueSize",
    *(f"type=ControllerEventManager,name={name}" for name in ("EventQueueSize", "EventQueueTimeMs")),
    *(f"type=ControllerStats,name={name}RateAndTimeMs" for name in STATS),
    "type=ControllerStats,name=UncleanLeaderElectionsPerSec",
    *(f"type=KafkaController,name={name}" for name in GAUGES),
]
"""What JmxTool names of `kafka.controller:*` at a broker of Apache Kafka 3.9.1, besides those of its channels."""


def test_the_metrics_are_those_of_kafkas_controller_and_no_others() -> None:
    with Simulation(1) as simulation:
        cluster = Cluster(simulation)
        active = cluster.elect()
        simulation.run_for(1.0)
        channels = [
            f"type=ControllerChannelManager,name={name},broker-id={broker_id}"
            for name in ("QueueSize", "RequestRateAndQueueTimeMs")
            for broker_id in cluster.running
        ]
        for broker_id, broker in cluster.running.items():
            names = sorted(str(name) for name, _ in broker.metrics if name.group == "kafka.controller")
            expected = [*MBEANS, *channels] if broker_id == active else MBEANS
            assert names == sorted(f"kafka.controller:{name}" for name in expected)


def test_when_the_controller_dies_another_one_takes_over_in_the_next_epoch() -> None:
    with Simulation(2) as simulation:
        cluster = Cluster(simulation)
        first = cluster.elect()
        simulation.run_for(1.0)
        cluster.brokers[first].crash()
        simulation.run_until(lambda: bool(set(cluster.active()) - {first}), EXPIRY_SECONDS)
        (second,) = cluster.active()
        assert with_client(cluster, read_office) == (second, 2)
        cluster.brokers[first].restart()
        simulation.run_for(EXPIRY_SECONDS)
        assert cluster.active() == [second]
        assert cluster.running[first].controller.controller_id == second
        assert cluster.seen.alarming_lines == []


def test_deleting_the_znode_by_hand_moves_the_controller() -> None:
    with Simulation(3) as simulation:
        cluster = Cluster(simulation)
        cluster.elect()
        simulation.run_for(1.0)

        async def delete(client: Client, _host: Host) -> None:
            await client.delete(CONTROLLER_PATH)

        with_client(cluster, delete)
        simulation.run_for(1.0)
        (active,) = cluster.active()
        assert with_client(cluster, read_office) == (active, 2)


def test_states_that_are_made_again_in_pieces_are_gone_on_with_behind_what_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partition = TopicPartition("gone", 0)
    with Simulation(3) as simulation:
        cluster = Cluster(simulation)
        active = cluster.elect()
        simulation.run_for(1.0)
        term = cluster.running[active].controller.term
        assert term is not None
        began: list[float] = []

        def read_again(term: ControllerTerm) -> Steps[None]:
            began.append(simulation.now)
            if len(began) == 4:
                term.context.unreadable_partitions.clear()
                term.context.made_again.clear()
            if len(began) == 3:
                raise ValueError("whatever happens")
            yield from give_way()

        monkeypatch.setattr(ControllerTerm, "read_again", read_again)
        term.context.unreadable_partitions[partition] = term.context.made_again[partition] = None
        simulation.run_for(20.0)
        assert [round(each - began[0], 1) for each in began] == [0.0, 0.1, 0.1, 0.2]
        assert cluster.active() == [active]


@pytest.mark.parametrize("garbage", [b"\xff{garbage", b"", b'{"version":2,"brokerid":"one"}'])
def test_the_controller_mends_its_own_znode(garbage: bytes) -> None:
    with Simulation(3) as simulation:
        cluster = Cluster(simulation)
        active = cluster.elect()
        simulation.run_for(1.0)

        async def spoil(client: Client, _host: Host) -> None:
            await client.set_data(CONTROLLER_PATH, garbage)

        with_client(cluster, spoil)
        simulation.run_for(1.0)
        assert cluster.active() == [active]
        assert with_client(cluster, read_office) == (active, 1)
        assert all(broker.controller.controller_id == active for broker in cluster.running.values())
        simulation.run_for(EXPIRY_SECONDS)
        cluster.brokers[active].crash()
        simulation.run_until(lambda: bool(set(cluster.active()) - {active}), EXPIRY_SECONDS)


def test_a_controller_of_a_former_epoch_does_not_mend_the_znode_but_resigns() -> None:
    with Simulation(3) as simulation:
        cluster = Cluster(simulation)
        active = cluster.elect()
        simulation.run_for(1.0)

        async def replace(client: Client, _host: Host) -> None:
            await client.set_data(CONTROLLER_EPOCH_PATH, encode_controller_epoch(2))
            await client.set_data(CONTROLLER_PATH, b"garbage")

        with_client(cluster, replace)
        simulation.run_for(1.0)
        assert cluster.active() == []
        cluster.brokers[active].crash()
        simulation.run_until(lambda: bool(cluster.active()), EXPIRY_SECONDS)
        assert with_client(cluster, read_office) == (cluster.active()[0], 3)


def test_while_the_epoch_cannot_be_read_nobody_is_the_controller() -> None:
    with Simulation(3) as simulation:
        cluster = Cluster(simulation)
        active = cluster.elect()
        simulation.run_for(1.0)

        async def spoil(client: Client, _host: Host) -> None:
            await client.set_data(CONTROLLER_EPOCH_PATH, b"garbage")

        async def mend(client: Client, _host: Host) -> None:
            await client.set_data(CONTROLLER_EPOCH_PATH, encode_controller_epoch(1))

        with_client(cluster, spoil)
        cluster.brokers[active].crash()
        simulation.run_for(EXPIRY_SECONDS + 5.0)
        assert cluster.active() == []
        with_client(cluster, mend)
        simulation.run_until(lambda: bool(cluster.active()), 5.0)
        assert with_client(cluster, read_office) == (cluster.active()[0], 2)


def test_another_epoch_in_the_znode_ends_a_term_at_the_next_write() -> None:
    with Simulation(4) as simulation:
        cluster = Cluster(simulation)
        first = cluster.elect()
        simulation.run_for(1.0)

        async def raise_epoch(client: Client, _host: Host) -> None:
            await client.set_data(CONTROLLER_EPOCH_PATH, encode_controller_epoch(7))

        with_client(cluster, raise_epoch)
        broker = cluster.running[first]

        async def allocate(_host: Host) -> ErrorCode | None:
            try:
                await broker.controller.allocate_producer_ids(first, broker.registration.broker_epoch)
            except KafkaError as error:
                return error.code
            return None

        assert call(cluster, first, allocate) is ErrorCode.NOT_CONTROLLER
        simulation.run_for(3.0)
        (active,) = cluster.active()
        assert with_client(cluster, read_office) == (active, 8)


def call(cluster: Cluster, broker_id: int, work: Callable[[Host], Awaitable[Any]]) -> Any:
    """Runs something on the loop of a broker's process."""
    broker = cluster.running[broker_id]
    host = broker._host
    results: list[Any] = []

    async def keep() -> None:
        results.append(await work(host))

    tasks: list[asyncio.Task[None]] = []
    host.loop.call_soon_threadsafe(lambda: tasks.append(host.loop.create_task(keep())))
    cluster.simulation.run_until(lambda: bool(results))
    return results[0]


def test_who_is_not_the_controller_says_so() -> None:
    with Simulation(5) as simulation:
        cluster = Cluster(simulation)
        active = cluster.elect()
        simulation.run_for(1.0)
        other = next(broker_id for broker_id in cluster.running if broker_id != active)
        controller = cluster.running[other].controller

        async def ask(_host: Host) -> list[ErrorCode]:
            codes = []
            for request in (
                controller.allocate_producer_ids(other, 1),
                controller.controlled_shutdown(other, 1),
                controller.alter_partition(AlterPartitionRequest(), 3),
            ):
                with pytest.raises(KafkaError) as refused:
                    await request
                codes.append(refused.value.code)
            return codes

        assert call(cluster, other, ask) == [ErrorCode.NOT_CONTROLLER] * 3


def test_who_waits_when_the_session_expires_is_answered() -> None:
    with Simulation(6) as simulation:
        cluster = Cluster(simulation)
        active = cluster.elect()
        simulation.run_for(1.0)
        broker = cluster.running[active]
        for other in (cluster.coordinator.name,):
            simulation.network.cut(f"broker-{active}", other)
            simulation.network.cut(other, f"broker-{active}")

        async def ask(_host: Host) -> list[ErrorCode]:
            outcomes = await asyncio.gather(
                *(broker.controller.allocate_producer_ids(active, broker.registration.broker_epoch) for _ in range(3)),
                return_exceptions=True,
            )
            return [outcome.code for outcome in outcomes if isinstance(outcome, KafkaError)]

        def heal() -> None:
            simulation.network.heal(f"broker-{active}", cluster.coordinator.name)
            simulation.network.heal(cluster.coordinator.name, f"broker-{active}")

        simulation.after(EXPIRY_SECONDS + 5.0, heal)
        assert call(cluster, active, ask) == [ErrorCode.NOT_CONTROLLER] * 3
        simulation.run_for(5.0)
        assert len(cluster.active()) == 1
        assert cluster.seen.alarming_lines == []


def test_one_that_cannot_take_over_leaves_the_office_to_others() -> None:
    with Simulation(7) as simulation:
        cluster = Cluster(simulation)
        attempts: list[int] = []
        simulation.run_until(lambda: len(cluster.running) == 3)

        async def never(epoch: int, timeout_ms: float) -> None:
            attempts.append(epoch)
            raise TimeoutError("the cache does not follow")

        # The first to be elected makes /feature, and its cache does not follow: for the others it is there already.
        for broker in cluster.running.values():
            broker.features.wait_for_epoch = never  # type: ignore[method-assign]
        simulation.run_until(lambda: bool(attempts))
        simulation.run_for(3.0)
        (active,) = cluster.active()
        holder, epoch = with_client(cluster, read_office)
        assert (holder, epoch >= 2, len(attempts)) == (active, True, 1)


def test_a_stopped_controller_resigns_and_takes_its_metrics_along() -> None:
    with Simulation(8) as simulation:
        cluster = Cluster(simulation)
        active = cluster.elect()
        simulation.run_for(1.0)
        controller = cluster.running[active].controller

        async def stop(_host: Host) -> bool:
            await controller.stop()
            await controller.stop()
            return controller.is_active

        assert call(cluster, active, stop) is False
        name = MetricName("kafka.controller", "KafkaController", "ActiveControllerCount")
        assert cluster.running[active].metrics.get(name) is None


def test_producer_ids_come_from_the_controller_and_are_kept_in_the_znode() -> None:
    with Simulation(9) as simulation:
        cluster = Cluster(simulation)
        active = cluster.elect()
        simulation.run_for(1.0)
        broker = cluster.running[active]

        async def allocate(_host: Host) -> list[int]:
            epoch = broker.registration.broker_epoch
            return [(await broker.controller.allocate_producer_ids(active, epoch)).first for _ in range(2)]

        assert call(cluster, active, allocate) == [0, 1000]

        async def read(client: Client, _host: Host) -> bytes | None:
            return (await client.get_data(PRODUCER_ID_BLOCK_PATH)).data

        assert b'"block_end":"1999"' in with_client(cluster, read)
