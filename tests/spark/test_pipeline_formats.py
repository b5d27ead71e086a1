"""Records that are no JSON: Avro, Protocol Buffers, CSV, and values as they are, with schemas of files and registries.

Files stand for topics, as in tests of pipelines, and one Spark is for all.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines.avro_encoding import encode
from barnabas.pipelines.avro_references import with_references
from barnabas.pipelines.dead_letters import letters_of
from barnabas.pipelines.definition import PipelineError, TopicSink
from barnabas.pipelines.protobuf_decoding import framed
from barnabas.pipelines.protobuf_messages import encode_message
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.schema_learning import unknown_ids
from barnabas.pipelines.sinks import writer_of
from barnabas.pipelines.sources import decoded, with_document
from barnabas.pipelines.staged_batches import StagedBatches
from barnabas.pipelines.topic_sink import encoded_records_of, stage_records
from barnabas.pipelines.writer_schemas import UNKNOWN_SCHEMA
from tests.spark.pipeline_runs import Row
from tests.unit.pipelines.test_protobuf_messages import descriptors

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]


@pytest.fixture(scope="module")
def spark(spark_with_tables: Any) -> Any:
    return spark_with_tables


def varint(number: int) -> bytes:
    """A whole number as Avro writes it."""
    left, written = number << 1 if number >= 0 else (-number << 1) - 1, b""
    while left > 0x7F:
        written, left = written + bytes([left & 0x7F | 0x80]), left >> 7
    return written + bytes([left])


def text(value: str) -> bytes:
    return varint(len(value.encode())) + value.encode()


def read(
    spark: Any, directory: Path, source: str, values: Sequence[bytes | None], key: bytes | None = None
) -> list[tuple[Any, ...]]:
    """For each value whether it fits, and, if so, its columns; by way of a pipeline's file."""
    path = directory / "one.yaml"
    path.write_text(f"name: one\nsources:\n  s: {{topic: t, {source}}}\nsinks: [{{topic: o, from: s}}]\n")
    (found,) = read_pipeline(path).sources
    columns = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
    records = [(key, value, "t", 0, offset, None) for offset, value in enumerate(values)]
    rows, decoding = with_document(spark.createDataFrame(records, columns), found)
    kept = [column.alias(name) for name, column in decoding.columns.items()]
    told = rows.select("offset", decoding.fits.alias("fits"), *kept).orderBy("offset").collect()
    return [tuple(row)[2:] if row.fits else () for row in told]


AVRO = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "carrier", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "stops", "type": {"type": "array", "items": "string"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    ],
}


def test_a_value_is_one_avro_record_to_the_byte(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "flight.avsc").write_text(json.dumps(AVRO))
    whole = b"".join(
        [
            varint(-7) + varint(1) + text("UA") + varint(1_357_016_400_123),
            varint(2) + (1234).to_bytes(2, "big") + varint(2) + text("JFK") + text("") + varint(0) + varint(1),
        ]
    )
    row = (-7, "UA", dt.datetime.fromisoformat("2013-01-01T05:00:00.123"), decimal.Decimal("12.34"), ["JFK", ""], "B")
    columns = {"id": -7, "carrier": "UA", "at": "2013-01-01T05:00:00.123Z", "fare": "12.34", "stops": ["JFK", ""]}
    assert encode(json.dumps(AVRO), {**columns, "kind": "B"}) == whole
    broken = [
        whole + b"\0",
        whole[:-1],
        b"",
        whole + bytes(16),
        varint(7) + varint(5) + whole,
        # It says that gigabytes follow, which nobody may ask memory for.
        varint(7) + varint(1) + varint(2_000_000_000),
        whole[:-9] + varint(2**40),
    ]
    source = "format: avro, schema_file: flight.avsc"
    assert read(spark, tmp_path, source, [whole, *broken, None]) == [row, *[()] * len(broken)]
    framed = [b"\0\0\0\0\7" + whole, b"\1\0\0\0\7" + whole, b"\0\0\0", b"\0\0\0\0\7", whole]
    assert read(spark, tmp_path, f"{source}, framing: confluent", framed) == [row, (), (), (), ()]


def test_rows_are_written_as_avro_and_as_protocol_buffers(spark: Any, tmp_path: Path) -> None:
    fields = [{"name": "id", "type": ["null", "int"]}, {"name": "carrier", "type": ["null", "string"]}]
    (tmp_path / "f.avsc").write_text(json.dumps({"type": "record", "name": "Flight", "fields": fields}))
    (tmp_path / "air.desc").write_bytes(descriptors())
    avro_schema = "format: avro, schema_file: f.avsc"
    message = "format: protobuf, schema_file: air.desc, message: air.Flight"
    framed_by = ", framing: confluent"
    path = tmp_path / "w.yaml"
    formats = (avro_schema, f"{avro_schema}{framed_by}, schema_id: 258", message, f"{message}{framed_by}, schema_id: 3")
    sinks = "\n".join(f"  - {{topic: o{number}, from: s, key: id, {each}}}" for number, each in enumerate(formats))
    path.write_text(f"name: w\nsources: {{s: {{topic: t, schema: 'id INT, carrier STRING'}}}}\nsinks:\n{sinks}\n")
    rows = [(-7, "U\nA"), (8, None)]
    frame = spark.createDataFrame(rows, "id INT, carrier STRING").coalesce(1)
    for number, sink in enumerate(read_pipeline(path).sinks):
        assert isinstance(sink, TopicSink)
        staged = StagedBatches(tmp_path / f"outbox{number}", "one")
        stage_records(frame, sink, staged.being_written(0, 0))
        staged.publish(0, [(sink.topic, True)], [sink.topic])
        found = staged.find(0)
        assert found is not None
        ((keys, values),) = found.parts[0].columns()
        assert keys == [b'{"id":-7}', b'{"id":8}']
        assert list(values) == [bytes(each.value) for each in encoded_records_of(frame, sink).collect()]
        assert (values[0] or b"").startswith((b"\2", b"\0\0\0\1\2\2", b"\x08\xf9", b"\0\0\0\0\3\2\2")[number])
        source = (avro_schema, avro_schema + framed_by, message, message + framed_by)[number]
        assert [row[:2] for row in read(spark, tmp_path, source, values)] == rows
    (sink, *_) = read_pipeline(path).sinks
    writer = writer_of(read_pipeline(path), sink)
    with pytest.raises(
        PipelineError, match="s has more, which the schema of o0 has not; the schema's fields are id, carrier"
    ):
        writer.check_rows(spark, frame.selectExpr("*", "1 AS more"))
    with pytest.raises(PipelineError, match="s lacks carrier"):
        writer.check_rows(spark, frame.select("id"))


def test_a_row_that_deletes_is_a_record_without_a_value_in_each_format(spark: Any, tmp_path: Path) -> None:
    """Staged, as exactly once has it, and by Spark's sink. It need not fit the schema: it has its key, and nothing."""
    fields = [{"name": "id", "type": ["null", "int"]}, {"name": "carrier", "type": "string"}]
    (tmp_path / "f.avsc").write_text(json.dumps({"type": "record", "name": "Flight", "fields": fields}))
    (tmp_path / "key.avsc").write_text('"int"')
    (tmp_path / "air.desc").write_bytes(descriptors())
    formats = (
        "format: json",
        "format: avro, schema_file: f.avsc, key_format: {format: avro, schema_file: key.avsc}",
        "format: protobuf, schema_file: air.desc, message: air.Flight, framing: confluent, schema_id: 3",
    )
    sinks = "\n".join(
        f"  - {{topic: o{at}, from: s, key: id, delete: Gone, {each}}}" for at, each in enumerate(formats)
    )
    schema, path = "id INT, carrier STRING, gone BOOLEAN", tmp_path / "w.yaml"
    path.write_text(f"name: w\nsources: {{s: {{topic: t, schema: '{schema}'}}}}\nsinks:\n{sinks}\n")
    frame = spark.createDataFrame([(7, "UA", False), (7, None, True), (8, "AA", None)], schema).coalesce(1)
    for number, sink in enumerate(read_pipeline(path).sinks):
        assert isinstance(sink, TopicSink)
        writer_of(read_pipeline(path), sink).check_rows(spark, frame)
        staged = StagedBatches(tmp_path / f"outbox{number}", "one")
        stage_records(frame, sink, staged.being_written(0, 0))
        batch = staged.publish(0, [(sink.topic, True)], [f"o{max(number, 1)}"], ["o1"])
        ((keys, values),) = batch.parts[0].columns()
        sent = encoded_records_of(frame, sink).selectExpr("CAST(value AS BINARY) AS value").collect()
        assert list(values) == [row.value for row in sent]
        assert keys is not None
        assert (keys[0] == keys[1], keys[1] == keys[2]) == (True, False)
        assert [value and (b"UA" in value, b"AA" in value) for value in values] == [(True, False), None, (False, True)]


def test_records_of_several_schemas_are_read_by_the_one_that_each_was_written_with(spark: Any, tmp_path: Path) -> None:
    def schema(*fields: Row) -> str:
        return json.dumps({"type": "record", "name": "Flight", "fields": list(fields)})

    number, more = {"name": "id", "type": "int"}, {"name": "seats", "type": "long", "default": 5}
    newest = schema(number, more)
    (tmp_path / "flight.avsc").write_text(newest)
    path = tmp_path / "one.yaml"
    source = "{topic: t, format: avro, framing: confluent, schema_file: flight.avsc}"
    path.write_text(
        f"name: one\nregistry: {{url: 'http://unused:1'}}\nsources: {{s: {source}}}\nsinks: [{{topic: o, from: s}}]\n"
    )
    (found,) = read_pipeline(path).sources
    assert found.writers is not None
    # 258 has no seats, and a default that Java does not take; 3 has a wider id that does not fit; 4 names types of
    # other schemas, one of no namespace.
    size = {"type": "enum", "name": "Size", "symbols": ["S", "L"]}
    plane = {"type": "record", "name": "Plane", "namespace": "air", "fields": [{"name": "size", "type": "Size"}]}
    planes = [{"name": name, "type": ["null", "air.Plane"]} for name in ("first", "second")]
    found.writers.by_id |= {
        4: with_references(schema(number, *planes, {"name": "s", "type": "Size"}), map(json.dumps, (size, plane))),
        2: newest,
        258: schema(number, {"name": "gone", "type": "string", "default": None}),
        3: schema(more),
    }
    found.writers.was_asked = True
    columns = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"

    def told(values: Sequence[bytes]) -> list[tuple[Any, ...]]:
        records = [(None, value, "t", 0, offset, None) for offset, value in enumerate(values)]
        rows, decoding = with_document(spark.createDataFrame(records, columns), found)
        kept = [column.alias(name) for name, column in decoding.columns.items()]
        read = rows.select("offset", decoding.fits.alias("fits"), *kept).orderBy("offset").collect()
        return [tuple(row)[2:] if row.fits else () for row in read]

    one, other = varint(7) + varint(300), varint(8) + text("x")
    values = [b"\0\0\0\0\2" + one, b"\0\0\0\1\2" + other, b"\0\0\0\0\3" + varint(9)]
    values += [b"\1\0\0\0\2" + one, b"\0\0", b"\0\0\0\0\2" + one + b"\0", b"\0\0\0\1\2" + one]
    values += [b"\0\0\0\0\4" + varint(9) + varint(1) + varint(0) + varint(1) + varint(1) + varint(0)]
    assert told(values) == [(7, 300), (8, 5), (), (), (), (), (), (9, 5)]
    with pytest.raises(Exception, match=f"{UNKNOWN_SCHEMA}s:77"):
        told([b"\0\0\0\0\x4d" + one])
    # Once there was garbage, what is not known is none of a schema that can be read: a batch is looked at before.
    found.writers.is_careful = True
    values = [b"\0\0\0\0\x4d" + one, b"\0\0\0\0\2" + one, b"\0\xff\xff\xff\xff", b"\0\0\0", b"\1\0\0\0\x4d", b"k"]
    assert told(values) == [(), (7, 300), (), (), (), ()]
    found.writers.by_id.clear()
    assert told(values) == [()] * len(values)
    found.writers.is_careful = False
    with pytest.raises(Exception, match=f"{UNKNOWN_SCHEMA}s:"):
        told(values)
    records = spark.createDataFrame([(each, None) for each in [*values, *values, None]], "value BINARY, key BINARY")
    assert unknown_ids(records, "value", [2]) == [77, 2**32 - 1]
    assert (unknown_ids(records, "value", []), unknown_ids(records, "key", [])) == ([2, 77, 2**32 - 1], [])


def test_a_record_without_a_key_or_a_value_asks_no_registry_for_a_schema(spark: Any, tmp_path: Path) -> None:
    flight = json.dumps({"type": "record", "name": "F", "fields": [{"name": "id", "type": "int"}]})
    (tmp_path / "flight.avsc").write_text(flight)
    (tmp_path / "key.avsc").write_text('"int"')
    path = tmp_path / "none.yaml"
    path.write_text(
        "name: none\nregistry: {url: 'http://unused:1'}\nsources:\n  s:\n    topic: t\n    tombstones: keep\n"
        "    format: avro\n    framing: confluent\n    schema_file: flight.avsc\n"
        "    key_format: {format: avro, framing: confluent, schema_file: key.avsc}\nsinks: [{topic: o, from: s}]\n"
    )
    (source,) = read_pipeline(path).sources
    for (_, part), known in zip(source.registered_parts, ({2: flight}, {3: '"int"'}), strict=True):
        assert part.writers is not None
        part.writers.by_id |= known
        part.writers.was_asked = True
    key, value = b"\0\0\0\0\3" + varint(7), b"\0\0\0\0\2" + varint(9)
    given = [(key, value), (None, value), (key, None), (None, None)]
    types = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
    records = spark.createDataFrame([(*each, "t", 0, at, None) for at, each in enumerate(given)], types)
    rows = decoded(records, source).orderBy("_offset").collect()
    assert [(row._key, row.id, row._deleted) for row in rows] == [
        (7, 9, False),
        (None, 9, False),
        (7, None, True),
        (None, None, True),
    ]


KEY_FORMATS = {
    "long": ("format: avro, schema_file: long.avsc", "id"),
    "framed text": ("format: avro, schema_file: text.avsc, framing: confluent", "carrier"),
    "record": ("format: avro, schema_file: key.avsc, framing: confluent", "[carrier, id]"),
    "message": ("format: protobuf, schema_file: air.desc, message: air.Flight", "[id, carrier]"),
    "framed message": (
        "format: protobuf, schema_file: air.desc, message: air.Flight, framing: confluent",
        "[id, carrier]",
    ),
}


@pytest.mark.parametrize("kind", KEY_FORMATS)
def test_keys_are_written_and_read_in_formats_of_their_own(spark: Any, tmp_path: Path, kind: str) -> None:
    """By way of staged batches, as exactly once has it, and of Spark's sink alike."""
    form, columns = KEY_FORMATS[kind]
    fields = [{"name": "id", "type": "long"}, {"name": "carrier", "type": "string"}]
    (tmp_path / "long.avsc").write_text('"long"')
    (tmp_path / "text.avsc").write_text('"string"')
    (tmp_path / "key.avsc").write_text(json.dumps({"type": "record", "name": "Key", "fields": fields}))
    (tmp_path / "air.desc").write_bytes(descriptors())
    schema_id = ", schema_id: 9" if "confluent" in form else ""
    path = tmp_path / "k.yaml"
    path.write_text(
        "name: k\nsources:\n"
        f"  s: {{topic: t, schema: 'n INT', tombstones: keep, key_format: {{{form}}}}}\n"
        f"  rows: {{topic: r, schema: 'id BIGINT, carrier STRING, n INT'}}\n"
        f"sinks: [{{topic: o, from: rows, key: {columns}, key_format: {{{form}{schema_id}}}}}]\n"
    )
    pipeline = read_pipeline(path)
    (source, _), (sink,) = pipeline.sources, pipeline.sinks
    assert isinstance(sink, TopicSink)
    rows = [(7, "U\nA", 1), (0, "", 2)]
    frame = spark.createDataFrame(rows, "id BIGINT, carrier STRING, n INT").coalesce(1)
    staged = StagedBatches(tmp_path / "outbox", "one")
    stage_records(frame, sink, staged.being_written(0, 0))
    staged.publish(0, [(sink.topic, True)], [], [sink.topic])
    batch = staged.find(0)
    assert batch is not None
    ((keys, values),) = batch.parts[0].columns()
    assert keys == [bytes(each.key) for each in encoded_records_of(frame, sink).collect()]
    assert json.loads(values[0] or b"") == {"id": 7, "carrier": "U\nA", "n": 1}

    given = [
        *((key, b'{"n": 1}') for key in keys or ()),
        (None, b'{"n": 3}'),
        ((keys or [b""])[0], None),
        (b"\xff" * 9, b"{}"),
    ]
    types = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
    records = spark.createDataFrame([(*each, "t", 0, at, None) for at, each in enumerate(given)], types)
    read = [row._key for row in decoded(records, source).orderBy("_offset").collect()]
    as_told: dict[str, list[Any]] = {"long": [7, 0], "framed text": ["U\nA", ""], "record": [(7, "U\nA"), (0, "")]}
    if kind in as_told:
        assert read == [*as_told[kind], None, as_told[kind][0]]
    else:
        assert [(row.id, row.carrier) if row else None for row in read] == [(7, "U\nA"), (0, ""), None, (7, "U\nA")]
    records = records.selectExpr("*", "CAST(NULL AS array<struct<key:string,value:binary>>) AS headers")
    (letter,) = letters_of(records, source, "k", "s/0").collect()
    assert (bytes(letter.key), bytes(letter.value)) == (b"\xff" * 9, b"{}")
    assert bytes(letter.headers[0].value).startswith(b"the key is not " + (b"Avro" if "avro" in form else b"Protocol"))
    if kind == "long":
        with pytest.raises(Exception, match="o has a row without id, which is the key of its record"):
            encoded_records_of(frame.selectExpr("CAST(NULL AS BIGINT) AS id", "carrier", "n"), sink).collect()


def test_messages_of_several_types_of_one_subject_are_told_apart_by_the_registry(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "air.desc").write_bytes(descriptors())
    form = "format: protobuf, framing: confluent, schema_file: air.desc, message: air.Flight"
    path = tmp_path / "m.yaml"
    path.write_text(
        "name: m\nregistry: {url: 'http://unused:1'}\nsources:\n"
        f"  all: {{topic: t, {form}}}\n  some: {{topic: t, {form}, other_messages: drop}}\n"
        "sinks: [{topic: a, from: all}, {topic: b, from: some}]\n"
    )
    content = encode_message(descriptors(), "air.Flight", {"id": 1, "carrier": "UA"})
    head = b"\0\0\0\0"
    values = [
        head + b"\7\0" + content,
        head + b"\7\2\2" + b"other",
        head + b"\x08\2\4" + content,
        head + b"\x09\0" + content,
    ]
    values += [b"", head, content, head + b"\x08\2\4" + content[:-1], head + b"\7" + b"\xff" * 9]
    types = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
    records = spark.createDataFrame([(None, each, "t", 0, at, None) for at, each in enumerate(values)], types)
    records = records.selectExpr("*", "CAST(NULL AS array<struct<key:string,value:binary>>) AS headers")
    refused = {"all": [1, 3, 4, 5, 6, 7, 8], "some": [3, 4, 5, 6, 7, 8]}
    for source in read_pipeline(path).sources:
        assert source.writers is not None
        source.writers.by_id |= {7: "[[0]]", 8: "[[2], [1]]"}
        source.writers.was_asked = True
        with pytest.raises(Exception, match=f"{UNKNOWN_SCHEMA}{source.name}:9"):
            decoded(records, source).collect()
        source.writers.is_careful = True
        rows = decoded(records, source).orderBy("_offset").collect()
        assert [(row._offset, row.id, row.carrier) for row in rows] == [(0, 1, "UA"), (2, 1, "UA")]
        letters = letters_of(records, source, "m", "s/0").collect()
        found = sorted(int(bytes(h.value)) for letter in letters for h in letter.headers if h.key.endswith(".offset"))
        assert found == refused[source.name]


def test_a_value_is_one_message_of_protocol_buffers(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "air.desc").write_bytes(descriptors())
    content = encode_message(descriptors(), "air.Flight", {"id": 1, "carrier": "UA", "stops": [{"name": "JFK"}]})
    nothing = decimal.Decimal(0)
    row: tuple[Any, ...] = (1, "UA", nothing, None, None, "NONE", [("JFK",)], {})
    source = "format: protobuf, schema_file: air.desc, message: air.Flight"
    found = read(spark, tmp_path, source, [content, b"", content[:-1], b"nonsense", None])
    assert found == [row, (0, None, nothing, None, None, "NONE", [], {}), (), ()]
    values = [framed(descriptors(), "air.Flight", content), framed(descriptors(), "air.Unused", b""), content]
    assert read(spark, tmp_path, f"{source}, framing: confluent", values) == [row, (), ()]


def test_a_value_is_one_line_of_csv_and_each_field_what_its_type_says(spark: Any, tmp_path: Path) -> None:
    schema = "a INT, b DOUBLE, c DECIMAL(5, 2), d DATE, e TIMESTAMP, f STRING, g BOOLEAN"
    source = f'format: csv, delimiter: ";", schema: "{schema}"'
    time = dt.datetime.fromisoformat("2013-01-01T05:00:00")
    row = (1, 2.5, decimal.Decimal("1.10"), dt.date(2013, 1, 1), time, 'a "b";c', True)
    lines = {
        '1;2.5;1.10;2013-01-01;2013-01-01T06:00:00+01:00;"a ""b"";c";true\r\n': row,
        ";-Infinity;;;;;FALSE": (None, float("-inf"), None, None, None, None, False),
        ';;;;;"";': (None,) * 7,
    }
    broken = ["1;2;3", "1;;;;;;;", "1;;;;;;\n2;;;;;;", "x;;;;;;", " 1;;;;;;", "99999999999;;;;;;", ";1e400;;;;;", ""]
    broken += [";;1.234;;;;", ";;12345.00;;;;", ";;;2013-13-01;;;", ";;;2013;;;", ";;;;12:30;;", ";;;;;;yes"]
    assert read(spark, tmp_path, source, [line.encode() for line in lines]) == list(lines.values())
    given = [*(line.encode() for line in broken), b";;;;;\xff;"]
    assert read(spark, tmp_path, source, given) == [()] * len(given)


def test_a_value_is_taken_as_it_is_and_records_without_one_are_rows_for_who_asks(spark: Any, tmp_path: Path) -> None:
    values = [b"\xff\0", b"text", None]
    assert read(spark, tmp_path, "format: raw", values) == [(b"\xff\0",), (b"text",)]
    assert read(spark, tmp_path, 'format: raw, schema: "v STRING"', values) == [(), ("text",)]
    keeping = 'format: raw, schema: "v STRING", tombstones: keep'
    assert read(spark, tmp_path, keeping, values) == [(), ("text",), (None,)]
    # Where a row is known by its record's key, those without one are not all of one row.
    assert read(spark, tmp_path, f"{keeping}, require_key: true", values) == [(), (), ()]
    assert read(spark, tmp_path, f"{keeping}, require_key: true", values, key=b"k") == [(), ("text",), (None,)]
