"""Connections that this broker opens to others: for the fetchers of its followers, and for its controller."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from barnabas.cluster.image import Node
from barnabas.config.listeners import SecurityProtocol
from barnabas.kernel.steps import StepRunner
from barnabas.link.connection import LinkContext
from barnabas.link.login import LinkLogin
from barnabas.link.outgoing import Outgoing, OutgoingSettings
from barnabas.wire.classes import Message

if TYPE_CHECKING:
    from barnabas.link.tls import TlsEnd


class BrokerLinks:
    """Makes connections to brokers. It is `follower.ports.LeaderConnections`."""

    def __init__(
        self,
        context: LinkContext,
        random: random.Random,
        settings: OutgoingSettings,
        login: LinkLogin | None = None,
        tls: TlsEnd | None = None,
    ) -> None:
        self._context = context
        self._random = random
        self._settings = settings
        self._login = login
        self._tls = tls

    def connect(self, node: Node, client_id: str) -> Outgoing:
        """A connection for the fetchers of one leader; nothing is sent yet."""
        return Outgoing(
            self._context,
            self._random,
            node.host,
            node.port,
            client_id=client_id,
            settings=self._settings,
            login=self._login,
            tls=self._tls,
        )


PARTITIONS_AT_ONCE: Final = 2_000
"""Requests of more partitions are encoded in steps."""


class ControlConnection:
    """A connection to one broker, for a controller. It is `controller.ports.BrokerConnection`."""

    def __init__(self, outgoing: Outgoing, steps: StepRunner) -> None:
        self._outgoing = outgoing
        self._steps = steps

    async def send(self, message: Message, version: int, timeout_ms: float) -> Message:
        """Like `Outgoing.send`; a message of many partitions does not hold the loop."""
        topics: list[Any] = getattr(message, "topic_states", [])
        response: Message
        if sum(len(topic.partition_states) for topic in topics) > PARTITIONS_AT_ONCE:
            response = await self._outgoing.send_in_steps(message, version, timeout_ms, self._steps)
        else:
            response = await self._outgoing.send(message, version, timeout_ms)
        return response

    def close(self) -> None:
        self._outgoing.close()


_PROTOCOLS: Final = {
    (False, False): SecurityProtocol.PLAINTEXT,
    (False, True): SecurityProtocol.SSL,
    (True, False): SecurityProtocol.SASL_PLAINTEXT,
    (True, True): SecurityProtocol.SASL_SSL,
}
"""By whether it asks for a login, and has TLS."""


class ControlLinks:
    """Makes the connections of the controller. It is `controller.ports.BrokerConnections`."""

    def __init__(
        self,
        context: LinkContext,
        random: random.Random,
        settings: OutgoingSettings,
        client_id: str,
        steps: StepRunner,
        login: LinkLogin | None = None,
        tls: TlsEnd | None = None,
    ) -> None:
        self._login = login
        self._tls = tls
        self._steps = steps
        self._context = context
        self._random = random
        self._settings = settings
        self._client_id = client_id

    def connect(
        self, broker_id: int, host: str, port: int, listener_name: str, security_protocol: str
    ) -> ControlConnection:
        """A connection for control requests to one broker; nothing is sent yet."""
        wanted = _PROTOCOLS[self._login is not None, self._tls is not None]
        if security_protocol != wanted.name:
            raise ValueError(
                f"broker {broker_id} speaks {security_protocol} on {listener_name}, and this broker {wanted.name}"
            )
        outgoing = Outgoing(
            self._context,
            self._random,
            host,
            port,
            client_id=self._client_id,
            settings=self._settings,
            is_control=True,
            login=self._login,
            tls=self._tls,
        )
        return ControlConnection(outgoing, self._steps)
