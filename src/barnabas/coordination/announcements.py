"""How brokers tell each other of changes in ZooKeeper, as Kafka does for configs and ACLs: sequential znodes below one
path, each of which says only what has changed, to be read then.

`Announcements` reads those below one path; `AnnouncedChanges` is the task of one who follows them. Invariant: after
whatever was missed (a session's end, a failure, a purge) everything is read again before another announcement is
heeded, and the watches are set before, so that each change is in what is read or is announced after it. While ZooKeeper
is out of reach, what was read last holds. Source: `ZkNodeChangeNotificationListener`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import Delete, GetChildren
from barnabas.coordination.ports import Store
from barnabas.coordination.protocol import EventType, WatcherEvent
from barnabas.kernel.host import Host
from barnabas.kernel.timers import Timers

Change = TypeVar("Change")
Change_contra = TypeVar("Change_contra", contravariant=True)

ANNOUNCEMENT_KEPT_MS: Final = 15 * 60 * 1000
"""Older ones are deleted by whoever sees them."""
_RETRY_MS: Final = 1000
_READ_AT_ONCE: Final = 1024
"""Each takes some 7 us."""


@dataclass(frozen=True, slots=True)
class Source(Generic[Change]):
    """Where announcements are."""

    path: str
    """What they are below."""
    prefix: str
    """What their names have before the number."""
    decode: Callable[[bytes | None, str], Change]
    """`decode(data, path)` raises LayoutError for one that says nothing; it is logged, and ignored."""


class Announcements(Generic[Change]):
    """Those of one source, each heard once and in order."""

    def __init__(
        self,
        host: Host,
        store: Store,
        source: Source[Change],
        *,
        on_change: Callable[[], object],
        logger: logging.Logger,
    ) -> None:
        """`on_change` is called when there may be new ones: once after each `new`."""
        self._host = host
        self._store = store
        self._path = source.path
        self._prefix = source.prefix
        self._decode = source.decode
        self._on_change = on_change
        self._logger = logger
        self._heard = -1
        self._made_ms: dict[str, int] = {}
        """When each that is there was made, by name."""

    def forget(self) -> None:
        """All that are there are new again."""
        self._heard = -1
        self._made_ms.clear()

    async def new(self) -> list[Change]:
        """Those that were not heard yet, in order; the watch is set again. Raises CoordinationError."""
        names = (await self._store.perform(GetChildren(self._path, self._changed))).names
        by_number = {number: name for name in names if (number := self._number_of(name)) is not None}
        there = set(by_number.values())
        self._made_ms = {name: ms for name, ms in self._made_ms.items() if name in there}
        new = {number: by_number[number] for number in sorted(by_number) if number > self._heard}
        ordered = list(new.values())
        changes: list[Change] = []
        for start in range(0, len(ordered), _READ_AT_ONCE):
            changes += await self._read(ordered[start : start + _READ_AT_ONCE])
        self._heard = max(new, default=self._heard)
        return changes

    async def _read(self, names: Sequence[str]) -> list[Change]:
        paths = [f"{self._path}/{name}" for name in names]
        changes: list[Change] = []
        for path, name, found in zip(paths, names, await self._store.get_many(paths), strict=True):
            if isinstance(found, NoNodeError):
                continue  # purged meanwhile
            if isinstance(found, CoordinationError):
                raise found
            self._made_ms[name] = found.stat.ctime_ms
            try:
                changes.append(self._decode(found.data, path))
            except LayoutError as error:
                self._logger.error("The announcement of a change is ignored: %s", error)  # noqa: TRY400 - theirs
        return changes

    async def purge(self) -> None:
        """Deletes those that all brokers have heard long ago."""
        oldest_ms = self._host.clock.time_ms() - ANNOUNCEMENT_KEPT_MS
        obsolete = [name for name, made_ms in self._made_ms.items() if made_ms < oldest_ms]
        for name in obsolete:
            del self._made_ms[name]
        # Others do the same: one that is gone already is no error, and one that stays is somebody else's next time.
        await self._store.submit([Delete(f"{self._path}/{name}") for name in obsolete])

    def _changed(self, event: WatcherEvent) -> None:
        if event.type is not EventType.NONE:  # else the session is over, which is told otherwise
            self._on_change()

    def _number_of(self, name: str) -> int | None:
        """The number of an announcement; None for any other znode."""
        digits = name.removeprefix(self._prefix)
        return int(digits) if digits != name and digits.removeprefix("-").isdecimal() else None


class Reader(Protocol[Change_contra]):
    """Reads what is announced. All raise CoordinationError; everything is read again then."""

    async def create_paths(self) -> None:
        """Makes the znodes that announcements and what they are about are below, where they are missing."""
        ...

    async def load(self) -> None:
        """Reads everything that announcements could be about."""
        ...

    async def refresh(self, changes: Iterable[Change_contra], /) -> None:
        """Reads what was announced since the last time."""
        ...


class AnnouncedChanges(Generic[Change]):
    """Has `reader` read everything at the start and after each session's end, and in between what is announced.

    A listener of the session (`before_new_session`, `after_new_session`), added before `start`.
    """

    def __init__(
        self,
        host: Host,
        store: Store,
        reader: Reader[Change],
        sources: Sequence[Source[Change]],
        what: str,
        *,
        timers: Timers,
        logger: logging.Logger,
        thread: str,
    ) -> None:
        """`what` is a plural for the log, as in "Config changes"; `thread` is the name of the task."""
        self._host = host
        self._store = store
        self._reader = reader
        self._announcements = [
            Announcements(host, store, source, on_change=self._announced, logger=logger) for source in sources
        ]
        self._what = what
        self._timers = timers
        self._logger = logger
        self._thread = thread
        self._must_reload = True
        self._must_hear = True
        self._is_reading = False
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    async def start(self) -> None:
        """Reads everything, and follows changes from then on. To be called with a session of which this listens to the
        end, before anybody goes by what is read. Raises `CoordinationError` when it cannot be read.
        """
        self._is_reading = True
        try:
            await self._reload()
        finally:
            self._is_reading = False
        if self._must_reload or self._must_hear:
            self._wake()

    async def before_new_session(self) -> None:
        """The session is over, and the watches with it. What was read stays."""
        self._must_reload = True

    async def after_new_session(self) -> None:
        """Reads everything again, beside what else a new session brings: announcements may have come and gone."""
        self.read_again()

    async def stop(self) -> None:
        """Stops following changes."""
        self._stopped = True
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def read_again(self) -> None:
        """Reads everything again, soon."""
        self._must_reload = True
        self._wake()

    def _announced(self) -> None:
        self._must_hear = True
        self._wake()

    def _wake(self) -> None:
        if not self._is_reading and not self._stopped:
            self._is_reading = True
            self._task = self._host.loop.create_task(self._follow(), name=self._thread)

    async def _follow(self) -> None:
        """Reads until there is nothing more to read."""
        try:
            while self._must_reload or self._must_hear:
                if self._must_reload:
                    await self._reload()
                else:
                    await self._hear()
        except CoordinationError as error:
            if self._store.state.is_final or self._stopped:
                return
            self._logger.warning("%s cannot be read now; trying again soon: %s", self._what, error)
            self._must_reload = True
            self._timers.call_after(_RETRY_MS, self._wake)
        except Exception:
            self._logger.exception("%s cannot be followed; trying again soon", self._what)
            self._must_reload = True
            self._timers.call_after(_RETRY_MS, self._wake)
        finally:
            self._is_reading = False

    async def _reload(self) -> None:
        self._must_reload = self._must_hear = False
        try:
            await self._reader.create_paths()
            for announcements in self._announcements:
                announcements.forget()
                await announcements.new()
            await self._reader.load()
            await self._purge()
        except CoordinationError:
            self._must_reload = True
            raise

    async def _hear(self) -> None:
        self._must_hear = False
        changes: list[Change] = []
        for announcements in self._announcements:
            changes += await announcements.new()
        await self._reader.refresh(changes)
        await self._purge()

    async def _purge(self) -> None:
        for announcements in self._announcements:
            await announcements.purge()
