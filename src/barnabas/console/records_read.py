"""Records of a topic, or of one of its partitions, for a page: a few, from where the page says, within bounds of bytes
and time."""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from barnabas.client.consumer import Consumer
from barnabas.client.errors import PartitionReadError
from barnabas.client.settings import ConsumerSettings, OffsetReset
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.sentinels import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.records import ConsumerRecord

SHOWN_MAX: Final = 500
SEARCHED_MAX: Final = 20_000
"""How many records one page looks through; of several partitions each has the same part."""
PARTITIONS_MAX: Final = 1_000
"""How many partitions one page reads."""
BYTES_MAX: Final = 32 * 1024 * 1024
"""How many bytes of keys, values and headers one page reads."""
SECONDS_MAX: Final = 8.0
READERS_MAX: Final = 2
"""How many pages read at the same time; others wait, and are told so after a while."""
_WAIT_SECONDS: Final = 5.0
_POLL_MS: Final = 250.0
_PARTITION_BYTES_MAX: Final = 256 * 1024
_FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of one answer of a broker, which stays in memory until the last of its partitions was read."""


class From(enum.Enum):
    """Where to begin; the value is the word in the address of the page."""

    NEWEST = "newest"
    OLDEST = "oldest"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a page asks for: of these partitions, which are of one topic."""

    partitions: tuple[TopicPartition, ...]
    start: From = From.NEWEST
    place: int = 0
    """The offset, or the time in ms since 1970."""
    count: int = 50
    text: str = ""
    """Only records with this in their key or value, as UTF-8, in any case of ASCII letters; all where it is empty."""
    keys: frozenset[bytes] = frozenset()
    """Only records with one of these keys; all where there are none."""

    @property
    def is_search(self) -> bool:
        """Whether only some of the records there are wanted."""
        return bool(self.text or self.keys)

    @property
    def searched_max(self) -> int:
        """How many records are looked through in each partition."""
        return SEARCHED_MAX // len(self.partitions)

    @property
    def back(self) -> int:
        """Of the newest, how many are looked at in each partition: a search looks at all that there is room for."""
        return self.searched_max if self.is_search else min(self.count, self.searched_max)


@dataclass(frozen=True, slots=True)
class Range:
    """Of one partition: what was read, offsets `first` up to but without `next`; its log has `start` to `end`."""

    start: int
    end: int
    first: int
    next: int


@dataclass(frozen=True, slots=True)
class Found:
    """What was read: of one partition in the order of offsets, of several in the order of time."""

    records: Sequence[ConsumerRecord]
    ranges: Mapping[TopicPartition, Range]
    looked_through: int
    is_cut: str = ""
    """Why it ended before the end of a log; empty where it did not, or the page is full."""
    unread: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Of several partitions those that could not be read to where the page ends, and why."""


class BusyError(Exception):
    """Too many pages read at the same time."""


class RecordReader:
    """Reads for pages, a bounded number at the same time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._places = asyncio.Semaphore(READERS_MAX)

    async def read(self, wanted: Wanted) -> Found:
        """Reads. Raises BusyError, and KafkaError and ClientTimeoutError as a consumer does."""
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._places.acquire()
        except TimeoutError:
            raise BusyError("other pages read records now: try again in a moment") from None
        try:
            return await self._read(wanted)
        finally:
            self._places.release()

    # Inside.

    async def _read(self, wanted: Wanted) -> Found:
        settings = ConsumerSettings(
            offset_reset=OffsetReset.NONE,
            auto_commit=False,
            # What was fetched of each waits to be read, of all at the same time.
            partition_bytes_max=min(_PARTITION_BYTES_MAX, BYTES_MAX // len(wanted.partitions)),
            fetch_bytes_max=_FETCH_BYTES_MAX,
            fetch_wait_ms=100,
        )
        topic = self._client.cluster.topics.get(wanted.partitions[0].topic)
        for partition in wanted.partitions:
            if topic is None or partition.partition not in topic.partitions:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {partition}")
        async with Consumer(self._client, settings) as consumer:
            unread = dict[TopicPartition, str]()
            scans = await self._scans(consumer, wanted, unread)
            reading = {partition: scan for partition, scan in scans.items() if not scan.is_over}
            cut = ""
            if reading:
                consumer.assign(list(reading))
                for partition, scan in reading.items():
                    consumer.seek(partition, scan.first)
                cut = await self._scan(consumer, reading, unread)
        return _merged(wanted, scans, cut, unread)

    async def _scans(
        self, consumer: Consumer, wanted: Wanted, unread: dict[TopicPartition, str]
    ) -> dict[TopicPartition, _Scan]:
        """What is to be read of each; nothing of one whose offsets are not told, which is `unread` where there are
        others.
        """
        places: dict[TopicPartition, list[int]] = {partition: [] for partition in wanted.partitions}
        times_ms = (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, *((wanted.place,) if wanted.start is From.TIME else ()))
        for time_ms in times_ms:
            answers = await consumer.look_up(dict.fromkeys(places, time_ms), 3_000)
            for partition, error in answers.failed.items():
                if len(wanted.partitions) == 1:
                    raise error
                unread[partition] = str(error)
                del places[partition]
            for partition, place in answers.found.items():
                places[partition].append(place.offset)
        scans = {}
        for partition in wanted.partitions:
            start, end, *at_time = places.get(partition, (0, 0, 0))
            scans[partition] = _Scan(wanted, start, end, _first(wanted, start, end, *at_time))
        return scans

    async def _scan(
        self, consumer: Consumer, scans: Mapping[TopicPartition, _Scan], unread: dict[TopicPartition, str]
    ) -> str:
        """Reads until every scan is over, or a bound of them all is reached; which one. One that cannot be read is
        `unread` where there are others.
        """
        loop = self._client.host.loop
        ends_at = loop.time() + SECONDS_MAX
        reading, bytes_read = dict(scans), 0
        while reading:
            try:
                records = await consumer.poll(_POLL_MS, 500)
            except PartitionReadError as error:
                if len(scans) == 1:
                    raise
                unread[error.partition] = str(error)
                reading.pop(error.partition, None)
                consumer.assign([partition for partition in consumer.assignment if partition in reading])
                records = []
            for record in records:
                scan = reading[record.partition]
                if scan.is_over:
                    continue
                scan.take(record)
                bytes_read += _size_bytes(record)
                if bytes_read >= BYTES_MAX:
                    return f"{BYTES_MAX // (1024 * 1024)} MiB were read"
            were = len(reading)
            for partition, scan in list(reading.items()):
                # Behind the last record there may be markers of transactions only.
                if not scan.is_over:
                    scan.next = max(scan.next, await consumer.position(partition))
                if scan.is_over:
                    del reading[partition]
            if 0 < len(reading) < were:
                # What was fetched of the others, and is not wanted, goes.
                consumer.assign([partition for partition in consumer.assignment if partition in reading])
            if reading and loop.time() > ends_at:
                return f"it took longer than {SECONDS_MAX:g} s"
        return ""


def _first(wanted: Wanted, start: int, end: int, at_time: int = -1) -> int:
    """The offset of a partition at which to begin."""
    match wanted.start:
        case From.OLDEST:
            return start
        case From.OFFSET:
            return min(max(wanted.place, start), end)
        case From.TIME:
            return at_time if at_time >= 0 else end
    return max(start, end - wanted.back)


class _Scan:
    """What is read of one partition, and what of that is wanted."""

    def __init__(self, wanted: Wanted, start: int, end: int, first: int) -> None:
        self.first = self.next = first
        self.looked = 0
        self._start = start
        self._end = end
        self._looked_max = wanted.searched_max
        self._needle = wanted.text.encode().lower()
        self._keys = wanted.keys
        # Of the newest, the last that match; of all others, the first.
        self._keeps_last = wanted.start is From.NEWEST
        self._count = wanted.count
        self.shown: deque[ConsumerRecord] = deque(maxlen=wanted.count)

    @property
    def is_over(self) -> bool:
        return self.next >= self._end or self.is_full or self.looked >= self._looked_max

    @property
    def is_full(self) -> bool:
        return not self._keeps_last and len(self.shown) >= self._count

    @property
    def is_cut(self) -> bool:
        """Whether it ended before the log did, though the page has room."""
        return self.next < self._end and not self.is_full

    @property
    def range(self) -> Range:
        return Range(self._start, self._end, self.first, self.next)

    def take(self, record: ConsumerRecord) -> None:
        if record.offset >= self._end:
            self.next = self._end
            return
        self.next = record.offset + 1
        self.looked += 1
        if self._keys and record.key not in self._keys:
            return
        if (
            not self._needle
            or self._needle in (record.key or b"").lower()
            or self._needle in (record.value or b"").lower()
        ):
            self.shown.append(record)


def _merged(
    wanted: Wanted, scans: Mapping[TopicPartition, _Scan], cut: str, unread: Mapping[TopicPartition, str]
) -> Found:
    records = [record for scan in scans.values() for record in scan.shown]
    if len(scans) > 1:
        records.sort(key=lambda record: (record.timestamp_ms, record.partition.partition, record.offset))
    records = records[-wanted.count :] if wanted.start is From.NEWEST else records[: wanted.count]
    if not cut and any(scan.is_cut for partition, scan in scans.items() if partition not in unread):
        each = " of each partition" if len(scans) > 1 else ""
        cut = f"{wanted.searched_max:,} records{each} were looked through"
    looked = sum(scan.looked for scan in scans.values())
    return Found(records, {partition: scan.range for partition, scan in scans.items()}, looked, cut, unread)


def _size_bytes(record: ConsumerRecord) -> int:
    """What a record takes of `BYTES_MAX`."""
    headers = sum(len(key) + len(value or b"") for key, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers
