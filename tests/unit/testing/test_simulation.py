"""A whole simulation: driving it, and how it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from barnabas.kernel.host import Host
from barnabas.testing.simulated_loop import UnhandledError
from barnabas.testing.simulation import (
    SEED_VARIABLE,
    Simulation,
    SimulationDeadlockError,
    SimulationFailedError,
    SimulationLimitError,
    simulation_seeds,
)


async def _echo(host: Host) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, host.name, 9092)
    await server.serve_forever()


async def _open() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection("server", 9092)
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)


async def _ask(host: Host) -> list[bytes]:
    reader, writer = await _open()
    answers = []
    for number in range(20):
        writer.write(b"question %d\n" % number)
        answers.append(await reader.readline())
    writer.close()
    await writer.wait_closed()
    return answers


@pytest.mark.parametrize("seed", simulation_seeds(5))
def test_runs_a_server_and_a_client_as_on_real_loops(seed: int) -> None:
    with Simulation(seed) as simulation:
        simulation.machine("server").start(_echo)
        answers = simulation.run_on(simulation.machine("client"), _ask)
    assert answers == [b"QUESTION %d\n" % number for number in range(20)]


def test_one_seed_gives_one_trace_and_another_seed_another() -> None:
    digests = []
    for seed in (1, 1, 2):
        with Simulation(seed) as simulation:
            simulation.machine("server").start(_echo)
            simulation.run_on(simulation.machine("client"), _ask)
            digests.append(simulation.trace.digest())
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_virtual_time_costs_no_real_time() -> None:
    async def main(host: Host) -> float:
        began = host.loop.time()
        await asyncio.sleep(1_000_000)
        return host.loop.time() - began

    with Simulation(1) as simulation:
        assert simulation.run_on(simulation.machine("a"), main, 2_000_000) == pytest.approx(1_000_000)
        assert simulation.now == pytest.approx(1_000_000, rel=1e-3)


def test_run_for_lets_exactly_that_time_pass() -> None:
    with Simulation(1) as simulation:
        simulation.run_for(5)
        assert simulation.now == 5
        called: list[float] = []
        simulation.after(1, lambda: called.append(simulation.now))
        simulation.run_for(2)
        assert called == [6]
        assert simulation.now == 7


def test_run_on_raises_what_main_raised() -> None:
    async def main(host: Host) -> None:
        raise LookupError("not here")

    with Simulation(1) as simulation, pytest.raises(LookupError, match="not here"):
        simulation.run_on(simulation.machine("a"), main)


def test_a_main_that_raises_fails_the_run_when_nobody_asks() -> None:
    async def main(host: Host) -> None:
        raise LookupError("not here")

    with Simulation(1) as simulation:
        simulation.machine("a").start(main)
        with pytest.raises(SimulationFailedError, match="not here") as caught:
            simulation.run_for(1)
    assert isinstance(caught.value.__cause__, UnhandledError)


def test_an_exception_in_a_callback_fails_the_run() -> None:
    def broken() -> None:
        raise ZeroDivisionError("in a callback")

    async def main(host: Host) -> None:
        host.loop.call_soon(broken)
        await asyncio.sleep(1)

    with Simulation(1) as simulation:
        simulation.machine("a").start(main)
        with pytest.raises(SimulationFailedError, match="in a callback"):
            simulation.run_for(2)


def test_a_task_whose_exception_nobody_takes_fails_the_run() -> None:
    async def forgotten() -> None:
        raise ZeroDivisionError("in a task")

    async def main(host: Host) -> None:
        task = asyncio.create_task(forgotten())
        await asyncio.wait([task])
        del task
        await asyncio.sleep(1)

    with Simulation(1) as simulation:
        simulation.machine("a").start(main)
        with pytest.raises(SimulationFailedError, match="in a task"):
            simulation.run_for(2)


def test_a_handler_of_the_process_does_not_hide_a_failure() -> None:
    heard: list[str] = []

    async def main(host: Host) -> None:
        host.loop.set_exception_handler(lambda _, context: heard.append(context["message"]))
        host.loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with Simulation(1) as simulation:
        simulation.machine("a").start(main)
        with pytest.raises(SimulationFailedError, match="division by zero"):
            simulation.run_for(2)
    assert len(heard) == 1


def test_a_deadlock_is_told_with_the_tasks_that_wait() -> None:
    async def waits_for_ever(host: Host) -> None:
        await host.loop.create_future()

    with Simulation(9) as simulation:
        simulation.machine("a").start(waits_for_ever)
        with pytest.raises(SimulationDeadlockError, match=r"seed 9: deadlock[\s\S]*a: main at .*_run"):
            simulation.run_until(lambda: False)


def test_a_condition_that_never_holds_ends_at_the_limit() -> None:
    async def busy(host: Host) -> None:
        while True:
            await asyncio.sleep(0)

    with Simulation(9) as simulation:
        simulation.machine("a").start(busy)
        with pytest.raises(SimulationLimitError, match=r"within 0\.01 s"):
            simulation.run_until(lambda: False, limit_seconds=0.01)
        assert simulation.now == pytest.approx(0.01)


def test_a_failure_tells_seed_and_command_to_repeat_it() -> None:
    with Simulation(1234) as simulation:
        simulation.world.fail(ValueError("oh"))
        with pytest.raises(SimulationFailedError) as caught:
            simulation.run_for(1)
    message = str(caught.value)
    assert "seed 1234" in message
    command = f"{SEED_VARIABLE}=1234 python -m pytest 'tests/unit/testing/test_simulation.py::"
    assert command + "test_a_failure_tells_seed_and_command_to_repeat_it'" in message


def test_a_failure_nobody_saw_is_raised_at_the_end() -> None:
    with pytest.raises(SimulationFailedError, match="late"), Simulation(1) as simulation:
        simulation.world.fail(ValueError("late"))


def test_seeds_come_from_the_environment_when_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    assert simulation_seeds(3) == [1, 2, 3]
    monkeypatch.setenv(SEED_VARIABLE, "77")
    assert simulation_seeds(3) == [77]


def test_asyncio_tools_work_in_virtual_time() -> None:
    async def slow(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async def numbers() -> AsyncGenerator[int, None]:
        for number in range(3):
            await asyncio.sleep(0.1)
            yield number

    async def main(host: Host) -> str:
        assert asyncio.get_running_loop() is host.loop
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await asyncio.sleep(60)
        assert list(await asyncio.gather(slow(2), slow(1))) == [2, 1]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(slow(seconds)) for seconds in (3, 1, 2)]
        assert [task.result() for task in tasks] == [3, 1, 2]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slow(5), timeout=1)
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
        feeder = asyncio.create_task(queue.put(5))
        assert await queue.get() == 5
        await feeder
        assert [number async for number in numbers()] == [0, 1, 2]
        async for number in numbers():
            if number:
                break
        event = asyncio.Event()
        host.loop.call_later(1, event.set)
        await event.wait()
        cancelled = host.loop.call_later(1, event.clear)
        cancelled.cancel()
        await asyncio.sleep(2)
        assert event.is_set()
        return "done"

    with Simulation(3) as simulation:
        assert simulation.run_on(simulation.machine("a"), main) == "done"
