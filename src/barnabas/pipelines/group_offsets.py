"""The offsets of finished batches, committed to the pipeline's group, so that every tool of Kafka's sees the lag.

Spark keeps its own account in the checkpoint; this one is for people. So a failure to commit never stops a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.client.access import Access
from barnabas.client.admin import Admin
from barnabas.client.client import Client
from barnabas.client.errors import ClientError
from barnabas.client.records import OffsetAndMetadata
from barnabas.client.settings import ClientSettings
from barnabas.kernel.real_host import RealHost, run
from barnabas.wire.errors import KafkaError
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Coroutine

_COMMIT_TIMEOUT_MS = 10_000
# The client's messages about single connections do not belong on the terminal; this file warns of their effects.
_LOGGER = logging.getLogger("barnabas.pipelines.group_offsets")
_LOGGER.addHandler(logging.NullHandler())
_CLOSE_SECONDS_MAX = 15.0

Offsets = Mapping[str, Mapping[int, int]]

_NOBODY: Final = Access()


class GroupOffsets:
    """Commits the newest offsets that it is given, on its own thread and loop; `committing` makes one.

    Offsets that could not be committed are tried again with the next batch, and once more at the end.
    """

    def __init__(
        self, group_id: str, bootstrap_servers: str, warn: Callable[[str], None], access: Access = _NOBODY
    ) -> None:
        self._group_id = group_id
        servers = tuple(server.strip() for server in bootstrap_servers.split(",") if server.strip())
        self._settings = ClientSettings(
            bootstrap_servers=servers, client_id=group_id, login=access.login, tls=access.tls
        )
        self._warn = warn
        self._lock = threading.Lock()
        self._offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._closing = False
        self._has_warned = False
        self._wake: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="group-offsets", daemon=True)

    def finished(self, offsets: Offsets) -> None:
        """The next offset to be read of each partition, by topic, now that everything before it is done."""
        with self._lock:
            for topic, partitions in offsets.items():
                for partition, offset in partitions.items():
                    self._offsets[TopicPartition(topic, partition)] = OffsetAndMetadata(offset)
        self._wake()

    def start(self) -> None:
        """Begins; the cluster is not asked for anything before there is something to commit."""
        self._thread.start()

    def close(self) -> None:
        """Commits what is left, within 15 s, and warns when that did not succeed."""
        with self._lock:
            self._closing = True
        self._wake()
        self._thread.join(_CLOSE_SECONDS_MAX)
        with self._lock:
            left = self._offsets != self._committed
        if left:
            self._warn(
                f"the offsets of group {self._group_id} could not be committed; the next run commits them, and nothing "
                "that the pipeline has written depends on it"
            )

    def _run(self) -> None:
        def work(host: RealHost) -> Coroutine[None, None, None]:
            return self._commit_all(host)

        run(work, name="group-offsets")

    async def _commit_all(self, host: RealHost) -> None:
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(changed.set)

        self._wake = wake
        client: Client | None = None
        try:
            while True:
                with self._lock:
                    wanted, closing = dict(self._offsets), self._closing
                if wanted != self._committed:
                    client = await self._commit(host, client, wanted)
                if closing:
                    return
                with self._lock:
                    nothing_new = wanted == self._offsets and not self._closing
                if nothing_new:
                    await changed.wait()
                changed.clear()
        finally:
            if client is not None:
                await client.close()

    async def _commit(
        self, host: RealHost, client: Client | None, wanted: dict[TopicPartition, OffsetAndMetadata]
    ) -> Client | None:
        """Commits them; returns the client to use next time."""
        try:
            if client is None:
                client = Client(host, self._settings, _LOGGER)
                await client.start(_COMMIT_TIMEOUT_MS)
            admin = Admin(client)
            try:
                await admin.alter_group_offsets(self._group_id, wanted, _COMMIT_TIMEOUT_MS)
            finally:
                await admin.close()
        except (ClientError, KafkaError, OSError) as error:
            if not self._has_warned:
                self._has_warned = True
                self._warn(f"offsets of group {self._group_id} not committed yet ({error}); trying with the next batch")
            if client is not None:
                await client.close()
            return None
        with self._lock:
            self._committed = wanted
        self._has_warned = False
        return client


@contextlib.contextmanager
def committing(
    group_id: str, bootstrap_servers: str, warn: Callable[[str], None], access: Access = _NOBODY
) -> Iterator[GroupOffsets]:
    """A GroupOffsets for the time of a run."""
    offsets = GroupOffsets(group_id, bootstrap_servers, warn, access)
    offsets.start()
    try:
        yield offsets
    finally:
        offsets.close()
