from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.coordination.errors import BadVersionError, ConnectionLossError, KeeperError, NoAuthError, NoNodeError
from barnabas.coordination.layout.notifications import ISR_CHANGES_PATH
from barnabas.coordination.layout.notifications import IsrChange as Announcement
from barnabas.coordination.layout.topics import PartitionState, partition_state_path
from barnabas.coordination.operations import Create, SetData, ZnodeData
from barnabas.coordination.protocol import CreateMode
from barnabas.kernel.ids import ZERO_UUID
from barnabas.kernel.timers import Timers
from barnabas.leader.isr_changes import IsrAnswer, IsrChange
from barnabas.leader.zk_alter_partition import ZkAlterPartitionManager
from barnabas.wire.errors import ErrorCode
from barnabas.wire.topics import TopicPartition
from tests.unit.controller.memory_store import stat_of
from tests.unit.kernel.virtual_loop import run_virtually

OTHER_LEADER = PartitionState(3, 5, (3,), 9)
SPOILED: Any = SimpleNamespace(encode=lambda: b"garbage")
VERSION = 7


def path_of(number: int) -> str:
    return partition_state_path("flights", number)


class Store:
    """Znodes with versions. `faults` are the errors of the next writes; with `loses_answers` they are done all the
    same.
    """

    def __init__(self) -> None:
        self.znodes: dict[str, tuple[PartitionState, int]] = {}
        self.announced: list[tuple[float, list[int]]] = []
        self.faults: list[KeeperError] = []
        self.loses_answers = False
        self.batches: list[int] = []

    def put(self, number: int, state: PartitionState, version: int = VERSION) -> None:
        self.znodes[path_of(number)] = (state, version)

    async def submit(self, operations: Sequence[SetData]) -> list[Any]:
        await asyncio.sleep(0)
        self.batches.append(len(operations))
        return [self._write(operation) for operation in operations]

    def _write(self, operation: SetData) -> Any:
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and not self.loses_answers:
            return fault
        if operation.path not in self.znodes:
            return NoNodeError(operation.path)
        _, version = self.znodes[operation.path]
        if operation.version != version:
            return BadVersionError(operation.path)
        self.znodes[operation.path] = (PartitionState.decode(operation.data, operation.path), version + 1)
        return fault or stat_of(version + 1)

    async def get_many(self, paths: Sequence[str]) -> list[ZnodeData | KeeperError]:
        await asyncio.sleep(0)
        found = [self.znodes.get(path) for path in paths]
        return [
            NoNodeError(path) if known is None else ZnodeData(known[0].encode(), stat_of(known[1]))
            for path, known in zip(paths, found, strict=True)
        ]

    async def perform(self, operation: Create) -> None:
        await asyncio.sleep(0)
        if self.faults:
            raise self.faults.pop(0)
        assert operation.path.startswith(f"{ISR_CHANGES_PATH}/isr_change_")
        assert operation.mode is CreateMode.PERSISTENT_SEQUENTIAL
        assert operation.data is not None
        partitions = Announcement.decode(operation.data, operation.path).partitions
        self.announced.append((asyncio.get_running_loop().time(), [each.partition for each in partitions]))


class Setting:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.store = Store()
        self.answers: dict[int, IsrAnswer] = {}
        self.manager = ZkAlterPartitionManager(
            1,
            self.store,  # type: ignore[arg-type]
            loop=self.loop,
            timers=Timers(self.loop),
            logger=logging.getLogger("barnabas.tests.replication"),
        )

    def submit(self, number: int, on_answer: Callable[[IsrAnswer], object] | None = None) -> None:
        def note(answer: IsrAnswer) -> None:
            self.answers[number] = answer

        change = IsrChange(TopicPartition("flights", number), ZERO_UUID, 4, VERSION, {1: -1, 2: 5}, 9)
        self.manager.submit(change, on_answer or note)

    def led(self, *numbers: int) -> None:
        for number in numbers:
            self.store.put(number, PartitionState(1, 4, (1,), 9))

    async def answered(self, *numbers: int) -> None:
        async with asyncio.timeout(600):
            while not self.answers.keys() >= set(numbers):
                await asyncio.sleep(0.001)


def in_setting(test: Callable[[Setting], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        setting = Setting()
        await test(setting)
        await setting.manager.close()

    run_virtually(run())


WRITTEN = PartitionState(1, 4, (1, 2), 9)
DONE = IsrAnswer(ErrorCode.NONE, 4, VERSION + 1, (1, 2))


def test_a_change_is_written_in_the_version_that_the_leader_knows() -> None:
    async def test(setting: Setting) -> None:
        setting.led(0, 1)
        setting.submit(0)
        setting.submit(1)
        await setting.answered(0, 1)
        assert setting.answers == {0: DONE, 1: DONE}
        assert setting.store.znodes[path_of(0)] == (WRITTEN, VERSION + 1)
        assert (setting.store.batches, setting.manager.waiting) == ([2], 0)

    in_setting(test)


@pytest.mark.parametrize(
    "state",
    [OTHER_LEADER, PartitionState(1, 5, (1, 2), 9), PartitionState(1, 4, (1,), 10), PartitionState(-1, 4, (1, 2), 9)],
)
def test_where_another_has_written_the_leader_waits_for_its_controller(state: PartitionState) -> None:
    async def test(setting: Setting) -> None:
        setting.store.put(0, state, VERSION + 1)
        setting.submit(0)
        await setting.answered(0)
        assert setting.answers[0].error is ErrorCode.INVALID_UPDATE_VERSION
        assert setting.store.znodes[path_of(0)] == (state, VERSION + 1)

    in_setting(test)


def test_of_a_state_that_is_gone_the_controller_is_told_which_makes_it_again() -> None:
    async def test(setting: Setting) -> None:
        setting.submit(0)
        await setting.answered(0)
        assert setting.answers[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await asyncio.sleep(100)
        assert [numbers for _, numbers in setting.store.announced] == [[0]]

    in_setting(test)


@pytest.mark.parametrize(
    ("state", "is_told"),
    [
        (OTHER_LEADER, False),  # a controller's, of a later leader epoch, which it tells of
        (PartitionState(1, 4, (1,), 9), True),
        (PartitionState(3, 3, (3,), 8), True),
        (None, True),
    ],
)
def test_of_a_state_that_no_controller_can_have_written_the_controller_is_told(
    state: PartitionState | None, is_told: bool
) -> None:
    async def test(setting: Setting) -> None:
        setting.store.put(0, state or SPOILED, VERSION - 3)
        setting.submit(0)
        await setting.answered(0)
        assert setting.answers[0].error is ErrorCode.INVALID_UPDATE_VERSION
        await asyncio.sleep(100)
        assert [numbers for _, numbers in setting.store.announced] == [[0]] * is_told

    in_setting(test)


@pytest.mark.parametrize("error", [ConnectionLossError(), NoAuthError(path_of(0))])
def test_a_write_that_failed_is_tried_again_until_it_is_done(error: KeeperError) -> None:
    async def test(setting: Setting) -> None:
        setting.led(0, 1)
        setting.store.faults = [error] * 3
        setting.submit(0)
        setting.submit(1)
        await setting.answered(0, 1)
        assert setting.answers == {0: DONE, 1: DONE}
        assert setting.store.batches == [2, 2, 1]
        assert setting.loop.time() >= 2

    in_setting(test)


def test_a_write_whose_answer_was_lost_is_found_done_and_not_done_twice() -> None:
    async def test(setting: Setting) -> None:
        setting.led(0)
        setting.store.faults, setting.store.loses_answers = [ConnectionLossError()], True
        setting.submit(0)
        await setting.answered(0)
        assert setting.answers == {0: DONE}
        assert setting.store.znodes[path_of(0)] == (WRITTEN, VERSION + 1)

    in_setting(test)


def test_of_a_partition_with_a_change_under_way_another_is_not_attempted() -> None:
    async def test(setting: Setting) -> None:
        setting.led(0)
        setting.submit(0)
        refused: list[IsrAnswer] = []
        setting.submit(0, refused.append)
        await setting.answered(0)
        assert ([answer.error for answer in refused], setting.answers) == (
            [ErrorCode.OPERATION_NOT_ATTEMPTED],
            {0: DONE},
        )

    in_setting(test)


def test_an_answer_that_cannot_be_taken_over_keeps_no_other_waiting() -> None:
    async def test(setting: Setting) -> None:
        def fail(_: IsrAnswer) -> None:
            raise ValueError

        setting.led(0, 1)
        setting.submit(0, fail)
        setting.submit(1)
        await setting.answered(1)
        assert setting.manager.waiting == 0

    in_setting(test)


@pytest.mark.parametrize("turns", range(8))
def test_a_change_that_comes_when_the_last_one_has_just_been_answered_is_written(turns: int) -> None:
    async def test(setting: Setting) -> None:
        async def submit_later() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            setting.submit(1)

        later: list[asyncio.Task[None]] = []

        def answered(_: IsrAnswer) -> None:
            later.append(setting.loop.create_task(submit_later()))

        setting.led(0, 1)
        setting.submit(0, answered)
        await setting.answered(1)
        await later[0]

    in_setting(test)


def test_very_many_are_written_in_pieces() -> None:
    async def test(setting: Setting) -> None:
        setting.led(*range(1_200))
        for number in range(1_200):
            setting.submit(number)
        await setting.answered(*range(1_200))
        assert setting.store.batches == [500, 500, 200]

    in_setting(test)


def test_the_controller_is_told_of_changes_at_once_first_and_then_together() -> None:
    async def test(setting: Setting) -> None:
        setting.led(*range(40))
        setting.submit(0)
        await asyncio.sleep(2.6)
        assert [numbers for _, numbers in setting.store.announced] == [[0]]
        began = setting.loop.time()
        # Changes go on: they are announced a minute after the last announcement; the last ones after a quiet time.
        for number in range(1, 40):
            setting.submit(number)
            await asyncio.sleep(2)
        await asyncio.sleep(10)
        first, second = setting.store.announced[1:]
        assert sorted(first[1] + second[1]) == list(range(1, 40))
        assert 57 < first[0] - began <= 63
        assert 78 + 3 <= second[0] - began <= 78 + 8
        await asyncio.sleep(200)
        assert len(setting.store.announced) == 3

    in_setting(test)


def test_an_announcement_that_failed_is_made_again() -> None:
    async def test(setting: Setting) -> None:
        setting.led(0)
        setting.submit(0)
        await setting.answered(0)
        setting.store.faults = [ConnectionLossError()]
        await asyncio.sleep(20)
        assert [numbers for _, numbers in setting.store.announced] == [[0]]

    in_setting(test)


def test_very_many_are_announced_in_pieces() -> None:
    async def test(setting: Setting) -> None:
        setting.led(*range(4_500))
        for number in range(4_500):
            setting.submit(number)
        await asyncio.sleep(10)
        assert [len(numbers) for _, numbers in setting.store.announced] == [2_000, 2_000, 500]

    in_setting(test)


def test_nothing_is_written_after_the_end() -> None:
    async def test(setting: Setting) -> None:
        setting.led(0)
        setting.store.faults = [ConnectionLossError()] * 100
        setting.submit(0)
        await asyncio.sleep(3)
        await setting.manager.close()
        setting.submit(0)
        batches = len(setting.store.batches)
        await asyncio.sleep(10)
        assert (len(setting.store.batches), setting.answers, setting.manager.waiting) == (batches, {}, 0)

    in_setting(test)
