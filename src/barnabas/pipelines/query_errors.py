"""What a failed query says, in pages of Java, as one line with the reason and the remedy."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from barnabas.pipelines.definition import KeyedSink, Option, Pipeline, SourceFormat, TopicSink
from barnabas.pipelines.file_secrets import without_secrets
from barnabas.pipelines.lake_rows import TWO_ROWS
from barnabas.pipelines.sources import BAD_KEY, BAD_RECORD, ROW_BYTES_MAX

_REASON_CHARACTERS_MAX = 400
_DATA_LOSS = "KAFKA_DATA_LOSS"
# What may pass by itself, when brokers come and go: their clients give up after a while, and an offset that a new
# leader does not know of yet looks to Spark like data that are lost.
_PASSING = (
    _DATA_LOSS,
    "WITH_TRIGGER_AVAILABLENOW",
    "THAN_PREFETCHED",
    "AND_PREFETCHED",
    "errors.TimeoutException",
    "errors.DisconnectException",
    "errors.NotLeaderOrFollowerException",
    "errors.NotEnoughReplicas",
    "errors.UnknownTopicOrPartitionException",
    "errors.LeaderNotAvailableException",
    "errors.UnknownServerException",
    "errors.NetworkException",
    "errors.RetriableException",
    "errors.BrokerNotAvailableException",
    "Cannot fetch record for offset",
)
_CHECKPOINT = (
    "BATCH_METADATA_NOT_FOUND",
    "CANNOT_LOAD_STATE_STORE",
    "CANNOT_READ_STATE",
    "FAILED_READ_DELTA_FILE",
    "STATE_STORE_",
    "Malformed log file",
    "Incomplete log file",
    "is corrupt",
    "offset log",
    "OFFSET_LOG",
    "Detected fatal errors performing state",
)
# A compaction, say, which came in between: the batch is done again.
_TABLE_CHANGED = (
    "ConcurrentAppendException",
    "ConcurrentDeleteReadException",
    "ConcurrentDeleteDeleteException",
    "MetadataChangedException",
    "exceptions.CommitFailedException",
    "exceptions.CommitStateUnknownException",
    "Found conflicting files",
)
_STATE_CHANGED = ("STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE", "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE", "STATE_SCHEMA")

# Spark waits for 10 s, and has no setting for that.
_PYTHON_IS_SLOW = "Timed out while waiting for the Python worker to connect back"
_PLACE = re.compile(r'\s*File "([^"]+)", line (\d+)')
"""Of a line of a traceback of Python's."""

_FORMS = {
    SourceFormat.JSON: "JSON",
    SourceFormat.AVRO: "Avro",
    SourceFormat.PROTOBUF: "Protocol Buffers",
    SourceFormat.CSV: "CSV",
    SourceFormat.RAW: "UTF-8",
}


@dataclass(frozen=True, slots=True)
class QueryFailure:
    """Why a query failed, for people, and the line of the file that it has to do with.

    `is_passing`: it may be gone when the query is started again, which it then goes on from its checkpoint.
    """

    message: str
    line: int | None = None
    is_passing: bool = False


def failure_of(pipeline: Pipeline, query: str, text: str, log_path: Path) -> QueryFailure:
    """Reads what Spark said (`text`, with its causes) of the failed query of the view `query`; no secret is shown."""
    text = without_secrets(text, pipeline)
    record = _after(text, BAD_RECORD)
    if record is not None:
        return _of_bad_record(pipeline, record)
    if (key := _after(text, TWO_ROWS)) is not None:
        return _of_two_rows(pipeline, query, key)
    more = f"; {log_path} says more"
    in_python = _of_python(pipeline, query, text)
    if in_python is not None:
        return QueryFailure(f"{in_python}{more}")
    if "UnknownTopicOrPartition" in text or "PARTITIONS_DELETED" in text or "INITIAL_OFFSET_NOT_FOUND" in text:
        topics = ", ".join(source.topic for source in pipeline.sources)
        return QueryFailure(
            f"a topic that the pipeline reads or writes is gone, or some of its partitions are ({topics}): "
            f"{_reason(text)}; create it again, or remove {pipeline.state_directory} if it was deleted on "
            f"purpose{more}",
            is_passing=True,
        )
    if _DATA_LOSS in text:
        return QueryFailure(
            f"records that {query} was to read are no longer in the topic (retention, or a topic created again): "
            f"{_reason(text)}; set `allow_data_loss: true` at the source to continue with what is there{more}",
            is_passing=True,
        )
    if any(sign in text for sign in _STATE_CHANGED):
        return QueryFailure(
            f"the state that {query} has kept no longer fits its columns: {_reason(text)}; remove "
            f"{pipeline.state_directory} and the Parquet tables to compute everything again{more}"
        )
    if any(sign in text for sign in _CHECKPOINT):
        return QueryFailure(
            f"the checkpoint of {query} cannot be read ({_reason(text)}): remove {pipeline.state_directory} and the "
            f"Parquet tables to compute everything again{more}"
        )
    if _PYTHON_IS_SLOW in text:
        return QueryFailure(
            f"a process of Python for {query} did not start within 10 s: this machine has too much to do; run it "
            f"again, and it continues where it was{more}",
            is_passing=True,
        )
    if "OutOfMemoryError" in text:
        return QueryFailure(
            f"{query} needs more memory than Java has: lower `max_records_per_batch`, or let state go sooner by a "
            f"shorter watermark{more}"
        )
    if "SaslAuthenticationException" in text or "LoginException" in text or "SslAuthenticationException" in text:
        return QueryFailure(
            f"the brokers, or what gives tokens or tickets, refuse Spark's login: {_reason(text)}{more}"
        )
    if "TopicAuthorization" in text or "GroupAuthorization" in text:
        return QueryFailure(f"the brokers refuse {query}: {_reason(text)}; it needs that permission{more}")
    if "RecordTooLarge" in text and "max.request.size" in text:
        bounded = _bounded_by_option(pipeline, query)
        if bounded is not None:
            return QueryFailure(
                f"a row of {query} is larger than kafka.max.request.size in the options of topic {bounded[0]} "
                f"({bounded[1].value}): {_reason(text)}; raise that, or make less of it in a step{more}",
                bounded[1].line,
            )
        return QueryFailure(
            f"a row of {query} is larger than any that is written ({ROW_BYTES_MAX // 1024**2} MiB): {_reason(text)}; "
            f"make less of it in a step{more}"
        )
    if "RecordTooLarge" in text:
        return QueryFailure(f"a row of {query} is larger than the topic takes: raise its `max.message.bytes`{more}")
    if any(sign in text for sign in _TABLE_CHANGED):
        return QueryFailure(
            f"somebody else has changed a table that {query} was writing: {_reason(text)}; run it again, and it "
            f"continues where it was{more}",
            is_passing=True,
        )
    if any(sign in text for sign in _PASSING):
        return QueryFailure(
            f"the brokers did not answer {query} in time: {_reason(text)}; run it again when they are back, and it "
            f"continues where it was{more}",
            is_passing=True,
        )
    return QueryFailure(f"{query} failed: {_reason(text)}{more}")


def _after(text: str, mark: str) -> dict[str, Any] | None:
    """The JSON object behind a mark in the text."""
    start = text.find(mark)
    if start < 0:
        return None
    try:
        content, _ = json.JSONDecoder().raw_decode(text, start + len(mark))
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _bounded_by_option(pipeline: Pipeline, query: str) -> tuple[str, Option] | None:
    """The topic of the query whose own options bound its records, and the option."""
    topics = (sink for sink in pipeline.sinks if isinstance(sink, TopicSink) and sink.from_view == query)
    found = ((sink.topic, option) for sink in topics for option in sink.options)
    return next((each for each in found if each[1].name == "kafka.max.request.size"), None)


def _of_two_rows(pipeline: Pipeline, query: str, key: dict[str, Any]) -> QueryFailure:
    sinks = (sink for sink in pipeline.sinks if isinstance(sink, KeyedSink) and sink.from_view == query and sink.key)
    sink = next((sink for sink in sinks if not sink.rows.newest_by), None)
    return QueryFailure(
        f"{query} has several rows of one key in a batch ({json.dumps(key, ensure_ascii=False)}), and nothing says "
        "which is newest: name the columns that do in `newest_by`, such as _offset where the step selects it",
        None if sink is None else sink.line,
    )


def _of_bad_record(pipeline: Pipeline, record: dict[str, Any]) -> QueryFailure:
    topic = record.get("topic")
    source = next((source for source in pipeline.sources if source.topic == topic), None)
    place = f"topic {topic}, partition {record.get('partition')}, offset {record.get('offset')}"
    value = json.dumps(record.get("value"), ensure_ascii=False)
    form = _FORMS[SourceFormat.JSON if source is None else source.format]
    if record.get("fault") == "no key":
        return QueryFailure(
            f"a record without a key cannot be a row of a table: {place}, value {value}; read the topic as a stream, "
            "or have its records written with keys",
            None if source is None else source.line,
        )
    if record.get("fault") == BAD_KEY and source is not None and source.key_format is not None:
        return QueryFailure(
            f"the key of a record is not {_FORMS[source.key_format.format]} of the type {source.key_format.type}: "
            f"{place}, value {value}; correct the schema of `key_format` and run it again, or delete the record",
            source.key_format.line,
        )
    return QueryFailure(
        f"a record is not {form} of the source's schema: {place}, value {value}; correct the schema (a STRING takes "
        "any value of a field) and run it again, or delete the record from the topic",
        None if source is None else source.schema_line,
    )


def _of_python(pipeline: Pipeline, query: str, text: str) -> str | None:
    """What a function of the pipeline raised for some row, and where; None where it was not one of these."""
    codes = [step.python for step in pipeline.steps if step.python is not None]
    _, is_there, trace = text.rpartition("Traceback (most recent call last):\n")
    if not codes or not is_there:
        return None
    lines = trace.splitlines()
    raised = next((line for line in lines if line.strip() and not line[0].isspace()), "an error")
    files = {str(file) for code in codes for each in code.files for file in (each, each.resolve())}
    places = [f"{found[1]}:{found[2]}" for found in map(_PLACE.match, lines) if found and found[1] in files]
    if not places:
        return None
    raised = raised if len(raised) <= _REASON_CHARACTERS_MAX else raised[:_REASON_CHARACTERS_MAX] + " ..."
    return f"{query} failed at a row, {places[-1]}: {raised}"


def _reason(text: str) -> str:
    """The innermost message that is for people: of the last cause that is named."""
    causes = re.findall(r"^(?:Caused by: |\s*: )?[\w.$]+(?:Exception|Error): (.+)$", text, flags=re.MULTILINE)
    told = [cause for cause in causes if not cause.startswith(("An exception was raised by the Python", "Job aborted"))]
    chosen = told[-1] if told else text
    chosen = re.sub(r"\s*SQLSTATE: \w{5}\.?", "", chosen)
    chosen = " ".join(chosen.split()).rstrip(". ")
    return chosen if len(chosen) <= _REASON_CHARACTERS_MAX else chosen[:_REASON_CHARACTERS_MAX] + " ..."
