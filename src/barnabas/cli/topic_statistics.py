"""The work of `barnabas topic stats`: what brokers tell of sizes and ends, and what the newest records tell of keys."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.missing import say_no_topics
from barnabas.cli.output import Column, counted, print_json, print_table, printable, say, size
from barnabas.cli.partition_selection import Bounds, find_bounds, find_partitions
from barnabas.cli.reassignment_view import Sizes, replica_sizes, size_of
from barnabas.cli.record_formats import add_bytes, shown_bytes
from barnabas.cli.topic_ids import topic_id
from barnabas.client.admin import Admin
from barnabas.client.consumer import Consumer
from barnabas.client.errors import NoOffsetError
from barnabas.client.settings import ConsumerSettings, OffsetReset
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.cluster import PartitionInfo, TopicInfo
    from barnabas.client.records import ConsumerRecord

STATISTICS_VERSION: Final = 1
_SAMPLE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of a partition, without what compression saves."""
_PARTITIONS_AT_ONCE: Final = 32
"""Whose keys are looked at side by side: what is kept of a key is bounded, and so is their number."""
_TOP_KEYS: Final = 5
_UNEVEN: Final = 1.5
_KEY_BYTES_KEPT: Final = 128
_POLL_MS: Final = 500.0
_SILENT_POLLS_MAX: Final = 60
_SHOWN_EVERY_SECONDS: Final = 5.0
_COLUMNS: Final = (
    Column("Topic", "topic"),
    Column("Partition", "partition", is_number=True),
    Column("Leader", "leader", is_number=True),
    Column("Size", "size_bytes", is_number=True),
    Column("Offsets", "offsets", is_number=True),
    Column("Bytes/s", "bytes_per_second", is_number=True),
    Column("Records/s", "records_per_second", is_number=True),
    Column("Keys", "distinct_keys", is_number=True),
    Column("Largest key", "top_key", is_cut=True),
    Column("Has", "top_key_share", is_number=True),
)


@dataclass(slots=True)
class KeySample:
    """What the newest records of a partition say of its keys; long keys are known by their hash."""

    records: int = 0
    size_bytes: int = 0
    keyless: int = 0
    keys: Counter[bytes] = field(default_factory=Counter)
    shown: dict[bytes, bytes] = field(default_factory=dict)
    """The beginning of a long key."""

    def add(self, record: ConsumerRecord) -> None:
        self.records += 1
        self.size_bytes += len(record.key or b"") + len(record.value or b"")
        if record.key is None:
            self.keyless += 1
        elif len(record.key) <= _KEY_BYTES_KEPT:
            self.keys[bytes(record.key)] += 1
        else:
            known = b"\0hash" + hashlib.blake2b(record.key, digest_size=_KEY_BYTES_KEPT // 2).digest()
            self.keys[known] += 1
            self.shown.setdefault(known, bytes(record.key[:_KEY_BYTES_KEPT]))

    def top(self) -> list[tuple[bytes, int]]:
        """The keys of most records, and of how many; of a long one its beginning."""
        most = sorted(self.keys.items(), key=lambda each: (-each[1], each[0]))[:_TOP_KEYS]
        return [(self.shown.get(key, key), count) for key, count in most]


@dataclass(slots=True)
class PartitionStatistics:
    """What is known of a partition; rates are None where nothing was measured."""

    partition: TopicPartition
    info: PartitionInfo
    size_bytes: int
    bounds: Bounds
    bytes_per_second: float | None = None
    records_per_second: float | None = None
    sample: KeySample = field(default_factory=KeySample)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of all partitions that were asked for."""

    cluster_id: str | None
    taken_ms: int
    measured_ms: int
    topics: Mapping[str, TopicInfo]
    partitions: Sequence[PartitionStatistics]
    silent: Sequence[int]
    """Brokers that told no sizes."""


async def measure(
    client: Client, selection: Mapping[str, Sequence[int] | None], measured_ms: int, sample: int
) -> Statistics:
    """Asks the brokers, twice where rates are wanted, and reads `sample` records of each partition.

    Raises CommandError, and what clients raise.
    """
    async with Admin(client) as admin:
        if not selection:
            everything = await admin.describe_topics()
            selection = {name: None for name, each in everything.items() if not each.is_internal}
        partitions, _ = await find_partitions(admin, selection, must_be_led=True)
        topics = await admin.describe_topics(selection) if selection else {}
        node_ids = sorted(client.cluster.brokers)
        sizes, silent = await replica_sizes(admin, node_ids)
        bounds = await find_bounds(admin, partitions)
        found = []
        for each in partitions:
            info = topics[each.topic].partitions[each.partition]
            size_bytes = size_of(sizes, each, info.leader_id, info.replicas)
            found.append(PartitionStatistics(each, info, size_bytes, bounds[each]))
        if measured_ms:
            began = client.host.loop.time()
            await client.timers.sleep(measured_ms)
            later, _ = await replica_sizes(admin, node_ids)
            ends = await find_bounds(admin, partitions)
            measured_ms = max(1, int((client.host.loop.time() - began) * 1_000))
            for one in found:
                _rate(one, later, ends[one.partition], measured_ms)
    if sample:
        await _sample_all(client, found, sample)
    taken_ms = client.host.clock.time_ms()
    return Statistics(client.cluster.cluster_id, taken_ms, measured_ms, topics, found, silent)


def _rate(one: PartitionStatistics, later: Sizes, bounds: Bounds, measured_ms: int) -> None:
    """What was written meanwhile; where retention has made a log smaller, by what its records take."""
    written = max(0, bounds.end - one.bounds.end)
    grown = size_of(later, one.partition, one.info.leader_id, one.info.replicas) - one.size_bytes
    there = one.bounds.end - one.bounds.start
    if bounds.start != one.bounds.start or grown < 0:
        grown = one.size_bytes * written // there if there else 0
    one.records_per_second = written * 1_000 / measured_ms
    one.bytes_per_second = max(0, grown) * 1_000 / measured_ms


async def _sample_all(client: Client, found: Sequence[PartitionStatistics], sample: int) -> None:
    shown_at = client.host.loop.time()
    for start in range(0, len(found), _PARTITIONS_AT_ONCE):
        await _sample(client, found[start : start + _PARTITIONS_AT_ONCE], sample)
        now = client.host.loop.time()
        if now - shown_at >= _SHOWN_EVERY_SECONDS and sys.stderr.isatty():
            shown_at = now
            say(f"keys of {min(start + _PARTITIONS_AT_ONCE, len(found)):,} of {len(found):,} partitions")


async def _sample(client: Client, some: Sequence[PartitionStatistics], sample: int) -> None:
    """Reads the newest records up to where the partitions ended."""
    left = {each.partition: each for each in some if each.bounds.end > each.bounds.start}
    settings = ConsumerSettings(offset_reset=OffsetReset.EARLIEST, fetch_bytes_max=16 * 1024 * 1024, auto_commit=False)
    async with Consumer(client, settings) as consumer:
        consumer.assign(left)
        for partition, each in left.items():
            consumer.seek(partition, max(each.bounds.start, each.bounds.end - sample))
        silent = 0
        while left and silent < _SILENT_POLLS_MAX:
            try:
                records = await consumer.poll(_POLL_MS)
            except NoOffsetError:
                records = []  # retention has come by; what is there is read
            silent = 0 if records else silent + 1
            for record in records:
                statistics = left.get(record.partition)
                if statistics is not None and record.offset < statistics.bounds.end:
                    statistics.sample.add(record)
            passed = {each: await consumer.position(each) for each in left}
            done = [
                partition
                for partition, each in left.items()
                if passed[partition] >= each.bounds.end or each.sample.size_bytes >= _SAMPLE_BYTES_MAX
            ]
            consumer.pause(*done)
            for partition in done:
                del left[partition]
    if left:
        raise CommandError(
            f"no record came of {printable(str(next(iter(left))))} for {_SILENT_POLLS_MAX * _POLL_MS / 1_000:.0f} s; "
            "--sample 0 does without",
            ExitStatus.UNREACHABLE,
        )


def show(statistics: Statistics, *, as_json: bool) -> None:
    """Prints all, and what brokers do not tell."""
    if as_json:
        print_json(document(statistics))
    elif statistics.partitions:
        print_table(_COLUMNS, map(_row, statistics.partitions))
        for line in _unevenness(statistics.partitions):
            say(line)
    else:
        say_no_topics()
    if statistics.silent:
        say(
            f"Sizes are not told by broker {', '.join(map(str, statistics.silent))}: its replicas count as others tell."
        )


def document(statistics: Statistics) -> dict[str, Any]:
    """As `topic stats --json` has it, and `reassign plan --from-stats` takes it."""
    return {
        "version": STATISTICS_VERSION,
        "cluster_id": statistics.cluster_id,
        "taken_ms": statistics.taken_ms,
        "measured_ms": statistics.measured_ms,
        "partitions": [
            {
                "topic": each.partition.topic,
                "topic_id": topic_id(statistics.topics[each.partition.topic]),
                "partition": each.partition.partition,
                "leader": each.info.leader_id,
                "replicas": list(each.info.replicas),
                "size_bytes": each.size_bytes,
                "start_offset": each.bounds.start,
                "end_offset": each.bounds.end,
                "bytes_per_second": _rounded(each.bytes_per_second),
                "records_per_second": _rounded(each.records_per_second),
                **_sample_document(each.sample),
            }
            for each in statistics.partitions
        ],
    }


def _sample_document(sample: KeySample) -> dict[str, Any]:
    top = []
    for key, count in sample.top():
        one: dict[str, Any] = {"records": count, "share": round(count / sample.records, 6)}
        add_bytes(one, "key", key)
        top.append(one)
    return {
        "sampled_records": sample.records,
        "sampled_bytes": sample.size_bytes,
        "keyless_records": sample.keyless,
        "distinct_keys": len(sample.keys),
        "top_keys": top,
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)


def _row(each: PartitionStatistics) -> list[object]:
    top = each.sample.top()
    return [
        each.partition.topic,
        each.partition.partition,
        each.info.leader_id,
        size(each.size_bytes),
        each.bounds.end - each.bounds.start,
        None if each.bytes_per_second is None else size(int(each.bytes_per_second)),
        None if each.records_per_second is None else f"{each.records_per_second:.1f}",
        len(each.sample.keys) if each.sample.records else None,
        shown_bytes(top[0][0]) if top else None,
        f"{100 * top[0][1] / each.sample.records:.0f}%" if top else None,
    ]


def _unevenness(partitions: Iterable[PartitionStatistics]) -> Iterable[str]:
    """A line for each topic of which a partition has half as much again as its share."""
    topics: dict[str, list[PartitionStatistics]] = {}
    for each in partitions:
        topics.setdefault(each.partition.topic, []).append(each)
    for name, some in topics.items():
        largest = max(some, key=lambda each: each.size_bytes)
        mean = sum(each.size_bytes for each in some) / len(some)
        if largest.size_bytes > _UNEVEN * mean:
            yield (
                f"{printable(name)}: partition {largest.partition.partition} has {largest.size_bytes / mean:.1f} times "
                f"what each of {counted(len(some), 'partition')} would have."
            )
