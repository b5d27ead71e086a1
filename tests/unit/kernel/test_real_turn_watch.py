"""`barnabas.kernel.real_turn_watch`: long turns of real loops are found, and named by what ran.

Each watched loop runs in a process of its own, whose main thread and alarm it needs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

import pytest

from barnabas.kernel.real_turn_watch import COLLECTOR, NOTHING, Naming

PROGRAM = """
import asyncio, gc, json, signal, sys, time
import uvloop
from barnabas.kernel import real_turn_watch
from barnabas.kernel.real_turn_watch import Naming, TurnWatch

def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def handle(api):
    spin(0.25)  # for the alarm, which may be 100 ms late, to come in good time

def held():
    spin(0.15)

def collect():
    for _ in range(10):
        gc.collect()

class Task:
    async def run(self, name):
        await self.step()
    async def step(self):
        await asyncio.sleep(0)
        spin(0.15)

async def main():
    real_turn_watch._IDLE_AFTER_BEATS = 10  # instead of 50, for which this would wait often
    told = []
    loop = asyncio.get_running_loop()
    # This program stands for a module of the package.
    globals()["__name__"] = "barnabas.program"
    watch = TurnWatch(loop, told.append, [Naming(handle, "api", str.upper), Naming(Task.run, "name", str)])
    watch.start()
    found = {}
    turns = []
    async def after(name, work):
        told.clear()
        turns.clear()
        result = work()
        if result is not None:
            await result
        await asyncio.sleep(0.1)
        found[name] = max(turns, default=0), [
            [turn.name, turn.duration_ms, turn.processor_ms, turn.collector_ms, turn.place] for turn in told
        ]
    async def pieces(count, seconds):
        for _ in range(count):
            began = time.monotonic()
            spin(seconds)
            await asyncio.sleep(0)
            turns.append(round((time.monotonic() - began) * 1000))
    async def idle():
        await asyncio.sleep(0.6)
    await after("idle", idle)
    async def late_alarm(work):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPROF])
        await work()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    async def burst():
        await late_alarm(lambda: pieces(5, 0.015))
        await pieces(5, 0.015)
    async def long_turn():
        async def work():
            spin(0.1)
        await late_alarm(work)
        spin(0.1)
    await after("burst of an idle loop", lambda: pieces(20, 0.015))
    async def little():
        for _ in range(10):
            spin(0.002)  # a tenth of a beat
            await asyncio.sleep(0.1)
    beat, beats = TurnWatch._beat, []
    TurnWatch._beat = lambda watch: beats.append(None) or beat(watch)
    await little()  # in which it becomes idle
    beats.clear()
    await little()
    TurnWatch._beat = beat
    beats_of_little_work = len(beats)
    await after("short", lambda: pieces(1, 0.02))
    await after("pieces", lambda: pieces(20, 0.015))
    await idle()
    await after("burst before a late alarm", burst)
    await idle()
    await after("late alarm", long_turn)
    await idle()  # from now on it is an idle loop
    await after("handle", lambda: loop.call_soon(handle, "metadata") and None)
    await after("held", lambda: loop.call_soon(held) and None)
    await after("task", lambda: loop.create_task(Task().run("retention")))
    await after("wait", lambda: loop.call_soon(time.sleep, 0.15) and None)
    garbage = [[] for _ in range(500_000)]
    for one in garbage:
        one.append(one)
    await asyncio.sleep(0.1)  # what made the garbage is a long turn of its own
    await after("collector", lambda: loop.call_soon(collect) and None)
    watch.stop()
    await after("stopped", lambda: loop.call_soon(held) and None)
    print(json.dumps({"beats": beats_of_little_work, "turns": found}))

asyncio.Runner(loop_factory=uvloop.new_event_loop if sys.argv[1] == "uvloop" else asyncio.new_event_loop).run(main())
"""


Turns = dict[str, tuple[int, list[list[Any]]]]
WITHIN_MS: Final = 35
"""How much longer than it was a turn of an idle loop may seem: an alarm of 30 ms is taken to have been in time."""


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def ran(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the program says."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, request.param], capture_output=True, text=True, timeout=110, check=False
    )
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


@pytest.fixture(scope="module")
def found(ran: dict[str, Any]) -> Turns:
    """For each kind of work its longest turn in ms, where it has measured them, and the turns that the watch told."""
    turns: Turns = ran["turns"]
    return turns


def test_a_loop_with_little_to_do_is_not_woken_for_it(ran: dict[str, Any]) -> None:
    assert ran["beats"] < 15  # of 50 in that second; one in the turn after each 30 ms of the processor's time


@pytest.mark.parametrize(
    "work", ["idle", "burst of an idle loop", "short", "pieces", "burst before a late alarm", "stopped"]
)
def test_says_nothing_of_short_turns(found: Turns, work: str) -> None:
    # A busy machine may keep the process from its processor: then a turn was long, and what is said of it has to be so.
    longest_ms, turns = found[work]
    assert [turn for turn in turns if turn[2] >= turn[1] > longest_ms + WITHIN_MS] == []


@pytest.mark.parametrize(
    ("work", "name"),
    [("handle", "METADATA"), ("held", "program.held"), ("task", "retention")],
    ids=["named", "by the outermost function", "in a task"],
)
def test_names_a_long_turn_by_what_ran(found: Turns, work: str, name: str) -> None:
    (turn,) = [turn for turn in found[work][1] if turn[0] == name]
    _, duration_ms, processor_ms, _, place = turn
    assert duration_ms >= 130
    assert processor_ms >= 110
    assert "program.spin:" in place


def test_tells_the_whole_turn_when_the_alarm_was_late(found: Turns) -> None:
    assert max(turn[1] for turn in found["late alarm"][1]) >= 190


def test_tells_waiting_from_working(found: Turns) -> None:
    name, duration_ms, processor_ms = max(found["wait"][1], key=lambda turn: turn[1])[:3]
    assert name == NOTHING
    assert duration_ms >= 130
    assert processor_ms < 50


def test_names_the_garbage_collector(found: Turns) -> None:
    turn = next(turn for turn in found["collector"][1] if turn[0] == COLLECTOR)
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
    ran = subprocess.run(
        [sys.executable, "-c", STOPPED, loop], capture_output=True, text=True, timeout=110, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
