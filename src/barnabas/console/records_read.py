"""Records of one partition, for a page: a few, from where the page says, within bounds of bytes and time."""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.client.consumer import Consumer
from barnabas.client.settings import ConsumerSettings, OffsetReset
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.records import ConsumerRecord

SHOWN_MAX: Final = 500
SEARCHED_MAX: Final = 20_000
"""How many records one page looks through."""
BYTES_MAX: Final = 32 * 1024 * 1024
"""How many bytes of keys, values and headers one page reads."""
SECONDS_MAX: Final = 8.0
READERS_MAX: Final = 2
"""How many pages read at the same time; others wait, and are told so after a while."""
_WAIT_SECONDS: Final = 5.0
_POLL_MS: Final = 250.0


class From(enum.Enum):
    """Where to begin; the value is the word in the address of the page."""

    NEWEST = "newest"
    OLDEST = "oldest"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a page asks for."""

    partition: TopicPartition
    start: From = From.NEWEST
    place: int = 0
    """The offset, or the time in ms since 1970."""
    count: int = 50
    text: str = ""
    """Only records with this in their key or value, as UTF-8, in any case of ASCII letters; all where it is empty."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was read: records from offset `first` up to but without `next`; the log has those from `start` to `end`."""

    records: Sequence[ConsumerRecord]
    start: int
    end: int
    first: int
    next: int
    looked_through: int
    is_cut: str = ""
    """Why it ended before the end of the log; empty where it did not, or the page is full."""


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
            offset_reset=OffsetReset.NONE, auto_commit=False, partition_bytes_max=256 * 1024, fetch_wait_ms=100
        )
        partition = wanted.partition
        topic = self._client.cluster.topics.get(partition.topic)
        if topic is None or partition.partition not in topic.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {partition}")
        async with Consumer(self._client, settings) as consumer:
            start = (await consumer.beginning_offsets([partition], 3_000))[partition]
            end = (await consumer.end_offsets([partition], 3_000))[partition]
            first = await self._first(consumer, wanted, start, end)
            if first >= end:
                return Found((), start, end, first, first, 0)
            consumer.assign([partition])
            consumer.seek(partition, first)
            return await self._scan(consumer, wanted, start, end, first)

    async def _first(self, consumer: Consumer, wanted: Wanted, start: int, end: int) -> int:
        match wanted.start:
            case From.OLDEST:
                return start
            case From.OFFSET:
                return min(max(wanted.place, start), end)
            case From.TIME:
                found = await consumer.offsets_for_times({wanted.partition: wanted.place}, 3_000)
                place = found[wanted.partition]
                return end if place is None else place.offset
        # A search looks through the newest records there are room for.
        back = SEARCHED_MAX if wanted.text else wanted.count
        return max(start, end - back)

    async def _scan(self, consumer: Consumer, wanted: Wanted, start: int, end: int, first: int) -> Found:
        loop = self._client.host.loop
        ends_at = loop.time() + SECONDS_MAX
        needle = wanted.text.encode().lower()
        # Of the newest, the last that match; of all others, the first.
        keeps_last = wanted.start is From.NEWEST
        shown: deque[ConsumerRecord] = deque(maxlen=wanted.count)
        next_offset, looked, bytes_read, cut = first, 0, 0, ""
        while next_offset < end and not cut:
            for record in await consumer.poll(_POLL_MS, 500):
                if record.offset >= end:
                    next_offset = end
                    break
                next_offset = record.offset + 1
                looked += 1
                bytes_read += _size_bytes(record)
                if not needle or needle in (record.key or b"").lower() or needle in (record.value or b"").lower():
                    shown.append(record)
                if len(shown) >= wanted.count and not keeps_last:
                    cut = "full"
                elif looked >= SEARCHED_MAX:
                    cut = f"{SEARCHED_MAX:,} records were looked through"
                elif bytes_read >= BYTES_MAX:
                    cut = f"{BYTES_MAX // (1024 * 1024)} MiB were read"
                if cut:
                    break
            else:
                # Behind the last record there may be markers of transactions only.
                next_offset = max(next_offset, await consumer.position(wanted.partition))
                if loop.time() > ends_at:
                    cut = f"it took longer than {SECONDS_MAX:g} s"
        return Found(list(shown), start, end, first, next_offset, looked, "" if cut == "full" else cut)


def _size_bytes(record: ConsumerRecord) -> int:
    """What a record takes of `BYTES_MAX`."""
    headers = sum(len(key) + len(value or b"") for key, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers
