"""Small appends of one turn of the loop are written together, before anything that was waiting for them is answered.

A log enters the queue with an append that is not in its file yet, or that has to be synced before it counts. The queue
runs once per tick, after the requests and before the sends: it writes each log's buffer with one write, and then calls
whoever waits. Thus an acknowledgement never leaves before the bytes are in the page cache, which a crash of this
process does not touch, and not before the sync where `flush.messages` asks for one. What was appended before a later
append of the same tick reached `flush.messages` needs the write only: its answer leaves with the tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from barnabas.kernel.tick import Tick
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition

WrittenCallback = Callable[[KafkaError | None], object]


class WrittenLog(Protocol):
    """What who waits knows of a log."""

    @property
    def written(self) -> Written:
        """Who else waits for it."""
        ...


class QueuedLog(WrittenLog, Protocol):
    """What the queue needs of a log to write it."""

    def write_pending(self) -> KafkaError | None:
        """Brings small appends to the file; the error is that of the log directory."""
        ...

    @property
    def must_sync(self) -> bool:
        """Whether what is written may be acknowledged only after a sync."""
        ...

    def start_sync(self) -> asyncio.Future[KafkaError | None]:
        """Begins to make durable what is written so far."""
        ...


class Written:
    """Who waits for a log's appends to count as written; each log has one."""

    __slots__ = ("callbacks", "covered", "is_queued", "is_syncing", "refused", "syncs_begun", "unsynced")

    def __init__(self) -> None:
        self.unsynced: list[WrittenCallback] = []
        """Those who wait for the write of this tick, and for no sync."""
        self.callbacks: list[WrittenCallback] = []
        self.covered: list[WrittenCallback] = []
        """Those whose appends the sync covers that goes on."""
        self.is_queued = False
        self.is_syncing = False
        self.syncs_begun = 0
        """What was appended at different counts does not become durable by the same sync."""
        self.refused: Callable[[], KafkaError] | None = None
        """Makes the error of a log that has ended, whose last appends may never have been written."""

    @property
    def is_waited_for(self) -> bool:
        """Whether anybody waits."""
        return bool(self.unsynced or self.callbacks or self.covered)

    def finish(self, error: KafkaError | None) -> None:
        """Calls everybody who waits, in order."""
        self.finish_unsynced(error)
        self.finish_covered(error)
        callbacks, self.callbacks = self.callbacks, []
        _call_all(callbacks, error)

    def finish_unsynced(self, error: KafkaError | None) -> None:
        """Calls those who wait for the write of this tick only, in order."""
        unsynced, self.unsynced = self.unsynced, []
        _call_all(unsynced, error)

    def finish_covered(self, error: KafkaError | None) -> None:
        """Calls those who wait for the sync that goes on, in order."""
        covered, self.covered = self.covered, []
        _call_all(covered, error)


class WriteQueue:
    """The queue of one broker; all its logs share it."""

    def __init__(self, tick: Tick) -> None:
        self._tick = tick
        self._logs: list[QueuedLog] = []
        self._run_method = self._run
        self.on_written: Callable[[TopicPartition], object] = lambda _partition: None
        """Called when a log ends later, for all but those who append, in another turn than that of the append: one of a
        directory with a queue. Before those who wait for it."""

    def add(self, log: QueuedLog) -> None:
        """The log is looked at before the next send. For logs, once per tick."""
        log.written.is_queued = True
        if not self._logs:
            self._tick.before_send(self._run_method)
        self._logs.append(log)

    def before_writing(self, append: Callable[[], object]) -> None:
        """Calls `append()` once, before the next send: what it appends is written with all else of this tick, and who
        waits for any of it hears of all at once.
        """
        self._tick.before_send(append, goes_first=True)

    def needs_wait(self, log: WrittenLog) -> bool:
        """Whether `when_written` would not call at once, without an error."""
        written = log.written
        return written.is_queued or written.is_syncing or written.refused is not None

    def when_written(self, log: WrittenLog, callback: WrittenCallback) -> None:
        """Calls `callback(None)` when everything that was appended to the log so far counts as written, or with the
        error that keeps it from that; at once when nothing is to be waited for.

        Invariant: nothing counts as written for being asked for when the log has ended.
        """
        written = log.written
        if written.is_queued or written.is_syncing:
            written.callbacks.append(callback)
        else:
            callback(None if written.refused is None else written.refused())

    def when_in_file(self, log: WrittenLog, callback: WrittenCallback) -> None:
        """`when_written` for who needs no sync: calls before this tick sends, whatever is to be synced after it."""
        written = log.written
        if written.is_queued:
            written.unsynced.append(callback)
        else:
            callback(None if written.refused is None else written.refused())

    def _run(self) -> None:
        logs, self._logs = self._logs, []
        for log in logs:
            try:
                self._settle(log)
            except Exception as failure:  # noqa: BLE001 - the other logs must be written all the same
                _report(f"writing {log!r} failed", failure)
                log.written.finish(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{log!r} cannot be written: {failure}"))

    def _settle(self, log: QueuedLog) -> None:
        written = log.written
        written.is_queued = False
        error = log.write_pending()
        if error is not None:
            written.finish(error)
            return
        if written.unsynced:
            written.finish_unsynced(None)
        if written.is_syncing:
            pass  # goes on when the sync is done: callbacks are called in order
        elif log.must_sync:
            self._sync(log)
        elif written.callbacks:
            written.finish(None)

    def _sync(self, log: QueuedLog) -> None:
        """Invariant: what `callbacks` holds now was appended before the sync began, so its end covers it. What is
        appended while it goes on joins in a list of its own and waits for the next.
        """
        written = log.written
        written.covered, written.callbacks = written.callbacks, []
        written.is_syncing = True
        written.syncs_begun += 1

        def finished(sync: asyncio.Future[KafkaError | None]) -> None:
            written.is_syncing = False
            failure = asyncio.CancelledError() if sync.cancelled() else sync.exception()
            if failure is not None:
                # Not tried again: the host is closing, or something is wrong that will be wrong the next time too.
                written.finish(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the sync of {log!r} failed: {failure!r}"))
                return
            written.finish_covered(sync.result())
            if not written.is_queued:
                self._settle(log)

        log.start_sync().add_done_callback(finished)


def _call_all(callbacks: list[WrittenCallback], error: KafkaError | None) -> None:
    for callback in callbacks:
        try:
            callback(error)
        except Exception as failure:  # noqa: BLE001 - one failure must not keep the others waiting for ever
            _report(f"{callback!r}, waiting for a write, failed", failure)


def _report(message: str, failure: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": failure})
