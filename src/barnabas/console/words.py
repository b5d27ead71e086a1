"""Numbers, sizes and times as people read them; the same units as the commands have."""

from __future__ import annotations

import datetime as dt
from typing import Final

_UNIT: Final = 1024


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """`1 partition`, `6 partitions`; `nouns` where it is no plural in s."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def size(number_bytes: float) -> str:
    """A number of bytes in the unit that fits: `512 B`, `1.5 MiB`."""
    value, unit = float(number_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < _UNIT:
            break
        value, unit = value / _UNIT, larger
    return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"


def rate(per_second: float) -> str:
    """Records per second: `0`, `0.4`, `12`, `1,200`."""
    return f"{per_second:.1f}" if 0 < per_second < 10 else f"{per_second:,.0f}"


def span(milliseconds: float) -> str:
    """How long, in the two largest units: `3 h 5 min`, `12 s`."""
    seconds = max(0, int(milliseconds)) // 1_000
    units = [(seconds // 86_400, "d"), (seconds // 3_600 % 24, "h"), (seconds // 60 % 60, "min"), (seconds % 60, "s")]
    while len(units) > 1 and units[0][0] == 0:
        units.pop(0)
    return " ".join(f"{number} {unit}" for number, unit in units[:2])


def date_and_clock(time_ms: int) -> str:
    """`2026-11-25 09:30:00.125`, in UTC; the number itself where no calendar has it."""
    try:
        return f"{_moment(time_ms):%Y-%m-%d %H:%M:%S}.{time_ms % 1_000:03}"
    except (OverflowError, ValueError, OSError):
        return str(time_ms)


def moment(time_ms: int, now_ms: int, *, to_the_ms: bool = False) -> str:
    """The clock, and before it the date where that is another than now's; the number where no calendar has it."""
    date, _, rest = date_and_clock(time_ms).partition(" ")
    shown = rest if to_the_ms else rest[:8]
    return shown if shown and date == date_and_clock(now_ms)[:10] else f"{date} {shown}".rstrip()


def ids(numbers: tuple[int, ...] | list[int]) -> str:
    """Ids of brokers: `1, 2, 3`."""
    return ", ".join(map(str, numbers))


def _moment(time_ms: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(time_ms // 1_000, dt.UTC)
