"""Connections that this broker opens to others: for the fetchers of its followers, and for its controller."""

from __future__ import annotations

import random

from barnabas.cluster.image import Node
from barnabas.config.listeners import SecurityProtocol
from barnabas.link.connection import LinkContext
from barnabas.link.outgoing import Outgoing, OutgoingSettings


class BrokerLinks:
    """Makes connections to brokers. It is `replication.ports.LeaderConnections`."""

    def __init__(self, context: LinkContext, random: random.Random, settings: OutgoingSettings) -> None:
        self._context = context
        self._random = random
        self._settings = settings

    def connect(self, node: Node, client_id: str) -> Outgoing:
        """A connection for the fetchers of one leader; nothing is sent yet."""
        return Outgoing(self._context, self._random, node.host, node.port, client_id=client_id, settings=self._settings)


class ControlLinks:
    """Makes the connections of the controller. It is `controller.ports.BrokerConnections`."""

    def __init__(self, context: LinkContext, random: random.Random, settings: OutgoingSettings, client_id: str) -> None:
        self._context = context
        self._random = random
        self._settings = settings
        self._client_id = client_id

    def connect(self, broker_id: int, host: str, port: int, listener_name: str, security_protocol: str) -> Outgoing:
        """A connection for control requests to one broker; nothing is sent yet."""
        if security_protocol != SecurityProtocol.PLAINTEXT.name:
            raise ValueError(
                f"broker {broker_id} speaks {security_protocol} on {listener_name}: only PLAINTEXT is known"
            )
        return Outgoing(
            self._context,
            self._random,
            host,
            port,
            client_id=self._client_id,
            settings=self._settings,
            is_control=True,
        )
