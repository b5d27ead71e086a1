"""Where to begin to read."""

from __future__ import annotations

import pytest

from barnabas.cli.edges import Edge
from barnabas.cli.starts import Ago, AtOffset, AtTime, BeforeEnd, Start, parse_duration_ms, parse_start


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Edge.EARLIEST),
        ("latest", Edge.LATEST),
        ("0", AtOffset(0)),
        ("9223372036854775807", AtOffset((1 << 63) - 1)),
        ("1970-01-01T00:00:01Z", AtTime(1_000)),
        ("1970-01-02", AtTime(86_400_000)),
        ("-10", BeforeEnd(10)),
        ("2h", Ago(7_200_000)),
        ("1h30m", Ago(5_400_000)),
        ("1m5ms", Ago(60_005)),
        ("1w", Ago(604_800_000)),
        ("P1DT2H", Ago(93_600_000)),
    ],
)
def test_reads_edges_offsets_and_times(text: str, start: Start) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize(
    "text",
    ["", "--1", "-1.5", "P", "PT", "30m1h", "2x", "h", "Earliest", "9223372036854775808", "yesterday", "٣", "1.5"],
)
def test_says_what_it_may_be(text: str) -> None:
    with pytest.raises(ValueError, match="offset"):
        parse_start(text)


@pytest.mark.parametrize("text", ["-0", "-9223372036854775808"])
def test_refuses_numbers_of_records_that_none_has(text: str) -> None:
    with pytest.raises(ValueError, match=r"number of records before the end|further back than any offset"):
        parse_start(text)


def test_a_duration_longer_than_time_begins_with_time() -> None:
    assert Ago(parse_duration_ms("999999w")).at(1_000) == AtTime(0)


@pytest.mark.parametrize(
    ("text", "error"), [("soon", "is no duration: write 30s"), ("", "no duration"), ("999999999999w", "longer than")]
)
def test_says_how_a_duration_is_written(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_duration_ms(text)
