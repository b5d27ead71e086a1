"""The leader epochs, held against a list with one epoch per record."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.log.directories.checkpoints import EpochEntry
from barnabas.log.partition.leader_epochs import UNDEFINED_END, EpochEnd, LeaderEpochCache
from barnabas.wire.sentinels import NO_EPOCH

logs = st.lists(st.integers(0, 12), min_size=1, max_size=30).map(sorted)
"""The epoch of each record, from offset 0 on."""


def cache_of(epochs: list[int]) -> LeaderEpochCache:
    cache = LeaderEpochCache()
    for offset, epoch in enumerate(epochs):
        cache.assign(epoch, offset)
    return cache


@given(logs)
def test_each_record_keeps_its_epoch(epochs: list[int]) -> None:
    cache = cache_of(epochs)
    assert [cache.epoch_for_offset(offset) for offset in range(len(epochs))] == epochs
    assert cache.latest_epoch == epochs[-1]
    starts = [offset for offset in range(1, len(epochs)) if epochs[offset] != epochs[offset - 1]]
    for offset in range(len(epochs)):
        assert cache.start_behind(offset) == min((start for start in starts if start > offset), default=None)
    assert LeaderEpochCache(cache.entries).entries == cache.entries


@given(logs, st.integers(0, 15))
def test_an_epoch_ends_where_a_larger_one_begins(epochs: list[int], asked: int) -> None:
    """Invariant: every record before the end has at most the epoch asked for, every one from it on a larger one."""
    found = cache_of(epochs).end_offset_for(asked, len(epochs))
    if asked > epochs[-1]:
        assert found == UNDEFINED_END
        return
    assert all(epoch <= asked for epoch in epochs[: found.end_offset])
    assert all(epoch > asked for epoch in epochs[found.end_offset :])
    smaller = [epoch for epoch in epochs if epoch <= asked]
    assert found.epoch == (smaller[-1] if smaller else asked)


@given(logs, st.integers(0, 35))
def test_truncation_at_the_end_is_a_shorter_log(epochs: list[int], end: int) -> None:
    cache = cache_of(epochs)
    changed = cache.truncate_from_end(end)
    expected = cache_of(epochs[:end])
    assert cache.entries == expected.entries
    assert cache.latest_epoch == expected.latest_epoch
    assert changed == (len(set(epochs)) != len(set(epochs[:end])))


@given(logs, st.integers(0, 29))
def test_truncation_at_the_start_keeps_the_epochs_of_what_is_left(epochs: list[int], start: int) -> None:
    cache = cache_of(epochs)
    before = cache.entries
    assert cache.truncate_from_start(start) == (cache.entries != before)
    for offset in range(start, len(epochs)):
        assert cache.epoch_for_offset(offset) == epochs[offset]
    assert all(entry.start_offset >= start for entry in cache.entries)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))))
def test_entries_always_increase(assigned: list[tuple[int, int]]) -> None:
    cache = LeaderEpochCache()
    for epoch, start_offset in assigned:
        before = cache.entries
        assert cache.assign(epoch, start_offset) == (cache.entries != before)
        assert cache.latest_epoch == epoch
    for earlier, later in itertools.pairwise(cache.entries):
        assert earlier.epoch < later.epoch
        assert earlier.start_offset < later.start_offset


def test_a_new_epoch_without_records_gives_way() -> None:
    cache = LeaderEpochCache([EpochEntry(1, 0), EpochEntry(2, 10)])
    assert cache.assign(3, 10)
    assert cache.entries == (EpochEntry(1, 0), EpochEntry(3, 10))
    assert cache.end_offset_for(2, 20) == EpochEnd(1, 10)
    assert cache.end_offset_for(0, 20) == EpochEnd(0, 0)


def test_an_empty_log_knows_no_epoch() -> None:
    cache = LeaderEpochCache()
    assert cache.end_offset_for(0, 0) == UNDEFINED_END
    assert cache.epoch_for_offset(0) == NO_EPOCH
    assert cache.previous_epoch(5) == NO_EPOCH
    assert cache.earliest() is None
    assert not cache.clear()
    cache.assign(0, 0)
    assert cache.clear()
    assert cache.entries == ()


@pytest.mark.parametrize(("epoch", "start_offset"), [(-1, 0), (0, -1)])
def test_refuses_negative_numbers(epoch: int, start_offset: int) -> None:
    with pytest.raises(ValueError, match="cannot begin"):
        LeaderEpochCache().assign(epoch, start_offset)
