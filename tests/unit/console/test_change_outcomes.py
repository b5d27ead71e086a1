"""How a change ends, and what is told of it: once, whoever asks again, and never as refused where nobody knows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.client.errors import ClientClosedError, ClientTimeoutError, DeliveryTimeoutError, NoBrokerError
from barnabas.console import changes as changes_module
from barnabas.console.changes import BusyError, Changes, Ended, Outcome
from barnabas.kernel.real_host import RealHost, run
from barnabas.link.errors import ConnectionLostError, RequestTimeoutError, UnsupportedVersionError
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.primitives import ProtocolError

DOUBT = "It may have been done, or be done yet: look before you repeat it."


@dataclass
class Trial:
    """A change that a test lets go on, or fail."""

    error: BaseException | None = None
    waits: bool = False
    begun: int = 0
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    title: str = "Try"
    sentences: tuple[str, ...] = ("Something is tried.",)
    back: tuple[str | int, ...] = ()

    async def carry_out(self, _client: Any) -> Outcome:
        self.begun += 1
        if self.waits:
            await self.goes_on.wait()
        if self.error is not None:
            raise self.error
        return Outcome(True, ("Tried.",))


def with_changes(body: Callable[[Changes, list[str]], Awaitable[None]]) -> None:
    async def on_host(host: RealHost) -> None:
        told: list[str] = []
        client: Any = SimpleNamespace(
            host=host, metadata=SimpleNamespace(request_update=lambda: None), logger=logging.getLogger("tests.outcomes")
        )
        await body(Changes(client, told.append), told)

    run(on_host, name="test")


def test_a_form_that_comes_twice_is_carried_out_once_and_both_are_told() -> None:
    async def body(changes: Changes, told: list[str]) -> None:
        change = Trial(waits=True)
        number = changes.prepare(change, "ann")
        both = [asyncio.ensure_future(changes.carry_out(number, "ann", "")) for _ in range(2)]
        await asyncio.sleep(0.01)
        assert await asyncio.wait_for(changes.carry_out(number, "bob", ""), 10) is None
        change.goes_on.set()
        first, second = await asyncio.gather(*both)
        late = await changes.carry_out(number, "ann", "")
        done = Outcome(True, ("Tried.",))
        assert [first, second, late] == [
            Ended(change, done, False),
            Ended(change, done, True),
            Ended(change, done, True),
        ]
        assert change.begun == 1
        assert told == ["Try: Something is tried. Tried."]

    with_changes(body)


def test_who_hangs_up_finds_the_outcome_when_he_asks_again() -> None:
    async def body(changes: Changes, told: list[str]) -> None:
        change = Trial(waits=True)
        number = changes.prepare(change, "")
        gone = asyncio.ensure_future(changes.carry_out(number, "", "ann"))
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        change.goes_on.set()
        assert await changes.carry_out(number, "", "ann") == Ended(change, Outcome(True, ("Tried.",)), True)
        assert told == ["ann: Try: Something is tried. Tried."]

    with_changes(body)


def test_a_change_whose_turn_does_not_come_waits_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "_WAIT_SECONDS", 0.01)

    async def body(changes: Changes, _told: list[str]) -> None:
        slow, next_one = Trial(waits=True), Trial()
        first = asyncio.ensure_future(changes.carry_out(changes.prepare(slow, ""), "", ""))
        await asyncio.sleep(0.01)
        number = changes.prepare(next_one, "")
        with pytest.raises(BusyError, match="nothing was done"):
            await changes.carry_out(number, "", "")
        slow.goes_on.set()
        await first
        assert next_one.begun == 0
        assert await changes.carry_out(number, "", "") == Ended(next_one, Outcome(True, ("Tried.",)), False)

    with_changes(body)


def test_outcomes_that_are_remembered_are_bounded() -> None:
    async def body(changes: Changes, _told: list[str]) -> None:
        numbers = [changes.prepare(Trial(), "")]
        await changes.carry_out(numbers[0], "", "")
        for _ in range(changes_module.PREPARED_MAX):
            numbers.append(changes.prepare(Trial(), ""))
            await changes.carry_out(numbers[-1], "", "")
        found = [await changes.carry_out(number, "", "") for number in numbers]
        assert [each is not None for each in found] == [False, *[True] * changes_module.PREPARED_MAX]

    with_changes(body)


def test_of_what_is_under_way_when_the_console_ends_is_told_that_nobody_knows() -> None:
    async def body(changes: Changes, told: list[str]) -> None:
        asking = asyncio.ensure_future(changes.carry_out(changes.prepare(Trial(waits=True), ""), "", "ann"))
        await asyncio.sleep(0.01)
        await changes.close()
        assert told == [f"ann: Try: Something is tried. The console ended before the answer came. {DOUBT}"]
        await asyncio.gather(asking, return_exceptions=True)

    with_changes(body)


@pytest.mark.parametrize(
    ("error", "is_in_doubt"),
    [
        (ClientTimeoutError("late"), True),
        (RequestTimeoutError("late"), True),
        (DeliveryTimeoutError("late", may_be_written=True), True),
        (DeliveryTimeoutError("late", may_be_written=False), False),
        (ConnectionLostError("it ended"), True),
        (NoBrokerError("none"), True),
        (ProtocolError("garbage"), True),
        (ClientClosedError("closed"), True),
        (UnsupportedVersionError("too old"), False),
        (KafkaError(ErrorCode.REQUEST_TIMED_OUT, "late"), True),
        (KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "few"), True),
        (KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "broken"), True),
        (KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no"), False),
        (ZeroDivisionError("a mistake"), True),
    ],
)
def test_what_may_have_been_done_is_not_called_refused(error: Exception, is_in_doubt: bool) -> None:
    async def body(changes: Changes, told: list[str]) -> None:
        ended = await changes.carry_out(changes.prepare(Trial(error), ""), "", "")
        assert ended is not None
        assert not ended.outcome.is_done
        assert (DOUBT in ended.outcome.said, any("refused" in each for each in ended.outcome.said)) == (
            is_in_doubt,
            not is_in_doubt and isinstance(error, KafkaError),
        )
        assert len(told) == 1

    with_changes(body)
