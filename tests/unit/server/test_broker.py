"""One production broker from start to stop, in virtual time: what it refuses, what it keeps, how it ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from barnabas.coordination.client import Client
from barnabas.coordination.layout.brokers import BROKER_IDS_PATH, broker_id_path
from barnabas.coordination.layout.notifications import LOG_DIR_EVENTS_PATH
from barnabas.coordination.layout.topics import topic_path
from barnabas.coordination.operations import Create, Exists, GetChildren, GetChildrenNames
from barnabas.coordination.protocol import WatcherEvent
from barnabas.kernel.host import Host
from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import Meter, MetricName
from barnabas.kernel.turns import yield_to_loop
from barnabas.log.directories.directory_files import read_meta_properties
from barnabas.server.broker import Broker
from barnabas.server.config import read_server_config
from barnabas.server.errors import BrokerStartError
from barnabas.server.lifecycle import BrokerState
from barnabas.testing.simulation import Simulation, simulation_seeds
from tests.unit.server.coordinated import TIMEOUT_MS, Lines, session_on, start_coordinator, until

SEEDS = simulation_seeds(2)
Work = Callable[[Broker, Host], Coroutine[Any, Any, Any]]


def broker_on(host: Host, lines: Lines, *overrides: str) -> Broker:
    text = "\n".join(
        [
            "listeners=PLAINTEXT://:0",
            "zookeeper.connect=coordinator:2181",
            f"zookeeper.session.timeout.ms={TIMEOUT_MS}",
            "log.dirs=/data/one,/data/two",
        ]
    )
    return Broker(read_server_config(text, "test", overrides), host, Logs(host.name, host.clock, lines))


def running(work: Work, lines: Lines, *overrides: str) -> Callable[[Host], Coroutine[Any, Any, Any]]:
    """A main that starts a broker, does the work when it is ready, and stops it."""

    async def main(host: Host) -> Any:
        broker = broker_on(host, lines, *overrides)
        try:
            await broker.start()
            await broker.ready()
            return await work(broker, host)
        finally:
            await broker.stop()
            assert broker.state is BrokerState.NOT_RUNNING

    return main


async def nothing(broker: Broker, _host: Host) -> int:
    return broker.broker_id


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_without_an_id_gets_one_and_keeps_it(seed: int) -> None:
    lines = Lines()

    async def look(broker: Broker, host: Host) -> int:
        for path in ("/data/one", "/data/two"):
            found = read_meta_properties(host.files, path)
            assert found is not None
            assert (found.broker_id, found.cluster_id) == (broker.broker_id, broker.cluster_id)
        assert broker.state is BrokerState.RUNNING
        assert broker.endpoints[0].port == broker.endpoints[0].port != 0
        assert broker.endpoints[0].host == host.name
        return broker.broker_id

    with Simulation(seed) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("broker")
        assert simulation.run_on(machine, running(look, lines)) == 1001
        assert simulation.run_on(machine, running(look, lines)) == 1001
        assert simulation.run_on(simulation.machine("other"), running(look, lines)) == 1002
    assert "Controlled shutdown completed" in lines


def test_directories_of_another_broker_are_refused_before_anything_is_registered() -> None:
    async def registered(host: Host) -> list[str]:
        session = session_on(host, Lines())
        await session.connect()
        names = await session.perform(GetChildrenNames(BROKER_IDS_PATH))
        await session.close()
        return names

    with Simulation(1) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("broker")
        assert simulation.run_on(machine, running(nothing, Lines(), "broker.id=4")) == 4
        with pytest.raises(BrokerStartError, match="belong to broker 4"):
            simulation.run_on(machine, running(nothing, Lines(), "broker.id=5"))
        assert simulation.run_on(simulation.machine("observer"), registered) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_leaves_a_clean_directory_and_no_znode(seed: int) -> None:
    lines = Lines()

    async def gone(host: Host) -> bool:
        session = session_on(host, Lines())
        await session.connect()
        found = await session.perform(Exists(broker_id_path(4)))
        await session.close()
        return found is None

    with Simulation(seed) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("broker")
        simulation.run_on(machine, running(nothing, lines, "broker.id=4"))
        assert simulation.run_on(simulation.machine("observer"), gone)

        async def files(host: Host) -> list[bool]:
            return [host.files.exists(f"/data/{name}/.kafka_cleanshutdown") for name in ("one", "two")]

        assert simulation.run_on(machine, files) == [True, True]
        simulation.run_on(machine, running(nothing, lines, "broker.id=4"))
    assert "Stopped" in lines
    assert " ERROR " not in lines


def test_a_start_tells_how_many_logs_are_loaded() -> None:
    told: list[tuple[int, str]] = []
    missing: list[str] = []

    async def start_with_logs(host: Host) -> None:
        for number in range(5):
            host.files.make_directories(f"/data/one/flights-{number}")
        broker = broker_on(host, Lines(), "broker.id=4")
        starting = host.loop.create_task(broker.start())
        while not starting.done():
            if not told or told[-1] != broker.start_progress:
                told.append(broker.start_progress)
            if not missing or missing[-1] != broker.not_ready:
                missing.append(broker.not_ready)
            await yield_to_loop()
        await broker.ready()
        missing.append(broker.not_ready)
        await broker.stop()
        missing.append(broker.not_ready)

    with Simulation(1) as simulation:
        start_coordinator(simulation)
        simulation.run_on(simulation.machine("broker"), start_with_logs)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    texts = [text for _, text in told if text]
    assert texts[-1] == "5 of 5 logs are loaded"
    assert "1 of 5 logs are loaded" in texts
    assert missing[0] in {"not running", "starting"}
    assert "recovery, 1 of 5 logs are loaded" in missing
    assert missing[-2:] == ["", "not running"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_waits_for_its_coordinator_and_can_be_stopped_meanwhile(seed: int) -> None:
    async def stop_while_starting(host: Host) -> float:
        broker = broker_on(host, Lines(), "broker.id=4")
        starting = host.loop.create_task(broker.start())
        await until(lambda: host.loop.time() > 30)
        assert not starting.done()
        starting.cancel()
        began = host.loop.time()
        await broker.stop()
        return host.loop.time() - began

    with Simulation(seed) as simulation:
        simulation.machine("coordinator")
        assert simulation.run_on(simulation.machine("broker"), stop_while_starting, 120) < 5.0


def test_a_connection_lost_while_dynamic_configs_are_read_does_not_end_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names_of_many = Client.get_children_names_of_many
    lost: list[object] = []

    with Simulation(1) as simulation:
        start_coordinator(simulation)

        async def loses_the_connection(client: Client, paths: Sequence[str]) -> Any:
            reading = asyncio.ensure_future(names_of_many(client, paths))
            if not lost:
                lost.append(paths)
                await yield_to_loop()  # it is sent, and gets no answer
                simulation.network.reset_connections("broker", "coordinator")
            return await reading

        monkeypatch.setattr(Client, "get_children_names_of_many", loses_the_connection)
        assert simulation.run_on(simulation.machine("broker"), running(nothing, Lines(), "broker.id=4")) == 4
    assert lost


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_that_waits_for_its_former_session_can_be_stopped_and_nobody_can_connect(seed: int) -> None:
    lines = Lines()

    async def stay(broker: Broker, host: Host) -> None:
        await host.loop.create_future()

    async def stop_while_waiting(host: Host) -> float:
        broker = broker_on(host, lines, "broker.id=4", "listeners=PLAINTEXT://:9092")
        starting = host.loop.create_task(broker.start())
        await until(lambda: "waiting for that" in lines)
        with pytest.raises(ConnectionRefusedError):
            await host.loop.create_connection(asyncio.Protocol, "127.0.0.1", 9092)
        starting.cancel()
        began = host.loop.time()
        await broker.stop()
        return host.loop.time() - began

    with Simulation(seed) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("broker")
        machine.start(running(stay, Lines(), "broker.id=4"))
        simulation.run_for(3.0)
        machine.crash()
        assert simulation.run_on(machine, stop_while_waiting) < 2.0
    assert " ERROR " not in lines


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_without_the_coordinator_is_bounded_by_the_session(seed: int) -> None:
    """The broker, which is the controller too, can move no leader without it."""
    lines = Lines()

    async def stop_alone(broker: Broker, host: Host) -> float:
        coordinator.crash()
        began = host.loop.time()
        await broker.stop()
        return host.loop.time() - began

    with Simulation(seed) as simulation:
        coordinator = start_coordinator(simulation)
        took = simulation.run_on(simulation.machine("broker"), running(stop_alone, lines, "broker.id=4"), 300)
        assert took < 2 * TIMEOUT_MS / 1000
    assert "ZooKeeper is out of reach: shutting down although this broker may lead partitions" in lines
    assert " ERROR " not in lines


@pytest.mark.parametrize("seed", SEEDS)
def test_an_expired_session_leads_to_a_new_registration_and_the_same_cluster(seed: int) -> None:
    async def outlive(broker: Broker, _host: Host) -> tuple[int, int]:
        first = broker.components.registration.broker_epoch
        await until(lambda: broker.components.registration.broker_epoch != first)
        await until(lambda: broker.components.controller.is_active)
        expiries = broker.metrics.get(MetricName("kafka.server", "SessionExpireListener", "ZooKeeperExpiresPerSec"))
        assert isinstance(expiries, Meter)
        assert expiries.count == 1
        return first, broker.components.registration.broker_epoch

    with Simulation(seed) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("broker")
        process = machine.start(running(outlive, Lines(), "broker.id=4"))
        simulation.run_for(5.0)
        machine.pause()
        simulation.run_for(2 * TIMEOUT_MS / 1000)
        machine.resume()
        simulation.run_until(lambda: process.ended, 120)
        first, second = process.result()
        assert second > first


@pytest.mark.parametrize("seed", SEEDS)
def test_a_failed_directory_is_announced_and_the_last_one_ends_the_broker(seed: int) -> None:
    lines = Lines()

    async def fail(broker: Broker, host: Host) -> str:
        manager = broker.components.storage.log_manager
        session = session_on(host, Lines())
        await session.connect()
        announced: list[WatcherEvent] = []
        await session.perform(GetChildren(LOG_DIR_EVENTS_PATH, announced.append))
        manager.fail_directory(manager.live_directories[0], OSError(5, "Input/output error"))
        await until(lambda: bool(announced))
        # The controller has heard of it.
        while await session.perform(GetChildrenNames(LOG_DIR_EVENTS_PATH)):
            await until(lambda: True)
        assert not broker.failure.done()
        manager.fail_directory(manager.live_directories[0], OSError(5, "Input/output error"))
        await session.close()
        return await broker.failure

    with Simulation(seed) as simulation:
        start_coordinator(simulation)
        reason = simulation.run_on(simulation.machine("broker"), running(fail, lines, "broker.id=4"))
    assert "Every log directory is offline" in reason
    assert "free space or repair the disk" in reason


def test_a_broker_whose_directories_are_empty_says_what_it_had_before_anybody_can_connect() -> None:
    told: list[str] = []

    async def have_topic(broker: Broker, host: Host) -> list[str]:
        session = session_on(host, Lines())
        await session.connect()
        for topic in ("some", "garbage"):
            data = (
                b'{"version":1,"partitions":{"0":[4],"1":[4],"2":[4],"3":[5,4],"4":[5]}}' if topic == "some" else b"{"
            )
            await session.perform(Create(topic_path(topic), data))
        await session.close()
        return broker.alarms

    async def alarms(broker: Broker, _host: Host) -> list[str]:
        return broker.alarms

    with Simulation(1) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("broker")
        lines = Lines()
        assert simulation.run_on(machine, running(have_topic, lines, "broker.id=4")) == []
        assert simulation.run_on(machine, running(alarms, lines, "broker.id=4")) == []
        assert "are all empty" not in lines
        elsewhere = "log.dirs=/elsewhere/one,/elsewhere/two"
        told += simulation.run_on(machine, running(alarms, lines, "broker.id=4", elsewhere))
        # They are its own from now on.
        assert simulation.run_on(machine, running(alarms, Lines(), "broker.id=4", elsewhere)) == []
        # Nothing is missing from one that is new to the cluster.
        assert simulation.run_on(simulation.machine("other"), running(alarms, Lines(), "broker.id=6")) == []
    (said,) = told
    assert "log directories are all empty (/elsewhere/one, /elsewhere/two)" in said
    assert "4 replicas on broker 4: some-0, some-1, some-2 and 1 more" in said
    assert "correct log.dirs" in said
    (at,) = [number for number, line in enumerate(lines.lines) if said in line]
    assert " ERROR " in lines.lines[at]
    listened = [number for number, line in enumerate(lines.lines) if "accepts connections" in line]
    assert listened[1] < at < listened[2]


@pytest.mark.parametrize(("protocol", "supported"), [("3.1", False), ("3.2", True), ("3.9", True)])
def test_unclean_leaders_are_marked_where_all_brokers_know_the_mark(protocol: str, supported: bool) -> None:
    """KIP-704: brokers before 3.2 do not know it."""

    async def look(broker: Broker, _host: Host) -> bool:
        return broker.components.controller._settings.leader_recovery_supported

    with Simulation(1) as simulation:
        start_coordinator(simulation)
        main = running(look, Lines(), "broker.id=4", f"inter.broker.protocol.version={protocol}")
        assert simulation.run_on(simulation.machine("broker"), main) is supported


def test_a_directory_in_use_is_refused() -> None:
    async def lock(host: Host) -> None:
        host.files.make_directories("/data/two")
        descriptor = host.files.open("/data/two/.lock", os.O_RDWR | os.O_CREAT)
        assert host.files.lock(descriptor)
        await host.loop.create_future()

    with Simulation(1) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("broker")
        machine.start(lock, name="other")
        simulation.run_for(1.0)
        with pytest.raises(BrokerStartError, match="in use by another broker"):
            simulation.run_on(machine, running(nothing, Lines(), "broker.id=4"))


def test_a_protocol_whose_brokers_do_not_replicate_with_ours_is_refused_at_the_start() -> None:
    with Simulation(1) as simulation:
        start_coordinator(simulation)
        lines = ("broker.id=4", "inter.broker.protocol.version=2.2")
        with pytest.raises(BrokerStartError, match=r"2\.3-IV1 or newer is needed: raise it at every broker"):
            simulation.run_on(simulation.machine("broker"), running(nothing, Lines(), *lines))


def test_a_listener_with_tls_and_without_a_key_is_refused_at_the_start() -> None:
    with Simulation(1) as simulation:
        start_coordinator(simulation)
        with pytest.raises(BrokerStartError, match=r"Listener SSL: a listener with TLS needs a key: set ssl\.keystore"):
            simulation.run_on(
                simulation.machine("broker"),
                running(nothing, Lines(), "listeners=SSL://:0", "security.inter.broker.protocol=SSL"),
            )


def test_rooms_are_asked_for_after_the_start_only() -> None:
    async def ask(host: Host) -> None:
        broker = broker_on(host, Lines(), "broker.id=4")
        with pytest.raises(RuntimeError, match="not started yet"):
            _ = broker.components
        await broker.stop()
        assert broker.state is BrokerState.NOT_RUNNING

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("broker"), ask)
