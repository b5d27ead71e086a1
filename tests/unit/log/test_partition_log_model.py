"""A log held against a plain list of records, through appends, truncations, retention, crashes and restarts."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.kernel.real_host import RealClock, real_host
from barnabas.log.checkpoints import EpochEntry
from barnabas.log.leader_epochs import LeaderEpochCache
from barnabas.log.log_config import LogConfig
from barnabas.log.partition_log import PartitionLog
from barnabas.log.producer_state import ProducerState
from barnabas.log.read_plans import ReadIsolation
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.records import walk_batches
from tests.unit.log.log_broker import FLIGHTS, LogBroker, log_broker, records

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150, file_delete_delay_ms=0)
START_MS = RealClock().time_ms()
"""Of now, since a producer that has been silent for a day is forgotten."""

appends = st.tuples(st.just("append"), st.integers(1, 3), st.integers(-1, 2))
steps = st.lists(
    st.one_of(
        appends,
        appends,
        appends,
        st.tuples(st.just("fetch"), st.integers(1, 4)),
        st.tuples(st.just("truncate"), st.integers(0, 60)),
        st.tuples(st.just("start anew"), st.integers(0, 5)),
        st.tuples(st.just("commit"), st.integers(0, 60)),
        st.tuples(st.just("delete"), st.integers(0, 60)),
        st.tuples(st.just("retain")),
        st.tuples(st.just("epoch")),
        st.tuples(st.just("flush")),
        st.tuples(st.just("stop")),
        st.tuples(st.just("crash")),
    ),
    max_size=30,
)


@dataclass(slots=True)
class Entry:
    """A batch of the model."""

    base_offset: int
    count: int
    data: bytes
    epoch: int
    producer_id: int


@dataclass(slots=True)
class Model:
    """What the log must hold."""

    batches: list[Entry] = field(default_factory=list)
    start_offset: int = 0
    first_offset: int = 0
    """Where the log goes on when it is empty."""
    epoch: int = 0
    sequences: dict[int, int] = field(default_factory=dict)

    @property
    def end_offset(self) -> int:
        return self.batches[-1].base_offset + self.batches[-1].count if self.batches else self.first_offset

    def truncate(self, offset: int) -> None:
        while self.batches and self.batches[-1].base_offset + self.batches[-1].count > offset:
            self.first_offset = self.batches.pop().base_offset
        self.start_offset = min(self.start_offset, self.end_offset)

    def producers(self) -> ProducerState:
        """From scratch, out of everything that there is."""
        state = ProducerState()
        for entry in self.batches:
            state.replay(RecordBatch(entry.data).header, None)
        return state

    def next_sequence(self, producer_id: int) -> int:
        last = 0
        for entry in self.batches:
            if entry.producer_id == producer_id:
                last = RecordBatch(entry.data).header.last_sequence + 1
        return last


class Run:
    """One sequence of steps."""

    def __init__(self) -> None:
        self.model = Model()

    def append(self, log: PartitionLog, count: int, producer_id: int) -> None:
        model = self.model
        values = [b"%d" % (model.end_offset + number) for number in range(count)]
        fields = {}
        if producer_id >= 0:
            sequence = model.next_sequence(producer_id)
            fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
        data = records(*values, timestamp_ms=START_MS + model.end_offset, **fields)
        result = log.append_as_leader(data, model.epoch)
        assert (result.first_offset, result.is_duplicate) == (model.end_offset, False)
        again = log.append_as_leader(self.as_sent(bytes(data)), model.epoch) if producer_id >= 0 else result
        assert again[:2] == result[:2]
        model.batches.append(Entry(result.first_offset, count, bytes(data), model.epoch, producer_id))

    @staticmethod
    def as_sent(data: bytes) -> bytearray:
        return bytearray(8) + bytearray(data[8:])

    def fetch(self, log: PartitionLog, count: int) -> None:
        """As a follower: several batches of a leader at once, the last one torn."""
        model = self.model
        fetched = bytearray()
        for number in range(count):
            data = records(b"fetched", timestamp_ms=START_MS + model.end_offset)
            batch = RecordBatch(data)
            data[0:8] = model.end_offset.to_bytes(8, "big")
            data[12:16] = model.epoch.to_bytes(4, "big")
            assert batch.header.base_offset == 0
            fetched += data
            model.batches.append(Entry(model.end_offset, 1, bytes(data), model.epoch, -1))
            assert number < count
        result = log.append_as_follower(memoryview(fetched + fetched[:40]))
        assert result is not None
        assert (result.first_offset, result.last_offset) == (model.end_offset - count, model.end_offset - 1)

    async def take(self, broker: LogBroker, log: PartitionLog, step: tuple[object, ...]) -> None:
        model = self.model
        match step:
            case ("append", int(count), int(producer_id)):
                self.append(log, count, producer_id)
            case ("fetch", int(count)):
                self.fetch(log, count)
            case ("truncate", int(offset)):
                was_cut = await log.truncate_to(offset)
                assert was_cut == (offset < model.end_offset)
                if was_cut and log.segments.first.base_offset == offset == log.log_end_offset and not log.size_bytes:
                    model.batches, model.first_offset, model.start_offset = [], offset, offset
                else:
                    model.truncate(offset)
            case ("start anew", int(more)):
                offset = model.end_offset + more
                await log.truncate_fully_and_start_at(offset)
                model.batches, model.first_offset, model.start_offset = [], offset, offset
            case ("commit", int(offset)):
                log.update_high_watermark(offset)
            case ("delete", int(offset)):
                if model.start_offset <= offset <= log.high_watermark:
                    assert log.delete_records_to(offset) == offset
                    model.start_offset = offset
            case ("retain",):
                log.reconfigure(dataclasses.replace(CONFIG, retention_bytes=1500))
                await broker.manager.delete_old_segments()
                log.reconfigure(CONFIG)
                first = log.segments.first.base_offset
                model.batches = [entry for entry in model.batches if entry.base_offset >= first]
                assert log.log_start_offset >= model.start_offset
                model.start_offset = log.log_start_offset
            case ("epoch",):
                model.epoch += 1
            case ("flush",):
                await log.flush()
                assert log.recovery_point == log.log_end_offset

    async def check(self, broker: LogBroker, log: PartitionLog) -> None:
        """Everything that the log says is what the model says."""
        model = self.model
        assert log.log_end_offset == model.end_offset
        assert log.log_start_offset == model.start_offset
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
        assert log.recovery_point <= log.log_end_offset
        stored = b"".join(await broker.batches(log, isolation=ReadIsolation.LOG_END))
        kept = [entry for entry in model.batches if entry.base_offset + entry.count > model.start_offset]
        assert stored == b"".join(entry.data for entry in kept)
        for entry in kept[::3]:
            found = await log.list_offset(START_MS + entry.base_offset)
            wanted = max(entry.base_offset, model.start_offset)
            assert found is not None
            assert found.offset == wanted
            assert found.leader_epoch == entry.epoch

    def check_state(self, log: PartitionLog) -> None:
        """Producers and epochs are what a replay from scratch gives, as far as the log still has it."""
        model = self.model
        scratch = model.producers()
        assert {entry.producer_id: entry.last_sequence for entry in scratch}.items() <= {
            entry.producer_id: entry.last_sequence for entry in log.producers
        }.items()
        epochs = LeaderEpochCache(EpochEntry(entry.epoch, entry.base_offset) for entry in model.batches[:1])
        for entry in model.batches:
            if entry.epoch > epochs.latest_epoch:
                epochs.assign(entry.epoch, entry.base_offset)
        epochs.truncate_from_start(model.start_offset)
        assert log.leader_epochs.entries == epochs.entries


async def follow(taken: list[tuple[object, ...]], path: str) -> None:
    run = Run()
    waiting = list(taken)
    async with real_host("broker-1", asyncio.get_running_loop()) as host:
        is_over = False
        while not is_over:
            broker_steps: list[tuple[object, ...]] = []
            while waiting and waiting[0][0] not in ("stop", "crash"):
                broker_steps.append(waiting.pop(0))
            is_over = not waiting
            is_clean = is_over or waiting.pop(0)[0] == "stop"
            async with log_broker(host, path, config=CONFIG, is_clean=is_clean) as broker:
                log = broker.log()
                assert log is broker.manager.logs[FLIGHTS]
                await run.check(broker, log)
                for step in broker_steps:
                    await run.take(broker, log, step)
                    await run.check(broker, log)
                    run.check_state(log)
                await broker.written(log)
                if not is_clean:
                    # A crash keeps what is written; the start of the log is as old as its checkpoint.
                    await broker.manager.checkpoint_log_start_offsets()


@given(steps)
@settings(max_examples=40)
def test_holds_what_a_list_holds(taken: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as path:
        asyncio.run(follow(taken, path))


def test_the_model_would_notice() -> None:
    """A batch that the log lost is missed by `check`."""

    async def main(path: str) -> None:
        run = Run()
        async with (
            real_host("broker-1", asyncio.get_running_loop()) as host,
            log_broker(host, path, config=CONFIG) as broker,
        ):
            log = broker.log()
            run.append(log, 2, 1)
            await run.check(broker, log)
            run.model.batches.append(Entry(2, 1, b"", 0, -1))
            try:
                await run.check(broker, log)
            except AssertionError:
                return
            raise RuntimeError("the check has not noticed")

    with tempfile.TemporaryDirectory() as path:
        asyncio.run(main(path))
    assert walk_batches(b"").spans == ()
