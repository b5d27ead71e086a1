"""A partition's log under power cuts and kills: what is synced stays, what is torn goes, and the state fits the log."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial

import pytest

from barnabas.kernel.host import Host
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.producers.producer_state import ProducerState
from barnabas.testing.simulated_host import Main
from barnabas.testing.simulation import Simulation, simulation_seeds
from barnabas.wire.batch_formats import read_records
from barnabas.wire.errors import KafkaError
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.records import walk_batches
from tests.unit.log.log_broker import LogBroker, log_broker, records

DIRECTORY = "/data/logs"
CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=400, file_delete_delay_ms=500)
STEPS = 45
LARGE_BYTES = 17_000
WRITES = pytest.mark.parametrize("writes", ["loop", "offload"])


def settings_of(writes: str) -> LogSettings:
    return LogSettings(directory_patience_ms=0, directory_writes=writes)


@dataclass(slots=True)
class Promised:
    """What the writer knows: the log as it should be, and how much of it is promised to survive what."""

    batches: dict[int, bytes] = field(default_factory=dict)
    """By first offset, what the log holds; and every other content that was once there, which may come back."""
    former: list[tuple[int, bytes]] = field(default_factory=list)
    written: int = 0
    """Offset below which everything was acknowledged: it survives a kill."""
    synced: int = 0
    """The recovery point: below it everything survives a loss of power."""
    start_offset: int = 0
    is_done: bool = False
    truncations: int = 0


async def write(broker: LogBroker, promised: Promised, choose: random.Random) -> None:
    """Appends with rolls, large and small, idempotent and not, with flushes, truncations and deletions between."""
    log = broker.log()
    epoch = 0
    sequences: dict[int, int] = {}
    for _ in range(STEPS):
        kind = choose.random()
        if kind < 0.1:
            await log.flush()
        elif kind < 0.2 and log.append_end_offset:
            epoch += 1
            end = choose.randrange(max(log.log_start_offset, log.append_end_offset - 6), log.append_end_offset + 1)
            promised.former += [item for item in promised.batches.items() if item[0] >= end]
            promised.batches = {offset: data for offset, data in promised.batches.items() if offset < end}
            promised.written = promised.synced = min(promised.synced, end)
            promised.truncations += 1
            await log.truncate_to(end)
            sequences = {entry.producer_id: entry.last_sequence + 1 for entry in log.producers}
        elif kind < 0.25:
            log.update_high_watermark(log.log_end_offset)
            start = choose.randrange(log.log_start_offset, log.log_end_offset + 1)
            promised.start_offset = log.delete_records_to(start)
            await broker.manager.checkpoint_log_start_offsets()
        elif kind < 0.3:
            await broker.manager.checkpoint_recovery_points()
        else:
            producer_id = choose.choice((-1, 1, 2))
            fields = {}
            if producer_id > 0:
                sequence = sequences.get(producer_id, 0)
                sequences[producer_id] = sequence + 1
                fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
            value = b"%d" % log.append_end_offset * choose.choice((1, 5))
            if choose.random() < 0.15:
                value *= LARGE_BYTES // len(value)
            data = records(value, timestamp_ms=broker.host.clock.time_ms(), **fields)
            offset = log.append_end_offset
            try:
                log.append_as_leader(memoryview(data), epoch)
            finally:
                promised.batches[offset] = bytes(data)  # also where the power fails in the middle of its write
        if choose.random() < 0.7:
            await broker.written(log)
            promised.written = log.log_end_offset
        promised.synced = log.recovery_point
    await broker.written(log)
    promised.written = log.log_end_offset
    promised.is_done = True
    await broker.host.loop.create_future()


def writer(promised: Promised, seed: int, writes: str) -> Main:
    async def main(host: Host) -> None:
        async with log_broker(host, DIRECTORY, config=CONFIG, settings=settings_of(writes), is_clean=False) as broker:
            await write(broker, promised, random.Random(seed))

    return main


def last_sequences(batches: list[bytes]) -> dict[int, int]:
    """The last sequence of each producer, by a replay from scratch."""
    state = ProducerState()
    for data in batches:
        state.replay(RecordBatch(data).header, None)
    return {entry.producer_id: entry.last_sequence for entry in state}


async def check(broker: LogBroker, log: PartitionLog, promised: Promised, least: int) -> int:
    """Invariants: whole batches without a gap, each of them one that was appended there, the newest where it was
    promised to stay; epochs never go back; the producers' state is that of a replay from scratch. Returns the end.
    """
    assert log.log_end_offset >= least, f"the log must hold everything below {least} and ends at {log.log_end_offset}"
    first = log.segments.first.base_offset
    data = b"".join(
        bytes(batch.view) for segment in log.segments for batch in segment.batches() if isinstance(batch, RecordBatch)
    )
    offset = first
    found: list[bytes] = []
    known = [*promised.batches.items(), *promised.former]
    latest_epoch = -1
    for span in walk_batches(data).spans:
        one = data[span.position : span.position + span.size_bytes]
        batch = RecordBatch(one)
        batch.verify()
        assert batch.base_offset == offset, f"{offset} is missing"
        assert (offset, one) in known, f"{offset} holds what was never appended there"
        if offset < least:
            assert promised.batches[offset] == one, f"{offset} was promised to stay and is another's"
        assert batch.header.partition_leader_epoch >= latest_epoch
        latest_epoch = batch.header.partition_leader_epoch
        assert log.leader_epochs.epoch_for_offset(offset) == latest_epoch or offset < log.log_start_offset
        found.append(one)
        offset = batch.last_offset + 1
    assert offset == log.log_end_offset
    sequences = {entry.producer_id: entry.last_sequence for entry in log.producers}
    # Of a producer that has written nothing above the start of the log, it may be known or not.
    above = [one for one in found if RecordBatch(one).header.last_offset >= log.log_start_offset]
    assert last_sequences(above).items() <= sequences.items() <= last_sequences(found).items() or first
    for read in await broker.batches(log):
        assert all(record.offset >= first for record in read_records(read))
    return log.log_end_offset


def recovered(promised: Promised, least: int, writes: str) -> Main:
    """Loads, checks, appends a little, and crashes again without a sync."""

    async def main(host: Host) -> tuple[int, int]:
        async with log_broker(host, DIRECTORY, config=CONFIG, settings=settings_of(writes), is_clean=False) as broker:
            log = broker.log()
            cut = sum("cut off" in line or "dropped" in line for line in broker.lines)
            end = await check(broker, log, promised, least)
            promised.former += [item for item in promised.batches.items() if item[0] >= end]
            promised.batches = {offset: data for offset, data in promised.batches.items() if offset < end}
            for _ in range(3):
                data = records(b"after the crash")
                offset = log.append_as_leader(memoryview(data), 100).first_offset
                promised.batches[offset] = bytes(data)
            await broker.written(log)
            return log.log_end_offset, cut

    return main


def run_with_power_cut(seed: int, cut_at: int | None, writes: str) -> tuple[int, int, Promised]:
    """Disk operations, recoveries that have cut something off, and what was promised."""
    promised = Promised()
    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.disk.cut_power_at = cut_at
        machine.start(writer(promised, seed, writes))
        simulation.run_until(lambda: promised.is_done or not machine.powered)
        operations = machine.disk.operations
        if machine.powered:
            machine.power_fail()
        machine.disk.cut_power_at = None
        machine.power_restore()
        synced = promised.synced
        _, cut = simulation.run_on(machine, recovered(promised, synced, writes))
        # Everything that the first recovery left may go again, but for what was synced before.
        machine.power_fail()
        machine.power_restore()
        _, again = simulation.run_on(machine, recovered(promised, synced, writes))
        return operations, cut + again, promised


@WRITES
@pytest.mark.parametrize("seed", simulation_seeds(8))
def test_holds_a_prefix_with_everything_synced_whenever_the_power_fails(seed: int, writes: str) -> None:
    operations, _, _ = run_with_power_cut(seed, None, writes)
    assert operations > STEPS
    cuts = random.Random(seed).sample(range(1, operations + 1), 25)
    torn = [run_with_power_cut(seed, cut_at, writes)[1] for cut_at in cuts]
    assert any(torn), "no cut has torn anything: the test does not test"


@WRITES
@pytest.mark.parametrize("seed", simulation_seeds(12))
def test_a_killed_process_loses_nothing_acknowledged(seed: int, writes: str) -> None:
    promised = Promised()
    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.start(writer(promised, seed, writes))
        wanted = 1 + seed % STEPS
        simulation.run_until(lambda: promised.is_done or promised.written >= wanted)
        machine.crash()
        simulation.run_on(machine, recovered(promised, promised.written, writes))


@WRITES
@pytest.mark.parametrize("seed", simulation_seeds(6))
def test_with_flush_messages_everything_acknowledged_survives_a_loss_of_power(seed: int, writes: str) -> None:
    config = LogConfig(segment_bytes=2_000, flush_messages=1)
    acknowledged: dict[int, bytes] = {}
    is_done: list[bool] = []

    async def main(host: Host) -> None:
        async with log_broker(host, DIRECTORY, config=config, settings=settings_of(writes), is_clean=False) as broker:
            log = broker.log()

            def answer(offset: int, data: bytes, error: KafkaError | None) -> None:
                assert error is None
                acknowledged[offset] = data

            for number in range(30):
                data = records(b"%d" % number * 9)
                offset = log.append_as_leader(memoryview(data), 0).first_offset
                broker.manager.write_queue.when_written(log, partial(answer, offset, bytes(data)))
                if number % 3 == 0:
                    await broker.written(log)
            is_done.append(True)
            await host.loop.create_future()

    async def after(host: Host) -> None:
        async with log_broker(host, DIRECTORY, config=config, settings=settings_of(writes), is_clean=False) as broker:
            stored = b"".join(await broker.batches(broker.log()))
            assert stored.startswith(b"".join(acknowledged[offset] for offset in sorted(acknowledged)))

    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.disk.cut_power_at = 20 + 17 * seed
        machine.start(main)
        simulation.run_until(lambda: bool(is_done) or not machine.powered)
        if machine.powered:
            machine.power_fail()
        machine.disk.cut_power_at = None
        machine.power_restore()
        simulation.run_on(machine, after)
