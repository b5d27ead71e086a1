"""How far copies and retention of a leader go: each of these was a mutant that no other test found."""

from __future__ import annotations

import os

import pytest

from barnabas.log.manager.retention import delete_old_segments
from barnabas.tiered import segment_copier
from barnabas.tiered.object_names import ObjectKind, object_name
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.record_validation import AppendOrigin
from tests.unit.log.log_broker import records, send
from tests.unit.tiered import test_remote_log_manager
from tests.unit.tiered.test_remote_log_manager import Run, commit, fill, tier
from tests.unit.tiered.tiered_broker import TieredBroker

run = test_remote_log_manager.run


def test_only_as_much_of_a_file_is_copied_as_the_segment_had(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        segment = tiered.log.segments.first
        files = tiered.host.files
        files.pwrite(segment.data_descriptor(), b"behind its end", segment.size_bytes)
        await tiered.round()
        copied = tiered.cache.segments()[0]
        copy = files.open(f"/tier/{object_name(copied, ObjectKind.LOG)}", os.O_RDONLY)
        assert files.size(copy) == segment.size_bytes == copied.size_bytes
        files.close(copy)

    run(body)


def test_what_was_written_and_not_heard_of_is_read_and_not_copied_again(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        outcomes = iter([(True, True), (True, False)])
        tiered.topic.outcome = lambda: next(outcomes, (True, True))
        await tiered.manager.copy_once()
        assert tiered.log.remote_end_offset == 0, "its last record is in doubt"
        await tiered.round()
        assert tiered.log.remote_end_offset == tiered.log.segments.active.base_offset
        copied = [segment.start_offset for segment in tiered.cache.segments()]
        assert sorted(set(copied)) == sorted(copied)
        tiered.check_objects()

    run(body)


def test_retention_moves_the_start_of_the_log_no_further_than_the_high_watermark(run: Run) -> None:
    """A leader may know less of what is committed than the one before it, who has copied it."""

    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 100)
        await tier(tiered)
        assert tiered.log.remote_end_offset > 30
        tiered.reconfigure(retention_bytes=1)
        tiered.log.update_high_watermark(30)
        await tiered.round()
        assert tiered.log.log_start_offset == tiered.log.high_watermark == 30

    run(body)


def test_local_retention_stays_below_the_recovery_point_in_the_checkpoint(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        tiered.reconfigure(local_retention_bytes=0)
        await fill(tiered, 0, 100)
        await tiered.round()
        now_ms = tiered.host.clock.time_ms()
        assert tiered.log.remote_end_offset > 30
        assert delete_old_segments(tiered.log, now_ms, lambda _: now_ms, 30)
        assert 0 < tiered.log.local_log_start_offset <= 30

    run(body)


def test_a_snapshot_that_is_made_anew_has_the_producers_of_the_segment_and_no_others(run: Run) -> None:
    """Of what lies in the file behind the segment's bytes nobody knows whether it was ever true."""

    async def body(tiered: TieredBroker) -> None:
        for number in range(60):
            send(tiered.log, number, b"v" * 100, timestamp_ms=tiered.host.clock.time_ms())
        await commit(tiered)
        segment, following = list(tiered.log.segments)[:2]
        files = tiered.host.files
        files.unlink(tiered.log.producer_snapshot_path(following.base_offset))
        stranger = records(b"x", base_offset=following.base_offset, producer_id=99, producer_epoch=0, base_sequence=0)
        files.pwrite(segment.data_descriptor(), bytes(stranger), segment.size_bytes)
        await tiered.round()
        state = await tiered.reads.auxiliary_state(tiered.log, 0, following.base_offset - 1)
        assert state is not None
        assert [(each.producer_id, each.last_offset) for each in state.producers] == [(7, following.base_offset - 1)]

    run(body)


@pytest.mark.parametrize("is_torn", [False, True])
def test_a_snapshot_is_made_anew_from_the_last_one_however_long_ago_that_was(run: Run, is_torn: bool) -> None:
    """It says which transactions are open, and so how far a reader of committed records must look."""

    async def body(tiered: TieredBroker) -> None:
        log = tiered.log
        send(log, 0, b"a" * 100, producer_id=8, is_transactional=True, timestamp_ms=tiered.host.clock.time_ms())
        for number in range(60):
            send(log, number, b"v" * 100, timestamp_ms=tiered.host.clock.time_ms())
        log.append_as_leader(
            end_transaction_batch(
                EndTransactionMarker(ControlRecordType.ABORT, 0),
                timestamp_ms=tiered.host.clock.time_ms(),
                producer_id=8,
                producer_epoch=0,
            ),
            0,
            origin=AppendOrigin.COORDINATOR,
        )
        await commit(tiered)
        bases = [segment.base_offset for segment in log.segments]
        files = tiered.host.files
        for lost in bases[2:4]:
            path = log.producer_snapshot_path(lost)
            if is_torn:
                descriptor = files.open(path, os.O_RDWR)
                files.truncate(descriptor, 20)
                files.close(descriptor)
            else:
                files.unlink(path)
        await tiered.round()
        for base in bases[1:4]:
            state = await tiered.reads.auxiliary_state(log, 0, base - 1)
            assert state is not None
            assert {each.producer_id: each.transaction_first_offset for each in state.producers} == {8: 0, 7: -1}

    run(body)


@pytest.mark.parametrize("replayed_max", [0, 100])
def test_without_any_snapshot_all_is_read_again_or_nothing_is_copied(
    run: Run, monkeypatch: pytest.MonkeyPatch, replayed_max: int
) -> None:
    async def body(tiered: TieredBroker) -> None:
        monkeypatch.setattr(segment_copier, "_REPLAYED_MAX", replayed_max)
        log = tiered.log
        for number in range(60):
            send(log, number, b"v" * 100, timestamp_ms=tiered.host.clock.time_ms())
        await commit(tiered)
        third = list(log.segments)[2].base_offset
        for segment in list(log.segments)[1:3]:
            tiered.host.files.unlink(log.producer_snapshot_path(segment.base_offset))
        await tiered.manager.copy_once()
        state = await tiered.reads.auxiliary_state(log, 0, third - 1)
        if replayed_max:
            assert state is not None
            assert [each.last_offset for each in state.producers] == [third - 1]
        else:
            assert state is None
            assert tiered.metrics.of("flights").copy_errors.count == 1

    run(body)
