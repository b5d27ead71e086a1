"""Our end of a login, against a broker's dispatcher and network on simulated hosts."""

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
from barnabas.api.registry import Registry
from barnabas.api.sasl_authenticate import SaslAuthenticateHandler
from barnabas.api.sasl_handshake import SaslHandshakeHandler
from barnabas.kernel.host import Host
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.tick import Tick
from barnabas.kernel.timers import Timers
from barnabas.link.buffers import BufferPool
from barnabas.link.connection import LinkContext
from barnabas.link.errors import AuthenticationFailedError
from barnabas.link.limits import LinkLimits
from barnabas.link.login import LinkLogin
from barnabas.link.outgoing import Outgoing, OutgoingSettings
from barnabas.network.config import ListenerConfig, NetworkConfig
from barnabas.network.server import NetworkServer
from barnabas.sasl.exchange import ServerExchange
from barnabas.sasl.mechanisms import Login
from barnabas.sasl.plain import PlainServer
from barnabas.sasl.scram_mechanisms import ScramCredential, ScramMechanism
from barnabas.sasl.scram_server import ScramServer
from barnabas.security.login import ListenerLogins
from barnabas.testing.simulation import Simulation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import HeartbeatRequest, HeartbeatResponse

PORT, PLAIN_PORT = 9093, 9092
SESSION_MS = 2_000
HEARTBEAT = HeartbeatRequest(group_id="g", member_id="m")
LOGGER = logging.getLogger("tests.login")
CREDENTIALS = {
    mechanism: ScramCredential.of_password(mechanism, "secret", b"salt", iterations)
    for mechanism, iterations in zip(ScramMechanism, (4096, 50_000), strict=True)
}


class Slow:
    """Answers after half a second, and notes who asks."""

    api_key = ApiKey.HEARTBEAT
    versions = (0, 4)

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self.principals: list[str] = []

    async def handle(self, context: Any, _request: Any) -> HeartbeatResponse:
        self.principals.append(context.principal)
        await self._timers.sleep(500)
        return HeartbeatResponse()

    def error_response(self, _context: Any, _request: Any, error: Any) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=error.code)


class Broker:
    """A broker that only has heartbeats; `passwords` are those of PLAIN."""

    def __init__(self, passwords: dict[str, str]) -> None:
        self.passwords = passwords
        self.slow: Slow | None = None
        self.authentication: Authentication | None = None

    async def serve(self, host: Host) -> None:
        timers, metrics, registry = Timers(host.loop), MetricsRegistry(host.loop.time), Registry()
        self.slow = Slow(timers)
        for handler in (ApiVersionsHandler(registry), SaslHandshakeHandler(), SaslAuthenticateHandler(), self.slow):
            registry.add(handler)
        scram = {
            mechanism.value: partial(ScramServer, mechanism, self._find, host.entropy) for mechanism in ScramMechanism
        }
        exchanges: dict[str, Callable[[], ServerExchange]] = {"PLAIN": lambda: PlainServer(self.passwords), **scram}
        self.authentication = Authentication(
            host.loop,
            timers,
            {"LOGIN": ListenerLogins(exchanges, dict.fromkeys(exchanges, SESSION_MS), 8192)},
            time_ms=host.clock.time_ms,
            elapsed=host.clock.stopwatch,
            failure_delay_ms=100,
            logger=LOGGER,
            metrics=metrics,
        )
        dispatcher = Dispatcher(host, registry, LOGGER, metrics, authentication=self.authentication)
        tick, pool = Tick(host.loop), BufferPool(poisons=True)
        server = NetworkServer(host, timers, NetworkConfig(), dispatcher, LOGGER, metrics, tick=tick, pool=pool)
        await server.listen(
            [
                ListenerConfig("LOGIN", "0.0.0.0", PORT, authenticates=True),
                ListenerConfig("PLAINTEXT", "0.0.0.0", PLAIN_PORT),
            ]
        )
        await host.loop.create_future()

    def _find(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return CREDENTIALS[mechanism] if user == "alice" else None


def at_broker(test: Callable[[Broker, Host, Callable[..., Outgoing]], Awaitable[None]]) -> None:
    broker = Broker({"alice": "secret"})

    async def main(host: Host) -> None:
        timers, pool = Timers(host.loop), BufferPool(poisons=True)
        context = LinkContext.of(host.loop, timers, LinkLimits(), LOGGER, pool=pool)
        made: list[Outgoing] = []

        def connection(login: Login | None, *, port: int = PORT, learns_versions: bool = True) -> Outgoing:
            made.append(
                Outgoing(
                    *(context, host.random, "broker", port),
                    settings=OutgoingSettings(in_flight_max=2),
                    learns_versions=learns_versions,
                    login=None if login is None else LinkLogin(login, host.entropy),
                )
            )
            return made[-1]

        await test(broker, host, connection)
        for outgoing in made:
            outgoing.close()
            await outgoing.wait_closed()
        assert len(timers) == 0
        assert pool.lent == 0

    with Simulation(1) as simulation:
        simulation.machine("broker").start(broker.serve)
        simulation.run_on(simulation.machine("client"), main, 1_000.0)


@pytest.mark.parametrize("learns_versions", [True, False])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_connection_begins_with_the_login(mechanism: str, learns_versions: bool) -> None:
    async def main(broker: Broker, _host: Host, connection: Callable[..., Outgoing]) -> None:
        outgoing = connection(Login(mechanism, "alice", "secret"), learns_versions=learns_versions)
        await outgoing.send(HEARTBEAT, 4, 5_000)
        assert broker.slow is not None
        assert broker.slow.principals == ["User:alice"]

    at_broker(main)


@pytest.mark.parametrize(
    ("login", "port", "reason"),
    [
        (
            Login("PLAIN", "alice", "wrong"),
            PORT,
            "refuses the login: Authentication failed: Invalid username or password",
        ),
        (Login("SCRAM-SHA-512", "alice", "wrong"), PORT, "invalid credentials with SASL mechanism SCRAM-SHA-512"),
        (Login("SCRAM-SHA-256", "nobody", "secret"), PORT, "invalid credentials with SASL mechanism SCRAM-SHA-256"),
        (Login("PLAIN", "alice", "secret"), PLAIN_PORT, "takes no login: .* [(]ILLEGAL_SASL_STATE[)]"),
    ],
)
def test_a_login_that_is_refused_fails_what_waits_and_says_why(login: Login, port: int, reason: str) -> None:
    async def main(broker: Broker, _host: Host, connection: Callable[..., Outgoing]) -> None:
        outgoing = connection(login, port=port)
        with pytest.raises(AuthenticationFailedError, match=reason) as refusal:
            await outgoing.send(HEARTBEAT, 4, 5_000)
        assert login.password not in str(refusal.value).replace("wrong or", "")
        assert broker.slow is not None
        assert broker.slow.principals == []

    at_broker(main)


def test_a_login_is_repeated_while_requests_go_on() -> None:
    async def main(broker: Broker, host: Host, connection: Callable[..., Outgoing]) -> None:
        outgoing = connection(Login("SCRAM-SHA-256", "alice", "secret"))
        ends_at = host.loop.time() + 10 * SESSION_MS / 1000
        sent = 0

        async def one_after_another() -> None:
            nonlocal sent
            while host.loop.time() < ends_at:
                await outgoing.send(HEARTBEAT, 4, 5_000)
                sent += 1

        await asyncio.gather(*(one_after_another() for _ in range(3)))
        assert broker.authentication is not None
        counts = broker.authentication.counts["LOGIN"]
        assert (counts.successful, counts.failed, counts.failed_again, counts.expired) == (1, 0, 0, 0)
        assert counts.successful_again >= 8
        assert sent > 20

    at_broker(main)


def test_a_repeated_login_that_fails_ends_the_connection_and_the_next_one_says_why() -> None:
    async def main(broker: Broker, host: Host, connection: Callable[..., Outgoing]) -> None:
        outgoing = connection(Login("PLAIN", "alice", "secret"))
        await outgoing.send(HEARTBEAT, 4, 5_000)
        broker.passwords = {"alice": "another"}
        with pytest.raises(AuthenticationFailedError, match="Invalid username or password"):
            while True:
                try:
                    await outgoing.send(HEARTBEAT, 4, 5_000)
                except AuthenticationFailedError:
                    raise
                except ConnectionError:
                    continue
        assert broker.authentication is not None
        assert broker.authentication.counts["LOGIN"].failed_again == 1
        broker.passwords = {"alice": "secret"}
        while not outgoing.is_connected:
            try:
                await outgoing.ready(5_000)
            except ConnectionError:
                assert host.loop.time() < 900
        await outgoing.send(HEARTBEAT, 4, 5_000)

    at_broker(main)
