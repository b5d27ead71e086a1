"""Offsets of groups, translated from the source of a copy to its target: exact, or earlier, never later."""

from __future__ import annotations

import bisect
import random

import pytest

from barnabas.cli.topic_copy_groups import RUNS_KEPT, RUNS_MAX, RUNS_OF_ALL, CopiedGroups, CopiedRuns
from barnabas.client.records import RecordMetadata
from barnabas.wire.topics import TopicPartition


def copied(records: list[tuple[int, int]], begin: int | None = 0) -> CopiedRuns:
    runs = CopiedRuns(begin)
    for source, target in records:
        runs.add(source, target)
    return runs


def test_a_plain_copy_is_one_run_that_only_shifts() -> None:
    runs = copied([(number, number - 1_000) for number in range(1_000, 1_500)], begin=1_000)
    assert runs.document() == {"begin": 1_000, "runs": [[1_000, 1_500, 0]]}
    assert [runs.translate(offset) for offset in (1_000, 1_250, 1_500, 9_999)] == [0, 250, 500, 500]


def test_who_is_behind_where_the_copy_began_has_all_of_it_before_him() -> None:
    runs = copied([(7, 70), (8, 71)], begin=5)
    assert [runs.translate(offset) for offset in (0, 5, 6, 7)] == [70, 70, 70, 70]


def test_who_is_behind_what_a_former_run_copied_is_not_known() -> None:
    runs = copied([(7, 70), (8, 71)], begin=None)
    assert [runs.translate(offset) for offset in (5, 6, 7)] == [None, None, 70]
    assert copied([]).translate(0) is None


@pytest.mark.parametrize("seed", range(20))
def test_each_offset_is_where_the_next_record_is_or_what_lies_directly_behind_the_last(seed: int) -> None:
    draw = random.Random(seed)
    records, source, target = [], draw.randrange(100), draw.randrange(100)
    for _ in range(300):
        records.append((source, target))
        source += draw.choice([1, 1, 1, 2, 9])
        target += draw.choice([1, 1, 1, 2, 9])
    runs = copied(records, begin=records[0][0])
    sources = [source for source, _ in records]
    for offset in range(source + 3):
        read = bisect.bisect_left(sources, offset)
        found = runs.translate(offset)
        assert found is not None
        if read < len(records):
            assert found <= records[read][1], "no record is passed over"
        if read:
            assert found == (records[read][1] if sources[read : read + 1] == [offset] else records[read - 1][1] + 1)


def test_many_runs_are_thinned_and_give_earlier_places_only() -> None:
    records = [(2 * number, number) for number in range(3 * RUNS_MAX)]
    runs = copied(records)
    assert len(runs._runs) <= RUNS_MAX
    for number in range(0, 3 * RUNS_MAX, 97):
        found = runs.translate(2 * number)
        assert found is not None
        assert found <= number
    assert runs.translate(2 * (3 * RUNS_MAX - 1)) == 3 * RUNS_MAX - 1


def test_a_later_run_goes_on_from_what_was_kept() -> None:
    first = copied([(number, number) for number in range(10)])
    later = CopiedRuns(None)
    later.read(first.document())
    later.add(10, 10)
    assert later.document() == {"begin": 0, "runs": [[0, 11, 0]]}
    many = copied([(2 * number, number) for number in range(RUNS_KEPT + 5)])
    later.read(many.document())
    assert (later.translate(0), later.translate(10)) == (None, 5)


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        {"begin": 0},
        {"begin": 0, "runs": [[1, 2]]},
        {"begin": 0, "runs": [[2, 1, 0]]},
        {"begin": 0, "runs": [[-1, 1, 0]]},
        {"begin": 0, "runs": [[5, 6, 3], [2, 3, 4]]},
        {"begin": 0, "runs": [[1, 2, 8], [2, 3, 4]]},
        {"begin": "x", "runs": []},
        {"begin": 0, "runs": [["a", "b", "c"]]},
    ],
)
def test_what_is_no_run_is_not_taken(document: object) -> None:
    runs = copied([(3, 4)], begin=None)
    with pytest.raises((ValueError, TypeError, KeyError)):
        runs.read(document)
    assert runs.document() == {"begin": None, "runs": [[3, 4, 4]]}


def test_a_record_of_which_nobody_knows_where_it_is_ends_a_run() -> None:
    at = TopicPartition("s", 0)
    groups = CopiedGroups((None, None), ("s", "t"), ["*"], {at: 0})  # type: ignore[arg-type]
    for source, target in ((0, 0), (1, -1), (2, 2)):
        groups.heard(at, source, RecordMetadata(at, target, -1))
    assert groups.document() == {"0": {"begin": 0, "runs": [[0, 1, 0], [2, 3, 2]]}}


def test_what_is_held_of_many_partitions_is_bounded_together() -> None:
    partitions = [TopicPartition("s", number) for number in range(2_000)]
    groups = CopiedGroups((None, None), ("s", "t"), ["*"], dict.fromkeys(partitions, 0))  # type: ignore[arg-type]
    for partition in partitions[:50]:
        for number in range(1_000):
            groups.heard(partition, 2 * number, RecordMetadata(partition, number, -1))
    assert sum(len(runs._runs) for runs in groups._runs.values()) <= 50 * RUNS_OF_ALL / len(partitions)
    assert groups._runs[partitions[0]].translate(2 * 999) == 999


def test_of_more_runs_than_are_held_the_latest_are_gone_on_with() -> None:
    many = copied([(2 * number, number) for number in range(RUNS_KEPT)])
    few = CopiedRuns(None, 20)
    few.read(many.document())
    assert (few.translate(0), few.translate(2 * (RUNS_KEPT - 1))) == (None, RUNS_KEPT - 1)
