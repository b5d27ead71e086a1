"""`barnabas.cli.produced_totals`: what is acknowledged, and the lines that were sent together."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.cli.produced_totals import PartitionTotals, SentColumn, Totals
from barnabas.wire.record_columns import RecordShape, ValueColumn
from barnabas.wire.topics import TopicPartition


def sent_column(values: list[bytes]) -> SentColumn:
    loop = asyncio.new_event_loop()
    try:
        return SentColumn(loop, 101, ValueColumn(RecordShape(), values))
    finally:
        loop.close()


def test_offsets_are_the_first_and_the_last_that_are_known() -> None:
    totals = Totals()
    totals.add(1, 10, 5, 50)
    totals.add(1, 3, 2, 20)
    totals.add(1, -1, 4, 40)
    totals.add(0, -1, 1, 1)
    assert (totals.records, totals.value_bytes) == (12, 111)
    assert totals.partitions == {1: PartitionTotals(11, 3, 14), 0: PartitionTotals(1)}


def test_lines_sent_together_are_done_when_all_parts_are_and_are_counted_once() -> None:
    sent = sent_column([b"x" * number for number in range(10)])
    totals = Totals()
    sent.written(4, 6, TopicPartition("t", 2), 50)
    assert not sent.done.done()
    sent.add_to(totals)
    assert (totals.records, totals.value_bytes) == (6, 39)
    sent.written(0, 4, TopicPartition("t", 2), 46)
    assert sent.done.done()
    sent.add_to(totals)
    sent.add_to(totals)
    assert (totals.records, totals.value_bytes) == (10, 45)
    assert totals.partitions == {2: PartitionTotals(10, 46, 55)}
    assert sent.failure is None


@pytest.mark.parametrize("order", [(2, 5), (5, 2)])
def test_the_first_line_that_failed_is_told_whichever_is_heard_of_first(order: tuple[int, int]) -> None:
    sent = sent_column([b"x"] * 6)
    for first in order:
        sent.failed(first, 1, ValueError(f"of {first}"))
    sent.written(0, 2, TopicPartition("t", 0), 0)
    assert not sent.done.done()
    sent.written(3, 2, TopicPartition("t", 0), 2)
    assert sent.done.done()
    assert sent.failure is not None
    assert (sent.failure[0], str(sent.failure[1])) == (103, "of 2")
