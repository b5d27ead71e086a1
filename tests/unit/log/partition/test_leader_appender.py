"""Batches that are appended together, held against the same batches appended one by one."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from barnabas.log.partition.appending import AppendError, AppendResult
from barnabas.log.partition.log_config import LogConfig
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.segments.segment import Segment
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import RecordBatch, set_checksum
from barnabas.wire.records import TimestampType
from barnabas.wire.topics import TopicPartition
from tests.unit.log.log_broker import LogBroker, records
from tests.unit.log.verified import verified

WithBroker = Callable[..., Any]
NOW_MS = 1_700_000_000_000


class Producers:
    """What producers send: mostly the next batch, sometimes one again, one too early, or one that is broken."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._sequences: dict[int, int] = {}
        self._sent: list[bytearray] = []

    def batch(self) -> bytearray:
        chance = self._chance
        kind = chance.random()
        if self._sent and kind < 0.1:
            return bytearray(chance.choice(self._sent[-4:]))
        values = [b"v" * chance.choice((0, 1, 20, 300)) for _ in range(chance.randint(1, 3))]
        fields: dict[str, Any] = {"timestamp_ms": NOW_MS + chance.randint(-1000, 1000)}
        if kind < 0.2:
            fields["compression"] = Compression(CompressionType.GZIP)
        if kind < 0.6:
            producer_id = chance.randint(1, 3)
            sequence = self._sequences.get(producer_id, 0)
            if kind < 0.25:
                sequence += 5
            else:
                self._sequences[producer_id] = sequence + len(values)
            fields |= {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
        data = records(*values, **fields)
        if 0.8 < kind < 0.9:  # it names another timestamp as the largest than it has
            data[35:43] = (NOW_MS + 7_000).to_bytes(8)
            set_checksum(data)
        if kind > 0.95:
            data[-1] ^= 1
        self._sent.append(data)
        return bytearray(data)


def one_by_one(log: PartitionLog, batches: list[bytearray]) -> list[AppendResult | AppendError]:
    outcomes: list[AppendResult | AppendError] = []
    for data in batches:
        try:
            outcomes.append(log.append_as_leader(data, 4, produce_version=9))
        except AppendError as error:
            outcomes.append(error)
    return outcomes


def shown(outcome: AppendResult | AppendError) -> Any:
    return (outcome.code, outcome.detail) if isinstance(outcome, AppendError) else outcome


def facts(segment: Segment) -> dict[str, Any]:
    """All that a segment is, and where it says each offset is."""
    segment.write_pending()
    return {
        "bytes": Path(segment.path).read_bytes(),
        "size": segment.size_bytes,
        "offsets": (segment.base_offset, segment.next_offset),
        "largest timestamp": segment.max_timestamp,
        "age": segment.read_age(),
        "offset index": [segment.offset_index.entry(number) for number in range(segment.offset_index.count)],
        "time index": [segment.time_index.entry(number) for number in range(segment.time_index.count)],
        "places": [segment.position_of(offset) for offset in range(segment.base_offset, segment.next_offset)],
    }


def appended_together(log: PartitionLog, batches: Sequence[bytearray], epoch: int) -> list[AppendResult | AppendError]:
    """The outcomes, whose figures are right."""
    sent_bytes = list(map(len, batches))
    together = log.append_all_as_leader(batches, epoch, produce_version=9)
    outcomes = [each if isinstance(each, AppendError) else AppendResult._make(each) for each in together.outcomes]
    results = [(each, size) for each, size in zip(outcomes, sent_bytes, strict=True) if isinstance(each, AppendResult)]
    assert together.error_count == len(outcomes) - len(results)
    assert together.record_count == sum(each.record_count for each, _ in results)
    assert together.converted_count == sum(each.converted_count for each, _ in results)
    assert together.sent_bytes == sum(size for _, size in results)
    return outcomes


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "config",
    [
        LogConfig(),
        LogConfig(segment_bytes=2000, index_interval_bytes=100),
        LogConfig(segment_bytes=700),
        LogConfig(segment_ms=900),
        LogConfig(compression_type="gzip"),
        LogConfig(index_interval_bytes=700, message_timestamp_after_max_ms=500),
    ],
    ids=["usual", "rolls", "too large for a segment", "rolls by time", "recompressed", "indexed"],
)
def test_appending_together_is_appending_one_by_one(with_broker: WithBroker, config: LogConfig, seed: int) -> None:
    chance = random.Random(seed)
    batches_max = 12 if config.segment_bytes < 10_000 else 80

    async def scenario(broker: LogBroker) -> None:
        single, joined = (broker.log(TopicPartition(name, 0)) for name in ("single", "joined"))
        producers = Producers(chance)
        kinds: set[str] = set()
        for _ in range(12):
            batches = [producers.batch() for _ in range(chance.randint(0, batches_max))]
            expected = one_by_one(single, [bytearray(data) for data in batches])
            found = appended_together(joined, batches, 4)
            assert [shown(outcome) for outcome in found] == [shown(outcome) for outcome in expected]
            assert joined.append_end_offset == single.append_end_offset
            assert list(joined.producers) == list(single.producers)
            kinds |= {
                outcome.code.name if isinstance(outcome, AppendError) else f"duplicate {outcome.is_duplicate}"
                for outcome in found
            }
        await broker.written(joined)
        await broker.written(single)
        assert b"".join(await broker.batches(joined)) == b"".join(await broker.batches(single))
        assert joined.latest_epoch == 4
        assert {"CORRUPT_MESSAGE", "OUT_OF_ORDER_SEQUENCE_NUMBER", "duplicate True", "duplicate False"} <= kinds
        assert [facts(segment) for segment in joined.segments] == [facts(segment) for segment in single.segments]

    with_broker(scenario, config=config)


@pytest.mark.parametrize(
    ("sequences", "is_written"),
    [((0, 1, 2), True), ((0, 9, 1), False), ((0, None, 1), False), ((None, 0, 1), False), ((0, 1, 0), False)],
    ids=["together", "one with a gap", "one that is broken", "the first is broken", "one comes again"],
)
def test_what_is_to_be_written_at_once_waits_where_not_all_of_it_goes_there_together(
    with_broker: WithBroker, sequences: Sequence[int | None], is_written: bool
) -> None:
    async def scenario(broker: LogBroker) -> None:
        log = broker.log()
        batches = [records(b"v", producer_id=1, producer_epoch=0, base_sequence=each or 0) for each in sequences]
        for batch, sequence in zip(batches, sequences, strict=True):
            batch[-1] ^= sequence is None
        together = log.append_all_as_leader(batches, 0, produce_version=9, writes_at_once=True)
        (segment,) = log.segments
        assert together.sent_bytes >= segment.size_bytes == log.append_end_offset * len(batches[0])
        assert len(segment.pending) == (0 if is_written else segment.size_bytes)

    with_broker(scenario)


def test_a_batch_of_a_transaction_among_others_opens_it_where_it_may(with_broker: WithBroker) -> None:
    def batches() -> list[bytearray]:
        fields = {"producer_id": 1, "producer_epoch": 0}
        first = records(b"a", base_sequence=0, is_transactional=True, **fields)
        return [records(b"x"), first, records(b"y"), records(b"b", base_sequence=1, is_transactional=True, **fields)]

    async def scenario(broker: LogBroker) -> None:
        log = broker.log()
        outcomes = appended_together(log, batches(), 0)
        refused = [each.code for each in outcomes if isinstance(each, AppendError)]
        assert refused == [ErrorCode.INVALID_TXN_STATE] * 2
        assert (log.append_end_offset, log.producers.first_unstable_offset) == (2, None)
        with verified(log.producers, 1):
            outcomes = appended_together(log, batches(), 0)
        assert [each.first_offset for each in outcomes if isinstance(each, AppendResult)] == [2, 3, 4, 5]
        assert log.producers.first_unstable_offset == 3

    with_broker(scenario)


def test_the_time_of_the_append_is_one_for_all(with_broker: WithBroker) -> None:
    async def scenario(broker: LogBroker) -> None:
        log = broker.log()
        outcomes = appended_together(log, [records(b"a"), records(b"b", b"c")], 0)
        first, second = (outcome for outcome in outcomes if isinstance(outcome, AppendResult))
        assert (first.first_offset, second.first_offset, second.last_offset) == (0, 1, 2)
        assert first.log_append_time_ms == second.log_append_time_ms == first.max_timestamp_ms > NOW_MS
        await broker.written(log)
        assert {each.timestamp_ms for each in await broker.records(log)} == {first.log_append_time_ms}

    with_broker(scenario, config=LogConfig(message_timestamp_type="LogAppendTime"))


def test_a_producer_that_knows_the_time_of_the_append_gets_its_mark_too(with_broker: WithBroker) -> None:
    async def scenario(broker: LogBroker) -> None:
        log = broker.log()
        began_ms = int(time.time() * 1000)
        log.append_all_as_leader([records(b"x", timestamp_ms=began_ms + number) for number in range(1000)], 0)
        await broker.written(log)
        batches = await broker.batches(log)
        assert batches
        for batch in map(RecordBatch, batches):
            assert batch.header.timestamp_type is TimestampType.LOG_APPEND_TIME
            batch.verify()

    with_broker(scenario, config=LogConfig(message_timestamp_type="LogAppendTime"))


def test_nothing_is_appended_behind_a_write_that_failed(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: LogBroker) -> None:
        log = broker.log()
        batches = [
            records(b"v", producer_id=number, producer_epoch=0, base_sequence=sequence)
            for number, sequence in ((1, 0), (2, 0), (1, 9), (2, 1), (3, 0))  # the third begins another write
        ]
        with monkeypatch.context() as patch:

            def fail(*_: object, **__: object) -> None:
                patch.undo()
                raise OSError(errno.EIO, "a broken disk")

            patch.setattr(Segment, "append_batches", fail)
            outcomes = appended_together(log, batches, 0)
        assert [each.code for each in outcomes if isinstance(each, AppendError)] == [ErrorCode.KAFKA_STORAGE_ERROR] * 5
        assert (log.log_end_offset, len(log.producers)) == (0, 0)

    with_broker(scenario, is_clean=False)


def test_nothing_is_appended_to_a_log_that_is_closed(with_broker: WithBroker) -> None:
    async def scenario(broker: LogBroker) -> None:
        log = broker.log()
        await log.close()
        with pytest.raises(AppendError) as caught:
            log.append_all_as_leader([records(b"a"), records(b"b")], 0)
        assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    with_broker(scenario, is_clean=False)
