"""Looks at where topics begin and end now, again and again, by one client that stays connected."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from barnabas.client.admin import Admin
from barnabas.client.client import Client
from barnabas.client.errors import ClientError
from barnabas.client.isolation import IsolationLevel
from barnabas.kernel.real_host import RealHost, run
from barnabas.pipelines.cluster_access import client_settings
from barnabas.pipelines.definition import Pipeline, PipelineUnreachableError
from barnabas.pipelines.table_versions import TopicLook
from barnabas.wire.errors import KafkaError
from barnabas.wire.primitives import ZERO_UUID
from barnabas.wire.sentinels import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Coroutine

_TIMEOUT_MS: Final = 30_000
_ANSWER_SECONDS_MAX: Final = 100.0
_CLOSE_SECONDS_MAX: Final = 15.0
_LOGGER = logging.getLogger("barnabas.pipelines.topic_looks")
_LOGGER.addHandler(logging.NullHandler())


class TopicLooks:
    """A client on a thread and a loop of its own; `looking` makes one. Any thread may ask it."""

    def __init__(self, pipeline: Pipeline, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._settings = client_settings(pipeline, bootstrap_servers)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._host: RealHost | None = None
        self._client: Client | None = None
        self._one_at_a_time = threading.Lock()
        self._ready = threading.Event()
        self._closing: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="topic-looks", daemon=True)

    def look(self, topic: str) -> TopicLook:
        """The topic as it is now; what a transaction has not committed yet is behind its end.

        Within half a minute for each of three questions. Raises PipelineUnreachableError when no answer comes, and
        where there is no such topic.
        """
        with self._one_at_a_time:
            if not self._thread.is_alive():
                self._thread.start()
            self._ready.wait(_ANSWER_SECONDS_MAX)
            try:
                if self._loop is None:
                    raise TimeoutError("its client does not start")
                asked = asyncio.run_coroutine_threadsafe(self._look(topic), self._loop)
                try:
                    return asked.result(_ANSWER_SECONDS_MAX)
                finally:
                    asked.cancel()  # nobody waits for it any more
            except (ClientError, KafkaError, OSError, concurrent.futures.TimeoutError) as error:
                why = str(error) or f"no answer within {_ANSWER_SECONDS_MAX:g} s"
                message = f'the cluster at {self._servers} does not tell where the topic "{topic}" ends: {why}'
                raise PipelineUnreachableError(f"{message}; run it again when it does") from error

    def close(self) -> None:
        """Ends the client, if it was asked anything."""
        if self._thread.is_alive() and self._loop is not None and self._closing is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(_CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        def work(host: RealHost) -> Coroutine[None, None, None]:
            return self._serve(host)

        run(work, name="topic-looks")

    async def _serve(self, host: RealHost) -> None:
        self._host, self._loop, self._closing = host, asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        try:
            await self._closing.wait()
        finally:
            if self._client is not None:
                await self._client.close()

    async def _look(self, topic: str) -> TopicLook:
        if self._host is None:
            raise RuntimeError("it was not started")
        if self._client is None:
            client = Client(self._host, self._settings, _LOGGER)
            try:
                await client.start(_TIMEOUT_MS)
            except BaseException:
                await client.close()
                raise
            self._client = client
        async with Admin(self._client) as admin:
            info = (await admin.describe_topics([topic], _TIMEOUT_MS))[topic]
            places = [TopicPartition(topic, number) for number in sorted(info.partitions)]
            first = await admin.list_offsets(dict.fromkeys(places, EARLIEST_TIMESTAMP), _TIMEOUT_MS)
            ends = dict.fromkeys(places, LATEST_TIMESTAMP)
            last = await admin.list_offsets(ends, _TIMEOUT_MS, IsolationLevel.READ_COMMITTED)
        known = "" if info.topic_id == ZERO_UUID else base64.urlsafe_b64encode(info.topic_id).decode().rstrip("=")
        return TopicLook(
            known,
            {place.partition: found.offset for place, found in first.items()},
            {place.partition: found.offset for place, found in last.items()},
        )


@contextlib.contextmanager
def looking(pipeline: Pipeline, bootstrap_servers: str) -> Iterator[TopicLooks]:
    """A TopicLooks for the time of a run."""
    looks = TopicLooks(pipeline, bootstrap_servers)
    try:
        yield looks
    finally:
        looks.close()
