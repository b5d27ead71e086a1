"""The clocks of one simulated machine: a wall clock that is wrong, drifts and can be set, and the monotonic clock
behind `loop.time()`.

Both come from one crystal: `drift_ppm` makes both fast (positive) or slow. The wall clock is virtual time plus an
offset, counted from a fixed day; it can be set, and so go backwards. The monotonic clock starts at a seeded moment of
its own and never steps; no two machines agree on it.
"""

from __future__ import annotations

from barnabas.testing.profile import ClockProfile
from barnabas.testing.trace import Occurrence
from barnabas.testing.world import World

SIMULATION_STARTED_MS = 1_767_225_600_000
"""Wall-clock time at virtual time 0: 2026-01-01 00:00 UTC."""


class SimulatedClock:
    """A machine's clocks; fulfils `kernel.host.Clock`."""

    def __init__(self, world: World, name: str, profile: ClockProfile) -> None:
        random = world.random(f"clock/{name}")
        self._world = world
        self._label = world.trace.label(name)
        self._rate = 1.0 + random.uniform(*profile.drift_ppm) / 1e6
        self._based_at = world.now
        self._wall_seconds = SIMULATION_STARTED_MS / 1000 + world.now + random.uniform(*profile.offset_seconds)
        self._monotonic_seconds = float(random.randrange(10, 1_000_000))

    def time_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC, as this machine believes."""
        return int((self._wall_seconds + (self._world.now - self._based_at) * self._rate) * 1000)

    def stopwatch(self) -> float:
        """As `monotonic`: what is done within a turn takes no time."""
        return self.monotonic()

    def monotonic(self) -> float:
        """Seconds that never go back; what `loop.time()` says on this machine."""
        return self._monotonic_seconds + (self._world.now - self._based_at) * self._rate

    def virtual_time(self, monotonic_seconds: float) -> float:
        """The virtual time at which, at the present rate, the monotonic clock will show `monotonic_seconds`; not
        before now.
        """
        when = self._based_at + (monotonic_seconds - self._monotonic_seconds) / self._rate
        return max(when, self._world.now)

    def virtual_seconds(self, seconds: float) -> float:
        """How much virtual time passes while this machine counts `seconds`."""
        return seconds / self._rate

    @property
    def drift_ppm(self) -> float:
        """How fast both clocks run, in parts per million above virtual time."""
        return (self._rate - 1.0) * 1e6

    def set_drift(self, drift_ppm: float) -> None:
        """Changes the rate of both clocks from now on."""
        self._rebase()
        self._rate = 1.0 + drift_ppm / 1e6
        self._world.trace.add(self._world.now, Occurrence.CLOCK_SET, self._label, int(drift_ppm * 1000))

    def step(self, seconds: float) -> None:
        """Sets the wall clock forward, or back when negative."""
        self._rebase()
        self._wall_seconds += seconds
        self._world.trace.add(self._world.now, Occurrence.CLOCK_SET, self._label, int(seconds * 1000))

    def set_time_ms(self, time_ms: int) -> None:
        """Sets the wall clock."""
        self.step(time_ms / 1000 - self._wall_seconds - (self._world.now - self._based_at) * self._rate)

    def restart(self) -> None:
        """The machine boots: the monotonic clock begins again, the wall clock has gone on."""
        self._rebase()
        self._monotonic_seconds = 1.0

    def _rebase(self) -> None:
        elapsed = (self._world.now - self._based_at) * self._rate
        self._wall_seconds += elapsed
        self._monotonic_seconds += elapsed
        self._based_at = self._world.now
