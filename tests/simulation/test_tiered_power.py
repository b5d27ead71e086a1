"""A leader that copies segments loses its power at any operation of a disk, or does not hear whether a record of the
metadata was written: nothing that was committed is lost, and nothing half stays in remote storage."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from barnabas.kernel.host import Host
from barnabas.log.directories.checkpoints import EpochEntry
from barnabas.log.producers.producer_snapshot import ProducerSnapshotEntry
from barnabas.testing.simulated_host import Main
from barnabas.testing.simulation import simulation_seeds
from barnabas.wire.batch_formats import read_records
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.records import Record
from tests.simulation.power_cuts import run_with_power_cut
from tests.unit.log.log_broker import log_broker, records
from tests.unit.tiered.tiered_broker import SETTINGS, TIERED, TOPIC_ID, PlayedRecords, TieredBroker, tiered_broker

STEPS = 45


@dataclass(slots=True)
class Promised:
    """What was written, and how much of it must be there."""

    records: PlayedRecords = field(default_factory=PlayedRecords)
    history: list[Record] = field(default_factory=list)
    synced: int = 0
    start: int = 0
    """Where the log may start at most: nobody has deleted more."""
    copied: int = 0
    read_remotely: int = 0
    lost_copied: int = 0
    """How often records were lost that were in remote storage already."""
    is_done: bool = False
    epoch: int = 0


def outcomes(choose: random.Random) -> tuple[bool, bool]:
    """Of a record: mostly written and heard of; sometimes lost, sometimes written in silence."""
    chance = choose.random()
    return (chance > 0.06, chance > 0.12)


async def append(tiered: TieredBroker, promised: Promised, choose: random.Random, step: int) -> None:
    builder = RecordBatchBuilder()
    for _ in range(choose.randrange(1, 6)):
        builder.append(1_000 + step, b"key", b"%d" % step * choose.randrange(1, 60))
    log, data = tiered.log, builder.build()
    first = log.log_end_offset
    promised.history += [
        record._replace(offset=first + number) for number, record in enumerate(read_records(bytes(data)))
    ]
    log.append_as_leader(memoryview(data), tiered.partition.leader_epoch)
    await tiered.broker.written(log)


async def check(tiered: TieredBroker, promised: Promised) -> None:
    log = tiered.log
    assert log.log_start_offset <= promised.start
    promised.read_remotely += log.local_log_start_offset > log.log_start_offset
    assert await tiered.everything() == promised.history[log.log_start_offset : log.high_watermark]


def writer(promised: Promised, seed: int) -> Main:
    async def main(host: Host) -> None:
        choose = random.Random(seed)
        async with tiered_broker(
            host, promised.records, is_clean=False, leader_epoch=promised.epoch, outcome=lambda: outcomes(choose)
        ) as tiered:
            log = tiered.log
            for step in range(STEPS):
                await append(tiered, promised, choose, step)
                if choose.random() < 0.5:
                    await log.flush()
                    promised.synced = log.recovery_point
                    log.update_high_watermark(log.log_end_offset)
                elif choose.random() < 0.3:
                    # Replicas commit what none of them has synced; it may be copied, and all of them lose their power.
                    log.update_high_watermark(log.log_end_offset)
                if choose.random() < 0.4:
                    await tiered.round()
                    promised.copied = max(promised.copied, log.remote_end_offset)
                if choose.random() < 0.4:
                    await tiered.delete_locally()
                if choose.random() < 0.04:
                    promised.start = choose.randint(promised.start, max(promised.start, log.high_watermark // 2))
                    log.delete_records_to(promised.start)
                if choose.random() < 0.2:
                    await tiered.broker.manager.checkpoint_recovery_points()
                    await tiered.broker.manager.checkpoint_log_start_offsets()
                if choose.random() < 0.2:
                    await check(tiered, promised)
            promised.is_done = True
            await host.loop.create_future()

    return main


async def lose_the_end(tiered: TieredBroker, promised: Promised, choose: random.Random) -> None:
    """An unclean election has another lead, who has not all that was copied."""
    log = tiered.log
    end = choose.randint(log.local_log_start_offset, log.log_end_offset)
    promised.lost_copied += end < log.remote_end_offset
    await log.truncate_to(end)
    del promised.history[log.log_end_offset :]  # whole batches went
    promised.epoch += 1
    tiered.partition.leader_epoch = promised.epoch
    log.begin_epoch(promised.epoch, log.log_end_offset)


def recovered(promised: Promised, seed: int) -> Main:
    async def main(host: Host) -> None:
        choose = random.Random(seed)
        promised.epoch += 1
        async with tiered_broker(host, promised.records, is_clean=False, leader_epoch=promised.epoch) as tiered:
            log = tiered.log
            assert log.log_end_offset >= promised.synced
            await log.flush()
            log.update_high_watermark(log.log_end_offset)
            del promised.history[log.log_end_offset :]
            # Remote segments may be gone whose deletion has outlived the checkpoint of the log's start.
            await tiered.round()
            await check(tiered, promised)
            for _ in range(3):
                await tiered.round()
                await tiered.delete_locally()
                await check(tiered, promised)
            tiered.check_objects()
            await lose_the_end(tiered, promised, choose)
            for step in range(20):
                await append(tiered, promised, choose, 1_000 * promised.epoch + step)
            await log.flush()
            log.update_high_watermark(log.log_end_offset)
            for _ in range(3):
                await tiered.round()
                await tiered.delete_locally()
                await check(tiered, promised)
            assert log.remote_end_offset >= log.segments.active.base_offset or log.segment_count == 1
            promised.synced = log.log_end_offset

    return main


def cut(seed: int, cut_at: int | None) -> tuple[int, Promised]:
    promised = Promised()
    writing = writer(promised, seed)
    operations = run_with_power_cut(
        seed, cut_at, writing, lambda: promised.is_done, lambda _: recovered(promised, seed)
    )
    return operations, promised


@pytest.mark.parametrize("seed", simulation_seeds(3))
def test_nothing_is_lost_or_left_half_whenever_the_power_fails(seed: int) -> None:
    operations, promised = cut(seed, None)
    assert promised.copied > 5, "nothing was copied: the test does not test"
    assert promised.read_remotely, "nothing was read from remote storage: the test does not test"
    lost_copied = 0
    for cut_at in random.Random(seed).sample(range(1, operations + 1), 20):
        lost_copied += cut(seed, cut_at)[1].lost_copied
    assert lost_copied, "no log lost what was copied: the test does not test"


BEHIND, OLD = 50, 10
EPOCHS = [EpochEntry(0, 0), EpochEntry(3, 20)]
OLD_EPOCHS = [EpochEntry(0, 0)]


def rebuild_with_power_cut(seed: int, cut_at: int | None) -> tuple[int, int]:
    """A follower with old records goes on behind remote storage. Operations of the disk, and the end that its log has
    after the loss of power."""
    done: list[bool] = []
    started: list[bool] = []
    ends: list[int] = []

    async def rebuild(host: Host) -> None:
        async with log_broker(host, "/data/logs", config=TIERED, settings=SETTINGS, is_clean=False) as broker:
            log = broker.log(topic_id=TOPIC_ID)
            for _ in range(OLD):
                log.append_as_leader(records(b"old"), 0)
            await broker.written(log)
            await log.flush()
            await broker.manager.checkpoint_recovery_points()
            started.append(True)
            producer = ProducerSnapshotEntry(7, 0, 4, BEHIND - 1, 0, host.clock.time_ms(), 0, -1)
            assert await log.begin_behind_remote(BEHIND, 0, EPOCHS, [producer])
            done.append(True)
            await host.loop.create_future()

    async def check(host: Host) -> None:
        async with log_broker(host, "/data/logs", config=TIERED, settings=SETTINGS, is_clean=False) as broker:
            log = broker.log(topic_id=TOPIC_ID)
            epochs = list(log.leader_epochs.entries)
            assert log.log_start_offset == 0
            if log.log_end_offset == BEHIND:
                assert epochs == EPOCHS, "what is in remote storage is not found without them"
                assert [each.producer_id for each in log.active_producers()] == [7]
            else:
                assert not done, "it is durable"
                assert log.log_end_offset in (0, OLD) or not started
                assert epochs == (OLD_EPOCHS if log.log_end_offset else [])
            ends.append(log.log_end_offset)

    operations = run_with_power_cut(seed, cut_at, rebuild, lambda: bool(done), lambda _: check)
    return operations, ends[-1]


@pytest.mark.parametrize("seed", simulation_seeds(4))
def test_a_follower_that_goes_on_behind_remote_storage_has_its_epochs_or_begins_anew(seed: int) -> None:
    operations, end_offset = rebuild_with_power_cut(seed, None)
    assert end_offset == BEHIND
    ends = {rebuild_with_power_cut(seed, cut_at)[1] for cut_at in range(1, operations + 1)}
    assert {0, OLD} <= ends, "no cut has come in the middle: the test does not test"
