"""`barnabas.link.client`, against a scripted peer, on both loops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from barnabas.kernel.timers import Timers
from barnabas.link.client import ClientConnection, connect
from barnabas.link.connection import LinkContext
from barnabas.link.errors import ConnectionLostError, InFlightLimitError, RequestTimeoutError
from barnabas.link.limits import LinkLimits
from barnabas.wire import codec
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ApiVersionsRequest, ApiVersionsResponse, HeartbeatRequest, HeartbeatResponse

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Answer = Callable[[int, int, int], bytes]
"""Given key, version and correlation id, the bytes to answer with."""


def heartbeat(_key: int, version: int, correlation_id: int) -> bytes:
    response = HeartbeatResponse(throttle_time_ms=correlation_id)
    return b"".join(codec.response_encoder(12, version)(correlation_id, response))


def scenario(run: Run, answer: Answer, body: Callable[[ClientConnection], Coroutine[Any, Any, None]]) -> None:
    """Runs `body(connection)` with a connection to a peer that answers so."""

    async def main() -> None:
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    frame = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
                    writer.write(answer(*struct.unpack_from(">hhi", frame)))
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            ended.set()

        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        timers = Timers(loop)
        context = LinkContext.of(loop, timers, LinkLimits(), logging.getLogger("link"))
        connection = await connect(
            context, "127.0.0.1", server.sockets[0].getsockname()[1], client_id="me", in_flight_max=3
        )
        try:
            await body(connection)
        finally:
            connection.abort()
            await connection.closed
            await ended.wait()
            server.close()
            assert len(timers) == 0
            timers.close()
            assert context.pool.lent == 0

    run(main())


class CancellingLoop:
    """A loop on which whoever connects is cancelled in the turn in which the connection is made."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.connecting: asyncio.Task[ClientConnection] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, *arguments: Any) -> Any:
        made = await self._loop.create_connection(*arguments)
        assert self.connecting is not None
        self.connecting.cancel()
        return made


def test_a_connection_that_nobody_wants_any_more_when_it_is_made_is_closed(run: Run) -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            ended.set()

        loop: Any = CancellingLoop(asyncio.get_running_loop())
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        timers = Timers(loop)
        context = LinkContext.of(loop, timers, LinkLimits(), logging.getLogger("link"))
        loop.connecting = asyncio.ensure_future(connect(context, "127.0.0.1", server.sockets[0].getsockname()[1]))
        with pytest.raises(asyncio.CancelledError):
            await loop.connecting
        async with asyncio.timeout(60):
            await ended.wait()
        server.close()
        assert len(timers) == 0
        timers.close()

    run(main())


def test_responses_reach_their_requests(run: Run) -> None:
    async def body(connection: ClientConnection) -> None:
        futures = [connection.request(HeartbeatRequest(group_id="g"), 4, 5_000) for _ in range(3)]
        assert connection.in_flight == 3
        with pytest.raises(InFlightLimitError, match="3 requests"):
            connection.request(HeartbeatRequest(group_id="g"), 4, 5_000)
        answers = await asyncio.gather(*futures)
        assert [answer.throttle_time_ms for answer in answers] == [0, 1, 2]
        assert connection.in_flight == 0

    scenario(run, heartbeat, body)


def test_the_one_timer_of_a_connection_comes_for_whichever_request_expires_first(run: Run) -> None:
    def answer(_key: int, _version: int, correlation_id: int) -> bytes:
        return heartbeat(12, 4, correlation_id) if correlation_id == 0 else b""

    async def body(connection: ClientConnection) -> None:
        answered = connection.request(HeartbeatRequest(group_id="g"), 4, 300)
        patient = connection.request(HeartbeatRequest(group_id="g"), 4, 60_000)
        assert (await answered).throttle_time_ms == 0
        # The timer comes when the time of the first is over, which was answered, and goes on to this one.
        late = connection.request(HeartbeatRequest(group_id="g"), 4, 400)
        with pytest.raises(RequestTimeoutError, match="did not answer within 400 ms"):
            await late
        with pytest.raises(ConnectionLostError):
            await patient

    scenario(run, answer, body)


def test_a_request_that_is_not_answered_in_time_fails_and_ends_the_connection(run: Run) -> None:
    async def body(connection: ClientConnection) -> None:
        late = connection.request(HeartbeatRequest(group_id="g"), 4, 20)
        behind = connection.request(HeartbeatRequest(group_id="g"), 4, 5_000)
        with pytest.raises(RequestTimeoutError, match="did not answer within 20 ms"):
            await late
        with pytest.raises(ConnectionLostError):
            await behind
        with pytest.raises(ConnectionLostError):
            connection.request(HeartbeatRequest(group_id="g"), 4, 20)

    scenario(run, lambda *_: b"", body)


@pytest.mark.parametrize(
    "answer", [b"\0\0\0\4\0\0\0\x63", b"\0\0\0\2ab", b"\xff\xff\xff\xff", b"\0\0\0\4\0\0\0\0"], ids=repr
)
def test_an_answer_that_makes_no_sense_ends_the_connection(run: Run, answer: bytes) -> None:
    async def body(connection: ClientConnection) -> None:
        with pytest.raises(ConnectionLostError):
            await connection.request(HeartbeatRequest(group_id="g"), 4, 5_000)
        await connection.closed

    scenario(run, lambda *_: answer, body)


@pytest.mark.parametrize("speaks_ours", [True, False])
def test_learns_the_versions_also_of_a_broker_that_is_older(run: Run, speaks_ours: bool) -> None:
    asked: list[int] = []

    def answer(key: int, version: int, correlation_id: int) -> bytes:
        assert key == 18
        asked.append(version)
        known = speaks_ours or not version
        response = ApiVersionsResponse(
            error_code=0 if known else int(ErrorCode.UNSUPPORTED_VERSION),
            api_keys=[ApiVersionsResponse.ApiVersion(api_key=12, min_version=0, max_version=4)],
        )
        return b"".join(codec.response_encoder(18, version if known else 0)(correlation_id, response))

    async def body(connection: ClientConnection) -> None:
        await connection.learn_api_versions("test", "1", 5_000)
        assert connection.api_versions == {12: (0, 4)}
        assert asked == ([3] if speaks_ours else [3, 0])

    scenario(run, answer, body)
    assert ApiVersionsRequest.SCHEMA.api_key == 18
