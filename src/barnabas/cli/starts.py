"""Places in partitions, as users write them: where `consume` begins, where `group reset` goes."""

from __future__ import annotations

import re
from typing import Final

from barnabas.cli.edges import Edge
from barnabas.cli.record_formats import parse_time
from barnabas.kernel.facts import fact

_OFFSET_MAX: Final = (1 << 63) - 1
_DIGITS_MAX: Final = 12
_OFFSET_DIGITS_MAX: Final = 19
_SHOWN_DIGITS_MAX: Final = 24
_UNITS_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_UNIT_LETTERS: Final = "mshdwMSHDW"
_DURATION: Final = "(?=.)" + "".join(
    rf"(?:([0-9]{{1,{_DIGITS_MAX}}}{unit}))?" for unit in ("w", "d", "h", "m", "s", "ms")
)
_ISO_DURATION: Final = (
    "P(?=.)"
    + "".join(rf"([0-9]{{1,{_DIGITS_MAX}}}{unit})?" for unit in "WD")
    + "(?:T(?=.)"
    + "".join(rf"([0-9]{{1,{_DIGITS_MAX}}}{unit})?" for unit in "HMS")
    + ")?"
)
"""As `kafka-consumer-groups --by-duration` takes it."""


@fact
class AtOffset:
    """The record with this offset."""

    offset: int


@fact
class AtTime:
    """The first record that is not older; the end where all are older."""

    timestamp_ms: int


@fact
class BeforeEnd:
    """So many records before the end, or the beginning where there are fewer."""

    count: int


@fact
class Ago:
    """The first record that is not older than this."""

    duration_ms: int

    def at(self, now_ms: int) -> AtTime:
        """The same as a time."""
        return AtTime(max(0, now_ms - self.duration_ms))


Start = Edge | AtOffset | AtTime | BeforeEnd | Ago
PLACES: Final = "earliest, latest, an offset, -N (N before the end), a time such as 2026-11-21T09:00:00Z, or 2h (ago)"


def parse_duration_ms(text: str) -> int:
    """Milliseconds of `90s`, `1h30m`, `7d`, `500ms`, or of ISO 8601's `PT2H`. Raises ValueError, which says how it is
    written.
    """
    total_ms = 0
    found = re.fullmatch(_DURATION, text) or re.fullmatch(_ISO_DURATION, text)
    parts = [part for part in found.groups() if part is not None] if found else []
    if not parts:
        raise ValueError(f"{text!r} is no duration: write 30s, 10m, 2h, 7d, or 1h30m")
    for part in parts:
        number = part.rstrip(_UNIT_LETTERS)
        total_ms += int(number) * _UNITS_MS[part.removeprefix(number).lower()]
    if total_ms > _OFFSET_MAX:
        raise ValueError(f"{text} is longer than any log")
    return total_ms


def parse_start(text: str) -> Start:
    """A place in a partition. Raises ValueError, which says what it may be."""
    if text in (Edge.EARLIEST.value, Edge.LATEST.value):
        return Edge(text)
    if text.isascii() and text.isdigit():
        offset = _number(text)
        if offset > _OFFSET_MAX:
            raise ValueError(f"{_shortened(text)} is larger than any offset")
        return AtOffset(offset)
    if text.startswith("-") and text[1:].isascii() and text[1:].isdigit():
        count = _number(text[1:])
        if count > _OFFSET_MAX:
            raise ValueError(f"{_shortened(text)} is further back than any offset")
        if count == 0:
            raise ValueError(f"{text} must be a number of records before the end, such as -10")
        return BeforeEnd(count)
    if re.fullmatch(_DURATION, text) or re.fullmatch(_ISO_DURATION, text):
        return Ago(parse_duration_ms(text))
    try:
        return AtTime(parse_time(text))
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no place in a partition: write {PLACES}") from None


# Inside.


def _number(digits: str) -> int:
    """What the digits mean, or a number that is larger than any offset: Python reads only so many digits."""
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= _OFFSET_DIGITS_MAX else _OFFSET_MAX + 1


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_DIGITS_MAX else f"{text[:_SHOWN_DIGITS_MAX]}... ({len(text):,} characters)"
