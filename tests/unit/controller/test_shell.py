"""The shell: repeats what was lost with a connection, and ends what belongs to a session that is over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import pytest

from barnabas.controller.effects import (
    SendRequests,
    SessionOverError,
    StateChange,
    Steps,
    UncleanElections,
    WaitForFeatures,
    operate,
    read_children,
    read_znodes,
)
from barnabas.controller.recent_transitions import RecentTransitions, StateTransition
from barnabas.controller.settings import ControllerSettings
from barnabas.controller.shell import ControllerShell
from barnabas.coordination.errors import ConnectionLossError, NoNodeError, NotSentError, SessionExpiredError
from barnabas.coordination.operations import GetData, Multi, Operation, SetData
from barnabas.kernel.metrics import Meter
from barnabas.kernel.real_host import RealClock
from barnabas.kernel.timers import Timers

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Store:
    """Answers each batch with the next of the given outcomes, and keeps what it was asked."""

    def __init__(self, *batches: list[Any]) -> None:
        self.batches = list(batches)
        self.asked: list[list[str]] = []
        self.before_answer: Callable[[], None] = lambda: None

    async def submit(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        return self._answer([operation.path for operation in operations])

    async def get_written_of_many(self, paths: Sequence[str]) -> list[Any]:
        return self._answer(list(paths))

    async def get_children_names_of_many(self, paths: Sequence[str]) -> list[Any]:
        return self._answer(list(paths))

    def _answer(self, paths: list[str]) -> list[Any]:
        self.asked.append(paths)
        self.before_answer()
        return self.batches.pop(0)


class Features:
    def __init__(self) -> None:
        self.waited: list[tuple[int, float]] = []

    async def wait_for_epoch(self, epoch: int, timeout_ms: float) -> None:
        self.waited.append((epoch, timeout_ms))


def shell_on(store: Store, features: Features | None = None) -> ControllerShell:
    loop = asyncio.get_running_loop()
    return ControllerShell(
        cast("Any", store),
        ControllerSettings(1, "PLAINTEXT", zookeeper_connection_timeout_ms=77),
        features or Features(),
        timers=Timers(loop),
        state_change_logger=logging.getLogger("state.change.logger"),
        recent_transitions=RecentTransitions(RealClock()),
        unclean_elections=Meter(loop.time),
    )


def read_all(*paths: str) -> Steps[list[Any]]:
    return (yield from operate([GetData(path) for path in paths]))


def test_only_what_was_lost_is_repeated_until_it_is_answered(run: Run) -> None:
    async def scenario() -> None:
        gone = NoNodeError("/b")
        store = Store(["a", ConnectionLossError(), gone, NotSentError()], [NotSentError(), "d"], ["b"])
        assert await shell_on(store).run(read_all("/a", "/x", "/b", "/d")) == ["a", "b", gone, "d"]
        assert store.asked == [["/a", "/x", "/b", "/d"], ["/x", "/d"], ["/x"]]

    run(scenario())


@pytest.mark.parametrize("read", [read_znodes, read_children])
def test_reads_in_bulk_are_repeated_too(run: Run, read: Callable[[list[str]], Steps[list[Any]]]) -> None:
    async def scenario() -> None:
        store = Store(["a", ConnectionLossError()], ["b"])
        assert await shell_on(store).run(read(["/a", "/b"])) == ["a", "b"]
        assert store.asked == [["/a", "/b"], ["/b"]]

    run(scenario())


def read_in_turn(*batches: list[str]) -> Steps[list[Any]]:
    found = []
    for number, batch in enumerate(batches):
        found += yield from read_znodes(batch, batches[number + 1] if number + 1 < len(batches) else ())
    return found


def test_what_is_read_next_is_asked_for_before_this_is_used(run: Run) -> None:
    async def scenario() -> None:
        store = Store([1, 2], [3, ConnectionLossError()], [5], [4])
        asked: list[int] = []

        def steps() -> Steps[list[Any]]:
            reading = read_in_turn(["/1", "/2"], ["/3", "/4"], ["/5"])
            results = None
            while True:
                try:
                    effects = reading.send(results)  # type: ignore[arg-type]
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                results = yield effects
                asked.append(len(store.asked))

        assert await shell_on(store).run(steps()) == [1, 2, 3, 4, 5]
        assert store.asked == [["/1", "/2"], ["/3", "/4"], ["/5"], ["/4"]]
        assert asked == [2, 4, 4]

    run(scenario())


def test_what_was_read_ahead_and_is_not_asked_for_is_not_used(run: Run) -> None:
    def steps() -> Steps[list[Any]]:
        first = yield from read_znodes(["/1"], ["/2"])
        return first + (yield from read_znodes(["/3"]))

    async def scenario() -> None:
        store = Store([1], [2], [3], [2])
        shell = shell_on(store)
        assert await shell.run(steps()) == [1, 3]
        again: list[Any] = await shell.run(read_znodes(["/2"]))
        assert again == [2]
        assert store.asked == [["/1"], ["/2"], ["/3"], ["/2"]]

    run(scenario())


def test_what_was_read_ahead_is_kept_over_writes_that_come_between(run: Run) -> None:
    def steps() -> Steps[list[Any]]:
        first = yield from operate([GetData("/1")], [GetData("/2")])
        written = yield from operate([Multi((SetData("/1", b""),))])
        return [*first, *written, *(yield from operate([GetData("/2")]))]

    async def scenario() -> None:
        store = Store([1], [2], ["written"])
        assert await shell_on(store).run(steps()) == [1, "written", 2]
        assert store.asked == [["/1"], ["/2"], ["/1"]]

    run(scenario())


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_read_ahead_ends_with_the_steps(run: Run, fails: bool) -> None:
    def steps() -> Steps[None]:
        yield from read_znodes(["/1"], ["/2"])
        if fails:
            raise ValueError

    async def scenario() -> None:
        ended: list[str] = []

        class Slow(Store):
            async def get_written_of_many(self, paths: Sequence[str]) -> list[Any]:
                if paths[0] == "/2":
                    try:
                        await asyncio.get_running_loop().create_future()
                    finally:
                        ended.append("/2")
                return await super().get_written_of_many(paths)

        shell = shell_on(Slow([1]))
        with contextlib.suppress(ValueError):
            await shell.run(steps())
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        assert ended == ["/2"]

    run(scenario())


def test_what_was_read_ahead_in_a_session_that_is_over_is_not_used(run: Run) -> None:
    async def scenario() -> None:
        shell = shell_on(Store([1], [2]))

        def steps() -> Steps[None]:
            yield from read_znodes(["/1"], ["/2"])
            shell.session_over()
            yield from read_znodes(["/2"])

        with pytest.raises(SessionOverError):
            await shell.run(steps())

    run(scenario())


def test_the_end_of_the_session_is_thrown_into_the_event(run: Run) -> None:
    async def scenario() -> None:
        with pytest.raises(SessionOverError):
            await shell_on(Store([SessionExpiredError()])).run(read_all("/a"))

    run(scenario())


def test_an_answer_that_comes_after_the_end_of_the_session_is_not_used(run: Run) -> None:
    async def scenario() -> None:
        store = Store(["of the next session"])
        shell = shell_on(store)
        store.before_answer = shell.session_over
        with pytest.raises(SessionOverError):
            await shell.run(read_all("/a"))

    run(scenario())


def test_what_was_lost_is_not_repeated_in_another_session(run: Run) -> None:
    async def scenario() -> None:
        store = Store([ConnectionLossError()])
        shell = shell_on(store)
        asyncio.get_running_loop().call_later(0.01, shell.session_over)
        with pytest.raises(SessionOverError):
            await shell.run(read_all("/a"))
        assert store.asked == [["/a"]]

    run(scenario())


def test_a_step_may_handle_what_failed(run: Run) -> None:
    def steps() -> Steps[str]:
        try:
            yield (WaitForFeatures(3),)
        except TimeoutError:
            return "handled"
        return "not thrown"

    async def scenario() -> None:
        class Late(Features):
            async def wait_for_epoch(self, epoch: int, timeout_ms: float) -> None:
                raise TimeoutError

        assert await shell_on(Store(), Late()).run(steps()) == "handled"
        features = Features()
        assert await shell_on(Store(), features).run(steps()) == "not thrown"
        assert features.waited == [(3, 77)]

    run(scenario())


def test_lines_are_logged_elections_counted_and_requests_need_channels(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def steps() -> Steps[None]:
        move = StateTransition("flights", 3, None, "NEW", "ONLINE")
        yield (StateChange(logging.WARNING, "100% done", move), UncleanElections(3), SendRequests(()))
        yield (StateChange(logging.WARNING, "a line that tells of no move"),)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        meter, moves = Meter(loop.time), RecentTransitions(RealClock())
        shell = ControllerShell(
            cast("Any", Store()),
            ControllerSettings(1, "PLAINTEXT"),
            Features(),
            timers=Timers(loop),
            state_change_logger=logging.getLogger("state.change.logger"),
            recent_transitions=moves,
            unclean_elections=meter,
        )
        await shell.run(steps())
        assert meter.count == 3
        assert [timed.move.topic for timed in moves.latest(5)] == ["flights"]

    run(scenario())
    assert "100% done" in caplog.text
