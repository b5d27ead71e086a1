"""`/brokers/ids` and `/brokers/seqid`: who is there, and how to reach it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from barnabas.coordination.layout.payload import NO_EXTRA, Fields, LayoutError, encode_json
from barnabas.wire.endpoints import BrokerEndpoint

BROKERS_PATH = "/brokers"
BROKER_IDS_PATH = "/brokers/ids"
# Its version counts the ids that were generated (`broker.id.generation.enable`).
BROKER_SEQUENCE_ID_PATH = "/brokers/seqid"
VERSION = 5

_ENDPOINT = re.compile(r"([^:/]*)://(.*):(\d{1,5})")
_BARE_PROTOCOLS = {name: name for name in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")}
TEXT_BYTES_MAX = 2**15 - 1
"""Of a string in a request. Brokers are told of each other in one: what does not fit keeps it from all of them."""


def broker_id_path(broker_id: int) -> str:
    return f"{BROKER_IDS_PATH}/{broker_id}"


@dataclass(frozen=True, slots=True)
class VersionRange:
    """The versions of a feature that a broker supports (KIP-584)."""

    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """Payload of `/brokers/ids/N`, version 5 (inter.broker.protocol.version 2.7 and above), 4 (0.10.0 and above) or 2.

    Kafka writes host and port of the first PLAINTEXT listener at the top, for old clients; -1 and null when there
    is none. `jmx_port` is -1 for none.
    """

    endpoints: tuple[BrokerEndpoint, ...]
    timestamp_ms: int
    rack: str | None = None
    jmx_port: int = -1
    features: Mapping[str, VersionRange] = field(default_factory=dict)
    version: int = VERSION
    extra: Mapping[str, Any] = NO_EXTRA

    def encode(self) -> bytes:
        plain = next((endpoint for endpoint in self.endpoints if endpoint.security_protocol == "PLAINTEXT"), None)
        fields: dict[str, Any] = {}
        if self.version >= 5:
            fields["features"] = {
                name: {"min_version": versions.min_version, "max_version": versions.max_version}
                for name, versions in self.features.items()
            }
        if self.version >= 4:
            fields["listener_security_protocol_map"] = {
                endpoint.listener_name: endpoint.security_protocol for endpoint in self.endpoints
            }
        if self.version >= 2:
            fields["endpoints"] = [endpoint.connection_string for endpoint in self.endpoints]
        if self.rack is not None and self.version >= 3:
            fields["rack"] = self.rack
        fields |= {
            "jmx_port": self.jmx_port,
            "port": -1 if plain is None else plain.port,
            "host": None if plain is None else plain.host,
            "version": self.version,
            "timestamp": str(self.timestamp_ms),
        }
        return encode_json(fields, self.extra)

    @classmethod
    def decode(cls, data: bytes | None, path: str) -> BrokerRegistration:
        # As in Kafka what is there counts, whatever the version. `encode` writes only what the version has; so the rest
        # is read from `kept`, and stays in `fields` among what is unknown.
        fields, kept = Fields.decode(data, path), Fields.decode(data, path)
        version = fields.integer("version")
        if version < 1:
            raise fields.wrong("version", "1 or more", version)
        host = fields.optional_text("host")
        port = fields.integer("port", -1)
        if version == 1:
            if host is None:
                raise LayoutError(path, "host is missing")
            endpoints = [_decode_endpoint(f"PLAINTEXT://{host}:{port}", _BARE_PROTOCOLS, path)]
        else:
            protocols = (fields if version >= 4 else kept).mapping("listener_security_protocol_map") or _BARE_PROTOCOLS
            endpoints = [_decode_endpoint(text, protocols, path) for text in fields.texts("endpoints")]
            if not endpoints:
                raise LayoutError(path, "endpoints should name a listener at least, but is empty")
        rack = (fields if version >= 3 else kept).optional_text("rack")
        _check_length("the rack", rack or "", path)
        features = (fields if version >= 5 else kept).mapping("features")
        return cls(
            endpoints=tuple(endpoints),
            timestamp_ms=fields.decimal("timestamp", -1),
            rack=rack,
            jmx_port=fields.integer("jmx_port", -1),
            features={name: _decode_range(name, versions, path) for name, versions in features.items()},
            version=version,
            extra=fields.rest(),
        )


def _decode_endpoint(text: str, protocols: Mapping[str, Any], path: str) -> BrokerEndpoint:
    match = _ENDPOINT.fullmatch(text)
    if match is None or int(match[3]) > 65535:
        raise LayoutError(path, f"{text!r} is not an endpoint; listener://host:port was expected")
    protocol = protocols.get(match[1])
    if not isinstance(protocol, str) or protocol.upper() not in _BARE_PROTOCOLS:
        raise LayoutError(path, f"listener_security_protocol_map has no protocol for the listener {match[1]!r}")
    host = match[2].removeprefix("[").removesuffix("]")
    _check_length("the host", host, path)
    _check_length("the name of the listener", match[1], path)
    return BrokerEndpoint(match[1], host, int(match[3]), protocol.upper())


def _check_length(what: str, text: str, path: str) -> None:
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise LayoutError(path, f"{what} has more than {TEXT_BYTES_MAX} bytes")


def _decode_range(name: str, value: Any, path: str) -> VersionRange:
    if not isinstance(value, dict):
        raise LayoutError(path, f"features.{name} should be an object")
    versions = Fields(value, path, f"features.{name}")
    return VersionRange(versions.integer("min_version"), versions.integer("max_version"))
