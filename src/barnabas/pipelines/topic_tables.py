"""The tables of a run that are read from topics: which version of each the batches of a query see, and when they move
on to a newer one.

A query's plan has versions in it. Before a batch computes anything its versions are looked at (`admit`, on the query's
thread): where a table is to be newer, the query ends there, the table is read on, and the query begins the same batch
again with another plan (`move`, on the thread of the run). What a batch sees is noted before it computes anything, so
that it sees the same when it comes again, in this run or in the next.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.pipelines.advice import views_behind
from barnabas.pipelines.definition import Pipeline, PipelineUnreachableError, ReadMode, RunStopped, Source
from barnabas.pipelines.schema_registry import learn_unknown
from barnabas.pipelines.sources import KafkaOptions
from barnabas.pipelines.state_directory import BatchesDone, StateDirectory
from barnabas.pipelines.table_count import worked_to_the_end
from barnabas.pipelines.table_parts import TableParts
from barnabas.pipelines.table_versions import (
    Part,
    Seen,
    TableVersion,
    TopicLook,
    VersionFiles,
    is_behind,
    is_other_topic,
    why_whole,
)
from barnabas.pipelines.topic_looks import looking

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_WHOLE_READINGS_MAX: Final = 3
"""How often a topic is read that is made again meanwhile."""


class TablesMoved(Exception):  # noqa: N818  # no error: a batch that is to see newer tables
    """A batch is to be begun again with other versions of tables; nothing of it was computed."""


class TableFailedError(Exception):
    """A table could not be read: the source, and what Spark says."""

    def __init__(self, source: Source, text: str) -> None:
        super().__init__(text)
        self.source = source


class Looks(Protocol):
    """Who tells where topics end (`topic_looks`)."""

    def look(self, topic: str) -> TopicLook:
        """The topic as it is now."""
        ...


class TopicTables:
    """The tables of one run. Without `refreshes` they stay as they were when it began."""

    def __init__(
        self,
        pipeline: Pipeline,
        parts: TableParts,
        files: VersionFiles,
        looks: Looks,
        said: Callable[[str], None],
        refuse_to_go_on: Callable[[], None],
        *,
        refreshes: bool,
    ) -> None:
        self._pipeline, self._parts, self._files, self._looks = pipeline, parts, files, looks
        self._said, self._refuse_to_go_on, self._refreshes = said, refuse_to_go_on, refreshes
        self._current: dict[str, TableVersion] = {}
        self._looked_at: dict[str, float] = {}
        self._names: dict[str, str] = {}
        self._planned: dict[str, Mapping[str, TableVersion]] = {}
        self._seen: dict[str, Seen] = {}
        self._admitted: dict[str, int] = {}
        self._moved: set[str] = set()
        # Of notes, files and what Spark keeps: a query notes what it sees while another, on the run's thread, moves on.
        self._lock = threading.Lock()
        self._is_making = False

    def read(self) -> None:
        """Reads every table whole. Raises TableFailedError, PipelineUnreachableError, what `refuse_to_go_on` raises.

        First it removes what runs have read that were killed before a batch was noted to see it.
        """
        self._files.keep_only(())
        for source in self._pipeline.sources:
            if source.read is ReadMode.TABLE:
                self._read_whole(source)

    def begin(self, view: str, name: str, done: BatchesDone) -> None:
        """Says what the query of a view, which the state calls `name`, sees first: of a batch that was cut short what
        it saw then.
        """
        sources = self._sources(view)
        if not sources:
            return
        if done.begun < 0:
            self._files.forget(name)
        seen = self._files.seen(name)
        planned = {source.name: self._current[source.name] for source in sources}
        self._names[view], self._admitted[view] = name, done.finished
        if seen is not None:
            self._seen[view] = seen
            topics = {source.name: source.topic for source in sources}
            known = {each: version for each, version in seen.versions.items() if topics.get(each) == version.topic}
            if seen.first_batch <= done.begun and done.finished < done.begun:
                planned |= known
                self._admitted[view] = done.begun
        self._planned[view] = planned

    def frame(self, view: str, source: Source) -> DataFrame:
        """The rows of a table as the next start of the query of a view sees them."""
        planned = self._planned.get(view, {})
        with self._lock:
            return self._parts.frame(source, planned.get(source.name, self._current[source.name]))

    def admit(self, view: str, batch_id: int) -> None:
        """Lets a batch see the tables of its query's plan, and notes that it does. Raises TablesMoved where it is to
        see newer ones; PipelineUnreachableError when nobody tells whether there are any.
        """
        planned = self._planned.get(view)
        if planned is None or batch_id <= self._admitted[view]:
            return
        if view not in self._moved and any(self._is_to_move(source, planned) for source in self._sources(view)):
            raise TablesMoved
        self._moved.discard(view)
        with self._lock:
            seen = self._seen.get(view)
            if seen is None or _parts(seen.versions) != _parts(planned):
                found = Seen(batch_id, planned)
                self._files.note(self._names[view], found)
                self._seen[view] = found
                self._drop()
        self._admitted[view] = batch_id

    def move(self, view: str) -> None:
        """Reads on the tables of a view that has been refused a batch, as far as they have become old.

        Raises TableFailedError, PipelineUnreachableError, and what `refuse_to_go_on` does.
        """
        with self._lock:
            self._is_making = True
        try:
            for source in self._sources(view):
                if self._is_old(source):
                    self._read_on(source)
            self._planned[view] = {source.name: self._current[source.name] for source in self._sources(view)}
            self._moved.add(view)
        finally:
            with self._lock:
                self._is_making = False
                self._drop()

    # Inside.

    def _drop(self) -> None:
        """Lets go of what no query sees, and no note has; not of what is being made."""
        if self._is_making:
            return
        versions: dict[str, list[TableVersion]] = {name: [version] for name, version in self._current.items()}
        for planned in self._planned.values():
            for name, version in planned.items():
                versions.setdefault(name, []).append(version)
        self._parts.keep_only(versions)

    def _sources(self, view: str) -> tuple[Source, ...]:
        behind = {name.lower() for name in views_behind(self._pipeline, view)}
        return tuple(
            source
            for source in self._pipeline.sources
            if source.read is ReadMode.TABLE and source.name.lower() in behind
        )

    def _is_to_move(self, source: Source, planned: Mapping[str, TableVersion]) -> bool:
        current = self._current[source.name]
        if planned[source.name].parts != current.parts:
            return True
        if not self._is_old(source):
            return False
        began = time.monotonic()
        if is_behind(current, self._looks.look(source.topic)):
            return True
        self._looked_at[source.name] = began
        return False

    def _is_old(self, source: Source) -> bool:
        if not self._refreshes or source.refresh_ms is None:
            return False
        return time.monotonic() - self._looked_at[source.name] >= source.refresh_ms / 1000

    def _read_on(self, source: Source) -> None:
        current, began = self._current[source.name], time.monotonic()
        look = self._looks.look(source.topic)
        why = why_whole(current, look, began - self._looked_at[source.name])
        if why is not None:
            self._said(f'topic "{source.topic}" {why}: the table {source.name} is read whole again')
            self._read_whole(source)
            return
        newer = self._made(source, lambda: self._parts.newer(source, current, look))
        if self._was_made_again(source, look):
            self._read_whole(source)
            return
        self._current[source.name], self._looked_at[source.name] = newer, began

    def _read_whole(self, source: Source) -> None:
        for _ in range(_WHOLE_READINGS_MAX):
            began = time.monotonic()
            self._said(f"reading topic {source.topic} as a table ...")
            look = self._looks.look(source.topic)
            version = self._made(source, partial(self._parts.whole, source, look))
            if not self._was_made_again(source, look):
                self._current[source.name], self._looked_at[source.name] = version, began
                self._said(f"table {source.name}: {version.base.rows:,} rows after {time.monotonic() - began:.1f} s")
                return
        message = f'topic "{source.topic}" is deleted and made again and again while it is read; run it again later'
        raise PipelineUnreachableError(message, path=self._pipeline.path, line=source.line)

    def _was_made_again(self, source: Source, look: TopicLook) -> bool:
        """Whether what was read since this look may be of two topics of one name."""
        if not is_other_topic(look, self._looks.look(source.topic)):
            return False
        self._said(f'topic "{source.topic}" was made again: the table {source.name} is read whole again')
        return True

    def _made(self, source: Source, make: Callable[[], TableVersion]) -> TableVersion:
        """A version, whose rows Spark has decoded by then."""
        made: list[TableVersion] = []

        def work() -> int:
            if not made:
                made.append(make())
            return self._parts.read(source, made[0])

        while (working := worked_to_the_end(work, self._refuse_to_go_on)).error is not None:
            # Made already, it is only decoded anew.
            if not learn_unknown(self._pipeline, str(working.error)):
                raise TableFailedError(source, str(working.error)) from working.error
            for version in made:
                self._parts.forget(source, version)
        return made[0]


def _parts(versions: Mapping[str, TableVersion]) -> dict[str, tuple[Part, ...]]:
    """What is seen of versions: offsets move on also where there is nothing to see, as behind markers."""
    return {name: version.parts for name, version in versions.items()}


@contextlib.contextmanager
def opened_tables(
    pipeline: Pipeline,
    session: SparkSession,
    kafka: KafkaOptions,
    state: StateDirectory,
    said: Callable[[str], None],
    stop: threading.Event,
    *,
    refreshes: bool,
) -> Iterator[TopicTables]:
    """The tables of a run, for the time of it. Once `stop` is set reading one raises RunStopped."""

    def refuse_to_go_on() -> None:
        if stop.is_set():
            raise RunStopped

    files = VersionFiles(state.tables_read)
    parts = TableParts(session, kafka, files)
    with looking(pipeline, kafka.bootstrap_servers) as looks:
        try:
            yield TopicTables(pipeline, parts, files, looks, said, refuse_to_go_on, refreshes=refreshes)
        finally:
            parts.close()
