"""Connections that this broker opens to others: for the fetchers of its followers, and for its controller."""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeVar

from barnabas.cluster.image import Node
from barnabas.config.listeners import SecurityProtocol
from barnabas.kernel.steps import RunsSteps, StepRunner, Steps
from barnabas.link.connector import Connector
from barnabas.link.outgoing import Outgoing
from barnabas.wire.classes import Message

Result = TypeVar("Result")


class BrokerLinks:
    """Makes connections to brokers. It is `follower.ports.LeaderConnections`."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    def connect(self, node: Node, client_id: str) -> Outgoing:
        """A connection for the fetchers of one leader; nothing is sent yet."""
        return self._connector.connect(node.host, node.port, client_id=client_id)


PARTITIONS_AT_ONCE: Final = 2_000
"""Requests of more partitions are encoded in steps."""


class OneAfterAnother:
    """Runs long work of several connections in its order, and not in turns, which would have all of it done at its end:
    the first broker has its request when the second one's is begun, and few large requests are held at a time.
    """

    def __init__(self, steps: StepRunner) -> None:
        self._steps = steps
        self._free = asyncio.Lock()

    async def run(self, steps: Steps[Result], *, is_urgent: bool = False) -> Result:
        async with self._free:
            return await self._steps.run(steps, is_urgent=is_urgent)


class ControlConnection:
    """A connection to one broker, for a controller. It is `controller.ports.BrokerConnection`."""

    def __init__(self, outgoing: Outgoing, steps: RunsSteps) -> None:
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

    def __init__(self, connector: Connector, steps: StepRunner) -> None:
        self._connector = connector
        self._steps = OneAfterAnother(steps)

    def connect(
        self, broker_id: int, host: str, port: int, listener_name: str, security_protocol: str
    ) -> ControlConnection:
        """A connection for control requests to one broker; nothing is sent yet."""
        wanted = _PROTOCOLS[self._connector.login is not None, self._connector.tls is not None]
        if security_protocol != wanted.name:
            raise ValueError(
                f"broker {broker_id} speaks {security_protocol} on {listener_name}, and this broker {wanted.name}"
            )
        return ControlConnection(self._connector.connect(host, port, is_control=True), self._steps)
