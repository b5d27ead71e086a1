"""What the users of a client share: connections, and what is known of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from barnabas.client.connections import Connections
from barnabas.client.errors import ClientTimeoutError, NoBrokerError
from barnabas.client.metadata import Metadata
from barnabas.client.retrying import Backoff, Retry, is_retriable
from barnabas.client.versions import VERSIONS
from barnabas.kernel.timers import Timers
from barnabas.link.connection import LinkContext
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


class Client:
    """One client of one cluster. `start` it before anything else, and `close` it last, or use it as a context."""

    def __init__(self, host: Host, settings: ClientSettings, logger: logging.Logger) -> None:
        self.host = host
        self.settings = settings
        self.logger = logger
        self.timers = Timers(host.loop)
        limits = LinkLimits(frame_bytes_max=settings.response_bytes_max)
        context = LinkContext.of(host.loop, self.timers, limits, logger)
        self.connections = Connections(context, host.random, settings.client_id, settings.outgoing)
        self.metadata = Metadata(host, self.timers, self.connections, settings, logger)

    @property
    def cluster(self) -> Cluster:
        """What is known of the cluster now."""
        return self.metadata.cluster

    async def start(self, timeout_ms: float | None = None) -> None:
        """Returns when the cluster is known. Raises ClientTimeoutError, which says why it is not."""
        limit_ms = self.settings.api_timeout_ms if timeout_ms is None else timeout_ms
        self.metadata.start()
        try:
            async with asyncio.timeout(limit_ms / 1_000):
                await self.metadata.update()
        except TimeoutError:
            servers = ", ".join(self.settings.bootstrap_servers)
            raise ClientTimeoutError(
                f"no broker at {servers} has answered within {limit_ms:g} ms: {self.metadata.last_error}"
            ) from self.metadata.last_error

    async def close(self) -> None:
        """Ends everything at once; producers and consumers should be closed before."""
        await self.metadata.close()
        await self.connections.close()
        self.timers.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
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
            raise NoBrokerError("no such broker is known now" if node_id < 0 else f"broker {node_id} is not known now")
        return node

    def any_node(self) -> BrokerNode:
        """Some broker; NoBrokerError when none is known."""
        nodes = list(self.cluster.brokers.values())
        if not nodes:
            self.metadata.request_update()
            raise NoBrokerError("no broker is known now")
        return self.host.random.choice(nodes)

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
        """As `ask`, for a request that depends on its version; `highest` lowers the highest version to use."""
        limit_ms = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        ends_at = self.host.loop.time() + limit_ms / 1_000
        outgoing = self.connections.to_node(lane, node)
        await outgoing.ready(limit_ms)
        low, high = VERSIONS[api_key]
        version = outgoing.version_of(api_key, low, high if highest is None else min(high, highest))
        left_ms = max(1.0, (ends_at - self.host.loop.time()) * 1_000)
        return await outgoing.send(build(version), version, left_ms)
