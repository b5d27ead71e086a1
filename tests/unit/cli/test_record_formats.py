"""Records as text: the same both ways, and nothing of them is lost."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from barnabas.cli.consumed_formats import Columns, Records, format_of, record_document
from barnabas.cli.record_formats import add_bytes, parse_time, shown_bytes, shown_time
from barnabas.cli.record_json import InputRecord, json_line, parse_record
from barnabas.client.records import ConsumerRecord, RecordColumn
from barnabas.wire.records import Header, TimestampType
from barnabas.wire.topics import TopicPartition

BYTES = [b"text", "Žižkov ☃".encode(), b"", b"\xff\x00\xfe", b'quote " and \\', b"line\nbreak", None]


def record(
    key: bytes | None = b"k", value: bytes | None = b"v", headers: tuple[Header, ...] = (), offset: int = 5
) -> ConsumerRecord:
    return ConsumerRecord(
        TopicPartition("flights", 2), offset, 1_700_000_000_123, key, value, headers, 4, TimestampType.CREATE_TIME
    )


def printed(name: str, *, is_terminal: bool) -> Callable[[list[ConsumerRecord]], bytes]:
    """What a format makes of records, which come as it wants them."""
    found = format_of(name, is_terminal=is_terminal)
    if isinstance(found, Records):
        return found.lines
    return lambda records: found.lines([column_of([record]) for record in records])


def column_of(records: list[ConsumerRecord]) -> RecordColumn:
    keys = [record.key for record in records]
    return RecordColumn(
        records[0].partition,
        [record.offset for record in records],
        None if keys.count(None) == len(keys) else keys,
        [record.value for record in records],
    )


@pytest.mark.parametrize("key", BYTES)
@pytest.mark.parametrize("value", BYTES)
def test_what_is_read_as_json_can_be_written_again(key: bytes | None, value: bytes | None) -> None:
    headers = ((b"a", b"1"), (b"a", None), (b"\xff", b"\xfe"))
    (line,) = printed("json", is_terminal=False)([record(key, value, headers)]).splitlines()
    assert line.isascii()
    assert parse_record(line) == InputRecord(key, value, headers, 2, 1_700_000_000_123)


def test_the_json_of_a_record_says_all_there_is() -> None:
    assert record_document(record(b"\xff", None, ((b"h", b"1"),))) == {
        "topic": "flights",
        "partition": 2,
        "offset": 5,
        "timestamp_ms": 1_700_000_000_123,
        "timestamp_type": "CreateTime",
        "leader_epoch": 4,
        "key_base64": "/w==",
        "value": None,
        "headers": [{"key": "h", "value": "1"}],
    }


def test_values_are_printed_as_they_are_and_escaped_where_they_are_no_text() -> None:
    lines = printed("value", is_terminal=False)(
        [record(value=value) for value in (b"a\x1b[0m", "ß".encode(), b"\xff!", None)]
    )
    assert lines == "a\x1b[0m\nß\n\\xff!\nnull\n".encode()


def test_a_terminal_is_not_played_with() -> None:
    for name in ("value", "line", "raw", "hex", "json"):
        lines = printed(name, is_terminal=True)([record(b"\x1b]0;k\x07", "\x1b[2J\u202e".encode())])
        text = lines.decode()
        assert text.count("\n") == 1
        assert text.replace("\t", "").removesuffix("\n").isprintable()


def test_a_line_is_key_tab_and_value() -> None:
    assert printed("line", is_terminal=False)([record(), record(None, b"\xff")]) == b"k\tv\nnull\t\\xff\n"


def test_columns_of_many_records_are_printed_in_order() -> None:
    records = [record(None if number % 3 else b"k", b"v%d" % number if number % 5 else None) for number in range(40)]
    columns = [column_of(records[begin : begin + 7]) for begin in range(0, 40, 7)]
    for name in ("value", "line", "raw", "hex"):
        for is_terminal in (False, True):
            found = format_of(name, is_terminal=is_terminal)
            assert isinstance(found, Columns)
            assert found.lines(columns) == printed(name, is_terminal=is_terminal)(records)
            assert found.count(columns) == 40
    assert printed("line", is_terminal=False)(records[:3]) == b"k\tnull\nnull\tv1\nnull\tv2\n"


def test_raw_values_are_what_they_are_and_on_a_terminal_do_no_harm() -> None:
    records = [record(value=value) for value in (b"\xff\x00\x1b", b"", None, b"last")]
    assert printed("raw", is_terminal=False)(records) == b"\xff\x00\x1b\n\n\nlast\n"
    assert printed("raw", is_terminal=True)(records) == printed("value", is_terminal=True)(records)


def test_hexadecimal_digits_tell_null_from_nothing() -> None:
    records = [record(b"\xff\x00", b"\n"), record(None, b""), record(b"", None)]
    for is_terminal in (False, True):
        assert printed("hex", is_terminal=is_terminal)(records) == b"ff00\t0a\nnull\t\n\tnull\n"


def test_no_records_are_no_lines() -> None:
    for name in ("value", "line", "raw", "hex", "json"):
        assert printed(name, is_terminal=False)([]) == b""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"value": "v"}', InputRecord(None, b"v", has_key=False)),
        ('{"key": null, "value": null}', InputRecord(None, None)),
        ('{"value": {"a": ["ß", 1]}}', InputRecord(None, '{"a":["ß",1]}'.encode(), has_key=False)),
        ('{"value": 1.5}', InputRecord(None, b"1.5", has_key=False)),
        ('{"key": {"a": [12.50, "\\u00df"]}, "value": null}', InputRecord('{"a":[12.50,"ß"]}'.encode(), None)),
        ('{"value": 0.12345678901234567890}', InputRecord(None, b"0.12345678901234567890", has_key=False)),
        ('{"key": 1e5, "value": -1E400}', InputRecord(b"1e5", b"-1E400")),
        ('{"value": "", "headers": {"a": 1.0}}', InputRecord(None, b"", ((b"a", b"1.0"),), has_key=False)),
        ('{"value_base64": "/w=="}', InputRecord(None, b"\xff", has_key=False)),
        ('{"value": "", "headers": {"a": "1"}}', InputRecord(None, b"", ((b"a", b"1"),), has_key=False)),
        ('{"value": "v", "headers": []}', InputRecord(None, b"v", (), has_key=False)),
        ('{"value": "", "offset": 9, "topic": "t", "partition": 0}', InputRecord(None, b"", None, 0, has_key=False)),
    ],
)  # fmt: skip
def test_reads_what_people_write(line: str, expected: InputRecord) -> None:
    assert parse_record(line.encode()) == expected


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "it is not JSON (Expecting property name enclosed in double quotes at character 2)"),
        ("[1]", "a record is an object"),
        ('{"key": "a"}', "write null for a tombstone"),
        ('{"valeu": 1}', "a record has no 'valeu'"),
        ('{"value": 1, "value_base64": "/w=="}', "cannot be given together"),
        ('{"value_base64": "/w="}', "not base64"),
        ('{"value_base64": 1}', "not text in base64"),
        ('{"value": "\\ud800"}', "half of a surrogate pair"),
        ('{"value": 1, "partition": -1}', "partition is -1"),
        ('{"value": 1, "partition": 1.00}', "partition is 1.00"),
        ('{"value": [NaN]}', "it is not JSON (NaN is no number)"),
        ('{"value": -Infinity}', "it is not JSON (-Infinity is no number)"),
        pytest.param('{"value": ' + 100_000 * "[" + 100_000 * "]" + "}", "too deep", id="deep"),
        pytest.param('{"value": ' + 990 * "[" + "1.50" + 990 * "]" + "}", "too deep", id="deep, and digits to keep"),
        ('{"value": 1, "partition": true}', "partition is true"),
        ('{"value": 1, "timestamp_ms": 9223372036854775808}', "timestamp_ms is 9223372036854775808"),
        ('{"value": 1, "headers": "a"}', "headers are a list"),
        ('{"value": 1, "headers": [{"name": "a"}]}', "a header is an object"),
        ('{"value": 1, "headers": [{"value": "a"}]}', "a header has no key"),
    ],
)
def test_says_what_is_wrong_with_a_record(line: str, what: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_record(line.encode())
    assert what in str(caught.value)


def test_bytes_for_people_have_no_control_characters() -> None:
    assert shown_bytes(b"a\x00\x1b\n\xff") == "a\\x00\\x1b\\n\\xff"
    assert shown_bytes(None) == "null"


@pytest.mark.parametrize(
    ("text", "timestamp_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01.5", 1_500),
        ("1970-01-01T02:00:00+02:00", 0),
        ("2023-11-14T22:13:20.123Z", 1_700_000_000_123),
        ("2023-11-14", 1_699_920_000_000),
    ],
)
def test_times_are_utc_where_they_do_not_say(text: str, timestamp_ms: int) -> None:
    assert parse_time(text) == timestamp_ms
    assert parse_time(shown_time(timestamp_ms)) == timestamp_ms


def test_a_time_beyond_all_calendars_is_its_number() -> None:
    assert shown_time(1 << 62) == str(1 << 62)


def test_bytes_have_a_name_of_their_own_where_they_are_no_text() -> None:
    document: dict[str, object] = {}
    add_bytes(document, "a", b"x")
    add_bytes(document, "b", b"\xff")
    assert json.loads(json_line(document)) == {"a": "x", "b_base64": "/w=="}
