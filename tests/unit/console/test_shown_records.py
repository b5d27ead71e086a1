"""Records as pages show and read them, whatever their size."""

from __future__ import annotations

import asyncio
import logging
import timeit
from types import SimpleNamespace
from typing import Any, Self

import pytest

from barnabas.client.cluster import Cluster, PartitionInfo, TopicInfo
from barnabas.client.errors import PartitionReadError
from barnabas.client.offset_lookup import Answers
from barnabas.client.records import ConsumerRecord, OffsetAndTimestamp
from barnabas.client.settings import ConsumerSettings
from barnabas.console import records_read
from barnabas.console.html import markup
from barnabas.console.pages.messages import _unread, messages, shown_headers
from barnabas.console.pages.page import Visit, Visitor
from barnabas.console.records_read import BYTES_MAX, Found, From, Range, RecordReader, Wanted
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.records import Header, TimestampType
from barnabas.wire.topics import TopicPartition

PARTITION = TopicPartition("t", 0)


def record(offset: int, headers: tuple[Header, ...]) -> ConsumerRecord:
    return ConsumerRecord(PARTITION, offset, 1_000, None, b"found", headers, 0, TimestampType.CREATE_TIME)


def test_few_headers_are_shown_as_they_are() -> None:
    assert markup(shown_headers(((b"trace", b"1 < 2"), (b"none", None)))) == (
        '<div><b>trace</b> <pre>1 &lt; 2</pre></div><div><b>none</b> <span class="faint">null</span></div>'
    )


def test_of_very_many_headers_the_first_are_shown_and_how_many_there_are() -> None:
    shown = markup(shown_headers(tuple((b"h%d" % number, b"v") for number in range(100_000))))
    assert "<b>h19</b>" in shown
    assert "h20" not in shown
    assert "... 100,000 headers in all" in shown


@pytest.mark.parametrize("header", [(b"k" * 1_000_000, b"v"), (b"k", b"v" * 1_000_000), (b"k", b"\xff" * 1_000_000)])
def test_of_a_long_header_the_beginning_is_shown(header: Header) -> None:
    shown = markup(shown_headers((header,)))
    assert len(shown) < 1_500
    assert "..." in shown


class LargeHeaders:
    """A consumer of a partition whose records have a header of a mebibyte each."""

    def __init__(self, _client: Any, _settings: Any) -> None:
        self.next_offset = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        pass

    async def look_up(self, timestamps_ms: dict[TopicPartition, int], _timeout_ms: float) -> Answers:
        places = {-2: 0, -1: 200}
        return Answers(
            {each: OffsetAndTimestamp(places.get(time_ms, 0), -1, 0) for each, time_ms in timestamps_ms.items()}
        )

    def assign(self, partitions: list[TopicPartition]) -> None:
        assert partitions == [PARTITION]

    def seek(self, _partition: TopicPartition, offset: int) -> None:
        self.next_offset = offset

    async def poll(self, _timeout_ms: float, _count: int) -> list[ConsumerRecord]:
        self.next_offset += 1
        return [record(self.next_offset - 1, ((b"k", bytes(2**20)),))]

    async def position(self, _partition: TopicPartition) -> int:
        return self.next_offset


def test_headers_count_towards_what_a_page_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_read, "Consumer", LargeHeaders)

    async def read() -> records_read.Found:
        client: Any = SimpleNamespace(
            cluster=SimpleNamespace(topics={"t": SimpleNamespace(partitions={0: None})}),
            host=SimpleNamespace(loop=asyncio.get_running_loop()),
            logger=logging.getLogger("tests.console"),
        )
        return await RecordReader(client).read(Wanted((PARTITION,), count=3, text="found"))

    found = asyncio.run(read())
    assert found.looked_through == BYTES_MAX // 2**20
    assert found.is_cut == "32 MiB were read"
    assert [each.offset for each in found.records] == [29, 30, 31]


class ManyPartitions:
    """A consumer of partitions with more records each than a page shows."""

    assigned: list[list[int]]

    def __init__(self, _client: Any, settings: ConsumerSettings) -> None:
        assert settings.partition_bytes_max * 100 <= BYTES_MAX
        self.assignment: tuple[TopicPartition, ...] = ()
        self.positions: dict[TopicPartition, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        pass

    async def look_up(self, timestamps_ms: dict[TopicPartition, int], _timeout_ms: float) -> Answers:
        places = {-2: 0, -1: 1_000}
        return Answers(
            {each: OffsetAndTimestamp(places.get(time_ms, 0), -1, 0) for each, time_ms in timestamps_ms.items()}
        )

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assignment = tuple(partitions)
        self.assigned.append([partition.partition for partition in partitions])

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.positions[partition] = offset

    async def poll(self, _timeout_ms: float, _count: int) -> list[ConsumerRecord]:
        """Two of the first, and one of each other."""
        given = [self.assignment[0], *self.assignment]
        records = [
            ConsumerRecord(partition, self.positions[partition] + place, 0, None, b"", (), 0, TimestampType.CREATE_TIME)
            for place, partition in enumerate(given[:2])
        ]
        records += [
            ConsumerRecord(partition, self.positions[partition], 0, None, b"", (), 0, TimestampType.CREATE_TIME)
            for partition in given[2:]
        ]
        for each in records:
            self.positions[each.partition] = each.offset + 1
        return records

    async def position(self, partition: TopicPartition) -> int:
        return self.positions[partition]


def test_what_was_fetched_of_partitions_that_are_not_read_on_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_read, "Consumer", ManyPartitions)
    monkeypatch.setattr(ManyPartitions, "assigned", [], raising=False)
    partitions = tuple(TopicPartition("t", number) for number in range(100))

    async def read() -> records_read.Found:
        client: Any = SimpleNamespace(
            cluster=SimpleNamespace(topics={"t": SimpleNamespace(partitions=dict.fromkeys(range(100)))}),
            host=SimpleNamespace(loop=asyncio.get_running_loop()),
            logger=logging.getLogger("tests.console"),
        )
        return await RecordReader(client).read(Wanted(partitions, From.OLDEST, count=2))

    assert len(asyncio.run(read()).records) == 2
    assert ManyPartitions.assigned == [[*range(100)], [*range(1, 100)]]


class OneIsBroken(ManyPartitions):
    """Of partitions of which the fourth cannot be read."""

    async def poll(self, timeout_ms: float, count: int) -> list[ConsumerRecord]:
        broken = TopicPartition("t", 3)
        if broken in self.assignment:
            raise PartitionReadError(broken, ErrorCode.KAFKA_STORAGE_ERROR, "reading t-3 from broker 1")
        return await super().poll(timeout_ms, count)


async def read_of_five(wanted: Wanted) -> Found:
    client: Any = SimpleNamespace(
        cluster=SimpleNamespace(topics={"t": SimpleNamespace(partitions=dict.fromkeys(range(5)))}),
        host=SimpleNamespace(loop=asyncio.get_running_loop()),
        logger=logging.getLogger("tests.console"),
    )
    return await RecordReader(client).read(wanted)


class OffsetsOfOneAreNotKnown(ManyPartitions):
    """Of the fourth partition nobody knows where it begins or ends, or, with a bit of luck, only one of the two."""

    failing: frozenset[int]

    async def look_up(self, timestamps_ms: dict[TopicPartition, int], timeout_ms: float) -> Answers:
        answers = await super().look_up(timestamps_ms, timeout_ms)
        for partition, time_ms in timestamps_ms.items():
            if partition.partition == 3 and time_ms in self.failing:
                del answers.found[partition]
                answers.failed[partition] = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"ListOffsets of {partition}")
        return answers


@pytest.mark.parametrize("start", [From.OLDEST, From.NEWEST, From.TIME])
@pytest.mark.parametrize("failing", [frozenset((-1, -2, 7)), frozenset((-1,)), frozenset((-2,)), frozenset((7,))])
@pytest.mark.parametrize("numbers", [[3], [0, 1, 2, 3, 4]])
def test_a_partition_whose_offsets_are_not_known_is_told_of_beside_the_records_of_others(
    monkeypatch: pytest.MonkeyPatch, numbers: list[int], failing: frozenset[int], start: From
) -> None:
    if failing == {7} and start is not From.TIME:
        return  # it is not asked for then
    monkeypatch.setattr(records_read, "Consumer", OffsetsOfOneAreNotKnown)
    monkeypatch.setattr(ManyPartitions, "assigned", [], raising=False)
    monkeypatch.setattr(OffsetsOfOneAreNotKnown, "failing", failing, raising=False)
    partitions = tuple(TopicPartition("t", number) for number in numbers)
    wanted = Wanted(partitions, start, place=7, count=8)
    if len(numbers) == 1:
        with pytest.raises(KafkaError, match="ListOffsets of t-3"):
            asyncio.run(read_of_five(wanted))
        return
    found = asyncio.run(read_of_five(wanted))
    assert len(found.records) == 8
    assert {record.partition.partition for record in found.records} <= {0, 1, 2, 4}
    assert set(found.ranges) == set(partitions)
    ((broken, why),) = found.unread.items()
    assert broken.partition == 3
    assert "ListOffsets of t-3" in why


@pytest.mark.parametrize("numbers", [[3], [0, 1, 2, 3, 4]])
def test_a_partition_that_cannot_be_read_is_told_of_beside_the_records_of_others(
    monkeypatch: pytest.MonkeyPatch, numbers: list[int]
) -> None:
    monkeypatch.setattr(records_read, "Consumer", OneIsBroken)
    monkeypatch.setattr(ManyPartitions, "assigned", [], raising=False)
    wanted = Wanted(tuple(TopicPartition("t", number) for number in numbers), From.OLDEST, count=8)
    if len(numbers) == 1:
        with pytest.raises(PartitionReadError):
            asyncio.run(read_of_five(wanted))
        return
    found = asyncio.run(read_of_five(wanted))
    assert [range_.next for range_ in found.ranges.values()] == [8, 8, 8, 0, 8]
    assert len(found.records) == 8
    assert found.is_cut == ""
    ((broken, why),) = found.unread.items()
    assert broken.partition == 3
    assert "KAFKA_STORAGE_ERROR" in why
    shown = markup(_unread(found) or "")
    assert "Not read, or not to the end: 1 partition (3). " in shown
    assert "KAFKA_STORAGE_ERROR" in shown


def _page_of(count: int, value: bytes, headers: tuple[tuple[bytes, bytes | None], ...]) -> tuple[int, int]:
    """How long the page of so many such records is, in characters, and how many turns of the loop it took."""
    partition = TopicPartition("flights", 0)
    records = [
        ConsumerRecord(partition, number, 0, value, value, headers, 0, TimestampType(0)) for number in range(count)
    ]
    info = TopicInfo("flights", bytes(16), is_internal=False, partitions={0: PartitionInfo(1, 0, (1,), (1,), ())})
    query = {"topic": "flights", "count": str(count)}

    class Reader:
        async def read(self, _wanted: object) -> Found:
            return Found(records, {partition: Range(0, count, 0, count)}, count)

    poller: Any = SimpleNamespace(cluster=SimpleNamespace(value=Cluster(topics={"flights": info})))
    reader: Any = Reader()
    nothing: Any = None
    visit = Visit(poller, reader, 0, (), query, "", Visitor(""), nothing)

    async def rendered() -> tuple[int, int]:
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.ensure_future(count_turns())
        page = await messages(visit)
        counting.cancel()
        return len(markup(page.body)), turns

    return asyncio.run(rendered())


def test_the_more_records_a_page_has_the_less_it_shows_of_each_and_others_have_turns_between_them() -> None:
    headers = tuple((b"\x01" * 300, b"\x01" * 300) for _ in range(30))
    few, _ = _page_of(50, b"\x01" * 5_000, headers)
    many, turns = _page_of(500, b"\x01" * 5_000, headers)
    assert turns >= 499
    assert few < 5_000_000
    assert many < 2 * few


def test_text_that_is_all_escapes_takes_no_longer_than_other_text() -> None:
    def seconds(text: str) -> float:
        return min(timeit.repeat(lambda: markup(text), number=1, repeat=3))

    # A call for each character took fifty times as long.
    assert seconds("\x01" * 500_000) < 20 * seconds("<" * 500_000) + 0.05
