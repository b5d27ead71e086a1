"""Reads and look-ups of what one leader has in remote storage, on a simulated machine."""

from __future__ import annotations

import os
import struct
from dataclasses import replace

import pytest

from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.log.segments.indexes import AbortedTransaction
from barnabas.serving.list_offsets import find_offset
from barnabas.serving.remote_fetch import RemoteFetch
from barnabas.tiered.object_names import ObjectKind, object_name
from barnabas.tiered.storage import open_store
from barnabas.wire.batch_formats import read_records
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_validation import AppendOrigin
from tests.unit.log.log_broker import records, send
from tests.unit.tiered import test_remote_log_manager
from tests.unit.tiered.test_remote_log_manager import FIRST_MS, Run, commit, fill, tier
from tests.unit.tiered.tiered_broker import TieredBroker

run = test_remote_log_manager.run


def remote_fetch(tiered: TieredBroker, offset: int, bytes_max: int = 1000, **options: bool) -> RemoteFetch:
    return RemoteFetch(tiered.log, offset, bytes_max, **({"has_minimum": True, "is_committed": False} | options))


def test_a_read_gets_as_much_as_it_may_and_at_least_one_batch(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        await tier(tiered)
        one = len(bytes(records(b"0" + b"." * 100)))
        for bytes_max, expected in ((1, [0]), (one + 5, [0]), (3 * one + 5, [0, 1, 2])):
            found = (await tiered.reads.read(remote_fetch(tiered, 0, bytes_max))).data
            assert [record.offset for record in read_records(found)] == expected
        assert (await tiered.reads.read(remote_fetch(tiered, 0, 1, has_minimum=False))).data == b""
        with pytest.raises(KafkaError) as caught:
            await tiered.reads.read(remote_fetch(tiered, 1_000))
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    run(body)


def test_a_storage_that_fails_or_takes_too_long_is_told(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        await tier(tiered)
        segment = tiered.cache.segments()[0]
        for name in tiered.objects():
            if str(segment.segment_id.id) in name:
                tiered.host.files.unlink(f"/tier/{name}")
        with pytest.raises(KafkaError, match="remote storage cannot be read") as caught:
            await tiered.reads.read(remote_fetch(tiered, 0))
        assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
        tiered.reads._settings = replace(tiered.settings, fetch_wait_max_ms=0)
        assert (await tiered.reads.read(remote_fetch(tiered, 20))).data == b"", "the consumer comes back"
        tiered.reads._settings = replace(tiered.settings, reads_pending_max=0)
        assert (await tiered.reads.read(remote_fetch(tiered, 20))).data == b""

    run(body)


def test_times_and_places_are_looked_up_remotely_first(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 100)
        await tier(tiered)
        log = tiered.log
        tiered.partition.readable_log = lambda *_, **__: log  # type: ignore[attr-defined]
        tiered.partition.latest_offset_error = lambda: None  # type: ignore[attr-defined]

        async def find(timestamp_ms: int) -> int | None:
            found = await find_offset(
                tiered.partition,  # type: ignore[arg-type]
                timestamp_ms,
                ReadIsolation.HIGH_WATERMARK,
                -1,
                leader_only=True,
                remote=tiered.reads,
            )
            return None if found is None else found.offset

        for number in range(100):
            assert await find(FIRST_MS + number) == number
        assert await find(0) == 0
        assert await find(FIRST_MS + 100) is None
        assert await find(-2) == 0
        assert await find(-4) == log.local_log_start_offset > 0
        assert await find(-5) == log.remote_end_offset - 1
        log.delete_records_to(10)
        assert (await find(0), await find(-2)) == (10, 10)

    run(body)


def test_readers_of_committed_records_learn_what_was_aborted(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        log = tiered.log
        for round_number in range(12):
            send(log, round_number * 2, b"a" * 200, b"b" * 200, producer_id=7, is_transactional=True)
            kind = ControlRecordType.ABORT if round_number % 3 else ControlRecordType.COMMIT
            log.append_as_leader(end_marker(kind), 0, origin=AppendOrigin.COORDINATOR)
        await commit(tiered)
        await fill(tiered, 100, 130)
        local = {
            offset: log.read(offset, 300, ReadIsolation.COMMITTED, has_minimum=True).aborted
            for offset in range(0, 36, 3)
        }
        assert any(local.values())
        await tier(tiered)
        for offset, expected in local.items():
            if offset < log.local_log_start_offset:
                found = await tiered.reads.read(remote_fetch(tiered, offset, 300, is_committed=True))
                assert set(expected or ()) <= set(found.aborted or ())
                assert all(each.last_offset >= offset for each in found.aborted or ())
        assert (await tiered.reads.read(remote_fetch(tiered, 0))).aborted is None

    run(body)


async def fill_with_aborted(tiered: TieredBroker) -> None:
    """A transaction is aborted in the first segment, another one goes on from the second into the third."""
    log = tiered.log
    send(log, 0, b"a" * 200, producer_id=7, is_transactional=True)
    log.append_as_leader(end_marker(ControlRecordType.ABORT), 0, origin=AppendOrigin.COORDINATOR)
    await fill(tiered, 2, 12)
    send(log, 1, b"b" * 200, producer_id=7, is_transactional=True)
    await fill(tiered, 13, 23)
    log.append_as_leader(end_marker(ControlRecordType.ABORT), 0, origin=AppendOrigin.COORDINATOR)
    await fill(tiered, 24, 200)
    await tier(tiered)
    first, second, third = tiered.cache.segments()[:3]
    assert first.end_offset < 12 <= second.end_offset < 23 <= third.end_offset


@pytest.mark.parametrize("kept", [None, 33])
def test_a_lost_index_of_aborted_transactions_is_told_to_who_needs_it_and_to_nobody_else(
    run: Run, kept: int | None
) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill_with_aborted(tiered)
        first, second, third, fourth = tiered.cache.segments()[:4]
        for segment in (first, third):
            path = f"/tier/{object_name(segment, ObjectKind.TRANSACTION_INDEX)}"
            if kept is None:
                tiered.host.files.unlink(path)
            else:
                descriptor = tiered.host.files.open(path, os.O_RDWR)
                tiered.host.files.truncate(descriptor, kept)
                tiered.host.files.close(descriptor)
        for offset in (0, 12, third.start_offset):
            with pytest.raises(KafkaError, match=r"\.txnindex is lost") as caught:
                await tiered.reads.read(remote_fetch(tiered, offset, is_committed=True))
            assert caught.value.code is ErrorCode.CORRUPT_MESSAGE, "a consumer does not come back for ever"
            assert (await tiered.reads.read(remote_fetch(tiered, offset))).data, "records as they are"
        for offset in (second.start_offset, fourth.start_offset):
            found = await tiered.reads.read(remote_fetch(tiered, offset, bytes_max=1, is_committed=True))
            assert (bool(found.data), found.aborted) == (True, []), "what is lost has nothing of it"
        store = open_store(tiered.host.files, tiered.settings.url)
        store.put(object_name(first, ObjectKind.TRANSACTION_INDEX), [])
        await tiered.reads.read(remote_fetch(tiered, 0, is_committed=True))

    run(body)


def test_a_reader_of_committed_records_looks_no_further_than_open_transactions_go(run: Run) -> None:
    """It looked at the indexes of all that was copied later, and with very many never came to an end."""

    async def body(tiered: TieredBroker) -> None:
        await fill_with_aborted(tiered)
        segments = tiered.cache.segments()
        assert len(segments) > 10
        loaded = tiered.reads._indexes
        for offset, expected, segment_count in ((0, [0], 1), (12, [12], 3), (segments[5].start_offset, [], 4)):
            found = await tiered.reads.read(remote_fetch(tiered, offset, bytes_max=1, is_committed=True))
            assert [each.first_offset for each in found.aborted or ()] == expected
            assert len(loaded) == segment_count
        store = open_store(tiered.host.files, tiered.settings.url)
        store.delete([object_name(segments[6], ObjectKind.PRODUCER_SNAPSHOT)])
        await tiered.reads.read(remote_fetch(tiered, segments[6].start_offset, bytes_max=1, is_committed=True))
        assert len(loaded) == 6, "without a snapshot the next one is looked at, which has one"

    run(body)


def test_what_was_aborted_is_told_where_the_segment_before_has_nothing_at_the_offset(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill_with_aborted(tiered)
        second = tiered.cache.segments()[1]
        found = await tiered.reads._aborted(tiered.log, second, second.start_offset - 1, second.size_bytes)
        assert [each.first_offset for each in found] == [12]

    run(body)


def test_what_was_aborted_in_records_that_the_log_has_lost_is_not_told(run: Run) -> None:
    """In what the log has in their place it may have been committed."""

    async def body(tiered: TieredBroker) -> None:
        await fill_with_aborted(tiered)
        epochs = tiered.log._state.leader_epochs
        epochs.clear()
        epochs.assign(0, 0)
        epochs.assign(1, 20)
        found = await tiered.reads.read(remote_fetch(tiered, 12, bytes_max=1, is_committed=True))
        assert found.aborted == []
        local = tiered.log.segments.first
        own = AbortedTransaction(7, 12, local.base_offset, local.base_offset)
        local.transaction_index.append(own)
        found = await tiered.reads.read(remote_fetch(tiered, 12, bytes_max=1, is_committed=True))
        assert found.aborted == [own], "the snapshot of the lost records does not say that there is none"

    run(body)


def end_marker(kind: ControlRecordType, timestamp_ms: int = FIRST_MS) -> bytearray:
    """Of producer 7's transaction."""
    marker = EndTransactionMarker(kind, 0)
    return end_transaction_batch(marker, timestamp_ms=timestamp_ms, producer_id=7, producer_epoch=0)


def test_a_segment_of_two_histories_is_read_as_far_as_they_agree(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        await tier(tiered)
        segment = tiered.cache.segments()[0]
        cut = segment.end_offset - 2
        tiered.log._state.leader_epochs.clear()
        tiered.log._state.leader_epochs.assign(0, 0)
        tiered.log._state.leader_epochs.assign(1, cut)
        found = (await tiered.reads.read(remote_fetch(tiered, 0, 5_000))).data
        assert [record.offset for record in read_records(found)] == list(range(cut))
        with pytest.raises(KafkaError) as caught:
            await tiered.reads.read(remote_fetch(tiered, cut, 5_000))
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    run(body)


def test_times_are_looked_up_in_a_segment_of_two_histories_as_far_as_they_agree(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 100)
        await tier(tiered)
        first, second = tiered.cache.segments()[:2]
        cut = second.end_offset - 2
        epochs = tiered.log._state.leader_epochs
        epochs.clear()
        epochs.assign(0, 0)
        epochs.assign(1, cut)
        for number in range(cut):
            found = await tiered.reads.find_timestamp(tiered.log, FIRST_MS + number)
            assert found is not None
            assert found.offset == number
        assert await tiered.reads.find_timestamp(tiered.log, FIRST_MS + cut) is None, "the log has others there"
        await tiered.manager._delete(first)
        found = await tiered.reads.find_timestamp(tiered.log, FIRST_MS)
        assert found is not None
        assert found.offset == second.start_offset, "a hole ends no look-up"

    run(body)


@pytest.mark.parametrize("kept", [0, 26, 130, 200])
def test_an_object_that_has_lost_its_end_is_an_error_and_is_not_passed_over(run: Run, kept: int) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        await tier(tiered)
        segment = tiered.cache.segments()[0]
        files, path = tiered.host.files, f"/tier/{object_name(segment, ObjectKind.LOG)}"
        descriptor = files.open(path, os.O_RDWR)
        files.truncate(descriptor, kept)
        files.close(descriptor)
        with pytest.raises(KafkaError, match="remote storage cannot be read"):
            await tiered.reads.read(remote_fetch(tiered, segment.end_offset))
        with pytest.raises(KafkaError, match="remote storage cannot be read"):
            await tiered.reads.find_timestamp(tiered.log, FIRST_MS + segment.end_offset)

    run(body)


def test_an_index_that_is_not_that_of_the_segment_is_an_error(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        await tier(tiered)
        segment = tiered.cache.segments()[0]
        for position in (segment.size_bytes, 1 << 30):
            store = open_store(tiered.host.files, tiered.settings.url)
            store.put(object_name(segment, ObjectKind.OFFSET_INDEX), [struct.pack(">ii", 1, position)])
            tiered.reads.forget(segment.segment_id)
            with pytest.raises(KafkaError, match="remote storage cannot be read"):
                await tiered.reads.read(remote_fetch(tiered, segment.end_offset))

    run(body)


def test_indexes_that_take_longer_than_a_fetch_may_wait_are_there_for_the_next(run: Run) -> None:
    async def body(tiered: TieredBroker) -> None:
        await fill(tiered, 0, 60)
        await tier(tiered)
        tiered.reads._settings = replace(tiered.settings, fetch_wait_max_ms=0)
        assert (await tiered.reads.read(remote_fetch(tiered, 0))).data == b""
        await tiered.broker.timers.sleep(1_000)
        assert len(tiered.reads._indexes) == 1

    run(body)
