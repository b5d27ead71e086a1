"""Which APIs the broker answers, and who handles each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from barnabas.api.context import RequestContext
from barnabas.api.request_metrics import RequestMetrics
from barnabas.network.connection import ServerConnection
from barnabas.network.ports import FastPath
from barnabas.wire import catalogue
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError


class Handler(Protocol):
    """Handles the requests of one API. There is no base class; `Any` stands for the API's own messages."""

    api_key: ApiKey
    versions: tuple[int, int]
    """The lowest and the highest version that it answers."""

    def handle(self, context: RequestContext, request: Any) -> Any:
        """Runs the request to its answer or to its point of decision, in the order of arrival.

        Returns the response; or a coroutine that will (it starts in the next turn of the loop, and counts against
        `queued.max.requests`); or None, after `context.park()` because it answers later, or because there is no answer.
        Where there may be many elements: steps (`kernel.steps.Steps`), which return one of these. The first step is
        done at once, the others in later turns of the loop, while the connection's next request waits; what was decided
        before a step may be stale after it. A handler in steps parks in its last one, if at all.

        KafkaError becomes `error_response`; ProtocolError closes the connection; anything else is logged and becomes
        UNKNOWN_SERVER_ERROR. Records of the request are views that are valid until this returns.
        """
        ...

    def error_response(self, context: RequestContext, request: Any, error: KafkaError) -> Any:
        """The response of `context.api_version` that says that all of the request failed; or steps that make it."""
        ...


@runtime_checkable
class FastPathHandler(Protocol):
    """A handler that has a fast path for its most frequent requests."""

    def count_by(self, metrics: RequestMetrics) -> None:
        """Where fast paths count their requests: answers, durations and errors. Called first."""
        ...

    def fast_path(
        self,
        connection: ServerConnection,
        buffer: bytearray | memoryview,
        start: int,
        position: int,
        end: int,
        key_and_version: int,
    ) -> FastPath[ServerConnection] | None:
        """A fast path for requests of the connection like `buffer[start:end]`, whose body is at `position`; None if it
        has none.

        `key_and_version` is what the header begins with, as an int32.
        """
        ...


class Registry:
    """The handlers by key."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}

    @property
    def handlers(self) -> Mapping[int, Handler]:
        return self._handlers

    def add(self, handler: Handler) -> None:
        """Raises ValueError for a key that has a handler, and for versions that the codec lacks."""
        key = handler.api_key
        if key in self._handlers:
            raise ValueError(f"{key.api_name} has a handler already: {type(self._handlers[key]).__name__}")
        known = catalogue.request(key).versions
        low, high = handler.versions
        if low > high or low not in known or high not in known:
            raise ValueError(f"{key.api_name} has versions {known}; a handler cannot answer {low} to {high}")
        self._handlers[key] = handler

    def versions(self) -> dict[int, tuple[int, int]]:
        """Lowest and highest version of each API, by key in ascending order: what ApiVersions answers."""
        return {key: self._handlers[key].versions for key in sorted(self._handlers)}
