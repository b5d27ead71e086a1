"""A follower whose next offset is in remote storage only, and a leader that the test plays, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.client.errors import NoBrokerError
from barnabas.follower.ports import AuxiliaryState
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from tests.unit.follower.fetcher_setting import (
    Sent,
    Setting,
    empty_response,
    fetched_response,
    in_setting,
)


def moved(log_start_offset: int = 0) -> FetchResponse:
    return fetched_response(error=ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, log_start_offset=log_start_offset)


async def offsets_request(setting: Setting) -> Sent:
    """The next one; a fetch before it, which forgets the partition for a while, is answered."""
    while not isinstance((sent := await setting.leader.sent.get()).message, ListOffsetsRequest):
        sent.on_response(empty_response())
    return sent


async def answer_places(setting: Setting, local_start: int, epoch: int, log_start: int) -> None:
    """Where the leader's local log starts, and in which epoch, and where its log does."""
    for timestamp, offset in ((-4, local_start), (-2, log_start)):
        sent = await offsets_request(setting)
        assert sent.message.topics[0].partitions[0].timestamp == timestamp
        found = ListOffsetsResponse.ListOffsetsPartitionResponse(
            partition_index=0, offset=offset, leader_epoch=epoch if timestamp == -4 else 0
        )
        topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="flights", partitions=[found])
        sent.on_response(ListOffsetsResponse(topics=[topic]))


@pytest.mark.parametrize(
    ("epoch", "earlier", "asked_epoch"),
    [(0, None, 0), (3, (1, 20), 1), (3, (2, 15), 3)],
    ids=["in the first epoch", "the record before is of an earlier epoch", "it is of the same"],
)
def test_what_has_moved_to_remote_storage(epoch: int, earlier: tuple[int, int] | None, asked_epoch: int) -> None:
    async def test(setting: Setting) -> None:
        setting.follow()
        begun: list[tuple[object, ...]] = []

        async def begin(offset: int, log_start: int, epochs: object, producers: object, is_due: Any) -> bool:
            assert is_due()
            begun.append((offset, log_start, epochs, producers))
            setting.broker.log.log_end_offset = offset
            return True

        setting.broker.log.begin_behind_remote = begin  # type: ignore[attr-defined]
        setting.remote.answers = [AuxiliaryState(20, ["epochs"], ["producers"])]  # type: ignore[list-item]
        sent, _ = await setting.fetch_request()
        sent.on_response(moved())
        await answer_places(setting, 20, epoch, 5)
        if earlier is not None:
            sent = await setting.request(OffsetForLeaderEpochRequest)
            assert sent.message.topics[0].partitions[0].leader_epoch == epoch - 1
            end = OffsetForLeaderEpochResponse.EpochEndOffset(
                partition=0, leader_epoch=earlier[0], end_offset=earlier[1]
            )
            result = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic="flights", partitions=[end])
            sent.on_response(OffsetForLeaderEpochResponse(topics=[result]))
        _, asked = await setting.fetch_request()
        assert begun == [(20, 5, ["epochs"], ["producers"])]
        assert setting.remote.asked == [(asked_epoch, 19)]
        assert [partition.fetch_offset for partition in asked] == [20]

    in_setting(test)


def test_what_is_not_in_remote_storage_yet_is_waited_for() -> None:
    async def test(setting: Setting) -> None:
        setting.follow()
        setting.remote.answers = [None, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "far away"), None]
        sent, _ = await setting.fetch_request()
        sent.on_response(moved())
        for _ in range(3):
            await answer_places(setting, 20, 0, 0)
        await offsets_request(setting)
        assert setting.remote.asked == [(0, 19)] * 3
        assert not setting.failed

    in_setting(test)


def test_a_follower_without_remote_storage_gives_up_and_says_so() -> None:
    async def test(setting: Setting) -> None:
        object.__setattr__(setting.fetcher._context, "remote", None)
        setting.follow()
        sent, _ = await setting.fetch_request()
        sent.on_response(moved())
        await answer_places(setting, 20, 0, 0)
        await asyncio.sleep(0.1)
        assert setting.failed == [setting.broker.partition.topic_partition]

    in_setting(test)


@pytest.mark.parametrize("problem", [None, NoBrokerError("nobody is there")], ids=["hangs", "fails"])
def test_others_are_fetched_while_remote_storage_does_not_answer(problem: Exception | None) -> None:
    async def test(setting: Setting) -> None:
        setting.follow()
        setting.remote.hangs = problem is None
        setting.remote.answers = [problem] * 20
        sent, _ = await setting.fetch_request()
        sent.on_response(moved())
        await answer_places(setting, 20, 0, 0)
        loop = asyncio.get_running_loop()
        started = loop.time()
        sent, asked = await setting.fetch_request()
        assert loop.time() - started < 0.5
        assert not asked, "it is left alone for a while, and the session goes on"
        sent.on_response(empty_response())
        await answer_places(setting, 20, 0, 0)
        await offsets_request(setting)
        assert len(setting.remote.asked) == (1 if problem is None else 2), "what hangs is not asked again"
        assert not setting.failed

    in_setting(test)
