"""A part of the past: from where and up to where topics are read, as offsets or as times."""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.client.admin import Admin
from barnabas.client.client import Client
from barnabas.client.errors import ClientError
from barnabas.kernel.real_host import RealHost, run
from barnabas.pipelines.cluster_access import client_settings
from barnabas.pipelines.definition import (
    Pipeline,
    PipelineError,
    PipelineUnreachableError,
    ReadMode,
    Source,
    StartingPosition,
)
from barnabas.pipelines.lost_records import read_beginnings
from barnabas.wire.errors import KafkaError
from barnabas.wire.sentinels import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from barnabas.wire.topics import TopicPartition

Offsets = Mapping[str, Mapping[int, int]]

_TIMEOUT_MS: Final = 30_000
_PLACE: Final = re.compile(r"([a-zA-Z0-9._-]{1,249}):(\d{1,9})=(\d{1,18})")
_WORDS: Final = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}
_LOGGER = logging.getLogger("barnabas.pipelines.offset_ranges")
_LOGGER.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range: a time for all topics, in milliseconds since 1970, or a sentinel of ListOffsets; and offsets
    of single partitions, which count instead. None where nothing is said.
    """

    timestamp_ms: int | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The first offset of each partition, and the one behind the last; `ends` is empty where there is no end."""

    starts: Offsets
    ends: Offsets

    def has_records(self, topics: Iterable[str]) -> bool:
        """Whether the range of these topics may have any; one without an end may."""
        ends = ((self.starts.get(topic, {}), self.ends[topic]) for topic in topics if topic in self.ends)
        return not self.ends or any(
            end > starts.get(number, end) for starts, each in ends for number, end in each.items()
        )

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        return {"starts": _as_text(self.starts), "ends": _as_text(self.ends)}


def starts_of(offsets: OffsetRange | None) -> Offsets:
    """Where a first run of a range begins."""
    return {} if offsets is None else offsets.starts


def range_from_json(content: Mapping[str, Any]) -> OffsetRange:
    """Of `OffsetRange.to_json`."""
    return OffsetRange(_as_numbers(content["starts"]), _as_numbers(content["ends"]))


def parse_bound(option: str, texts: Sequence[str]) -> Bound | None:
    """Of what was given to an option, perhaps several times; None where it was not. Raises PipelineError."""
    timestamp_ms: int | None = None
    offsets: dict[TopicPartition, int] = {}
    for text in texts:
        place = _PLACE.fullmatch(text.strip())
        if place is not None:
            offsets[TopicPartition(place[1], int(place[2]))] = int(place[3])
        elif timestamp_ms is not None:
            raise PipelineError(f"{option} {text} is a second time: give one, and single partitions beside it")
        else:
            timestamp_ms = _time(option, text.strip())
    return Bound(timestamp_ms, offsets) if texts else None


def read_range(pipeline: Pipeline, bootstrap_servers: str, first: Bound | None, last: Bound | None) -> OffsetRange:
    """The offsets of a range of all streams of a pipeline; asks the cluster, within half a minute for each question.

    Where nothing is said of the beginning it is that of the source; without an end there is none. Raises PipelineError
    for places that are none of the pipeline's, or in the wrong order, PipelineUnreachableError when no answer comes.
    """
    settings = client_settings(pipeline, bootstrap_servers)
    streams = {source.topic: source for source in pipeline.sources if source.read is ReadMode.STREAM}

    async def ask(host: RealHost) -> OffsetRange:
        client = Client(host, settings, _LOGGER)
        try:
            await client.start(_TIMEOUT_MS)
            async with Admin(client) as admin:
                described = await admin.describe_topics(sorted(streams), _TIMEOUT_MS)
                places = [TopicPartition(topic, number) for topic in streams for number in described[topic].partitions]
                _refuse_other_places(places, first, last)
                earliest = await _found(admin, dict.fromkeys(places, EARLIEST_TIMESTAMP))
                latest = await _found(admin, dict.fromkeys(places, LATEST_TIMESTAMP))
                starts = await _offsets(
                    admin, earliest, latest, {each: _first(first, streams[each.topic]) for each in places}
                )
                _set(starts, first, earliest, latest)
                if last is None:
                    return OffsetRange(_by_topic(starts), {})
                wanted = LATEST_TIMESTAMP if last.timestamp_ms is None else last.timestamp_ms
                ends = await _offsets(admin, earliest, latest, dict.fromkeys(places, wanted))
                _set(ends, last, earliest, latest)
        finally:
            await client.close()
        for place, start in starts.items():
            if ends[place] < start and (place in last.offsets or last.timestamp_ms is not None):
                ends[place] = start
        return OffsetRange(_by_topic(starts), _by_topic(ends))

    try:
        return run(ask, name="offset-range")
    except (ClientError, KafkaError, OSError) as error:
        message = f"the cluster at {bootstrap_servers} does not tell the offsets of the range: {error}"
        raise PipelineUnreachableError(f"{message}; run it again when it does") from error


def with_new_partitions(pipeline: Pipeline, bootstrap_servers: str, offsets: OffsetRange) -> OffsetRange:
    """The range of a run that begins later than it was read: Spark wants a place in each partition that a topic has by
    then. Of those that are new nothing lies before an end that is not theirs. Raises as `read_beginnings` does.
    """
    beginnings = read_beginnings(pipeline, bootstrap_servers, offsets.starts)
    starts = {topic: {**beginnings[topic], **each} for topic, each in offsets.starts.items()}
    return OffsetRange(starts, offsets.ends)


async def _offsets(
    admin: Admin,
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    wanted: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """What is not older than a time; where nothing is, the end."""
    times = {place: time for place, time in wanted.items() if time not in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)}
    found = await _found(admin, times) if times else {}
    known = {place: earliest[place] if time == EARLIEST_TIMESTAMP else latest[place] for place, time in wanted.items()}
    return {**known, **{place: offset if offset >= 0 else latest[place] for place, offset in found.items()}}


async def _found(admin: Admin, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {place: found.offset for place, found in (await admin.list_offsets(dict(wanted), _TIMEOUT_MS)).items()}


def _first(bound: Bound | None, source: Source) -> int:
    if bound is not None:
        return EARLIEST_TIMESTAMP if bound.timestamp_ms is None else bound.timestamp_ms
    if source.starting.position is StartingPosition.TIMESTAMP:
        return source.starting.timestamp_ms
    return EARLIEST_TIMESTAMP if source.starting.position is StartingPosition.EARLIEST else LATEST_TIMESTAMP


def _set(
    offsets: dict[TopicPartition, int],
    bound: Bound | None,
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> None:
    for place, offset in (bound.offsets if bound is not None else {}).items():
        if not earliest[place] <= offset <= latest[place]:
            what = f"offset {offset} of partition {place.partition} of {place.topic} is not there"
            raise PipelineError(f"{what}: it has {earliest[place]} to {latest[place]}")
        offsets[place] = offset


def _refuse_other_places(places: Sequence[TopicPartition], *bounds: Bound | None) -> None:
    for bound in bounds:
        for place in bound.offsets if bound is not None else ():
            if place not in places:
                what = f"the pipeline reads no partition {place.partition} of a topic {place.topic} as a stream"
                raise PipelineError(f"{what}: take {place.topic}:{place.partition} out of the range")


def _time(option: str, text: str) -> int:
    if text in _WORDS:
        return _WORDS[text]
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        message = (
            f'{option} "{text}" must be earliest, latest, a time such as 2013-01-01T00:00:00Z, or an offset such as'
        )
        raise PipelineError(f"{message} flights:0=1200") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    timestamp_ms = (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
    if timestamp_ms < 0:
        raise PipelineError(f'{option} "{text}" is before 1970: use earliest')
    return timestamp_ms


def _by_topic(offsets: Mapping[TopicPartition, int]) -> Offsets:
    found: dict[str, dict[int, int]] = {}
    for place, offset in sorted(offsets.items()):
        found.setdefault(place.topic, {})[place.partition] = offset
    return found


def _as_text(offsets: Offsets) -> dict[str, dict[str, int]]:
    return {topic: {str(number): offset for number, offset in each.items()} for topic, each in offsets.items()}


def _as_numbers(content: Mapping[str, Any]) -> Offsets:
    return {topic: {int(number): int(offset) for number, offset in each.items()} for topic, each in content.items()}
