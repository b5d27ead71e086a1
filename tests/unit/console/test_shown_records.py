"""Records as pages show and read them, whatever their size."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, Self

import pytest

from barnabas.client.records import ConsumerRecord
from barnabas.console import records_read
from barnabas.console.html import markup
from barnabas.console.pages.messages import shown_headers
from barnabas.console.records_read import BYTES_MAX, RecordReader, Wanted
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

    async def beginning_offsets(
        self, partitions: list[TopicPartition], _timeout_ms: float
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: list[TopicPartition], _timeout_ms: float) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 200)

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
        return await RecordReader(client).read(Wanted(PARTITION, count=3, text="found"))

    found = asyncio.run(read())
    assert found.looked_through == BYTES_MAX // 2**20
    assert found.is_cut == "32 MiB were read"
    assert [each.offset for each in found.records] == [29, 30, 31]
