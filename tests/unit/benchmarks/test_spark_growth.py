"""The arithmetic of `benchmarks.spark.growth` and `.tables`: what a row costs, and what counts as flat."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.ratios import table as ratios
from benchmarks.spark.growth import Cost, cost_of, table
from benchmarks.spark.rows import CHUNK_ROWS, chunks
from benchmarks.spark.tables import KINDS, OURS, ROWS, SPARK, Figures, keep, rounds_of
from benchmarks.spark.work import WrongResultError


def test_the_first_batch_has_no_part_in_what_a_row_costs() -> None:
    cost = cost_of([1_000] * 9, [60.0, *[1.0] * 4, *[2.0] * 4], [100.0, *range(101, 109)])
    assert cost == Cost(wall=1_500.0, cpu=1_000.0, early=1_000.0, late=2_000.0)


def test_batches_of_other_sizes_count_by_their_rows() -> None:
    cost = cost_of([5, 100, 100, 50], [9.0, 1.0, 1.0, 1.0], [0.0, 1.0, 2.0, 3.0])
    assert (cost.wall, cost.early, cost.late) == (12_000.0, 10_000.0, 20_000.0)


def test_a_run_that_is_too_short_to_show_growth_is_refused() -> None:
    with pytest.raises(WrongResultError, match="2 batches"):
        cost_of([1, 1], [1.0, 1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("last", "verdict"),
    [
        (Cost(11, 21, 11, 11), "met"),
        (Cost(13, 20, 13, 13), "NOT met"),
        (Cost(10, 26, 10, 10), "NOT met"),
        (Cost(10, 20, 10, 13), "NOT met"),
    ],
)
def test_flat_is_what_grows_by_no_measure(last: Cost, verdict: str) -> None:
    *_, first, line = table({2_000_000: [last], 1_000_000: [Cost(10, 20, 10, 10)]}).splitlines()
    assert first == "| 1,000,000 | 10.00 µs | 20.00 µs | 1.00 |  |"
    assert line.startswith("| 2,000,000 |")
    assert line.endswith(f"| at most 1.25: {verdict} |")


def test_a_figure_is_the_median_of_the_rounds() -> None:
    rounds = [Cost(wall, 1, 1, 1) for wall in (1, 2, 30)]
    assert "| 9 | 2.00 µs | 1.00 µs |" in table({9: rounds})


def test_a_topic_is_filled_in_stretches_without_a_gap() -> None:
    found = list(chunks(7, 7 + 2 * CHUNK_ROWS + 1))
    assert found[0][0] == 7
    assert found[-1][1] == 7 + 2 * CHUNK_ROWS + 1
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(found))
    assert max(end - start for start, end in found) == CHUNK_ROWS
    assert list(chunks(5, 5)) == []


def test_a_table_is_met_where_ours_is_as_fast_and_says_so_by_kind() -> None:
    figures: Figures = {}
    for ours, theirs in ((100.0, 90.0), (100.0, 110.0), (100.0, 80.0)):
        keep(figures, "delta", OURS, (ours, ours, 1.0))
        keep(figures, "delta", SPARK, (theirs, theirs, 2.0))
    assert rounds_of(figures) == 3
    lines = ratios(ROWS, figures, OURS, SPARK, "ours / Spark's own").splitlines()[2:]
    assert len(lines) == 3
    assert lines[0].startswith("| Delta, each record a row | 100 / 90 rows/s | 1.11 |")
    assert lines[0].endswith("| at least 1.0: met |")
    assert lines[2].startswith("| ... processor time | 1 / 2 s | 0.50 |")
    assert set(KINDS) == {"delta", "parquet"}
