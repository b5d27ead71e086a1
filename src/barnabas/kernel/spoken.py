"""Numbers as people read them in messages."""

from __future__ import annotations


def spoken_ms(milliseconds: float) -> str:
    """A time of so many ms: `8 s` from a second on, whole milliseconds below."""
    if milliseconds >= 999.5:
        return f"{milliseconds / 1_000:.0f} s"
    return f"{milliseconds:.0f} ms"
