"""The sinks of a pipeline's file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from barnabas.pipelines.compaction import PARQUET_REFUSED, TARGET_BYTES_DEFAULT, parse_size
from barnabas.pipelines.definition import (
    Compact,
    ConsoleSink,
    Delivery,
    DeltaSink,
    IcebergSink,
    JdbcSink,
    KeyedRows,
    LakeSink,
    OnError,
    ParquetSink,
    Pipeline,
    PipelineError,
    Sink,
    TableSink,
    TopicSink,
)
from barnabas.pipelines.file_parts import View, choice_of, directory_of, place_of, refuse_unknown_column, topic_of
from barnabas.pipelines.file_secrets import has_reference, stands_open
from barnabas.pipelines.source_reading import formatted_sink
from barnabas.pipelines.table_urls import overlap
from barnabas.pipelines.topic_options import KEY as OPTIONS
from barnabas.pipelines.topic_options import sink_options
from barnabas.pipelines.yaml_positions import Section, Text, nearest

SINKS_MAX: Final = 20
KEY_COLUMNS_MAX: Final = 50
INTERNAL_TOPICS: Final = ("__consumer_offsets", "__transaction_state")
SINK_KINDS: Final = ("topic", "parquet", "delta", "iceberg", "jdbc", "console")
LAKE_KEYS: Final = ("delete", "newest_by", "partition_by", "compact")
COMPACT_KEYS: Final = ("every", "target")
COMPACT_EVERY_MAX: Final = 1_000_000
JDBC_KEYS: Final = ("table", "user", "password", "driver", "connections")
FORMAT_KEYS: Final = ("format", "schema_file", "message", "framing", "subject", "schema_id", "key_format")
CONSOLE_KEYS: Final = ("width",)
SENDERS: Final = "senders"
SENDERS_MAX: Final = 8
"""Each has up to 64 MiB of what it sends in memory."""
SINK_KEYS: Final = (
    *SINK_KINDS,
    "from",
    "key",
    "delivery",
    SENDERS,
    OPTIONS,
    *FORMAT_KEYS,
    *LAKE_KEYS,
    *JDBC_KEYS,
    *CONSOLE_KEYS,
)
CONNECTIONS_MAX: Final = 64
ROWS_SHOWN_MAX: Final = 1_000
WIDTH_DEFAULT: Final = 40
WIDTH_MIN: Final = 4
WIDTH_MAX: Final = 1_000
CATALOG_PREFIX: Final = "spark.sql.catalog."

TABLE_NAME: Final = re.compile(r"[A-Za-z_]\w{0,99}(?:\.[A-Za-z_]\w{0,99}){1,5}")
"""How a table of a catalog is named; everything else is a directory or a URL."""

DATABASE_TABLE: Final = re.compile(r"[A-Za-z_]\w{0,59}(?:\.[A-Za-z_]\w{0,59}){0,2}")
"""How a table of a database is named: as it stands, without quotes."""

_TITLES: Final = {ParquetSink: "Parquet", DeltaSink: "Delta", IcebergSink: "Iceberg"}


def sinks_of(document: Section, path: Path, views: Mapping[str, View], spark: Mapping[str, str]) -> tuple[Sink, ...]:
    """All sinks; `spark` are the settings of Spark that the file has. Raises PipelineError for the first fault."""
    has_registry = "registry" in document
    sections = document.sections("sinks", SINK_KEYS, SINKS_MAX)
    return tuple(_sink(section, path, views, spark, has_registry=has_registry) for section in sections)


def _sink(
    section: Section, path: Path, views: Mapping[str, View], spark: Mapping[str, str], *, has_registry: bool
) -> Sink:
    kinds = [kind for kind in SINK_KINDS if kind in section]
    if len(kinds) != 1:
        named = ", ".join(f'"{kind}"' for kind in SINK_KINDS[:-1])
        raise section.error(f'a sink has one of {named} and "{SINK_KINDS[-1]}": make a sink of each')
    kind = kinds[0]
    view, from_line = _view(section, views)
    key = _columns(section, "key", view)
    key_line = section.keys.get("key", section.line)
    if kind not in {"topic", "jdbc"} and "delivery" in section:
        why = "what is shown is kept nowhere" if kind == "console" else "a table has each batch once in any case"
        message = f"delivery is for topics and databases: {why}; remove it"
        raise section.error(message, section.keys["delivery"])
    for name in LAKE_KEYS:
        is_of_tables = name in {"partition_by", "compact"}
        of_kinds = {"delta", "iceberg"} if is_of_tables else {"delta", "iceberg", "jdbc"}
        if name in section and kind not in of_kinds and (name, kind) != ("delete", "topic"):
            if (name, kind) == ("compact", "parquet"):
                raise section.error(f"compact is not for Parquet: {PARQUET_REFUSED}", section.keys[name])
            of = "Delta and Iceberg tables" if is_of_tables else "Delta and Iceberg tables, and databases"
            raise section.error(f"{name} is for {of}: remove it", section.keys[name])
    for name in JDBC_KEYS:
        if name in section and kind != "jdbc":
            raise section.error(f"{name} is for databases, a sink with `jdbc`: remove it", section.keys[name])
    for name in CONSOLE_KEYS:
        if name in section and kind != "console":
            raise section.error(f"{name} is for what is shown, a sink with `console`: remove it", section.keys[name])
    for name in (*FORMAT_KEYS, OPTIONS, SENDERS):
        if name in section and kind != "topic":
            raise section.error(f"{name} is for topics: remove it", section.keys[name])
    if kind == "topic":
        sink = _topic_sink(section, view, from_line, key, key_line)
        return formatted_sink(section, path, sink, has_registry=has_registry)
    if kind == "console":
        return _console_sink(section, view.name, from_line)
    text = section.text(kind)
    if kind == "parquet":
        directory = directory_of(section, path, kind, text)
        return ParquetSink(directory, view.name, text.line, from_line, key, key_line)
    rows = _keyed_rows(section, view, key)
    if kind == "jdbc":
        return _jdbc_sink(section, text, view.name, from_line, key, rows)
    compact = _compact(section) if "compact" in section else None
    if kind == "delta":
        place, url = place_of(section, path, kind, text)
        return DeltaSink(place, view.name, text.line, from_line, key, key_line, rows, compact, url)
    table = text.value.strip()
    if TABLE_NAME.fullmatch(table):
        _refuse_unknown_catalog(section, text, table, spark)
        return IcebergSink(None, table, view.name, text.line, from_line, key, key_line, rows, compact)
    place, url = place_of(section, path, kind, text)
    return IcebergSink(place, "", view.name, text.line, from_line, key, key_line, rows, compact, url)


def _console_sink(section: Section, view: str, from_line: int) -> ConsoleSink:
    if "key" in section:
        message = "key is not for the console, which shows each row that is new or has changed, as it comes: remove it"
        raise section.error(message, section.keys["key"])
    rows_max = section.integer("console", 1, ROWS_SHOWN_MAX)
    width = section.integer("width", WIDTH_MIN, WIDTH_MAX) if "width" in section else WIDTH_DEFAULT
    return ConsoleSink(view, section.keys["console"], from_line, rows_max, width)


def _view(section: Section, views: Mapping[str, View]) -> tuple[View, int]:
    from_view = section.text("from")
    view = views.get(from_view.value.lower())
    if view is None:
        known = [view.name for view in views.values()]
        hint = nearest(from_view.value, known) or f"; there are: {', '.join(known)}"
        raise section.error(f'from "{from_view.value}" is neither a step nor a source{hint}', from_view.line)
    if not view.is_stream:
        message = f'"{view.name}" reads tables only: a sink needs a source with `read: stream` somewhere behind it'
        raise section.error(message, from_view.line)
    return view, from_view.line


def _columns(section: Section, key: str, view: View) -> tuple[str, ...]:
    """The columns of the view that a key of the section names, each once; none where it is not there."""
    columns = section.texts(key, KEY_COLUMNS_MAX) if key in section else ()
    for number, column in enumerate(columns):
        if column.value.lower() in (earlier.value.lower() for earlier in columns[:number]):
            raise section.error(f'{key} has "{column.value}" twice', column.line)
        refuse_unknown_column(section, column, key, view.columns, view.name)
    return tuple(column.value for column in columns)


def _topic_sink(section: Section, view: View, from_line: int, key: tuple[str, ...], key_line: int) -> TopicSink:
    topic = topic_of(section)
    if topic.value in INTERNAL_TOPICS:
        raise section.error(f'"{topic.value}" is an internal topic: write to another', topic.line)
    delivery = choice_of(section, "delivery", Delivery) if "delivery" in section else Delivery.EXACTLY_ONCE
    delete = _delete(section, view, key)
    line = section.keys.get("delete", 0)
    return TopicSink(
        topic.value,
        view.name,
        topic.line,
        from_line,
        key,
        key_line,
        delivery,
        delete=delete,
        delete_line=line,
        options=sink_options(section, delivery),
        senders=_senders(section, delivery),
    )


def _senders(section: Section, delivery: Delivery) -> int:
    if SENDERS not in section:
        return 1
    if delivery is not Delivery.EXACTLY_ONCE:
        message = (
            "senders is for topics that are written exactly once: Spark's tasks write others side by side; remove it"
        )
        raise section.error(message, section.keys[SENDERS])
    return section.integer(SENDERS, 1, SENDERS_MAX)


def _delete(section: Section, view: View, key: tuple[str, ...]) -> str | None:
    if "delete" not in section:
        return None
    if not key:
        raise _without_key(section, "delete")
    column = section.text("delete")
    refuse_unknown_column(section, column, "delete", view.columns, view.name)
    if column.value.lower() in (name.lower() for name in key):
        raise section.error(f'"{column.value}" cannot be both in the key and in delete', column.line)
    return column.value


def _without_key(section: Section, name: str) -> PipelineError:
    message = f"{name} is for tables with a key: add `key`, the columns by which a row is known, or remove it"
    return section.error(message, section.keys[name])


def _jdbc_sink(
    section: Section, url: Text, view: str, from_line: int, key: tuple[str, ...], rows: KeyedRows
) -> JdbcSink:
    if not url.value.startswith("jdbc:"):
        message = (
            f'jdbc "{url.value}" is no address of a database: it begins with jdbc:, as jdbc:postgresql://host/base'
        )
        raise section.error(message, url.line)
    if stands_open("jdbc", url.value):
        message = "the address has a password, and this file is read by many: take it out, and write `user` and"
        raise section.error(f"{message} `password: ${{env:NAME}}` beside it", url.line)
    table = section.text("table")
    if not DATABASE_TABLE.fullmatch(table.value):
        message = (
            f'table "{table.value}" must be a name of letters, digits and "_", perhaps with its schema: sales.orders'
        )
        raise section.error(message, table.line)
    password = section.text("password") if "password" in section else None
    if password is not None and not has_reference(password.value):
        message = "password is a secret, and this file is read by many: write ${env:NAME} or ${file:PATH}"
        raise section.error(message, password.line)
    return JdbcSink(
        url.value.strip(),
        table.value,
        view,
        url.line,
        from_line,
        key,
        section.keys.get("key", section.line),
        rows,
        section.text("user").value if "user" in section else "",
        "" if password is None else password.value,
        section.text("driver").value if "driver" in section else "",
        section.integer("connections", 1, CONNECTIONS_MAX) if "connections" in section else 4,
        choice_of(section, "delivery", Delivery) if "delivery" in section else Delivery.EXACTLY_ONCE,
    )


def _compact(section: Section) -> Compact:
    inner = section.section("compact", COMPACT_KEYS)
    every = inner.integer("every", 1, COMPACT_EVERY_MAX)
    if "target" not in inner:
        return Compact(every, TARGET_BYTES_DEFAULT)
    target = inner.text("target", also=("int",))
    try:
        return Compact(every, parse_size(target.value))
    except ValueError as error:
        raise inner.error(f"target {error}", target.line) from None


def _keyed_rows(section: Section, view: View, key: tuple[str, ...]) -> KeyedRows:
    if "newest_by" in section and not key:
        raise _without_key(section, "newest_by")
    delete = _delete(section, view, key)
    return KeyedRows(
        delete,
        section.keys.get("delete", section.line),
        _columns(section, "newest_by", view),
        section.keys.get("newest_by", section.line),
        _columns(section, "partition_by", view),
        section.keys.get("partition_by", section.line),
    )


def _refuse_unknown_catalog(section: Section, text: Text, table: str, spark: Mapping[str, str]) -> None:
    catalog = table.partition(".")[0]
    known = sorted(
        name.removeprefix(CATALOG_PREFIX)
        for name in spark
        if name.startswith(CATALOG_PREFIX) and "." not in name.removeprefix(CATALOG_PREFIX)
    )
    if catalog not in known:
        have = f"; there are: {', '.join(known)}" if known else ""
        message = f'iceberg "{table}" names the catalog {catalog}, which `spark` does not have{have}: add'
        raise section.error(
            f"{message} {CATALOG_PREFIX}{catalog}: org.apache.iceberg.spark.SparkCatalog and its settings there, or "
            f"write ./{table} for a directory",
            text.line,
        )


def refuse_sinks_in_the_way(pipeline: Pipeline) -> None:
    """Two sinks of one target, one directory inside another, and a topic that is read and written."""
    sources = {source.topic: source for source in pipeline.sources}
    letters = next((source for source in pipeline.sources if source.on_error is OnError.TOPIC), None)
    if letters is not None and pipeline.letters_topic in sources:
        message = (
            f'"{pipeline.letters_topic}" is where the dead letters of this pipeline go, which it would read itself'
        )
        line = sources[pipeline.letters_topic].topic_line
        raise pipeline.error(f"{message}: give it another name, or set `on_error: skip` at each source", line)
    topics: dict[str, int] = {} if letters is None else {pipeline.letters_topic: letters.line}
    shown: dict[str, int] = {}
    for sink in pipeline.sinks:
        if isinstance(sink, TopicSink):
            if sink.topic in sources:
                source = sources[sink.topic]
                message = f'the topic "{sink.topic}" is read as source "{source.name}" (line {source.topic_line})'
                raise pipeline.error(f"{message}: the pipeline would read what it writes; write to another", sink.line)
            if sink.topic in topics:
                message = f'the topic "{sink.topic}" is already written in line {topics[sink.topic]}: write to another'
                raise pipeline.error(message, sink.line)
            topics[sink.topic] = sink.line
        elif isinstance(sink, ConsoleSink):
            if sink.from_view in shown:
                message = f"{sink.from_view} is shown already, line {shown[sink.from_view]}: remove one of them"
                raise pipeline.error(message, sink.line)
            shown[sink.from_view] = sink.line
    _refuse_tables_in_the_way(pipeline)


def _refuse_tables_in_the_way(pipeline: Pipeline) -> None:
    tables: dict[str, int] = {}
    urls: dict[str, int] = {}
    directories: dict[Path, tuple[str, int]] = {
        pipeline.state_directory: ("the state directory", pipeline.state_line),
    }
    for sink in pipeline.sinks:
        if isinstance(sink, LakeSink) and sink.url:
            for url, line in urls.items():
                if overlap(url, sink.url):
                    message = f"{sink.url} and the table of line {line} ({url}) overlap: keep them apart"
                    raise pipeline.error(message, sink.line)
            urls[sink.url] = sink.line
        elif isinstance(sink, TableSink) and sink.directory is not None:
            for directory, (what, line) in directories.items():
                if directory.is_relative_to(sink.directory) or sink.directory.is_relative_to(directory):
                    message = f"{sink.directory} and {what} (line {line}, {directory}) overlap: keep them apart"
                    raise pipeline.error(message, sink.line)
            directories[sink.directory] = (f"the {_TITLES[type(sink)]} table", sink.line)
        elif isinstance(sink, IcebergSink | JdbcSink):
            if sink.table.lower() in tables:
                message = f"the table {sink.table} is already written in line {tables[sink.table.lower()]}"
                raise pipeline.error(f"{message}: write to another", sink.line)
            tables[sink.table.lower()] = sink.line
