"""Fetches that name, look at and answer a few partitions in a turn, as others do where there are thousands.

A simulated cluster has some ten partitions, so it would never come to the bounds with which brokers do so. And its
followers are hardly ever behind for more than a response: here some of what they are in sync with is called so, and
goes from one of their two fetchers to the other and back (`follower/hand_over`), all the time.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from barnabas.api import fetch, fetch_answers, fetch_fast_path
from barnabas.follower import hand_over, replica_fetcher
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
_CALLED_BEHIND: Final = 7
"""One answer of so many."""


@contextlib.contextmanager
def fetches_in_parts(count: int) -> Iterator[None]:
    """While this lasts, no broker, as leader or as follower, does more than `count` partitions of a Fetch in a turn;
    and, where that is fewer than usual, what a follower is in sync with changes its fetcher now and then."""
    before = [
        *((module, name, getattr(module, name)) for module, name in _BOUNDS),
        (hand_over, "is_behind", hand_over.is_behind),
    ]
    if count < fetch_sessions.FEW_PARTITIONS:
        setattr(hand_over, "is_behind", _now_and_then(hand_over.is_behind))  # noqa: B010  # mypy refuses it otherwise
    for module, name in _BOUNDS:
        setattr(module, name, min(count, getattr(module, name)))
    try:
        yield
    finally:
        for module, name, usual in before:
            setattr(module, name, usual)


def _now_and_then(is_behind: Callable[[int], bool]) -> Callable[[int], bool]:
    answers = itertools.count()
    return lambda lag: is_behind(lag) or next(answers) % _CALLED_BEHIND == 0
