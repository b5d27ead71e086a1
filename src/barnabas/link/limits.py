"""The bounds of a connection."""

from __future__ import annotations

from typing import Any

from barnabas.kernel.facts import fact


@fact
class LinkLimits:
    """The bounds of one connection. Values are bytes, milliseconds or counts, as the names say; ValueError if one is
    not positive.
    """

    frame_bytes_max: int = 100 * 1024 * 1024
    """A larger frame ends its connection (`socket.request.max.bytes`)."""
    unanswered_requests_max: int = 1024
    """The requests of one connection that may wait for their responses; beyond it the connection is not read."""
    output_bytes_high: int = 1024 * 1024
    """A peer that leaves more than this unread is not read itself, until it has read three quarters of it."""
    output_bytes_max: int = 256 * 1024 * 1024
    """A peer that leaves more than this unread, or unread and held back for the order of responses, is dropped."""
    idle_ms_max: int = 600_000
    """A connection that is idle for this long (at most an eighth more) is closed (`connections.max.idle.ms`)."""

    def __post_init__(self) -> None:
        check_positive(self)


def check_positive(settings: Any, *names: str) -> None:
    """Raises ValueError where a field is not positive: one of those named, or of all of a class with slots."""
    for name in names or settings.__slots__:
        if getattr(settings, name) <= 0:
            raise ValueError(f"{name} is {getattr(settings, name)}: it must be positive")
