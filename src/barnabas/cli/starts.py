"""Where `barnabas consume` begins to read."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from barnabas.cli.record_formats import parse_time

_OFFSET_MAX: Final = (1 << 63) - 1


class Edge(enum.Enum):
    """An end of a partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffset:
    """The record with this offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record that is not older; the end where all are older."""

    timestamp_ms: int


Start = Edge | AtOffset | AtTime


def parse_start(text: str) -> Start:
    """`earliest`, `latest`, an offset or an ISO 8601 time. Raises ValueError, which says what it may be."""
    if text in (Edge.EARLIEST.value, Edge.LATEST.value):
        return Edge(text)
    if text.isascii() and text.isdigit():
        offset = int(text)
        if offset > _OFFSET_MAX:
            raise ValueError(f"{text} is larger than any offset")
        return AtOffset(offset)
    try:
        return AtTime(parse_time(text))
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not earliest, latest, an offset, or a time such as 2026-11-21T09:00:00Z"
        ) from None
