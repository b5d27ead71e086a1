"""Listeners: where a broker is reached, under which name and by which security protocol.

Source: Kafka's `listeners`, `advertised.listeners`, `listener.security.protocol.map` (KIP-103, KIP-226) and
`control.plane.listener.name` (KIP-291).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from barnabas.config.keys import ConfigError

PORT_MAX: Final = 65535
_ADDRESS: Final = re.compile(r"(?P<name>.*)://(?P<host>\[[0-9a-zA-Z%._:-]*\]|[0-9a-zA-Z%._:-]*):(?P<port>[0-9]{1,5})")


class SecurityProtocol(enum.Enum):
    """How bytes travel, and whether SASL comes first; the value is the number in UpdateMetadata."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def uses_sasl(self) -> bool:
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}

    @property
    def uses_tls(self) -> bool:
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One listener. A `host` of None is the default interface to listen on, and this host's own name to advertise."""

    listener_name: str
    security_protocol: SecurityProtocol
    host: str | None
    port: int

    def __str__(self) -> str:
        host = self.host or ""
        return f"{self.listener_name}://{f'[{host}]' if ':' in host else host}:{self.port}"


def parse_protocol(key: str, text: str) -> SecurityProtocol:
    """The security protocol of that name, in any case. Raises ConfigError."""
    try:
        return SecurityProtocol[text.upper()]
    except KeyError:
        names = ", ".join(protocol.name for protocol in SecurityProtocol)
        raise ConfigError(key, text, f"the security protocol must be one of {names}") from None


def parse_protocol_map(key: str, text: str) -> dict[str, SecurityProtocol]:
    """`NAME:PROTOCOL` pairs by listener name, in upper case. Raises ConfigError."""
    found: dict[str, SecurityProtocol] = {}
    for pair in _entries(text):
        name, colon, protocol = pair.rpartition(":")
        if not colon or not name.strip():
            raise ConfigError(key, text, f"{pair!r} must be a pair NAME:PROTOCOL")
        found[name.strip().upper()] = parse_protocol(key, protocol.strip())
    return found


def parse_listeners(
    key: str, text: str, protocols: Mapping[str, SecurityProtocol], *, distinct_ports: bool
) -> tuple[Endpoint, ...]:
    """The listeners that a text `NAME://host:port,...` names. Raises ConfigError.

    Names must differ; ports too where `distinct_ports` says so, except 0 and one IPv4 address beside one IPv6 address.
    """
    found: list[Endpoint] = []
    for entry in _entries(text):
        match = _ADDRESS.fullmatch(entry)
        if match is None or int(match["port"]) > PORT_MAX:
            raise ConfigError(key, text, f"{entry!r} must have the form NAME://host:port, with a port up to {PORT_MAX}")
        name = match["name"].upper()
        if name not in protocols:
            raise ConfigError(
                key,
                text,
                f"no security protocol is known for listener {name}; add it to listener.security.protocol.map",
            )
        found.append(Endpoint(name, protocols[name], match["host"].strip("[]") or None, int(match["port"])))
    if not found:
        raise ConfigError(key, text, "it must name at least one listener")
    for one, other in combinations(found, 2):
        if one.listener_name == other.listener_name:
            raise ConfigError(key, text, f"each listener must have a name of its own, not twice {one.listener_name}")
        if distinct_ports and one.port == other.port != 0 and not _one_of_each_ip_version(found, one.port):
            raise ConfigError(key, text, f"port {one.port} can be shared only by one IPv4 address and one IPv6 address")
    return tuple(found)


def _one_of_each_ip_version(endpoints: Iterable[Endpoint], port: int) -> bool:
    versions = [_ip_version(endpoint.host) for endpoint in endpoints if endpoint.port == port]
    return sorted(versions) == [4, 6]


def _ip_version(host: str | None) -> int:
    """4 or 6; 0 for what is no address."""
    import ipaddress

    try:
        return ipaddress.ip_address(host or "").version
    except ValueError:
        return 0


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]
