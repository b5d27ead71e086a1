"""The client's suite against the embedded coordinator, which runs on a loop of its own in another thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordination.embedded.server import EmbeddedCoordinator
from barnabas.kernel.real_host import real_host
from tests.unit.coordination.client_suite import ClientSuite


class _Server:
    """One coordinator; `port` is set once it serves."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._serving = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="coordinator")
        self.port = 0

    def start(self) -> None:
        self._thread.start()
        if not self._serving.wait(timeout=60):
            raise TimeoutError("the embedded coordinator did not start")

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(timeout=60)
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        async with real_host("coordinator", self._loop) as host:
            config = CoordinatorConfig(str(self._directory), port=0, tick_time_ms=200)
            coordinator = EmbeddedCoordinator(host, config)
            await coordinator.start()
            self.port = coordinator.port
            self._serving.set()
            await self._stopping.wait()
            await coordinator.stop()


@pytest.fixture(scope="module")
def embedded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Server]:
    server = _Server(tmp_path_factory.mktemp("coordinator"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


class TestOnTheEmbeddedCoordinator(ClientSuite):
    @pytest.fixture
    def addresses(self, embedded_server: _Server) -> str:
        return f"127.0.0.1:{embedded_server.port}"
