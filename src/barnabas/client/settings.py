"""What can be set, under names close to those of Kafka's client configs, with Kafka's defaults."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from barnabas.client.assignors import RANGE, Assignor
from barnabas.link.limits import check_positive
from barnabas.link.outgoing import OutgoingSettings
from barnabas.wire.compression_types import NO_COMPRESSION, Compression

if TYPE_CHECKING:
    import ssl

    from barnabas.sasl.mechanisms import AnyLogin

REQUEST_BYTES_DEFAULT: Final = 1024 * 1024
BUFFER_BYTES_DEFAULT: Final = 32 * 1024 * 1024


class OffsetReset(enum.Enum):
    """Where to begin where there is no position (`auto.offset.reset`)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


class IsolationLevel(enum.IntEnum):
    """Which records a consumer sees (`isolation.level`); the value is that of the protocol."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer sends."""

    acks: int = -1
    """-1: when every replica in sync has it; 1: when the leader has it; 0: nobody tells."""
    idempotent: bool = True
    """Each record exactly once and in order, as long as the producer lives (KIP-98); needs `acks` -1."""
    batch_bytes: int = 16 * 1024
    linger_ms: float = 0
    compression: Compression = NO_COMPRESSION
    in_flight_max: int = 5
    """Produce requests per broker that wait for their answers; 5 at most when idempotent. Otherwise a partition has one
    batch on its way at a time, so that none overtakes another that has to be sent again."""
    request_bytes_max: int = REQUEST_BYTES_DEFAULT
    """The largest request, and so the largest record, before compression (`max.request.size`). The topic has a limit of
    its own for what is left after it (`max.message.bytes`).
    """
    buffer_bytes_max: int = BUFFER_BYTES_DEFAULT
    """What may wait to be sent or acknowledged (`buffer.memory`)."""
    max_block_ms: int = 60_000
    """How long `send` waits for room, and for a topic to be known."""
    delivery_timeout_ms: int = 120_000
    """From `send` to success or failure."""

    def __post_init__(self) -> None:
        if self.acks not in (-1, 0, 1):
            raise ValueError(f"acks is {self.acks}: it must be -1, 0 or 1")
        if self.idempotent and self.acks != -1:
            raise ValueError(f"an idempotent producer needs acks=-1, not {self.acks}; or set idempotent=False")
        if self.idempotent and self.in_flight_max > IDEMPOTENT_IN_FLIGHT_MAX:
            raise ValueError(
                f"in_flight_max is {self.in_flight_max}: brokers remember the last {IDEMPOTENT_IN_FLIGHT_MAX} batches "
                "of an idempotent producer, so it must not be more"
            )
        check_positive(
            self, "batch_bytes", "in_flight_max", "request_bytes_max", "buffer_bytes_max", "delivery_timeout_ms"
        )


IDEMPOTENT_IN_FLIGHT_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How a consumer reads, and how it is a member of its group."""

    group_id: str | None = None
    group_instance_id: str | None = None
    """The name of a static member (KIP-345)."""
    assignors: tuple[Assignor, ...] = (RANGE,)
    """The best first; the group uses one that all members have. They must be all eager or all cooperative."""
    offset_reset: OffsetReset = OffsetReset.LATEST
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    fetch_bytes_min: int = 1
    fetch_bytes_max: int = 50 * 1024 * 1024
    fetch_wait_ms: int = 500
    partition_bytes_max: int = 1024 * 1024
    poll_records_max: int = 500
    checks_crcs: bool = True
    rack_id: str = ""
    """Where a replica near this consumer may be (KIP-392)."""
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    poll_interval_ms_max: int = 300_000
    """A member that does not poll for so long leaves its group; also the time for a rebalance."""
    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000

    def __post_init__(self) -> None:
        check_positive(
            self,
            "fetch_bytes_max",
            "partition_bytes_max",
            "poll_records_max",
            "session_timeout_ms",
            "heartbeat_interval_ms",
            "poll_interval_ms_max",
            "auto_commit_interval_ms",
        )
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be less than session_timeout_ms "
                f"({self.session_timeout_ms}); a third of it is usual"
            )
        if not self.assignors:
            raise ValueError("assignors is empty: a member of a group needs at least one")
        if len({assignor.is_cooperative for assignor in self.assignors}) > 1:
            raise ValueError("assignors must be all eager or all cooperative")


def split_address(server: str) -> tuple[str, int]:
    """Host and port of `host:port`; the host of an IPv6 address may stand in brackets. Raises ValueError."""
    host, colon, port = server.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"{server!r} is not the address of a broker: it must be host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
