"""Which structure should hold very many timers, most of which are cancelled before they expire?

    PYTHONPATH=src python benchmarks/kernel/timers.py

compares, each in a process of its own: a heap with lazy cancel; `barnabas.kernel.timers`, a heap of ticks, each with
a dict of its timers; and a hierarchical wheel of 20 slots of 1 ms, as Apache Kafka's. The load is that of a broker:
so many requests are parked, and for each that arrives another one is answered in time, so that its timer is
cancelled; delays are 500 ms (fetch), 30 s (produce) and 45 s (session), or random ones.
"""

from __future__ import annotations

import heapq
import multiprocessing
import random
import resource
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from barnabas.kernel.timers import Timer, Timers

if TYPE_CHECKING:
    import asyncio


class Entry:
    """One timer."""

    __slots__ = ("action", "bucket", "tick")

    def __init__(self, tick: int, action: Callable[[], None] | None) -> None:
        self.tick = tick
        self.action = action
        self.bucket: dict[Entry, None] | None = None


class Structure(Protocol):
    def add(self, tick: int, action: Callable[[], None]) -> Any: ...
    def cancel(self, entry: Any) -> None: ...
    def advance(self, now: int) -> None: ...


class LazyHeap:
    """A heap of (tick, number, entry); cancelled entries stay until they surface or make up half of the heap."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Entry]] = []
        self.number = 0
        self.dead = 0

    def add(self, tick: int, action: Callable[[], None]) -> Entry:
        entry = Entry(tick, action)
        self.number = number = self.number + 1
        heapq.heappush(self.heap, (tick, number, entry))
        return entry

    def cancel(self, entry: Entry) -> None:
        if entry.action is None:
            return
        entry.action = None
        self.dead += 1
        if self.dead > 64 and self.dead * 2 > len(self.heap):
            self.heap = [item for item in self.heap if item[2].action is not None]
            heapq.heapify(self.heap)
            self.dead = 0

    def advance(self, now: int) -> None:
        heap = self.heap
        while heap and heap[0][0] <= now:
            action = heapq.heappop(heap)[2].action
            if action is None:
                self.dead -= 1
            else:
                action()


class HandDrivenLoop:
    """As much of a loop as `Timers` needs, its time set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> HandDrivenLoop:
        self.due = when
        self.callback = callback
        return self

    def cancel(self) -> None:
        """The one timer of the loop is replaced by the next `call_at`."""


class Product:
    """The timers of the kernel."""

    def __init__(self) -> None:
        self.loop = HandDrivenLoop()
        self.timers = Timers(cast("asyncio.AbstractEventLoop", self.loop))

    def add(self, tick: int, action: Callable[[], None]) -> Timer:
        return self.timers.call_at(tick / 1000, action)

    def cancel(self, entry: Timer) -> None:
        entry.cancel()

    def advance(self, now: int) -> None:
        self.loop.now = now / 1000
        if len(self.timers) and self.loop.due <= self.loop.now:
            self.loop.callback()


class Wheel:
    """Kafka's hierarchical wheel: 20 slots of 1 ms, of 20 ms, of 400 ms, ...; what a wide slot has moves down later."""

    SLOTS = 20

    def __init__(self) -> None:
        self.now = 0
        self.expiries: list[int] = []  # Kafka's DelayQueue of slots
        self.slots: dict[int, tuple[int, dict[Entry, None]]] = {}

    def add(self, tick: int, action: Callable[[], None]) -> Entry:
        entry = Entry(tick, action)
        self.place(entry)
        return entry

    def place(self, entry: Entry) -> None:
        width = 1
        reach = self.SLOTS
        delay = entry.tick - self.now
        while delay >= reach:
            width = reach
            reach *= self.SLOTS
        start = entry.tick - entry.tick % width
        key = start * 64 + width.bit_length()
        slot = self.slots.get(key)
        if slot is None:
            slot = self.slots[key] = (start, {})
            heapq.heappush(self.expiries, key)
        slot[1][entry] = None
        entry.bucket = slot[1]

    def cancel(self, entry: Entry) -> None:
        if entry.bucket is not None:
            entry.bucket.pop(entry, None)

    def advance(self, now: int) -> None:
        while self.expiries and self.expiries[0] // 64 <= now:
            start, bucket = self.slots.pop(heapq.heappop(self.expiries))
            self.now = max(self.now, start)
            for entry in bucket:
                if entry.tick <= now:
                    if entry.action is not None:
                        entry.action()
                else:
                    self.place(entry)


STRUCTURES: dict[str, Callable[[], Structure]] = {"lazy heap": LazyHeap, "barnabas": Product, "wheel": Wheel}
PARKED = 100_000
STEPS = 400_000
STEPS_PER_MS = 50


def nothing() -> None:
    """What expires does nothing."""


def measure(name: str, spread: bool) -> tuple[float, float, float]:
    """Microseconds per arrival (an add, a cancel, a share of the advances), per expiry, and MiB for those parked."""
    draw = random.Random(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    timers = STRUCTURES[name]()
    delays = [draw.randrange(1, 60_000) if spread else draw.choice((500, 30_000, 45_000)) for _ in range(STEPS)]
    victims = [draw.randrange(PARKED) for _ in range(STEPS)]
    now = 1_000_000
    parked = []
    for number in range(PARKED):
        parked.append(timers.add(now + number // STEPS_PER_MS + delays[number], nothing))
    started = time.perf_counter()
    for number in range(STEPS):
        if not number % STEPS_PER_MS:
            now += 1
            timers.advance(now)
        victim = victims[number]
        timers.cancel(parked[victim])
        parked[victim] = timers.add(now + delays[number], nothing)
    arrival_us = (time.perf_counter() - started) / STEPS * 1e6
    peak_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    started = time.perf_counter()
    while now < 1_100_000:
        now += 1
        timers.advance(now)
    expiry_us = (time.perf_counter() - started) / PARKED * 1e6
    return arrival_us, expiry_us, peak_mib


def main() -> None:
    print(f"{PARKED} parked, {STEPS} arrivals; medians of 5")
    for spread in (False, True):
        print("random delays of up to a minute" if spread else "delays of 500 ms, 30 s, 45 s")
        for name in STRUCTURES:
            with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
                rounds = [pool.apply(measure, (name, spread)) for _ in range(5)]
            arrival, expiry, memory = (statistics.median(column) for column in zip(*rounds, strict=True))
            print(f"  {name:14} {arrival:6.2f} us per arrival  {expiry:6.2f} us per expiry  {memory:6.1f} MiB")


if __name__ == "__main__":
    main()
