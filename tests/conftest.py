"""Fixtures that every suite shares."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import hypothesis
import pytest

# Hooks of pytest: what is left to the night; what servers under test say of turns of their loops that were too long.
from tests.support.by_night import MARK as NIGHT
from tests.support.by_night import pytest_collection_modifyitems, pytest_report_header
from tests.support.examples import examples
from tests.support.long_tests import MARK as LONG
from tests.support.long_turns import pytest_runtest_teardown, pytest_terminal_summary
from tests.support.loops import BOTH, runner

__all__ = [
    "pytest_collection_modifyitems",
    "pytest_report_header",
    "pytest_runtest_teardown",
    "pytest_terminal_summary",
]

# Tests that several suites share say what they have seen when they fail, as those in test files do.
pytest.register_assert_rewrite(
    "tests.support.admin_command_suite",
    "tests.support.command_suite",
    "tests.support.data_command_suite",
    "tests.support.reassign_command_suite",
)

# Cores are shared in CI: a slow example is no finding. Time is bounded per test by pytest-timeout.
hypothesis.settings.register_profile("barnabas", deadline=None, max_examples=examples(40))
hypothesis.settings.load_profile("barnabas")

# A shell that starts the tests in the background has them ignore Ctrl-C, which every process that they start would take
# over: then none of those could be tested for what it does on Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The objects of 20,000 tests all stay: the garbage collector looks at them neither while they are made, which took
    a third of that time, nor later. At what tests make it looks when that is 20,000 objects, as a broker's does.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    for mark in (NIGHT, LONG):
        config.addinivalue_line("markers", mark)


@pytest.fixture(params=BOTH)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine to its end on a fresh loop, once on asyncio's and once on uvloop's, within 240 s."""
    return runner(request.param)
