"""A server whose every answer the test writes, to show what a client does on the wire."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from barnabas.coordination.jute import Reader
from barnabas.coordination.protocol import (
    LENGTH,
    REPLY_HEADER,
    XID_NOTIFICATION,
    ConnectRequest,
    ConnectResponse,
    EventType,
    KeeperState,
    WatcherEvent,
    frame,
    read_request_header,
)


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the server sees it; `body` stands behind the header."""

    xid: int
    op_code: int
    body: Reader


class ScriptedConnection:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def frame(self) -> bytes:
        length = LENGTH.unpack(await self.reader.readexactly(4))[0]
        return await self.reader.readexactly(length)

    async def accept(
        self, *, session_id: int = 7, timeout_ms: int = 120_000, password: bytes = b"p" * 16
    ) -> ConnectRequest:
        """Reads the hand-shake and takes the session in; a time-out of 0 says that it has expired.

        No client pings within a test, which would be a request that its script does not know.
        """
        request = ConnectRequest.read(Reader(await self.frame()))
        self.writer.write(frame(ConnectResponse(timeout_ms, session_id, password).pack()))
        return request

    async def request(self) -> Request:
        reader = Reader(await self.frame())
        xid, op_code = read_request_header(reader)
        return Request(xid, op_code, reader)

    def reply(self, request: Request, body: bytes = b"", *, zxid: int = 1, code: int = 0) -> None:
        self.writer.write(frame(REPLY_HEADER.pack(request.xid, zxid, code) + body))

    def notify(self, event_type: EventType, path: str) -> None:
        event = WatcherEvent(event_type, KeeperState.SYNC_CONNECTED, path)
        self.writer.write(frame(REPLY_HEADER.pack(XID_NOTIFICATION, -1, 0) + event.pack()))

    def close(self) -> None:
        self.writer.close()

    async def closed(self) -> bytes:
        """Waits until the client has closed the connection; what it still sent."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


class ScriptedServer:
    """Listens on 127.0.0.1 and hands out the connections in the order in which they come."""

    def __init__(self) -> None:
        self.connections: asyncio.Queue[ScriptedConnection] = asyncio.Queue()
        self.port = 0
        self._all: list[ScriptedConnection] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def connection(self) -> ScriptedConnection:
        return await self.connections.get()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ScriptedConnection(reader, writer)
        self._all.append(connection)
        self.connections.put_nowait(connection)


@contextlib.asynccontextmanager
async def scripted_server() -> AsyncIterator[ScriptedServer]:
    """A server without a script: the test reads and answers."""
    server = ScriptedServer()
    listener = await asyncio.start_server(server._handle, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for connection in server._all:
            connection.close()
            with contextlib.suppress(ConnectionError):
                await connection.writer.wait_closed()
        await listener.wait_closed()
