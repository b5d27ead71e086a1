"""Python's clocks and its random sources under a simulation, for asyncio code that knows of no `Host`.

Libraries ask `time.monotonic()` for their deadlines and `random.random()` for their back-off. While a `VirtualTime` is
open, code on a simulated loop gets its machine's clocks from the functions of `time`, `time.sleep` holds its loop for
that long in virtual time, and `random` is seeded; so is `os.urandom`, and with it `uuid.uuid4` and `secrets`. It gets
no real socket: who waits for one until a time-out waits for ever, since no virtual time passes. Other threads, which
may run real clusters, see nothing of it, and neither does who has taken the functions before by `from time import
monotonic`.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from asyncio.events import _get_running_loop
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from barnabas.testing.simulated_loop import SimulatedLoop

if TYPE_CHECKING:
    from barnabas.testing.simulation import Simulation

_NANOSECONDS: Final = 1_000_000_000


def _wall_ms(loop: SimulatedLoop) -> int:
    return loop.clock.time_ms() + int(loop.charged_seconds * 1000)


def _monotonic(loop: SimulatedLoop) -> float:
    """With what the code that asks has slept, or who waits for a deadline so would wait for ever."""
    return loop.clock.monotonic() + loop.charged_seconds


_READINGS: Final[dict[str, Callable[[SimulatedLoop], float | int]]] = {
    "time": lambda loop: _wall_ms(loop) / 1000,
    "time_ns": lambda loop: _wall_ms(loop) * 1_000_000,
    "monotonic": _monotonic,
    "monotonic_ns": lambda loop: int(_monotonic(loop) * _NANOSECONDS),
    "perf_counter": _monotonic,
    "perf_counter_ns": lambda loop: int(_monotonic(loop) * _NANOSECONDS),
}


class VirtualTime:
    """In force while it is open, on the thread that has opened it; one at a time."""

    def __init__(self, simulation: Simulation) -> None:
        self._seed = simulation.world.random("random").randrange(2**63)
        self._entropy = simulation.world.random("urandom").randbytes
        self._thread = 0
        self._real: list[tuple[Any, str, Any]] = []
        self._random_state: Any = None

    def __enter__(self) -> Self:
        if getattr(time.time, "is_virtual", False):
            raise RuntimeError("another simulation is open: close it first, by its with block")
        self._thread = threading.get_ident()
        self._random_state = random.getstate()
        random.seed(self._seed)
        for name, reading in _READINGS.items():
            self._replace(time, name, self._clock(getattr(time, name), reading))
        self._replace(time, "sleep", self._sleep(time.sleep))
        self._replace(os, "urandom", self._urandom(os.urandom))
        self._replace(random, "_urandom", self._urandom(os.urandom))  # of SystemRandom, and so of secrets
        self._replace(socket.socket, "__init__", self._no_socket(socket.socket.__init__))
        self._replace(socket, "socketpair", self._no_socket(socket.socketpair))  # whose halves would be left open
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for owner, name, real in reversed(self._real):
            setattr(owner, name, real)
        self._real.clear()
        random.setstate(self._random_state)

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        function.is_virtual = True
        self._real.append((owner, name, getattr(owner, name)))
        setattr(owner, name, function)

    def _loop(self) -> SimulatedLoop | None:
        """The loop whose code asks."""
        if threading.get_ident() != self._thread:
            return None
        loop = _get_running_loop()
        return loop if isinstance(loop, SimulatedLoop) else None

    def _clock(self, real: Callable[[], Any], reading: Callable[[SimulatedLoop], Any]) -> Callable[[], Any]:
        def read() -> Any:
            loop = self._loop()
            return real() if loop is None else reading(loop)

        return read

    def _sleep(self, real: Callable[[float], None]) -> Callable[[float], None]:
        def sleep(seconds: float) -> None:
            loop = self._loop()
            if loop is None:
                real(seconds)
            else:
                loop.charge(loop.clock.virtual_seconds(seconds))

        return sleep

    def _urandom(self, real: Callable[[int], bytes]) -> Callable[[int], bytes]:
        def urandom(size: int) -> bytes:
            return real(size) if self._loop() is None else self._entropy(size)

        return urandom

    def _no_socket(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*arguments: Any, **named: Any) -> Any:
            if self._loop() is not None:
                raise RuntimeError(
                    "code in a simulation has no real sockets: it would wait for them while no virtual time passes; use"
                    " asyncio's connections, which are simulated, as aiokafka and barnabas.client do"
                )
            return real(*arguments, **named)

        return refuse
