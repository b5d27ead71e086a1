"""The thread, the loop and the client that all senders of a run have."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from barnabas.client.client import Client
from barnabas.kernel.real_host import RealHost, run
from barnabas.pipelines.cluster_access import client_settings
from barnabas.pipelines.definition import Pipeline, RunStopped, TopicSink
from barnabas.pipelines.outbox_options import client_options
from barnabas.pipelines.outbox_sender import ANSWER_MS_MAX, REQUEST_MS_MAX
from barnabas.pipelines.side_by_side import FirstSender

Result = TypeVar("Result")
_REFRESH_SECONDS: Final = 3_600.0
"""Offsets of a group without members expire, a week after their commit if nobody has changed that."""
_LOOK_SECONDS: Final = 0.2
_CLOSE_SECONDS_MAX: Final = 10.0
_LOGGER = logging.getLogger("barnabas.pipelines.outbox_thread")
_LOGGER.addHandler(logging.NullHandler())


class OutboxSenders:
    """The thread and the client of all senders of a run; `sending` makes one."""

    def __init__(self, pipeline: Pipeline, state_id: str, bootstrap_servers: str, stop: threading.Event) -> None:
        """Once `stop` is set nothing is opened any more."""
        self.pipeline = pipeline
        self._stop = stop
        self.group_id = f"{pipeline.group_id}-{state_id}"
        of_client = {"request_timeout_ms": REQUEST_MS_MAX, **client_options(pipeline)}
        api_timeout_ms = max(ANSWER_MS_MAX, of_client["request_timeout_ms"])
        self._settings = client_settings(pipeline, bootstrap_servers, api_timeout_ms=api_timeout_ms, **of_client)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None
        self._is_ready = threading.Event()
        self._closing: asyncio.Event | None = None
        self._senders: list[FirstSender] = []
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)

    def start(self) -> None:
        """Begins; the cluster is not asked for anything yet."""
        self._thread.start()
        self._is_ready.wait()

    def sender(self, view: str, sinks: Sequence[TopicSink]) -> FirstSender:
        """For the query of a view: its transactional id is the state's, too."""
        sender = FirstSender(self, f"{self.group_id}-{view}", sinks)
        self._senders.append(sender)
        return sender

    def close(self) -> None:
        """Ends the senders; what one has begun and not committed, the next run ends, or its time-out."""
        if self._loop is not None and self._closing is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(_CLOSE_SECONDS_MAX)

    def call(self, work: Coroutine[Any, Any, Result], *, is_opening: bool = False) -> Result:
        """See `SenderContext`; the loop has a thread of its own."""
        if self._loop is None:
            raise RuntimeError("the senders were not started")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while is_opening and not future.done():
            concurrent.futures.wait([future], _LOOK_SECONDS)
            if self._stop.is_set() and future.cancel():
                raise RunStopped
        return future.result()

    async def client(self) -> Client:
        """See `SenderContext`."""
        if self._client is None:
            raise RuntimeError("the senders were not started")
        if not self._client.cluster.brokers:
            await self._client.start(ANSWER_MS_MAX)
        return self._client

    def _run(self) -> None:
        def work(host: RealHost) -> Coroutine[None, None, None]:
            return self._work(host)

        run(work, name="outbox")

    def now_ms(self) -> int:
        """See `SenderContext`."""
        return 0 if self._client is None else self._client.host.clock.time_ms()

    def gone(self, topics: Iterable[str]) -> list[str]:
        """See `SenderContext`."""
        known = {} if self._client is None else self._client.cluster.topics
        return [topic for topic in topics if topic in known and not known[topic].partitions]

    async def _work(self, host: RealHost) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        self._client = Client(host, self._settings, _LOGGER)
        self._is_ready.set()
        refreshing = asyncio.create_task(self._refresh())
        try:
            await self._closing.wait()
        finally:
            refreshing.cancel()
            for sender in self._senders:
                await sender.end()
            await self._client.close()

    async def _refresh(self) -> None:
        """Commits each offset anew, so that none expires while a run has nothing to send."""
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            for sender in self._senders:
                await sender.refresh()


@contextlib.contextmanager
def sending(
    pipeline: Pipeline, state_id: str, bootstrap_servers: str, stop: threading.Event
) -> Iterator[OutboxSenders]:
    """The senders for the time of a run."""
    senders = OutboxSenders(pipeline, state_id, bootstrap_servers, stop)
    senders.start()
    try:
        yield senders
    finally:
        senders.close()
