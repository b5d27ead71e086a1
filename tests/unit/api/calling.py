"""Calls handlers through the real dispatcher and a real connection, over a transport that keeps what is written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from barnabas.api.dispatch import Dispatcher
from barnabas.api.registry import Handler, Registry
from barnabas.kernel.host import Host
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.tick import Tick
from barnabas.kernel.timers import Timers
from barnabas.link.buffers import BufferPool
from barnabas.link.connection import LinkContext
from barnabas.link.limits import LinkLimits
from barnabas.network.config import ListenerConfig
from barnabas.network.connection import ServerConnection
from barnabas.network.ports import RequestHandler
from barnabas.network.request_memory import RequestMemory
from barnabas.network.request_queue import RequestQueue
from barnabas.wire import codec
from tests.unit.network.serving import Lines

DATA = ListenerConfig("PLAINTEXT", "127.0.0.1", 0)
CONTROL = ListenerConfig("CONTROLLER", "127.0.0.1", 0, is_control_plane=True)


class KeepingTransport(asyncio.Transport):
    """Keeps what is written, and tells its connection when it is closed."""

    def __init__(self, connection: ServerConnection) -> None:
        super().__init__({"peername": ("127.0.0.1", 4711)})
        self.written = bytearray()
        self.closed = False
        self._connection = connection
        self._unread = bytearray()
        """What was sent while the connection did not read."""
        self._reading = True

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        self.written += data

    def writelines(self, buffers: Any) -> None:
        for buffer in buffers:
            self.write(buffer)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever unread."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._unread:
            asyncio.get_running_loop().call_soon(self.receive, b"")

    def receive(self, data: bytes) -> None:
        """What the loop would read in one poll; what is more than a buffer holds in several, and nothing while the
        connection does not read.
        """
        self._unread += data
        while self._unread and self._reading and not self.closed:
            target = self._connection.get_buffer(-1)
            count = min(len(target), len(self._unread))
            target[:count] = self._unread[:count]
            del self._unread[:count]
            self._connection.buffer_updated(count)
            if self._unread:
                self._connection.deliver()

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            self._connection.connection_lost(None)


class Calls:
    """A dispatcher with the given handlers; also the owner of its connections."""

    connection_type: type[ServerConnection] = ServerConnection

    def __init__(self, host: Host, *handlers: Handler) -> None:
        self.lines = Lines()
        self.logger = logging.getLogger(f"kafka.server.KafkaApis of {id(self)}")
        self.logger.addHandler(self.lines)
        self.metrics = MetricsRegistry(host.loop.time)
        self.registry = Registry()
        for handler in handlers:
            self.registry.add(handler)
        self.dispatcher = Dispatcher(host, self.registry, self.logger, self.metrics)
        self.handler: RequestHandler[ServerConnection] = self.dispatcher
        self.timers = Timers(host.loop)
        self.tick = Tick(host.loop)
        self.queue = RequestQueue(self.tick, 500)
        self.memory = RequestMemory(self.timers)
        self.requests_received = 0
        self.context = LinkContext.of(
            host.loop, self.timers, LinkLimits(), self.logger, tick=self.tick, pool=BufferPool(poisons=True)
        )

    def opened(self, _connection: ServerConnection) -> bool:
        return True

    def closed(self, _connection: ServerConnection) -> None:
        """Nobody counts."""

    def connect(self, listener: ListenerConfig = DATA, client_id: str | None = "tests") -> Caller:
        return Caller(self, listener, client_id)


class Caller:
    """One client of the dispatcher."""

    def __init__(self, calls: Calls, listener: ListenerConfig, client_id: str | None) -> None:
        self.connection = calls.connection_type(calls.context, calls, listener)
        self.transport = KeepingTransport(self.connection)
        self.connection.connection_made(self.transport)
        self._client_id = client_id
        self._correlation_id = 0
        self._expected: list[tuple[int, int, int]] = []
        self._kept: bytearray | None = None

    @contextmanager
    def kept_back(self) -> Iterator[bytearray]:
        """What `send` would send goes into the buffer instead."""
        kept = self._kept = bytearray()
        try:
            yield kept
        finally:
            self._kept = None

    def send_bytes(self, data: bytes) -> None:
        """What the loop would receive in one poll; what is more than a buffer holds comes in several."""
        if self._kept is not None:
            self._kept += data
            return
        self.transport.receive(data)

    def send(self, message: Any, version: int, *, answered: bool = True) -> None:
        key = message.SCHEMA.api_key
        self._correlation_id += 1
        frame = b"".join(codec.request_encoder(key, version, self._client_id)(self._correlation_id, message))
        if answered:
            self._expected.append((key, version, self._correlation_id))
        self.send_bytes(frame)

    def received(self) -> list[Any]:
        """The responses that have come since the last call, each checked to be the one that is due."""
        data = bytes(self.transport.written)
        self.transport.written.clear()
        found = []
        while data:
            size = int.from_bytes(data[:4], "big")
            frame, data = data[4 : 4 + size], data[4 + size :]
            key, version, correlation_id = self._expected.pop(0)
            assert int.from_bytes(frame[:4], "big") == correlation_id
            message, end = codec.response_decoder(key, version)(frame, 0, len(frame))
            assert end == len(frame)
            found.append(message)
        return found

    async def responses(self, count: int) -> list[Any]:
        """So many responses, once they have come; more must not have."""
        while self._frames_written() < count and not self.transport.closed:
            await asyncio.sleep(0)
        found = self.received()
        assert len(found) == count
        return found

    def _frames_written(self) -> int:
        written = self.transport.written
        count = position = 0
        while position < len(written):
            position += 4 + int.from_bytes(written[position : position + 4], "big")
            count += 1
        return count

    async def call(self, message: Any, version: int) -> Any:
        """The response to a request, once it has come; only for one request at a time."""
        self.send(message, version)
        while not self.transport.written and not self.transport.closed:
            await asyncio.sleep(0)
        (response,) = self.received()
        return response
