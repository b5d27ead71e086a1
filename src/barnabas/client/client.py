"""What the users of a client share: connections, and what is known of the cluster."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Collection, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from barnabas.client.connections import Connections
from barnabas.client.elsewhere import SILENT_SECONDS, first_answer
from barnabas.client.errors import ClientTimeoutError, NoBrokerError
from barnabas.client.metadata import Metadata
from barnabas.client.retrying import Backoff, Retry, is_retriable
from barnabas.client.versions import VERSIONS
from barnabas.kernel.spoken import spoken_ms
from barnabas.kernel.timers import Timers
from barnabas.link.connection import LinkContext
from barnabas.link.connector import Connector
from barnabas.link.errors import RequestTimeoutError
from barnabas.link.limits import LinkLimits
from barnabas.wire.errors import KafkaError

if TYPE_CHECKING:
    import logging

    from barnabas.client.cluster import BrokerNode, Cluster
    from barnabas.client.connections import Lane
    from barnabas.client.settings import ClientSettings
    from barnabas.kernel.host import Host
    from barnabas.wire.errors import ErrorCode

Result = TypeVar("Result")
DOUBT_MS: Final = 2_000.0
"""How long an answer may take before the client looks whether the cluster has changed."""
GONE_SECONDS: Final = 2.0
"""How long a broker may be missing in the image before its connections are given up: one image may be wrong."""


class Client:
    """One client of one cluster. `start` it before anything else, and `close` it last, or use it as a context."""

    def __init__(self, host: Host, settings: ClientSettings, logger: logging.Logger) -> None:
        self.host = host
        self.settings = settings
        self.logger = logger
        self.timers = Timers(host.loop)
        limits = LinkLimits(frame_bytes_max=settings.response_bytes_max)
        context = LinkContext.of(host.loop, self.timers, limits, logger)
        login = None
        if settings.login is not None:
            # With SASL behind it, which a client that does not log in need not load.
            from barnabas.link.login import LinkLogin

            login = LinkLogin.of(settings.login, host, self.timers)
        tls = None
        if settings.tls is not None:
            # Which a client without TLS need not load.
            from barnabas.link.handshakes import Handshakes
            from barnabas.link.tls_end import TlsEnd

            tls = TlsEnd(settings.tls, Handshakes(host.loop, self.timers, host.offload))
        self.connections = Connections(
            Connector(context, host.random, settings.client_id, settings.outgoing, login, tls)
        )
        self.metadata = Metadata(host, self.timers, self.connections, settings, logger)
        self._silent: dict[int, float] = {}
        """Brokers that have owed an answer for too long, and until when they are asked only after all others."""
        self._gone: dict[int, float] = {}
        """Brokers with connections that are in the image no more, and since when."""
        self.metadata.add_listener(self._close_gone)

    @property
    def cluster(self) -> Cluster:
        """What is known of the cluster now."""
        return self.metadata.cluster

    async def start(self, timeout_ms: float | None = None) -> None:
        """Returns when the cluster is known. Raises ClientTimeoutError, which says why it is not, and
        AuthenticationFailedError when the brokers refuse the login.
        """
        limit_ms = self.settings.api_timeout_ms if timeout_ms is None else timeout_ms
        self.metadata.start()
        try:
            async with asyncio.timeout(limit_ms / 1_000):
                await self.metadata.update()
        except TimeoutError:
            servers = ", ".join(self.settings.bootstrap_servers)
            raise ClientTimeoutError(
                f"no broker at {servers} has answered within {spoken_ms(limit_ms)}: {self.metadata.last_error}"
            ) from self.metadata.last_error

    async def close(self) -> None:
        """Ends everything at once; producers and consumers should be closed before."""
        await self.metadata.close()
        await self.connections.close()
        self.timers.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except (Exception, asyncio.CancelledError):
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # For the users of the client.

    def retry(self, what: str, timeout_ms: float | None = None) -> Retry:
        """The time and the pauses of one call; `what` completes "... was not done within so many ms"."""
        settings = self.settings
        limit_ms = settings.api_timeout_ms if timeout_ms is None else timeout_ms
        return Retry(what, limit_ms, settings.request_timeout_ms, self.timers, self.host.loop.time, self.backoff())

    async def repeat(
        self,
        what: str,
        attempt: Callable[[float], Awaitable[Result]],
        timeout_ms: float | None = None,
        *,
        final: Collection[ErrorCode] = (),
    ) -> Result:
        """Calls `attempt(ms)`, which may take so long, until it works, and returns its result.

        Raises what cannot pass, what has one of the `final` codes, and ClientTimeoutError after `timeout_ms`
        (`api_timeout_ms` where not given); `what` is as in `retry`.
        """
        retry = self.retry(what, timeout_ms)
        while True:
            try:
                return await attempt(retry.attempt_ms)
            except Exception as error:
                if isinstance(error, KafkaError) and error.code in final:
                    raise
                if is_retriable(error):
                    self.metadata.request_update()
                await retry.again(error)

    def backoff(self) -> Backoff:
        """The pauses between repetitions."""
        return Backoff(self.host.random, self.settings.retry_backoff_ms, self.settings.retry_backoff_ms_max)

    def node(self, node_id: int) -> BrokerNode:
        """A broker by its id. Raises NoBrokerError, and asks for fresh metadata, when it is not known."""
        node = self.cluster.brokers.get(node_id)
        if node is None:
            self.metadata.request_update()
            raise NoBrokerError("the broker is not known now" if node_id < 0 else f"broker {node_id} is not known now")
        return node

    def any_nodes(self) -> list[BrokerNode]:
        """All brokers, in the order in which to ask one of them for what each can answer; NoBrokerError when none is
        known. Those that were silent lately come last.
        """
        nodes = list(self.cluster.brokers.values())
        if not nodes:
            self.metadata.request_update()
            raise NoBrokerError("no broker is known now")
        self.host.random.shuffle(nodes)
        now = self.host.loop.time()
        return sorted(nodes, key=lambda node: self._silent.get(node.node_id, 0.0) > now)

    async def ask_any(self, ask: Callable[[BrokerNode], Coroutine[Any, Any, Result]]) -> Result:
        """What `ask(node)` returns for the first broker that answers; see `first_answer`."""
        nodes = self.any_nodes()
        return await first_answer(
            [functools.partial(ask, node) for node in nodes],
            lambda place: self._note_silence(nodes[place].node_id),
        )

    async def ask(self, node: BrokerNode, lane: Lane, message: Any, timeout_ms: float | None = None) -> Any:
        """Sends a request in the highest version that both sides speak, once connected, and returns the answer.

        `timeout_ms` is `request_timeout_ms` where it is not given. Raises as `Outgoing.send` does.
        """
        return await self.ask_by_version(node, lane, type(message).SCHEMA.api_key, lambda _: message, timeout_ms)

    async def ask_by_version(
        self,
        node: BrokerNode,
        lane: Lane,
        api_key: int,
        build: Callable[[int], Any],
        timeout_ms: float | None = None,
        *,
        highest: int | None = None,
    ) -> Any:
        """Like `ask`, for a request that depends on its version; `highest` lowers the highest version to use."""
        limit_ms = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        ends_at = self.host.loop.time() + limit_ms / 1_000
        outgoing = self.connections.to_node(lane, node)
        await outgoing.ready(limit_ms)
        low, high = VERSIONS[api_key]
        version = outgoing.version_of(api_key, low, high if highest is None else min(high, highest))
        left_ms = max(1.0, (ends_at - self.host.loop.time()) * 1_000)
        doubt = Doubt(self, DOUBT_MS + max(0.0, limit_ms - self.settings.request_timeout_ms))
        try:
            return await outgoing.send(build(version), version, left_ms)
        except RequestTimeoutError as error:
            self._note_silence(node.node_id)
            raise RequestTimeoutError(f"broker {node.node_id}: {error}") from error
        finally:
            doubt.end()

    # Inside.

    def _note_silence(self, node_id: int) -> None:
        self._silent[node_id] = self.host.loop.time() + SILENT_SECONDS

    def _close_gone(self) -> None:
        """Ends the connections to brokers that the cluster has not had for a while, so that nobody waits for them."""
        now = self.host.loop.time()
        brokers = self.cluster.brokers
        missing = self.connections.node_ids - set(brokers)
        self._gone = {node_id: self._gone.get(node_id, now) for node_id in missing}
        for node_id, since in self._gone.items():
            if now - since >= GONE_SECONDS:
                self.connections.close_node(node_id)


class Doubt:
    """Asks for fresh metadata now and then, from its making to `end`: the broker that owes an answer may be dead, or no
    longer the leader, and cannot say so.
    """

    __slots__ = ("_began_at", "_client", "_pause_ms", "_timer")

    def __init__(self, client: Client, pause_ms: float = DOUBT_MS) -> None:
        self._client = client
        self._pause_ms = pause_ms
        self._began_at = client.host.loop.time()
        self._timer = client.timers.call_after(pause_ms, self._look)

    def restart(self) -> None:
        """One answer came, and others are owed."""
        self._began_at = self._client.host.loop.time()

    def end(self) -> None:
        """The answer is there, or nobody waits for it any more."""
        self._timer.cancel()

    def _look(self) -> None:
        passed_ms = (self._client.host.loop.time() - self._began_at) * 1_000
        if passed_ms >= self._pause_ms:
            self._client.metadata.request_update()
            passed_ms = 0.0
        self._timer = self._client.timers.call_after(max(1.0, self._pause_ms - passed_ms), self._look)
