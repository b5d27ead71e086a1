"""Lines that become records."""

from __future__ import annotations

import pytest

from barnabas.cli.record_lines import LineFormat
from barnabas.client.records import ProducerRecord


def test_a_line_is_a_value() -> None:
    lines = LineFormat(topic="t", key=b"k", partition=3, headers=((b"h", b"1"),))
    assert lines.record(b"a\xffb ") == ProducerRecord("t", b"a\xffb ", b"k", ((b"h", b"1"),), 3)
    assert LineFormat(topic="t").record(b"") == ProducerRecord("t", b"")


def test_a_line_is_key_separator_and_value() -> None:
    lines = LineFormat(topic="t", key_separator=b"::")
    assert lines.record(b"a::b::c") == ProducerRecord("t", b"b::c", b"a")
    with pytest.raises(ValueError, match="there is no '::' in it"):
        lines.record(b"a:b")


def test_what_a_json_record_says_goes_before_what_holds_for_all() -> None:
    lines = LineFormat(topic="t", is_json=True, key=b"k", partition=3, headers=((b"h", b"1"),))
    assert lines.record(b'{"value": "v"}') == ProducerRecord("t", b"v", b"k", ((b"h", b"1"),), 3)
    own = lines.record(b'{"key": null, "value": "v", "headers": [], "partition": 0, "timestamp_ms": 5}')
    assert own == ProducerRecord("t", b"v", None, (), 0, 5)


def test_empty_lines_of_json_are_no_records() -> None:
    assert LineFormat(topic="t", is_json=True).record(b" \r") is None
