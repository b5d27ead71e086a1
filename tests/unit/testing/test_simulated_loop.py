"""The event loop of a simulated process."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from barnabas.kernel.host import Host
from barnabas.testing.profile import LoopProfile, Profile
from barnabas.testing.simulated_loop import SimulatedLoop
from barnabas.testing.simulation import Simulation, SimulationFailedError
from barnabas.testing.trace import Occurrence
from barnabas.testing.world import COMPACTION_MIN


def test_callbacks_of_one_tick_see_one_time_and_what_they_add_runs_in_the_next() -> None:
    seen: list[tuple[str, float]] = []

    async def main(host: Host) -> None:
        loop = host.loop

        def first() -> None:
            seen.append(("first", loop.time()))
            loop.call_soon(lambda: seen.append(("third", loop.time())))

        loop.call_soon(first)
        loop.call_soon(lambda: seen.append(("second", loop.time())))
        await asyncio.sleep(1)

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("a"), main)
    assert [name for name, _ in seen] == ["first", "second", "third"]
    assert seen[0][1] == seen[1][1] < seen[2][1]


def test_timers_run_at_their_time_in_order_and_not_before() -> None:
    ran: list[tuple[float, float]] = []

    async def main(host: Host) -> None:
        loop = host.loop

        def note(due: float) -> None:
            ran.append((due, loop.time()))

        for delay in (0.3, 0.1, 0.2, 0.1000000001):
            due = loop.time() + delay
            loop.call_at(due, note, due)
        await asyncio.sleep(1)

    for seed in range(1, 6):  # other origins and drifts of the clock
        ran.clear()
        with Simulation(seed) as simulation:
            simulation.run_on(simulation.machine("a"), main)
        assert [due for due, _ in ran] == sorted(due for due, _ in ran)
        assert len(ran) == 4
        assert all(due <= at < due + 0.001 for due, at in ran)


def test_a_timer_is_never_early_when_the_clock_is_slowed_after_it_was_set() -> None:
    ran: list[float] = []

    async def main(host: Host) -> None:
        due = host.loop.time() + 10
        host.loop.call_at(due, lambda: ran.append(host.loop.time() - due))
        await asyncio.sleep(30)

    with Simulation(1) as simulation:
        machine = simulation.machine("a")
        simulation.after(1, lambda: machine.clock.set_drift(-100_000))
        simulation.run_on(machine, main)
    assert len(ran) == 1
    assert 0 <= ran[0] < 0.001


def test_cancelled_callbacks_do_not_run_and_do_not_pile_up() -> None:
    ran: list[int] = []

    async def main(host: Host) -> None:
        for number in range(20 * COMPACTION_MIN):
            host.loop.call_later(3_000, ran.append, number).cancel()
        host.loop.call_soon(ran.append, -1).cancel()
        await asyncio.sleep(0.1)

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("a"), main)
        assert len(simulation.world._heap) < 3 * COMPACTION_MIN
        simulation.run_for(4_000)
    assert ran == []


def test_work_takes_virtual_time() -> None:
    async def main(host: Host) -> float:
        began = host.loop.time()
        for _ in range(1_000):
            await asyncio.sleep(0)
        return host.loop.time() - began

    with Simulation(1) as simulation:
        least, most = LoopProfile().tick_seconds
        assert 1_000 * least < simulation.run_on(simulation.machine("a"), main) < 1_000 * (most + 1e-4)


def test_hiccups_stop_a_loop_for_a_while() -> None:
    async def main(host: Host) -> float:
        worst = 0.0
        for _ in range(200):
            began = host.loop.time()
            await asyncio.sleep(0)
            worst = max(worst, host.loop.time() - began)
        return worst

    hiccups = LoopProfile(hiccup_probability=0.05, hiccup_seconds=(0.02, 0.03))
    with Simulation(1) as simulation:
        assert simulation.run_on(simulation.machine("steady"), main) < 0.001
        assert simulation.run_on(simulation.machine("hiccups", profile=Profile(loop=hiccups)), main) > 0.02


def test_the_seed_decides_how_hosts_interleave() -> None:
    def order(seed: int) -> list[str]:
        ran: list[str] = []

        def mains(name: str) -> Callable[[Host], Any]:
            async def main(host: Host) -> None:
                for _ in range(10):
                    ran.append(name)
                    await asyncio.sleep(0)

            return main

        with Simulation(seed) as simulation:
            for name in ("a", "b", "c"):
                simulation.machine(name).start(mains(name))
            simulation.run_for(1)
        return ran

    orders = {tuple(order(seed)) for seed in range(1, 11)}
    assert len(orders) > 5
    assert order(4) == order(4)


def test_sets_of_tasks_are_walked_in_order_of_creation() -> None:
    async def sleeper(number: int) -> int:
        await asyncio.sleep(0.001)
        return number

    async def main(host: Host) -> list[int]:
        # Junk in between gives the tasks addresses in no order.
        tasks = set()
        junk: list[bytearray] = []
        for number in range(50):
            tasks.add(asyncio.create_task(sleeper(number)))
            junk.append(bytearray(number * 37 % 1000))
        await asyncio.wait(tasks)
        return [task.result() for task in tasks]

    with Simulation(1) as simulation:
        assert simulation.run_on(simulation.machine("a"), main) == list(range(50))


def test_what_had_not_begun_in_a_dropped_loop_ends_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    async def inner() -> None: ...

    async def outer(given: Coroutine[Any, Any, None]) -> None:
        await given

    begun: list[asyncio.Task[None]] = []

    async def main(host: Host) -> None:
        def crash() -> None:
            begun.append(host.loop.create_task(outer(inner())))
            machine.crash()

        host.loop.call_later(0.1, crash)
        await asyncio.sleep(1)

    with Simulation(1) as simulation:
        machine = simulation.machine("a")
        machine.start(main)
        simulation.run_for(1)
    gc.collect()
    assert [str(each.message) for each in recwarn] == []


def test_a_dropped_loop_runs_nothing_and_its_coroutines_end_without_a_warning() -> None:
    done: list[str] = []

    async def generator() -> AsyncGenerator[int, None]:
        try:
            while True:
                await asyncio.sleep(0.01)
                yield 1
        finally:
            done.append("generator")

    async def stubborn(host: Host) -> None:
        try:
            async for _ in generator():
                host.loop.call_soon(lambda: None)
        finally:
            host.loop.call_soon(done.append, "callback after death")
            asyncio.create_task(asyncio.sleep(0))  # noqa: RUF006 - what dead code might do
            await asyncio.sleep(0)
            done.append("woke after death")

    async def main(host: Host) -> None:
        tasks = [asyncio.create_task(stubborn(host)) for _ in range(3)]
        async with asyncio.TaskGroup() as group:
            group.create_task(stubborn(host))
            host.loop.call_later(0.5, done.append, "timer after death")
            await asyncio.gather(*tasks)

    with Simulation(1) as simulation:
        machine = simulation.machine("a")
        machine.start(main)
        simulation.run_for(0.1)
        machine.crash()
        simulation.run_for(1)
        gc.collect()
    # Whether the `finally` of a generator still runs depends on the version of Python.
    assert set(done) <= {"generator"}


def test_nothing_of_a_simulation_stays_behind_in_the_interpreter() -> None:
    async def main(host: Host) -> None:
        await host.loop.create_future()

    before = sys.get_asyncgen_hooks()
    with Simulation(1) as simulation:
        simulation.machine("a").start(main)
        simulation.run_for(1)
        assert sys.get_asyncgen_hooks() == before
        assert not gc.isenabled()
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
    assert gc.isenabled()
    assert sys.get_asyncgen_hooks() == before


def test_a_task_that_never_began_dies_with_its_loop_without_a_warning() -> None:
    async def never() -> None:
        raise AssertionError("began")

    async def main(host: Host) -> None:
        tasks.append(asyncio.create_task(never()))
        simulation.machine("a").crash()

    tasks: list[asyncio.Task[None]] = []
    with Simulation(1) as simulation:
        simulation.machine("a").start(main)
        simulation.run_for(1)
        tasks.clear()
        gc.collect()


def test_a_paused_loop_runs_nothing_until_it_is_resumed() -> None:
    ticks: list[float] = []

    async def main(host: Host) -> None:
        while True:
            await asyncio.sleep(0.1)
            ticks.append(simulation.now)

    with Simulation(1) as simulation:
        machine = simulation.machine("a")
        machine.start(main)
        simulation.run_for(1.05)
        before = len(ticks)
        machine.pause()
        simulation.run_for(5)
        assert len(ticks) == before
        machine.resume()
        simulation.run_for(1)
        assert 5 < len(ticks) - before <= 11
        assert ticks[before] >= 6.05


def test_a_pause_before_anything_ran_holds_the_process_back() -> None:
    began: list[int] = []

    async def main(host: Host) -> None:
        began.append(1)

    with Simulation(1) as simulation:
        process = simulation.machine("a").start(main)
        process.pause()
        simulation.run_for(1)
        assert began == []
        process.resume()
        simulation.run_for(1)
        assert began == [1]


def test_threads_and_real_running_are_refused() -> None:
    async def main(host: Host) -> None:
        with pytest.raises(RuntimeError, match=r"Host\.offload"):
            await asyncio.to_thread(print)
        with pytest.raises(RuntimeError, match="run by its Simulation"):
            host.loop.run_forever()
        with pytest.raises(NotImplementedError, match="no ssl"):
            await host.loop.create_connection(asyncio.Protocol, "a", 1, ssl=True)

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("a"), main)


def test_the_simulation_cannot_be_run_from_inside() -> None:
    async def main(host: Host) -> None:
        with pytest.raises(RuntimeError, match="running already"):
            simulation.run_for(1)

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("a"), main)


def test_an_abandoned_asynchronous_generator_is_closed_on_its_loop() -> None:
    closed: list[str] = []

    async def numbers(host: Host) -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0.001)
            closed.append(host.name)

    async def main(host: Host) -> None:
        async for _ in numbers(host):
            break
        await asyncio.sleep(0.1)

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("a"), main)
    assert closed == ["a"]


def test_a_task_that_is_lost_while_it_waits_fails_the_run() -> None:
    async def waits(host: Host) -> None:
        await host.loop.create_future()

    async def main(host: Host) -> None:
        asyncio.create_task(waits(host))  # noqa: RUF006 - the mistake that is to be found
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gc.collect()
        await asyncio.sleep(0)

    with Simulation(1) as simulation, pytest.raises(SimulationFailedError, match="destroyed but it is pending"):
        simulation.run_on(simulation.machine("a"), main)


def test_every_tick_is_in_the_trace() -> None:
    async def main(host: Host) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("a"), main)
        ticks = [event for event in simulation.trace.events() if event.occurrence is Occurrence.TICK]
    assert len(ticks) >= 10
    assert {event.label for event in ticks} == {"a"}
    assert str(ticks[0]).split()[1:] == ["a", "tick", "1"]


def test_profiles_are_per_machine() -> None:
    slow = replace(Profile(), loop=LoopProfile(tick_seconds=(0.01, 0.01)))

    async def main(host: Host) -> float:
        began = host.loop.time()
        await asyncio.sleep(0)
        return host.loop.time() - began

    with Simulation(1) as simulation:
        assert simulation.run_on(simulation.machine("slow", profile=slow), main) >= 0.0099
        assert simulation.run_on(simulation.machine("fast"), main) < 0.001


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("sendfile", (None, None)),
        ("start_tls", (None, None, None)),
        ("create_datagram_endpoint", (None,)),
        ("create_unix_connection", (None,)),
        ("create_unix_server", (None,)),
        ("connect_accepted_socket", (None, None)),
        ("sock_recv", (None, 1)),
        ("sock_sendall", (None, b"")),
        ("sock_connect", (None, None)),
        ("sock_accept", (None,)),
        ("connect_read_pipe", (None, None)),
        ("connect_write_pipe", (None, None)),
        ("subprocess_exec", (None,)),
        ("subprocess_shell", (None, "")),
        ("add_reader", (0, None)),
        ("remove_reader", (0,)),
        ("add_writer", (0, None)),
        ("remove_writer", (0,)),
        ("add_signal_handler", (15, None)),
        ("remove_signal_handler", (15,)),
        ("set_default_executor", (None,)),
    ],
)
def test_what_a_simulation_does_not_have_says_so(method: str, arguments: tuple[object, ...]) -> None:
    async def main(host: Host) -> None:
        called = getattr(host.loop, method)(*arguments)
        if inspect.isawaitable(called):
            await called

    with Simulation(1) as simulation, pytest.raises(NotImplementedError, match=rf"no {method}.*: "):
        simulation.run_on(simulation.machine("a"), main)


def test_nothing_of_asyncios_loops_is_left_out_without_a_word() -> None:
    named = [name for name in vars(asyncio.AbstractEventLoop) if not name.startswith("_")]
    silent = [name for name in named if getattr(SimulatedLoop, name) is getattr(asyncio.AbstractEventLoop, name)]
    assert silent == []
