"""Logins through a real connection: what is answered before a client is known, and what ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from barnabas.api.api_versions import ApiVersionsHandler
from barnabas.api.authentication import Authentication
from barnabas.api.dispatch import Dispatcher
from barnabas.api.sasl_authenticate import SaslAuthenticateHandler
from barnabas.api.sasl_handshake import SaslHandshakeHandler
from barnabas.kernel.host import Host
from barnabas.kernel.metrics import MetricName
from barnabas.kernel.steps import at_once
from barnabas.network.config import ListenerConfig
from barnabas.sasl.mechanisms import Login
from barnabas.sasl.plain import PlainServer
from barnabas.sasl.scram_client import ScramClient
from barnabas.sasl.scram_mechanisms import ScramCredential, ScramMechanism
from barnabas.sasl.scram_server import ScramServer, TokenLogin
from barnabas.security.login import ListenerLogins
from barnabas.testing.simulation import Simulation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    ApiVersionsRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaderAndIsrRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from tests.unit.api.calling import Caller, Calls

LOGIN = ListenerConfig("LOGIN", "127.0.0.1", 0, authenticates=True)
CREDENTIAL = ScramCredential.of_password(ScramMechanism.SHA_256, "secret", b"salt")
DELAY_MS = 100
SESSION_MS = 60_000
HEARTBEAT = HeartbeatRequest(group_id="g", member_id="m")
RIGHT, WRONG = b"\0alice\0secret", b"\0alice\0wrong"
INVALID = "Authentication failed: Invalid username or password"


class HeartbeatHandler:
    """Notes who asks."""

    api_key = ApiKey.HEARTBEAT
    versions = (0, 4)

    def __init__(self) -> None:
        self.principals: list[str] = []

    def handle(self, context: Any, _request: Any) -> HeartbeatResponse:
        self.principals.append(context.principal)
        return HeartbeatResponse()

    def error_response(self, _context: Any, _request: Any, error: Any) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=error.code)


class World:
    """A listener with PLAIN and SCRAM-SHA-256; sessions of PLAIN have a minute."""

    def __init__(self, host: Host, delay_ms: int = DELAY_MS) -> None:
        self.host = host
        self.heartbeats = HeartbeatHandler()
        self.calls = calls = Calls(host, SaslHandshakeHandler(), SaslAuthenticateHandler(), self.heartbeats)
        calls.logger.setLevel(logging.INFO)
        calls.registry.add(ApiVersionsHandler(calls.registry))
        logins = ListenerLogins(
            {
                "PLAIN": partial(PlainServer, {"alice": "secret", "bob": "secret"}),
                "SCRAM-SHA-256": partial(
                    ScramServer,
                    ScramMechanism.SHA_256,
                    lambda _, user: CREDENTIAL if user == "alice" else None,
                    host.entropy,
                    self.token,
                ),
            },
            {"PLAIN": SESSION_MS, "SCRAM-SHA-256": 0},
            8192,
        )
        self.authentication = Authentication(
            host.loop,
            calls.timers,
            {"LOGIN": logins},
            time_ms=host.clock.time_ms,
            elapsed=host.clock.stopwatch,
            failure_delay_ms=delay_ms,
            logger=calls.logger,
            metrics=calls.metrics,
        )
        calls.handler = calls.dispatcher = Dispatcher(
            host, calls.registry, calls.logger, calls.metrics, authentication=self.authentication
        )

    def connect(self, listener: ListenerConfig = LOGIN) -> Caller:
        return self.calls.connect(listener)

    def token(self, _mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
        """One that holds for ten seconds from the first login by it, and one that never did."""
        now_ms = self.host.clock.time_ms()
        ends_ms = {"id": now_ms + 10_000, "old id": now_ms - 1}.get(token_id)
        return None if ends_ms is None else TokenLogin("alice", CREDENTIAL, ends_ms)

    async def by_token(self, token_id: str) -> tuple[Caller, int]:
        """Somebody who has logged in by a token, and the lifetime of its session in ms."""
        caller = self.connect()
        await handshake(caller, "SCRAM-SHA-256")
        client = ScramClient(ScramMechanism.SHA_256, token_id, "secret", self.host.entropy, is_token=True)
        message: bytes | None = client.begin()
        lifetime_ms = -1
        while message is not None:
            answer = await authenticate(caller, message)
            assert answer.error_code == ErrorCode.NONE
            lifetime_ms = answer.session_lifetime_ms
            message = at_once(client.answer(bytes(answer.auth_bytes)))
        return caller, lifetime_ms

    async def logged_in(self, token: bytes = RIGHT) -> Caller:
        caller = self.connect()
        await handshake(caller)
        assert (await authenticate(caller, token)).error_code == ErrorCode.NONE
        return caller

    def count(self, name: str) -> float:
        gauge: Any = self.calls.metrics.get(
            MetricName("kafka.server", "socket-server-metrics", name, (("listener", "LOGIN"),))
        )
        return float(gauge.read())

    async def pass_ms(self, duration_ms: float) -> None:
        await self.calls.timers.sleep(duration_ms)


async def handshake(caller: Caller, mechanism: str = "PLAIN", version: int = 1) -> Any:
    return await caller.call(SaslHandshakeRequest(mechanism=mechanism), version)


async def authenticate(caller: Caller, token: bytes, version: int = 2) -> Any:
    return await caller.call(SaslAuthenticateRequest(auth_bytes=token), version)


def in_world(test: Callable[[World], Awaitable[None]], delay_ms: int = DELAY_MS) -> None:
    async def main(host: Host) -> None:
        world = World(host, delay_ms)
        await test(world)
        world.calls.timers.close()

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("broker"), main, 1_000.0)


@pytest.mark.parametrize("version", range(3))
def test_who_logs_in_is_known_in_every_request(version: int) -> None:
    async def main(world: World) -> None:
        caller = world.connect()
        assert not caller.connection.is_authenticated
        versions = await caller.call(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
        assert {17, 36} <= {api.api_key for api in versions.api_keys}
        answer = await handshake(caller)
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.NONE, ["PLAIN", "SCRAM-SHA-256"])
        answer = await authenticate(caller, RIGHT, version)
        assert (answer.error_code, answer.error_message, bytes(answer.auth_bytes)) == (ErrorCode.NONE, "", b"")
        assert answer.session_lifetime_ms == (SESSION_MS if version else 0)
        assert (await caller.call(HEARTBEAT, 4)).error_code == ErrorCode.NONE
        assert world.heartbeats.principals == ["User:alice"]
        assert world.count("successful-authentication-total") == 1

    in_world(main)


def test_scram_takes_two_rounds() -> None:
    async def main(world: World) -> None:
        caller = world.connect()
        await handshake(caller, "SCRAM-SHA-256")
        client = Login("SCRAM-SHA-256", "alice", "secret").exchange(world.host.entropy)
        message: bytes | None = client.begin()
        while message is not None:
            answer = await authenticate(caller, message)
            assert answer.error_code == ErrorCode.NONE
            assert answer.session_lifetime_ms == 0
            message = at_once(client.answer(bytes(answer.auth_bytes)))
        await caller.call(HEARTBEAT, 0)
        assert world.heartbeats.principals == ["User:alice"]

    in_world(main)


def test_tokens_may_come_without_headers() -> None:
    async def main(world: World) -> None:
        caller = world.connect()
        await handshake(caller, version=0)
        caller.send_bytes(len(RIGHT).to_bytes(4, "big") + RIGHT)
        await world.pass_ms(1)
        assert bytes(caller.transport.written) == bytes(4)
        caller.transport.written.clear()
        await caller.call(HEARTBEAT, 0)
        assert world.heartbeats.principals == ["User:alice"]

    in_world(main)


def test_logins_that_take_long_are_worked_on_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hundreds of clients that come at once: a token signed by ES512 takes 0.6 ms, one of 64 KiB 3."""
    taken_seconds = 0.0
    respond = PlainServer.respond

    def slowly(exchange: PlainServer, token: bytes) -> bytes:
        nonlocal taken_seconds
        taken_seconds += 0.001
        return respond(exchange, token)

    async def main(world: World) -> None:
        world.authentication.elapsed = lambda: taken_seconds
        callers = [world.connect() for _ in range(200)]
        for caller in callers:
            await handshake(caller)
        for caller in callers:
            caller.send(SaslAuthenticateRequest(auth_bytes=RIGHT), 2)
        before, longest = taken_seconds, 0.0
        while not all(caller.connection.is_authenticated for caller in callers):
            await asyncio.sleep(0)
            before, longest = taken_seconds, max(longest, taken_seconds - before)
        assert 0.02 < longest < 0.05

    monkeypatch.setattr(PlainServer, "respond", slowly)
    in_world(main)


@pytest.mark.parametrize("delay_ms", [0, DELAY_MS])
def test_a_failed_login_is_answered_late_and_ended(delay_ms: int) -> None:
    async def main(world: World) -> None:
        caller = world.connect()
        await handshake(caller)
        began = world.host.loop.time()
        answer = await authenticate(caller, WRONG)
        assert (world.host.loop.time() - began) * 1000 >= delay_ms
        assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, INVALID)
        await world.pass_ms(1)
        assert caller.transport.closed
        assert world.count("failed-authentication-total") == 1
        assert world.count("successful-authentication-total") == 0
        logged = "\n".join(world.calls.lines.lines)
        assert INVALID in logged
        assert "wrong" not in logged

    in_world(main, delay_ms)


def test_nothing_is_read_while_a_failed_login_waits() -> None:
    async def main(world: World) -> None:
        caller = world.connect()
        await handshake(caller)
        caller.send(SaslAuthenticateRequest(auth_bytes=WRONG), 2)
        caller.send(SaslHandshakeRequest(mechanism="PLAIN"), 1, answered=False)
        caller.send(SaslAuthenticateRequest(auth_bytes=RIGHT), 2, answered=False)
        caller.send(HEARTBEAT, 0, answered=False)
        await world.pass_ms(10 * DELAY_MS)
        (answer,) = caller.received()
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert caller.transport.closed
        assert world.heartbeats.principals == []

    in_world(main)


def test_a_client_that_goes_first_leaves_nothing() -> None:
    async def main(world: World) -> None:
        caller = world.connect()
        await handshake(caller)
        caller.send(SaslAuthenticateRequest(auth_bytes=WRONG), 2)
        caller.transport.abort()
        await world.pass_ms(2 * DELAY_MS)
        caller = await world.logged_in()
        caller.transport.abort()
        assert len(world.calls.timers) == 0

    in_world(main)


def test_a_mechanism_that_there_is_not_is_answered_with_those_that_are() -> None:
    async def main(world: World) -> None:
        caller = world.connect()
        answer = await handshake(caller, "GSSAPI")
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256"]
        await world.pass_ms(1)
        assert caller.transport.closed
        assert world.count("failed-authentication-total") == 1

    in_world(main)


@pytest.mark.parametrize(
    "requests",
    [
        [(HEARTBEAT, 0)],
        [(LeaderAndIsrRequest(), 4)],
        [(SaslAuthenticateRequest(auth_bytes=RIGHT), 2)],
        [(ApiVersionsRequest(), 0), (ApiVersionsRequest(), 0)],
        [(ApiVersionsRequest(), 0), (HEARTBEAT, 0)],
        [(SaslHandshakeRequest(mechanism="PLAIN"), 1), (HEARTBEAT, 0)],
        [(ApiVersionsRequest(client_software_name="x" * 5000, client_software_version="1"), 3)],
    ],
)
def test_what_may_not_come_yet_ends_the_connection_unanswered(requests: list[tuple[Any, int]]) -> None:
    async def main(world: World) -> None:
        caller = world.connect()
        for request, version in requests[:-1]:
            await caller.call(request, version)
        request, version = requests[-1]
        caller.send(request, version, answered=False)
        await world.pass_ms(2 * DELAY_MS)
        assert caller.received() == []
        assert caller.transport.closed
        assert not caller.connection.is_control
        assert world.heartbeats.principals == []
        assert world.count("failed-authentication-total") == 1

    in_world(main)


def test_a_handshake_amid_a_login_is_illegal() -> None:
    async def main(world: World) -> None:
        caller = world.connect()
        await handshake(caller)
        assert (await handshake(caller)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        await world.pass_ms(1)
        assert caller.transport.closed

    in_world(main)


@pytest.mark.parametrize(
    "data", [b"\0\0\0\4abcd", b"\0\0\0\0", b"\0\0\0\2\0\x12", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64]
)
def test_garbage_ends_the_connection(data: bytes) -> None:
    async def main(world: World) -> None:
        caller = world.connect()
        caller.send_bytes(data)
        await world.pass_ms(2 * DELAY_MS)
        assert caller.transport.closed
        assert caller.received() == []

    in_world(main)


def test_frames_are_small_until_the_client_is_known() -> None:
    async def main(world: World) -> None:
        large = HeartbeatRequest(group_id="g" * 10_000, member_id="m")
        caller = world.connect()
        await handshake(caller)
        caller.send_bytes((8193).to_bytes(4, "big") + b"x")
        await world.pass_ms(1)
        assert caller.transport.closed
        caller = await world.logged_in()
        assert (await caller.call(large, 0)).error_code == ErrorCode.NONE

    in_world(main)


def test_versions_that_are_not_known_may_be_asked_again() -> None:
    async def main(world: World) -> None:
        caller = world.connect()
        refused = await caller.call(ApiVersionsRequest(client_software_name="!", client_software_version="1"), 3)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert (await caller.call(ApiVersionsRequest(), 0)).error_code == ErrorCode.NONE
        await handshake(caller)
        assert (await authenticate(caller, RIGHT)).error_code == ErrorCode.NONE

    in_world(main)


def test_other_listeners_know_no_logins() -> None:
    async def main(world: World) -> None:
        caller = world.connect(ListenerConfig("PLAINTEXT", "127.0.0.1", 0))
        assert (await handshake(caller)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        answer = await authenticate(caller, RIGHT)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        await caller.call(HEARTBEAT, 0)
        assert world.heartbeats.principals == ["User:ANONYMOUS"]

    in_world(main)


def test_a_listener_that_nobody_asks_at_handles_nothing() -> None:
    async def main(world: World) -> None:
        caller = world.connect(ListenerConfig("FORGOTTEN", "127.0.0.1", 0, authenticates=True))
        caller.send(HEARTBEAT, 0, answered=False)
        await world.pass_ms(1)
        assert caller.transport.closed
        assert world.heartbeats.principals == []

    in_world(main)


# Sessions.


def test_a_session_that_is_over_ends_with_the_next_request() -> None:
    async def main(world: World) -> None:
        caller = await world.logged_in()
        await world.pass_ms(SESSION_MS - 1000)
        await caller.call(HEARTBEAT, 0)
        await world.pass_ms(1100)
        caller.send(HEARTBEAT, 0, answered=False)
        await world.pass_ms(1)
        assert caller.transport.closed
        assert world.heartbeats.principals == ["User:alice"]
        assert world.count("expired-connections-killed-count") == 1

    in_world(main)


def test_a_session_by_token_is_its_owners_and_ends_with_the_token() -> None:
    async def main(world: World) -> None:
        caller, lifetime_ms = await world.by_token("id")
        assert 9_000 < lifetime_ms <= 10_000
        assert caller.connection.is_by_token
        await caller.call(HEARTBEAT, 0)
        await world.pass_ms(10_100)
        caller.send(HEARTBEAT, 0, answered=False)
        await world.pass_ms(1)
        assert caller.transport.closed
        assert world.heartbeats.principals == ["User:alice"]

    in_world(main)


def test_a_token_that_has_expired_and_is_not_deleted_yet_lets_nobody_do_anything() -> None:
    """Its login is taken, as in Kafka, and its session is over at once."""

    async def main(world: World) -> None:
        caller, lifetime_ms = await world.by_token("old id")
        assert lifetime_ms == 0
        caller.send(HEARTBEAT, 0, answered=False)
        await world.pass_ms(1)
        assert caller.transport.closed
        assert world.heartbeats.principals == []

    in_world(main)


def test_who_logs_in_again_by_a_password_is_no_token_any_more() -> None:
    async def main(world: World) -> None:
        caller, _ = await world.by_token("id")
        await world.pass_ms(1100)
        await handshake(caller, "SCRAM-SHA-256")
        client = ScramClient(ScramMechanism.SHA_256, "alice", "secret", world.host.entropy)
        answer = await authenticate(caller, client.begin())
        seen = [caller.connection.is_by_token]
        answer = await authenticate(caller, at_once(client.answer(bytes(answer.auth_bytes))) or b"")
        assert answer.session_lifetime_ms == 0
        assert [*seen, caller.connection.is_by_token] == [True, False]
        await world.pass_ms(20_000)
        await caller.call(HEARTBEAT, 0)

    in_world(main)


def test_only_requests_of_a_session_teach_a_fast_path() -> None:
    """Who is diverted has no other way past what asks for the login."""

    async def main(world: World) -> None:
        path: Any = object()
        caller = world.connect()

        def learnt() -> bool:
            caller.connection.learn(path)
            return caller.connection.fast_path is path

        assert not learnt()
        await handshake(caller)
        await authenticate(caller, RIGHT)
        assert learnt()
        await world.pass_ms(SESSION_MS + 1000)
        assert not learnt()

    in_world(main)


@pytest.mark.parametrize("pause_ms", [10, SESSION_MS + 1000])
def test_a_login_is_repeated_before_or_after_the_end_of_the_session(pause_ms: int) -> None:
    async def main(world: World) -> None:
        caller = await world.logged_in()
        await world.pass_ms(pause_ms)
        assert (await handshake(caller)).error_code == ErrorCode.NONE
        answer = await authenticate(caller, RIGHT)
        assert (answer.error_code, answer.session_lifetime_ms) == (ErrorCode.NONE, SESSION_MS)
        await world.pass_ms(SESSION_MS - 1000)
        assert (await caller.call(HEARTBEAT, 0)).error_code == ErrorCode.NONE
        assert world.count("successful-reauthentication-total") == 1
        assert world.count("successful-authentication-total") == 1

    in_world(main)


@pytest.mark.parametrize("token", [WRONG, b"\0bob\0secret"])
def test_a_repeated_login_that_fails_ends_the_connection(token: bytes) -> None:
    async def main(world: World) -> None:
        caller = await world.logged_in()
        await handshake(caller)
        answer = await authenticate(caller, token)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        await world.pass_ms(1)
        assert caller.transport.closed
        assert world.count("failed-reauthentication-total") == 1
        assert world.count("failed-authentication-total") == 0

    in_world(main)


def test_logins_are_not_repeated_all_the_time() -> None:
    async def main(world: World) -> None:
        caller = await world.logged_in()
        await handshake(caller)
        await authenticate(caller, RIGHT)
        assert (await handshake(caller)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await authenticate(caller, RIGHT)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        await caller.call(HEARTBEAT, 0)
        await world.pass_ms(1100)
        assert (await handshake(caller)).error_code == ErrorCode.NONE

    in_world(main)


def test_a_repeated_login_by_a_mechanism_that_there_is_not_ends_the_connection() -> None:
    async def main(world: World) -> None:
        caller = await world.logged_in()
        assert (await handshake(caller, "GSSAPI")).error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        await world.pass_ms(1)
        assert caller.transport.closed
        assert world.count("failed-reauthentication-total") == 1

    in_world(main)


def test_nothing_else_may_come_amid_a_repeated_login() -> None:
    async def main(world: World) -> None:
        caller = await world.logged_in()
        await handshake(caller)
        caller.send(HEARTBEAT, 0, answered=False)
        await world.pass_ms(2 * DELAY_MS)
        assert caller.transport.closed
        assert world.heartbeats.principals == []

    in_world(main)
