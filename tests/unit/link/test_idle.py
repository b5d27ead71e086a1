"""`barnabas.link.idle`, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

from barnabas.kernel.host import Host
from barnabas.kernel.timers import Timers
from barnabas.link.idle import IdleWatch
from barnabas.testing.simulation import Simulation


class Thing:
    def __init__(self, host: Host, watch: IdleWatch) -> None:
        self.active_step = -1
        self.closed_at: list[float] = []
        self._host = host
        self._watch = watch

    def close_idle(self) -> None:
        self.closed_at.append(self._host.loop.time())
        self._watch.remove(self)


def test_closes_what_is_idle_for_the_time_and_at_most_an_eighth_more() -> None:
    async def main(host: Host) -> None:
        timers = Timers(host.loop)
        watch = IdleWatch(timers, 8_000)
        quiet = Thing(host, watch)
        busy = Thing(host, watch)
        watch.add(quiet)
        watch.add(busy)
        began = host.loop.time()
        for _ in range(16):
            await timers.sleep(700)
            busy.active_step = watch.step
        assert 8.0 <= quiet.closed_at[0] - began <= 9.1
        assert not busy.closed_at
        assert len(watch) == 1
        last = host.loop.time()
        await timers.sleep(9_100)
        assert 8.0 <= busy.closed_at[0] - last <= 9.1
        assert len(timers) == 0

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("a"), main)


def test_very_many_that_fall_silent_together_are_closed_some_at_a_time() -> None:
    async def main(host: Host) -> None:
        timers = Timers(host.loop)
        watch = IdleWatch(timers, 8_000)
        things = [Thing(host, watch) for _ in range(1_000)]
        for thing in things:
            watch.add(thing)
        await host_until(timers, lambda: any(thing.closed_at for thing in things))
        # The last of them has something to say in time.
        things[-1].active_step = watch.step
        await timers.sleep(500)
        times = [thing.closed_at[0] for thing in things[:-1]]
        counts = [times.count(each) for each in sorted(set(times))]
        assert counts == [200, 200, 200, 200, 199]
        assert (things[-1].closed_at, len(watch)) == ([], 1)
        watch.remove(things[-1])
        assert len(timers) == 0

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("a"), main)


def test_nobody_is_left_to_close_when_all_have_gone_meanwhile() -> None:
    async def main(host: Host) -> None:
        timers = Timers(host.loop)
        watch = IdleWatch(timers, 8_000)
        things = [Thing(host, watch) for _ in range(1_000)]
        for thing in things:
            watch.add(thing)
        await host_until(timers, lambda: any(thing.closed_at for thing in things))
        for thing in things:
            watch.remove(thing)
        assert len(timers) == 0
        closed = sum(len(thing.closed_at) for thing in things)
        await timers.sleep(500)
        assert closed == sum(len(thing.closed_at) for thing in things) < len(things)

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("a"), main)


async def host_until(timers: Timers, condition: Callable[[], bool]) -> None:
    while not condition():
        await timers.sleep(1)
