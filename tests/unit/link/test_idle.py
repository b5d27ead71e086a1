"""`barnabas.link.idle`, in virtual time."""

from __future__ import annotations

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
