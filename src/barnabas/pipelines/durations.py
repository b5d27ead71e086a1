"""Durations as people write them, such as `5 seconds` or `1h`."""

from __future__ import annotations

import re
from typing import Final

from barnabas.pipelines.yaml_positions import nearest

_MS_BY_UNIT: Final = {"millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_SHORT_UNITS: Final = {"ms": "millisecond", "s": "second", "m": "minute", "h": "hour", "d": "day"}
_DURATION: Final = re.compile(r"\s*(?P<number>\d{1,15})\s*(?P<unit>[A-Za-z]*)\s*", re.ASCII)


def parse_duration_ms(text: str, minimum_ms: int, maximum_ms: int) -> int:
    """Milliseconds of a whole number and a unit, between the bounds. Raises ValueError, which says what to write."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text}" is not a duration: write a whole number and a unit, such as 5 seconds')
    unit = match["unit"].lower()
    if not unit:
        raise ValueError(f'"{text}" has no unit: write {match["number"]} seconds, minutes, hours or days')
    singular = _SHORT_UNITS.get(unit, unit.removesuffix("s"))
    if singular not in _MS_BY_UNIT:
        hint = (
            nearest(unit, [f"{name}s" for name in _MS_BY_UNIT]) or "; use milliseconds, seconds, minutes, hours or days"
        )
        raise ValueError(f'"{match["unit"]}" is not a unit of time{hint}')
    duration_ms = int(match["number"]) * _MS_BY_UNIT[singular]
    if not minimum_ms <= duration_ms <= maximum_ms:
        raise ValueError(f'"{text}" must be between {format_duration(minimum_ms)} and {format_duration(maximum_ms)}')
    return duration_ms


def format_duration(duration_ms: int) -> str:
    """A duration in the largest unit that it is whole in, such as `90 seconds`."""
    for unit in reversed(_MS_BY_UNIT):
        count, rest = divmod(duration_ms, _MS_BY_UNIT[unit])
        if count and not rest:
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{duration_ms} milliseconds"
