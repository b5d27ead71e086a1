"""`barnabas.serving.acknowledgements`: who waits for the replicas is told once, in order, and in time."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.kernel.purgatory import Purgatory
from barnabas.kernel.tick import Tick
from barnabas.kernel.timers import Timers
from barnabas.log.partition.write_queue import WriteQueue, Written
from barnabas.serving.acknowledgements import Acknowledgements
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.unit.kernel.virtual_loop import HandDrivenLoop
from tests.unit.log.partition.test_write_queue import FakeLog, turns

Run = Callable[[Coroutine[Any, Any, Any]], Any]

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT


class PlayedPartition:
    """A partition with a high watermark."""

    def __init__(self, number: int) -> None:
        self.topic_partition = TopicPartition("flights", number)
        self.high_watermark = self.end = 0
        self.is_leader = True
        self.written = Written()  # it is its log too
        self.log: PlayedPartition | None = self

    def is_replicated(self, required_offset: int) -> ErrorCode | None:
        if not self.is_leader:
            return NOT_LEADER
        return ErrorCode.NONE if self.high_watermark >= required_offset else None


class PlayedWrites:
    """Writes at once, or fails."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None

    def when_written(self, _log: object, callback: Callable[[KafkaError | None], object]) -> None:
        callback(self.error)


class Setting:
    """Two partitions of a broker."""

    def __init__(self) -> None:
        self.loop = HandDrivenLoop()
        self.timers = Timers(self.loop.as_loop)
        self.now_ms = 0
        self.writes = PlayedWrites()
        self.purgatory: Purgatory[Any] = Purgatory("Produce", self.timers, logging.getLogger("barnabas.tests"))
        self.acknowledgements = Acknowledgements(self.writes, self.purgatory, self.loop.time)  # type: ignore[arg-type]
        self.partitions = [PlayedPartition(0), PlayedPartition(1)]
        self.told: list[tuple[int, ErrorCode, int]] = []
        self.count = 0

    def append(self, number: int, records: int, timeout_ms: int) -> list[int]:
        """So many producers append a record each in one tick; their numbers."""
        partition: Any = self.partitions[number]
        first = self.count
        self.count += records
        waiting = [(partition.end + each, self._answer(first + each - 1)) for each in range(1, records + 1)]
        partition.end += records
        self.acknowledgements.when_all_replicated(partition, partition, waiting, timeout_ms)
        return list(range(first, self.count))

    def _answer(self, number: int) -> Any:
        def complete(code: ErrorCode, *, is_written: bool) -> None:
            assert is_written
            self.told.append((number, code, self.now_ms))

        return SimpleNamespace(complete=complete)

    def move(self, number: int, *, by: int = 0, is_leader: bool = True) -> None:
        """The high watermark moves on, or another leads; whoever waits is told."""
        partition = self.partitions[number]
        partition.high_watermark = min(partition.end, partition.high_watermark + by)
        partition.is_leader = is_leader
        self.purgatory.check_and_complete(partition.topic_partition)

    def pass_ms(self) -> None:
        self.now_ms += 1
        self.loop.advance_to(self.now_ms / 1000)


APPEND = st.tuples(st.just("append"), st.integers(0, 1), st.integers(1, 4), st.sampled_from((5, 5, 20)))
MOVE = st.tuples(st.just("move"), st.integers(0, 1), st.integers(0, 5), st.just(0))
LEAD = st.tuples(st.just("lead"), st.integers(0, 1), st.integers(0, 1), st.just(0))
PASS = st.tuples(st.just("pass"), st.just(0), st.integers(1, 12), st.just(0))


@settings(deadline=None)
@given(st.lists(st.one_of(APPEND, APPEND, MOVE, MOVE, LEAD, PASS), max_size=40))
def test_each_is_told_once_by_whatever_comes_first(steps: list[tuple[str, int, int, int]]) -> None:
    setting = Setting()
    waiting: dict[int, tuple[int, int, int, int]] = {}  # partition, required offset, deadline, first of its tick
    expected: list[tuple[int, ErrorCode, int]] = []

    def settle() -> None:
        for each, (number, offset, deadline_ms, _) in list(waiting.items()):
            code = setting.partitions[number].is_replicated(offset)
            if code is None and deadline_ms <= setting.now_ms:
                code = TIMED_OUT
            if code is not None:
                expected.append((each, code, setting.now_ms))
                del waiting[each]

    for what, number, value, timeout_ms in steps:
        partition = setting.partitions[number]
        if what == "append":
            end = partition.end
            first = setting.count
            for at, each in enumerate(setting.append(number, value, timeout_ms), end + 1):
                waiting[each] = (number, at, setting.now_ms + timeout_ms, first)
            settle()
        elif what == "pass":
            for _ in range(value):
                setting.pass_ms()
                settle()
        else:
            is_leader = partition.is_leader if what == "move" else bool(value)
            setting.move(number, by=value if what == "move" else 0, is_leader=is_leader)
            settle()
        assert sorted(setting.told) == sorted(expected)
        ticks = len({first for *_, first in waiting.values()})
        assert setting.purgatory.delayed == setting.purgatory.watched == ticks
        assert len(setting.timers) <= 2
    for number in range(2):
        told = [each for each in setting.told if each[1] == ErrorCode.NONE]
        assert told == sorted(told, key=lambda each: each[2]), number


def test_a_producer_that_comes_again_and_again_moves_no_timer() -> None:
    setting = Setting()
    made: list[float] = []
    call_at = setting.timers.call_at

    def counted(deadline: float, *more: Any) -> Any:
        made.append(deadline)
        return call_at(deadline, *more)

    setting.timers.call_at = counted  # type: ignore[method-assign, assignment]
    for _ in range(50):
        setting.append(0, 1, 30_000)
        setting.pass_ms()
        setting.move(0, by=1)
    assert (len(made), len(setting.told)) == (1, 50)
    assert setting.acknowledgements.partitions_waited_for == 1
    for _ in range(60_000):
        setting.pass_ms()
    assert setting.acknowledgements.partitions_waited_for == 0, "what nobody uses is forgotten"


def test_who_waits_when_the_broker_stops_is_told() -> None:
    setting = Setting()
    setting.append(0, 2, 30_000)
    setting.append(0, 1, 50_000)
    for operation in setting.purgatory.close():
        operation.force_complete()
    assert [code for _, code, _ in setting.told] == [TIMED_OUT] * 3
    assert setting.purgatory.delayed == 0


@pytest.mark.parametrize("code", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_a_failed_write_is_told_at_once(code: ErrorCode) -> None:
    setting = Setting()
    setting.writes.error = KafkaError(code)
    told: list[tuple[ErrorCode, bool]] = []
    partition: Any = setting.partitions[0]
    answer: Any = SimpleNamespace(complete=lambda code, *, is_written: told.append((code, is_written)))
    setting.acknowledgements.when_replicated(partition, partition, 1, 1_000, answer)
    assert told == [(code, False)]
    assert setting.purgatory.delayed == 0


@pytest.mark.parametrize("acks", [1, -1])
def test_what_is_appended_while_a_sync_goes_on_waits_for_the_next(run: Run, acks: int) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        timers = Timers(loop)
        queue = WriteQueue(Tick(loop))
        purgatory: Purgatory[Any] = Purgatory("Produce", timers, logging.getLogger("barnabas.tests"))
        acknowledgements = Acknowledgements(queue, purgatory, loop.time)
        log: Any = FakeLog()
        log.must_sync = True
        partition: Any = PlayedPartition(0)
        partition.high_watermark = 100
        told: list[int] = []

        async def append(number: int) -> None:
            queue.add(log)
            answer: Any = SimpleNamespace(complete=lambda code, *, is_written: told.append(number))
            if acks == 1:
                acknowledgements.when_written(partition, log, answer)
            else:
                acknowledgements.when_replicated(partition, log, number, 1_000, answer)
            await turns()

        for number in (1, 2, 3):
            await append(number)
        assert (len(log.syncs), told) == (1, [])
        log.syncs[0].set_result(None)
        await turns()
        assert (len(log.syncs), told) == (2, [1]), "the second sync is that of the others"
        log.must_sync = False
        log.syncs[1].set_result(None)
        await turns()
        assert told == [1, 2, 3]
        timers.close()

    run(main())


def test_nothing_is_kept_of_partitions_whose_records_need_not_wait() -> None:
    """As with one replica only: a topic's first records wait for its id to be synced, and then count at once."""
    setting = Setting()
    setting.partitions[0].high_watermark = 10
    setting.append(0, 3, 30_000)
    setting.partitions[1].is_leader = False
    setting.append(1, 3, 30_000)
    assert [code for _, code, _ in setting.told] == [ErrorCode.NONE] * 3 + [NOT_LEADER] * 3
    assert setting.acknowledgements.partitions_waited_for == 0


def test_nothing_is_kept_of_a_partition_that_was_deleted_however_long_its_producers_would_have_waited() -> None:
    setting = Setting()
    setting.append(0, 3, 2**31 - 1)
    setting.partitions[0].log = None
    setting.move(0, is_leader=False)
    assert [code for _, code, _ in setting.told] == [NOT_LEADER] * 3
    assert (setting.acknowledgements.partitions_waited_for, len(setting.timers)) == (0, 0)


@pytest.mark.parametrize("is_same_tick", [True, False])
def test_what_was_sent_again_waits_for_its_own_records_only(*, is_same_tick: bool) -> None:
    """An idempotent producer's batch that is in the log already has the offsets of the first time."""
    setting = Setting()
    partition: Any = setting.partitions[0]
    setting.append(0, 5, 30_000)
    again = [(each, setting._answer(100 + each)) for each in (3, 2)]
    if is_same_tick:
        again.insert(0, (9, setting._answer(109)))
    setting.acknowledgements.when_all_replicated(partition, partition, again, 30_000)
    told = []
    for _ in range(4):
        setting.move(0, by=1)
        told.append(sorted(number for number, *_ in setting.told))
        setting.told.clear()
    assert told == [[0], [1, 102], [2, 103], [3]]
    partition.end = 9
    setting.move(0, by=5)
    assert [number for number, *_ in setting.told] == [4, 109][: 1 + is_same_tick]
    assert setting.purgatory.delayed == 0


def test_who_is_told_may_append_at_once() -> None:
    """As a coordinator does, whose large batches are written when they are appended."""
    setting = Setting()
    partition: Any = setting.partitions[0]
    told: list[int] = []

    def append(number: int) -> None:
        def complete(code: ErrorCode, *, is_written: bool) -> None:
            assert (code, is_written) == (ErrorCode.NONE, True)
            told.append(number)
            if number < 3:
                append(number + 1)

        partition.end += 1
        answer: Any = SimpleNamespace(complete=complete)
        setting.acknowledgements.when_replicated(partition, partition, partition.end, 30_000, answer)

    append(1)
    for expected in ([1], [1, 2], [1, 2, 3]):
        setting.move(0, by=1)
        assert told == expected
    assert setting.purgatory.delayed == 0


def test_a_time_out_costs_the_same_however_many_others_there_are() -> None:
    """Each producer has its own: a client can make as many as it has requests in flight."""
    setting = Setting()
    count = 2_000
    for number in range(count):
        setting.append(0, 1, 10 + 2 * number)
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.endswith("acknowledgements.py"):
            return None
        lines += event == "line"
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        for _ in range(20):
            setting.pass_ms()
    finally:
        sys.settrace(former)
    assert [number for number, *_ in setting.told] == [0, 1, 2, 3, 4, 5]
    assert 6 < lines < count // 4
    setting.move(0, by=count)
    assert setting.purgatory.delayed == 0


@pytest.mark.parametrize("how", ["replicated", "over", "stopped"])
def test_a_producer_that_cannot_be_told_keeps_nobody_else_waiting(how: str) -> None:
    setting = Setting()
    partition: Any = setting.partitions[0]

    def fail(code: ErrorCode, *, is_written: bool) -> None:
        raise RuntimeError(f"{code} {is_written}")

    setting.acknowledgements.when_replicated(partition, partition, 1, 5, SimpleNamespace(complete=fail))
    partition.end = 1
    setting.append(0, 2, 5)
    setting.append(0, 1, 5)
    if how == "replicated":
        setting.move(0, by=4)
    elif how == "over":
        for _ in range(5):
            setting.pass_ms()
    else:
        for operation in setting.purgatory.close():
            operation.force_complete()
    assert [number for number, _, _ in setting.told] == [0, 1, 2]
    assert setting.purgatory.delayed == 0


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("error", [None, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)])
def test_a_producer_that_cannot_be_told_of_its_write_keeps_nobody_else_waiting(
    run: Run, acks: int, error: KafkaError | None
) -> None:
    """Those behind it in the same write: also where another of them waits for replicas."""

    async def body() -> None:
        log: Any = FakeLog()
        log.error = error
        queue = WriteQueue(Tick(asyncio.get_running_loop()))
        setting = Setting()
        acknowledgements = Acknowledgements(queue, setting.purgatory, setting.loop.time)
        partition: Any = setting.partitions[0]
        partition.high_watermark = 1
        told: list[tuple[ErrorCode, bool]] = []

        def fail(code: ErrorCode, *, is_written: bool) -> None:
            raise RuntimeError(f"{code} {is_written}")

        answers: list[Any] = [
            SimpleNamespace(complete=fail),
            SimpleNamespace(complete=lambda code, *, is_written: told.append((code, is_written))),
        ]
        queue.add(log)
        for answer in answers:
            if acks == 1:
                acknowledgements.when_written(partition, log, answer)
            else:
                acknowledgements.when_replicated(partition, log, 1, 1_000, answer)
        acknowledgements.when_replicated(partition, log, 1, 5_000, answers[1])
        await turns()
        code = ErrorCode.NONE if error is None else error.code
        assert told == [(code, error is None)] * 2
        assert setting.purgatory.delayed == 0

    run(body())
