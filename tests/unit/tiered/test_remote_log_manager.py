"""Copying, retention and deletion of one leader's log, on a simulated machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from barnabas.kernel.host import Host
from barnabas.kernel.ids import Uuid
from barnabas.testing.simulation import Simulation
from barnabas.tiered import remote_log_manager, segment_copier
from barnabas.tiered.segment_metadata import RemoteLogSegmentState, RemotePartitionDeleteState
from barnabas.wire.sentinels import EPOCH_DURING_DELETE
from tests.unit.log.log_broker import FLIGHTS, Lines, records, send
from tests.unit.tiered.tiered_broker import PlayedRecords, TieredBroker, tiered_broker

FIRST_MS = 1_700_000_000_000
Body = Callable[[TieredBroker], Awaitable[None]]
Run = Callable[[Body], None]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs a test with a leader of its own."""
    with Simulation(1) as simulation:
        machine = simulation.machine("broker")

        def run_body(body: Body) -> None:
            async def main(host: Host) -> None:
                async with tiered_broker(host, PlayedRecords()) as tiered:
                    await body(tiered)

            simulation.run_on(machine, main)

        yield run_body


async def fill(tiered: TieredBroker, start: int, end: int) -> None:
    """A record in each batch, with its number as value and in its time; all committed, and durable."""
    for number in range(start, end):
        data = records(b"%d" % number + b"." * 100, timestamp_ms=FIRST_MS + number)
        tiered.log.append_as_leader(data, tiered.partition.leader_epoch)
    await commit(tiered)


async def commit(tiered: TieredBroker) -> None:
    await tiered.broker.written(tiered.log)
    await tiered.log.flush()
    tiered.log.update_high_watermark(tiered.log.log_end_offset)


async def tier(tiered: TieredBroker) -> None:
    """Copies what can be, and deletes what may be here."""
    await tiered.round()
    await tiered.delete_locally()
    assert tiered.log.local_log_start_offset > tiered.log.log_start_offset


def test_what_is_copied_is_all_but_the_active_segment_and_is_read_again(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 100)
        active = tiered.log.segments.active.base_offset
        await tier(tiered)
        assert tiered.log.remote_end_offset == active
        found = await tiered.everything()
        assert [int(record.value.rstrip(b".")) for record in found if record.value] == list(range(100))
        tiered.check_objects()
        meters = tiered.metrics.of("flights")
        assert meters.copy_bytes.count == sum(segment.size_bytes for segment in tiered.cache.segments())
        assert meters.copy_requests.count == len(tiered.cache.segments()) > 4
        assert meters.fetch_bytes.count > 0
        before = len(tiered.objects())
        await tiered.round()
        assert len(tiered.objects()) == before, "nothing is copied twice"

    run(body)


def test_nothing_is_copied_that_is_not_stable(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 100)
        tiered.log.update_high_watermark(30)
        await tiered.round()
        assert 0 < tiered.log.remote_end_offset <= 30
        assert all(segment.end_offset < 30 for segment in tiered.cache.segments())

    run(body)


def test_nothing_is_deleted_here_that_is_not_copied(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        tiered.reconfigure(local_retention_bytes=0, local_retention_ms=0, retention_bytes=1)
        await fill(tiered, 0, 100)
        await tiered.delete_locally()
        assert tiered.log.local_log_start_offset == 0
        tiered.log.update_high_watermark(30)
        await tiered.round()
        await tiered.delete_locally()
        assert 0 < tiered.log.local_log_start_offset <= 30

    run(body)


def test_retention_deletes_remotely_and_moves_the_start_of_the_log(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 100)
        await tier(tiered)
        tiered.reconfigure(retention_bytes=6_000)
        await tiered.round()
        start = tiered.log.log_start_offset
        assert start > 0
        assert [record.offset for record in await tiered.everything()] == list(range(start, 100))
        tiered.check_objects()
        tiered.log.delete_records_to(95)
        await tiered.round()
        await tiered.round()
        assert all(segment.end_offset >= 95 for segment in tiered.cache.segments())
        tiered.check_objects()

    run(body)


def test_a_copy_that_fails_leaves_nothing_and_is_made_again(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        path = tiered.log.segments.first.offset_index.path
        tiered.host.files.rename(path, f"{path}.away")
        await tiered.round()
        assert tiered.log.remote_end_offset == 0
        assert [segment.state for segment in tiered.cache.segments()] == [RemoteLogSegmentState.COPY_SEGMENT_STARTED]
        assert tiered.metrics.of("flights").copy_errors.count == 1
        tiered.host.files.rename(f"{path}.away", path)
        await tiered.round()
        assert tiered.log.remote_end_offset == tiered.log.segments.active.base_offset
        tiered.check_objects()

    run(body)


def test_a_leader_that_is_deposed_in_the_middle_says_nothing_more(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        spawn = tiered.host.spawn

        async def deposed(entry: str, argument: bytes) -> object:
            tiered.partition.is_leader = False
            return await spawn(entry, argument)

        object.__setattr__(tiered.manager._copier._host, "spawn", deposed)
        await tiered.round()
        object.__setattr__(tiered.manager._copier._host, "spawn", spawn)
        assert [segment.state for segment in tiered.cache.segments()] == [RemoteLogSegmentState.COPY_SEGMENT_STARTED]
        assert tiered.log.remote_end_offset == 0
        tiered.partition.is_leader, tiered.partition.leader_epoch = True, 1
        tiered.log.begin_epoch(1, tiered.log.log_end_offset)
        await tiered.round()
        tiered.check_objects()

    run(body)


def test_a_missing_snapshot_is_made_from_the_one_before(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        for number in range(60):
            send(tiered.log, number, b"v" * 100, timestamp_ms=tiered.host.clock.time_ms())
        await commit(tiered)
        second = list(tiered.log.segments)[1].base_offset
        whole = tiered.log.producer_snapshot_path(second)
        tiered.host.files.unlink(whole)
        await tier(tiered)
        state = await tiered.reads.auxiliary_state(tiered.log, 0, second - 1)
        assert state is not None
        (producer,) = state.producers
        assert (producer.producer_id, producer.last_sequence, producer.last_offset) == (7, second - 1, second - 1)

    run(body)


def test_a_follower_goes_on_behind_remote_storage(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        for number in range(60):
            send(tiered.log, number, b"v" * 100, timestamp_ms=tiered.host.clock.time_ms())
        await commit(tiered)
        tiered.log.begin_epoch(3, 60)
        await fill(tiered, 60, 90)
        await tier(tiered)
        log = tiered.log
        start = log.local_log_start_offset
        assert await tiered.reads.auxiliary_state(log, 9, start - 1) is None
        state = await tiered.reads.auxiliary_state(log, log.leader_epochs.epoch_for_offset(start - 1), start - 1)
        assert state is not None
        epochs = log.leader_epochs.entries
        assert state.end_offset == start
        assert await log.begin_behind_remote(start, 5, state.epochs, state.producers)
        assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (5, start, start)
        assert [each.epoch for each in log.leader_epochs.entries] == [
            epoch for epoch, offset in epochs if offset < start
        ]
        assert [each.producer_id for each in log.active_producers()] == [7]
        await tiered.broker.crash()

        tiered.broker.__init__(  # type: ignore[misc]
            tiered.host, ["/data/logs"], tiered.broker.manager.settings, tiered.broker.config, Lines()
        )
        await tiered.broker.start()
        again = tiered.broker.log()
        assert (again.local_log_start_offset, again.log_end_offset) == (start, start), "it is durable"
        assert [each.producer_id for each in again.active_producers()] == [7]
        assert again.leader_epochs.entries == log.leader_epochs.entries

    run(body)


def test_a_follower_that_is_not_to_go_on_any_more_keeps_what_it_has(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 10)
        assert not await tiered.log.begin_behind_remote(5, 0, (), (), lambda: False)
        assert tiered.log.log_end_offset == 10

    run(body)


@pytest.mark.parametrize(
    ("is_deleted", "leader_epoch", "is_leader", "stays"),
    [
        (True, EPOCH_DURING_DELETE, True, False),
        (True, 3, True, True),
        (False, EPOCH_DURING_DELETE, True, True),
        (True, EPOCH_DURING_DELETE, False, True),
    ],
)
def test_what_is_remote_goes_with_its_topic_and_not_with_a_replica(
    run: Run, is_deleted: bool, leader_epoch: int, is_leader: bool, stays: bool
) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        await tier(tiered)
        became = [tiered.partition]
        tiered.manager.leadership_changed(became, [])  # type: ignore[arg-type]
        if not is_leader:
            tiered.partition.leader_id = 2
            tiered.manager.leadership_changed([], became)  # type: ignore[arg-type]
        tiered.manager.replicas_stopped([(FLIGHTS, leader_epoch, is_deleted)])
        for _ in range(2_000):
            if not tiered.manager._deletions:
                break
            await tiered.broker.timers.sleep(1)
        assert bool(tiered.objects()) is stays
        expected = None if stays else RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
        assert tiered.cache.deletion is expected

    run(body)


def test_the_start_of_the_log_is_raised_to_what_can_be_read(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        await tier(tiered)
        first = tiered.cache.segments()[0]
        await tiered.manager._delete(first)
        tiered.partition.leader_epoch = 1
        tiered.log.begin_epoch(1, 60)
        await tiered.round()
        assert tiered.log.log_start_offset == first.end_offset + 1

    run(body)


def test_a_log_without_a_topic_id_is_left_alone(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        tiered.log._state.topic_id = None
        await tiered.round()
        assert not tiered.objects()
        tiered.log._state.topic_id = Uuid(bytes(16))

    run(body)


@pytest.mark.parametrize("end", [20, 47])
def test_what_was_copied_of_records_that_the_log_has_lost_counts_for_nothing(run: Run, end: int) -> None:
    """A loss of power of all replicas, or an unclean election, cuts off what was copied already."""

    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        await tiered.round()
        assert tiered.log.remote_end_offset > end
        await tiered.log.truncate_to(end)
        tiered.partition.leader_epoch = 1
        tiered.log.begin_epoch(1, end)
        for number in range(end, 100):
            data = records(b"%d" % (1000 + number) + b"." * 100, timestamp_ms=FIRST_MS + number)
            tiered.log.append_as_leader(data, 1)
        await commit(tiered)
        expected = [*range(end), *range(1000 + end, 1100)]
        for _ in range(3):
            await tier(tiered)
            found = await tiered.everything(bytes_max=5_000)
            assert [int(record.value.rstrip(b".")) for record in found if record.value] == expected
        copied = len(tiered.cache.segments())
        await tiered.round()
        assert len(tiered.cache.segments()) == copied, "nothing is copied again and again"

    run(body)


def test_records_before_the_first_leader_epoch_are_not_copied_again_and_again(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        tiered.log._state.leader_epochs.clear()
        tiered.log._state.leader_epochs.assign(0, 5)
        for _ in range(3):
            await tiered.round()
        assert not tiered.cache.segments()
        assert tiered.log.remote_end_offset == 0
        assert tiered.metrics.of("flights").copy_errors.count == 3

    run(body)


def test_a_copy_that_hangs_is_ended_and_made_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        signals: list[int] = []
        ended = asyncio.Event()

        class Hanging:
            async def wait(self) -> int:
                await ended.wait()
                return -9

            def signal(self, number: int) -> None:
                signals.append(number)
                ended.set()

        async def spawn(*_: object) -> Hanging:
            return Hanging()

        monkeypatch.setattr(segment_copier, "_COPY_SECONDS", 2)
        tiered.manager._copier._host = replace(tiered.host, spawn=spawn)  # type: ignore[arg-type]
        await tiered.round()
        assert signals == [9]
        assert tiered.metrics.of("flights").copy_errors.count == 1
        tiered.manager._copier._host = tiered.host
        await tier(tiered)
        await tiered.round()
        tiered.check_objects()

    run(body)


def test_the_deletion_of_a_topic_outlives_whatever_a_storage_raises(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        await tier(tiered)
        tiered.manager._settings = replace(tiered.settings, task_interval_ms=100)
        problems: list[Exception] = [RuntimeError("no credentials"), OSError("no network")]
        delete = remote_log_manager._delete_objects

        def failing(*arguments: Any) -> None:
            if problems:
                raise problems.pop()
            delete(*arguments)

        monkeypatch.setattr(remote_log_manager, "_delete_objects", failing)
        tiered.manager.leadership_changed([tiered.partition], [])  # type: ignore[list-item]
        tiered.manager.replicas_stopped([(FLIGHTS, EPOCH_DURING_DELETE, True)])
        await asyncio.gather(*tiered.manager._deletions.values(), return_exceptions=True)
        assert not tiered.objects()

    run(body)


def test_a_deletion_that_hangs_is_given_up_and_done_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 100)
        await tier(tiered)
        before = tiered.objects()

        def offload(_: object, function: object, *arguments: Any, **options: Any) -> Awaitable[Any]:
            assert function is remote_log_manager._delete_objects
            return asyncio.get_running_loop().create_future()

        tiered.reconfigure(retention_bytes=6_000)
        monkeypatch.setattr(remote_log_manager, "_DELETE_SECONDS_MAX", 0.05)
        tiered.manager._host = replace(tiered.host, offload=offload)  # type: ignore[arg-type]
        await tiered.round()
        assert tiered.metrics.of("flights").delete_errors.count == 1
        assert tiered.objects() == before
        tiered.manager._host = tiered.host
        await tiered.round()
        assert len(tiered.objects()) < len(before)

    run(body)


def test_what_is_written_in_place_of_what_was_copied_stays_until_it_is_copied_too(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        tiered.reconfigure(local_retention_bytes=0, local_retention_ms=0)
        await fill(tiered, 0, 60)
        await tiered.round()
        await tiered.log.truncate_to(20)
        tiered.partition.leader_epoch = 1
        tiered.log.begin_epoch(1, 20)
        await fill(tiered, 20, 100)
        await tiered.broker.manager.checkpoint_recovery_points()
        await tiered.delete_locally()
        assert tiered.log.local_log_start_offset <= 20, "nobody has looked at the metadata since"

    run(body)


def test_nothing_is_copied_while_the_topic_is_being_deleted(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        await tiered.manager._say_deletion(tiered.key, RemotePartitionDeleteState.DELETE_PARTITION_MARKED)
        await tiered.round()
        assert not tiered.objects()

    run(body)
