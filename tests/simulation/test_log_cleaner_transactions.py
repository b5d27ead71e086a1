"""Compaction of transactions while the power may fail at any operation of the disk: readers of committed records get
the last committed value of each key and nothing that was aborted, and producers are known by their last batch."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from barnabas.kernel.host import Host
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.testing.simulated_host import Main
from barnabas.testing.simulation import simulation_seeds
from barnabas.wire.batch_formats import read_records
from barnabas.wire.control_records import (
    ControlRecordType,
    EndTransactionMarker,
    end_transaction_batch,
    read_control_record_type,
)
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.record_validation import AppendOrigin
from barnabas.wire.records import Record, walk_batches
from tests.simulation.power_cuts import run_with_power_cut
from tests.simulation.test_log_cleaner_power import CONFIG, DIRECTORY, SETTINGS, STEPS, cleaner_of, values
from tests.unit.log.log_broker import LogBroker, log_broker
from tests.unit.log.verified import verified

PRODUCERS = (1, 2)
NOBODY = -1


@dataclass(slots=True)
class Batch:
    """What was appended, and how the transaction that it is of has ended."""

    records: list[Record]
    producer_id: int
    last_sequence: int
    marker_offset: int | None = None
    is_committed: bool = False

    @property
    def end_offset(self) -> int:
        return self.records[-1].offset + 1

    def is_open(self, end: int) -> bool:
        """Of a log that ends there."""
        return self.producer_id != NOBODY and (self.marker_offset is None or self.marker_offset >= end)


@dataclass(slots=True)
class Promised:
    """What was written, and how much of it must be there."""

    batches: list[Batch] = field(default_factory=list)
    synced: int = 0
    cleaned: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    is_done: bool = False

    def stable(self, end: int) -> int:
        """Where the first transaction begins that is open in a log that ends there."""
        return min((each.records[0].offset for each in self.batches if each.is_open(end)), default=end)

    def committed(self, end: int) -> list[Record]:
        """What a reader of committed records may see of it."""
        seen = [each for each in self.batches if each.producer_id == NOBODY or each.is_committed]
        return [record for each in seen for record in each.records if record.offset < self.stable(end)]

    def cut_off(self, end: int) -> None:
        self.batches = [each for each in self.batches if each.end_offset <= end]
        for each in self.batches:
            if each.marker_offset is not None and each.marker_offset >= end:
                each.marker_offset, each.is_committed = None, False


def given(data: bytes, aborted: Sequence[AbortedTransaction], offset: int) -> Iterator[Record]:
    """What a client makes of one answer to Fetch, as Java's does."""
    coming = [(entry.first_offset, entry.producer_id) for entry in aborted]
    heapq.heapify(coming)
    skipped: set[int] = set()
    for span in walk_batches(data).spans:
        batch = RecordBatch(data, span.position)
        while coming and coming[0][0] <= batch.last_offset:
            skipped.add(heapq.heappop(coming)[1])
        if batch.is_control:
            marker = next(iter(batch.records()), None)  # none where the cleaner has taken it out
            if marker is not None and read_control_record_type(marker.key) is ControlRecordType.ABORT:
                skipped.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in skipped):
            yield from (record for record in batch.records() if record.offset >= offset)


async def read_committed(broker: LogBroker, bytes_max: int) -> list[Record]:
    log, at = broker.log(), broker.log().log_start_offset
    found: list[Record] = []
    while (read := log.read(at, bytes_max, ReadIsolation.COMMITTED, has_minimum=True)).plan is not None:
        data = bytes(await broker.manager.reader.read(read.plan))
        if not read.plan.is_readable and not data:
            continue
        found += given(data, read.aborted or [], at)
        at = RecordBatch(data, walk_batches(data).spans[-1].position).last_offset + 1
    return found


async def check(broker: LogBroker, promised: Promised, choose: random.Random) -> None:
    """Invariants: what is committed is the last value of each key, from wherever in whatever pieces; nothing is stable
    of a transaction that is open; and whoever has written is known by his last sequence."""
    log = broker.log()
    end = log.log_end_offset
    found = await read_committed(broker, choose.choice((1, 500, 1 << 20)))
    assert values(found) == values(promised.committed(end))
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    assert log.last_stable_offset == promised.stable(end)
    last = {each.producer_id: each.last_sequence for each in promised.batches if each.producer_id != NOBODY}
    assert {each.producer_id: each.last_sequence for each in log.producers} == last


def append(log: PartitionLog, promised: Promised, choose: random.Random, step: int, now_ms: int) -> None:
    producer_id = choose.choice((NOBODY, *PRODUCERS))
    sequence = 1 + max((each.last_sequence for each in promised.batches if each.producer_id == producer_id), default=-1)
    builder = RecordBatchBuilder()
    if producer_id != NOBODY:
        builder = RecordBatchBuilder(
            producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True
        )
    for _ in range(choose.randrange(1, 6)):
        key, value = b"%d" % choose.randrange(12), b"%d" % step * choose.randrange(1, 40)
        builder.append(now_ms, key, None if choose.random() < 0.3 else value)
    first, data = log.log_end_offset, builder.build()
    records = [record._replace(offset=first + number) for number, record in enumerate(read_records(bytes(data)))]
    promised.batches.append(Batch(records, producer_id, sequence + len(records) - 1))
    with verified(log.producers, producer_id):
        log.append_as_leader(memoryview(data), 0)


def end_transaction(log: PartitionLog, promised: Promised, choose: random.Random, now_ms: int) -> None:
    producer_id = choose.choice(PRODUCERS)
    kind = choose.choice((ControlRecordType.ABORT, ControlRecordType.COMMIT))
    end = log.log_end_offset
    marker = end_transaction_batch(
        EndTransactionMarker(kind, 0), timestamp_ms=now_ms, producer_id=producer_id, producer_epoch=0
    )
    for each in promised.batches:
        if each.producer_id == producer_id and each.marker_offset is None:
            each.marker_offset, each.is_committed = end, kind is ControlRecordType.COMMIT
            promised.happened[kind.name] += 1
    if any(each.producer_id == producer_id for each in promised.batches):
        log.append_as_leader(memoryview(marker), 0, origin=AppendOrigin.COORDINATOR)


def writer(promised: Promised, seed: int) -> Main:
    async def main(host: Host) -> None:
        choose = random.Random(seed)
        async with log_broker(host, DIRECTORY, config=CONFIG, settings=SETTINGS, is_clean=False) as broker:
            log, cleaner = broker.log(), cleaner_of(broker)
            for step in range(STEPS):
                now_ms = host.clock.time_ms()  # a producer that was silent for a day is forgotten
                append(log, promised, choose, step, now_ms)
                if choose.random() < 0.6:
                    end_transaction(log, promised, choose, now_ms)
                await broker.written(log)
                if choose.random() < 0.4:
                    await log.flush()
                    promised.synced = log.recovery_point
                    log.update_high_watermark(log.log_end_offset)
                if choose.random() < 0.3:
                    log.update_high_watermark(log.log_end_offset)
                    segments = log.segment_count
                    await broker.manager.checkpoint_recovery_points()
                    promised.cleaned += await cleaner.clean_filthiest() and log.segment_count <= segments
                    await check(broker, promised, choose)
            promised.is_done = True
            await host.loop.create_future()

    return main


def recovered(promised: Promised, seed: int) -> Main:
    async def main(host: Host) -> None:
        choose = random.Random(seed)
        async with log_broker(host, DIRECTORY, config=CONFIG, settings=SETTINGS, is_clean=False) as broker:
            log = broker.log()
            end = log.log_end_offset
            assert end >= promised.synced
            promised.cut_off(end)
            await log.flush()
            log.update_high_watermark(end)
            await check(broker, promised, choose)
            for _ in range(3):
                await cleaner_of(broker).clean_filthiest()
                await check(broker, promised, choose)
            promised.synced = end

    return main


def cut(seed: int, cut_at: int | None) -> tuple[int, Promised]:
    promised = Promised()
    writing = writer(promised, seed)
    operations = run_with_power_cut(
        seed, cut_at, writing, lambda: promised.is_done, lambda life: recovered(promised, seed + life)
    )
    return operations, promised


@pytest.mark.parametrize("seed", simulation_seeds(4))
def test_readers_get_the_last_committed_value_whenever_the_power_fails(seed: int) -> None:
    operations, promised = cut(seed, None)
    assert promised.cleaned > 2, "nothing was compacted: the test does not test"
    assert promised.happened["ABORT"] > 3
    assert promised.happened["COMMIT"] > 3
    for cut_at in random.Random(seed).sample(range(1, operations + 1), 20):
        cut(seed, cut_at)
