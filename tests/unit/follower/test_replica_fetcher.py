"""One fetcher and a leader that the test plays, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.follower.fetch_protocol import FetchProtocol
from barnabas.follower.fetcher_partitions import FetchedPartition, FetchPhase
from barnabas.follower.repeated_fetch_request import FetchedAgain
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.leader.partition import Partition
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from barnabas.wire.record_errors import CorruptRecordError
from tests.unit.follower.fetcher_setting import (
    BACKOFF_SECONDS,
    LEADER,
    OTHER_ID,
    SESSION,
    Setting,
    empty_response,
    fetched_response,
    in_setting,
)
from tests.unit.leader.memory_log import TOPIC_ID, Entry, MemoryLog
from tests.unit.leader.partition_setting import PARTITION, leader_and_isr


def test_appends_what_comes_and_fetches_on_from_there() -> None:
    async def test(setting: Setting) -> None:
        setting.follow()
        sent, asked = await setting.fetch_request()
        request = sent.message
        assert (sent.version, request.session_id, request.session_epoch) == (17, 0, 0)
        assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (1, 42)
        assert (asked[0].fetch_offset, asked[0].current_leader_epoch, asked[0].last_fetched_epoch) == (0, 5, -1)
        sent.on_response(fetched_response(Entry(0, 3, "a"), Entry(1, 5, "b"), high_watermark=1))
        log = setting.broker.log
        assert (log.log_end_offset, log.high_watermark) == (2, 1)
        # In the same turn: nothing was awaited.
        sent, asked = setting.leader.sent.get_nowait(), []
        request = sent.message
        assert (request.session_id, request.session_epoch) == (SESSION, 1)
        asked = request.topics[0].partitions
        assert (asked[0].fetch_offset, asked[0].last_fetched_epoch) == (2, 5)

    in_setting(test)


def test_sends_a_request_that_is_like_the_last_one_from_its_frame() -> None:
    async def test(setting: Setting) -> None:
        fetched = setting.follow()
        sent, _ = await setting.fetch_request()
        for offset in range(6):
            assert sent.is_encoded is (offset > 2), "the first opens the session, and two more are as usual"
            data: Any = FetchedAgain(offset, 0, [Entry(offset, 5, "a")])  # type: ignore[arg-type]
            sent.on_response(
                data if sent.is_encoded else fetched_response(Entry(offset, 5, "a"), high_watermark=offset)
            )
            assert (fetched.fetch_offset, setting.broker.log.high_watermark) == (offset + 1, offset)
            sent, asked = await setting.fetch_request()
            (partition,) = asked
            assert (sent.message.session_id, sent.message.session_epoch) == (SESSION, offset + 1)
            assert (sent.message.max_wait_ms, sent.message.forgotten_topics_data) == (20, [])
            assert (sent.message.replica_state.replica_id, sent.message.replica_state.replica_epoch) == (1, 42)
            assert (partition.fetch_offset, partition.current_leader_epoch) == (offset + 1, 5)
            assert (partition.last_fetched_epoch, partition.log_start_offset) == (5, 0)
        # A response that only the codec can read: nothing new, and then one that ends the session.
        sent.on_response(empty_response())
        sent, asked = await setting.fetch_request()
        assert (asked, sent.is_encoded) == ([], False)
        sent.on_response(empty_response(ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
        sent, asked = await setting.fetch_request()
        assert (sent.message.session_epoch, sent.is_encoded, asked[0].fetch_offset) == (0, False, 6)

    in_setting(test)


def test_drops_the_answer_to_such_a_request_for_a_partition_that_was_taken_out_meanwhile() -> None:
    async def test(setting: Setting) -> None:
        setting.follow()
        sent, _ = await setting.fetch_request()
        for offset in range(4):
            sent.on_response(fetched_response(Entry(offset, 5, "a"), high_watermark=offset))
            sent, _ = await setting.fetch_request()
        assert sent.is_encoded
        setting.fetcher.remove([setting.broker.partition.topic_partition])
        sent.on_response(FetchedAgain(4, 0, [Entry(4, 5, "a")]))  # type: ignore[arg-type]
        assert setting.broker.log.log_end_offset == 4
        sent, asked = await setting.fetch_request()
        assert (asked, sent.is_encoded) == ([], False)
        assert sent.message.forgotten_topics_data[0].partitions == [0]

    in_setting(test)


def test_a_topic_that_was_deleted_and_made_anew_is_not_asked_for_by_its_former_id() -> None:
    async def test(setting: Setting) -> None:
        fetched = setting.follow()
        for offset in range(4):
            sent, _ = await setting.fetch_request()
            sent.on_response(fetched_response(Entry(offset, 5, "a"), high_watermark=offset))
        # All of it comes while a request is on its way, of a session that has other partitions or not.
        partition, log = Partition(fetched.topic_partition, setting.broker.context), MemoryLog(PARTITION)
        partition.become_follower(leader_and_isr(LEADER.broker_id, 5, (2,)), lambda: log.as_log)
        setting.fetcher.remove([fetched.topic_partition])
        setting.fetcher.add([FetchedPartition(partition, OTHER_ID, 5, 0, -1, FetchPhase.FETCHING)])
        sent, _ = await setting.fetch_request()
        sent.on_response(empty_response())
        for offset in range(3):
            sent, _ = await setting.fetch_request()
            assert [(topic.topic_id, topic.partitions[0].fetch_offset) for topic in sent.message.topics] == [
                (OTHER_ID, offset)
            ]
            response = fetched_response(Entry(offset, 5, "b"), high_watermark=offset)
            response.responses[0].topic_id = OTHER_ID
            sent.on_response(response)
            assert log.log_end_offset == offset + 1

    in_setting(test)


def test_a_topic_that_gets_an_id_is_asked_for_by_it_without_a_new_leader_epoch() -> None:
    async def test(setting: Setting) -> None:
        fetched = setting.follow()
        fetched.topic_id = ZERO_UUID
        first, _ = await setting.fetch_request()
        assert first.version == 12
        setting.fetcher.take_topic_id(fetched.topic_partition, TOPIC_ID)
        first.on_response(empty_response())
        second, _ = await setting.fetch_request()
        assert (second.version, second.message.topics[0].topic_id) == (17, TOPIC_ID)
        assert second.message.session_id == SESSION
        second.on_response(empty_response(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR))
        third, asked = await setting.fetch_request()
        assert (third.version, third.message.session_epoch, len(asked)) == (17, 0, 1)
        assert third.message.topics[0].topic_id == TOPIC_ID

    in_setting(test)


def test_names_nothing_that_did_not_change() -> None:
    async def test(setting: Setting) -> None:
        setting.follow()
        sent, _ = await setting.fetch_request()
        sent.on_response(fetched_response(high_watermark=0))
        for epoch in range(1, 4):
            sent, asked = await setting.fetch_request()
            assert (sent.message.session_epoch, asked) == (epoch, [])
            sent.on_response(empty_response())

    in_setting(test)


def test_says_that_it_has_records_only_when_they_are_written() -> None:
    async def test(setting: Setting) -> None:
        setting.follow()
        sent, _ = await setting.fetch_request()
        setting.writes.is_slow = True
        sent.on_response(fetched_response(Entry(0, 5, "a")))
        await asyncio.sleep(10)
        assert setting.leader.sent.empty()
        setting.writes.waiting.pop()(None)
        _, asked = await setting.fetch_request()
        assert asked[0].fetch_offset == 1

    in_setting(test)


def test_a_partition_that_cannot_be_written_is_given_up() -> None:
    async def test(setting: Setting) -> None:
        setting.follow()
        sent, _ = await setting.fetch_request()
        setting.writes.is_slow = True
        sent.on_response(fetched_response(Entry(0, 5, "a")))
        setting.writes.waiting.pop()(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
        sent, asked = await setting.fetch_request()
        assert asked == []
        assert sent.message.forgotten_topics_data[0].partitions == [0]
        assert setting.failed == [setting.broker.partition.topic_partition]

    in_setting(test)


def test_cuts_off_where_the_leader_says_that_the_logs_part() -> None:
    async def test(setting: Setting) -> None:
        setting.follow(Entry(0, 1, "a"), Entry(1, 3, "x"), Entry(2, 3, "y"))
        sent, asked = await setting.fetch_request()
        assert (asked[0].fetch_offset, asked[0].last_fetched_epoch) == (3, 3)
        end = FetchResponse.EpochEndOffset(epoch=1, end_offset=1)
        sent.on_response(fetched_response(Entry(9, 9, "not looked at"), high_watermark=3, diverging_epoch=end))
        _, asked = await setting.fetch_request()
        assert (asked[0].fetch_offset, asked[0].last_fetched_epoch) == (1, 1)
        assert setting.broker.log.entries == [Entry(0, 1, "a")]
        assert setting.broker.log.high_watermark == 0

    in_setting(test)


def test_a_partition_that_is_taken_out_while_its_truncation_waits_for_the_disk_keeps_its_records() -> None:
    async def test(setting: Setting) -> None:
        log = setting.broker.log
        setting.follow(Entry(0, 1, "a"), Entry(1, 3, "x"))
        sent, _ = await setting.fetch_request()
        waited: list[bool] = []

        def take_out() -> None:
            setting.fetcher.remove([setting.broker.partition.topic_partition])
            waited.append(True)

        log.wait = take_out
        end = FetchResponse.EpochEndOffset(epoch=1, end_offset=1)
        sent.on_response(fetched_response(diverging_epoch=end))
        await asyncio.sleep(0.1)
        assert waited
        assert log.entries == [Entry(0, 1, "a"), Entry(1, 3, "x")]

    in_setting(test)


def test_asks_where_an_epoch_ends_when_the_leader_does_not_tell_by_itself() -> None:
    async def test(setting: Setting) -> None:
        setting.follow(Entry(0, 1, "a"), Entry(1, 3, "x"), Entry(2, 3, "y"), phase=FetchPhase.TRUNCATING)
        for asked_epoch, answer in ((3, (2, 2)), (1, (1, 1))):
            sent = await setting.request(OffsetForLeaderEpochRequest)
            partition = sent.message.topics[0].partitions[0]
            assert (sent.version, partition.leader_epoch, partition.current_leader_epoch) == (3, asked_epoch, 5)
            end = OffsetForLeaderEpochResponse.EpochEndOffset(partition=0, leader_epoch=answer[0], end_offset=answer[1])
            topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic="flights", partitions=[end])
            sent.on_response(OffsetForLeaderEpochResponse(topics=[topic]))
        sent, asked = await setting.fetch_request()
        assert (sent.version, sent.message.replica_id, asked[0].fetch_offset) == (11, 1, 1)

    in_setting(test, FetchProtocol(11, 3, 5))


def test_a_log_without_epochs_is_cut_off_at_its_high_watermark() -> None:
    async def test(setting: Setting) -> None:
        setting.broker.log.append_as_follower([Entry(0, 0, "a"), Entry(1, 0, "b")])
        setting.broker.log.leader_epochs.clear()
        setting.broker.log.update_high_watermark(1)
        setting.follow(phase=FetchPhase.TRUNCATING)
        _, asked = await setting.fetch_request()
        assert (asked[0].fetch_offset, asked[0].last_fetched_epoch) == (1, -1)

    in_setting(test)


@pytest.mark.parametrize(
    ("leader_start", "leader_end", "expected"),
    [(0, 2, 2), (1, 9, 3), (7, 9, 7)],
    ids=["beyond the leader's end", "within", "before the leader's start"],
)
def test_out_of_range(leader_start: int, leader_end: int, expected: int) -> None:
    async def test(setting: Setting) -> None:
        setting.follow(Entry(0, 1, "a"), Entry(1, 1, "b"), Entry(2, 1, "c"))
        sent, _ = await setting.fetch_request()
        sent.on_response(fetched_response(error=ErrorCode.OFFSET_OUT_OF_RANGE))
        for timestamp, offset in ((-1, leader_end), (-2, leader_start)):
            sent = await setting.request(ListOffsetsRequest)
            assert sent.message.topics[0].partitions[0].timestamp == timestamp
            found = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, offset=offset)
            topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="flights", partitions=[found])
            sent.on_response(ListOffsetsResponse(topics=[topic]))
        _, asked = await setting.fetch_request()
        assert setting.broker.log.log_end_offset == expected
        # An offset that is the same is not named again.
        assert [partition.fetch_offset for partition in asked] == ([] if expected == 3 else [expected])

    in_setting(test)


def test_a_log_that_is_empty_begins_where_the_leaders_batch_does() -> None:
    async def test(setting: Setting) -> None:
        log = setting.broker.log
        log.log_start_offset = log.log_end_offset = log.high_watermark = 5
        setting.follow()
        sent, _ = await setting.fetch_request()
        # Of bytes, as a batch that begins before the start of the leader's log is.
        append = log.append_as_follower
        setting.broker.log.append_as_follower = lambda records, _=None: append(  # type: ignore[assignment,method-assign]
            [Entry(offset, 5, "a") for offset in records]
        )
        response = fetched_response(log_start_offset=5)
        response.responses[0].partitions[0].records = b"\x03"
        sent.on_response(response)
        _, asked = await setting.fetch_request()
        assert (asked[0].fetch_offset, log.log_start_offset) == (4, 3)

    in_setting(test)


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID]
)
def test_errors_that_pass_delay_the_partition(error: ErrorCode) -> None:
    async def test(setting: Setting) -> None:
        setting.follow()
        for delay_seconds in (0.02, 0.04, 0.08, 0.16, 0.32, 0.64, BACKOFF_SECONDS, BACKOFF_SECONDS):
            sent, asked = await setting.fetch_request()
            assert asked[0].fetch_offset == 0
            began = asyncio.get_running_loop().time()
            sent.on_response(fetched_response(error=error))
            sent, asked = await setting.fetch_request()
            assert (asked, sent.message.forgotten_topics_data[0].partitions) == ([], [0])
            sent.on_response(empty_response())
            again, asked = await setting.fetch_request()
            assert asyncio.get_running_loop().time() - began == pytest.approx(delay_seconds, abs=0.005)
            setting.leader.sent.put_nowait(again)
        sent, _ = await setting.fetch_request()
        sent.on_response(fetched_response(high_watermark=0))
        sent, _ = await setting.fetch_request()
        sent.on_response(fetched_response(error=error))
        sent, _ = await setting.fetch_request()
        began = asyncio.get_running_loop().time()
        sent.on_response(empty_response())
        await setting.fetch_request()
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.02, abs=0.005)

    in_setting(test)


def test_a_request_waits_at_the_leader_no_longer_than_a_partition_is_delayed() -> None:
    async def test(setting: Setting) -> None:
        setting.follow()
        sent, _ = await setting.fetch_request()
        sent.on_response(fetched_response(error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        sent, _ = await setting.fetch_request()
        assert 0 < sent.message.max_wait_ms <= 21

    in_setting(test)


def test_requests_wait_shortly_first_and_longer_while_nothing_happens() -> None:
    async def test(setting: Setting) -> None:
        setting.follow()
        waits = []
        for _ in range(8):
            sent, _ = await setting.fetch_request()
            waits.append(sent.message.max_wait_ms)
            await asyncio.sleep(sent.message.max_wait_ms / 1000)
            sent.on_response(fetched_response(session_id=SESSION) if len(waits) == 1 else empty_response())
        assert waits == [20, 20, 40, 80, 160, 320, 500, 500]
        sent, _ = await setting.fetch_request()
        sent.on_response(empty_response())  # before its time: something has changed at the leader
        sent, _ = await setting.fetch_request()
        assert sent.message.max_wait_ms == 20

    in_setting(test)


def test_a_newer_epoch_of_the_leader_is_waited_for() -> None:
    async def test(setting: Setting) -> None:
        setting.follow()
        sent, _ = await setting.fetch_request()
        sent.on_response(fetched_response(error=ErrorCode.FENCED_LEADER_EPOCH))
        assert setting.failed == [setting.broker.partition.topic_partition]
        assert len(setting.fetcher) == 0

    in_setting(test)


@pytest.mark.parametrize(
    ("error", "fails"),
    [
        (CorruptRecordError("the checksum is wrong"), False),
        (KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER), False),
        (KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), True),
        (RuntimeError("a mistake"), True),
    ],
)
def test_records_that_cannot_be_appended(error: Exception, fails: bool) -> None:
    async def test(setting: Setting) -> None:
        def refuse() -> None:
            raise error

        setting.follow()
        sent, _ = await setting.fetch_request()
        setting.broker.log.check = refuse
        sent.on_response(fetched_response(Entry(0, 5, "a")))
        setting.broker.log.check = lambda: None
        assert bool(setting.failed) is fails
        sent, asked = await setting.fetch_request()
        assert asked == []
        if not fails:
            sent.on_response(empty_response())
            _, asked = await setting.fetch_request()
            assert asked[0].fetch_offset == 0

    in_setting(test)


def test_a_lost_connection_opens_a_new_session_after_a_while() -> None:
    async def test(setting: Setting) -> None:
        setting.follow()
        sent, _ = await setting.fetch_request()
        sent.on_response(fetched_response(high_watermark=0))
        sent, _ = await setting.fetch_request()
        began = asyncio.get_running_loop().time()
        sent.on_failure(ConnectionError("it broke"))
        sent, asked = await setting.fetch_request()
        assert (sent.message.session_id, sent.message.session_epoch, len(asked)) == (SESSION, 0, 1)
        assert asyncio.get_running_loop().time() - began >= BACKOFF_SECONDS

    in_setting(test)


def test_a_leader_that_forgot_the_session_gets_a_full_request_at_once() -> None:
    async def test(setting: Setting) -> None:
        setting.follow()
        sent, _ = await setting.fetch_request()
        sent.on_response(fetched_response(high_watermark=0))
        sent, _ = await setting.fetch_request()
        sent.on_response(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
        sent = setting.leader.sent.get_nowait()
        assert (sent.message.session_id, sent.message.session_epoch, len(sent.message.topics)) == (0, 0, 1)

    in_setting(test)


@pytest.mark.parametrize(("epoch", "topic_id"), [(6, TOPIC_ID), (5, OTHER_ID)])
def test_an_answer_for_an_epoch_or_a_topic_that_is_over_is_dropped(epoch: int, topic_id: Uuid) -> None:
    async def test(setting: Setting) -> None:
        setting.follow(epoch=5)
        sent, _ = await setting.fetch_request()
        setting.fetcher.remove([setting.broker.partition.topic_partition])
        setting.follow(epoch=epoch).topic_id = topic_id
        sent.on_response(fetched_response(Entry(0, 5, "a"), high_watermark=1))
        assert setting.broker.log.log_end_offset == 0
        sent, asked = await setting.fetch_request()
        assert (sent.message.topics[0].topic_id, asked[0].current_leader_epoch) == (topic_id, epoch)

    in_setting(test)


def test_follows_the_start_of_the_leaders_log() -> None:
    async def test(setting: Setting) -> None:
        setting.follow(*(Entry(offset, 5, "a") for offset in range(4)))
        sent, _ = await setting.fetch_request()
        sent.on_response(fetched_response(high_watermark=4, log_start_offset=2))
        assert setting.broker.log.log_start_offset == 2
        sent, asked = await setting.fetch_request()
        assert asked[0].log_start_offset == 2
        setting.broker.log.log_start_offset = 3  # retention, here
        await asyncio.sleep(6)
        sent.on_response(empty_response())
        _, asked = await setting.fetch_request()
        assert asked[0].log_start_offset == 3

    in_setting(test)


def test_rests_while_there_is_nothing_to_fetch() -> None:
    async def test(setting: Setting) -> None:
        await asyncio.sleep(100)
        assert setting.leader.sent.empty()
        setting.follow()
        await setting.fetch_request()
        assert not setting.fetcher.is_dead

    in_setting(test)
