"""What can be set, under names close to those of Kafka's client configs, with Kafka's defaults.

What is set of producers and of consumers is in modules of their own, loaded when it is first asked for here: a command
that only asks needs neither.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from barnabas.kernel.facts import fact
from barnabas.kernel.later import attributes_later
from barnabas.link.limits import check_positive
from barnabas.link.outgoing import OutgoingSettings

if TYPE_CHECKING:
    import ssl

    from barnabas.client.consumer_settings import ConsumerSettings, OffsetReset
    from barnabas.client.isolation import IsolationLevel
    from barnabas.client.producer_settings import (
        BUFFER_BYTES_DEFAULT,
        IDEMPOTENT_IN_FLIGHT_MAX,
        REQUEST_BYTES_DEFAULT,
        ProducerSettings,
    )
    from barnabas.sasl.mechanisms import AnyLogin
else:
    __getattr__ = attributes_later(
        {
            "barnabas.client.consumer_settings": ("ConsumerSettings", "OffsetReset"),
            "barnabas.client.isolation": ("IsolationLevel",),
            "barnabas.client.producer_settings": (
                "BUFFER_BYTES_DEFAULT",
                "IDEMPOTENT_IN_FLIGHT_MAX",
                "REQUEST_BYTES_DEFAULT",
                "ProducerSettings",
            ),
        },
        globals(),
    )

__all__ = (
    "BUFFER_BYTES_DEFAULT",
    "IDEMPOTENT_IN_FLIGHT_MAX",
    "REQUEST_BYTES_DEFAULT",
    "ClientSettings",
    "ConsumerSettings",
    "IsolationLevel",
    "OffsetReset",
    "ProducerSettings",
    "split_address",
)


@fact(kw_only=True)
class ClientSettings:
    """What all users of a client share."""

    bootstrap_servers: tuple[str, ...]
    """`host:port` of some brokers; also tried again when no other known broker can be reached (KIP-899)."""
    client_id: str = "barnabas"
    request_timeout_ms: int = 30_000
    """How long one request may take (`request.timeout.ms`)."""
    api_timeout_ms: int = 60_000
    """How long a whole call may take, its repetitions included (`default.api.timeout.ms`)."""
    retry_backoff_ms: int = 100
    retry_backoff_ms_max: int = 1_000
    metadata_max_age_ms: int = 300_000
    metadata_idle_ms_max: int = 300_000
    """A topic that nobody asked for in so long is not asked for any more (`metadata.max.idle.ms`)."""
    creates_topics: bool = False
    """Whether brokers may create what is missing when it is asked for (`allow.auto.create.topics`)."""
    response_bytes_max: int = 256 * 1024 * 1024
    login: AnyLogin | None = None
    """Who logs in by SASL (`sasl.mechanism` and `sasl.jaas.config`, of which `Login.of_jaas` makes one); None where the
    brokers do not ask."""
    tls: ssl.SSLContext | None = None
    """How connections are secured; None where brokers speak plainly (`security.protocol` without SSL)."""
    outgoing: OutgoingSettings = field(default_factory=OutgoingSettings)

    def __post_init__(self) -> None:
        if not self.bootstrap_servers:
            raise ValueError("bootstrap_servers is empty: give host:port of at least one broker")
        for server in self.bootstrap_servers:
            split_address(server)
        check_positive(
            self,
            "request_timeout_ms",
            "api_timeout_ms",
            "retry_backoff_ms",
            "metadata_max_age_ms",
            "response_bytes_max",
        )


def split_address(server: str) -> tuple[str, int]:
    """Host and port of `host:port`; the host of an IPv6 address may stand in brackets. Raises ValueError."""
    host, colon, port = server.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"{server!r} is not the address of a broker: it must be host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
