"""The write queue: nothing counts as written before it is, and callbacks come in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from barnabas.kernel.tick import Tick
from barnabas.log.partition.write_queue import WriteQueue, Written
from barnabas.wire.errors import ErrorCode, KafkaError

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class FakeLog:
    """Counts its writes; syncs end when the test says so."""

    def __init__(self) -> None:
        self.written = Written()
        self.writes = 0
        self.must_sync = False
        self.syncs: list[asyncio.Future[KafkaError | None]] = []
        self.error: KafkaError | None = None

    def write_pending(self) -> KafkaError | None:
        self.writes += 1
        return self.error

    def start_sync(self) -> asyncio.Future[KafkaError | None]:
        sync = asyncio.get_running_loop().create_future()
        self.syncs.append(sync)
        return sync


class Fixture:
    """A queue with a log, and who was called."""

    def __init__(self) -> None:
        self.queue = WriteQueue(Tick(asyncio.get_running_loop()))
        self.log = FakeLog()
        self.called: list[tuple[str, KafkaError | None]] = []

    def wait(self, name: str) -> None:
        self.queue.when_written(self.log, lambda error: self.called.append((name, error)))

    def wait_for_file(self, name: str) -> None:
        self.queue.when_in_file(self.log, lambda error: self.called.append((name, error)))

    async def append(self, name: str) -> None:
        """The log has something to be written, and somebody waits for it."""
        self.queue.add(self.log)
        self.wait(name)
        await turns()

    @property
    def names(self) -> str:
        return "".join(name for name, _ in self.called)


async def turns() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def test_writes_once_per_tick_and_then_calls(run: Run) -> None:
    async def main() -> None:
        fixture = Fixture()
        fixture.wait("a")
        assert fixture.names == "a", "nothing was pending"
        fixture.queue.add(fixture.log)
        fixture.wait("b")
        fixture.wait("c")
        assert fixture.queue.needs_wait(fixture.log)
        assert (fixture.names, fixture.log.writes) == ("a", 0)
        await turns()
        assert (fixture.names, fixture.log.writes) == ("abc", 1)
        assert not fixture.queue.needs_wait(fixture.log)

    run(main())


def test_a_failed_write_is_told_to_everybody(run: Run) -> None:
    async def main() -> None:
        fixture = Fixture()
        fixture.log.error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        await fixture.append("a")
        assert fixture.called == [("a", fixture.log.error)]

    run(main())


def test_a_sync_covers_what_was_there_when_it_began_and_nothing_else(run: Run) -> None:
    async def main() -> None:
        fixture = Fixture()
        fixture.log.must_sync = True
        await fixture.append("a")
        await fixture.append("b")
        assert (fixture.names, len(fixture.log.syncs)) == ("", 1)
        fixture.log.syncs[0].set_result(None)
        await turns()
        assert (fixture.names, len(fixture.log.syncs)) == ("a", 2)
        fixture.log.must_sync = False
        fixture.log.syncs[1].set_result(None)
        await turns()
        assert fixture.names == "ab"

    run(main())


def test_who_needs_the_write_only_is_told_before_a_sync_begins_and_not_by_it(run: Run) -> None:
    async def main() -> None:
        fixture = Fixture()
        fixture.wait_for_file("a")
        assert fixture.names == "a", "nothing was pending"
        fixture.queue.add(fixture.log)
        fixture.wait_for_file("b")
        fixture.log.must_sync = True
        fixture.wait("c")
        await turns()
        assert (fixture.called, len(fixture.log.syncs)) == ([("a", None), ("b", None)], 1)
        fixture.log.syncs[0].set_result(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
        await turns()
        assert [name for name, error in fixture.called if error] == ["c"]
        fixture.log.error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        fixture.queue.add(fixture.log)
        fixture.wait_for_file("d")
        await turns()
        assert fixture.called[-1] == ("d", fixture.log.error)
        assert not fixture.log.written.is_waited_for

    run(main())


def test_what_needs_no_sync_still_comes_after_what_does(run: Run) -> None:
    async def main() -> None:
        fixture = Fixture()
        fixture.log.must_sync = True
        await fixture.append("a")
        fixture.log.must_sync = False
        await fixture.append("b")
        assert fixture.names == ""
        fixture.log.syncs[0].set_result(None)
        await turns()
        assert fixture.names == "ab"

    run(main())


def test_a_failed_sync_is_told_only_to_whom_it_covers(run: Run) -> None:
    async def main() -> None:
        fixture = Fixture()
        fixture.log.must_sync = True
        await fixture.append("a")
        await fixture.append("b")  # while the sync goes on
        fixture.log.syncs[0].set_result(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
        await turns()
        assert [(name, error and error.code) for name, error in fixture.called] == [
            ("a", ErrorCode.KAFKA_STORAGE_ERROR)
        ]
        fixture.log.syncs[1].set_result(None)
        await turns()
        assert fixture.called[1:] == [("b", None)]

    run(main())


def test_a_callback_that_fails_keeps_nobody_else_waiting(run: Run) -> None:
    async def main() -> None:
        reported: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context["message"]))
        fixture = Fixture()
        fixture.queue.add(fixture.log)
        fixture.queue.when_written(fixture.log, lambda _error: 1 // 0)
        fixture.wait("a")
        other = FakeLog()
        fixture.queue.add(other)
        await turns()
        assert (fixture.names, other.writes, len(reported)) == ("a", 1, 1)

    run(main())


def test_a_log_whose_write_fails_unexpectedly_keeps_no_other_from_being_written(run: Run) -> None:
    async def main() -> None:
        reported: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context["message"]))
        fixture = Fixture()
        fixture.log.write_pending = lambda: 1 // 0  # type: ignore[method-assign, assignment, return-value]
        fixture.queue.add(fixture.log)
        fixture.wait("a")
        other = FakeLog()
        fixture.queue.add(other)
        await turns()
        assert (fixture.names, other.writes, len(reported)) == ("a", 1, 1)
        assert [error.code for _, error in fixture.called if error] == [ErrorCode.UNKNOWN_SERVER_ERROR]

    run(main())


def test_a_sync_that_fails_unexpectedly_leaves_nobody_waiting(run: Run) -> None:
    async def main() -> None:
        for failure in (RuntimeError("closing"), None):
            fixture = Fixture()
            fixture.log.must_sync = True
            fixture.queue.add(fixture.log)
            fixture.wait("a")
            await turns()
            fixture.wait("b")
            if failure is None:
                fixture.log.syncs[0].cancel()
            else:
                fixture.log.syncs[0].set_exception(failure)
            await turns()
            codes = [(name, error.code) for name, error in fixture.called if error]
            assert codes == [("a", ErrorCode.UNKNOWN_SERVER_ERROR), ("b", ErrorCode.UNKNOWN_SERVER_ERROR)]
            assert len(fixture.log.syncs) == 1, "it would fail again"

    run(main())
