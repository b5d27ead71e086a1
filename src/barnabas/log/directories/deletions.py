"""Files that nothing needs any more go some time later, off the loop (`file.delete.delay.ms`).

Whoever read them when they were given up can end its read, and an operator has a moment to save what went by mistake.
After a crash, the load of the log removes what has the ending `.deleted`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from barnabas.kernel.host import Files, Host, HostClosedError, OffloadFullError, OffloadKind
from barnabas.kernel.timers import Timer, Timers

_RETRY_MS = 1000
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _DoomedDirectory:
    path: str
    due: float
    """Seconds of the loop's clock."""
    on_error: Callable[[OSError], object]


@dataclass(slots=True)
class _DoomedFiles:
    paths: tuple[str, ...]
    timer: Timer | None = None


class Deletions:
    """The deletions of one broker that are to come: files by timers, whole directories by the task
    `kafka-delete-logs`.
    """

    def __init__(
        self,
        host: Host,
        timers: Timers,
        logger: logging.Logger,
        under_way: Callable[[str], asyncio.Future[None] | None],
    ) -> None:
        """`under_way` is `changes_under_way` of the broker's log directories."""
        self._host = host
        self._under_way = under_way
        self._deleting: dict[str, asyncio.Task[None]] = {}
        self._timers = timers
        self._logger = logger
        self._waiting: dict[int, _DoomedFiles] = {}
        self._directories: list[_DoomedDirectory] = []
        self._next_number = 0

    def __len__(self) -> int:
        """Deletions that have not begun."""
        return len(self._waiting) + len(self._directories)

    def delete_files(self, paths: Sequence[str], delay_ms: int, on_error: Callable[[OSError], object]) -> None:
        """Removes files in so many milliseconds; one that is not there is no error."""
        if paths:
            self._schedule(delay_ms, tuple(paths), on_error)

    def directory_moved(self, before: str, now: str) -> None:
        """Takes note of another name of a partition directory, for the files in it that are to go."""
        for doomed in self._waiting.values():
            doomed.paths = tuple(
                now + path[len(before) :] if path.startswith(f"{before}/") else path for path in doomed.paths
            )

    def delete_directory(self, path: str, delay_ms: int, on_error: Callable[[OSError], object]) -> None:
        """Removes a partition directory and what is in it, with the first `delete_due_directories` after so many
        milliseconds.
        """
        self._directories.append(_DoomedDirectory(path, self._host.loop.time() + delay_ms / 1000, on_error))

    async def delete_due_directories(self) -> None:
        """Removes the directories whose time has come, those of each log directory one after another; of one that hangs
        they keep those of others from nothing, and are waited for no longer than a while."""
        now = self._host.loop.time()
        due = [doomed for doomed in self._directories if doomed.due <= now]
        self._directories = [doomed for doomed in self._directories if doomed.due > now]
        lanes: dict[str, list[_DoomedDirectory]] = {}
        started: list[asyncio.Task[None]] = []
        for doomed in due:
            lanes.setdefault(os.path.dirname(doomed.path), []).append(doomed)
        for lane, each in lanes.items():
            if lane in self._deleting:
                self._directories += each
                continue
            task = self._deleting[lane] = self._host.loop.create_task(self._delete_directories(lane, each))
            task.add_done_callback(partial(self._lane_ended, lane))
            started.append(task)
        if started:
            await asyncio.wait(started, timeout=_PATIENCE_SECONDS)

    def _lane_ended(self, lane: str, _: asyncio.Task[None]) -> None:
        del self._deleting[lane]

    async def _delete_directories(self, lane: str, due: Sequence[_DoomedDirectory]) -> None:
        """Those of one log directory, one after another."""
        for doomed in due:
            try:
                under_way = self._under_way(lane)
                if under_way is not None:
                    await under_way
                await self._host.offload(OffloadKind.DISK, remove, self._host.files, (), (doomed.path,), lane=lane)
            except OSError as error:
                self._logger.warning("Could not delete %s: %s", doomed.path, error)
                doomed.on_error(error)
            except OffloadFullError:
                self._directories.append(doomed)
            except HostClosedError:
                return
            else:
                self._logger.info("Deleted log %s", doomed.path)

    def close(self) -> None:
        """Begins no further deletion; the next start goes on with what is left."""
        for doomed in self._waiting.values():
            if doomed.timer is not None:
                doomed.timer.cancel()
        self._waiting.clear()
        self._directories.clear()

    def _schedule(self, delay_ms: int, paths: tuple[str, ...], on_error: Callable[[OSError], object]) -> None:
        number = self._next_number
        self._next_number += 1
        doomed = self._waiting[number] = _DoomedFiles(paths)

        def begin() -> None:
            under_way = self._under_way(os.path.dirname(os.path.dirname(doomed.paths[0])))
            if under_way is not None:
                under_way.add_done_callback(delete)
            else:
                delete()

        def delete(ended: asyncio.Future[None] | None = None) -> None:
            if ended is not None and (ended.cancelled() or ended.exception() is not None):
                return  # the directory has failed
            if self._waiting.pop(number, None) is None:
                return  # closed meanwhile
            paths = doomed.paths
            try:
                lane = os.path.dirname(os.path.dirname(paths[0]))
                work = self._host.offload(OffloadKind.DISK, remove, self._host.files, paths, lane=lane)
            except OffloadFullError:
                self._schedule(_RETRY_MS, paths, on_error)
                return
            except HostClosedError:
                return
            work.add_done_callback(lambda done: self._ended(done, paths, on_error))

        doomed.timer = self._timers.call_after(delay_ms, begin)

    def _ended(self, done: asyncio.Future[None], paths: tuple[str, ...], on_error: Callable[[OSError], object]) -> None:
        if done.cancelled():
            return  # the host is closing
        error = done.exception()
        if error is None:
            self._logger.info("Deleted %s", ", ".join(paths))
        elif isinstance(error, OSError):
            self._logger.warning("Could not delete %s: %s", ", ".join(paths), error)
            on_error(error)
        else:
            raise error


def remove(files: Files, paths: Sequence[str], directories: Sequence[str] = ()) -> None:
    """Off the loop: removes files, and directories with the files in them."""
    for path in paths:
        try:
            files.unlink(path)
        except FileNotFoundError:
            continue
    for directory in directories:
        try:
            names = files.list_directory(directory)
        except FileNotFoundError:
            continue
        for name in names:
            files.unlink(f"{directory}/{name}")
        files.remove_directory(directory)
