"""On which event loops tests run their coroutines: units on uvloop's alone, which a broker has where it is installed;
those of the rooms whose subject are sockets, turns and transports, and real processes, on asyncio's too.

`BARNABAS_BOTH_LOOPS=1` has all of them run on both, as `.ci/nightly` does.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest
import uvloop

VARIABLE: Final = "BARNABAS_BOTH_LOOPS"
BOTH: Final = ("asyncio", "uvloop")
ONE: Final = BOTH if os.environ.get(VARIABLE, "0") == "1" else ("uvloop",)
LIMIT_SECONDS: Final = 240.0


def runner(loop: str) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """What runs a coroutine to its end on a fresh loop of that kind, within 240 s."""
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(LIMIT_SECONDS):
                return await work

        with asyncio.Runner(loop_factory=factory) as loop_runner:
            return loop_runner.run(bounded())

    return run


@pytest.fixture(params=ONE, name="run")
def run_on_one(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Instead of `run` of all suites, in the `conftest.py` of the units."""
    return runner(request.param)


@pytest.fixture(params=BOTH, name="run")
def run_on_both(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Instead of `run_on_one`, in the `conftest.py` of a room where the kind of loop makes a difference."""
    return runner(request.param)
