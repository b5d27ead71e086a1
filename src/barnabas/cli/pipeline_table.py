"""`barnabas pipeline table`: the pipeline of a topic's table, written once, with a schema found in a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.cli.connection import CommandError, ask_cluster
from barnabas.cli.output import counted, say
from barnabas.cli.pipeline_record_options import RecordOptions
from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.python_files import is_python
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.schema_inference import infer_changes, infer_schema
from barnabas.pipelines.sink_reading import TABLE_NAME
from barnabas.pipelines.table_file import (
    TablePlan,
    changes_text,
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
    file = path_of_table(topic) if path is None else path
    plan = TablePlan(
        topic,
        _place(table, kind, file),
        kind,
        tuple(key),
        tuple(partition_by),
        _more(source, file),
        source.is_of_changes,
    )
    _refuse_changes_without_key(plan)
    if file.exists():
        refuse_other_plan(plan, read_pipeline(file), source.schema)
        return file
    if is_python(file):
        raise CommandError(
            f"--file {file}: the pipeline that is written is YAML, so name it {file.with_suffix('.yaml')}"
        )
    text = _changes(plan, bootstrap) if plan.is_of_changes else table_text(plan, _schema(plan, source, file, bootstrap))
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
    if source.is_of_changes and (source.is_csv or source.schema is not None or source.schema_file is not None):
        raise CommandError("--debezium finds the columns in the envelopes, which are JSON: give it alone")
    if source.is_csv and source.is_confluent and source.records.key_schema_file is None:
        raise CommandError("--confluent is for records in Avro, and --csv for lines of CSV: give one of them")
    if source.is_confluent and source.schema_file is None and source.records.key_schema_file is None:
        raise CommandError("records in Avro need the schema that they were written with: --schema-file AVSC")
    if source.records.message is not None and source.schema_file is None:
        raise CommandError("--message is of a descriptor set, by protoc --descriptor_set_out: --schema-file FILE")
    if source.records.key_message is not None and source.records.key_schema_file is None:
        raise CommandError("--key-message is of a descriptor set: --key-schema-file FILE")
    if source.records.key_schema_file is not None and source.is_of_changes:
        raise CommandError("--debezium is for envelopes in JSON, whose keys are JSON: leave --key-schema-file out")


def _refuse_changes_without_key(plan: TablePlan) -> None:
    if plan.is_of_changes and (not plan.key or plan.is_by_record_key or plan.kind == "parquet"):
        raise CommandError(
            "--debezium keeps a Delta or Iceberg table by the key of its rows: give its columns by --key COLUMN"
        )


def _changes(plan: TablePlan, bootstrap: str) -> str:
    found = infer_changes(record.value for record in sample_of(plan.topic, bootstrap))
    if found is None:
        raise CommandError(
            f"no record of the topic {plan.topic} is an envelope of Debezium in JSON (before, after, op) with a row: "
            "write a pipeline for it, `barnabas pipeline init`"
        )
    told = ", ".join(f"{name} {kind}" for name, kind in found.columns)
    say(f"the columns, from {counted(found.records, 'change')}: {told}")
    return changes_text(plan, found.columns, is_wrapped=found.is_wrapped)


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
