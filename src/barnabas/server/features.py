"""The broker's copy of `/feature` (KIP-584): which features are finalized, and in which version of the znode.

Source: how Kafka's FinalizedFeatureChangeListener keeps its cache.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import MappingProxyType

from barnabas.coordination.errors import ConnectionLossError, CoordinationError, NoNodeError, SessionExpiredError
from barnabas.coordination.layout.cluster import FEATURE_PATH, FeatureStatus, FinalizedFeatures
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import Exists, GetData
from barnabas.coordination.ports import Store
from barnabas.coordination.protocol import EventType, WatcherEvent
from barnabas.wire.sentinels import NO_EPOCH


class FinalizedFeatureCache:
    """What `/feature` says, as last read: `features`, highest level by name, and `epoch`, the znode's version (-1 while
    there is none, or finalized features are switched off).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, store: Store, logger: logging.Logger) -> None:
        self.epoch = NO_EPOCH
        self.features: Mapping[str, int] = MappingProxyType({})
        self._loop = loop
        self._store = store
        self._logger = logger
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._reading: asyncio.Task[None] | None = None
        self._stale = False

    def start(self) -> None:
        """Reads the znode now and whenever it changes."""
        self._changed()

    async def before_new_session(self) -> None:
        """The watch is gone; what is known stays. The next session waits for who waits here, so that they must not."""
        for waited in self._waiting:
            if not waited.done():
                waited.set_exception(SessionExpiredError(FEATURE_PATH))

    async def after_new_session(self) -> None:
        """Reads the znode again."""
        self._changed()

    async def wait_for_epoch(self, epoch: int, timeout_ms: float) -> None:
        """Returns when the copy is of that version of the znode, or of a later one.

        Raises TimeoutError, and SessionExpiredError when the session ends before that.
        """
        if self.epoch >= epoch:
            return
        waited: asyncio.Future[None] = self._loop.create_future()
        self._waiting[waited] = epoch
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waited
        finally:
            del self._waiting[waited]

    async def stop(self) -> None:
        """Reads no more."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _changed(self) -> None:
        self._stale = True
        if self._reading is None:
            self._reading = self._loop.create_task(self._read(), name="feature-zk-node-event-process-thread")

    async def _read(self) -> None:
        """Reads until nothing has changed meanwhile. A watch is left in any case: at the znode, or where it will be."""
        try:
            while self._stale:
                self._stale = False
                try:
                    await self._read_once()
                except ConnectionLossError:
                    # The next read waits for the connection.
                    self._stale = True
                except CoordinationError as error:
                    # The session is over; with the next one it is read again.
                    self._logger.debug("%s cannot be read: %s", FEATURE_PATH, error)
        finally:
            self._reading = None

    async def _read_once(self) -> None:
        def watch(event: WatcherEvent) -> None:
            if event.type is not EventType.NONE:
                self._changed()

        try:
            found = await self._store.perform(GetData(FEATURE_PATH, watch))
        except NoNodeError:
            if await self._store.perform(Exists(FEATURE_PATH, watch)) is not None:
                self._stale = True  # made in between
            self._take(NO_EPOCH, {})
            return
        try:
            read = FinalizedFeatures.decode(found.data)
        except LayoutError as error:
            self._logger.warning("%s; keeping the features known before", error)
            return
        if read.status is FeatureStatus.ENABLED:
            self._take(found.stat.version, read.features)
        else:
            self._take(NO_EPOCH, {})

    def _take(self, epoch: int, features: Mapping[str, int]) -> None:
        self.epoch = epoch
        self.features = MappingProxyType(dict(features))
        for waited, wanted in self._waiting.items():
            if epoch >= wanted and not waited.done():
                waited.set_result(None)
