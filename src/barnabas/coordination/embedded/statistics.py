"""What the four-letter words report: plain integers, counted where requests pass."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Latencies:
    """Times from a request's arrival to its reply, in ms."""

    count: int = 0
    total_ms: float = 0.0
    min_ms: int = 0
    max_ms: int = 0

    def add(self, latency_ms: float, count: int) -> None:
        """Takes `count` requests that were answered together."""
        whole = int(latency_ms)
        self.min_ms = whole if not self.count else min(self.min_ms, whole)
        self.max_ms = max(self.max_ms, whole)
        self.count += count
        self.total_ms += latency_ms * count

    @property
    def average_ms(self) -> float:
        return self.total_ms / self.count if self.count else 0.0


class ServerStatistics:
    """The whole server's counters."""

    __slots__ = ("auth_failed", "latencies", "received", "sent", "started_at")

    def __init__(self, started_at: float) -> None:
        """`started_at` is the loop's time in seconds."""
        self.started_at = started_at
        self.reset()

    def reset(self) -> None:
        """The command `srst`."""
        self.received = 0
        self.sent = 0
        self.auth_failed = 0
        self.latencies = Latencies()


class ConnectionStatistics:
    """One connection's counters."""

    __slots__ = (
        "established_ms",
        "last_answer_ms",
        "last_latency_ms",
        "last_op_code",
        "last_xid",
        "last_zxid",
        "latencies",
        "received",
        "sent",
    )

    def __init__(self, established_ms: int) -> None:
        self.established_ms = established_ms
        self.reset()

    def reset(self) -> None:
        """The command `crst`."""
        self.received = 0
        self.sent = 0
        self.last_op_code = 0
        self.last_xid = -1
        self.last_zxid = -1
        self.last_answer_ms = 0
        self.last_latency_ms = 0
        self.latencies = Latencies()
