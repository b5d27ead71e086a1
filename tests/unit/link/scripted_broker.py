"""A broker that answers as a test wants, on any loop: for the tests of whoever sends requests."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from barnabas.wire import codec
from barnabas.wire.messages import ApiVersionsResponse, FetchResponse, HeartbeatResponse

Answer = Callable[[int, int, int], bytes | Awaitable[bytes]]
"""Given key, version and correlation id, the bytes to answer with; none for no answer."""


def response(key: int, version: int, correlation_id: int, message: Any) -> bytes:
    return b"".join(codec.response_encoder(key, version)(correlation_id, message))


def answer_plainly(key: int, version: int, correlation_id: int) -> bytes:
    """The correlation id in each answer; to Fetch, one partition with 70,000 bytes of records."""
    if key == 18:
        known = [ApiVersionsResponse.ApiVersion(api_key=12, min_version=0, max_version=4)]
        return response(key, version, correlation_id, ApiVersionsResponse(api_keys=known))
    if key == 1:
        partition = FetchResponse.PartitionData(records=b"r" * 70_000)
        topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])
        return response(key, version, correlation_id, FetchResponse(responses=[topic]))
    return response(key, version, correlation_id, HeartbeatResponse(throttle_time_ms=correlation_id))


class ScriptedBroker:
    """Listens on a loopback port that stays its own through `stop` and `listen`."""

    def __init__(self, answer: Answer = answer_plainly) -> None:
        self.answer = answer
        self.asked: list[tuple[int, int, int]] = []
        """Key, version and correlation id of each request, in order."""
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: dict[asyncio.StreamWriter, None] = {}
        self._serving: set[asyncio.Task[None]] = set()

    async def listen(self, address: str = "127.0.0.1") -> None:
        self._server = await asyncio.start_server(self._serve, address, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def drop_connections(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def stop(self) -> None:
        """Refuses connections from now on, and drops those there are."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop_connections()
        if self._serving:
            await asyncio.wait(self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._writers[writer] = None
        self.connections += 1
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    frame = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
                    key, version, correlation_id = struct.unpack_from(">hhi", frame)
                    self.asked.append((key, version, correlation_id))
                    answer = self.answer(key, version, correlation_id)
                    writer.write(answer if isinstance(answer, bytes) else await answer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        finally:
            self._writers.pop(writer, None)
            self._serving.discard(task)
