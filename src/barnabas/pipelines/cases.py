"""Tests of a pipeline: which records are given, batch by batch, and what is expected of its sinks.

They are in a file of their own beside the pipeline, `delays.test.yaml` for `delays.yaml`: what is run does not change
when a test does. Columns of a row are written as JSON into the record's value, which the pipeline then decodes.
"""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import functools
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from barnabas.pipelines.avro_encoding import encode, encode_value
from barnabas.pipelines.definition import (
    KEY_COLUMN,
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    TIMESTAMP_COLUMN,
    ConsoleSink,
    Framing,
    Pipeline,
    PipelineError,
    ReadMode,
    Sink,
    Source,
    SourceFormat,
)
from barnabas.pipelines.protobuf_decoding import framed
from barnabas.pipelines.protobuf_messages import encode_message
from barnabas.pipelines.sink_reading import SINK_KINDS
from barnabas.pipelines.yaml_positions import Form, Section, nearest, read_document

SUFFIX: Final = ".test.yaml"
VALUE_COLUMN: Final = "_value"
CONFLUENT_HEADER: Final = b"\0\0\0\0\1"
"""What stands before a record in Avro that is given as columns: whose id it has is not looked at."""
CASES_MAX: Final = 500
BATCHES_MAX: Final = 100
ROWS_MAX: Final = 10_000
COUNTS: Final = ("records_refused", "rows_dropped_by_watermark", "rows_without_event_time", "rows_ahead")
"""What may be counted, by the names that `barnabas pipeline status --json` has for them."""
LETTER_KEYS: Final = ("source", "reason", "key", "value", "topic", "partition", "offset")
"""What may be expected of a dead letter; of `reason` a part of the text is enough."""
TIMESTAMP_MS: Final = 946_684_800_000
"""The time of a record that does not say its own: 2000-01-01T00:00:00Z."""

FILE_KEYS: Final = ("tests",)
CASE_KEYS: Final = ("name", "given", "then", "expect", "dead_letters", "counts", "error")
RECORD_KEYS: Final = (KEY_COLUMN, VALUE_COLUMN, PARTITION_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN)
_LONG_MAX: Final = 2**63 - 1
_PARTITION_MAX: Final = 2**31 - 1
_FORM: Final = Form(
    "a file of tests",
    "tests of a pipeline are a block with the key `tests`, a list of tests, each with name, given and expect",
    "write tests of the pipeline there (docs/pipelines.md, Tests of a pipeline)",
)

Refuse = Callable[[str], PipelineError]
"""Makes an error of a message, at the place where the faulty row stands."""


@dataclass(frozen=True, slots=True)
class GivenRecord:
    """A record of the topic of the source `source`, as it would stand there."""

    source: str
    key: bytes | None
    value: bytes | None
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ExpectedRow:
    """The columns that a row must have with these values (others are not looked at), and the line of the file."""

    columns: Mapping[str, object]
    line: int = 0


@dataclass(frozen=True, slots=True)
class Expectation:
    """The rows of a view as each of the `sinks` writes them; without sinks as a topic without a key would."""

    label: str
    view: str
    sinks: tuple[Sink, ...]
    rows: tuple[ExpectedRow, ...]
    line: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """One test. `letters` are those expected, none where the file does not say; `counts` have only what it says."""

    name: str
    batches: tuple[tuple[GivenRecord, ...], ...]
    line: int = 0
    expected: tuple[Expectation, ...] = ()
    letters: tuple[ExpectedRow, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None


def path_of_tests(pipeline: Path) -> Path:
    """Where the tests of a pipeline's file are, unless somebody says otherwise."""
    stem = pipeline.stem if pipeline.suffix in {".yaml", ".yml", ".py"} else pipeline.name
    return pipeline.with_name(stem + SUFFIX)


def read_cases(pipeline: Pipeline, path: Path) -> tuple[Case, ...]:
    """The tests of a file. Raises PipelineMissingError without it, PipelineError for the first fault in it."""
    document = read_document(path, FILE_KEYS, _FORM)
    cases: list[Case] = []
    for section in document.sections("tests", CASE_KEYS, CASES_MAX):
        case = _case(pipeline, section)
        earlier = next((each for each in cases if each.name == case.name), None)
        if earlier is not None:
            raise section.error(f'there is a test "{case.name}" in line {earlier.line} already: name it otherwise')
        cases.append(case)
    return tuple(cases)


class RecordMaker:
    """Makes records of rows, each with the next offset of its partition."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._next: dict[tuple[str, int], int] = {}
        self._count = 0

    def source(self, name: str, is_first_batch: bool, refuse: Refuse) -> Source:
        """The source of the name, which may have records in this batch."""
        source = self._pipeline.source(name)
        if source is None:
            known = [each.name for each in self._pipeline.sources]
            raise refuse(f'"{name}" is not a source{nearest(name, known) or "; there are: " + ", ".join(known)}')
        if source.read is ReadMode.TABLE and source.refresh_ms is None and not is_first_batch:
            raise refuse(f'"{source.name}" is a table with `refresh: never`: give its rows under `given`')
        return source

    def record(self, source: Source, row: Mapping[str, object], refuse: Refuse) -> GivenRecord:
        """The record that has the row's columns as JSON, or `_value` as it is."""
        self._count += 1
        if self._count > ROWS_MAX:
            raise refuse(f"a test has at most {ROWS_MAX} rows")
        columns = {name: value for name, value in row.items() if name not in RECORD_KEYS}
        known = [column.name for column in source.columns]
        for name in columns:
            if name not in known:
                hint = nearest(name, known) or f"; it has: {', '.join(known)}"
                more = f"{hint} (a field that the schema lacks can be given in {VALUE_COLUMN}, as JSON)"
                raise refuse(f'"{name}" is not a column of {source.name}{more}')
        if VALUE_COLUMN in row and columns:
            raise refuse(f"a row has either {VALUE_COLUMN} or columns, not both")
        if VALUE_COLUMN in row:
            value = _bytes(row[VALUE_COLUMN], VALUE_COLUMN, refuse)
        else:
            value = _value(source, columns, refuse)
        partition = _integer(row.get(PARTITION_COLUMN, 0), PARTITION_COLUMN, _PARTITION_MAX, refuse)
        place = (source.name, partition)
        offset = _integer(row.get(OFFSET_COLUMN, self._next.get(place, 0)), OFFSET_COLUMN, _LONG_MAX - 1, refuse)
        if offset < self._next.get(place, 0):
            raise refuse(f"{OFFSET_COLUMN} {offset} is not behind the record before it of partition {partition}")
        self._next[place] = offset + 1
        key: bytes | None = None
        if KEY_COLUMN in row:
            key = _key(source, row[KEY_COLUMN], refuse)
        elif source.read is ReadMode.TABLE and source.key_format is not None:
            raise refuse(f"a row of {source.name} needs its {KEY_COLUMN}, of the type {source.key_format.type}")
        elif source.read is ReadMode.TABLE:
            key = f"row {self._count}".encode()
        return GivenRecord(source.name, key, value, partition, offset, _timestamp_ms(row, refuse))


def expectation_of(pipeline: Pipeline, name: str, refuse: Refuse) -> Expectation:
    """What `name` is about, without rows yet: a step, a source, or a sink, as `topic NAME` and `parquet DIRECTORY`."""
    kind, _, rest = name.partition(" ")
    if kind in SINK_KINDS and rest:
        directory = (pipeline.path.resolve().parent / rest.strip()).resolve()
        for sink in pipeline.sinks:
            if sink.target in {f"{kind} {rest.strip()}", f"{kind} {directory}"}:
                return Expectation(name, sink.from_view, (sink,), ())
        raise refuse(f'no sink writes "{name}"; there are: {", ".join(sink.target for sink in pipeline.sinks)}')
    defined = pipeline.step(name) or pipeline.source(name)
    if defined is None:
        known = [step.name for step in pipeline.steps] + [source.name for source in pipeline.sources]
        hint = nearest(name, known) or f"; there are: {', '.join(known)}"
        raise refuse(f'"{name}" is neither a step nor a source{hint}; of a sink write "topic NAME"')
    view = defined.name
    sinks = tuple(sink for sink in pipeline.sinks if sink.from_view == view)
    # What is shown are the rows as they come, without a key that would make one of several.
    sinks = tuple(sink for sink in sinks if not isinstance(sink, ConsoleSink)) or sinks
    if not sinks and not _reads_a_stream(pipeline, view):
        raise refuse(f'"{view}" reads tables only, so no batch has rows of it: expect a step that joins it')
    return Expectation(view, view, sinks, ())


def _reads_a_stream(pipeline: Pipeline, view: str) -> bool:
    source, step = pipeline.source(view), pipeline.step(view)
    if source is not None:
        return source.read is ReadMode.STREAM
    return step is not None and any(_reads_a_stream(pipeline, name) for name in step.reads)


def _key(source: Source, given: object, refuse: Refuse) -> bytes | None:
    """A record's key: text, or bytes; of a source whose keys have a format what it encodes."""
    form = source.key_format
    if form is None or given is None or isinstance(given, bytes):
        return _bytes(given, KEY_COLUMN, refuse)
    try:
        if form.format is SourceFormat.AVRO:
            content = encode_value(form.avro_schema, given, KEY_COLUMN)
            return CONFLUENT_HEADER + content if form.framing is Framing.CONFLUENT else content
        if not isinstance(given, Mapping):
            raise refuse(f"{KEY_COLUMN} must be a block of keys: fields of {form.message}")
        content = encode_message(form.descriptors, form.message, given)
    except (ValueError, OverflowError, decimal.DecimalException) as error:
        raise refuse(f"{KEY_COLUMN} cannot be written: {error}") from None
    return framed(form.descriptors, form.message, content) if form.framing is Framing.CONFLUENT else content


def _value(source: Source, columns: Mapping[str, object], refuse: Refuse) -> bytes:
    """Columns as a record's value in the format of the source."""
    if source.format is SourceFormat.JSON:
        return _json(columns, refuse)
    if source.format is SourceFormat.AVRO:
        try:
            content = encode(source.avro_schema, columns)
        except (ValueError, OverflowError, decimal.DecimalException) as error:
            raise refuse(f"the row cannot be written as Avro: {error}") from None
        return CONFLUENT_HEADER + content if source.framing is Framing.CONFLUENT else content
    if source.format is SourceFormat.PROTOBUF:
        try:
            content = encode_message(source.descriptors, source.message, columns)
        except ValueError as error:
            raise refuse(f"the row cannot be written as a message: {error}") from None
        return framed(source.descriptors, source.message, content) if source.framing is Framing.CONFLUENT else content
    fields = [columns.get(column.name) for column in source.columns]
    texts = ["" if each is None else str(each).lower() if isinstance(each, bool) else str(each) for each in fields]
    if source.format is SourceFormat.RAW:
        return fields[0] if isinstance(fields[0], bytes) else texts[0].encode()
    line = io.StringIO()
    csv.writer(line, delimiter=source.delimiter, lineterminator="").writerow(texts)
    return line.getvalue().encode()


def _case(pipeline: Pipeline, section: Section) -> Case:
    name = section.text("name")
    maker = RecordMaker(pipeline)
    batches = [_batch(maker, section.section("given", None), is_first=True)]
    if "then" in section:
        later = section.sections("then", None, BATCHES_MAX - 1)
        batches += [_batch(maker, batch, is_first=False) for batch in later]
    error = section.text("error").value.strip() if "error" in section else None
    if error is not None:
        for key in ("expect", "dead_letters", "counts"):
            if key in section:
                raise section.error(f"{key}: a run that ends by an error has no result: remove this", section.keys[key])
    elif not any(key in section for key in ("expect", "dead_letters", "counts")):
        raise section.error("nothing is expected: add expect, dead_letters, counts or error", name.line)
    return Case(
        name=name.value.strip(),
        batches=tuple(batches),
        line=name.line,
        expected=_expected(pipeline, section.section("expect", None)) if "expect" in section else (),
        letters=_letters(section) if "dead_letters" in section else (),
        counts=_counts(section.section("counts", COUNTS)) if "counts" in section else {},
        error=error,
    )


def _batch(maker: RecordMaker, section: Section, is_first: bool) -> tuple[GivenRecord, ...]:
    records: list[GivenRecord] = []
    for name, line in section.keys.items():
        source = maker.source(name, is_first, functools.partial(section.error, line=line))
        for row in section.sections(name, None, ROWS_MAX, 0):
            records.append(maker.record(source, _values(row), row.error))
    return tuple(records)


def _expected(pipeline: Pipeline, section: Section) -> tuple[Expectation, ...]:
    found: list[Expectation] = []
    for name, line in section.keys.items():
        about = expectation_of(pipeline, name, functools.partial(section.error, line=line))
        rows = tuple(ExpectedRow(_values(row), row.line) for row in section.sections(name, None, ROWS_MAX, 0))
        found.append(Expectation(about.label, about.view, about.sinks, rows, line))
    return tuple(found)


def _letters(section: Section) -> tuple[ExpectedRow, ...]:
    letters = section.sections("dead_letters", LETTER_KEYS, ROWS_MAX, 0)
    return tuple(ExpectedRow(_values(letter), letter.line) for letter in letters)


def _counts(section: Section) -> dict[str, int]:
    return {name: section.integer(name, 0, _LONG_MAX) for name in section.keys}


def _values(section: Section) -> dict[str, object]:
    return {name: section.value(name) for name in section.keys}


def _json(columns: Mapping[str, object], refuse: Refuse) -> bytes:
    try:
        return json.dumps(_plain(columns), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise refuse(f"the row cannot be written as JSON: {error}") from None


def _plain(value: object) -> object:
    """What JSON has, for what YAML and Python have: times as ISO texts, decimals as texts of all their digits."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    return str(value) if isinstance(value, decimal.Decimal) else value


def _bytes(value: object, key: str, refuse: Refuse) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise refuse(f"{key} must be text in quotes, bytes (!!binary), or null")
    return value.encode("utf-8", "surrogatepass")


def _integer(value: object, key: str, maximum: int, refuse: Refuse) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
        raise refuse(f"{key} must be a whole number from 0 to {maximum}")
    return value


def _timestamp_ms(row: Mapping[str, object], refuse: Refuse) -> int:
    value = row.get(TIMESTAMP_COLUMN)
    if value is None:
        return TIMESTAMP_MS
    try:
        moment = value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(str(value))
    except ValueError:
        raise refuse(f"{TIMESTAMP_COLUMN} must be a time such as 2013-01-01T05:00:00Z, not {value}") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)


def records_by_source(batch: Iterable[GivenRecord]) -> dict[str, list[GivenRecord]]:
    """The records of each source, in their order."""
    found: dict[str, list[GivenRecord]] = {}
    for record in batch:
        found.setdefault(record.source, []).append(record)
    return found
