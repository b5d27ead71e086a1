"""What `barnabas pipeline status` shows: the pipeline's own account, beside what the cluster says of its topics."""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.output import Column, Mark, Marked, print_fields, print_json, print_table, say
from barnabas.cli.pipeline_cluster import ask_cluster_of
from barnabas.pipelines.advice import views_behind
from barnabas.pipelines.definition import Pipeline, ReadMode
from barnabas.pipelines.state_directory import merged_offsets
from barnabas.pipelines.status import PipelineState, PipelineStatus, QueryStatus, read_status
from barnabas.wire.sentinels import LATEST_TIMESTAMP
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.admin import Admin
    from barnabas.client.client import Client

_MARKS = {
    PipelineState.NEVER_RAN: Mark.FAINT,
    PipelineState.RUNNING: Mark.GOOD,
    PipelineState.STOPPED: Mark.WARNING,
    PipelineState.FAILED: Mark.BAD,
}
_QUERY_COLUMNS = (
    Column("View", "query"),
    Column("Batch", "batch_id", is_number=True),
    Column("Done", "time"),
    Column("Rows in", "rows_in", is_number=True),
    Column("Rows out", "rows_out", is_number=True),
    Column("Too late", "rows_dropped_by_watermark", is_number=True),
    Column("Rows/s", "rows_per_second", is_number=True),
    Column("Watermark", "watermark"),
)
_LEFT_OUT_COLUMNS = (
    Column("View", "query"),
    Column("Without event time", "rows_without_event_time", is_number=True),
    Column("In the future", "rows_ahead", is_number=True),
    Column("Not of the schema", "records_refused", is_number=True),
    Column("Lost", "records_lost", is_number=True),
)
_TOPIC_COLUMNS = (
    Column("Topic", "topic"),
    Column("Partitions", "partitions", is_number=True),
    Column("Lag", "lag", is_number=True),
    Column("Lag of the group", "group_lag", is_number=True),
)


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """Offsets of one partition: the next to be read, that of the group, the log's end; None for what is not known."""

    partition: int
    offset: int | None
    committed_offset: int | None
    end_offset: int | None

    @property
    def lag(self) -> int | None:
        """How many records are not read yet; None before anything was read."""
        if self.offset is None or self.end_offset is None:
            return None
        return max(self.end_offset - self.offset, 0)

    @property
    def group_lag(self) -> int | None:
        """As Kafka's tools see it: by the committed offsets of the group."""
        if self.committed_offset is None or self.end_offset is None:
            return None
        return max(self.end_offset - self.committed_offset, 0)


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """How far a topic is read. Without partitions it does not exist."""

    topic: str
    partitions: tuple[PartitionPosition, ...]

    @property
    def lag(self) -> int | None:
        """The sum over the partitions for which it is known; None where it is known for none."""
        return _sum(position.lag for position in self.partitions)

    @property
    def group_lag(self) -> int | None:
        """The same for the group."""
        return _sum(position.group_lag for position in self.partitions)


def show_status(pipeline: Pipeline, bootstrap: str, as_json: bool) -> None:
    """Prints it. Without the cluster too, the lag left out; what `ask_cluster_of` raised comes afterwards then."""
    status = read_status(pipeline)

    async def ask(client: Client) -> tuple[TopicPosition, ...]:
        from barnabas.client.admin import Admin

        async with Admin(client) as admin:
            return await topic_positions(admin, pipeline, status)

    topics: tuple[TopicPosition, ...] | None = None
    try:
        topics = ask_cluster_of(pipeline, bootstrap, ask)
    finally:
        if as_json:
            print_json(described(pipeline, status, topics))
        else:
            _print(pipeline, status, topics)


async def topic_positions(admin: Admin, pipeline: Pipeline, status: PipelineStatus) -> tuple[TopicPosition, ...]:
    """One for each topic that a query reads as a stream, in the order of the file."""
    topics = _topics_read(pipeline)
    there = await admin.describe_topics(set(topics) & set(await admin.list_topics()))
    partitions = [
        TopicPartition(topic, number) for topic in topics if topic in there for number in there[topic].partitions
    ]
    ends = await admin.list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP)) if partitions else {}
    committed = await admin.list_group_offsets(pipeline.group_id)
    read = _offsets_read(status)
    found: dict[str, list[PartitionPosition]] = {topic: [] for topic in topics}
    for place in sorted(partitions):
        found[place.topic].append(
            PartitionPosition(
                place.partition,
                read.get(place.topic, {}).get(place.partition),
                committed[place].offset if place in committed else None,
                ends[place].offset if place in ends else None,
            )
        )
    return tuple(TopicPosition(topic, tuple(positions)) for topic, positions in found.items())


def described(pipeline: Pipeline, status: PipelineStatus, topics: tuple[TopicPosition, ...] | None) -> dict[str, Any]:
    """What programs get; `topics` is null where the cluster did not answer."""
    return {
        "pipeline": pipeline.name,
        "state": status.state.name.lower(),
        "process_id": status.process_id,
        "reason": status.reason,
        "started_ms": status.started_ms,
        "updated_ms": status.updated_ms,
        "group_id": pipeline.group_id,
        "state_directory": str(pipeline.state_directory),
        "queries": [asdict(query) for query in status.queries],
        "topics": None
        if topics is None
        else [
            {
                "topic": topic.topic,
                "exists": bool(topic.partitions),
                "lag": topic.lag,
                "group_lag": topic.group_lag,
                "partitions": [
                    {**asdict(position), "lag": position.lag, "group_lag": position.group_lag}
                    for position in topic.partitions
                ],
            }
            for topic in topics
        ],
    }


def _topics_read(pipeline: Pipeline) -> tuple[str, ...]:
    used = {view for query in pipeline.queries for view in views_behind(pipeline, query.from_view)}
    streams = (source for source in pipeline.sources if source.read is ReadMode.STREAM and source.name in used)
    return tuple(dict.fromkeys(source.topic for source in streams))


def _offsets_read(status: PipelineStatus) -> Mapping[str, Mapping[int, int]]:
    """What every query has passed."""
    return merged_offsets(
        {
            topic: {str(number): offset for number, offset in partitions.items()}
            for topic, partitions in query.offsets.items()
        }
        for query in status.queries
    )


def _print(pipeline: Pipeline, status: PipelineStatus, topics: tuple[TopicPosition, ...] | None) -> None:
    fields: list[tuple[str, object]] = [
        ("Pipeline", pipeline.name),
        ("State", Marked(status.state.value, _MARKS[status.state])),
    ]
    if status.process_id is not None:
        fields.append(("Process", status.process_id))
    if status.reason is not None:
        fields.append(("Reason", status.reason))
    fields += [
        ("Started", _moment(status.started_ms)),
        ("Last change", _moment(status.updated_ms)),
        ("Group", pipeline.group_id),
        ("State directory", pipeline.state_directory),
    ]
    print_fields(fields)
    if status.queries:
        click.echo()
        print_table(_QUERY_COLUMNS, map(_query_row, status.queries))
    left_out = [row for query in status.queries if any((row := _left_out_row(query))[1:])]
    if left_out:
        click.echo()
        print_table(_LEFT_OUT_COLUMNS, [(query, *map(_warned, counts)) for query, *counts in left_out])
    if topics:
        click.echo()
        print_table(_TOPIC_COLUMNS, map(_topic_row, topics))
        for topic in topics:
            if not topic.partitions:
                say(_missing(topic.topic, was_read=topic.topic in _offsets_read(status)))


def _missing(topic: str, *, was_read: bool) -> str:
    if was_read:
        return f"the topic {topic} does not exist any more; what was read of it is in the results"
    return f"the topic {topic} does not exist; create it with `barnabas topic create {shlex.quote(topic)}`"


def _query_row(query: QueryStatus) -> tuple[object, ...]:
    totals = query.totals
    return (
        query.query,
        query.batch_id,
        _moment(query.time_ms),
        totals.rows_in,
        totals.rows_out,
        _warned(totals.rows_dropped_by_watermark),
        round(query.rows_per_second),
        _moment(query.watermark_ms),
    )


def _left_out_row(query: QueryStatus) -> tuple[Any, ...]:
    return (query.query, *(getattr(query.totals, column.name) for column in _LEFT_OUT_COLUMNS[1:]))


def _warned(count: int) -> object:
    return Marked(count, Mark.WARNING) if count else count


def _topic_row(topic: TopicPosition) -> tuple[object, ...]:
    return (topic.topic, len(topic.partitions), topic.lag, topic.group_lag)


def _sum(numbers: Iterable[int | None]) -> int | None:
    """The sum of the known ones; None where none is known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _moment(time_ms: int | None) -> str | None:
    if time_ms is None:
        return None
    return f"{dt.datetime.fromtimestamp(time_ms / 1_000, dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
