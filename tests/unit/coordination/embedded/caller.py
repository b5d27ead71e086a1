"""A small asynchronous client for tests of the embedded coordinator, on whatever loop they run.

It encodes and decodes with the code of `tests.support.raw_zookeeper`, which shares nothing with the product.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import Any, ClassVar, cast
from weakref import WeakSet

from tests.support.raw_zookeeper import (
    Decoder,
    Encoder,
    Operation,
    Reply,
    Request,
    WatchEvent,
    _decode_body,
)

_SPECIAL_XIDS = {Operation.PING: -2, Operation.AUTH: -4, Operation.SET_WATCHES: -8, Operation.SET_WATCHES2: -8}


class CallerDisconnectedError(Exception):
    """The connection ended before what was awaited arrived."""


class Caller(asyncio.Protocol):
    """One connection with one session. `arrivals` has replies and watch events in the order in which they came, without
    the replies to pings.
    """

    _open: ClassVar[WeakSet[Caller]] = WeakSet()
    """Those of simulations go with their worlds."""

    def __init__(self) -> None:
        self.arrivals: list[Reply | WatchEvent] = []
        self.session_id = 0
        self.password = bytes(16)
        self.timeout_ms = 0
        self.last_zxid = 0
        self.transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._received = bytearray()
        self._connected: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._outstanding: deque[tuple[int, int, asyncio.Future[Reply]]] = deque()
        self._xid = 0

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        timeout_ms: int = 30_000,
        session_id: int = 0,
        password: bytes = bytes(16),
        last_zxid_seen: int = 0,
    ) -> Caller:
        """A connection with a session; raises `CallerDisconnectedError` when it was refused or has expired."""
        loop = asyncio.get_running_loop()
        try:
            _, caller = await loop.create_connection(cls, host, port)
        except OSError as error:
            raise CallerDisconnectedError(str(error)) from error
        request = Encoder().pack("iqiq", 0, last_zxid_seen, timeout_ms, session_id).buffer(password).pack("?", False)
        caller.write_frame(bytes(request.output))
        if not await caller._connected:
            raise CallerDisconnectedError("expired")
        return caller

    @classmethod
    async def drop_all(cls) -> None:
        """Ends every connection of this test."""
        callers = list(cls._open)
        cls._open.clear()
        for caller in callers:
            caller.drop()
        for caller in callers:
            await caller.closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._open.add(self)

    def connection_lost(self, _error: Exception | None) -> None:
        failure = CallerDisconnectedError("the connection was lost")
        if not self._connected.done():
            self._connected.set_exception(failure)
        for _, _, future in self._outstanding:
            if not future.done():
                future.set_exception(failure)
                future.exception()  # whoever awaits it gets it; nobody has to
        self._outstanding.clear()
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            end = 4 + int(struct.unpack_from(">i", self._received)[0])
            if len(self._received) < end:
                return
            frame = bytes(self._received[4:end])
            del self._received[:end]
            self._take(frame)

    def _take(self, frame: bytes) -> None:
        if not self._connected.done():
            answer = Decoder(frame)
            _, self.timeout_ms, self.session_id = answer.unpack("iiq")
            self.password = answer.buffer() or b""
            self._connected.set_result(self.session_id != 0)
            return
        xid, zxid, error = struct.unpack_from(">iqi", frame)
        if xid == -1:
            decoder = Decoder(frame[16:])
            self.arrivals.append(WatchEvent(decoder.number(), decoder.number(), decoder.text() or "", zxid))
            return
        expected, operation, future = self._outstanding.popleft()
        assert xid == expected, f"a reply with xid {xid} where {expected} was next"
        self.last_zxid = max(self.last_zxid, zxid)
        reply = Reply(xid, zxid, error, None if error else _decode_body(operation, frame[16:]))
        # Left out here and not by `ping`: until that runs again, an event may have come behind the reply.
        if operation != Operation.PING:
            self.arrivals.append(reply)
        if not future.done():
            future.set_result(reply)

    def send(self, request: Request) -> asyncio.Future[Reply]:
        """Sends a request, without waiting."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if self.transport is None or self.transport.is_closing():
            future.set_exception(CallerDisconnectedError("not connected"))
            return future
        xid = _SPECIAL_XIDS.get(Operation(request.operation))
        if xid is None:
            self._xid += 1
            xid = self._xid
        self._outstanding.append((xid, request.operation, future))
        self.write_frame(struct.pack(">ii", xid, request.operation) + request.body)
        return future

    async def call(self, request: Request) -> Reply:
        """One request and its reply."""
        return await self.send(request)

    async def body(self, request: Request) -> Any:
        """The body of the reply to a request that must succeed."""
        reply = await self.send(request)
        assert reply.error == 0, f"{Operation(request.operation).name} failed with {reply.error}"
        return reply.body

    async def ping(self) -> None:
        await self.send(Request(Operation.PING, b""))

    async def end(self) -> None:
        """Closes the session."""
        await self.send(Request(Operation.CLOSE_SESSION, b""))
        await self.closed

    def drop(self) -> None:
        """Closes the connection without a word."""
        if self.transport is not None:
            self.transport.abort()

    def take(self) -> list[Reply | WatchEvent]:
        """What has arrived and was not taken yet."""
        arrivals, self.arrivals = self.arrivals, []
        return arrivals

    def write_frame(self, body: bytes) -> None:
        self.write(struct.pack(">i", len(body)) + body)

    def write(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)
