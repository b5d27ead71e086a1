"""A log is copied to another directory while everything happens to it: after the swap it is what it would have been."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from barnabas.follower.log_copier import LogCopier
from barnabas.kernel.host import Host
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.log.producers.producer_state import BatchMetadata
from barnabas.testing.simulation import Simulation, simulation_seeds
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.errors import KafkaError
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_validation import AppendOrigin
from barnabas.wire.records import walk_batches
from barnabas.wire.topics import TopicPartition
from tests.unit.log.log_broker import FLIGHTS, LogBroker, log_broker, records
from tests.unit.log.partition.test_transactions_model import consume
from tests.unit.log.verified import verified

DIRECTORIES = ("/data/one", "/data/two")
CONFIG = LogConfig(segment_bytes=1_500, retention_bytes=4_000, file_delete_delay_ms=1_000)
TWIN = TopicPartition("twin", 0)
"""What is done to the log that moves is done to this one too, which stays."""
STEPS = 120
TRANSACTIONAL = (3, 4)
UNLIMITED = float(2**63 - 1)
WRITES = pytest.mark.parametrize("writes", ["loop", "offload"])


def settings_of(writes: str) -> LogSettings:
    return LogSettings(directory_patience_ms=0, directory_writes=writes)


@asynccontextmanager
async def copier_of(
    broker: LogBroker, replaced: list[PartitionLog], bytes_per_second: float = UNLIMITED
) -> AsyncIterator[LogCopier]:
    copier = LogCopier(
        broker.manager,
        loop=broker.host.loop,
        timers=broker.timers,
        piece_bytes_max=600,
        backoff_ms=100,
        bytes_per_second=bytes_per_second,
        on_replaced=lambda _, log: replaced.append(log),
        logger=logging.getLogger("test"),
    )
    try:
        yield copier
    finally:
        assert not copier.is_dead
        await copier.close()


class Both:
    """The log that moves and its twin."""

    def __init__(self, broker: LogBroker, choose: random.Random) -> None:
        self.broker = broker
        self.choose = choose
        self.epoch = 0
        self.done: Counter[str] = Counter()
        self._generation = 0
        self._sequences: dict[int, int] = {}

    @property
    def logs(self) -> tuple[PartitionLog, PartitionLog]:
        return self.broker.log(FLIGHTS), self.broker.log(TWIN)

    def _renew_producers(self) -> None:
        """Records of theirs may be gone; of one that has none left, one of the logs may know more than the other."""
        self._generation += 1
        self._sequences = {}

    def append(self) -> None:
        fields: dict[str, Any] = {}
        producer_id = self.choose.choice((-1, 1, 2, *TRANSACTIONAL))
        if producer_id > 0:
            sequence = self._sequences.get(producer_id, 0)
            self._sequences[producer_id] = sequence + 2
            fields = {"producer_id": producer_id, "producer_epoch": self._generation, "base_sequence": sequence}
            fields["is_transactional"] = producer_id in TRANSACTIONAL
        first = self.logs[0].append_end_offset
        values = b"%d" % first, b"%d " % (first + 1) + b"v" * self.choose.choice((1, 50, 400))
        now_ms = self.broker.host.clock.time_ms()
        for log in self.logs:
            with verified(log.producers, producer_id, self._generation):
                log.append_as_leader(records(*values, timestamp_ms=now_ms, **fields), self.epoch)
        self.done["append"] += 1

    def end_transaction(self) -> None:
        kind = self.choose.choice((ControlRecordType.ABORT, ControlRecordType.COMMIT))
        producer_id = self.choose.choice(TRANSACTIONAL)
        for log in self.logs:
            known = log.producers.get(producer_id)
            self.done[kind.name] += known is not None and known.transaction_first_offset is not None
            marker = end_transaction_batch(
                EndTransactionMarker(kind, 0),
                timestamp_ms=self.broker.host.clock.time_ms(),
                producer_id=producer_id,
                producer_epoch=self._generation,
            )
            log.append_as_leader(marker, self.epoch, origin=AppendOrigin.COORDINATOR)

    async def written(self) -> None:
        """Where directories have queues, the two are not written in the same moment."""
        await asyncio.gather(*(log.wait_written() for log in self.logs))

    async def on_both(self, do: Callable[[PartitionLog], Awaitable[object]]) -> None:
        """The copy may take the place of the log that moves before this begins with it."""

        async def on(partition: TopicPartition) -> None:
            while True:
                log = self.broker.log(partition)
                try:
                    await do(log)
                except KafkaError:
                    if not log.is_closed:
                        raise
                else:
                    return

        await asyncio.gather(on(FLIGHTS), on(TWIN))

    async def commit(self) -> None:
        await self.written()
        log = self.logs[0]
        offset = self.choose.randrange(log.high_watermark, log.append_end_offset + 1)
        for log in self.logs:
            log.increase_high_watermark(offset)

    async def truncate(self, end: int | None = None) -> None:
        """What a follower does in a new epoch; new records follow, under the offsets of those that went."""
        log = self.logs[0]
        if end is None:
            end = self.choose.randrange(log.log_start_offset, log.append_end_offset + 1)
        self.epoch += 1
        await self.on_both(lambda log: log.truncate_to(end))
        self._renew_producers()
        self.done["truncate"] += 1

    async def begin_anew(self) -> None:
        """What a follower does whose leader has nothing that it has."""
        offset = self.logs[0].append_end_offset + self.choose.choice((-1, 0, 7))
        self.epoch += 1
        await self.on_both(lambda log: log.truncate_fully_and_start_at(max(0, offset)))
        self._renew_producers()
        self.done["begin anew"] += 1

    def delete_records(self) -> None:
        log = self.logs[0]
        offset = self.choose.randrange(log.log_start_offset, log.high_watermark + 1)
        for log in self.logs:
            log.delete_records_to(offset)
        # Of a producer of which the marker is left and no record, one of the logs may know more than the other.
        self._renew_producers()
        self.done["delete"] += 1

    async def retain(self) -> None:
        before = [log.segment_count for log in self.logs]
        await self.broker.manager.delete_old_segments()
        self._renew_producers()
        self.done["retain"] += before[1] > self.logs[1].segment_count

    def begin_epoch(self) -> None:
        """What a leader does, perhaps without a record in it."""
        self.epoch += 1
        for log in self.logs:
            log.begin_epoch(self.epoch, log.append_end_offset)

    async def step(self) -> None:
        kind = self.choose.random()
        if kind < 0.06:
            await self.truncate()
        elif kind < 0.08:
            await self.begin_anew()
        elif kind < 0.12:
            self.delete_records()
        elif kind < 0.16:
            await self.retain()
        elif kind < 0.2:
            self.begin_epoch()
        elif kind < 0.3:
            await self.commit()
        elif kind < 0.4:
            await asyncio.gather(*(log.flush() for log in self.logs))
        elif kind < 0.53:
            await asyncio.sleep(self.choose.choice((0, 0.001, 0.02)))
        elif kind < 0.6:
            self.end_transaction()
        else:
            self.append()

    async def check(self) -> None:
        """The two have the same records, and know the same of them."""
        await self.written()
        moved, twin = self.logs
        start = max(log.log_start_offset for log in self.logs)  # retention goes by segments, which differ
        assert moved.log_end_offset == twin.log_end_offset
        assert moved.high_watermark == twin.high_watermark
        assert await self.broker.records(moved, start) == await self.broker.records(twin, start)
        for offset in range(start, twin.log_end_offset):
            assert moved.leader_epochs.epoch_for_offset(offset) == twin.leader_epochs.epoch_for_offset(offset)
        if start < twin.log_end_offset:  # of records that went, the one that was copied meanwhile may know more
            assert moved.latest_epoch == twin.latest_epoch
        assert producers(moved, start) == producers(twin, start)
        if not self.done["retain"]:
            assert moved.log_start_offset == twin.log_start_offset
            # What a transaction has written below the start of the log is not copied.
            assert moved.last_stable_offset == twin.last_stable_offset or self.done["delete"]
        stable = min(log.last_stable_offset for log in self.logs)
        bytes_max = self.choose.choice((1, 700, 1 << 20))
        committed = [await self.committed(log, start, stable, bytes_max) for log in self.logs]
        assert committed[0] == committed[1]
        self.done["read committed"] += len(committed[0]) < stable - start

    async def committed(self, log: PartitionLog, start: int, end: int, bytes_max: int) -> list[bytes]:
        """What a reader of committed records gets before `end`."""
        found: list[bytes] = []
        offset = start
        while (read := log.read(offset, bytes_max, ReadIsolation.COMMITTED, has_minimum=True)).plan is not None:
            data = bytes(await self.broker.manager.reader.read(read.plan))
            found += consume(data, read.aborted or [], offset)
            offset = RecordBatch(data, walk_batches(data).spans[-1].position).last_offset + 1
        return [value for value in found if not value[:1].isdigit() or int(value.split()[0]) < end]


def producers(log: PartitionLog, start: int) -> dict[int, tuple[int, BatchMetadata]]:
    """Of those that have written something that is still there, since the others may be known or not; with the last
    batch, since a snapshot has no other.
    """
    return {
        each.producer_id: (each.epoch, BatchMetadata._make(each.batches[-1]))
        for each in log.producers
        if each.last_offset is not None and each.last_offset >= start
    }


def in_simulation(seed: int, main: Any) -> Any:
    with Simulation(seed) as simulation:
        return simulation.run_on(simulation.machine("broker"), main)


async def awaited(is_true: Any, broker: LogBroker) -> None:
    for _ in range(10_000):
        if is_true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within 100 s: {broker.lines[-5:]}")


@WRITES
@pytest.mark.parametrize("seed", simulation_seeds(25))
def test_after_the_swap_the_log_is_what_it_would_have_been(seed: int, writes: str) -> None:
    async def main(host: Host) -> None:
        async with log_broker(host, *DIRECTORIES, settings=settings_of(writes), config=CONFIG) as broker:
            both = Both(broker, random.Random(seed))
            replaced: list[PartitionLog] = []
            async with copier_of(broker, replaced, both.choose.choice((5_000.0, 50_000.0, UNLIMITED))) as copier:
                for _ in range(30):
                    both.append()
                for moves in range(1, 4):
                    current = broker.log(FLIGHTS)
                    target = next(each for each in broker.manager.directories if each is not current.log_directory)
                    broker.manager.create_future_log(current, target)
                    copier.add(FLIGHTS)
                    for _ in range(STEPS):
                        before = both.done.copy()
                        await both.step()
                        if FLIGHTS in copier:
                            during.update(both.done - before)
                        if len(replaced) == moves:
                            break
                    await awaited(lambda: len(replaced) == moves, broker)  # noqa: B023
                    assert broker.log(FLIGHTS) is replaced[-1]
                    assert replaced[-1].log_directory is target
                    await both.check()
                    for _ in range(10):
                        await both.step()
                    await both.check()
            happened.update(both.done)

    during: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    in_simulation(seed, main)
    assert during["append"] > 3
    assert happened["ABORT"] + happened["COMMIT"]


@WRITES
def test_a_copy_of_an_earlier_life_is_cut_off_where_it_parts(writes: str) -> None:
    settings = settings_of(writes)

    async def before(broker: LogBroker) -> None:
        both = Both(broker, random.Random(1))
        for _ in range(10):
            both.append()
        await both.written()
        future = broker.manager.create_future_log(broker.log(FLIGHTS), broker.manager.directories[1])
        for batch in await broker.batches(broker.log(FLIGHTS)):
            future.append_as_follower(batch)
        await both.truncate(8)
        for _ in range(10):
            both.append()

    async def main(host: Host) -> None:
        async with log_broker(host, *DIRECTORIES, settings=settings, config=LogConfig()) as broker:
            await before(broker)
        async with log_broker(host, *DIRECTORIES, settings=settings, config=LogConfig()) as broker:
            replaced: list[PartitionLog] = []
            assert broker.manager.future_logs[FLIGHTS].log_end_offset == 20
            for log in broker.log(FLIGHTS), broker.log(TWIN):
                log.update_high_watermark(log.log_end_offset)
            async with copier_of(broker, replaced) as copier:
                copier.add(FLIGHTS)
                await awaited(lambda: replaced, broker)
            await Both(broker, random.Random(1)).check()

    in_simulation(1, main)


def test_copies_no_faster_than_allowed_and_not_at_all_with_nothing() -> None:
    async def main(host: Host) -> None:
        async with log_broker(host, *DIRECTORIES, config=LogConfig()) as broker:
            log = broker.log(FLIGHTS)
            for _ in range(40):
                log.append_as_leader(records(b"v" * 400), 0)
            replaced: list[PartitionLog] = []
            async with copier_of(broker, replaced, 0) as copier:
                broker.manager.create_future_log(log, broker.manager.directories[1])
                copier.add(FLIGHTS)
                await asyncio.sleep(5)
                assert not copier.bytes_copied
                copier.limit(2_000)
                await asyncio.sleep(2)
                assert 2_500 <= copier.bytes_copied <= 5_000
                assert not replaced
                copier.limit(UNLIMITED)
                await asyncio.sleep(1)
                assert replaced

    in_simulation(1, main)


def test_one_log_after_the_other_and_what_is_taken_out_stays() -> None:
    async def main(host: Host) -> None:
        async with log_broker(host, *DIRECTORIES, config=LogConfig()) as broker:
            partitions = [FLIGHTS._replace(partition=number) for number in range(4)]
            replaced: list[PartitionLog] = []
            async with copier_of(broker, replaced) as copier:
                for partition in reversed(partitions):
                    log = broker.log(partition)
                    log.append_as_leader(records(b"v" * 3_000), 0)
                    target = next(each for each in broker.manager.directories if each is not log.log_directory)
                    broker.manager.create_future_log(log, target)
                    copier.add(partition)
                copier.remove((partitions[2],))
                await awaited(lambda: len(replaced) == 3, broker)
                assert [log.partition.partition for log in replaced] == [0, 1, 3]
                assert list(broker.manager.future_logs) == [partitions[2]]

    in_simulation(1, main)


def test_a_copy_whose_disk_fails_is_given_up_and_the_log_goes_on() -> None:
    async def main(host: Host) -> None:
        async with log_broker(host, *DIRECTORIES, config=LogConfig()) as broker:
            log = broker.log(FLIGHTS)
            log.append_as_leader(records(b"value"), 0)
            replaced: list[PartitionLog] = []
            async with copier_of(broker, replaced) as copier:
                broker.manager.create_future_log(log, broker.manager.directories[1])
                broker.manager.directories[1].fail(OSError("broken"))
                copier.add(FLIGHTS)
                await awaited(lambda: FLIGHTS not in copier, broker)
            assert not replaced
            assert not log.is_closed

    in_simulation(1, main)


@WRITES
def test_a_copy_that_starts_behind_the_log_begins_anew(writes: str) -> None:
    """The start that the copy had from the log is in its directory's checkpoint; a crash came before the log's own was
    in that of its directory."""

    config, settings = LogConfig(retention_ms=-1), settings_of(writes)

    async def main(host: Host) -> None:
        async with log_broker(host, *DIRECTORIES, settings=settings, config=config) as broker:
            for log in broker.log(FLIGHTS), broker.log(TWIN):
                for _ in range(10):
                    log.append_as_leader(records(b"first", b"second"), 0)
                await log.wait_written()
                log.update_high_watermark(log.log_end_offset)
            future = broker.manager.create_future_log(broker.log(FLIGHTS), broker.manager.directories[1])
            for batch in await broker.batches(broker.log(FLIGHTS)):
                future.append_as_follower(batch)
            await future.wait_written()
            future.update_high_watermark(future.log_end_offset)
            future.increase_log_start_offset(12, "the current replica's log start")
        async with log_broker(host, *DIRECTORIES, settings=settings, config=config) as broker:
            for log in broker.log(FLIGHTS), broker.log(TWIN):
                log.update_high_watermark(log.log_end_offset)
            assert broker.manager.future_logs[FLIGHTS].log_start_offset == 12
            assert not broker.log(FLIGHTS).log_start_offset
            replaced: list[PartitionLog] = []
            async with copier_of(broker, replaced) as copier:
                copier.add(FLIGHTS)
                await awaited(lambda: replaced, broker)
            await Both(broker, random.Random(1)).check()

    in_simulation(1, main)
