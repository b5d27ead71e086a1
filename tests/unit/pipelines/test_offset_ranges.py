"""What --from and --to may say."""

from __future__ import annotations

import pytest

from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.offset_ranges import Bound, OffsetRange, parse_bound, range_from_json
from barnabas.wire.topics import TopicPartition


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
