"""An embedded coordinator on a port of this machine, for the time of one test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordination.embedded.connection import Connection
from barnabas.coordination.embedded.server import EmbeddedCoordinator
from barnabas.kernel.real_host import real_host
from tests.unit.coordination.embedded.caller import Caller

Run = Callable[[Any], Any]
HOST = "127.0.0.1"


@contextlib.asynccontextmanager
async def serving(directory: Path, **settings: Any) -> AsyncIterator[EmbeddedCoordinator]:
    async with real_host("test", asyncio.get_running_loop()) as host:
        config = CoordinatorConfig(str(directory), port=0, **{"min_session_timeout_ms": 100, **settings})
        coordinator = EmbeddedCoordinator(host, config)
        await coordinator.start()
        try:
            yield coordinator
        finally:
            await coordinator.stop()
            await Caller.drop_all()


def connection_of(coordinator: EmbeddedCoordinator, caller: Caller) -> Connection:
    return next(each for each in coordinator._connections if each.session_id == caller.session_id)


def give(coordinator: EmbeddedCoordinator, caller: Caller, timeout_ms: int) -> None:
    """Changes a session's time-out. A short one from the beginning may be over before a busy machine is where the
    test wants it.
    """
    connection = connection_of(coordinator, caller)
    assert connection.session is not None
    coordinator.engine.sessions.attach(connection.session, connection, timeout_ms, coordinator.loop.time())
    coordinator.session_deadlines_changed()


async def until(condition: Callable[[], bool]) -> None:
    """Turns the loop until the condition holds; the test's own time-out ends a wait for nothing."""
    while not condition():
        await asyncio.sleep(0)
