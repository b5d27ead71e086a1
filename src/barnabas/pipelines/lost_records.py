"""Records that are gone from a topic before a pipeline has read them: retention, or whoever deleted records.

A run that may not lose records is told before it begins, in one line. One that may counts them: where a batch has fewer
records than offsets, what lies before the topic's first record is lost. (Not every gap is: markers of transactions,
what was aborted and what was compacted have offsets too. So the gap is the most that is counted.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from barnabas.client.admin import Admin
from barnabas.client.client import Client
from barnabas.client.errors import ClientError
from barnabas.kernel.real_host import RealHost, run
from barnabas.pipelines.advice import views_behind
from barnabas.pipelines.cluster_access import client_settings
from barnabas.pipelines.definition import Pipeline, PipelineUnreachableError, ReadMode, Source
from barnabas.pipelines.state_directory import StateDirectory
from barnabas.wire.errors import KafkaError
from barnabas.wire.sentinels import EARLIEST_TIMESTAMP
from barnabas.wire.topics import TopicPartition

Offsets = Mapping[str, Mapping[int, int]]
NOTHING: Final[Offsets] = MappingProxyType({})

_TIMEOUT_MS = 30_000
_PARTITIONS_SHOWN = 3
_LOGGER = logging.getLogger("barnabas.pipelines.lost_records")
_LOGGER.addHandler(logging.NullHandler())


def read_beginnings(pipeline: Pipeline, bootstrap_servers: str, topics: Iterable[str]) -> Offsets:
    """The first offset of each partition, by topic. Asks the cluster, within half a minute for each question; raises
    PipelineUnreachableError when no answer comes.
    """
    settings = client_settings(pipeline, bootstrap_servers)
    wanted = sorted(set(topics))

    async def ask(host: RealHost) -> Offsets:
        client = Client(host, settings, _LOGGER)
        try:
            await client.start(_TIMEOUT_MS)
            async with Admin(client) as admin:
                described = await admin.describe_topics(wanted, _TIMEOUT_MS)
                places = [TopicPartition(topic, number) for topic in wanted for number in described[topic].partitions]
                found = await admin.list_offsets(dict.fromkeys(places, EARLIEST_TIMESTAMP), _TIMEOUT_MS)
        finally:
            await client.close()
        beginnings: dict[str, dict[int, int]] = {topic: {} for topic in wanted}
        for place, first in found.items():
            beginnings[place.topic][place.partition] = first.offset
        return beginnings

    try:
        return run(ask, name="lost-records")
    except (ClientError, KafkaError, OSError) as error:
        message = f"the cluster at {bootstrap_servers} does not tell where topics begin: {error}"
        raise PipelineUnreachableError(f"{message}; run it again when it does") from error


def refuse_lost_records(
    pipeline: Pipeline, state: StateDirectory, bootstrap_servers: str, starts: Offsets = NOTHING
) -> None:
    """Raises PipelineError, with the option to set, when a source that may not lose records has lost some.

    `starts` are the offsets that a first run begins at, where they are known. The cluster is asked only where there are
    some, or something was read before. Raises PipelineUnreachableError when it does not answer.
    """
    careful = [source for source in pipeline.sources if _is_careful(source)]
    read = {source.name: _read_before(pipeline, state, source, starts) for source in careful}
    topics = {source.topic for source in pipeline.sources if read.get(source.name)}
    if not topics:
        return
    beginnings = read_beginnings(pipeline, bootstrap_servers, topics)
    for source in pipeline.sources:
        gone = {
            number: (offset, beginnings[source.topic].get(number, offset))
            for number, offset in sorted(read.get(source.name, {}).items())
            if beginnings[source.topic].get(number, offset) > offset
        }
        if gone:
            raise pipeline.error(
                f'the topic "{source.topic}" has lost {_told(gone)} that were not read yet, by retention or since they '
                f"were deleted; set `allow_data_loss: true` at source {source.name} to go on without them",
                source.line,
            )


def lost_records(
    pipeline: Pipeline, bootstrap_servers: str, event: Mapping[str, Any], starts: Offsets = NOTHING
) -> int:
    """How many records of a finished batch (Spark's StreamingQueryProgress) were gone before it has read them.

    `starts` is as `refuse_lost_records` has it. Only a source that may lose records can have lost some and go on. The
    cluster is asked only where a batch has fewer records than offsets. Raises PipelineUnreachableError when it does not
    answer.
    """
    careless = {source.topic for source in pipeline.sources if source.allow_data_loss}
    lost = 0
    for reader in event.get("sources", []):
        spans = _spans(reader, careless, starts)
        gap = sum(end - start for of_topic in spans.values() for start, end in of_topic.values())
        gap -= int(reader.get("numInputRows", 0))
        if gap <= 0:
            continue
        beginnings = read_beginnings(pipeline, bootstrap_servers, spans)
        before = sum(
            max(min(beginnings[topic].get(number, start), end) - start, 0)
            for topic, of_topic in spans.items()
            for number, (start, end) in of_topic.items()
        )
        lost += min(gap, before)
    return lost


def _is_careful(source: Source) -> bool:
    return source.read is ReadMode.STREAM and not source.allow_data_loss


def _read_before(pipeline: Pipeline, state: StateDirectory, source: Source, starts: Offsets) -> Mapping[int, int]:
    """The next offset of each partition, of the query that is the furthest behind; where nothing was read those that a
    first run begins at.
    """
    behind: dict[int, int] = {}
    for query in pipeline.queries:
        if source.name in views_behind(pipeline, query.from_view):
            begun = state.batches_done(query.from_view).begun >= 0
            offsets = state.finished_offsets(query.from_view) if begun else starts
            for number, offset in offsets.get(source.topic, {}).items():
                behind[number] = min(offset, behind.get(number, offset))
    return behind


def _spans(reader: Mapping[str, Any], topics: Iterable[str], firsts: Offsets) -> dict[str, dict[int, tuple[int, int]]]:
    """Of each partition the first offset of a reader's batch and the one behind its last, of these topics only."""
    starts, ends = reader.get("startOffset"), reader.get("endOffset")
    if not isinstance(starts, Mapping):  # the first batch of all
        starts = {topic: {str(number): at for number, at in each.items()} for topic, each in firsts.items()}
    if not isinstance(ends, Mapping):
        return {}
    return {
        topic: {
            int(number): (int(start), int(ends[topic].get(number, start))) for number, start in starts[topic].items()
        }
        for topic in topics
        if topic in starts and topic in ends
    }


def _told(gone: Mapping[int, tuple[int, int]]) -> str:
    """Which records, in words: `12 records (offsets 5 to 16 of partition 0)`."""
    places = [f"offsets {first} to {beyond - 1} of partition {number}" for number, (first, beyond) in gone.items()]
    more = len(places) - _PARTITIONS_SHOWN
    shown = ", ".join(places[:_PARTITIONS_SHOWN]) + (f", and of {more} more" if more > 0 else "")
    count = sum(beyond - first for first, beyond in gone.values())
    return f"{count:,} record{'' if count == 1 else 's'} ({shown})"
