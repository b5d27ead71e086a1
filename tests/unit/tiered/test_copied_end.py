"""How far a log is copied, also when that changes while it is made out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.kernel.steps import at_once
from barnabas.log.directories.checkpoints import EpochEntry
from barnabas.log.partition.leader_epochs import LeaderEpochCache
from barnabas.tiered.copied_end import CopiedEnd
from barnabas.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.tiered.segment_metadata import RemoteLogSegmentState
from tests.unit.tiered.test_metadata_cache import cache_of, segment, update

COUNT = 500
"""Of segments with ten records; two steps and a half."""


def many() -> tuple[Any, RemoteLogMetadataCache]:
    log = SimpleNamespace(
        local_log_start_offset=0,
        log_end_offset=(COUNT + 5) * 10,
        leader_epochs=LeaderEpochCache([EpochEntry(0, 0)]),
        truncations=0,
    )
    return log, cache_of(*(segment(number + 1, number * 10, number * 10 + 9) for number in range(COUNT)))


def delete(cache: RemoteLogMetadataCache, number: int) -> None:
    cache.apply(update(segment(number + 1, 0, 0), RemoteLogSegmentState.DELETE_SEGMENT_STARTED))


def add(cache: RemoteLogMetadataCache, number: int) -> None:
    added = segment(number + 1, number * 10, number * 10 + 9)
    cache.apply(added)
    cache.apply(update(added, RemoteLogSegmentState.COPY_SEGMENT_FINISHED))


def test_it_goes_on_from_what_was_found_until_a_segment_goes() -> None:
    log, cache = many()
    end = CopiedEnd()
    assert at_once(end.find(log, cache)) == COUNT * 10
    add(cache, COUNT)
    assert len(list(end.find(log, cache))) == 0, "one step"
    assert at_once(end.find(log, cache)) == (COUNT + 1) * 10
    delete(cache, 7)
    assert at_once(end.find(log, cache)) == 70
    log.local_log_start_offset = 80
    assert at_once(end.find(log, cache)) == (COUNT + 1) * 10


def test_a_log_that_was_cut_off_is_looked_at_anew() -> None:
    log, cache = many()
    end = CopiedEnd()
    at_once(end.find(log, cache))
    log.truncations += 1
    log.leader_epochs.truncate_from_end(55)
    log.leader_epochs.assign(1, 55)
    assert at_once(end.find(log, cache)) == 55


def test_what_goes_in_the_middle_of_a_look_counts_no_more() -> None:
    log, cache = many()
    steps = CopiedEnd().find(log, cache)
    next(steps)
    delete(cache, 7)
    assert at_once(steps) == 70


def test_where_something_goes_again_and_again_nothing_is_said_to_be_copied() -> None:
    log, cache = many()
    steps = CopiedEnd().find(log, cache)
    number = COUNT
    with pytest.raises(StopIteration) as ended:
        while True:
            next(steps)
            number -= 1
            delete(cache, number)
    assert ended.value.value == 0
    assert COUNT - number < 10
