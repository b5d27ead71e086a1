"""Where to begin to read."""

from __future__ import annotations

import pytest

from barnabas.cli.starts import AtOffset, AtTime, Edge, Start, parse_start


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Edge.EARLIEST),
        ("latest", Edge.LATEST),
        ("0", AtOffset(0)),
        ("9223372036854775807", AtOffset((1 << 63) - 1)),
        ("1970-01-01T00:00:01Z", AtTime(1_000)),
        ("1970-01-02", AtTime(86_400_000)),
    ],
)
def test_reads_edges_offsets_and_times(text: str, start: Start) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize("text", ["", "-1", "Earliest", "9223372036854775808", "yesterday", "٣", "1.5"])
def test_says_what_it_may_be(text: str) -> None:
    with pytest.raises(ValueError, match="offset"):
        parse_start(text)
