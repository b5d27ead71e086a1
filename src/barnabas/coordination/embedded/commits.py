"""Group commit: nobody sees a transaction before it is durable.

Transactions change the tree at once and collect in the open batch. A batch is synced off the loop; meanwhile the next
one collects, so that its size follows the disk's pace. Whatever is sent while transactions wait, replies to reads and
watch events included, may tell of them, and leaves only when they are durable: it is held by the youngest batch that
has transactions. So replies of a connection leave in order, and a crash takes nothing back that anybody has seen.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

RELEASED_PER_TURN: Final = 500
"""Connections whose output is sent in one turn: a change may be watched by all."""


class Recipient(Protocol):
    """A connection whose output is held."""

    def settle(self) -> None:
        """Files what was sent so far under the batch that is now the youngest with transactions."""
        ...

    def release(self, output: list[bytes]) -> None:
        """Sends held output: the batch is durable."""
        ...

    def resume(self) -> None:
        """Goes on reading requests: the disk has caught up."""
        ...


class Batch:
    """Transactions that are made durable together, and the output that tells of them."""

    __slots__ = ("byte_count", "first_zxid", "last_zxid", "outputs", "records")

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.byte_count = 0
        self.first_zxid = 0
        self.last_zxid = 0
        self.outputs: dict[Recipient, list[bytes]] = {}


Append = Callable[[list[bytes], int], "asyncio.Future[None]"]


class Commits:
    """The open batch and the one that is being synced."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        append: Append,
        *,
        durable_zxid: int,
        requests_max: int,
        bytes_max: int,
        on_durable: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`append` makes records durable; `on_durable` gets the number of transactions of each batch when it is."""
        self.durable_zxid = durable_zxid
        # The connection whose requests are being processed; it files its output before a batch begins.
        self.active: Recipient | None = None
        self._loop = loop
        self._append = append
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._open = Batch()
        self._syncing: Batch | None = None
        self._start_scheduled = False
        # A dictionary for a set: the order is part of the run.
        self._throttled: dict[Recipient, None] = {}
        self._releasing: deque[tuple[Recipient, list[bytes]]] = deque()
        """Replies and events of durable batches, more than one turn should send."""
        self._waiters: list[tuple[int, asyncio.Future[bool]]] = []
        self._failed = False

    @property
    def outstanding(self) -> int:
        """Transactions that are not yet durable."""
        return len(self._open.records) + (0 if self._syncing is None else len(self._syncing.records))

    @property
    def is_full(self) -> bool:
        """Whether connections should not be read until the disk has caught up."""
        return len(self._open.records) >= self._requests_max or self._open.byte_count >= self._bytes_max

    def add(self, zxid: int, record: bytes) -> None:
        """Takes a transaction; whatever is sent from now on tells of it."""
        batch = self._open
        if not batch.records:
            if self.active is not None:
                self.active.settle()
            batch.first_zxid = zxid
            if self._syncing is None and not self._start_scheduled:
                self._start_scheduled = True
                # After the requests that are in the sockets' buffers by now.
                self._loop.call_soon(self._start)
        batch.records.append(record)
        batch.byte_count += len(record)
        batch.last_zxid = zxid

    def barrier(self) -> Batch | None:
        """The batch that holds output which is sent now; None when everything is durable."""
        return self._open if self._open.records else self._syncing

    def release_behind(self, recipient: Recipient, output: list[bytes]) -> None:
        """Releases output that tells of nothing that is not durable, but must stay behind what is held already."""
        self._releasing.append((recipient, output))

    def wait_for_room(self, recipient: Recipient) -> None:
        """Calls `recipient.resume` when a batch has become durable."""
        self._throttled[recipient] = None

    def when_durable(self, zxid: int) -> asyncio.Future[bool]:
        """A future that is done when the transaction is durable; its result is False when the disk has failed."""
        future: asyncio.Future[bool] = self._loop.create_future()
        if self._failed or self.durable_zxid >= zxid:
            future.set_result(not self._failed)
        else:
            self._waiters.append((zxid, future))
        return future

    def fail(self, error: BaseException) -> None:
        """Nothing becomes durable, and nothing that is held is sent, from now on; tells who asked to be told."""
        if not self._failed:
            self._failed = True
            self._wake()
            self._on_failure(error)

    def _start(self) -> None:
        self._start_scheduled = False
        if self._syncing is not None or self._failed or not self._open.records:
            return
        batch = self._syncing = self._open
        self._open = Batch()
        try:
            future = self._append(batch.records, batch.first_zxid)
        except Exception as error:  # noqa: BLE001 - whatever keeps the log from growing ends the service
            self.fail(error)
            return
        future.add_done_callback(self._finish)

    def _finish(self, future: asyncio.Future[None]) -> None:
        if future.cancelled():
            self.fail(asyncio.CancelledError("the host is closing"))
            return
        error = future.exception()
        if error is not None:
            self.fail(error)
            return
        batch = self._syncing
        if batch is None or self._failed:
            return
        self._syncing = None
        self.durable_zxid = batch.last_zxid
        self._on_durable(len(batch.records))
        self._start()
        was_releasing = bool(self._releasing)
        self._releasing.extend(batch.outputs.items())
        if not was_releasing:
            self._release_some()
        throttled, self._throttled = self._throttled, {}
        for recipient in throttled:
            recipient.resume()
        self._wake()

    def _release_some(self) -> None:
        for _ in range(min(len(self._releasing), RELEASED_PER_TURN)):
            recipient, output = self._releasing.popleft()
            recipient.release(output)
        if self._releasing:
            self._loop.call_soon(self._release_some)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for zxid, waiter in waiters:
            if waiter.done():
                continue
            if self._failed or self.durable_zxid >= zxid:
                waiter.set_result(not self._failed)
            else:
                self._waiters.append((zxid, waiter))
