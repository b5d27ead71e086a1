"""`barnabas.kernel.real_turn_watch`: long turns of real loops are found, and named by what ran.

Each watched loop runs in a process of its own, whose main thread and alarm it needs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from barnabas.kernel.real_turn_watch import COLLECTOR, NOTHING, Naming

PROGRAM = """
import asyncio, gc, json, sys, time
import uvloop
from barnabas.kernel import real_turn_watch
from barnabas.kernel.real_turn_watch import Naming, TurnWatch

def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def handle(api):
    spin(0.15)

def held():
    spin(0.15)

class Task:
    async def run(self, name):
        await self.step()
    async def step(self):
        await asyncio.sleep(0)
        spin(0.15)

async def main():
    told = []
    loop = asyncio.get_running_loop()
    # This program stands for a module of the package.
    globals()["__name__"] = "barnabas.program"
    watch = TurnWatch(loop, told.append, [Naming(handle, "api", str.upper), Naming(Task.run, "name", str)])
    watch.start()
    found = {}
    async def after(name, work):
        told.clear()
        result = work()
        if result is not None:
            await result
        await asyncio.sleep(0.1)
        found[name] = [[turn.name, turn.duration_ms, turn.processor_ms, turn.collector_ms, turn.place] for turn in told]
    await after("idle", lambda: asyncio.sleep(1.5))
    async def pieces():
        for _ in range(20):
            spin(0.015)
            await asyncio.sleep(0)
    await after("burst of an idle loop", pieces)
    await after("short", lambda: [None, spin(0.02)][0])
    await after("pieces", pieces)
    await asyncio.sleep(2.0)  # from now on it is an idle loop
    await after("handle", lambda: loop.call_soon(handle, "metadata") and None)
    await after("held", lambda: loop.call_soon(held) and None)
    await after("task", lambda: loop.create_task(Task().run("retention")))
    await after("wait", lambda: loop.call_soon(time.sleep, 0.15) and None)
    garbage = [[] for _ in range(3_000_000)]
    for one in garbage:
        one.append(one)
    await asyncio.sleep(0.1)  # what made the garbage is a long turn of its own
    await after("collector", lambda: loop.call_soon(gc.collect) and None)
    watch.stop()
    await after("stopped", lambda: loop.call_soon(held) and None)
    print(json.dumps(found))

asyncio.Runner(loop_factory=uvloop.new_event_loop if sys.argv[1] == "uvloop" else asyncio.new_event_loop).run(main())
"""


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def found(request: pytest.FixtureRequest) -> dict[str, list[list[Any]]]:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, request.param], capture_output=True, text=True, timeout=50, check=False
    )
    assert ran.returncode == 0, ran.stderr
    turns: dict[str, list[list[Any]]] = json.loads(ran.stdout)
    return turns


@pytest.mark.parametrize("work", ["idle", "burst of an idle loop", "short", "pieces", "stopped"])
def test_says_nothing_of_short_turns(found: dict[str, list[list[Any]]], work: str) -> None:
    # A busy machine may keep the process from its processor; that is not its work.
    assert [turn for turn in found[work] if turn[2] >= turn[1]] == []


@pytest.mark.parametrize(
    ("work", "name"),
    [("handle", "METADATA"), ("held", "program.held"), ("task", "retention")],
    ids=["named", "by the outermost function", "in a task"],
)
def test_names_a_long_turn_by_what_ran(found: dict[str, list[list[Any]]], work: str, name: str) -> None:
    (turn,) = [turn for turn in found[work] if turn[0] == name]
    _, duration_ms, processor_ms, _, place = turn
    assert duration_ms >= 130
    assert processor_ms >= 110
    assert "program.spin:" in place


def test_tells_waiting_from_working(found: dict[str, list[list[Any]]]) -> None:
    name, duration_ms, processor_ms = max(found["wait"], key=lambda turn: turn[1])[:3]
    assert name == NOTHING
    assert duration_ms >= 130
    assert processor_ms < 50


def test_names_the_garbage_collector(found: dict[str, list[list[Any]]]) -> None:
    turn = next(turn for turn in found["collector"] if turn[0] == COLLECTOR)
    assert turn[3] >= turn[1] / 2


def test_a_name_comes_from_a_variable_that_there_is() -> None:
    def work(api: str) -> str:
        return api

    with pytest.raises(ValueError, match="has no local variable 'name'"):
        Naming(work, "name", str)


STOPPED = """
import asyncio, signal, sys, time
import uvloop
from barnabas.kernel import real_turn_watch

async def main():
    real_turn_watch._IDLE_AFTER_BEATS = 1
    real_turn_watch._IDLE_PART_MAX = 1.0
    watch = real_turn_watch.TurnWatch(asyncio.get_running_loop(), lambda _: None, [])
    watch.start()
    while not signal.getitimer(signal.ITIMER_PROF)[1]:
        await asyncio.sleep(0.01)
    signal.raise_signal(signal.SIGPROF)
    watch.stop()
    await asyncio.sleep(0.05)
    time.sleep(0.4)

asyncio.Runner(loop_factory=uvloop.new_event_loop if sys.argv[1] == "uvloop" else asyncio.new_event_loop).run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_sets_no_alarm_when_it_is_stopped_in_the_turn_of_one(loop: str) -> None:
    """It would end the process, which takes no alarms any more."""
    ran = subprocess.run([sys.executable, "-c", STOPPED, loop], capture_output=True, text=True, timeout=50, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
