"""Tells the controller of log directories that have failed, by `/log_dir_event_notification` (KIP-112)."""

from __future__ import annotations

import asyncio
from typing import Final

from barnabas.coordination.errors import CoordinationError
from barnabas.coordination.layout.notifications import LogDirEvent, log_dir_event_path
from barnabas.coordination.operations import Create
from barnabas.coordination.protocol import CreateMode
from barnabas.kernel.logs import Logs
from barnabas.kernel.timers import Timers
from barnabas.log.directories.log_directory import LogDirectory
from barnabas.server.coordination_session import CoordinationSession

_RETRY_MS: Final = 1_000


class LogFailures:
    """Announcements of one broker. An announcement names the broker only: the controller asks it for the rest."""

    def __init__(
        self,
        broker_id: int,
        session: CoordinationSession,
        loop: asyncio.AbstractEventLoop,
        *,
        timers: Timers,
        logs: Logs,
    ) -> None:
        self._payload = LogDirEvent(broker_id).encode()
        self._session = session
        self._loop = loop
        self._timers = timers
        self._logger = logs.logger("kafka.server.ReplicaManager")
        self._announcing: asyncio.Task[None] | None = None
        self._again = False

    def announce(self, directory: LogDirectory) -> None:
        """Announces that a directory has failed, and repeats it until ZooKeeper has it; later failures join it."""
        self._logger.warning("Telling the controller that %s has failed", directory.path)
        self._again = True
        if self._announcing is None:
            self._announcing = self._loop.create_task(self._announce(), name="log-dir-event-notification")

    async def stop(self) -> None:
        """Announces nothing more."""
        if self._announcing is not None:
            self._announcing.cancel()
            await asyncio.gather(self._announcing, return_exceptions=True)

    async def _announce(self) -> None:
        create = Create(log_dir_event_path(), self._payload, mode=CreateMode.PERSISTENT_SEQUENTIAL)
        try:
            while self._again:
                self._again = False
                try:
                    # An announcement too many does no harm.
                    await self._session.until_connected(lambda: self._session.perform(create))
                except CoordinationError as error:
                    self._logger.warning("The announcement failed; trying again: %s", error)
                    # Not every error ends with the session: without the pause one that lasts would take all the time.
                    await self._timers.sleep(_RETRY_MS)
                    await self._session.connected()
                    self._again = True
        finally:
            self._announcing = None
