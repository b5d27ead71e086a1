"""What the controller needs from the rest of the broker; the server provides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from barnabas.controller.leadership import ToldLeadership, nothing_was_told
from barnabas.wire.classes import Message


class BrokerRegistration(Protocol):
    """The broker's own znode in `/brokers/ids`."""

    async def register(self) -> int:
        """Creates the broker's znode in the present session, and returns its broker epoch.

        Called for each session after the first one. Its exceptions are logged, and it is called again.
        """
        ...


class BrokerConnection(Protocol):
    """A connection to one broker, made and remade when it is needed."""

    async def send(self, message: Message, version: int, timeout_ms: float) -> Message:
        """Sends one request and returns its response; raises when it did not come."""
        ...

    def close(self) -> None:
        """Closes it at once; what is under way fails."""
        ...


class BrokerConnections(Protocol):
    """Where connections come from."""

    def connect(
        self, broker_id: int, host: str, port: int, listener_name: str, security_protocol: str
    ) -> BrokerConnection:
        """A connection to one listener of a broker; returns at once."""
        ...


class FinalizedFeatureCache(Protocol):
    """What this broker has read of `/feature`."""

    async def wait_for_epoch(self, epoch: int, timeout_ms: float) -> None:
        """Returns once the cache has the version `epoch` of the znode, or a later one; `TimeoutError` otherwise.

        `SessionExpiredError` as soon as the session is over: the next one, in which it could follow, waits for us.
        """
        ...


@dataclass(frozen=True, slots=True)
class ControllerPorts:
    """All of them."""

    registration: BrokerRegistration
    connections: BrokerConnections
    features: FinalizedFeatureCache
    told_leadership: ToldLeadership = nothing_was_told
    heard_epoch: Callable[[], int] = lambda: 0
    """The greatest epoch of a controller that this broker has heard of."""
    elected: Callable[[], object] = lambda: None
    """Called when this broker has become the controller, and has taken over."""
