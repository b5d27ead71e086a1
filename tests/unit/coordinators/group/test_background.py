"""Work in steps that nobody waits for, at the stop of whoever began it."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

from barnabas.coordinators.group.background import BackgroundSteps
from barnabas.kernel.steps import StepRunner, Steps


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def two_steps() -> Steps[None]:
    yield
    yield


@pytest.mark.timeout(20)
def test_a_stop_in_any_turn_of_the_work_ends(loop: asyncio.AbstractEventLoop) -> None:
    """Also in the one in which a task has ended and its callback is still to be called (Python 3.12's gather)."""
    for turns in range(8):
        work = BackgroundSteps(loop, StepRunner(loop), logging.getLogger("background"))
        work.run(two_steps(), "work")

        async def stop(work: BackgroundSteps = work, turns: int = turns) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            await work.stop()

        loop.run_until_complete(stop())
