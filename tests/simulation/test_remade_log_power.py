"""A topic is deleted and made again under its name while the power fails: what was synced of the new one stays,
whatever the checkpoints of its directory said of the old one."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from barnabas.kernel.host import Host
from barnabas.log.partition.log_config import LogConfig
from barnabas.testing.simulated_host import Main
from barnabas.testing.simulation import simulation_seeds
from tests.simulation.power_cuts import run_with_power_cut
from tests.unit.log.log_broker import FLIGHTS, LogBroker, log_broker, records

DIRECTORIES = ("/data/logs-0", "/data/logs-1")
CONFIG = LogConfig(segment_bytes=400, retention_ms=-1, file_delete_delay_ms=500)
STEPS = 40


@dataclass(slots=True)
class Topic:
    """What was written under the name since it was made."""

    values: list[bytes] = field(default_factory=list)
    synced: int = 0
    start: int = 0
    """Below it, records may be gone."""
    is_doomed: bool = False
    """Its deletion has begun."""


@dataclass(slots=True)
class Promised:
    made: int = 0
    topic: Topic = field(default_factory=Topic)
    is_done: bool = False


async def write(
    broker: LogBroker, promised: Promised, choose: random.Random, steps: int, checkpoints: float = 0
) -> None:
    """Appends, deletes records, deletes the topic now and then to make it again, and writes checkpoints as of their
    intervals, with that probability."""
    for _ in range(steps):
        if promised.topic.is_doomed or choose.random() < 0.15:
            promised.topic.is_doomed = True
            await broker.manager.delete_log(FLIGHTS)
            promised.topic = Topic()
            promised.made += 1
        topic, log = promised.topic, broker.log()
        for _ in range(choose.randrange(1, 6)):
            value = b"%d:%d " % (promised.made, log.log_end_offset) * choose.randrange(1, 60)
            topic.values.append(value)
            log.append_as_leader(memoryview(records(value)), 0)
        if choose.random() < 0.4:
            await log.flush()
            topic.synced = log.recovery_point
        log.update_high_watermark(log.log_end_offset)
        if choose.random() < 0.2:
            topic.start = choose.randint(log.log_start_offset, log.high_watermark)
            log.delete_records_to(topic.start)
        if choose.random() < checkpoints:
            await broker.manager.checkpoint_log_start_offsets()
        if choose.random() < checkpoints:
            await broker.manager.checkpoint_recovery_points()


def writer(promised: Promised, seed: int) -> Main:
    async def main(host: Host) -> None:
        async with log_broker(host, *DIRECTORIES, config=CONFIG, is_clean=False) as broker:
            await write(broker, promised, random.Random(seed), STEPS, checkpoints=0.2)
            promised.is_done = True
            await host.loop.create_future()

    return main


def recovered(promised: Promised, seed: int) -> Main:
    """Loads, checks, and goes on a little, to lose its power again."""

    async def main(host: Host) -> None:
        async with log_broker(host, *DIRECTORIES, config=CONFIG, is_clean=False) as broker:
            topic, log = promised.topic, broker.manager.get_log(FLIGHTS)
            if log is None:
                assert topic.is_doomed or not topic.synced, "a topic is gone of which something was synced"
                promised.topic = Topic()
            else:
                assert log.log_end_offset >= topic.synced
                kept = log.log_start_offset <= topic.start or topic.start >= topic.synced
                assert kept, "records are gone that nobody deleted"
                found = {record.offset: record.value for record in await broker.records(log)}
                expected = dict(enumerate(topic.values[: log.log_end_offset]))
                assert found == {offset: expected[offset] for offset in expected if offset >= log.log_start_offset}
                del topic.values[log.log_end_offset :]
                topic.start = log.log_start_offset
                # A deletion that had begun is not gone on with: nobody asks for it any more.
                topic.is_doomed = False
            await write(broker, promised, random.Random(seed), 5)

    return main


def cut(seed: int, cut_at: int | None) -> tuple[int, Promised]:
    promised = Promised()
    writing = writer(promised, seed)
    operations = run_with_power_cut(
        seed, cut_at, writing, lambda: promised.is_done, lambda life: recovered(promised, seed + life)
    )
    return operations, promised


@pytest.mark.parametrize("seed", simulation_seeds(4))
def test_what_was_synced_of_a_topic_made_anew_stays_whenever_the_power_fails(seed: int) -> None:
    operations, promised = cut(seed, None)
    assert promised.made > 2, "the topic was hardly ever made anew: the test does not test"
    for cut_at in random.Random(seed).sample(range(1, operations + 1), 30):
        cut(seed, cut_at)
