"""Automatic collections look at few objects, whatever came and whatever is kept; and cycles do not pile up for ever.

`test_real_collector.py` runs these in a process of their own.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.kernel import real_collector
from barnabas.kernel.real_collector import GROWN_CHECKS, THRESHOLDS, YOUNG_OBJECTS_MAX, CollectorPolicy

Run = Callable[[Any], Any]


class Node:
    """May be part of a cycle."""

    def __init__(self) -> None:
        self.other: Node | None = None


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    thresholds, was_on = gc.get_threshold(), gc.isenabled()
    yield
    gc.set_threshold(*thresholds)
    (gc.enable if was_on else gc.disable)()
    gc.unfreeze()
    gc.collect()


class Looks:
    """How many objects each collection has before it."""

    def __init__(self) -> None:
        self.young: list[int] = []
        self.generations: list[int] = []

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self.young.append(len(gc.get_objects(generation=0)))
            self.generations.append(info["generation"])


def make(count: int) -> list[list[int]]:
    return [[number] for number in range(count)]


def test_what_came_while_the_collector_was_off_is_not_looked_at(run: Run) -> None:
    async def scenario() -> None:
        policy = CollectorPolicy(asyncio.get_running_loop())
        real_collector.rest_while_importing()
        policy.start()
        kept = gc.get_freeze_count()
        looks = Looks()
        gc.callbacks.append(looks)
        try:
            gc.disable()
            request = make(4 * YOUNG_OBJECTS_MAX)
            gc.enable()
            answer = make(10)
            assert looks.young[0] < THRESHOLDS[0]
            assert policy.set_aside_times == 1
            assert gc.get_freeze_count() > kept + 4 * YOUNG_OBJECTS_MAX
            # By references it goes at once.
            del request, answer
            assert gc.get_freeze_count() < kept + 4 * YOUNG_OBJECTS_MAX
        finally:
            gc.callbacks.remove(looks)
            policy.stop()

    run(scenario())


def test_no_look_is_at_more_than_so_many_objects_however_many_are_made(run: Run) -> None:
    async def scenario() -> None:
        policy = CollectorPolicy(asyncio.get_running_loop())
        real_collector.rest_while_importing()
        policy.start()
        looked_at: list[int] = []

        def look(phase: str, info: dict[str, Any]) -> None:
            if phase == "start":
                looked_at.append(sum(len(gc.get_objects(generation=old)) for old in range(info["generation"] + 1)))

        gc.callbacks.append(look)
        try:
            state = make(500_000)
        finally:
            gc.callbacks.remove(look)
            policy.stop()
        assert len(state) == 500_000
        assert len(looked_at) >= 20
        assert max(looked_at) <= 3 * THRESHOLDS[0] + 100

    run(scenario())


def test_what_is_old_is_not_looked_at_by_an_automatic_collection(run: Run) -> None:
    async def scenario() -> None:
        policy = CollectorPolicy(asyncio.get_running_loop())
        gc.set_threshold(1_000, 2, 2)
        policy.start()
        # Python puts a look at all off until a quarter more has come than it has found at the last, which was much in a
        # process that has run many tests.
        gc.collect()
        old: list[int] = []

        def look(phase: str, info: dict[str, Any]) -> None:
            if phase == "start" and info["generation"] == 2:
                old.append(len(gc.get_objects(generation=2)))

        gc.callbacks.append(look)
        try:
            state = make(200_000)
            assert old
            assert max(old) == 0
            assert policy.set_aside_times >= len(old)
            assert len(state) == 200_000
        finally:
            gc.callbacks.remove(look)
            policy.stop()

    run(scenario())


def test_cycles_among_what_was_set_aside_go_when_that_has_doubled(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_collector, "GROWTH_BLOCKS_MIN", 0)

    async def scenario() -> None:
        policy = CollectorPolicy(asyncio.get_running_loop())
        policy.start()
        try:
            policy.check()
            assert policy.full_times == 0
            gc.disable()
            first, second = Node(), Node()
            first.other, second.other = second, first
            gone = weakref.ref(first)
            gc.freeze()
            del first, second
            gc.collect()
            assert gone() is not None
            state = make(sys.getallocatedblocks())
            gc.freeze()
            for _ in range(GROWN_CHECKS):
                assert gone() is not None
                policy.check()
            assert gone() is None
            assert policy.full_times == 1
            # Not again before it has doubled from there.
            for _ in range(GROWN_CHECKS):
                policy.check()
            assert policy.full_times == 1
            assert state
        finally:
            policy.stop()

    run(scenario())


def test_what_was_loaded_is_set_aside_without_a_look(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_collector, "GROWTH_BLOCKS_MIN", 0)

    async def scenario() -> None:
        policy = CollectorPolicy(asyncio.get_running_loop())
        gc.disable()
        policy.start()
        looks = Looks()
        gc.callbacks.append(looks)
        try:
            loaded = make(3 * sys.getallocatedblocks())
            policy.set_aside()
            assert gc.get_freeze_count() > len(loaded)
            for _ in range(GROWN_CHECKS):
                policy.check()
            assert policy.full_times == 0
            assert looks.generations == []
        finally:
            gc.callbacks.remove(looks)
            policy.stop()

    run(scenario())


def test_what_large_requests_hold_for_a_time_is_not_looked_at(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_collector, "GROWTH_BLOCKS_MIN", 0)

    async def scenario() -> None:
        policy = CollectorPolicy(asyncio.get_running_loop())
        gc.disable()
        policy.start()
        try:
            for _ in range(3):
                request = make(2 * sys.getallocatedblocks())
                for _ in range(GROWN_CHECKS - 1):
                    policy.check()
                del request
                # One check that finds it as it was begins the count anew.
                policy.check()
            assert policy.full_times == 0
        finally:
            policy.stop()

    run(scenario())


def test_the_check_does_not_walk_through_what_was_set_aside(run: Run) -> None:
    def least_seconds(function: Callable[[], object]) -> float:
        def seconds() -> float:
            started = time.process_time()
            function()
            return time.process_time() - started

        return min(seconds() for _ in range(5))

    async def scenario() -> None:
        policy = CollectorPolicy(asyncio.get_running_loop())
        gc.disable()
        state = make(1_000_000)
        policy.start()
        try:
            assert least_seconds(policy.check) < least_seconds(gc.get_freeze_count) / 4
            assert policy.full_times == 0
            assert state
        finally:
            policy.stop()

    run(scenario())


def test_after_the_stop_the_collector_is_as_it_was(run: Run) -> None:
    async def scenario() -> None:
        callbacks = list(gc.callbacks)
        policy = CollectorPolicy(asyncio.get_running_loop())
        policy.start()
        policy.stop()
        policy.stop()
        assert gc.callbacks == callbacks
        assert gc.get_freeze_count() == 0

    run(scenario())
