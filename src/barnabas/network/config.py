"""What the network of one broker is to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barnabas.link.limits import LinkLimits

if TYPE_CHECKING:
    from barnabas.link.tls_end import TlsEnd


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """One listener: its name, where it listens (None: every interface; port 0: any that is free), and its bounds."""

    name: str
    host: str | None
    port: int
    is_control_plane: bool = False
    """Its requests go ahead of all others, and no limit on the number of connections counts them
    (`control.plane.listener.name`)."""
    connections_max: int = 2**31 - 1
    """`listener.name.NAME.max.connections`."""
    is_protected: bool = False
    """Neither `max.connection.creation.rate` nor `max.connections` of the broker keeps its connections out, as in
    Kafka: brokers speak by it to each other, and there are other listeners for clients."""
    authenticates: bool = False
    """No request is handled before somebody has said who the client is (`ServerConnection.divert`)."""
    backlog: int = 50
    """Connections that the system holds until they are accepted (`socket.listen.backlog.size`)."""
    tls: TlsEnd | None = None
    """How its connections are secured; None where they are plain."""


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """The bounds of all listeners together."""

    link: LinkLimits = field(default_factory=LinkLimits)
    queued_requests_max: int = 500
    """While so many requests wait for work of this broker, it reads no more of data connections
    (`queued.max.requests`). Requests that wait for something to happen, in a purgatory, do not count, as in Kafka."""
    queued_request_bytes_max: int = -1
    """What frames above 64 KiB may take together while they are received and wait (`queued.max.request.bytes`); -1
    leaves it at 512 MiB, where Kafka has no bound."""
    connections_max: int = 2**31 - 1
    """`max.connections`."""
    connections_per_ip_max: int = 2**31 - 1
    """`max.connections.per.ip`."""
    connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    """By address (`max.connections.per.ip.overrides`, its host names resolved)."""
    open_files_max: int = 2**31 - 1
    """How many files the process may have open: the last of them are not for connections (`kernel.host.files_kept`)."""
    send_buffer_bytes: int = 102_400
    """SO_SNDBUF; -1 leaves it to the system (`socket.send.buffer.bytes`)."""
    receive_buffer_bytes: int = 102_400
    """SO_RCVBUF; -1 leaves it to the system (`socket.receive.buffer.bytes`)."""
