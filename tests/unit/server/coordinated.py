"""Sessions with an embedded coordinator in virtual time, for tests of what a broker does before it serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordination.embedded.server import EmbeddedCoordinator
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.host import Host
from barnabas.kernel.logs import Logs
from barnabas.server.coordination_session import CoordinationSession
from barnabas.testing.simulated_host import Main, SimulatedMachine
from barnabas.testing.simulation import Simulation

COORDINATOR = "coordinator"
PORT = 2181
TIMEOUT_MS = 6_000


class Lines(logging.Handler):
    """Keeps the lines of a log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def __contains__(self, text: object) -> bool:
        return any(str(text) in line for line in self.lines)


async def serve(host: Host) -> None:
    """The coordinator's main."""
    coordinator = EmbeddedCoordinator(host, CoordinatorConfig("/data", host="0.0.0.0", port=PORT))
    await coordinator.start()
    await coordinator.failure


def start_coordinator(simulation: Simulation) -> SimulatedMachine:
    machine = simulation.machine(COORDINATOR)
    machine.start(serve)
    return machine


def run_on_broker(seed: int, main: Main) -> Any:
    """Runs `main(host)` on a broker's machine beside a coordinator, and returns what it returns."""
    with Simulation(seed) as simulation:
        start_coordinator(simulation)
        return simulation.run_on(simulation.machine("broker"), main)


def logger_of(host: Host, lines: Lines) -> logging.Logger:
    return Logs(host.name, host.clock, lines).logger("test")


def session_on(host: Host, lines: Lines, *, chroot: str = "") -> CoordinationSession:
    """Not connected yet."""
    settings = ClientSettings(f"{COORDINATOR}:{PORT}{chroot}", session_timeout_ms=TIMEOUT_MS)
    return CoordinationSession(host, settings, logger_of(host, lines))


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Returns when the condition holds, looked at every 10 ms; in a simulation that costs no time."""
    async with asyncio.timeout(seconds):
        while not condition():
            await pause(0.01)


async def pause(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    waited = loop.create_future()
    loop.call_later(seconds, waited.set_result, None)
    await waited
