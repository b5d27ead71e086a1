"""Whether a log directory answers: a small write and its sync, off the loop, again and again while there are appends.

A disk that hangs lets a sync wait at once, and what goes to the page cache only some time later: on ext4 from the next
commit of its journal on, within five seconds. A write on the loop would then hold all of the broker, its session, its
other directories and the controller. So a directory that does not answer in time is *held*: nothing is written to it on
the loop before it answers. A disk on which the first call that waits is one of the loop's own is not found out.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final

from barnabas.kernel.host import Files, Host, HostClosedError, OffloadFullError, OffloadKind
from barnabas.kernel.timers import Timer, Timers
from barnabas.log.directories.log_directory import LogDirectory

PROBE_FILE: Final = ".barnabas-probe"
PERIOD_MS: Final = 500
"""From one answer to the next question, where there was an append since the last one."""
IDLE_PERIOD_MS: Final = 10_000
"""And where there was none: each question costs the disk some blocks of its journal, and keeps it from its rest."""
USUAL_TIMES: Final = 4
"""A directory that has taken long for its answers lately, as a slow disk does under load, has so many times as long."""
PATIENCE_TIMES_MAX: Final = 10
"""But no longer than so many times the patience that is configured."""
_USUAL_KEPT: Final = 0.95
"""Of the longest answer, with each answer that is shorter: half of it is forgotten in some seven seconds."""
_LATE_LOOP_MS: Final = 50
"""The answer may have come while the loop itself was late: it gets so much longer to be heard."""
_PROBE: Final = bytes(512)


class DirectoryWatch:
    """That of one log directory."""

    def __init__(
        self,
        host: Host,
        timers: Timers,
        directory: LogDirectory,
        patience_ms: int,
        on_changed: Callable[[LogDirectory], object],
        logger: logging.Logger,
    ) -> None:
        """`on_changed` is called when the directory is held, and when it is not any more."""
        self._host = host
        self._timers = timers
        self._directory = directory
        self._patience_ms = patience_ms
        self._on_changed = on_changed
        self._logger = logger
        self._probe = _Probe(host.files, f"{directory.path}/{PROBE_FILE}")
        self._timer: Timer | None = None
        self._asked_at = -IDLE_PERIOD_MS / 1000
        """In the loop's time."""
        self._usual_ms = 0.0
        """The longest of the last answers, forgotten slowly."""
        self._is_asking = False
        self._is_closed = False

    @property
    def patience_ms(self) -> float:
        """How long the next answer may take."""
        return max(self._patience_ms, USUAL_TIMES * self._usual_ms)

    def start(self) -> None:
        """Asks from now on, until `close` or until the directory is offline."""
        if self._is_closed or self._directory.is_offline:
            self.close()
            return
        if not self._is_due():
            self._timer = self._timers.call_after(PERIOD_MS, self.start)
            return
        try:
            work = self._host.offload(OffloadKind.PROBE, self._probe.ask, order=self._directory.path)
        except OffloadFullError:
            self._timer = self._timers.call_after(PERIOD_MS, self.start)
            return
        except HostClosedError:
            return
        self._is_asking = True
        self._directory.has_appends = False
        self._asked_at = self._host.loop.time()
        self._timer = self._timers.call_after(self.patience_ms, self._look_again)
        work.add_done_callback(self._answered)

    def close(self) -> None:
        """Asks no more; what is held stays so."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_asking:
            self._probe.close()

    def _is_due(self) -> bool:
        return self._directory.has_appends or self._waited_ms() >= IDLE_PERIOD_MS

    def _look_again(self) -> None:
        self._timer = self._timers.call_after(_LATE_LOOP_MS, self._hold)

    def _hold(self) -> None:
        directory = self._directory
        if directory.is_offline:
            return
        self._logger.warning(
            "Log directory %s has not answered for %d ms: nothing is written to it until it does",
            *(directory.path, self._waited_ms()),
        )
        directory.is_held = True
        self._on_changed(directory)

    def _waited_ms(self) -> int:
        return round((self._host.loop.time() - self._asked_at) * 1000)

    def _answered(self, work: asyncio.Future[None]) -> None:
        self._is_asking = False
        if self._timer is not None:
            self._timer.cancel()
        if self._is_closed:
            self._probe.close()
            return
        if work.cancelled() or work.exception() is not None:
            return  # the host is closing
        # No more than counts: how long it has hung is not what it takes, and would be remembered for minutes.
        counted_ms = min(self._waited_ms(), PATIENCE_TIMES_MAX * self._patience_ms / USUAL_TIMES)
        self._usual_ms = max(counted_ms, _USUAL_KEPT * self._usual_ms)
        directory = self._directory
        if directory.is_held:
            directory.is_held = False
            if not directory.is_offline:
                self._logger.warning("Log directory %s answers again, after %d ms", directory.path, self._waited_ms())
                self._on_changed(directory)
        self._timer = self._timers.call_after(PERIOD_MS, self.start)


class _Probe:
    """A file without a name, the same bytes of which are written again and again."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._descriptor: int | None = None

    def ask(self) -> None:
        """Returns when the disk has answered. Belongs off the loop.

        An error is an answer too; what it means is for those to find out who have something to write.
        """
        files = self._files
        try:
            if self._descriptor is None:
                self._descriptor = files.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
                files.unlink(self._path)
            files.pwrite(self._descriptor, _PROBE, 0)
            files.fdatasync(self._descriptor)
        except OSError:
            return

    def close(self) -> None:
        """Not while it is asked."""
        if self._descriptor is not None:
            self._files.close(self._descriptor)
            self._descriptor = None
