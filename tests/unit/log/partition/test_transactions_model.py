"""Two replicas of a log with transactions, held against plain lists: what a reader of committed data gets, from
wherever and in whatever pieces, is what was committed below the last stable offset (KIP-98).
"""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from barnabas.kernel.real_host import RealClock, real_host
from barnabas.log.partition.appending import AppendError, AppendResult
from barnabas.log.partition.log_config import LogConfig
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.wire.control_records import (
    ControlRecordType,
    EndTransactionMarker,
    end_transaction_batch,
    read_end_transaction_marker,
)
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_validation import AppendOrigin
from barnabas.wire.records import walk_batches
from barnabas.wire.topics import TopicPartition
from tests.unit.log.log_broker import LogBroker, log_broker, records
from tests.unit.log.verified import verified

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=150, file_delete_delay_ms=0)
RETAINED_BYTES = 1200
START_MS = RealClock().time_ms()
LEADER, FOLLOWER = TopicPartition("flights", 0), TopicPartition("flights", 1)
NOBODY = -1
PRODUCERS = st.integers(0, 2)
SEEDS = (0, 1, 2, 3)
EVENTS = (
    "abort", "commit", "abort with another epoch", "truncated marker", "truncated transaction", "deletion", "retention",
    "stop", "crash", "lost snapshots", "open at a restart", "aborted across segments", "read of aborted data",
    "unstable: open", "unstable: marker not committed",
)  # fmt: skip
"""What must have come to pass, in one example at least, for the test to say anything of it."""

replicas = st.sampled_from([LEADER, LEADER, FOLLOWER])
WEIGHTED: list[tuple[int, tuple[st.SearchStrategy[object], ...]]] = [
    (8, (st.just("data"), PRODUCERS, st.integers(1, 3))),
    (2, (st.just("data"), st.just(NOBODY), st.integers(1, 2))),
    (2, (st.just("end"), PRODUCERS, st.just(ControlRecordType.COMMIT), st.just(0))),
    (2, (st.just("end"), PRODUCERS, st.just(ControlRecordType.ABORT), st.integers(0, 1))),
    (3, (st.just("copy"), st.integers(1, 6))),
    (5, (st.just("advance"), replicas, st.integers(0, 12))),
    (1, (st.just("truncate"), replicas, st.integers(1, 12))),
    (1, (st.just("delete"), replicas, st.integers(0, 6))),
    (1, (st.just("retain"), replicas)),
    (1, (st.just("flush"), replicas)),
    (1, (st.just("stop"),)),
    (1, (st.just("crash"),)),
    (1, (st.just("lost snapshots"),)),
]
RESTARTS = ("stop", "crash", "lost snapshots")
steps = st.lists(
    st.sampled_from([kind for kind, (weight, _) in enumerate(WEIGHTED) for _ in range(weight)]).flatmap(
        lambda kind: st.tuples(*WEIGHTED[kind][1])
    ),
    min_size=20,
    max_size=60,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A batch of the model."""

    base_offset: int
    values: tuple[bytes, ...]
    """Of a marker: none."""
    data: bytes
    producer_id: int
    epoch: int
    marker: ControlRecordType | None = None

    @property
    def end_offset(self) -> int:
        return self.base_offset + (len(self.values) or 1)


@dataclass(slots=True)
class Transaction:
    """What a producer has written between two markers."""

    entries: list[Entry]
    marker: Entry | None = None

    @property
    def first_offset(self) -> int:
        return self.entries[0].base_offset


@dataclass(slots=True)
class Model:
    """What one replica must hold."""

    entries: list[Entry] = field(default_factory=list)
    """With those that retention has deleted."""
    start_offset: int = 0
    base_offset: int = 0
    """Of the first segment."""
    loaded_end: int = 0
    """Where the log ended when its producers were last read from disk: of transactions that had ended there it is not
    known any more whether their markers are committed, and nobody needs to know it.
    """

    @property
    def end_offset(self) -> int:
        return self.entries[-1].end_offset if self.entries else 0

    def transactions(self) -> list[Transaction]:
        found: list[Transaction] = []
        under_way: dict[int, Transaction] = {}
        for entry in self.entries:
            producer_id = entry.producer_id
            if entry.marker is not None:
                ended = under_way.pop(producer_id, None)
                if ended is not None:
                    ended.marker = entry
            elif producer_id in under_way:
                under_way[producer_id].entries.append(entry)
            elif producer_id != NOBODY:
                under_way[producer_id] = Transaction([entry])
                found.append(under_way[producer_id])
        return found

    def stable_offsets(self, high_watermark: int) -> tuple[int, int]:
        """The least and the greatest last stable offset that there may be.

        Invariant: nothing of a transaction is stable that is open, or whose end may still be cut off.
        """
        least = greatest = high_watermark
        for transaction in self.transactions():
            marker = transaction.marker
            if marker is not None and marker.base_offset < high_watermark:
                continue
            least = min(least, transaction.first_offset)
            # A log that reads its producers from disk again looks at nothing that was deleted.
            left = [entry for entry in transaction.entries if entry.end_offset > self.start_offset]
            if left and (marker is None or marker.base_offset >= self.loaded_end):
                greatest = min(greatest, left[0].base_offset)
        return max(least, self.start_offset), max(greatest, self.start_offset)

    def committed(self, start: int, end: int) -> list[bytes]:
        """The values that a reader of committed data gets."""
        aborted = {
            entry.base_offset
            for transaction in self.transactions()
            if transaction.marker is not None and transaction.marker.marker is ControlRecordType.ABORT
            for entry in transaction.entries
        }
        return [
            value
            for entry in self.entries
            if entry.base_offset not in aborted
            for offset, value in enumerate(entry.values, entry.base_offset)
            if start <= offset < end
        ]

    def truncate(self, offset: int) -> list[Entry]:
        """Returns what is gone."""
        gone = [entry for entry in self.entries if entry.end_offset > offset]
        self.entries = self.entries[: len(self.entries) - len(gone)]
        self.start_offset = min(self.start_offset, self.end_offset)
        self.loaded_end = self.end_offset
        return gone

    def producer(self, producer_id: int) -> tuple[int, int]:
        """Its epoch and its next sequence."""
        epoch = sequence = 0
        for entry in self.entries:
            if entry.producer_id == producer_id:
                sequence = (sequence if entry.epoch == epoch else 0) + len(entry.values)
                epoch = entry.epoch
        return epoch, sequence


def consume(data: bytes, aborted: Sequence[AbortedTransaction], offset: int) -> Iterator[bytes]:
    """What a client makes of one answer to Fetch, as Java's does."""
    coming = [(entry.first_offset, entry.producer_id) for entry in aborted]
    heapq.heapify(coming)
    skipped: set[int] = set()
    for span in walk_batches(data).spans:
        batch = RecordBatch(data, span.position)
        while coming and coming[0][0] <= batch.last_offset:
            skipped.add(heapq.heappop(coming)[1])
        producer_id = batch.header.producer_id
        if batch.is_control:
            if read_end_transaction_marker(next(batch.records())).type is ControlRecordType.ABORT:
                skipped.discard(producer_id)
        elif not (batch.is_transactional and producer_id in skipped):
            yield from (record.value for record in batch.records() if record.offset >= offset and record.value)


class Run:
    """One sequence of steps. `happened` counts what came to pass."""

    def __init__(self, happened: Counter[str], sizes: Sequence[int]) -> None:
        self.models = {LEADER: Model(), FOLLOWER: Model()}
        self.happened = happened
        self.sizes = sizes

    def data(self, log: PartitionLog, producer_id: int, count: int) -> None:
        model = self.models[LEADER]
        values = tuple(b"%40d" % (model.end_offset + number) for number in range(count))
        epoch, sequence = model.producer(producer_id)
        if sequence and self.knows_marker_only(log, producer_id, epoch):
            # As in Kafka. It has aborted, and goes on with another epoch.
            with pytest.raises(AppendError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
                self.append(log, values, producer_id, epoch, sequence)
            self.happened["marker only"] += 1
            epoch, sequence = epoch + 1, 0
        result, data = self.append(log, values, producer_id, epoch, sequence)
        assert (result.first_offset, result.is_duplicate) == (model.end_offset, False)
        model.entries.append(Entry(result.first_offset, values, bytes(data), producer_id, epoch))

    def knows_marker_only(self, log: PartitionLog, producer_id: int, epoch: int) -> bool:
        """Of a producer whose records were deleted, while the end of its transaction was not, a log that has lost its
        snapshots learns the epoch, and no sequence."""
        known = log.producers.get(producer_id)
        if known is None or known.epoch != epoch or known.batches:
            return False
        model = self.models[LEADER]
        mine = [entry for entry in model.entries if (entry.producer_id, entry.epoch) == (producer_id, epoch)]
        assert all(entry.end_offset <= model.start_offset for entry in mine if entry.marker is None)
        return True

    def append(
        self, log: PartitionLog, values: Sequence[bytes], producer_id: int, epoch: int, sequence: int
    ) -> tuple[AppendResult, bytearray]:
        fields: dict[str, object] = {}
        if producer_id != NOBODY:
            fields = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
            fields["is_transactional"] = True
        data = records(*values, timestamp_ms=START_MS + log.append_end_offset, **fields)
        with verified(log.producers, producer_id, epoch):
            return log.append_as_leader(data, 0), data

    def end(self, log: PartitionLog, producer_id: int, kind: ControlRecordType, more_epochs: int) -> None:
        model = self.models[LEADER]
        epoch = model.producer(producer_id)[0] + more_epochs
        transaction = next((t for t in model.transactions() if t.marker is None and self.is_of(t, producer_id)), None)
        data = end_transaction_batch(
            EndTransactionMarker(kind, 0), timestamp_ms=START_MS, producer_id=producer_id, producer_epoch=epoch
        )
        result = log.append_as_leader(data, 0, origin=AppendOrigin.COORDINATOR)
        assert result.first_offset == model.end_offset
        model.entries.append(Entry(result.first_offset, (), bytes(data), producer_id, epoch, kind))
        if transaction is not None:
            self.happened[kind.name.lower()] += 1
            self.happened["abort with another epoch"] += more_epochs
            is_abort = kind is ControlRecordType.ABORT
            bases = [segment.base_offset for segment in log.segments]
            self.happened["aborted across segments"] += is_abort and any(
                transaction.first_offset < base <= result.first_offset for base in bases
            )

    @staticmethod
    def is_of(transaction: Transaction, producer_id: int) -> bool:
        return transaction.entries[0].producer_id == producer_id

    def copy(self, log: PartitionLog, count: int) -> None:
        mine = self.models[FOLLOWER]
        fetched = [entry for entry in self.models[LEADER].entries if entry.base_offset >= mine.end_offset][:count]
        if not fetched:
            return
        assert log.append_as_follower(memoryview(bytearray(b"".join(entry.data for entry in fetched)))) is not None
        mine.entries += fetched

    async def take(self, broker: LogBroker, step: tuple[object, ...]) -> None:
        match step:
            case ("data", int(producer_id), int(count)):
                self.data(broker.log(LEADER), producer_id, count)
            case ("end", int(producer_id), ControlRecordType() as kind, int(more_epochs)):
                self.end(broker.log(LEADER), producer_id, kind, more_epochs)
            case ("copy", int(count)):
                self.copy(broker.log(FOLLOWER), count)
            case ("advance", TopicPartition() as replica, int(distance)):
                log = broker.log(replica)
                # Where followers stand: at ends of batches.
                ends = [entry.end_offset for entry in self.models[replica].entries]
                most = log.high_watermark + distance
                log.increase_high_watermark(max((end for end in ends if end <= most), default=0))
            case ("truncate", TopicPartition() as replica, int(distance)):
                offset = max(self.models[replica].base_offset, broker.log(replica).log_end_offset - distance)
                await self.truncate(broker, replica, offset)
                if replica is LEADER and self.models[FOLLOWER].end_offset > self.models[LEADER].end_offset:
                    await self.truncate(broker, FOLLOWER, self.models[LEADER].end_offset)
            case ("delete", TopicPartition() as replica, int(distance)):
                self.delete(broker.log(replica), self.models[replica], distance)
            case ("retain", TopicPartition() as replica):
                await self.retain(broker, broker.log(replica), self.models[replica])
            case ("flush", TopicPartition() as replica):
                await broker.log(replica).flush()

    async def truncate(self, broker: LogBroker, replica: TopicPartition, offset: int) -> None:
        model, log = self.models[replica], broker.log(replica)
        if not await log.truncate_to(offset):
            return
        before = {transaction.first_offset: transaction.marker for transaction in model.transactions()}
        gone = model.truncate(offset)
        after = {transaction.first_offset: transaction.marker for transaction in model.transactions()}
        self.happened["truncated transaction"] += len(after) < len(before)
        self.happened["truncated marker"] += any(before[first] is not marker for first, marker in after.items())
        assert log.log_end_offset == model.end_offset, gone

    def delete(self, log: PartitionLog, model: Model, distance: int) -> None:
        offset = min(log.high_watermark, model.start_offset + distance)
        if offset > model.start_offset:
            assert log.delete_records_to(offset) == offset
            model.start_offset = offset
            self.happened["deletion"] += 1

    async def retain(self, broker: LogBroker, log: PartitionLog, model: Model) -> None:
        log.reconfigure(dataclasses.replace(CONFIG, retention_bytes=RETAINED_BYTES))
        await broker.manager.delete_old_segments()
        log.reconfigure(CONFIG)
        base_offset = log.segments.first.base_offset
        assert base_offset <= max(log.high_watermark, model.base_offset)
        self.happened["retention"] += base_offset > model.base_offset
        self.settle(broker)

    def settle(self, broker: LogBroker) -> None:
        """Retention may delete of any log what lies below its start."""
        for replica, model in self.models.items():
            log = broker.log(replica)
            model.base_offset = log.segments.first.base_offset
            model.start_offset = max(model.start_offset, model.base_offset)

    async def check(self, broker: LogBroker) -> None:
        for replica, model in self.models.items():
            log = broker.log(replica)
            await broker.written(log)
            assert (log.log_start_offset, log.log_end_offset) == (model.start_offset, model.end_offset)
            least, greatest = model.stable_offsets(log.high_watermark)
            assert least <= log.last_stable_offset <= greatest
            self.note(model, log.high_watermark)
            for number, size in enumerate(self.sizes):
                span = log.last_stable_offset - log.log_start_offset
                await self.read(broker, log, model, log.log_start_offset + span * number // len(self.sizes), size)

    def note(self, model: Model, high_watermark: int) -> None:
        for transaction in model.transactions():
            if transaction.first_offset < high_watermark:
                marker = transaction.marker
                self.happened["unstable: open"] += marker is None
                self.happened["unstable: marker not committed"] += (
                    marker is not None and marker.base_offset >= high_watermark
                )

    async def read(self, broker: LogBroker, log: PartitionLog, model: Model, offset: int, size: int) -> None:
        """As a consumer from `offset` on that takes `size` bytes at a time."""
        start, end = offset, log.last_stable_offset
        got: list[bytes] = []
        while True:
            found = log.read(offset, size, ReadIsolation.COMMITTED, has_minimum=True)
            if found.plan is None:
                assert offset >= end
                break
            data = bytes(await broker.manager.reader.read(found.plan))
            assert found.aborted is not None
            self.happened["read of aborted data"] += bool(found.aborted)
            got += consume(data, found.aborted, offset)
            spans = walk_batches(data).spans
            following = RecordBatch(data, spans[-1].position).last_offset + 1
            assert offset < following <= end
            offset = following
        assert got == model.committed(start, end)

    def restarted(self, broker: LogBroker, end: str) -> None:
        for replica, model in self.models.items():
            model.loaded_end = model.end_offset
            log = broker.log(replica)
            self.happened["open at a restart"] += any(each.marker is None for each in model.transactions())
            log.update_high_watermark(model.start_offset)
        self.happened[end] += 1


async def follow(taken: list[tuple[object, ...]], sizes: Sequence[int], path: str, happened: Counter[str]) -> None:
    run = Run(happened, sizes)
    waiting = list(taken)
    end = ""
    is_over = False
    while not is_over:
        broker_steps: list[tuple[object, ...]] = []
        while waiting and waiting[0][0] not in RESTARTS:
            broker_steps.append(waiting.pop(0))
        is_over = not waiting
        before, end = end, "" if is_over else str(waiting.pop(0)[0])
        async with (
            real_host("broker-1", asyncio.get_running_loop()) as host,
            log_broker(host, path, config=CONFIG, is_clean=end in ("", "stop")) as broker,
        ):
            for replica in run.models:
                broker.log(replica)
            if before:
                run.restarted(broker, before)
            await run.check(broker)
            for step in broker_steps:
                await run.take(broker, step)
                await run.check(broker)
            for replica in run.models:
                await broker.written(broker.log(replica))
            if end in ("crash", "lost snapshots"):
                # A crash keeps what is written; the start of the log is as old as its checkpoint.
                await broker.manager.checkpoint_log_start_offsets()
        if end == "lost snapshots":
            for snapshot in Path(path).glob("*/*.snapshot"):
                snapshot.unlink()


def test_a_producer_of_which_only_the_marker_is_left_begins_a_new_epoch(tmp_path: Path) -> None:
    happened: Counter[str] = Counter()
    taken: list[tuple[object, ...]] = [
        *(("stop",), ("data", 0, 1), ("data", 2, 1), ("data", 0, 1), ("data", 0, 1), ("data", 0, 1), ("stop",)),
        *(("data", NOBODY, 1), ("end", 2, ControlRecordType.ABORT, 0), ("stop",)),
        *(("data", NOBODY, 1), ("data", NOBODY, 1), ("data", NOBODY, 1), ("data", 0, 1)),
        *(("advance", LEADER, 2), ("delete", LEADER, 2), ("lost snapshots",), ("data", 2, 1)),
    ]
    asyncio.run(follow(taken, [1, 1], str(tmp_path), happened))
    assert happened["marker only"]


def test_readers_of_committed_data_get_what_was_committed() -> None:
    happened: Counter[str] = Counter()

    def holds(taken: list[tuple[object, ...]], sizes: list[int]) -> None:
        with tempfile.TemporaryDirectory() as path:
            asyncio.run(follow(taken, sizes, path, happened))

    sizes = st.lists(st.sampled_from([1, 150, 300, 1000, 1 << 20]), min_size=2, max_size=2)
    # Where chance is turned off (Hypothesis does so under `CI=1`), rounds without a seed of their own are all the same.
    for number in (None, *SEEDS):
        one_round = settings(max_examples=25)(given(steps, sizes)(holds))
        (one_round if number is None else seed(number)(one_round))()
        if all(happened[event] for event in EVENTS):
            return
    assert [event for event in EVENTS if not happened[event]] == []
