from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.kernel.timers import Timers
from barnabas.leader.alter_partition import DefaultAlterPartitionManager
from barnabas.leader.isr_changes import IsrAnswer, IsrChange
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.codec import encode
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import AlterPartitionRequest, AlterPartitionResponse
from barnabas.wire.topics import TopicPartition
from tests.unit.kernel.virtual_loop import run_virtually

FLIGHTS = Uuid(b"f" * 16)


class PlayedController:
    """Answers when the test says so, in versions up to `speaks`."""

    def __init__(self) -> None:
        self.speaks = 3
        self.asked: asyncio.Queue[tuple[AlterPartitionRequest, int]] = asyncio.Queue()
        self.answers: asyncio.Queue[AlterPartitionResponse | Exception] = asyncio.Queue()

    async def send_in_version(
        self, api_key: ApiKey, lowest: int, highest: int, build: Callable[[int], AlterPartitionRequest]
    ) -> tuple[AlterPartitionResponse, int]:
        assert api_key is ApiKey.ALTER_PARTITION
        version = min(self.speaks, highest)
        assert version >= lowest
        request = build(version)
        encode(request, version)  # it can be written
        self.asked.put_nowait((request, version))
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer, version


class Setting:
    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.controller = PlayedController()
        self.answers: list[IsrAnswer] = []
        self.manager = DefaultAlterPartitionManager(
            1,
            self.controller,
            loop=loop,
            timers=Timers(loop),
            broker_epoch=lambda: 9,
            logger=logging.getLogger("barnabas.tests.replication"),
        )

    def submit(self, number: int, *, topic_id: Uuid = FLIGHTS, on_answer: Any = None) -> None:
        change = IsrChange(TopicPartition("flights", number), topic_id, 4, 7, {1: -1, 2: 5})
        self.manager.submit(change, on_answer or self.answers.append)

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


def response(*numbers: int, error: ErrorCode = ErrorCode.NONE) -> AlterPartitionResponse:
    partitions = [
        AlterPartitionResponse.PartitionData(
            partition_index=number, error_code=error, leader_id=1, leader_epoch=4, isr=[1, 2], partition_epoch=8
        )
        for number in numbers
    ]
    return AlterPartitionResponse(
        topics=[AlterPartitionResponse.TopicData(topic_id=FLIGHTS, topic_name="flights", partitions=partitions)]
    )


def in_setting(test: Callable[[Setting], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        setting = Setting()
        await test(setting)
        await setting.manager.close()

    run_virtually(run())


def test_what_is_asked_while_a_request_is_on_its_way_joins_in_the_next() -> None:
    async def test(setting: Setting) -> None:
        setting.submit(0)
        request, version = await setting.controller.asked.get()
        assert (version, request.broker_id, request.broker_epoch) == (3, 1, 9)
        partition = request.topics[0].partitions[0]
        assert [(member.broker_id, member.broker_epoch) for member in partition.new_isr_with_epochs] == [
            (1, 9),
            (2, 5),
        ]
        assert (partition.leader_epoch, partition.partition_epoch, partition.new_isr) == (4, 7, [])
        setting.submit(1)
        setting.submit(2)
        setting.controller.answers.put_nowait(response(0))
        request, _ = await setting.controller.asked.get()
        assert [partition.partition_index for partition in request.topics[0].partitions] == [1, 2]
        assert setting.answers == [IsrAnswer(ErrorCode.NONE, 4, 8, (1, 2))]
        setting.controller.answers.put_nowait(response(1, 2))
        await setting.settle()
        assert (len(setting.answers), setting.manager.waiting) == (3, 0)

    in_setting(test)


def test_very_many_are_asked_for_in_several_requests() -> None:
    async def test(setting: Setting) -> None:
        for number in range(1200):
            setting.submit(number)
        asked: list[int] = []
        while len(asked) < 1200:
            request, _ = await setting.controller.asked.get()
            numbers = [partition.partition_index for partition in request.topics[0].partitions]
            assert len(numbers) <= 500
            asked += numbers
            setting.controller.answers.put_nowait(response(*numbers))
        await setting.settle()
        assert asked == list(range(1200))
        assert (len(setting.answers), setting.manager.waiting) == (1200, 0)

    in_setting(test)


def test_very_many_answers_are_taken_over_in_several_turns() -> None:
    async def test(setting: Setting) -> None:
        loop = asyncio.get_running_loop()
        turns: list[int] = []
        in_this_turn: list[bool] = []

        def taken_over(answer: IsrAnswer) -> None:
            setting.answers.append(answer)
            if not in_this_turn:
                turns.append(0)
                in_this_turn.append(True)
                loop.call_soon(in_this_turn.clear)
            turns[-1] += 1

        for number in range(500):
            setting.submit(number, on_answer=taken_over)
        await setting.controller.asked.get()
        setting.controller.answers.put_nowait(response(*range(500)))
        await setting.settle()
        assert len(setting.answers) == 500
        assert setting.manager.waiting == 0
        assert max(turns) <= 100

    in_setting(test)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_older_controller_is_asked_in_its_own_version(version: int) -> None:
    async def test(setting: Setting) -> None:
        setting.controller.speaks = version
        setting.submit(0)
        request, asked = await setting.controller.asked.get()
        (topic,) = request.topics
        (partition,) = topic.partitions
        assert asked == version
        assert (partition.new_isr, partition.new_isr_with_epochs) == ([1, 2], [])
        setting.controller.answers.put_nowait(response(0))
        await setting.settle()
        assert setting.answers == [IsrAnswer(ErrorCode.NONE, 4, 8, (1, 2))]

    in_setting(test)


def test_topics_without_ids_are_named() -> None:
    async def test(setting: Setting) -> None:
        setting.submit(0, topic_id=ZERO_UUID)
        request, version = await setting.controller.asked.get()
        assert (version, request.topics[0].topic_name, request.topics[0].partitions[0].new_isr) == (
            1,
            "flights",
            [1, 2],
        )
        setting.controller.answers.put_nowait(response(0))
        await setting.settle()
        assert len(setting.answers) == 1

    in_setting(test)


def test_a_second_change_of_a_partition_is_not_attempted() -> None:
    async def test(setting: Setting) -> None:
        setting.submit(0)
        setting.submit(0)
        await setting.settle()
        assert setting.answers == [IsrAnswer(ErrorCode.OPERATION_NOT_ATTEMPTED)]

    in_setting(test)


def test_asks_again_after_whatever_went_wrong() -> None:
    async def test(setting: Setting) -> None:
        failures: list[AlterPartitionResponse | Exception] = [
            ConnectionError("lost"),
            AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH),
            response(5),  # not what was asked
        ]
        setting.submit(0)
        for failure in failures:
            await setting.controller.asked.get()
            began = asyncio.get_running_loop().time()
            setting.controller.answers.put_nowait(failure)
            await setting.settle()
            assert not setting.answers
            request, _ = await setting.controller.asked.get()
            assert asyncio.get_running_loop().time() - began >= 0.049
            setting.controller.asked.put_nowait((request, 3))
        setting.controller.answers.put_nowait(response(0))
        await setting.settle()
        assert len(setting.answers) == 1

    in_setting(test)


def test_what_is_asked_again_from_an_answer_waits_a_little() -> None:
    async def test(setting: Setting) -> None:
        def again(answer: IsrAnswer) -> None:
            setting.answers.append(answer)
            setting.submit(0)

        setting.submit(0, on_answer=again)
        await setting.controller.asked.get()
        began = asyncio.get_running_loop().time()
        setting.controller.answers.put_nowait(response(0, error=ErrorCode.UNKNOWN_SERVER_ERROR))
        await setting.controller.asked.get()
        assert asyncio.get_running_loop().time() - began >= 0.049
        assert setting.answers == [IsrAnswer(ErrorCode.UNKNOWN_SERVER_ERROR, 4, 8, (1, 2))]

    in_setting(test)


def test_an_answer_that_cannot_be_understood_loses_no_change() -> None:
    async def test(setting: Setting) -> None:
        setting.submit(0)
        broken = response(0)
        broken.topics = None  # type: ignore[assignment]
        setting.controller.answers.put_nowait(broken)
        await asyncio.sleep(1)
        assert (setting.answers, setting.manager.waiting) == ([], 1)
        setting.controller.answers.put_nowait(response(0))
        await asyncio.sleep(1)
        assert [answer.error for answer in setting.answers] == [ErrorCode.NONE]

    in_setting(test)
