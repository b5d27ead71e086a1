"""Which records a batch has, by files as Spark 4.0 writes them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from barnabas.pipelines.batch_offsets import BatchRange, batch_range
from barnabas.pipelines.definition import PipelineError

Offsets = Mapping[str, Mapping[str, int]]


def note(checkpoint: Path, *readers_of_batches: Sequence[Offsets]) -> Path:
    """Where the readers begin, then where each batch ends."""
    firsts, *batches = readers_of_batches
    for number, offsets in enumerate(firsts):
        (checkpoint / "sources" / str(number)).mkdir(parents=True)
        (checkpoint / "sources" / str(number) / "0").write_text("\0v1\n" + json.dumps(offsets))
    (checkpoint / "offsets").mkdir()
    for number, readers in enumerate(batches):
        lines = ["v1", '{"batchWatermarkMs":0}', *map(json.dumps, readers)]
        (checkpoint / "offsets" / str(number)).write_text("\n".join(lines))
    return checkpoint


def test_a_batch_has_what_is_between_its_end_and_that_of_the_one_before(tmp_path: Path) -> None:
    other = {"airlines": {"0": 7}}
    checkpoint = note(
        tmp_path,
        [{"flights": {"0": 3, "1": 0}}, other],
        [other, {"flights": {"0": 10, "1": 0}}],
        [other, {"flights": {"0": 12, "1": 5, "2": 4}}],
    )
    assert batch_range(checkpoint, 0, "flights") == BatchRange({0: 3, 1: 0}, {0: 10, 1: 0})
    # A partition that is new is read from its beginning, wherever that is.
    assert batch_range(checkpoint, 1, "flights") == BatchRange({0: 10, 1: 0}, {0: 12, 1: 5, 2: 4})
    assert batch_range(checkpoint, 1, "no such topic") == BatchRange({}, {})


def test_ranges_have_no_gap_and_no_overlap_where_two_readers_are_apart(tmp_path: Path) -> None:
    ends = [(5, 9), (9, 9), (9, 12), (20, 20)]
    checkpoint = note(
        tmp_path, *([{"flights": {"0": first}}, {"flights": {"0": second}}] for first, second in [(2, 2), *ends])
    )
    ranges = [batch_range(checkpoint, number, "flights") for number in range(len(ends))]
    assert all(each.is_read_twice for each in ranges)
    assert (ranges[0].starts, ranges[-1].ends) == ({0: 2}, {0: 20})
    assert all(before.ends == after.starts for before, after in itertools.pairwise(ranges))
    # The widest have all that any of them has in the batch.
    widest = [batch_range(checkpoint, number, "flights", is_widest=True) for number in range(len(ends))]
    assert [(each.starts[0], each.ends[0]) for each in widest] == [(2, 9), (5, 9), (9, 12), (9, 20)]


@pytest.mark.parametrize("damage", ["offsets/1", "offsets/0"])
def test_a_checkpoint_that_does_not_tell_is_named(tmp_path: Path, damage: str) -> None:
    checkpoint = note(tmp_path, [{"flights": {"0": 0}}], [{"flights": {"0": 1}}], [{"flights": {"0": 2}}])
    (checkpoint / damage).unlink()
    with pytest.raises(PipelineError, match="does not tell which records of flights are in batch 1"):
        batch_range(checkpoint, 1, "flights")
