"""A network server with a handler that tests steer, and a plain client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from barnabas.kernel.host import Host
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.tick import Tick
from barnabas.kernel.timers import Timers
from barnabas.link.buffers import BufferPool
from barnabas.network.config import ListenerConfig, NetworkConfig
from barnabas.network.connection import ServerConnection, Slot
from barnabas.network.server import NetworkServer
from barnabas.quotas.connection_rates import ConnectionRates
from barnabas.wire.primitives import Buffer, ProtocolError

DATA = ListenerConfig("DATA", "127.0.0.1", 0)
CONTROL = ListenerConfig("CONTROL", "127.0.0.1", 0, is_control_plane=True)
# asyncio's own loop of these does not tell a protocol that `writelines` has filled its transport (CVE-2024-12254).
_TELLS_NOBODY_THAT_IT_IS_FULL = (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)
LOOPS_THAT_TELL_WHEN_FULL = ["uvloop"] if _TELLS_NOBODY_THAT_IT_IS_FULL else ["asyncio", "uvloop"]


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


class Handler:
    """Answers a request with its own bytes, except:

    `park...` waits until the test completes it; `queue...` too, and counts as queued; `silent` has no answer;
    `big` is answered with 1 MiB; `broken` and `bug` raise. It notes every request, and overwrites its bytes.
    """

    def __init__(self) -> None:
        self.handled: list[bytes] = []
        self.slots: dict[bytes, Slot] = {}
        self.opened: list[ServerConnection] = []
        self.closed: list[ServerConnection] = []
        self.changed = asyncio.Event()

    def handle(
        self, connection: ServerConnection, buffer: bytearray | memoryview, start: int, end: int
    ) -> list[Buffer] | None:
        request = bytes(buffer[start:end])
        buffer[start:end] = bytes(end - start)
        self.handled.append(request)
        self.changed.set()
        if request.startswith((b"park", b"queue")):
            self.slots[request] = connection.park(is_queued=request.startswith(b"queue"))
            return None
        if request == b"silent":
            return None
        if request == b"broken":
            raise ProtocolError("the request is broken")
        if request == b"bug":
            raise ZeroDivisionError("a bug in a handler")
        if request == b"big":
            return [struct.pack(">i", 1 << 20), memoryview(bytes(1 << 20))]
        return [framed(request)]

    def is_of_controller(self, _connection: ServerConnection, api_key: int) -> bool:
        """Requests that begin with `control`."""
        return api_key == int.from_bytes(b"co", "big")

    def connection_opened(self, connection: ServerConnection) -> None:
        self.opened.append(connection)
        self.changed.set()

    def connection_closed(self, connection: ServerConnection) -> None:
        self.closed.append(connection)
        self.changed.set()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Returns once the condition holds, looked at whenever the handler is called."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()


class Serving:
    """What a test has of a running server."""

    def __init__(self, host: Host, config: NetworkConfig, rates: ConnectionRates | None = None) -> None:
        self.timers = Timers(host.loop)
        self.lines = Lines()
        self.handler = Handler()
        self.metrics = MetricsRegistry(host.loop.time)
        self.pool = BufferPool(lent_max=3, poisons=True)
        self.tick = Tick(host.loop)
        self.ports: dict[str, int] = {}
        logger = logging.getLogger(f"network of {id(self)}")
        logger.addHandler(self.lines)
        self.server = NetworkServer(
            host, self.timers, config, self.handler, logger, self.metrics, tick=self.tick, pool=self.pool, rates=rates
        )


@contextlib.asynccontextmanager
async def serving(
    host: Host,
    config: NetworkConfig | None = None,
    listeners: tuple[ListenerConfig, ...] = (DATA,),
    *,
    rates: ConnectionRates | None = None,
) -> AsyncIterator[Serving]:
    """Serves until the block ends."""
    served = Serving(host, config or NetworkConfig(), rates)
    served.ports = await served.server.listen(listeners)
    try:
        yield served
    finally:
        await served.server.close(drain_ms=5_000)
        served.timers.close()


class Client:
    """Frames out and in, over asyncio's streams, on any loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, host: Host, port: int, address: str = "127.0.0.1", limit: int = 1 << 22) -> Client:
        reader = asyncio.StreamReader(limit=limit, loop=host.loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=host.loop)
        transport, _ = await host.loop.create_connection(lambda: protocol, address, port)
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, host.loop))

    def send(self, *requests: bytes) -> None:
        self.writer.write(b"".join(map(framed, requests)))

    async def receive(self) -> bytes:
        size = struct.unpack(">i", await self.reader.readexactly(4))[0]
        return await self.reader.readexactly(size)

    async def ended(self) -> bool:
        """True when the server has closed the connection; what it sent before is skipped."""
        try:
            while await self.reader.read(1 << 20):
                pass
        except ConnectionError:
            return True
        return True

    async def close(self) -> None:
        self.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()
