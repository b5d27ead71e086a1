"""How often the cluster is asked, and what becomes of answers that do not come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from barnabas.console.question import IDLE_FACTOR, SHARE, Question
from barnabas.kernel.host import Host
from barnabas.testing.simulation import Simulation
from barnabas.wire.errors import ErrorCode, KafkaError


def _with_question(ask: Callable[[], Awaitable[int]], body: Any, *, timeout: float = 1.0, cost: Any = None) -> None:
    """In virtual time: what an answer takes on a busy machine would be its cost."""

    async def run(host: Host) -> None:
        watched = [True]
        logger = logging.getLogger("tests.question")
        question: Question[int] = Question(
            host,
            "Cluster",
            "Metadata",
            ask,
            every_seconds=2.0,
            timeout_seconds=timeout,
            is_watched=lambda: watched[0],
            logger=logger,
            cost=cost,
        )
        await body(question, watched, host)

    with Simulation(1) as simulation:
        simulation.run_on(simulation.machine("console"), run)


async def _seven() -> int:
    return 7


def test_nobody_pays_much() -> None:
    async def body(question: Question[int], watched: list[bool], _host: Any) -> None:
        await question.ask_once()
        assert question.pause_seconds == 2.0
        watched[0] = False
        assert question.pause_seconds == 2.0 * IDLE_FACTOR

    _with_question(_seven, body)


def test_who_begins_to_look_finds_no_answer_stale_that_came_in_time() -> None:
    async def body(question: Question[int], watched: list[bool], _host: Any) -> None:
        watched[0] = False
        await question.ask_once()
        assert question.answered_ms is not None
        watched[0] = True
        # It would have been asked again after 10 s, and that may take another.
        assert not question.is_stale(question.answered_ms + 10_900)
        assert question.is_stale(question.answered_ms + 11_100)
        await question.ask_once()
        assert question.is_stale(question.answered_ms + 6_100)

    _with_question(_seven, body)


def test_what_an_answer_costs_is_what_it_takes() -> None:
    async def ask() -> int:
        await asyncio.sleep(0.5)
        return 7

    async def body(question: Question[int], _watched: list[bool], _host: Any) -> None:
        await question.ask_once()
        assert question.took_seconds == pytest.approx(0.5, abs=0.01)
        assert question.pause_seconds == question.took_seconds * SHARE

    _with_question(ask, body)


def test_only_what_is_expensive_each_time_is_asked_more_seldom() -> None:
    costs = [3.0, 4.0, 0.001, 5.0, 6.0, 7.0]

    async def body(question: Question[int], _watched: list[bool], _host: Any) -> None:
        pauses = []
        for _ in range(6):
            await question.ask_once()
            pauses.append(question.pause_seconds)
        assert pauses == [3.0 * SHARE, 3.0 * SHARE, 2.0, 2.0, 2.0, 5.0 * SHARE]

    _with_question(_seven, body, cost=lambda _answer: costs.pop(0))


def test_an_answer_that_does_not_come_keeps_the_last_one_and_says_why() -> None:
    answers: list[int | Exception] = [7, KafkaError(ErrorCode.NOT_CONTROLLER, "moved"), ConnectionError("gone"), 8]

    async def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def body(question: Question[int], _watched: list[bool], host: Any) -> None:
        assert question.is_stale(host.clock.time_ms())
        await question.ask_once()
        answered = question.answered_ms
        assert (question.value, question.error) == (7, None)
        assert answered is not None
        assert not question.is_stale(answered + 5_000)
        assert question.is_stale(answered + 7_000)
        for why in ("moved", "gone"):
            await question.ask_once()
            assert question.value == 7
            assert why in (question.error or "")
            assert question.answered_ms == answered
            assert question.pause_seconds == 2.0
        await question.ask_once()
        assert (question.value, question.error) == (8, None)

    _with_question(ask, body)


def test_a_silent_cluster_is_given_up() -> None:
    async def ask() -> int:
        await asyncio.get_running_loop().create_future()
        return 0

    async def body(question: Question[int], _watched: list[bool], _host: Any) -> None:
        await question.ask_once()
        assert question.value is None
        assert question.error == "no answer within 0.05 s"

    _with_question(ask, body, timeout=0.05)


def test_a_mistake_of_ours_ends_nothing(caplog: Any) -> None:
    async def ask() -> int:
        raise KeyError("x")

    async def body(question: Question[int], _watched: list[bool], _host: Any) -> None:
        await question.ask_once()
        assert question.error == "a mistake of the console: KeyError"

    _with_question(ask, body)
    assert "Asking for Cluster failed" in caplog.text
