"""Parked fetches (`barnabas.serving.fetch`)."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.purgatory import Purgatory
from barnabas.kernel.tick import Tick
from barnabas.kernel.timers import Timers
from barnabas.serving.fetch import DelayedFetches, ReadyFetch
from tests.unit.kernel.virtual_loop import HandDrivenLoop


class Ready(ReadyFetch):
    """A parked fetch that has enough; it may fail when it is answered."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.is_answered = False

    def force_complete(self) -> bool:
        if self.fails:
            raise RuntimeError("this one cannot even be told that it failed")
        self.is_answered = True
        return True


def test_a_fetch_that_raises_keeps_no_other_of_its_tick_waiting(caplog: pytest.LogCaptureFixture) -> None:
    loop = HandDrivenLoop()
    purgatory: Purgatory[Any] = Purgatory("Fetch", Timers(loop.as_loop), logging.getLogger("tests.fetch"))
    fetches = DelayedFetches(cast("Any", None), purgatory, Tick(loop.as_loop), MetricsRegistry(loop.time), loop.as_loop)
    parked = [Ready(), Ready(fails=True), Ready()]
    for fetch in parked:
        fetches.ready(fetch)
    loop.advance(0)
    assert [fetch.is_answered for fetch in parked] == [True, False, True]
    assert "this one cannot even be told" in caplog.text
