"""What a pipeline is: sources, SQL steps and sinks, as its YAML file says, checked and frozen.

Every part knows the line of the file that it came from, so that whatever goes wrong with it later can be told there.
`pipelines.reading.read_pipeline` makes these from a file; nothing else does, outside of tests.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from barnabas.pipelines.python_code import PythonCode
from barnabas.pipelines.writer_schemas import RegisteredSchema, WriterSchemas

PIPELINE_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")
GROUP_PREFIX = "barnabas-pipeline-"
LETTERS_SUFFIX = ".dlq"
MAX_RECORDS_PER_BATCH_DEFAULT = 500_000
AHEAD_MS_DEFAULT = 24 * 3_600_000

KEY_COLUMN = "_key"
TOPIC_COLUMN = "_topic"
PARTITION_COLUMN = "_partition"
OFFSET_COLUMN = "_offset"
TIMESTAMP_COLUMN = "_timestamp"
RECORD_COLUMNS = (KEY_COLUMN, TOPIC_COLUMN, PARTITION_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN)
"""What every source has besides the columns of its schema: where the record stands, its key as a string, its time."""

DELETED_COLUMN = "_deleted"
"""What a source that keeps records without a value has behind the columns of its schema: whether this is one."""


class PipelineError(Exception):
    """What stops a pipeline, for the one who wrote it: one line that says what is wrong and what to do.

    `str()` is `path:line: message` where the file is at fault, and the message alone where it is not. Line breaks
    in the message become spaces, since what Spark and YAML have to say comes with many.
    """

    def __init__(self, message: str, *, path: Path | None = None, line: int | None = None) -> None:
        self.message = " ".join(message.split())
        self.path = path
        self.line = line
        place = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(place + self.message)


class PipelineMissingError(PipelineError):
    """Something that the pipeline names does not exist: its file, a topic, a directory of jars."""


class PipelineUnreachableError(PipelineError):
    """The cluster could not be reached, or did not answer in time."""


class SparkEndedError(PipelineError):
    """Spark's process has ended unexpectedly: nothing can be asked of it any more."""


class RunStopped(Exception):  # noqa: N818  # no error: a wish that is granted
    """A run was told to stop before it began with something: with Spark, or with a batch, which the next run does."""


class ReadMode(enum.Enum):
    """How a topic becomes a view."""

    STREAM = "stream"
    """Every record, as it comes."""
    TABLE = "table"
    """The newest record of each key, read when a run starts, and read on before its batches."""


class SourceFormat(enum.Enum):
    """How the values of a topic's records are written."""

    JSON = "json"
    """One JSON object."""
    AVRO = "avro"
    """One Avro record, in Avro's binary encoding."""
    PROTOBUF = "protobuf"
    """One message of Protocol Buffers."""
    CSV = "csv"
    """One line of CSV, without a header."""
    RAW = "raw"
    """The value as it is: one column."""


class Framing(enum.Enum):
    """What stands before a record in Avro or Protocol Buffers."""

    NONE = "none"
    CONFLUENT = "confluent"
    """A zero byte, and four of the id that a schema registry has for the writer's schema; of Protocol Buffers also the
    place of the message in its file.
    """


class Tombstones(enum.Enum):
    """What becomes of a record without a value."""

    DROP = "drop"
    """It is no row."""
    KEEP = "keep"
    """It is a row of nulls, with DELETED_COLUMN true."""


class OtherMessages(enum.Enum):
    """What becomes of a record that is another message of the schema that a registry's framing names."""

    REFUSE = "refuse"
    """It does not fit."""
    DROP = "drop"
    """It is no row."""


class StartingPosition(enum.Enum):
    """Where the first run of a pipeline begins to read; later runs go on where the one before ended."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"


class OnError(enum.Enum):
    """What becomes of a record of a source that does not fit its schema."""

    FAIL = "fail"
    """It stops the run, and is named."""
    SKIP = "skip"
    """It is left out, and counted."""
    TOPIC = "topic"
    """It is left out and counted, and sent to the pipeline's topic of dead letters."""


class Delivery(enum.Enum):
    """How often the rows of a batch that is repeated, after a run was cut short, come into a topic."""

    EXACTLY_ONCE = "exactly_once"
    """Once, for readers of committed records: by a transaction for each batch."""
    AT_LEAST_ONCE = "at_least_once"
    """Each time."""


@dataclass(frozen=True, slots=True)
class Starting:
    """A starting position; `timestamp_ms` (milliseconds since 1970, UTC) belongs to TIMESTAMP, and is -1 else."""

    position: StartingPosition = StartingPosition.EARLIEST
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of Spark's connector or of a Kafka client, `kafka.` before it, with its value as text and its line."""

    name: str
    value: str
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a source's schema; `type` is Spark's DDL as it was written, such as `ARRAY<INT>`."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class KeyFormat:
    """How keys of records are written, in Avro or Protocol Buffers; fields are those of Source and TopicSink.

    `type` is what a key is for SQL, in Spark's DDL.
    """

    format: SourceFormat
    type: str
    line: int
    framing: Framing = Framing.NONE
    avro_schema: str = ""
    descriptors: bytes = field(default=b"", repr=False)
    message: str = ""
    fields: tuple[str, ...] = ()
    """Of a record or message: the names of its fields; none where a key is a single value."""
    subject: str = ""
    writers: WriterSchemas | None = field(default=None, repr=False, compare=False)
    schema_id: int = -1
    registered: RegisteredSchema | None = field(default=None, repr=False, compare=False)
    is_key: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Source:
    """A topic as a view of the name `name`, with the columns of `schema` and RECORD_COLUMNS.

    `schema` is Spark DDL, its names in backticks. `starting` and `max_records_per_batch` (of all partitions
    together) hold for streams.
    """

    name: str
    topic: str
    schema: str
    columns: tuple[Column, ...]
    line: int
    topic_line: int
    schema_line: int
    read: ReadMode = ReadMode.STREAM
    format: SourceFormat = SourceFormat.JSON
    starting: Starting = Starting()
    max_records_per_batch: int = MAX_RECORDS_PER_BATCH_DEFAULT
    allow_data_loss: bool = False
    on_error: OnError = OnError.FAIL
    tombstones: Tombstones = Tombstones.DROP
    requires_key: bool = False
    """Whether a record without a key does not fit."""
    refresh_ms: int | None = 0
    """Of a table: how old, in milliseconds, may be what a batch sees of it. 0: as the topic was when the batch began;
    None: as it was when the run did.
    """
    framing: Framing = Framing.NONE
    avro_schema: str = ""
    """Of AVRO: the schema that records were written with, as JSON."""
    delimiter: str = ","
    """Of CSV."""
    subject: str = ""
    """With framing and a registry: what the schemas of its records are called there."""
    writers: WriterSchemas | None = field(default=None, repr=False, compare=False)
    """The same: what is known of them. None where there is no registry."""
    descriptors: bytes = field(default=b"", repr=False)
    """Of PROTOBUF: a descriptor set, which has the message `message`."""
    message: str = ""
    drops_others: bool = False
    """Of framed PROTOBUF: whether a record of another message is no row; else it does not fit."""
    key_format: KeyFormat | None = None
    """How keys are written; None where they are text, or whatever they are."""
    options: tuple[Option, ...] = ()
    """How it is read (`topic_options`)."""
    is_key: ClassVar[bool] = False

    @property
    def registered_parts(self) -> tuple[tuple[str, Source | KeyFormat], ...]:
        """What of a record has schemas in a registry, its value and its key, by the names for `UNKNOWN_SCHEMA`."""
        parts = ((self.name, self), (f"{self.name}.key", self.key_format))
        return tuple((mark, part) for mark, part in parts if part is not None and part.writers is not None)

    @property
    def view_columns(self) -> tuple[str, ...]:
        """The columns that a star stands for."""
        names = tuple(column.name for column in self.columns)
        return (*names, DELETED_COLUMN) if self.tombstones is Tombstones.KEEP else names


@dataclass(frozen=True, slots=True)
class Watermark:
    """How late rows may be: those whose `column` is more than `delay_ms` behind the newest are dropped by state.

    Those whose `column` is more than `ahead_ms` beyond the present never become the newest: they are left out before.
    """

    column: str
    delay_ms: int
    line: int
    ahead_ms: int = AHEAD_MS_DEFAULT


@dataclass(frozen=True, slots=True)
class Step:
    """A view that one query, or a function of Python, makes of sources and earlier steps.

    `sql_line_starts` has, in order, (offset in `sql`, line of the file) of each place where a line of the file begins.
    `reads` has the sources and steps that the query names, in the spelling of their own definition. Of rows that have
    the same values in the columns of `deduplicate` only the first is one, for as long as the watermark's delay. With
    `python` there is no SQL.
    """

    name: str
    sql: str
    line: int
    sql_line_starts: tuple[tuple[int, int], ...] = ()
    watermark: Watermark | None = None
    reads: tuple[str, ...] = ()
    deduplicate: tuple[str, ...] = ()
    deduplicate_line: int = 0
    python: PythonCode | None = None

    def line_at(self, offset: int) -> int:
        """The file's line of an offset in `sql`. How YAML wrote the text matters: in a folded scalar many lines of the
        file are one line of `sql`.
        """
        return max((line for start, line in self.sql_line_starts if start <= offset), default=self.line)


@dataclass(frozen=True, slots=True)
class TopicSink:
    """Each new or changed row of `from_view` as a JSON record; its key is a JSON object of the `key` columns.

    Without `key` columns the records have no key. A row for which the column `delete` is true is a record without a
    value, and that column is in none.
    """

    topic: str
    from_view: str
    line: int
    from_line: int
    key: tuple[str, ...] = ()
    key_line: int = 0
    delivery: Delivery = Delivery.EXACTLY_ONCE
    format: SourceFormat = SourceFormat.JSON
    """JSON, AVRO or PROTOBUF; the next ones as Source has them, `fields` are the names of the schema's."""
    framing: Framing = Framing.NONE
    avro_schema: str = ""
    descriptors: bytes = field(default=b"", repr=False)
    message: str = ""
    fields: tuple[str, ...] = ()
    schema_id: int = -1
    """With framing: the id, where the file says it; or else `subject` and `registered` are there."""
    subject: str = ""
    registered: RegisteredSchema | None = field(default=None, repr=False, compare=False)
    delete: str | None = None
    delete_line: int = 0
    key_format: KeyFormat | None = None
    """How keys are written; None for a JSON object."""
    options: tuple[Option, ...] = ()
    """How it is written (`topic_options`)."""
    senders: int = 1
    """How many send a batch side by side, where it is written exactly once (0057)."""
    is_key: ClassVar[bool] = False

    @property
    def target(self) -> str:
        """What people call it."""
        return f"topic {self.topic}"

    @property
    def encodings(self) -> tuple[TopicSink | KeyFormat, ...]:
        """How values are written, and keys where they are no JSON."""
        return (self,) if self.key_format is None else (self, self.key_format)


@dataclass(frozen=True, slots=True)
class ParquetSink:
    """Each new or changed row of `from_view` in a Parquet table below `directory`, an absolute path.

    With `key` columns, the newest row of a key (the highest `batch_id`) is the result.
    """

    directory: Path
    from_view: str
    line: int
    from_line: int
    key: tuple[str, ...] = ()
    key_line: int = 0

    @property
    def target(self) -> str:
        """What people call it."""
        return f"parquet {self.directory}"


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """How the rows of a table that has a key come into it; each name a column of the view, and its line.

    Rows for which `delete` is true remove the row of their key, and that column is not in the table. Of several rows of
    a key in one batch the one with the greatest `newest_by` counts. A table that is made is divided by `partition_by`.
    """

    delete: str | None = None
    delete_line: int = 0
    newest_by: tuple[str, ...] = ()
    newest_line: int = 0
    partition_by: tuple[str, ...] = ()
    partition_line: int = 0


@dataclass(frozen=True, slots=True)
class Compact:
    """That small files of a table become files of `target_bytes` behind each batch whose number is one of `every`."""

    every: int
    target_bytes: int


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """Rows of `from_view` in a Delta Lake table: each row, or with `key` one row for each key.

    The table is at `directory`, or at `url` (`table_urls`).
    """

    directory: Path | None
    from_view: str
    line: int
    from_line: int
    key: tuple[str, ...] = ()
    key_line: int = 0
    rows: KeyedRows = KeyedRows()
    compact: Compact | None = None
    url: str = ""

    @property
    def target(self) -> str:
        """What people call it."""
        return f"delta {self.directory or self.url}"


@dataclass(frozen=True, slots=True)
class IcebergSink:
    """Rows of `from_view` in an Iceberg table: each row, or with `key` one row for each key.

    The table is at `directory`, at `url` (`table_urls`), or the one that `table` names, `catalog.namespace.name`, of a
    catalog that the pipeline's `spark` settings have.
    """

    directory: Path | None
    table: str
    from_view: str
    line: int
    from_line: int
    key: tuple[str, ...] = ()
    key_line: int = 0
    rows: KeyedRows = KeyedRows()
    compact: Compact | None = None
    url: str = ""

    @property
    def target(self) -> str:
        """What people call it."""
        return f"iceberg {self.directory or self.url or self.table}"


@dataclass(frozen=True, slots=True)
class JdbcSink:
    """Rows of `from_view` in a table of a database: each row, or with `key` one row for each key.

    `url`, `user` and `password` are as the file has them: secrets are named there (`file_secrets`). `driver` is the
    class of the driver, where it does not make itself known. `connections` write side by side.
    """

    url: str
    table: str
    from_view: str
    line: int
    from_line: int
    key: tuple[str, ...] = ()
    key_line: int = 0
    rows: KeyedRows = KeyedRows()
    user: str = ""
    password: str = field(default="", repr=False)
    driver: str = ""
    connections: int = 4
    delivery: Delivery = Delivery.EXACTLY_ONCE

    @property
    def target(self) -> str:
        """What people call it."""
        return f"jdbc {self.table}"


@dataclass(frozen=True, slots=True)
class ConsoleSink:
    """The first `rows_max` rows of each batch of `from_view` on the terminal, of each value `width` characters."""

    from_view: str
    line: int
    from_line: int
    rows_max: int
    width: int
    key: ClassVar[tuple[str, ...]] = ()
    key_line: ClassVar[int] = 0

    @property
    def target(self) -> str:
        """What people call it."""
        return f"console {self.from_view}"


LakeSink = DeltaSink | IcebergSink
KeyedSink = DeltaSink | IcebergSink | JdbcSink
TableSink = ParquetSink | DeltaSink | IcebergSink
Sink = TopicSink | ParquetSink | DeltaSink | IcebergSink | JdbcSink | ConsoleSink


@dataclass(frozen=True, slots=True)
class Query:
    """One streaming query of a run: a view, and all sinks that are written from it."""

    from_view: str
    sinks: tuple[Sink, ...]


@dataclass(frozen=True, slots=True)
class NamedJar:
    """A jar that the file names: by Maven's coordinates, `group:artifact:version`, or else a file (absolute)."""

    coordinates: str
    path: Path | None
    line: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """The brokers, empty where the file does not say, and keys of Kafka's clients as the file has them: secrets are
    named there (`file_secrets`).
    """

    bootstrap_servers: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    line: int = 1
    connector: tuple[tuple[str, str], ...] = ()
    """The same for Spark's connector alone, where it comes in otherwise; all of it, with its brokers."""


@dataclass(frozen=True, slots=True)
class Registry:
    """A schema registry, empty where the file has none; the password is named (`file_secrets`)."""

    url: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    line: int = 1


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A whole pipeline. Names are unique without regard to case, as Spark compares them.

    `path` is the file as the user named it; `state_directory` is absolute. `trigger_ms` is the time between the starts
    of two batches of a continuous run; None begins the next batch as soon as there are records for it.
    """

    name: str
    path: Path
    state_directory: Path
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]
    trigger_ms: int | None = None
    line: int = 1
    state_line: int = 1
    spark: tuple[tuple[str, str], ...] = ()
    """Settings of Spark's session."""
    cluster: Cluster = Cluster()
    registry: Registry = Registry()
    jars: tuple[NamedJar, ...] = ()
    """Jars that Spark needs besides those of formats and sinks."""

    @property
    def group_id(self) -> str:
        """The consumer group that the offsets of finished batches are committed to."""
        return GROUP_PREFIX + self.name

    @property
    def letters_topic(self) -> str:
        """Where the records that do not fit are sent to, of all sources that say so."""
        return self.name + LETTERS_SUFFIX

    @property
    def queries(self) -> tuple[Query, ...]:
        """The streaming queries, one for each view that a sink reads, in the order of the sinks."""
        views = dict.fromkeys(sink.from_view for sink in self.sinks)
        return tuple(Query(view, tuple(sink for sink in self.sinks if sink.from_view == view)) for view in views)

    def source(self, name: str) -> Source | None:
        """The source of that name, without regard to case."""
        return next((source for source in self.sources if source.name.lower() == name.lower()), None)

    def step(self, name: str) -> Step | None:
        """The step of that name, without regard to case."""
        return next((step for step in self.steps if step.name.lower() == name.lower()), None)

    def error(self, message: str, line: int | None = None) -> PipelineError:
        """An error at a line of the file, to be raised."""
        return PipelineError(message, path=self.path, line=line)
