"""The supervisor of `barnabas up` as programs use it: one broker killed, stopped and started beside the others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from barnabas.kernel.real_host import RealHost, run
from barnabas.kernel.real_program import start_program
from barnabas.server import supervisor
from barnabas.server.cluster_plan import ClusterPlan
from barnabas.server.start_watch import last_line
from barnabas.server.supervisor import COMMAND, ClusterStartError, Supervisor
from barnabas.server.supervisor_events import ProcessEnded, ProcessRestarted, Remark, SupervisorEvent
from barnabas.server.zookeeper_access import DIGEST_MODULE
from tests.support.barnabas_up import Up, is_running
from tests.support.waiting import wait_until
from tests.support.wire_calls import metadata


def port_of(cluster: Supervisor, broker_id: int) -> int:
    address: str = cluster.description()["brokers"][broker_id - 1]["address"]
    return int(address.rpartition(":")[2])


def test_one_broker_can_be_killed_stopped_and_started_on_its_port(tmp_path: Path) -> None:
    ended: list[SupervisorEvent] = []

    async def scenario(host: RealHost) -> dict[str, int]:
        plan = ClusterPlan(brokers=2, data_directory=str(tmp_path), port=0, session_timeout_ms=4_000)
        async with Supervisor(host, plan, on_event=ended.append) as cluster:
            addresses = cluster.bootstrap_servers
            before = cluster.processes
            assert sorted(before) == ["broker-1", "broker-2", "coordinator"]
            await cluster.restart_broker(1, kill=True)
            await cluster.restart_broker(2)
            assert cluster.bootstrap_servers == addresses
            after = cluster.processes
            assert after["coordinator"] == before["coordinator"]
            assert after["broker-1"] != before["broker-1"]
            assert after["broker-2"] != before["broker-2"]
            with pytest.raises(ClusterStartError, match="broker-1 runs already"):
                await cluster.start_broker(1)
            port = port_of(cluster, 1)
            while len((await asyncio.to_thread(metadata, port)).brokers) < 2:
                continue
            assert await cluster.stop_broker(2) == 0
            assert sorted(cluster.processes) == ["broker-1", "coordinator"]
            return after

    processes = run(scenario)
    assert not any(is_running(process_id) for process_id in processes.values())
    assert ended == []


def test_a_broker_that_makes_no_progress_is_stopped_and_can_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(host: RealHost) -> None:
        plan = ClusterPlan(brokers=1, data_directory=str(tmp_path), port=0, session_timeout_ms=4_000)
        async with Supervisor(host, plan) as cluster:
            await cluster.stop_broker(1)
            with monkeypatch.context() as patch:
                patch.setattr(supervisor, "SILENCE_SECONDS_MAX", 0.001)
                with pytest.raises(ClusterStartError, match="broker-1 was stopped: it made no progress for"):
                    await cluster.start_broker(1)
            assert sorted(cluster.processes) == ["coordinator"]
            await cluster.start_broker(1)
            assert sorted(cluster.processes) == ["broker-1", "coordinator"]

    run(scenario)


def test_a_broker_that_is_long_in_coming_back_is_remarked_on_and_not_stopped_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[SupervisorEvent] = []

    async def scenario(host: RealHost) -> None:
        plan = ClusterPlan(brokers=1, data_directory=str(tmp_path), port=0, session_timeout_ms=4_000)
        came_back = asyncio.Event()

        def hear(event: SupervisorEvent) -> None:
            events.append(event)
            if isinstance(event, ProcessRestarted):
                came_back.set()

        async with Supervisor(host, plan, on_event=hear, restarts=True) as cluster:
            monkeypatch.setattr(supervisor, "SILENCE_SECONDS_MAX", 0.001)
            os.kill(cluster.processes["broker-1"], signal.SIGKILL)
            async with asyncio.timeout(60):
                await came_back.wait()

    run(scenario)
    ended, *remarks, restarted = events
    assert isinstance(ended, ProcessEnded)
    assert remarks
    for remark in remarks:
        assert isinstance(remark, Remark)
        assert "server.log says what it is at" in remark.text
    assert isinstance(restarted, ProcessRestarted)


def test_who_starts_a_broker_that_is_being_started_again_gets_that_one_and_it_stays_watched(tmp_path: Path) -> None:
    events: list[SupervisorEvent] = []

    async def scenario(host: RealHost) -> None:
        plan = ClusterPlan(brokers=1, data_directory=str(tmp_path), port=0, session_timeout_ms=4_000)
        told: asyncio.Queue[SupervisorEvent] = asyncio.Queue()

        def hear(event: SupervisorEvent) -> None:
            events.append(event)
            told.put_nowait(event)

        async with Supervisor(host, plan, on_event=hear, restarts=True) as cluster, asyncio.timeout(60):
            first = cluster.processes["broker-1"]
            os.kill(first, signal.SIGKILL)
            await told.get()
            while (again := cluster.processes.get("broker-1", first)) == first:
                await asyncio.to_thread(os.sched_yield)
            await cluster.start_broker(1)
            assert cluster.processes["broker-1"] == again
            await told.get()
            os.kill(again, signal.SIGKILL)
            await told.get()
            # In its pause: a new one at once.
            await cluster.start_broker(1)
            assert cluster.processes["broker-1"] not in {first, again}

    run(scenario)
    assert [type(event) for event in events] == [ProcessEnded, ProcessRestarted, ProcessEnded]


def test_a_process_whose_start_is_given_up_does_not_stay(tmp_path: Path) -> None:
    async def scenario(host: RealHost) -> None:
        plan = ClusterPlan(brokers=1, data_directory=str(tmp_path), port=0, session_timeout_ms=4_000)
        async with Supervisor(host, plan) as cluster:
            await cluster.stop_broker(1)
            starting = host.loop.create_task(cluster.start_broker(1))
            while "broker-1" not in cluster.processes:
                await asyncio.to_thread(os.sched_yield)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            assert sorted(cluster.processes) == ["coordinator"]
            await cluster.start_broker(1)

    run(scenario)


def test_a_login_at_another_zookeeper_is_not_that_of_its_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = tmp_path / "jaas.conf"
    login.write_text(f'Client {{ {DIGEST_MODULE} required username="kafka" password="secret"; }};')
    monkeypatch.setenv("KAFKA_OPTS", f"-Djava.security.auth.login.config={login}")

    async def scenario(host: RealHost) -> None:
        plan = ClusterPlan(brokers=1, data_directory=str(tmp_path / "data"), port=0, session_timeout_ms=4_000)
        async with Supervisor(host, plan) as cluster:
            assert sorted(cluster.processes) == ["broker-1", "coordinator"]

    run(scenario)


def test_a_broker_tells_of_its_start_before_it_is_ready(tmp_path: Path) -> None:
    async def scenario(host: RealHost) -> None:
        plan = ClusterPlan(brokers=1, data_directory=str(tmp_path), port=0, session_timeout_ms=4_000)
        async with Supervisor(host, plan) as cluster:
            await cluster.stop_broker(1)
            path = plan.properties_path(1)
            program = await start_program(host.loop, [*COMMAND, "broker", path, "--json", "--progress"])
            first = json.loads(await program.read_line() or "{}")
            said = await last_line(host.loop, program.read_line, on_progress=lambda _text: None)
            assert await program.stop(30) == 0
            assert list(first) == ["starting"]
            assert said is not None
            assert said["broker_id"] == 1

    run(scenario)


def test_what_a_process_says_is_bounded_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "OUTPUT_BYTES_MAX", 10_000)
    monkeypatch.setattr(supervisor, "OUTPUT_CHECK_SECONDS", 0.01)

    async def scenario(host: RealHost) -> None:
        plan = ClusterPlan(brokers=1, data_directory=str(tmp_path), port=0, session_timeout_ms=4_000)
        async with Supervisor(host, plan) as cluster, asyncio.timeout(120):
            output = tmp_path / "coordinator" / "output.log"
            # As the coordinator does, by a descriptor of its own that appends.
            with output.open("ab", buffering=0) as said:
                for number in range(1_000):
                    said.write(b"line %06d of the coordinator\n" % number)
                while output.stat().st_size > 10_000:
                    await asyncio.sleep(0)
                kept = output.read_bytes().splitlines()
                assert kept[-1] == b"line 000999 of the coordinator"
                assert len(set(map(len, kept))) == 1
                said.write(b"the end\n")
            assert output.read_bytes().endswith(b"coordinator\nthe end\n")
            assert sorted(cluster.processes) == ["broker-1", "coordinator"]

    run(scenario)


def test_what_a_process_says_is_bounded_while_others_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery of logs may take hours."""
    monkeypatch.setattr(supervisor, "OUTPUT_BYTES_MAX", 10_000)
    monkeypatch.setattr(supervisor, "OUTPUT_CHECK_SECONDS", 0.01)
    start_broker = Supervisor._start_broker
    output = tmp_path / "coordinator" / "output.log"

    async def slow(cluster: Supervisor, broker_id: int) -> None:
        with output.open("ab", buffering=0) as said:
            said.write(b"line of the coordinator\n" * 1_000)
        async with asyncio.timeout(60):
            while output.stat().st_size > 10_000:
                await asyncio.sleep(0.01)
        await start_broker(cluster, broker_id)

    monkeypatch.setattr(Supervisor, "_start_broker", slow)

    async def scenario(host: RealHost) -> None:
        plan = ClusterPlan(brokers=1, data_directory=str(tmp_path), port=0, session_timeout_ms=4_000)
        async with Supervisor(host, plan) as cluster, asyncio.timeout(120):
            assert sorted(cluster.processes) == ["broker-1", "coordinator"]

    run(scenario)


def test_a_signal_during_the_start_ends_everything_that_was_started(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", 3, wait=False)
    first = tmp_path / "data" / "broker-1" / "server.properties"
    wait_until(first.exists, "brokers are started")
    assert up.stop(signal.SIGTERM) == 0
    assert up.errors() == ""
    assert processes_with(str(tmp_path)) == []


def processes_with(argument: str) -> list[int]:
    """Ids of processes that have this in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if argument.encode() in command and is_running(int(entry.name)):
                found.append(int(entry.name))
    return found
