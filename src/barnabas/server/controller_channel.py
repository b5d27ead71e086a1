"""Requests from this broker to the present controller.

The controller is who the metadata cache says; where that is wrong or nobody, the request is tried again until its time
is over. Source: how Kafka's NodeToControllerChannelManager behaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from barnabas.cluster.image import Node
from barnabas.cluster.metadata_cache import MetadataCache, MetadataChange
from barnabas.link.connector import Connector
from barnabas.link.errors import ConnectionLostError, RequestTimeoutError
from barnabas.link.outgoing import Outgoing
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode

_RETRY_PAUSE_MS: Final = 50.0
_Attempt = Callable[[Outgoing, float], Awaitable[Any]]


class ControllerChannel:
    """One connection to the present controller, for requests of one purpose."""

    def __init__(
        self,
        name: str,
        connector: Connector,
        *,
        metadata: MetadataCache,
        listener_name: str,
        request_timeout_ms: float,
        logger: logging.Logger,
        learns_versions: bool = False,
    ) -> None:
        """`name` is what log lines call the purpose; `listener_name` is where controllers are reached.

        `send_in_version` needs `learns_versions`.
        """
        self._name = name
        self._loop = connector.context.loop
        self._connector = connector
        self._metadata = metadata
        self._listener_name = listener_name
        self._request_timeout_ms = request_timeout_ms
        self._logger = logger
        self._learns_versions = learns_versions
        self._node: Node | None = None
        self._outgoing: Outgoing | None = None
        self._closed = False
        self._controller_changed: asyncio.Future[None] = self._loop.create_future()
        metadata.add_listener(self._note_change)

    async def send(self, message: Any, version: int, timeout_ms: float | None = None) -> Any:
        """The controller's response, of any error code but NOT_CONTROLLER at its top.

        `timeout_ms` bounds all attempts together; None is `request.timeout.ms`. Raises RequestTimeoutError when it is
        over, and ConnectionLostError when the channel is closed.
        """
        return await self._send(lambda outgoing, left_ms: outgoing.send(message, version, left_ms), timeout_ms)

    async def send_in_version(
        self, api_key: ApiKey, lowest: int, highest: int, build: Callable[[int], Any], timeout_ms: float | None = None
    ) -> tuple[Any, int]:
        """Like `send`, in the highest version within these bounds that the controller speaks, for which `build` makes
        the request: the controllers that are asked in turn may be of different ages. Returns the version too.

        Raises UnsupportedVersionError where the controller speaks none of them.
        """

        async def attempt(outgoing: Outgoing, left_ms: float) -> tuple[Any, int]:
            await outgoing.ready(left_ms)
            version = outgoing.version_of(api_key, lowest, highest)
            return await outgoing.send(build(version), version, left_ms), version

        found: tuple[Any, int] = await self._send(attempt, timeout_ms)
        return found

    async def _send(self, attempt: _Attempt, timeout_ms: float | None) -> Any:
        loop = self._loop
        limit_ms = self._request_timeout_ms if timeout_ms is None else timeout_ms
        deadline = loop.time() + limit_ms / 1000
        reason: object = "it was never asked"
        while (left_ms := (deadline - loop.time()) * 1000) > 0:
            try:
                return await self._try(attempt, left_ms)
            except OSError as error:
                if self._closed:
                    raise
                reason = error
            self._logger.debug("%s: %s", self._name, reason)
            await self._pause(min(_RETRY_PAUSE_MS, left_ms))
        raise RequestTimeoutError(f"{self._name}: no answer from the controller within {limit_ms:.0f} ms ({reason})")

    async def send_once(self, message: Any, version: int, timeout_ms: float | None = None) -> Any:
        """Like `send`, in one attempt: raises ConnectionLostError also when the controller is unknown or another."""
        return await self._try(lambda outgoing, left_ms: outgoing.send(message, version, left_ms), timeout_ms)

    async def _try(self, attempt: _Attempt, timeout_ms: float | None) -> Any:
        outgoing = self._to_controller()
        if outgoing is None:
            raise ConnectionLostError("no controller is known")
        limit_ms = self._request_timeout_ms if timeout_ms is None else min(timeout_ms, self._request_timeout_ms)
        answer = await attempt(outgoing, limit_ms)
        response = answer[0] if isinstance(answer, tuple) else answer
        if getattr(response, "error_code", ErrorCode.NONE) == ErrorCode.NOT_CONTROLLER:
            raise ConnectionLostError(f"{outgoing.peer} is not the controller")
        return answer

    def close(self) -> None:
        """Closes at once; waiting callers get ConnectionLostError."""
        self._closed = True
        if self._outgoing is not None:
            self._outgoing.close()

    def _to_controller(self) -> Outgoing | None:
        node = self._metadata.image.controller_node(self._listener_name)
        if node != self._node:
            if self._outgoing is not None:
                self._outgoing.close()
                self._outgoing = None
            self._node = node
            if node is not None:
                self._logger.info("%s: the controller is broker %d at %s:%d", self._name, node.broker_id, *node[1:3])
        if self._outgoing is None and node is not None:
            self._outgoing = self._connector.connect(node.host, node.port, learns_versions=self._learns_versions)
            if self._closed:
                self._outgoing.close()
        return self._outgoing

    async def _pause(self, limit_ms: float) -> None:
        """Waits until another controller is known, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_ms / 1000):
                await asyncio.shield(self._controller_changed)

    def _note_change(self, change: MetadataChange) -> None:
        if change.controller_changed:
            if not self._controller_changed.done():
                self._controller_changed.set_result(None)
            self._controller_changed = self._loop.create_future()
