"""A replica moves to another log directory, and power or process ends at each step of it: what was promised is found,
once, at the next start, and a move that was interrupted can be made again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from barnabas.kernel.host import Host, Offload, OffloadKind
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.testing.simulated_host import Main, SimulatedMachine
from barnabas.testing.simulation import Simulation, simulation_seeds
from barnabas.wire.errors import KafkaError
from tests.unit.log.log_broker import FLIGHTS, LogBroker, log_broker, records

DIRECTORIES = ("/data/one", "/data/two")
SYNCING = LogConfig(segment_bytes=1_000, flush_messages=1, file_delete_delay_ms=100)
"""Everything acknowledged is synced, so a loss of power may take none of it."""
LAZY = LogConfig(segment_bytes=1_000, file_delete_delay_ms=100)

WRITES = pytest.mark.parametrize("writes", ["loop", "offload"])


@dataclass(slots=True)
class Promised:
    """What the writer knows."""

    appended: dict[int, bytes] = field(default_factory=dict)
    acknowledged: int = 0
    synced: int = 0
    start_offset: int = 0
    moves: int = 0
    moved_at: int = 0
    """How often the disk had been used when the first move was tried."""
    is_done: bool = False


def settings_of(writes: str) -> LogSettings:
    return LogSettings(directory_patience_ms=0, directory_writes=writes)


async def copy(broker: LogBroker, current: PartitionLog, future: PartitionLog) -> None:
    """Everything that the current log has and the future one has not."""
    if future.log_end_offset < current.log_start_offset:
        await future.truncate_fully_and_start_at(current.log_start_offset)
    while future.log_end_offset < current.log_end_offset:
        plan = current.read(future.log_end_offset, 700, ReadIsolation.LOG_END, has_minimum=True).plan
        assert plan is not None
        future.append_as_follower(bytes(await broker.manager.reader.read(plan)))
        await future.wait_written()
    future.update_high_watermark(current.high_watermark)
    future.increase_log_start_offset(current.log_start_offset, "test")


def has_durable_name(log: PartitionLog) -> bool:
    """Until it has, a start may find the log that it has taken the place of, and nothing that came since counts."""
    held_by = log._flusher._held_by
    return held_by is None or held_by.done()


async def append(broker: LogBroker, promised: Promised, count: int, choose: random.Random) -> None:
    log = broker.manager.logs[FLIGHTS]
    for _ in range(count):
        data = records(b"%d" % log.log_end_offset * choose.choice((1, 30)), timestamp_ms=broker.host.clock.time_ms())
        offset = log.append_as_leader(memoryview(data), 0).first_offset
        promised.appended[offset] = bytes(data)

        def answer(end: int, error: KafkaError | None) -> None:
            assert error is None
            promised.acknowledged = max(promised.acknowledged, end)

        broker.manager.write_queue.when_written(log, partial(answer, offset + 1))
        if choose.random() < 0.5:
            await broker.written(log)
        if choose.random() < 0.6:
            await log.flush()
        if has_durable_name(log):
            promised.synced = max(promised.synced, log.recovery_point)
    await broker.written(log)
    promised.synced = max(promised.synced, log.recovery_point)


async def move(broker: LogBroker, promised: Promised, choose: random.Random) -> None:
    """To the other directory, while it is appended to."""
    manager = broker.manager
    current = manager.logs[FLIGHTS]
    target = next(each for each in manager.directories if each is not current.log_directory)
    future = manager.future_logs.get(FLIGHTS) or manager.create_future_log(current, target)
    await copy(broker, current, future)
    await append(broker, promised, 2, choose)
    await copy(broker, current, future)
    for _ in range(40):
        await manager.prepare_replacement(FLIGHTS)
        await append(broker, promised, choose.choice((0, 1)), choose)
        await copy(broker, current, future)
        if manager.replace_current(FLIGHTS) is not None:
            break
    assert manager.logs[FLIGHTS] is future
    promised.moves += 1


def writer(promised: Promised, config: LogConfig, seed: int, operations: list[int], writes: str) -> Main:
    async def main(host: Host) -> None:
        choose = random.Random(seed)
        async with log_broker(
            host, *DIRECTORIES, config=config, settings=settings_of(writes), is_clean=False
        ) as broker:
            log = broker.log()
            await append(broker, promised, 8, choose)
            log.update_high_watermark(5)
            promised.start_offset = log.delete_records_to(choose.choice((0, 5)))
            await broker.manager.checkpoint_log_start_offsets()
            for _ in range(2):
                operations.append(promised.moves)
                await move(broker, promised, choose)
                await append(broker, promised, 3, choose)
            promised.is_done = True
            await host.loop.create_future()

    return main


def recovered(promised: Promised, config: LogConfig, least: int, found: Counter[str], writes: str) -> Main:
    """Checks what is there, moves it again, and checks that."""

    async def main(host: Host) -> None:
        async with log_broker(
            host, *DIRECTORIES, config=config, settings=settings_of(writes), is_clean=False
        ) as broker:
            found.update(
                word
                for word in ("taken the place", "complete, and", "left alone")
                for line in broker.lines
                if word in line
            )
            check(broker, await broker.batches(broker.log()), promised, least)
            end = broker.log().log_end_offset
            start = broker.log().log_start_offset
            promised.appended = {offset: data for offset, data in promised.appended.items() if offset < end}
            broker.log().update_high_watermark(end)
            future = broker.manager.future_logs.get(FLIGHTS)
            if future is not None:
                found["future"] += 1
                await broker.manager.delete_future_log(FLIGHTS)
            await move(broker, promised, random.Random(1))
            assert broker.log().log_start_offset == start
            check(broker, await broker.batches(broker.log()), promised, end)

    return main


def check(broker: LogBroker, batches: list[bytes], promised: Promised, least: int) -> None:
    log = broker.manager.get_log(FLIGHTS)
    assert log is not None
    assert log.log_end_offset >= least, f"{least} is promised, and the log ends at {log.log_end_offset}"
    assert log.log_start_offset >= promised.start_offset
    expected = [data for offset, data in sorted(promised.appended.items()) if offset < log.log_end_offset]
    assert b"".join(expected).endswith(b"".join(batches))
    assert not log.is_future
    assert log.latest_epoch == 0 or not batches


def run(config: LogConfig, seed: int, cut_at: int | None, found: Counter[str], writes: str) -> int:
    promised = Promised()
    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.disk.cut_power_at = cut_at
        started: list[int] = []
        machine.start(writer(promised, config, seed, started, writes))
        simulation.run_until(lambda: promised.is_done or not machine.powered)
        operations = machine.disk.operations
        assert promised.is_done is (cut_at is None) or cut_at is not None
        if machine.powered:
            machine.power_fail()
        machine.disk.cut_power_at = None
        machine.power_restore()
        if started:
            least = promised.acknowledged if config.flush_messages == 1 else promised.synced
            simulation.run_on(machine, recovered(promised, config, least, found, writes))
        return operations


@WRITES
@pytest.mark.parametrize("config", [SYNCING, LAZY], ids=["syncing", "lazy"])
@pytest.mark.parametrize("seed", simulation_seeds(1))
def test_power_may_fail_at_any_step(config: LogConfig, seed: int, writes: str) -> None:
    found: Counter[str] = Counter()
    operations = run(config, seed, None, found, writes)
    for cut_at in range(10, operations):
        run(config, seed, cut_at, found, writes)
    # Each by itself is found by tests/unit/log/manager/test_interrupted_moves.py.
    assert found["taken the place"] + found["complete, and"], found
    assert found["future"], found
    assert not found["left alone"], found


class HeldQueue:
    """Work off the loop, of which what the queue of one directory is to change never begins, once it is held."""

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self.held: str | None = None

    def __call__(
        self,
        kind: OffloadKind,
        function: Callable[..., Any],
        /,
        *arguments: Any,
        order: Hashable | None = None,
        lane: str | None = None,
    ) -> asyncio.Future[Any]:
        if kind is OffloadKind.WRITE and lane is not None and lane == self.held:
            return asyncio.get_running_loop().create_future()
        return self._offload(kind, function, *arguments, order=order, lane=lane)


def half_replaced(promised: Promised, config: LogConfig, seed: int, held: str) -> Main:
    """One of the two queues has given its directory the new name, and the other one does not come to it."""

    async def main(host: Host) -> None:
        choose = random.Random(seed)
        queues = HeldQueue(host.offload)
        async with log_broker(
            replace(host, offload=queues),
            *DIRECTORIES,
            config=config,
            settings=settings_of("offload"),
            is_clean=False,
        ) as broker:
            manager = broker.manager
            current = broker.log()
            assert current.log_directory.path == DIRECTORIES[0]
            await append(broker, promised, 8, choose)
            current.update_high_watermark(5)
            future = manager.create_future_log(current, manager.directories[1])
            await copy(broker, current, future)
            await manager.prepare_replacement(FLIGHTS)
            await append(broker, promised, 2, choose)
            while True:
                await copy(broker, current, future)
                await future.make_ready()
                queues.held = held
                if manager.replace_current(FLIGHTS) is not None:
                    break
                queues.held = None
                await asyncio.sleep(0.001)
            late = host.loop.create_task(append(broker, promised, 1, choose))
            await asyncio.sleep(1)
            assert late.done() == (held == DIRECTORIES[0])
            promised.is_done = True
            await host.loop.create_future()

    return main


def kinds_in(machine: SimulatedMachine, path: str) -> set[str]:
    """How the names of the partition's directories end in a log directory."""
    directory = machine.disk.find(path)
    assert directory is not None
    return {name.rpartition("-")[2] for name in directory.entries or () if name.startswith("flights")}


@pytest.mark.parametrize("ending", ["killed", "power fails"])
@pytest.mark.parametrize("held", DIRECTORIES)
@pytest.mark.parametrize("config", [SYNCING, LAZY], ids=["syncing", "lazy"])
@pytest.mark.parametrize("seed", simulation_seeds(3))
def test_the_queues_of_the_two_directories_wait_for_nothing_of_each_other(
    config: LogConfig, seed: int, held: str, ending: str
) -> None:
    """What is appended after the swap does not count before the new name is durable, whatever has become of the old."""
    promised, found = Promised(), Counter[str]()
    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.start(half_replaced(promised, config, seed, held))
        simulation.run_until(lambda: promised.is_done)
        kinds = [kinds_in(machine, path) for path in DIRECTORIES]
        assert kinds == ([{"0"}, {"0"}] if held == DIRECTORIES[0] else [{"delete"}, {"future"}])
        if ending == "killed":
            machine.crash()
            least = promised.acknowledged
        else:
            machine.power_fail()
            machine.power_restore()
            least = promised.acknowledged if config is SYNCING else promised.synced
        assert least
        simulation.run_on(machine, recovered(promised, config, least, found, "offload"))
        expected = "taken the place" if held == DIRECTORIES[0] else "complete, and"
        assert found[expected] or ending != "killed", found
        assert not found["left alone"], found
