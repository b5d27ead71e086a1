"""A batch is cut where the range ends, in Spark's own note of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from barnabas.pipelines.bounded_batches import BoundedBatches, Offsets, cut

SETTINGS = '{"batchWatermarkMs":5,"conf":{}}'


@pytest.mark.parametrize(
    ("starts", "ends", "bounds", "wanted"),
    [
        ({0: 0, 1: 0}, {0: 8, 1: 8}, {0: 10, 1: 9}, {0: 8, 1: 8}),
        ({0: 0, 1: 0}, {0: 8, 1: 8}, {0: 5, 1: 20}, {0: 5, 1: 11}),
        ({0: 0, 1: 0}, {0: 8, 1: 8}, {0: 5, 1: 9}, {0: 5, 1: 9}),
        ({0: 7}, {0: 9}, {0: 5}, {0: 7}),
        ({0: 0}, {0: 3, 1: 9}, {0: 3}, {0: 3}),
        ({0: 0, 1: 4}, {0: 3, 1: 9}, {0: 3}, {0: 3, 1: 4}),
    ],
)
def test_a_batch_ends_within_the_range_and_is_as_large_as_it_can_be(
    starts: dict[int, int], ends: dict[int, int], bounds: dict[int, int], wanted: dict[int, int]
) -> None:
    assert cut({"t": starts}, {"t": ends}, {"t": bounds}) == {"t": wanted}


def test_only_the_ends_of_a_batch_are_written_anew_and_a_batch_of_nothing_is_none(tmp_path: Path) -> None:
    note(tmp_path, 0, {"t": {0: 4}}, {"u": {0: 1}})
    note(tmp_path, 1, {"t": {0: 9}}, {"u": {0: 1}})
    (tmp_path / "offsets/.1.crc").touch()
    batches = BoundedBatches(tmp_path, {"t": {0: 6}, "u": {0: 3}})
    assert batches.passes(1)
    assert batches.cut(1)
    assert (tmp_path / "offsets/1").read_text() == f'v1\n{SETTINGS}\n{{"t":{{"0":6}}}}\n{{"u":{{"0":1}}}}'
    assert not (tmp_path / "offsets/.1.crc").exists()
    assert not batches.passes(1)
    assert not batches.is_last(1)
    note(tmp_path, 2, {"t": {0: 6}}, {"u": {0: 3}})
    assert not batches.passes(2)
    assert batches.is_last(2)
    note(tmp_path, 3, {"t": {0: 9}}, {"u": {0: 4}})
    assert not batches.cut(3)
    assert not (tmp_path / "offsets/3").exists()


def test_the_first_batch_begins_where_spark_has_noted_that_the_source_begins(tmp_path: Path) -> None:
    note(tmp_path, 0, {"t": {0: 9}})
    beginning = tmp_path / "sources/0/0"
    beginning.parent.mkdir(parents=True)
    beginning.write_text('\0v1\n{"t":{"0":7}}')
    batches = BoundedBatches(tmp_path, {"t": {0: 8}})
    assert batches.cut(0)
    assert json.loads((tmp_path / "offsets/0").read_text().split("\n")[2]) == {"t": {"0": 8}}
    assert not BoundedBatches(tmp_path, {"t": {0: 5}}).cut(0)


def note(checkpoint: Path, batch_id: int, *sources: Offsets) -> None:
    path = checkpoint / f"offsets/{batch_id}"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["v1", SETTINGS, *(json.dumps(each) for each in sources)]))
