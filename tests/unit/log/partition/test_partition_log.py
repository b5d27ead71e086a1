"""The log of a partition as leaders, followers and readers use it."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.log.partition.appending import AppendError, UnexpectedOffsetError
from barnabas.log.partition.log_config import LogConfig
from barnabas.log.partition.log_flusher import LogFlusher
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.log.partition.timestamp_lookup import ListedOffset
from barnabas.log.segments.segment import Segment
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_errors import CorruptRecordError
from barnabas.wire.record_validation import AppendOrigin
from barnabas.wire.topics import TopicPartition
from tests.unit.log.log_broker import FLIGHTS, LogBroker, records, refusal, send

WithBroker = Callable[..., Any]
START_MS = 1_700_000_000_000


def test_what_a_leader_appends_is_read_back_after_a_restart(with_broker: WithBroker) -> None:
    async def write(broker: LogBroker) -> None:
        log = broker.log()
        for number in range(20):
            result = log.append_as_leader(records(b"a%d" % number, b"b%d" % number), 3)
            assert (result.first_offset, result.last_offset) == (2 * number, 2 * number + 1)
        await broker.written(log)
        log.increase_high_watermark(40)
        assert [each.value for each in await broker.records(log)][:3] == [b"a0", b"b0", b"a1"]

    async def read(broker: LogBroker) -> None:
        log = broker.manager.logs[FLIGHTS]
        assert (log.log_start_offset, log.log_end_offset, log.recovery_point, log.latest_epoch) == (0, 40, 40, 3)
        assert [each.offset for each in await broker.records(log, 7)] == list(range(6, 40))

    with_broker(write, read, read)


def test_what_a_leader_appends_is_read_back_after_a_crash(with_broker: WithBroker) -> None:
    async def write(broker: LogBroker) -> None:
        log = broker.log()
        for number in range(20):
            send(log, number)
        await broker.written(log)

    async def read(broker: LogBroker) -> None:
        log = broker.manager.logs[FLIGHTS]
        assert (log.log_end_offset, log.recovery_point, log.latest_epoch) == (20, 0, 0)
        entry = log.producers.get(7)
        assert entry is not None
        assert [batch[0] for batch in entry.batches] == [15, 16, 17, 18, 19]

    with_broker(write, read, is_clean=False)


def test_answers_a_repeated_batch_with_its_offsets_and_refuses_a_gap(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = broker.log()
        first = send(log, 0, b"a", b"b")
        send(log, 2)
        again = send(log, 0, b"a", b"b")
        assert again.is_duplicate
        assert again[:2] == first[:2] == (0, 1)
        assert log.append_end_offset == 3
        assert refusal(lambda: send(log, 4)).code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        send(log, 3, producer_id=8)
        assert log.append_end_offset == 4
        assert {entry.producer_id for entry in log.active_producers()} == {7, 8}

    with_broker(main)


def test_refuses_what_the_topic_does_not_allow_and_says_which_record(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = broker.log()
        assert refusal(lambda: log.append_as_leader(records(b"x" * 300), 0)).code is ErrorCode.MESSAGE_TOO_LARGE
        torn = records(b"a")
        torn[-1] ^= 1
        assert refusal(lambda: log.append_as_leader(torn, 0)).code is ErrorCode.CORRUPT_MESSAGE
        log.reconfigure(LogConfig(cleanup_policy=("compact",)))
        builder = records(b"a")
        keyless = bytearray(builder)
        log.append_as_leader(keyless, 0)
        log.reconfigure(LogConfig(message_timestamp_before_max_ms=1000))
        error = refusal(lambda: log.append_as_leader(records(b"a", b"b", timestamp_ms=5), 0))
        assert error.code is ErrorCode.INVALID_TIMESTAMP
        assert [each.batch_index for each in error.record_errors] == [0, 1]
        assert error.log_start_offset == 0
        log.reconfigure(LogConfig(segment_bytes=100))
        error = refusal(lambda: log.append_as_leader(records(b"x" * 300), 0))
        assert error.code is ErrorCode.RECORD_LIST_TOO_LARGE
        assert log.append_end_offset == 1

    with_broker(main, config=LogConfig(message_bytes_max=200))


def test_stores_its_own_time_and_codec_where_the_topic_says_so(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = broker.log()
        before_ms = broker.host.clock.time_ms()
        result = log.append_as_leader(records(b"x" * 500, timestamp_ms=5), 0)
        assert result.log_append_time_ms == result.max_timestamp_ms >= before_ms
        assert result.size_bytes < 300 < result.uncompressed_bytes
        await broker.written(log)
        (record,) = await broker.records(log)
        assert (record.timestamp_ms, record.value) == (result.log_append_time_ms, b"x" * 500)

    with_broker(main, config=LogConfig(message_timestamp_type="LogAppendTime", compression_type="lz4"))


def test_a_follower_takes_what_the_leader_has(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        leader, follower = broker.log(), broker.log(FLIGHTS._replace(partition=1))
        for epoch in (0, 0, 4):
            leader.append_as_leader(records(b"a", b"b"), epoch)
        send(leader, 0)
        await broker.written(leader)
        data = (await broker.batches(leader))[0]
        with pytest.raises(CorruptRecordError):
            follower.append_as_follower(data[:-1] + b"?")
        result = follower.append_as_follower(data[:-5], leader_epoch=4)
        assert result is not None
        assert (result.first_offset, result.last_offset) == (0, 5)
        with pytest.raises(UnexpectedOffsetError):
            follower.append_as_follower(data)
        assert follower.append_as_follower(data[-5:]) is None
        assert follower.leader_epochs.entries == leader.leader_epochs.entries
        await broker.written(follower)
        assert await broker.batches(follower) == [data[: follower.size_bytes]]
        newer = broker.log(FLIGHTS._replace(partition=2))
        partial = newer.append_as_follower(data, leader_epoch=3)
        assert partial is not None
        assert newer.append_end_offset == 4, "batches of a newer leader are left out"

    with_broker(main)


def test_readers_see_as_far_as_they_may(with_broker: WithBroker) -> None:
    """An open transaction holds `read_committed` back; when it was aborted, the reader is told."""

    async def main(broker: LogBroker) -> None:
        log = broker.log()
        log.append_as_leader(records(b"a"), 0)
        send(log, 0, b"in doubt", is_transactional=True)
        log.append_as_leader(records(b"c"), 0)
        await broker.written(log)
        log.increase_high_watermark(3)
        assert (log.high_watermark, log.last_stable_offset) == (3, 1)
        for isolation, end in (
            (ReadIsolation.LOG_END, 3),
            (ReadIsolation.HIGH_WATERMARK, 3),
            (ReadIsolation.COMMITTED, 1),
        ):
            assert len(await broker.records(log, isolation=isolation)) == end
        marker = end_transaction_batch(
            EndTransactionMarker(ControlRecordType.ABORT, 1), timestamp_ms=1, producer_id=7, producer_epoch=0
        )
        log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)
        assert log.last_stable_offset == 1
        await broker.written(log)
        log.increase_high_watermark(4)
        assert log.last_stable_offset == 4
        read = log.read(0, 1000, ReadIsolation.COMMITTED, has_minimum=True)
        assert read.aborted is not None
        assert [(each.producer_id, each.first_offset, each.last_offset) for each in read.aborted] == [(7, 1, 3)]
        assert log.read(4, 1000, ReadIsolation.COMMITTED, has_minimum=True)[:3] == (None, 4, 4)
        assert log.read(0, 1000, ReadIsolation.HIGH_WATERMARK, has_minimum=True).aborted is None
        for offset in (-1, 5):
            with pytest.raises(KafkaError) as caught:
                log.read(offset, 1000, ReadIsolation.LOG_END, has_minimum=True)
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    with_broker(main)


def test_nothing_is_opened_for_an_aborted_transaction_before_its_segment_is_complete(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append is on the loop, and a full disk may take a third of a second to make a file."""

    async def main(broker: LogBroker) -> None:
        log = broker.log()
        opened: list[str] = []
        files = type(broker.host.files)
        open_file, open_as = files.open, files.open_as

        def noting(self: Any, path: str, flags: int) -> int:
            opened.append(Path(path).suffix)
            return open_file(self, path, flags)

        def noting_as(self: Any, descriptor: int, path: str, flags: int) -> None:
            """What a queue makes."""
            opened.append(Path(path).suffix)
            open_as(self, descriptor, path, flags)

        monkeypatch.setattr(files, "open", noting)
        monkeypatch.setattr(files, "open_as", noting_as)
        for epoch in range(3):
            send(log, epoch, b"in doubt", is_transactional=True)
            marker = end_transaction_batch(
                EndTransactionMarker(ControlRecordType.ABORT, 1), timestamp_ms=1, producer_id=7, producer_epoch=0
            )
            log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)
        assert ".txnindex" not in opened
        await broker.written(log)
        log.increase_high_watermark(6)
        aborted = log.read(0, 1000, ReadIsolation.COMMITTED, has_minimum=True).aborted
        assert aborted is not None
        assert [each.first_offset for each in aborted] == [0, 2, 4]
        await log.flush_complete(6)
        assert opened.count(".txnindex") == 1
        assert Path(f"{log.directory}/{0:020d}.txnindex").stat().st_size == 3 * 34

    with_broker(main)


def test_an_aborted_transaction_is_told_after_a_crash_too(with_broker: WithBroker) -> None:
    async def write(broker: LogBroker) -> None:
        log = broker.log()
        send(log, 0, b"in doubt", is_transactional=True)
        marker = end_transaction_batch(
            EndTransactionMarker(ControlRecordType.ABORT, 1),
            timestamp_ms=broker.host.clock.time_ms(),
            producer_id=7,
            producer_epoch=0,
        )
        log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)
        send(log, 1, b"open", is_transactional=True, timestamp_ms=broker.host.clock.time_ms())
        await broker.written(log)

    async def read(broker: LogBroker) -> None:
        log = broker.manager.logs[FLIGHTS]
        log.increase_high_watermark(3)
        assert log.last_stable_offset == 2
        aborted = log.read(0, 1000, ReadIsolation.COMMITTED, has_minimum=True).aborted
        assert aborted is not None
        assert [each.first_offset for each in aborted] == [0]

    with_broker(write, read, is_clean=False)


def test_counts_the_bytes_that_a_read_could_give(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = broker.log()
        sizes = [log.append_as_leader(records(b"x" * number), 0).size_bytes for number in range(40)]
        assert log.segment_count > 2
        await broker.written(log)
        assert [log.bytes_from(offset, ReadIsolation.LOG_END) for offset in (0, 17, 39, 40)] == [
            sum(sizes), sum(sizes[17:]), sizes[39], 0,
        ]  # fmt: skip
        log.increase_high_watermark(30)
        assert log.bytes_from(3, ReadIsolation.HIGH_WATERMARK) == sum(sizes[3:30])

    with_broker(main, config=LogConfig(segment_bytes=1000, index_interval_bytes=100))


def test_lists_offsets_by_place_and_time(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = broker.log()
        assert await log.list_offset(-3) is None
        for number in range(30):
            late_ms = 500 if number == 12 else 0
            log.append_as_leader(records(b"x" * 30, timestamp_ms=START_MS + number + late_ms), number // 10)
        await broker.written(log)
        log.increase_high_watermark(30)
        log.increase_log_start_offset(5, "test")
        assert await log.list_offset(-2) == await log.list_offset(-4) == ListedOffset(-1, 5, 0)
        assert await log.list_offset(-1) == ListedOffset(-1, 30, 2)
        assert await log.list_offset(-3) == ListedOffset(START_MS + 512, 12, 1)
        assert await log.list_offset(-5) == ListedOffset(-1, -1, -1)
        assert await log.list_offset(START_MS) == ListedOffset(START_MS + 5, 5, 0)
        assert await log.list_offset(START_MS + 11) == ListedOffset(START_MS + 11, 11, 1)
        assert await log.list_offset(START_MS + 29) == ListedOffset(START_MS + 512, 12, 1)
        assert await log.list_offset(START_MS + 513) is None
        with pytest.raises(KafkaError, match="no place"):
            await log.list_offset(-6)

    with_broker(main, config=LogConfig(segment_bytes=600, index_interval_bytes=100))


def test_deletes_records_only_below_the_high_watermark(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = broker.log()
        for _ in range(10):
            log.append_as_leader(records(b"a"), 0)
        await broker.written(log)
        log.increase_high_watermark(6)
        with pytest.raises(KafkaError) as caught:
            log.delete_records_to(7)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert log.delete_records_to(4) == 4
        assert log.delete_records_to(2) == 4
        assert log.delete_records_to(-1) == 6
        log.reconfigure(LogConfig(cleanup_policy=("compact",)))
        with pytest.raises(KafkaError) as caught:
            log.delete_records_to(6)
        assert caught.value.code is ErrorCode.POLICY_VIOLATION

    with_broker(main)


def test_retention_by_time_keeps_what_is_not_committed(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = broker.log()
        for number in range(30):
            log.append_as_leader(records(b"x" * 50, timestamp_ms=START_MS + number), 0)
        count = log.segment_count
        assert count > 3
        await broker.written(log)
        await broker.manager.delete_old_segments()
        assert log.segment_count == count, "nothing is committed"
        log.increase_high_watermark(20)
        await broker.manager.delete_old_segments()
        assert 1 < log.segment_count < count
        assert log.log_start_offset == log.segments.first.base_offset <= 20
        log.increase_high_watermark(30)
        await broker.manager.delete_old_segments()
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (30, 30, 0)
        assert log.append_as_leader(records(b"more"), 0).first_offset == 30

    with_broker(main, config=LogConfig(segment_bytes=600, retention_ms=1000))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("missing_bytes", "spared"), [(-1, 0), (0, 0), (1, 1)])
def test_retention_by_size_deletes_a_segment_once_the_others_are_enough(
    with_broker: WithBroker, count: int, missing_bytes: int, spared: int
) -> None:
    """As soon as what is left has `retention.bytes`; with one byte less it would have too little."""

    async def main(broker: LogBroker) -> None:
        log = broker.log()
        for number in range(30):
            log.append_as_leader(records(bytes(50 + number)), 0)
        await broker.written(log)
        log.increase_high_watermark(30)
        before = [segment.size_bytes for segment in log.segments]
        assert len(before) > 3
        left_bytes = log.size_bytes - sum(before[:count])
        log.reconfigure(dataclasses.replace(log.config, retention_bytes=left_bytes + missing_bytes))
        await broker.manager.delete_old_segments()
        assert [segment.size_bytes for segment in log.segments] == before[count - spared :]

    with_broker(main, config=LogConfig(segment_bytes=600, retention_ms=-1))


def test_logs_made_together_do_not_roll_together_where_the_topic_has_a_jitter(with_broker: WithBroker) -> None:
    """Neither with their first segments, nor with those that a start has found."""

    def logs(broker: LogBroker) -> list[PartitionLog]:
        return [broker.log(FLIGHTS._replace(partition=number)) for number in range(40)]

    async def main(broker: LogBroker) -> None:
        for log in logs(broker):
            log.append_as_leader(records(b"first", timestamp_ms=START_MS), 0)
            log.append_as_leader(records(b"later", timestamp_ms=START_MS + 600), 0)
        assert 0 < sum(log.segment_count > 1 for log in logs(broker)) < 40
        for log in logs(broker):
            log.append_as_leader(records(b"much later", timestamp_ms=START_MS + 6_000), 0)

    async def after(broker: LogBroker) -> None:
        before = {log: log.segment_count for log in logs(broker)}
        for log in before:
            log.append_as_leader(records(b"last", timestamp_ms=START_MS + 6_600), 0)
        assert 0 < sum(log.segment_count > count for log, count in before.items()) < 40

    with_broker(main, after, config=LogConfig(segment_ms=1_000, segment_jitter_ms=1_000))


def test_a_compacted_topic_is_kept(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = broker.log()
        for _ in range(20):
            log.append_as_leader(records(b"x" * 50, timestamp_ms=5), 0)
        await broker.written(log)
        log.increase_high_watermark(20)
        await broker.manager.delete_old_segments()
        assert log.log_start_offset == 0
        log.increase_log_start_offset(15, "test")
        await broker.manager.delete_old_segments()
        assert log.segments.first.base_offset > 0, "what lies before the start goes"

    config = LogConfig(segment_bytes=600, retention_ms=1000, retention_bytes=700, cleanup_policy=("compact",))
    with_broker(main, config=config)


def test_a_follower_takes_more_at_once_than_its_segments_hold(with_broker: WithBroker) -> None:
    """The leader may have written them when `segment.bytes` was greater."""

    async def main(broker: LogBroker) -> None:
        data = b"".join(await leader_bytes(broker))
        follower = broker.log(TopicPartition("follower", 0), config=LogConfig(segment_bytes=200))
        assert len(data) > 200
        result = follower.append_as_follower(bytearray(data))
        assert result is not None
        assert follower.append_end_offset == 5

    async def leader_bytes(broker: LogBroker) -> list[bytes]:
        leader = broker.log()
        for number in range(5):
            leader.append_as_leader(records(b"x" * 50 + b"%d" % number), 0)
        await broker.written(leader)
        return await broker.batches(leader)

    with_broker(main)


def test_what_several_requests_bring_has_outcomes_of_its_own(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = broker.log()
        send(log, 0)
        sent = [
            records(b"new", producer_id=7, producer_epoch=0, base_sequence=1),
            records(b"known", producer_id=7, producer_epoch=0, base_sequence=0),
            records(b"plain"),
            records(b"too early", producer_id=8, producer_epoch=0, base_sequence=0),
            records(b"too late", producer_id=7, producer_epoch=0, base_sequence=9),
            records(b"broken")[:-1] + b"?",
            records(b"last"),
        ]
        outcomes = log.append_all_as_leader(sent, 0).outcomes
        assert [each.code if isinstance(each, AppendError) else (each[0], each[7]) for each in outcomes] == [
            (1, False),
            (0, True),
            (2, False),
            (3, False),
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            ErrorCode.CORRUPT_MESSAGE,
            (4, False),
        ]
        await broker.written(log)
        assert [record.value for record in await broker.records(log, 1)] == [b"new", b"plain", b"too early", b"last"]

    with_broker(main)


def test_nothing_more_is_appended_when_a_write_for_several_requests_has_failed(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    async def main(broker: LogBroker) -> None:
        log = broker.log()
        monkeypatch.setattr(Segment, "append_batches", fail)
        sent = [
            records(b"value", producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            for sequence in (0, 1)
            for producer_id in (7, 8)
        ]
        outcomes = log.append_all_as_leader(sent, 0).outcomes
        assert [isinstance(each, AppendError) and each.code for each in outcomes] == [ErrorCode.KAFKA_STORAGE_ERROR] * 4
        assert (log.is_offline, log.log_end_offset, len(log.segments.active.pending)) == (True, 0, 0)

    with_broker(main, is_clean=False)


@pytest.mark.parametrize("ending", ["fails", "is deleted"])
def test_what_was_not_written_when_the_log_ended_counts_for_nobody_who_asks_later(
    with_broker: WithBroker, ending: str
) -> None:
    async def main(broker: LogBroker) -> None:
        log = broker.log()
        log.append_as_leader(records(b"lost"), 0)
        if ending == "fails":
            broker.manager.fail_directory(log.log_directory, OSError(errno.EIO, "broken"))
        else:
            log.detach(f"{log.directory}-gone")
        await asyncio.sleep(0.01)  # the tick is over
        assert broker.manager.write_queue.needs_wait(log)
        with pytest.raises(KafkaError) as caught:
            await broker.written(log)
        expected = ErrorCode.KAFKA_STORAGE_ERROR if ending == "fails" else ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert caught.value.code is expected
        told: list[KafkaError | None] = []
        broker.manager.write_queue.when_in_file(log, told.append)
        assert [type(each) for each in told] == [AppendError]

    with_broker(main, is_clean=False)


def test_a_flush_counts_no_sooner_than_those_before_it(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier one has taken the segments that have rolled, and may wait longer for a place off the loop."""

    async def main(broker: LogBroker) -> None:
        log = broker.log()
        log.append_as_leader(records(b"one"), 0)
        perform, may_end = LogFlusher._perform_flush, asyncio.Event()

        async def perform_late(self: LogFlusher, *work: Any) -> None:
            monkeypatch.setattr(LogFlusher, "_perform_flush", perform)
            await may_end.wait()
            await perform(self, *work)

        monkeypatch.setattr(LogFlusher, "_perform_flush", perform_late)
        first = asyncio.ensure_future(log.flush())
        await asyncio.sleep(0.01)
        log.append_as_leader(records(b"two"), 0)
        second = asyncio.ensure_future(log.flush())
        await asyncio.sleep(0.05)
        assert (second.done(), log.recovery_point) == (False, 0)
        may_end.set()
        await asyncio.gather(first, second)
        assert log.recovery_point == 2

    with_broker(main)


def test_flush_messages_delays_the_acknowledgement_until_the_sync(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        log = broker.log()
        for _ in range(3):
            log.append_as_leader(records(b"a"), 0)
            await broker.written(log)
            assert log.recovery_point == log.log_end_offset

    with_broker(main, config=LogConfig(flush_messages=1))


def test_damage_that_a_read_meets_is_said(with_broker: WithBroker) -> None:
    async def write(broker: LogBroker) -> None:
        log = broker.log()
        for _ in range(5):
            log.append_as_leader(records(b"x" * 20), 0)

    async def read(broker: LogBroker) -> None:
        log = broker.manager.logs[FLIGHTS]
        log.segments.active.become_inactive()  # what is in memory of the last batches goes
        path = Path(log.segments.active.path)
        data = bytearray(path.read_bytes())
        data[8:12] = bytes(4)
        path.write_bytes(data)
        with pytest.raises(KafkaError) as caught:
            log.read(3, 100, ReadIsolation.LOG_END, has_minimum=True)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        assert not log.is_offline

    with_broker(write, read)
