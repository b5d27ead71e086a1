"""What a leader deletes in remote storage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from barnabas.kernel.steps import at_once
from barnabas.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.tiered.remote_retention import Expired, RetentionView, counted_bytes, expired
from barnabas.tiered.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tests.unit.tiered.test_metadata_cache import cache_of, segment, update

VIEW = RetentionView(
    lineage={0: 0},
    log_start_offset=0,
    log_end_offset=100,
    remote_end_offset=40,
    local_only_bytes=50,
    retention_bytes=-1,
    retention_ms=-1,
    now_ms=1_000,
)


def aged(number: int, start: int, end: int, max_timestamp_ms: int) -> RemoteLogSegmentMetadata:
    return replace(segment(number, start, end), max_timestamp_ms=max_timestamp_ms)


def decide(cache: RemoteLogMetadataCache, view: RetentionView, **options: object) -> Expired:
    return at_once(expired(cache, view, at_once(counted_bytes(cache, view)), **options))  # type: ignore[arg-type]


def numbers(found: Expired) -> list[int]:
    return [int.from_bytes(each.segment_id.id, "big") for each in found.segments]


@pytest.mark.parametrize(
    ("retention_bytes", "expected", "start"),
    [(-1, [], None), (350, [], None), (349, [], None), (250, [1], 10), (150, [1, 2], 20), (0, [1, 2, 3], 30)],
)
def test_by_size_of_the_whole_log(retention_bytes: int, expected: list[int], start: int | None) -> None:
    cache = cache_of(segment(1, 0, 9), segment(2, 10, 19), segment(3, 20, 29))
    found = decide(cache, replace(VIEW, retention_bytes=retention_bytes))
    assert (numbers(found), found.log_start_offset) == (expected, start)


@pytest.mark.parametrize("retention_bytes", [50, 149, 150, 249, 250, 349, 350])
@pytest.mark.parametrize(
    "others",
    [
        [],
        [segment(4, 0, 9), segment(5, 10, 19), segment(6, 20, 29)],
        [segment(4, 0, 9), segment(5, 2, 7)],
        [segment(4, 12, 17), segment(5, 20, 29), segment(6, 20, 25)],
        [segment(4, 40, 49), segment(5, 50, 59)],
    ],
)
def test_records_that_were_copied_twice_count_once(
    others: list[RemoteLogSegmentMetadata], retention_bytes: int
) -> None:
    """Or that are behind a hole, and counted with what is local; and copies go with the last that has their records."""
    whole = [segment(1, 0, 9), segment(2, 10, 19), segment(3, 20, 29)]
    view = replace(VIEW, retention_bytes=retention_bytes)
    expected = decide(cache_of(*whole), view)
    start = expected.log_start_offset or 0
    for cache in (cache_of(*whole, *others), cache_of(*others, *whole)):
        found = decide(cache, view)
        assert found.log_start_offset == expected.log_start_offset
        assert set(numbers(found)) == {
            int.from_bytes(each.segment_id.id, "big") for each in (*whole, *others) if each.end_offset < start
        }


def test_of_two_copies_that_overlap_no_more_is_deleted_than_what_leaves_enough() -> None:
    cache = cache_of(segment(1, 0, 14), segment(2, 5, 19), segment(3, 20, 29))
    view = replace(VIEW, local_only_bytes=0)
    assert sum(at_once(counted_bytes(cache, view)).values()) == 100 + 100 * 5 // 15 + 100
    assert numbers(decide(cache, replace(view, retention_bytes=134))) == [], "with all of the second that is 300"
    assert numbers(decide(cache, replace(view, retention_bytes=133))) == [1]
    assert numbers(decide(cache, replace(view, retention_bytes=100))) == [1, 2]


def test_by_time_nothing_is_deleted_behind_one_that_stays() -> None:
    cache = cache_of(aged(1, 0, 9, 100), aged(2, 10, 19, 900), aged(3, 20, 29, 100))
    found = decide(cache, replace(VIEW, retention_ms=500))
    assert (numbers(found), found.log_start_offset) == ([1], 10)


def test_what_lies_before_the_start_of_the_log() -> None:
    cache = cache_of(segment(1, 0, 9), segment(2, 10, 19))
    found = decide(cache, replace(VIEW, lineage={0: 12}, log_start_offset=12))
    assert (numbers(found), found.log_start_offset) == ([1], None)


def test_a_part_of_a_copy_goes_when_its_records_are_in_another() -> None:
    cache = cache_of(segment(1, 0, 9))
    part = segment(2, 10, 19)
    cache.apply(part)
    view = replace(VIEW, remote_end_offset=10)
    assert numbers(decide(cache, view)) == [], "somebody may rely on it: it may have been said to be whole"
    assert numbers(decide(cache, replace(view, remote_end_offset=20))) == [2]
    assert numbers(decide(cache, replace(view, remote_end_offset=20), being_copied={part.segment_id})) == []


def test_a_deletion_is_taken_up_again_and_other_histories_go_once_their_epochs_are_over() -> None:
    begun, foreign = segment(1, 0, 9), segment(2, 0, 9, {1: 0})
    cache = cache_of(begun, foreign)
    cache.apply(update(begun, RemoteLogSegmentState.DELETE_SEGMENT_STARTED))
    assert numbers(decide(cache, VIEW)) == [1]
    assert set(numbers(decide(cache, replace(VIEW, lineage={3: 50}, log_start_offset=0)))) == {1, 2}


def test_a_segment_of_a_later_epoch_than_the_first_of_the_log_is_not_of_what_was_before_its_start() -> None:
    cache = cache_of(segment(1, 0, 9, {0: 0, 1: 5}))
    assert numbers(decide(cache, replace(VIEW, lineage={0: 12}, log_start_offset=12))) == []
    assert numbers(decide(cache, replace(VIEW, lineage={1: 12}, log_start_offset=12))) == [1]
