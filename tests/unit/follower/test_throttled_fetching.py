"""A fetcher some partitions of which are throttled (KIP-73), in virtual time."""

from __future__ import annotations

import asyncio
import functools

import pytest

from barnabas.follower.fetcher_partitions import FetchedPartition, FetchPhase
from barnabas.leader.partition import Partition
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.wire.messages import FetchResponse
from barnabas.wire.topics import TopicPartition
from tests.unit.follower.fetcher_setting import LEADER, SESSION, Sent, Setting, empty_response, in_setting
from tests.unit.leader.memory_log import TOPIC_ID, Entry, MemoryLog
from tests.unit.leader.partition_setting import leader_and_isr

THROTTLED, FREE = 0, 1
EPOCH = 5
LIMIT = 100
"""Records a second: a record of a `MemoryLog` is of one byte."""


class Leader:
    """Has as many records of each partition as anybody wants, and gives `at_once` of them."""

    def __init__(self, setting: Setting, at_once: int, *, response_seconds: float = 0.025) -> None:
        self.setting = setting
        self.at_once = at_once
        self.response_seconds = response_seconds
        self.given = {THROTTLED: 0, FREE: 0}
        self.high_watermark = 10**9
        self.requests = 0
        self._session: dict[int, int] = {}

    async def serve(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            try:
                async with asyncio.timeout(end - loop.time()):
                    sent, _ = await self.setting.fetch_request()
            except TimeoutError:
                return
            self.requests += 1
            await asyncio.sleep(self.response_seconds)
            self.answer(sent)

    def answer(self, sent: Sent) -> None:
        message = sent.message
        for topic in message.forgotten_topics_data:
            for number in topic.partitions:
                self._session.pop(number, None)
        for topic in message.topics:
            for partition in topic.partitions:
                self._session[partition.partition] = partition.fetch_offset
        if not self._session:
            sent.on_response(empty_response())
            return
        partitions = []
        for number, offset in self._session.items():
            records: list[Entry] = [Entry(offset + index, EPOCH, "a") for index in range(self.at_once)]
            self.given[number] += len(records)
            data = FetchResponse.PartitionData(
                partition_index=number,
                high_watermark=min(self.high_watermark, offset + self.at_once)
                if number == FREE
                else self.high_watermark,
                records=records,  # type: ignore[arg-type]
            )
            partitions.append(data)
        topic_data = FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=partitions)
        sent.on_response(FetchResponse(session_id=SESSION, responses=[topic_data]))


def follow_both(setting: Setting) -> None:
    for number in (THROTTLED, FREE):
        partition = Partition(TopicPartition("flights", number), setting.broker.context)
        log = MemoryLog(partition.topic_partition).as_log
        partition.become_follower(
            leader_and_isr(LEADER.broker_id, EPOCH, (LEADER.broker_id,)), functools.partial(_given, log)
        )
        setting.fetcher.add([FetchedPartition(partition, TOPIC_ID, EPOCH, 0, -1, FetchPhase.FETCHING)])


def _given(log: PartitionLog) -> PartitionLog:
    return log


@pytest.mark.parametrize("at_once", [1, 30, 250])
def test_a_throttled_partition_is_fetched_at_the_rate_and_others_as_ever(at_once: int) -> None:
    async def test(setting: Setting) -> None:
        follow_both(setting)
        setting.quota.throttle("flights", [f"{THROTTLED}:1"], 1)
        setting.quota.limit(LIMIT)
        leader = Leader(setting, at_once)
        await leader.serve(60.0)
        expected = min(60 * LIMIT, 60 / leader.response_seconds * at_once)
        assert leader.given[THROTTLED] == pytest.approx(expected, rel=0.2, abs=at_once)
        assert leader.given[FREE] == pytest.approx(60 / leader.response_seconds * at_once, rel=0.02)

    in_setting(test)


def test_what_is_throttled_alone_is_asked_for_when_the_quota_allows_and_not_before() -> None:
    async def test(setting: Setting) -> None:
        fetched = setting.follow()
        setting.quota.throttle("flights", ["*"], 1)
        setting.quota.limit(LIMIT)
        leader = Leader(setting, 250)
        await leader.serve(60.0)
        assert leader.given[THROTTLED] == pytest.approx(60 * LIMIT, rel=0.2)
        # For each response: one request that it is of, and one that leaves the partition out.
        assert leader.requests <= 2 * (leader.given[THROTTLED] // 250) + 60
        assert fetched.fetch_offset >= leader.given[THROTTLED] - 250

    in_setting(test)


def test_a_partition_in_sync_is_not_throttled_and_counts() -> None:
    async def test(setting: Setting) -> None:
        setting.follow()
        setting.quota.throttle("flights", ["*"], 1)
        setting.quota.limit(1)
        for offset in range(50):
            sent, asked = await setting.fetch_request()
            assert [partition.fetch_offset for partition in asked] == [offset]
            records = [Entry(offset, EPOCH, "a")]
            data = FetchResponse.PartitionData(high_watermark=offset + 1, records=records)  # type: ignore[arg-type]
            topic = FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])
            sent.on_response(FetchResponse(session_id=SESSION, responses=[topic]))
        assert setting.quota.byte_rate == 50
        assert setting.quota.is_exceeded

    in_setting(test)


class NarrowLeader(Leader):
    """Gives records of one partition in a response: of the one that was not given any for longest, as leaders do."""

    def answer(self, sent: Sent) -> None:
        message = sent.message
        for topic in message.forgotten_topics_data:
            for number in topic.partitions:
                self._session.pop(number, None)
        for topic in message.topics:
            for partition in topic.partitions:
                self._session[partition.partition] = partition.fetch_offset
        if not self._session:
            sent.on_response(empty_response())
            return
        number, offset = next(iter(self._session.items()))
        self._session[number] = self._session.pop(number)
        self.given[number] = self.given.get(number, 0) + self.at_once
        records: list[Entry] = [Entry(offset + index, EPOCH, "a") for index in range(self.at_once)]
        data = FetchResponse.PartitionData(
            partition_index=number,
            high_watermark=self.high_watermark,
            records=records,  # type: ignore[arg-type]
        )
        topic_data = FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])
        sent.on_response(FetchResponse(session_id=SESSION, responses=[topic_data]))


@pytest.mark.parametrize("at_once", [30, 250])
def test_throttled_partitions_get_on_alike_though_a_response_has_no_room_for_all(at_once: int) -> None:
    async def test(setting: Setting) -> None:
        follow_both(setting)
        setting.quota.throttle("flights", ["*"], 1)
        setting.quota.limit(LIMIT)
        leader = NarrowLeader(setting, at_once)
        await leader.serve(60.0)
        assert sum(leader.given.values()) == pytest.approx(60 * LIMIT, rel=0.2, abs=at_once)
        assert leader.given[THROTTLED] == pytest.approx(leader.given[FREE], rel=0.2, abs=at_once)

    in_setting(test)


def test_a_throttle_that_is_taken_away_holds_nothing_back_after_a_second() -> None:
    async def test(setting: Setting) -> None:
        setting.follow()
        setting.quota.throttle("flights", ["*"], 1)
        setting.quota.limit(1)
        leader = Leader(setting, 50)
        await leader.serve(5.0)
        assert leader.given[THROTTLED] == 50
        setting.quota.throttle("flights", [], 1)
        await leader.serve(1.1)
        assert leader.given[THROTTLED] > 50

    in_setting(test)
