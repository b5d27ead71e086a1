"""Very many partitions of one leader: a request names some, and the next ones the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.follower import replica_fetcher
from barnabas.follower.fetch_protocol import FETCH_WITHOUT_TOPIC_IDS
from barnabas.follower.fetcher_partitions import FetchedPartition, FetcherPartitions, FetchPhase
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FetchResponse
from barnabas.wire.topics import TopicPartition
from tests.unit.follower.fetcher_setting import SESSION, Sent, Setting, empty_response, in_setting
from tests.unit.leader.memory_log import TOPIC_ID, Entry, MemoryLog

COUNT = 5
ALL = list(range(COUNT))


@pytest.fixture(autouse=True)
def two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_fetcher, "NAMED_MAX", 2)


def partition(number: int, topic_id: Uuid = TOPIC_ID, epoch: int = 5) -> FetchedPartition:
    name = TopicPartition("flights" if topic_id == TOPIC_ID else "old", number)
    hosted: Any = SimpleNamespace(topic_partition=name, log=MemoryLog(name))
    return FetchedPartition(hosted, topic_id, epoch, 0, -1, FetchPhase.FETCHING)


def records_of(numbers: list[int]) -> FetchResponse:
    """The response that has one record of each."""
    data: list[Any] = [
        FetchResponse.PartitionData(partition_index=number, records=cast("Any", [Entry(0, 5, b"one")]))
        for number in numbers
    ]
    return FetchResponse(
        session_id=SESSION, responses=[FetchResponse.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=data)]
    )


async def named(setting: Setting, epoch: int, numbers: list[int], *, waits: bool) -> Sent:
    """The next request, which names these."""
    sent, asked = await setting.fetch_request()
    assert [each.partition for each in asked] == numbers
    assert sent.message.session_epoch == epoch
    assert (sent.message.max_wait_ms > 0) is waits
    return sent


def test_each_is_named_once_and_only_the_last_request_waits() -> None:
    async def test(setting: Setting) -> None:
        setting.fetcher.add(map(partition, ALL))
        for epoch, numbers in enumerate(([0, 1], [2, 3])):
            (await named(setting, epoch, numbers, waits=False)).on_response(empty_response())
        wait_ms = 0
        for epoch in (2, 3):
            sent = await named(setting, epoch, [4] if epoch == 2 else [], waits=True)
            assert sent.message.max_wait_ms >= wait_ms
            wait_ms = sent.message.max_wait_ms
            sent.on_response(empty_response())
        assert len(setting.fetcher._session.positions) == COUNT

    in_setting(test)


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_a_leader_that_does_not_keep_all_of_them_in_a_session_is_told_all_in_each_request(answered: int) -> None:
    """Else what is not in the first request would never be fetched."""

    async def test(setting: Setting) -> None:
        setting.fetcher.add(map(partition, ALL))
        parts = ([0, 1], [2, 3], [4])
        for epoch in range(answered):
            (await named(setting, epoch, parts[epoch], waits=False)).on_response(empty_response())
        sent = await named(setting, answered, parts[answered], waits=answered == 2)
        error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND if answered else ErrorCode.NONE
        sent.on_response(FetchResponse(error_code=error, session_id=0))
        for _ in range(2):
            (await named(setting, 0, ALL, waits=True)).on_response(FetchResponse(session_id=0))
        # Once it keeps one, all else is said in parts again.
        (await named(setting, 0, ALL, waits=True)).on_response(empty_response())
        setting.fetcher.add(partition(number, epoch=6) for number in ALL)
        (await named(setting, 1, [], waits=True)).on_response(empty_response())
        for epoch in range(3):
            (await named(setting, 2 + epoch, parts[epoch], waits=epoch == 2)).on_response(empty_response())

    in_setting(test)


def test_an_emptied_session_ends_and_no_leader_has_refused_it() -> None:
    async def test(setting: Setting) -> None:
        every = [partition(number) for number in ALL]
        setting.fetcher.add(every)
        (await named(setting, 0, [0, 1], waits=False)).on_response(empty_response())
        sent = await named(setting, 1, [2, 3], waits=False)
        setting.fetcher.remove(each.topic_partition for each in every)
        for epoch in (2, 3):
            sent.on_response(empty_response())
            sent = await named(setting, epoch, [], waits=epoch == 3)
        setting.fetcher.add(every)
        sent.on_response(FetchResponse(session_id=0))
        await named(setting, 0, [0, 1], waits=False)

    in_setting(test)


@pytest.mark.parametrize("count", [1, COUNT])
def test_all_that_got_records_are_named_next_and_some_others(count: int) -> None:
    """Else their leader gives them again, and thinks that we lag: it takes an offset that is told later for less than
    what it had in between. And a high watermark that it tells of them meanwhile is lost."""

    async def test(setting: Setting) -> None:
        others = range(COUNT, COUNT + 4)
        setting.fetcher.add(map(partition, ALL))
        for epoch, numbers in enumerate(([0, 1], [2, 3], [4])):
            (await named(setting, epoch, numbers, waits=epoch == 2)).on_response(empty_response())
        sent = await named(setting, 3, [], waits=True)
        setting.fetcher.add(map(partition, others))
        got = list(reversed(range(count)))
        sent.on_response(records_of(got))
        first = (2 - count) if count < 2 else 1
        sent = await named(setting, 4, [*got, *others[:first]], waits=False)
        assert [each.fetch_offset for topic in sent.message.topics for each in topic.partitions][:count] == [1] * count

    in_setting(test)


def test_all_that_are_delayed_are_forgotten_next_and_some_others_are_named() -> None:
    """Else their leader goes on to give what is dropped, though a throttle holds it back."""

    async def test(setting: Setting) -> None:
        every = [partition(number) for number in ALL]
        setting.fetcher.add(every)
        for epoch, numbers in enumerate(([0, 1], [2, 3], [4])):
            (await named(setting, epoch, numbers, waits=epoch == 2)).on_response(empty_response())
        sent = await named(setting, 3, [], waits=True)
        setting.fetcher.add(map(partition, range(COUNT, COUNT + 4)))
        for each in every:
            setting.fetcher._partitions.delay(each, 1e9)
        sent.on_response(empty_response())
        sent = await named(setting, 4, [COUNT], waits=False)
        assert [topic.partitions for topic in sent.message.forgotten_topics_data] == [ALL]

    in_setting(test)


def test_a_throttle_names_those_first_of_which_nothing_is_known() -> None:
    """They may be in sync, and are not held back any more when that is known; else they would leave the ISR."""

    async def test(setting: Setting) -> None:
        setting.quota.throttle("flights", ["*"], 1)
        setting.quota.limit(1)
        setting.fetcher.add(map(partition, ALL))
        sent = await named(setting, 0, [0, 1], waits=False)
        response = records_of([0, 1])
        for data in response.responses[0].partitions:
            data.high_watermark = 1000
        first, second = response.responses[0].partitions
        first.records, second.records = cast("Any", [Entry(offset, 5, b"one") for offset in range(50)]), None
        sent.on_response(response)
        sent = await named(setting, 1, [], waits=True)
        assert [topic.partitions for topic in sent.message.forgotten_topics_data] == [[0, 1]]
        sent.on_response(FetchResponse(session_id=0))
        await named(setting, 0, [2, 3], waits=False)

    in_setting(test)


def test_one_that_is_not_written_yet_has_nobody_asked_again_at_once() -> None:
    """It is looked at again after a while, and nothing is left to say until then."""

    async def test(setting: Setting) -> None:
        every = [partition(number) for number in ALL[:2]]
        setting.fetcher.add(every)
        (await named(setting, 0, [0, 1], waits=True)).on_response(empty_response())
        sent = await named(setting, 1, [], waits=True)
        every[0].partition.log.has_unwritten = True  # type: ignore[union-attr]
        setting.fetcher.take_topic_id(every[0].topic_partition, TOPIC_ID)
        sent.on_response(empty_response())
        sent = await named(setting, 2, [], waits=True)
        assert [topic.partitions for topic in sent.message.forgotten_topics_data] == [[0]]

    in_setting(test)


def test_a_session_that_had_all_and_is_lost_is_filled_in_parts_again() -> None:
    async def test(setting: Setting) -> None:
        setting.fetcher.add(map(partition, ALL))
        for error in (ErrorCode.NONE, ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
            for epoch, numbers in enumerate(([0, 1], [2, 3])):
                (await named(setting, epoch, numbers, waits=False)).on_response(empty_response())
            (await named(setting, 2, [4], waits=True)).on_response(empty_response())
            (await named(setting, 3, [], waits=True)).on_response(empty_response(error))
            if error is ErrorCode.NONE:
                (await named(setting, 4, [], waits=True)).on_response(
                    empty_response(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
                )

    in_setting(test)


def test_a_topic_without_an_id_that_comes_last_does_not_end_the_session_again_and_again() -> None:
    """Its request is of an older version, which no session of ids takes."""

    async def test(setting: Setting) -> None:
        setting.fetcher.add([*map(partition, range(4)), partition(4, ZERO_UUID)])
        for epoch, numbers in enumerate(([0, 1], [2, 3])):
            (await named(setting, epoch, numbers, waits=False)).on_response(empty_response())
        sent = await named(setting, 2, [4], waits=True)
        assert sent.version == FETCH_WITHOUT_TOPIC_IDS
        sent.on_response(empty_response(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR))
        sent = await named(setting, 0, ALL, waits=True)
        assert (sent.version, sent.message.session_id) == (FETCH_WITHOUT_TOPIC_IDS, SESSION)

    in_setting(test)


def test_what_is_not_fetched_any_more_is_forgotten_in_parts() -> None:
    async def test(setting: Setting) -> None:
        setting.fetcher.add(map(partition, [*ALL, COUNT]))
        for epoch in range(3):
            (await named(setting, epoch, [2 * epoch, 2 * epoch + 1], waits=epoch == 2)).on_response(empty_response())
        sent = await named(setting, 3, [], waits=True)
        setting.fetcher.remove(TopicPartition("flights", number) for number in ALL)
        for count, epoch in ((2, 4), (2, 5), (1, 6)):
            sent.on_response(empty_response())
            sent = await named(setting, epoch, [], waits=count == 1)
            assert sum(len(topic.partitions) for topic in sent.message.forgotten_topics_data) == count

    in_setting(test)


def test_the_starts_of_logs_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody tells the fetcher when retention or DeleteRecords moves them; the leader is to know."""
    monkeypatch.setattr(replica_fetcher, "_LOG_START_CHECK_SECONDS", 0.0)

    async def test(setting: Setting) -> None:
        every = [partition(number) for number in ALL]
        setting.fetcher.add(every)
        while len(setting.fetcher._session.positions) < COUNT:
            sent, _ = await setting.fetch_request()
            sent.on_response(empty_response())
        sent, _ = await setting.fetch_request()
        setting.fetcher.remove([every[0].topic_partition])
        for each in every:
            cast("Any", each.partition.log).log_start_offset = 3
        named: list[int] = []
        for _ in range(2 * COUNT):
            sent.on_response(empty_response())
            sent, asked = await setting.fetch_request()
            assert len(asked) <= 2
            assert {each.log_start_offset for each in asked} <= {3}
            named += [each.partition for each in asked]
        assert sorted(named) == ALL[1:]

    in_setting(test)


def test_what_may_not_be_fetched_now_takes_no_place_of_another() -> None:
    partitions = FetcherPartitions()
    every = [partition(number) for number in range(6)]
    for each in every:
        partitions.add(each)
    for each in every[:3]:
        partitions.delay(each, 10.0)

    def given(found: Any) -> list[int]:
        return [name.partition for name, position in cast("Any", found) if position is not None]

    assert (given(partitions.everything(2)), partitions.has_marked) == ([3, 4], True)
    assert (given(partitions.changed(2)), partitions.has_marked) == ([5], False)
    partitions.end_delays(10.0)
    assert given(partitions.changed(2)) == [0, 1]
    partitions.advanced(every[5], 1, 0)
    assert given(partitions.changed(2)) == [2, 5]
