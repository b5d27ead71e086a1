"""What can be set on an embedded coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barnabas.coordination.protocol import REQUEST_BYTES_MAX

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """The settings of an embedded coordinator, with ZooKeeper's names and defaults where it has them."""

    data_directory: str
    host: str = "127.0.0.1"
    # 0 takes any free port.
    port: int = 2181
    tick_time_ms: int = 2000
    # None is 2 and 20 times the tick, as in ZooKeeper.
    min_session_timeout_ms: int | None = None
    max_session_timeout_ms: int | None = None
    # 0 is no limit, unlike ZooKeeper's 60: on one machine every broker and tool comes from one address, so that a limit
    # per address is a second, lower limit on connections.
    connections_per_address_max: int = 0
    connections_max: int = 10_000
    # A connection that has not sent its session request by then is dropped.
    connect_timeout_ms: int = 10_000
    watches_max: int = 1_000_000
    # Of all watched paths: a client may watch paths where nothing is, each as long as a request.
    watch_path_bytes_max: int = 256 << 20
    request_bytes_max: int = REQUEST_BYTES_MAX
    # Write requests, and their bytes, that may wait for the disk before connections that send more are not read.
    outstanding_requests_max: int = 20_000
    outstanding_bytes_max: int = 32 << 20
    # Replies and events that may wait for a client that does not read; beyond that it is dropped. Also what the answer
    # to one multiRead may have, which can name the same large znode many times.
    unread_bytes_max: int = 64 << 20
    # A snapshot is taken after so many transactions, or when the log has so many bytes.
    snapshot_transactions: int = 100_000
    snapshot_log_bytes: int = 256 << 20
    snapshots_retained: int = 3
    # ZooKeeper's `zookeeper.extendedTypesEnabled`: znodes with a time to live.
    extended_types: bool = False
    container_check_interval_ms: int = 60_000
    # Users who may log in by SASL (DIGEST-MD5), by name: the section Server of ZooKeeper's file for Java's logins.
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)
    # With it the port speaks TLS alone, as ZooKeeper's secureClientPort.
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        """Raises `ValueError` for settings that cannot work."""
        if not self.data_directory:
            raise ValueError("the coordinator needs a data directory")
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port {self.port} is not between 0 and 65535")
        positive = (
            "tick_time_ms",
            "connections_max",
            "connect_timeout_ms",
            "watches_max",
            "watch_path_bytes_max",
            "request_bytes_max",
            "outstanding_requests_max",
            "outstanding_bytes_max",
            "unread_bytes_max",
            "snapshot_transactions",
            "snapshot_log_bytes",
            "snapshots_retained",
            "container_check_interval_ms",
        )
        for name in positive:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.connections_per_address_max < 0:
            raise ValueError("connections_per_address_max must be at least 0 (no limit)")
        if not 1 <= self.session_timeout_ms_min <= self.session_timeout_ms_max:
            raise ValueError(
                f"session time-outs from {self.session_timeout_ms_min} to {self.session_timeout_ms_max} ms leave no"
                " choice; set the minimum to at least 1 and the maximum to at least the minimum"
            )

    @property
    def session_timeout_ms_min(self) -> int:
        return 2 * self.tick_time_ms if self.min_session_timeout_ms is None else self.min_session_timeout_ms

    @property
    def session_timeout_ms_max(self) -> int:
        return 20 * self.tick_time_ms if self.max_session_timeout_ms is None else self.max_session_timeout_ms
