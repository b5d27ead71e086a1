"""Which thread runs: a simulation has one, and code of others that calls into it is refused."""

from __future__ import annotations

from threading import get_ident


def this_thread() -> int:
    """The id of the thread that asks."""
    return get_ident()
