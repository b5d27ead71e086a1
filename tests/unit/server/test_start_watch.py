"""Waiting for a process that starts, in virtual time: progress keeps it alive, silence ends it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

from barnabas.kernel.host import Host
from barnabas.server.start_watch import (
    REMARK_EVERY_SECONDS,
    SILENCE_SECONDS_MAX,
    START_SECONDS_MAX,
    NoProgressError,
    last_line,
)
from barnabas.testing.simulation import Simulation

READY = {"broker_id": 1}


class Saying:
    """A process that says lines after pauses, in seconds."""

    def __init__(self, lines: Iterable[tuple[float, dict[str, Any] | None]]) -> None:
        self._lines = iter(lines)
        self._coming: asyncio.Task[str | None] | None = None
        self.remarks: list[str] = []
        self.silences = 0

    async def read_line(self) -> str | None:
        if self._coming is None:
            self._coming = asyncio.get_running_loop().create_task(self._next())
        line = await asyncio.shield(self._coming)
        self._coming = None
        return line

    async def _next(self) -> str | None:
        pause, line = next(self._lines)
        await asyncio.sleep(pause)
        return None if line is None else json.dumps(line)

    def silent(self) -> None:
        self.silences += 1

    def outcome(self, *, is_patient: bool = False) -> tuple[dict[str, Any] | None, float]:
        """What came of it, and after how many seconds."""

        async def main(host: Host) -> tuple[dict[str, Any] | None, float]:
            began = host.loop.time()
            said = await last_line(
                host.loop,
                self.read_line,
                on_progress=self.remarks.append,
                on_silence=self.silent if is_patient else None,
            )
            return said, host.loop.time() - began

        with Simulation(1) as simulation:
            result: tuple[dict[str, Any] | None, float] = simulation.run_on(
                simulation.machine("supervisor"), main, limit_seconds=2 * START_SECONDS_MAX
            )
        return result


def progress(text: str) -> dict[str, Any]:
    return {"starting": text}


def test_a_recovery_of_hours_that_goes_on_is_waited_for_and_shown() -> None:
    steps = 200
    process = Saying([*((SILENCE_SECONDS_MAX - 1, progress(f"{number} logs")) for number in range(steps)), (1, READY)])
    said, seconds = process.outcome()
    assert said == READY
    assert seconds > 4 * 3600
    assert process.remarks == [f"{number} logs" for number in range(steps)]


def test_remarks_come_at_a_rate_that_a_person_can_read() -> None:
    process = Saying([*((1, progress(str(number))) for number in range(1, 61)), (1, READY)])
    said, _ = process.outcome()
    assert said == READY
    assert process.remarks == [str(number) for number in range(int(REMARK_EVERY_SECONDS), 61, 10)]


def test_progress_without_words_is_progress_and_is_not_shown() -> None:
    process = Saying([*((SILENCE_SECONDS_MAX - 1, progress("")) for _ in range(10)), (1, READY)])
    assert process.outcome()[0] == READY
    assert process.remarks == []


def test_who_is_silent_for_too_long_is_given_up() -> None:
    process = Saying([(SILENCE_SECONDS_MAX - 1, progress("1 log")), (SILENCE_SECONDS_MAX + 1, READY)])
    with pytest.raises(NoProgressError, match="no progress for 90 s"):
        process.outcome()


def test_who_is_not_to_be_given_up_is_remarked_on_once_for_each_silence() -> None:
    process = Saying([(10 * SILENCE_SECONDS_MAX, progress("1 log")), (SILENCE_SECONDS_MAX + 1, READY)])
    said, _ = process.outcome(is_patient=True)
    assert said == READY
    assert process.silences == 2


def test_even_progress_has_an_end() -> None:
    def for_ever() -> Iterable[tuple[float, dict[str, Any]]]:
        while True:
            yield SILENCE_SECONDS_MAX - 1, progress("going round")

    with pytest.raises(NoProgressError, match="not ready within 24 hours"):
        Saying(for_ever()).outcome()
    assert START_SECONDS_MAX == 24 * 3600


@pytest.mark.parametrize("last", [None, {"error": "no disk"}])
def test_an_end_is_told_as_it_is(last: dict[str, Any] | None) -> None:
    assert Saying([(1, progress("1 log")), (1, last)]).outcome()[0] == last
