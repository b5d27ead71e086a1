"""Templates of lines, as kcat has them."""

from __future__ import annotations

import pytest

from barnabas.cli.record_templates import parse_template, template_format
from barnabas.client.records import ConsumerRecord
from barnabas.wire.records import Header, TimestampType
from barnabas.wire.topics import TopicPartition


def record(key: bytes | None = b"k", value: bytes | None = b"v", headers: tuple[Header, ...] = ()) -> ConsumerRecord:
    partition = TopicPartition("flights", 2)
    return ConsumerRecord(partition, 5, 1_700_000_000_123, key, value, headers, 4, TimestampType.CREATE_TIME)


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("%t %p %o %k %s", b"flights 2 5 k v\n"),
        (r"%T\t%K,%S\n", b"1700000000123\t1,1\n"),
        ("%v%%", b"v%\n"),
        ("%h", b"a=1,b=null\n"),
        (r"\x41\\%s\0\r", b"A\\v\0\r\n"),
        ("ž%s", "žv\n".encode()),
        (r"%s\n\n", b"v\n\n"),
    ],
)
def test_a_line_is_what_the_template_says(template: str, line: bytes) -> None:
    made = template_format(template, is_terminal=False)([record(headers=((b"a", b"1"), (b"b", None)))])
    assert made == line


def test_each_record_is_a_line() -> None:
    lines = template_format("%k", is_terminal=False)
    assert lines([record(b"a"), record(b"b")]) == b"a\nb\n"
    assert lines([]) == b""


def test_what_is_not_there_and_what_is_no_text() -> None:
    lines = template_format("%k %s %K %S", is_terminal=False)
    assert lines([record(None, None)]) == b"null null -1 -1\n"
    assert lines([record(b"\xff", b"")]) == b"\\xff  1 0\n"


def test_on_a_terminal_only_the_template_may_control_it() -> None:
    lines = template_format(r"\x1b[1m%s", is_terminal=True)
    assert lines([record(value=b"\x1b[2J")]) == b"\x1b[1m\\x1b[2J\n"


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("", "is not value, line, raw, hex or json, nor a template"),
        ("text", "is not value, line, raw, hex or json, nor a template"),
        ("%", "a single % is at the end; %% is a percent sign"),
        ("%s %", "a single % is at the end"),
        ("%z", "%z means nothing: write %t topic"),
        ("%s\\", "is at the end"),
        (r"%s\q", r"\\q means nothing"),
        (r"%s\x1", "two hexadecimal digits"),
        (r"%s\xzz", "two hexadecimal digits"),
        (r"%s\x  ", "two hexadecimal digits"),
    ],
)
def test_what_means_nothing_is_refused(template: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_template(template)
