"""`barnabas.coordinators.transaction.producer_ids`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from barnabas.coordinators.transaction.producer_ids import ProducerIdManager
from barnabas.kernel.host import Host
from barnabas.kernel.logs import Logs
from barnabas.kernel.real_host import RealClock
from barnabas.kernel.timers import Timers
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import AllocateProducerIdsResponse
from tests.unit.kernel.virtual_loop import run_virtually

Answer = AllocateProducerIdsResponse | Exception


class Blocks:
    """The controller, with the answers that it is given; without one it does not answer."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def allocate(self) -> AllocateProducerIdsResponse:
        self.asked += 1
        if not self.answers:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0.01)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def block(first: int, count: int = 10) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=count)


def with_ids(
    blocks: Blocks, work: Callable[[ProducerIdManager], Coroutine[Any, Any, Any]], lines: list[str] | None = None
) -> Any:
    kept = [] if lines is None else lines

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        timers = Timers(loop)
        handler = logging.Handler()
        handler.emit = lambda record: kept.append(record.getMessage())  # type: ignore[method-assign]
        logger = Logs("broker-1", RealClock(), handler).logger("ids")
        ids = ProducerIdManager(blocks, host=cast("Host", _HostOf(loop)), timers=timers, logger=logger)
        try:
            return await work(ids)
        finally:
            await ids.stop()
            timers.close()

    return run_virtually(main())


class _HostOf:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop


def test_gives_each_id_once_over_blocks() -> None:
    async def work(ids: ProducerIdManager) -> list[int]:
        return [await ids.next_id() for _ in range(25)]

    assert with_ids(Blocks(block(0), block(10), block(1000)), work) == [*range(20), *range(1000, 1005)]


def test_fetches_the_next_block_ahead() -> None:
    blocks = Blocks(block(0), block(10))

    async def work(ids: ProducerIdManager) -> None:
        ids.start()
        await asyncio.sleep(0.1)
        for _ in range(9):
            ids.next_id_now()
        assert blocks.asked == 1
        ids.next_id_now()
        await asyncio.sleep(0.1)
        assert blocks.asked == 2
        assert ids.next_id_now() == 10

    with_ids(blocks, work)


def test_many_wait_for_one_block() -> None:
    blocks = Blocks(block(0, 100))

    async def work(ids: ProducerIdManager) -> list[int]:
        return await asyncio.gather(*(ids.next_id() for _ in range(50)))

    assert sorted(with_ids(blocks, work)) == list(range(50))
    assert blocks.asked == 1


def test_a_producer_is_asked_to_try_again_where_no_controller_answers() -> None:
    async def work(ids: ProducerIdManager) -> float:
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(KafkaError) as raised:
            await ids.next_id()
        assert raised.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return loop.time() - started

    assert with_ids(Blocks(), work) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    "bad",
    [
        TimeoutError("late"),
        ConnectionResetError("gone"),
        AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH),
        block(-5),
        block(7, 0),
        block(2**63 - 5),
    ],
)
def test_asks_again_after_an_answer_that_is_none(bad: Answer) -> None:
    blocks = Blocks(bad, block(20))
    lines: list[str] = []

    async def work(ids: ProducerIdManager) -> int:
        return await ids.next_id()

    assert with_ids(blocks, work, lines) == 20
    assert len(lines) == 1


def test_refuses_a_block_that_was_given_before() -> None:
    async def work(ids: ProducerIdManager) -> list[int]:
        return [await ids.next_id() for _ in range(11)]

    assert with_ids(Blocks(block(100), block(95), block(110)), work)[-1] == 110


def test_after_the_stop_nobody_waits() -> None:
    async def work(ids: ProducerIdManager) -> ErrorCode:
        waiting = asyncio.ensure_future(ids.next_id())
        await asyncio.sleep(0.1)
        await ids.stop()
        with pytest.raises(KafkaError) as raised:
            await waiting
        return raised.value.code

    assert with_ids(Blocks(), work) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
