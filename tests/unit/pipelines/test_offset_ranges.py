"""What --from and --to may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.pipelines import offset_ranges as module
from barnabas.pipelines.bounded_batches import cut
from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.offset_ranges import Bound, OffsetRange, parse_bound, range_from_json, with_new_partitions
from barnabas.wire.topics import TopicPartition
from tests.unit.pipelines.made_pipelines import made_pipeline


def test_a_bound_is_a_time_and_offsets_of_single_partitions() -> None:
    assert parse_bound("--to", []) is None
    assert parse_bound("--to", ["latest"]) == Bound(-1)
    assert parse_bound("--from", ["2013-01-01T01:00:00+01:00"]) == Bound(1_356_998_400_000)
    places = {TopicPartition("a.b", 0): 7, TopicPartition("a.b", 12): 0}
    assert parse_bound("--from", ["a.b:0=7", "earliest", "a.b:12=0"]) == Bound(-2, places)


@pytest.mark.parametrize("texts", [["yesterday"], ["1969-12-31"], ["flights:0"], ["earliest", "latest"], [""]])
def test_what_is_no_place_is_refused_with_its_option(texts: list[str]) -> None:
    with pytest.raises(PipelineError, match=r"^--from "):
        parse_bound("--from", texts)


def test_a_range_is_what_it_was_when_it_is_read_again() -> None:
    found = OffsetRange({"t": {0: 1, 11: 2}}, {})
    assert range_from_json(found.to_json()) == found


def test_a_range_that_is_gone_on_with_has_a_place_in_partitions_that_were_added_since(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else Spark, which wants one in each, does not begin; and what was lost meanwhile is not made of it."""
    monkeypatch.setattr(module, "read_beginnings", lambda *_: {"flights": {0: 7, 1: 0, 2: 3}})
    begun = OffsetRange({"flights": {0: 5, 1: 4}}, {"flights": {0: 9, 1: 6}})
    found = with_new_partitions(made_pipeline(tmp_path), "host:1", begun)
    assert found == OffsetRange({"flights": {0: 5, 1: 4, 2: 3}}, begun.ends)
    assert cut(found.starts, {"flights": {0: 9, 1: 6, 2: 8}}, found.ends) == {"flights": {0: 9, 1: 6, 2: 3}}


def test_a_range_has_records_where_an_end_lies_behind_a_beginning() -> None:
    empty = {"a": {0: 5, 1: 0}, "b": {0: 1}}
    assert not OffsetRange(empty, empty).has_records(["a", "b"])
    some = OffsetRange(empty, {"a": {0: 5, 1: 1}, "b": {0: 1}})
    assert (some.has_records(["a"]), some.has_records(["b"])) == (True, False)
    assert OffsetRange(empty, {}).has_records(["b"])
