"""`barnabas pipeline table`: the pipeline of a topic's table, written once, with a schema found in a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from barnabas.cli.connection import CommandError, ask_cluster
from barnabas.cli.output import counted, say
from barnabas.cli.pipeline_record_options import RecordOptions
from barnabas.pipelines.debezium_envelopes import EnvelopeError, envelope_of, key_fields_of
from barnabas.pipelines.definition import KEY_COLUMN, PipelineError, Registry
from barnabas.pipelines.file_parts import TOPIC_NAME
from barnabas.pipelines.file_secrets import without_login
from barnabas.pipelines.protobuf_messages import DESCRIPTOR_BYTES_MAX
from barnabas.pipelines.python_files import is_python
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.schema_inference import fields_of_key, infer_changes, infer_schema
from barnabas.pipelines.schema_registry import ADDRESS, newest_schema
from barnabas.pipelines.sink_reading import TABLE_NAME
from barnabas.pipelines.table_file import (
    TablePlan,
    changes_text,
    envelopes_text,
    flow_text,
    path_of_table,
    refuse_other_plan,
    table_text,
)
from barnabas.pipelines.table_urls import UrlError, file_path

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.pipelines.cases import GivenRecord

SAMPLE_RECORDS: Final = 10_000
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What the command says of the records; a schema in DDL, or a file of Avro's or, with the message, of Protocol
    Buffers', or neither; the same of keys.
    """

    schema: str | None = None
    schema_file: Path | None = None
    is_confluent: bool = False
    is_csv: bool = False
    is_of_changes: bool = False
    records: RecordOptions = field(default_factory=RecordOptions)


def written_file(
    topic: str,
    table: str,
    kind: str,
    key: Sequence[str],
    partition_by: Sequence[str],
    source: SourceOptions,
    path: Path | None,
    bootstrap: str,
) -> Path:
    """The file of the pipeline, written where it is not there. Raises PipelineError, CommandError, and leaves no file
    that cannot be read.
    """
    _refuse_contradictions(source)
    by_record_key = [name.lower() for name in key] == [KEY_COLUMN]
    if source.is_of_changes and (not key or by_record_key or kind == "parquet"):
        raise CommandError(
            "--debezium keeps a Delta or Iceberg table by the key of its rows: give its columns by --key COLUMN"
        )
    file = path_of_table(topic) if path is None else path
    if source.records.registry is not None and TOPIC_NAME.fullmatch(topic):  # of others the reading tells
        source = _with_registry(source, topic, file, source.records.registry, by_record_key=by_record_key)
    plan = TablePlan(
        topic,
        _place(table, kind, file),
        kind,
        tuple(key),
        tuple(partition_by),
        _more(source, file),
        source.is_of_changes,
        source.records.registry or "",
    )
    if file.exists():
        refuse_other_plan(plan, read_pipeline(file), source.schema)
        return file
    if is_python(file):
        raise CommandError(
            f"--file {file}: the pipeline that is written is YAML, so name it {file.with_suffix('.yaml')}"
        )
    if not plan.is_of_changes:
        text = table_text(plan, _schema(plan, source, file, bootstrap))
    elif source.schema_file is not None:
        text = _changes_of_schema(plan, source, source.schema_file, file)
    else:
        text = _changes(plan, source, bootstrap)
    try:
        file.write_text(text, encoding="utf-8")
    except FileNotFoundError:
        raise PipelineError(f"the directory {file.parent} does not exist: create it first") from None
    except OSError as error:
        raise PipelineError(f"{file} cannot be written: {error.strerror}; name another by --file") from None
    try:
        read_pipeline(file)
    except PipelineError:
        file.unlink(missing_ok=True)
        raise
    say(f"{file} is written: the pipeline of this table; the same command goes on with it")
    return file


def _place(table: str, kind: str, file: Path) -> str:
    """The table as the pipeline's file has it. What is no path is the reading's to take or to refuse."""
    try:
        here = file_path(table)
    except UrlError as error:
        raise CommandError(f"TABLE {error}") from None
    if here is None and ("://" in table or (kind == "iceberg" and TABLE_NAME.fullmatch(table) is not None)):
        return table
    return _from(file, Path(table) if here is None else here)


def _refuse_contradictions(source: SourceOptions) -> None:
    if source.schema is not None and source.schema_file is not None:
        raise CommandError("--schema and --schema-file say the same: give one of them")
    if source.is_csv and source.schema is None:
        raise CommandError("lines of CSV have no names: say their columns by --schema 'name TYPE, name TYPE'")
    if source.is_of_changes and (source.is_csv or source.schema is not None):
        raise CommandError(
            "--debezium finds the columns in the envelopes, or in their schema (--schema-file, --registry): leave "
            "--schema and --csv out"
        )
    registry = source.records.registry
    if registry is not None and not ADDRESS.fullmatch(registry):
        raise CommandError(
            f"--registry {without_login(registry)} must be http:// or https://, host and port; a login stands in the "
            "file, under `registry`, so give the schemas by --schema-file and --confluent, and write it there"
        )
    if registry is not None and (source.is_csv or source.schema is not None):
        raise CommandError("--registry is for records in Avro or Protobuf: leave --csv and --schema out")
    if source.is_csv and source.is_confluent and source.records.key_schema_file is None:
        raise CommandError("--confluent is for records in Avro, and --csv for lines of CSV: give one of them")
    if source.is_confluent and not any((source.schema_file, source.records.key_schema_file, registry)):
        raise CommandError("records in Avro need the schema that they were written with: --schema-file AVSC")
    if source.records.message is not None and source.schema_file is None:
        raise CommandError("--message is of a descriptor set, by protoc --descriptor_set_out: --schema-file FILE")
    if source.records.key_message is not None and source.records.key_schema_file is None:
        raise CommandError("--key-message is of a descriptor set: --key-schema-file FILE")


def _with_registry(
    source: SourceOptions, topic: str, file: Path, address: str, *, by_record_key: bool
) -> SourceOptions:
    """The same, with files of the newest schemas that the registry has, in Avro, where none are given; written beside
    the pipeline's file as long as that is not there. Of keys, if rows are known by them, and they have a schema.
    """
    source, records = replace(source, is_confluent=True), source.records
    if source.schema_file is not None:
        return source
    value, key = (file.with_name(f"{topic}.{part}.avsc") for part in ("value", "key"))
    if not file.exists():
        registry = Registry(address.rstrip("/"))
        found = newest_schema(file, registry, f"{topic}-value")
        if found is None:
            raise CommandError(
                f"the registry {address} has no schema of {topic}-value: give one by --schema-file, if its subject has "
                "another name, and write `subject` into the file"
            )
        _write_schema(value, found)
        wants_key = (source.is_of_changes or by_record_key) and records.key_schema_file is None
        of_key = newest_schema(file, registry, f"{topic}-key") if wants_key else None
        if of_key is not None:
            _write_schema(key, of_key)
            records = replace(records, key_schema_file=key)
    elif records.key_schema_file is None and key.exists():
        records = replace(records, key_schema_file=key)
    return replace(source, schema_file=value, records=records)


def _write_schema(path: Path, schema: str) -> None:
    try:
        if path.exists() and path.read_text(encoding="utf-8") != schema:
            raise CommandError(f"{path} is there with another schema: give it by --schema-file, or remove it")
        path.write_text(schema, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path} cannot be written: {error}") from None
    say(f"{path} is written: the newest schema of the registry")


def _changes_of_schema(plan: TablePlan, source: SourceOptions, schema_file: Path, file: Path) -> str:
    """The file for envelopes with a schema."""
    envelope = _of_file(schema_file, lambda content: envelope_of(content, source.records.message))
    missing = [name for name in plan.key if name.lower() not in {column.lower() for column, _ in envelope.columns}]
    if missing:
        raise CommandError(
            f"--key {missing[0]} is no column of the rows in {schema_file}; it has: "
            f"{', '.join(name for name, _ in envelope.columns)}"
        )
    told = ", ".join(f"{name} {kind}" for name, kind in envelope.columns)
    say(f"the columns, from {schema_file}: {told}")
    key_fields = _key_fields(source)
    _warn_of_other_keys(plan, [] if key_fields is None else [key_fields])
    return envelopes_text(plan, envelope, ("schema_file", _from(file, schema_file)), key_fields)


def _key_fields(source: SourceOptions) -> tuple[str, ...] | None:
    """The fields of keys that have a format."""
    key_file = source.records.key_schema_file
    if key_file is None:
        return None
    return _of_file(key_file, lambda content: key_fields_of(content, source.records.key_message))


def _of_file(path: Path, read: Callable[[bytes], Found]) -> Found:
    try:
        with path.open("rb") as file:
            return read(file.read(DESCRIPTOR_BYTES_MAX + 1))
    except EnvelopeError as error:
        raise CommandError(f"{path} {error}") from None
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None


def _warn_of_other_keys(plan: TablePlan, keys: Iterable[Sequence[str]]) -> None:
    """Says so where rows are known by what is not in the keys of the records, of which these are the fields."""
    for fields in filter(None, keys):
        missing = [name for name in plan.key if name.lower() not in {each.lower() for each in fields}]
        if missing:
            say(
                f"warning: the key of the records has no {missing[0]} (it has {', '.join(fields)}), so that a row "
                "which goes, or gets another one, is known only where the database logs rows whole (PostgreSQL: "
                "REPLICA IDENTITY FULL): without that give the columns of that key by --key"
            )
            return


def _changes(plan: TablePlan, source: SourceOptions, bootstrap: str) -> str:
    sample = sample_of(plan.topic, bootstrap)
    found = infer_changes(record.value for record in sample)
    if found is None:
        raise CommandError(
            f"no record of the topic {plan.topic} is an envelope of Debezium in JSON (before, after, op) with a row: "
            "of envelopes in Avro or Protobuf give the schema, --schema-file, or the --registry that has it"
        )
    told = ", ".join(f"{name} {kind}" for name, kind in found.columns)
    say(f"the columns, from {counted(found.records, 'change')}: {told}")
    key_fields = _key_fields(source)
    of_text = (fields_of_key(record.key) for record in sample if record.key is not None)
    _warn_of_other_keys(plan, of_text if key_fields is None else [key_fields])
    return changes_text(plan, found.columns, key_fields, is_wrapped=found.is_wrapped)


def _more(source: SourceOptions, file: Path) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    framing = [("framing", "confluent")] if source.is_confluent else []
    if source.schema_file is not None:
        found += [("format", "avro" if source.records.message is None else "protobuf"), *framing]
        found += [] if source.records.message is None else [("message", source.records.message)]
    elif source.is_csv:
        found.append(("format", "csv"))
    if source.records.key_schema_file is not None:
        key = [("format", "avro" if source.records.key_message is None else "protobuf"), *framing]
        key += [] if source.records.key_message is None else [("message", source.records.key_message)]
        key.append(("schema_file", _from(file, source.records.key_schema_file)))
        found.append(("key_format", flow_text(key)))
    return tuple(found)


def _schema(plan: TablePlan, source: SourceOptions, file: Path, bootstrap: str) -> tuple[str, str]:
    """The key of the source that says what its columns are, and its value."""
    if source.schema_file is not None:
        return "schema_file", _from(file, source.schema_file)
    if source.schema is not None:
        return "schema", source.schema
    found = infer_schema(record.value for record in sample_of(plan.topic, bootstrap))
    if found is None:
        raise CommandError(
            f"no record of the topic {plan.topic} is a JSON object that could tell the columns: give them by --schema"
            " 'name TYPE, name TYPE', or for Avro by --schema-file"
        )
    for note in found.notes:
        say(f"warning: {note}")
    say(f"the schema, from {counted(found.records, 'record')}: {found.schema}")
    return "schema", found.schema


def _from(file: Path, path: Path) -> str:
    """A path of the command line as the pipeline's file has it, whose paths are from where that is."""
    inner, beside = path.resolve(), file.resolve().parent
    return f"./{inner.relative_to(beside)}" if inner.is_relative_to(beside) else str(inner)


def sample_of(topic: str, bootstrap: str) -> Sequence[GivenRecord]:
    """The newest records of a topic."""
    from barnabas.cli.pipeline_dev import sample

    async def read(client: Client) -> Sequence[GivenRecord]:
        return await sample(client, topic, SAMPLE_RECORDS)

    return ask_cluster(bootstrap, read)
