"""Whether a segment is of a log's history, and which epochs a copy is told of."""

from __future__ import annotations

import pytest

from barnabas.log.directories.checkpoints import EpochEntry
from barnabas.log.partition.leader_epochs import LeaderEpochCache
from barnabas.tiered.lineage import epochs_before, epochs_between, is_within, with_records
from tests.unit.tiered.test_metadata_cache import segment


def test_epochs_without_records_are_left_out() -> None:
    assert with_records([(0, 0), (1, 10), (2, 10), (3, 20)]) == {0: 0, 2: 10, 3: 20}


@pytest.mark.parametrize(
    ("start", "end", "epochs", "expected"),
    [
        (0, 9, {0: 0}, True),
        (0, 12, {0: 0}, False),  # epoch 0 ends at 9 here
        (5, 15, {0: 5, 1: 10}, True),
        (5, 15, {0: 5, 1: 11}, False),  # it begins elsewhere here
        (5, 25, {0: 5, 2: 20}, False),  # an epoch is missing
        (20, 29, {2: 20}, True),
        (15, 29, {1: 15, 2: 20}, True),
        (20, 30, {2: 20}, False),  # the log ends there
        (20, 25, {3: 20}, False),  # a later leader of another history
        (12, 15, {1: 12}, True),
        (8, 15, {1: 8}, False),  # records of another leader of that epoch
    ],
)
def test_a_segment_is_within_the_history_of_a_log(start: int, end: int, epochs: dict[int, int], expected: bool) -> None:
    lineage = {0: 0, 1: 10, 2: 20}
    assert is_within(segment(1, start, end, epochs), 30, lineage) is expected


def test_nothing_is_within_no_history() -> None:
    assert not is_within(segment(1, 0, 9), 30, {})


def test_a_segment_that_begins_before_the_start_of_the_log_is_within() -> None:
    assert is_within(segment(1, 5, 25, {0: 5, 1: 10, 2: 20}), 30, {1: 15, 2: 20})


def test_epochs_of_a_segment() -> None:
    cache = LeaderEpochCache([EpochEntry(0, 0), EpochEntry(2, 10), EpochEntry(3, 20)])
    assert epochs_between(cache, 5, 20) == {0: 5, 2: 10}
    assert epochs_between(cache, 10, 25) == {2: 10, 3: 20}
    assert epochs_between(cache, 30, 40) == {3: 30}
    assert epochs_before(cache, 20) == [EpochEntry(0, 0), EpochEntry(2, 10)]
