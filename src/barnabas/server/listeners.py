"""Listeners of one broker: what the network binds, and what others are told when the ports are known."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barnabas.config.broker_config import BrokerConfig
from barnabas.config.derived import max_connections_per_ip_overrides
from barnabas.config.kafka_versions import is_at_least
from barnabas.config.listeners import Endpoint
from barnabas.config.settings import setting, take
from barnabas.coordination.layout.brokers import BrokerRegistration
from barnabas.kernel.host import Host
from barnabas.link.limits import LinkLimits
from barnabas.link.outgoing import OutgoingSettings
from barnabas.network.config import ListenerConfig, NetworkConfig
from barnabas.server.errors import BrokerStartError
from barnabas.wire.endpoints import BrokerEndpoint

if TYPE_CHECKING:
    from barnabas.link.tls_end import TlsEnd

_IDLE_FOREVER_MS = 2**53


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """The bounds of connections, by Kafka's names."""

    request_bytes_max: int = setting("socket.request.max.bytes", int)
    idle_ms_max: int = setting("connections.max.idle.ms", int)
    queued_requests_max: int = setting("queued.max.requests", int)
    queued_request_bytes_max: int = setting("queued.max.request.bytes", int)
    connections_max: int = setting("max.connections", int)
    connections_per_ip_max: int = setting("max.connections.per.ip", int)
    send_buffer_bytes: int = setting("socket.send.buffer.bytes", int)
    receive_buffer_bytes: int = setting("socket.receive.buffer.bytes", int)
    backlog: int = setting("socket.listen.backlog.size", int)
    connect_timeout_ms: int = setting("socket.connection.setup.timeout.ms", int)
    connect_timeout_ms_max: int = setting("socket.connection.setup.timeout.max.ms", int)


def link_limits(config: BrokerConfig) -> LinkLimits:
    """The bounds of one connection, those that this broker opens included."""
    settings = take(NetworkSettings, config.values)
    idle_ms = settings.idle_ms_max if settings.idle_ms_max > 0 else _IDLE_FOREVER_MS
    return LinkLimits(frame_bytes_max=settings.request_bytes_max, idle_ms_max=idle_ms)


def outgoing_settings(config: BrokerConfig) -> OutgoingSettings:
    """How connections to other brokers are made."""
    settings = take(NetworkSettings, config.values)
    return OutgoingSettings(
        connect_timeout_ms=settings.connect_timeout_ms, connect_timeout_ms_max=settings.connect_timeout_ms_max
    )


async def resolves(loop: asyncio.AbstractEventLoop, name: str) -> bool:
    """Whether an address or a host's name is known."""
    try:
        await loop.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        return False
    return True


async def address_of(loop: asyncio.AbstractEventLoop, name: str) -> str | None:
    """The first address of a host, or an address itself; None for a name that nobody knows."""
    import ipaddress  # for clusters with such quotas

    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(name))
    try:
        found = await loop.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        return None
    return str(found[0][4][0]) if found else None


async def network_config(config: BrokerConfig, host: Host) -> NetworkConfig:
    """The bounds of all listeners. Names in `max.connections.per.ip.overrides` are looked up, once, as in Kafka.

    Raises BrokerStartError for a name that cannot be resolved.
    """
    settings = take(NetworkSettings, config.values)
    overrides: dict[str, int] = {}
    for name, count in max_connections_per_ip_overrides(config.values).items():
        try:
            addresses = await host.loop.getaddrinfo(name, None)
        except OSError as error:
            raise BrokerStartError(
                f"max.connections.per.ip.overrides names {name}, which cannot be resolved: {error}"
            ) from None
        overrides.update({str(address[4][0]): count for address in addresses})
    return NetworkConfig(
        link=link_limits(config),
        queued_requests_max=settings.queued_requests_max,
        queued_request_bytes_max=settings.queued_request_bytes_max,
        connections_max=settings.connections_max,
        connections_per_ip_max=settings.connections_per_ip_max,
        connections_per_ip_overrides=overrides,
        open_files_max=host.open_files_max,
        send_buffer_bytes=settings.send_buffer_bytes,
        receive_buffer_bytes=settings.receive_buffer_bytes,
    )


def listener_configs(config: BrokerConfig, tls: Mapping[str, TlsEnd]) -> list[ListenerConfig]:
    """The addresses to listen on. `tls` has those that are secured, by name."""
    backlog = take(NetworkSettings, config.values).backlog
    found = []
    for endpoint in config.listeners.bound:
        found.append(
            ListenerConfig(
                name=endpoint.listener_name,
                host=endpoint.host,
                port=endpoint.port,
                is_control_plane=endpoint.listener_name == config.listeners.control_plane,
                connections_max=config.of_listener(endpoint.listener_name, "max.connections"),
                is_protected=endpoint.listener_name == config.listeners.inter_broker
                and len(config.listeners.bound) > 1,
                authenticates=endpoint.security_protocol.uses_sasl,
                backlog=backlog,
                # No listener with TLS that is plain because somebody forgot it.
                tls=tls[endpoint.listener_name] if endpoint.security_protocol.uses_tls else None,
            )
        )
    return found


def advertised_endpoints(config: BrokerConfig, ports: Mapping[str, int], host_name: str) -> tuple[BrokerEndpoint, ...]:
    """Where others reach this broker: `ports` stand in for port 0, by listener, and `host_name` for no host."""

    def advertised(endpoint: Endpoint) -> BrokerEndpoint:
        return BrokerEndpoint(
            endpoint.listener_name,
            endpoint.host or host_name,
            endpoint.port or ports[endpoint.listener_name],
            endpoint.security_protocol.name,
        )

    return tuple(advertised(endpoint) for endpoint in config.listeners.advertised)


def broker_registration(
    config: BrokerConfig, endpoints: tuple[BrokerEndpoint, ...], timestamp_ms: int
) -> BrokerRegistration:
    """The payload of `/brokers/ids/N`, in the version that `inter.broker.protocol.version` asks for."""
    protocol_version = str(config.values["inter.broker.protocol.version"])
    version = 2
    if is_at_least(protocol_version, "2.7-IV0"):
        version = 5
    elif is_at_least(protocol_version, "0.10.0-IV1"):
        version = 4
    return BrokerRegistration(endpoints, timestamp_ms, rack=config.values["broker.rack"], version=version)
