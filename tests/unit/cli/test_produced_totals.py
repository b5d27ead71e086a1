"""`barnabas.cli.produced_totals`: what is acknowledged, and the lines that were sent together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from barnabas.cli.produced_totals import PartitionTotals, SentColumn, SentLines, Totals
from barnabas.wire.record_columns import RecordShape, ValueColumn
from barnabas.wire.topics import TopicPartition


def sent_lines(values: list[bytes], places: Sequence[int] | None = None) -> tuple[SentLines, SentColumn]:
    loop = asyncio.new_event_loop()
    try:
        lines = SentLines(loop, 101, len(values))
    finally:
        loop.close()
    return lines, SentColumn(lines, ValueColumn(RecordShape(), values), places or range(len(values)))


def test_offsets_are_the_first_and_the_last_that_are_known() -> None:
    totals = Totals()
    totals.add(1, 10, 5, 50)
    totals.add(1, 3, 2, 20)
    totals.add(1, -1, 4, 40)
    totals.add(0, -1, 1, 1)
    assert (totals.records, totals.value_bytes) == (12, 111)
    assert totals.partitions == {1: PartitionTotals(11, 3, 14), 0: PartitionTotals(1)}


def test_lines_sent_together_are_done_when_all_parts_are_and_are_counted_once() -> None:
    sent, column = sent_lines([b"x" * number for number in range(10)])
    totals = Totals()
    column.written(4, 6, TopicPartition("t", 2), 50)
    assert not sent.done.done()
    sent.add_to(totals)
    assert (totals.records, totals.value_bytes) == (6, 39)
    column.written(0, 4, TopicPartition("t", 2), 46)
    assert sent.done.done()
    sent.add_to(totals)
    sent.add_to(totals)
    assert (totals.records, totals.value_bytes) == (10, 45)
    assert totals.partitions == {2: PartitionTotals(10, 46, 55)}
    assert sent.failure is None


@pytest.mark.parametrize("order", [(2, 5), (5, 2)])
def test_the_first_line_that_failed_is_told_whichever_is_heard_of_first(order: tuple[int, int]) -> None:
    sent, column = sent_lines([b"x"] * 6)
    for first in order:
        column.failed(first, 1, ValueError(f"of {first}"))
    column.written(0, 2, TopicPartition("t", 0), 0)
    assert not sent.done.done()
    column.written(3, 2, TopicPartition("t", 0), 2)
    assert sent.done.done()
    assert sent.failure is not None
    assert (sent.failure[0], str(sent.failure[1])) == (103, "of 2")


def test_lines_of_several_partitions_have_their_own_numbers() -> None:
    loop = asyncio.new_event_loop()
    lines = SentLines(loop, 11, 5)
    loop.close()
    one = SentColumn(lines, ValueColumn(RecordShape(), [b"a", b"bb"]), [1, 4])
    two = SentColumn(lines, ValueColumn(RecordShape(), [b"c", b"d", b"e"]), [0, 2, 3])
    two.failed(2, 1, ValueError("of line 14"))
    one.failed(0, 1, ValueError("of line 12"))
    assert lines.failure is not None
    assert (lines.failure[0], str(lines.failure[1])) == (12, "of line 12")
    two.written(0, 2, TopicPartition("t", 2), 5)
    assert not lines.done.done()
    one.written(1, 1, TopicPartition("t", 1), 9)
    assert lines.done.done()
    totals = Totals()
    lines.add_to(totals)
    assert totals.partitions == {2: PartitionTotals(2, 5, 6), 1: PartitionTotals(1, 9, 9)}
    assert totals.value_bytes == 4
