"""Faults of requests: the next so many of an API are answered with an error, late, or not at all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    import asyncio

    from barnabas.api.context import RequestContext
    from barnabas.server.broker import Broker
    from barnabas.testing.real_links import HeldTransport, NodeLinks

SECONDS_MAX: Final = 300.0


@dataclass(slots=True)
class RequestFault:
    """What happens to the next `left` requests of an API. Of `error`, `seconds` and `is_lost` one is given."""

    api_key: ApiKey
    left: int
    error: ErrorCode | None = None
    """The request is not carried out, and answered with this."""
    seconds: float = 0.0
    """The request is carried out, and its answer comes so much later, with all that follow on its connection."""
    is_lost: bool = False
    """The request is carried out, and its connection ends instead of the answer."""
    client_id: str | None = None
    """Only requests of this client."""


class RequestFaults:
    """The faults of one broker; used on its loop."""

    def __init__(self, broker: Broker, links: NodeLinks, is_of_cluster: Callable[[int, int], bool]) -> None:
        """`is_of_cluster` says whether a connection, from one port to another, was made by the cluster itself: those
        are spared.
        """
        self._broker = broker
        self._links = links
        self._is_of_cluster = is_of_cluster
        self._port = broker.endpoints[0].port
        self._faults: dict[ApiKey, list[RequestFault]] = {}
        self._held: dict[asyncio.TimerHandle, HeldTransport] = {}
        """Connections whose answers are late, by what lets them go."""

    def add(self, fault: RequestFault) -> None:
        """Has it happen after those of its API that were added before."""
        faults = self._faults.setdefault(fault.api_key, [])
        faults.append(fault)
        if len(faults) == 1:
            components = self._broker.components
            components.dispatcher.intercept(fault.api_key, functools.partial(self._look, fault.api_key))
            components.network.forget_fast_paths()

    def clear(self) -> None:
        """Ends all; answers that are late come now."""
        for api_key in list(self._faults):
            self._end(api_key)
        while self._held:
            timer, transport = self._held.popitem()
            timer.cancel()
            transport.let_go()

    def left(self, api_key: ApiKey) -> int:
        """How many requests of that API are still to be struck."""
        return sum(fault.left for fault in self._faults.get(api_key, ()))

    def _look(self, api_key: ApiKey, context: RequestContext, _request: Any) -> None:
        connection = context.connection
        if self._is_of_cluster(int(connection.peer.rpartition(":")[2] or 0), self._port):
            return
        faults = self._faults.get(api_key, [])
        fault = next((each for each in faults if each.client_id in {None, context.client_id}), None)
        if fault is None:
            return
        fault.left -= 1
        if not fault.left:
            faults.remove(fault)
            if not faults:
                self._end(api_key)
        if fault.error is not None:
            raise KafkaError(fault.error, "barnabas.testing was asked to have it fail")
        transport = self._links.transport_of(connection)
        if transport is not None:
            if fault.is_lost:
                transport.lose_next()
            else:
                self._hold(transport, fault.seconds)

    def _hold(self, transport: HeldTransport, seconds: float) -> None:
        def let_go() -> None:
            del self._held[timer]
            transport.let_go()

        transport.hold()
        timer = self._broker.host.loop.call_later(seconds, let_go)
        self._held[timer] = transport

    def _end(self, api_key: ApiKey) -> None:
        self._faults.pop(api_key, None)
        self._broker.components.dispatcher.intercept(api_key, None)


def api_named(name: str) -> ApiKey:
    """The API of that name, in any case. Raises ValueError."""
    for key in ApiKey:
        if name.lower() in {key.api_name.lower(), key.name.lower()}:
            return key
    raise ValueError(f"there is no API {name!r}; there are {', '.join(key.api_name for key in ApiKey)}")


def error_named(error: str | int) -> ErrorCode:
    """The error of that name or code, such as NOT_LEADER_OR_FOLLOWER. Raises ValueError."""
    named = {str(code.name): code for code in ErrorCode}
    found = named.get(error) if isinstance(error, str) else next((each for each in ErrorCode if each == error), None)
    if found is None:
        raise ValueError(
            f"Kafka has no error {error!r}; give one of its names, such as NOT_LEADER_OR_FOLLOWER, or its code"
        )
    if found is ErrorCode.NONE:
        raise ValueError("NONE is no error: give one, such as NOT_LEADER_OR_FOLLOWER")
    return found
