"""How slow and how unreliable a simulated world is while no fault is injected: the ranges from which seeded draws are
made.

Every range is (least, most), drawn uniformly unless a field says otherwise; times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class LoopProfile:
    """What it costs a simulated process to run.

    A tick of a loop takes `tick_seconds` plus `callback_seconds` for each callback; until then the loop runs nothing
    else, so I/O that arrives meanwhile is seen together in the next tick, and a loop that never waits still lets
    virtual time pass. An idle loop wakes `wake_seconds` after the event that woke it: that, and the ticks' lengths, is
    how the order of events between hosts comes from the seed.
    """

    tick_seconds: Range = (5e-6, 30e-6)
    callback_seconds: float = 3e-6
    wake_seconds: Range = (0.0, 30e-6)
    hiccup_probability: float = 0.0
    """Chance that a tick takes `hiccup_seconds` longer (a collection of garbage, another process on the core)."""
    hiccup_seconds: Range = (1e-3, 30e-3)


@dataclass(frozen=True, slots=True)
class NetworkProfile:
    """Latency, chunking, buffers and patience of simulated TCP connections; buffers are drawn per connection and
    direction.
    """

    latency_seconds: Range = (50e-6, 400e-6)
    loopback_latency_seconds: Range = (10e-6, 40e-6)
    bandwidth_bytes_per_second: float | None = None
    split_probability: float = 0.15
    """Chance that a read gets only a random part of what has arrived."""
    read_bytes_max: int = 256 * 1024
    send_buffer_bytes: Range = (16 * 1024, 256 * 1024)
    receive_buffer_bytes: Range = (16 * 1024, 256 * 1024)
    stall_seconds: Range = (15.0, 25.0)
    """How long bytes may stay unacknowledged until the sender gives the connection up with ETIMEDOUT (Linux: about 15
    minutes, TCP_USER_TIMEOUT).
    """
    connect_retry_seconds: tuple[float, ...] = (1.0, 3.0, 7.0, 15.0, 31.0, 63.0)
    """When an unanswered connection attempt is repeated, counted from its start, as Linux does."""
    connect_timeout_seconds: float = 127.0
    retransmit_seconds: Range = (0.2, 2.0)
    """How long after a cut has healed stalled bytes go on."""


@dataclass(frozen=True, slots=True)
class DiskProfile:
    """Speed and small unreliabilities of a simulated disk. Probabilities are per call."""

    capacity_bytes: int = 64 * 1024**3
    sync_seconds: Range = (0.2e-3, 3e-3)
    read_seconds: Range = (20e-6, 200e-6)
    change_seconds: Range = (1e-6, 10e-6)
    short_write_probability: float = 0.01
    short_read_probability: float = 0.01
    uncached_probability: float = 0.05
    """Chance that a read with READ_CACHED_ONLY raises BlockingIOError, and again that it is cut short."""
    knows_what_is_cached: bool = True
    """False: a file system on which a read with READ_CACHED_ONLY raises EOPNOTSUPP."""
    writeback_seconds: float = 30.0
    """Unsynced data older than this is on the disk anyway."""


@dataclass(frozen=True, slots=True)
class OffloadProfile:
    """Workers and bound of each offload kind, and how long work waits for a free thread."""

    workers: int = 8
    unfinished_max: int = 8192
    dispatch_seconds: Range = (10e-6, 300e-6)
    compute_seconds: Range = (20e-6, 2e-3)
    """How long a piece of work takes besides its file operations."""


@dataclass(frozen=True, slots=True)
class ClockProfile:
    """How wrong the clocks of simulated machines are: wall clock at boot, and drift of wall and monotonic clock in
    parts per million.
    """

    offset_seconds: Range = (-0.2, 0.2)
    drift_ppm: Range = (-50.0, 50.0)


@dataclass(frozen=True, slots=True)
class Profile:
    """How slow and unreliable the whole world is."""

    loop: LoopProfile = field(default_factory=LoopProfile)
    network: NetworkProfile = field(default_factory=NetworkProfile)
    disk: DiskProfile = field(default_factory=DiskProfile)
    offload: OffloadProfile = field(default_factory=OffloadProfile)
    clock: ClockProfile = field(default_factory=ClockProfile)
