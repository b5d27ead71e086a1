"""Batches that are appended by columns, held against the same ones that are looked at one after another."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.log.partition.appending import AppendError, AppendResult
from barnabas.log.partition.log_config import LogConfig
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.segments.segment import Segment
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.topics import TopicPartition
from tests.unit.log.log_broker import LogBroker, records

WithBroker = Callable[..., Any]
NOW_MS = 1_700_000_000_000


class Tick:
    """What comes in one tick: mostly records of one size, sometimes with something else between."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._sequence = 0

    def batches(self) -> list[bytearray]:
        chance = self._chance
        size = chance.choice((0, 5, 100, 300))
        found = [self._usual(size) for _ in range(chance.randint(1, 80))]
        for _ in range(chance.choice((0, 0, 0, 1, 3))):
            found.insert(chance.randint(0, len(found)), self._other(size))
        return found

    def _usual(self, size: int) -> bytearray:
        chance = self._chance
        return records(chance.randbytes(size), timestamp_ms=NOW_MS + chance.randint(-1000, 1000))

    def _other(self, size: int) -> bytearray:
        chance = self._chance
        value = chance.randbytes(size)
        match chance.randrange(5):
            case 0:
                data = self._usual(size)
                data[chance.randrange(17, len(data))] ^= 1 << chance.randrange(8)
                return data
            case 1:
                self._sequence += 1
                return records(
                    value, timestamp_ms=NOW_MS, producer_id=3, producer_epoch=0, base_sequence=self._sequence - 1
                )
            case 2:
                return records(value, timestamp_ms=NOW_MS, compression=Compression(CompressionType.GZIP))
            case 3:
                return records(value, value, timestamp_ms=NOW_MS)
            case _:
                return records(value, timestamp_ms=chance.choice((-1, 0, NOW_MS * 2)))


def append_as_handlers_do(log: PartitionLog, batches: list[bytearray]) -> list[AppendResult | AppendError]:
    uniform = log.append_uniform_as_leader(batches, 4, produce_version=9)
    if uniform is None:
        return log.append_all_as_leader(batches, 4, produce_version=9)
    outcomes = uniform.each()
    assert uniform.record_count == len(outcomes)
    assert uniform.size_bytes == sum(outcome.size_bytes for outcome in outcomes)
    return [*outcomes]


def shown(outcome: AppendResult | AppendError) -> Any:
    return outcome.code if isinstance(outcome, AppendError) else outcome


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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "config",
    [
        LogConfig(index_interval_bytes=700, message_timestamp_after_max_ms=10_000),
        LogConfig(segment_bytes=6000, index_interval_bytes=100),
        LogConfig(compression_type="gzip"),
        LogConfig(cleanup_policy=("compact",)),
    ],
    ids=["usual", "rolls", "recompressed", "compacted"],
)
def test_appending_by_columns_is_appending_together(with_broker: WithBroker, config: LogConfig, seed: int) -> None:
    chance = random.Random(seed)

    async def scenario(broker: LogBroker) -> None:
        together, by_columns = (broker.log(TopicPartition(name, 0)) for name in ("together", "by-columns"))
        ticks = Tick(chance)
        for _ in range(20):
            batches = ticks.batches()
            expected = together.append_all_as_leader([bytearray(data) for data in batches], 4, produce_version=9)
            found = append_as_handlers_do(by_columns, batches)
            assert [shown(outcome) for outcome in found] == [shown(outcome) for outcome in expected]
            assert by_columns.log_end_offset == together.log_end_offset
        assert list(by_columns.producers) == list(together.producers)
        await broker.written(by_columns)
        await broker.written(together)
        assert by_columns.leader_epochs.entries == together.leader_epochs.entries
        assert [facts(segment) for segment in by_columns.segments] == [facts(segment) for segment in together.segments]

    with_broker(scenario, config=config)


def test_batches_that_are_uniform_are_in_the_file_at_once(with_broker: WithBroker) -> None:
    async def scenario(broker: LogBroker) -> None:
        log = broker.log()
        log.append_as_leader(records(b"pending"), 0)
        segment = log.segments.active
        assert segment.pending_bytes
        uniform = log.append_uniform_as_leader([records(b"%d" % number) for number in range(9)], 0)
        assert uniform is not None
        assert segment.pending_bytes == 0
        assert (uniform.first_offset, uniform.record_count, log.log_end_offset) == (1, 9, 10)
        values = [record.value for record in await broker.records(log)]
        assert values == [b"pending", *(b"%d" % number for number in range(9))]

    with_broker(scenario)


def test_what_is_not_uniform_changes_nothing(with_broker: WithBroker) -> None:
    async def scenario(broker: LogBroker) -> None:
        log = broker.log()
        log.append_as_leader(records(b"first"), 0)
        before = facts(log.segments.active)
        broken = records(b"second")
        broken[-1] ^= 1
        assert log.append_uniform_as_leader([*(records(b"other%d" % number) for number in range(9)), broken], 0) is None
        assert log.append_uniform_as_leader([records(b"x") for _ in range(9)] + [broken], 0) is None
        assert (log.log_end_offset, facts(log.segments.active)) == (1, before)

    with_broker(scenario)


def test_a_disk_that_fails_is_told_and_leaves_the_log_as_it_was(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: LogBroker) -> None:
        log = broker.log()
        batches = [records(b"%d" % number) for number in range(9)]
        assert log.append_uniform_as_leader(batches, 0) is not None
        segment = log.segments.active

        def fail(*_: Any) -> int:
            raise OSError(errno.ENOSPC, "no space left")

        size_bytes = segment.size_bytes
        monkeypatch.setattr(segment, "_write", fail)
        with pytest.raises(AppendError) as caught:
            log.append_uniform_as_leader(batches, 0)
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (log.log_end_offset, segment.size_bytes, segment.next_offset) == (9, size_bytes, 9)
        with pytest.raises(AppendError, match="offline"):
            log.append_uniform_as_leader(batches, 0)

    with_broker(scenario, is_clean=False)
