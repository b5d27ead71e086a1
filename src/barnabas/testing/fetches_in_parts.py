"""Fetches that name, look at and answer a few partitions in a turn, as others do where there are thousands.

A simulated cluster has some ten partitions, so it would never come to the bounds with which brokers do so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from barnabas.api import fetch, fetch_answers, fetch_fast_path
from barnabas.follower import replica_fetcher
from barnabas.serving import fetch as delayed_fetches
from barnabas.serving import fetch_reads, fetch_sessions

if TYPE_CHECKING:
    from types import ModuleType

_BOUNDS: Final[tuple[tuple[ModuleType, str], ...]] = (
    (fetch, "FEW_PARTITIONS"),
    (fetch, "READ_PER_STEP"),
    (fetch_answers, "FEW_PARTITIONS"),
    (fetch_answers, "READ_PER_STEP"),
    (fetch_fast_path, "FEW_PARTITIONS"),
    (delayed_fetches, "READ_PER_STEP"),
    (fetch_reads, "FEW_PARTITIONS"),
    (fetch_reads, "READ_PER_STEP"),
    (fetch_sessions, "FEW_PARTITIONS"),
    (fetch_sessions, "_PER_STEP"),
    (replica_fetcher, "NAMED_MAX"),
)


@contextlib.contextmanager
def fetches_in_parts(count: int) -> Iterator[None]:
    """While this lasts, no broker, as leader or as follower, does more than `count` partitions of a Fetch in a turn."""
    before = [(module, name, getattr(module, name)) for module, name in _BOUNDS]
    for module, name, usual in before:
        setattr(module, name, min(count, usual))
    try:
        yield
    finally:
        for module, name, usual in before:
            setattr(module, name, usual)
