"""A changed pipeline computed again beside the old one: into a state and tables of its own, which then take the places
of those that there are. A kill at any moment leaves the old ones whole, or is gone on with.

STATE~backfill        the new state (below "~backfill" the new tables, `TABLE~backfill`)
STATE~backfill.json   the journal: how far this has come, and of which definition and range it is
TABLE~before, STATE~before   the old ones, until `discard`

COMPUTING    the new state is made; nothing of the old one is touched
COMMITTING   Iceberg's tables, and tables at URLs, get the new content, in one commit each
EXCHANGING   directories change places, the state last; no run may begin
DONE         the old ones are kept

A directory of Parquet or Delta Lake is exchanged as a whole: what it says of its files is relative to it. Iceberg's
files name each other by whole paths, and a catalog's table is no directory; a store has no exchange of names, and often
no renames. So the content of these is replaced by a commit, and what was before is kept by the table itself. A topic
cannot take another's name, and readers have places in it: it is refused unless it is one that the old pipeline does not
write.
"""

from __future__ import annotations

import contextlib
import enum
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.pipelines.definition import (
    ConsoleSink,
    DeltaSink,
    IcebergSink,
    JdbcSink,
    LakeSink,
    OnError,
    ParquetSink,
    Pipeline,
    PipelineError,
    ReadMode,
    Sink,
    TopicSink,
)
from barnabas.pipelines.delta_sink import DeltaTable
from barnabas.pipelines.directory_exchange import exchange, identity_of_directory
from barnabas.pipelines.durable_files import sync_directory, write_json
from barnabas.pipelines.iceberg_sink import IcebergTable
from barnabas.pipelines.lake_marks import writer_name
from barnabas.pipelines.lake_sink import LakeWriter, note_path
from barnabas.pipelines.offset_ranges import OffsetRange, range_from_json
from barnabas.pipelines.plan import streams_of
from barnabas.pipelines.state_definition import definition_of
from barnabas.pipelines.state_directory import StateDirectory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAGED: Final = "~backfill"
FORMER: Final = "~before"
_STAGED_TABLE: Final = "__backfill"
_LOCK_SUFFIX: Final = ".barnabas.lock"


class Phase(enum.Enum):
    """How far a backfill has come."""

    COMPUTING = "computing"
    COMMITTING = "committing"
    EXCHANGING = "exchanging"
    DONE = "done"


class Backfill:
    """The backfill of one pipeline, under way or not."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.staged = _staged(pipeline)
        self._journal_path = journal_path(pipeline)
        self._state = StateDirectory(pipeline.state_directory)

    @property
    def phase(self) -> Phase | None:
        """None where there is none."""
        content = self._journal()
        return None if content is None else Phase(content["phase"])

    def begin(self, offsets: Callable[[], OffsetRange], *, has_range: bool) -> OffsetRange:
        """The range of the backfill that is to be gone on with, or begun: then `offsets` is asked. Raises PipelineError
        where this pipeline has nothing to replace, cannot be replaced, or where another one is under way.
        """
        content = self._journal()
        if content is None or content["phase"] == Phase.DONE.value:
            self._refuse_to_begin(content)
            found = offsets()
            if has_range:
                self._refuse_empty(found)
            self._note(Phase.COMPUTING, {"definition": definition_of(self.pipeline), "range": found.to_json()})
            return found
        is_same = content["definition"] == definition_of(self.pipeline)
        if has_range or not is_same:
            what = "the range is that of the backfill that has begun" if is_same else f"{self.pipeline.path} is another"
            raise self.pipeline.error(
                f"{what}, and a backfill has not ended: go on with it without --from and --to and with the file that "
                "it began with, or begin anew with --restart"
            )
        return range_from_json(content["range"])

    def commit_tables(self, session: SparkSession, staged_state: StateDirectory) -> None:
        """Replaces the content of Iceberg's tables, and of those at URLs, by that of the new ones. Raises PipelineError
        in a run's way.
        """
        self._refuse_nothing(staged_state)
        pairs = [(new, old) for new, old in self._pairs() if _is_replaced_by_a_commit(old)]
        if not pairs:
            return
        with self._state.locked(self.pipeline):
            self._note(Phase.COMMITTING, {})
            for new, old in pairs:
                self._replace_content(session, staged_state, new, old)

    def take_place(self) -> tuple[str, ...]:
        """Has the new tables and the new state take the places of the old ones; where these are kept now, in words."""
        if self.phase is Phase.DONE:
            return ()
        if self.phase is not Phase.EXCHANGING:
            self._refuse_nothing(StateDirectory(self.staged.state_directory))
        elif not self.pipeline.state_directory.exists():
            # Cut short between two renames. A lock would make a directory, in the way of the new one.
            return self._take_place()
        with self._state.locked(self.pipeline), contextlib.ExitStack() as held:
            for sink in self.pipeline.sinks:
                if isinstance(sink, DeltaSink):
                    # From a compaction, which would go on in the table that is behind the name by then.
                    held.enter_context(LakeWriter(self.pipeline, sink, DeltaTable(sink)).alone())
            return self._take_place()

    def discard(self) -> tuple[str, ...]:
        """Removes the old tables and the old state, which have been replaced; what was removed. Raises PipelineError
        where a backfill has not ended.
        """
        if self.phase not in (None, Phase.DONE):
            raise self.pipeline.error("a backfill has not ended: run it to its end, or begin anew with --restart")
        removed = []
        for place in self._places():
            for path in (place.with_name(place.name + FORMER), _staged_path(place)):
                if path.exists():
                    shutil.rmtree(path)
                    removed.append(str(path))
            _staged_path(place).with_name(f".{_staged_path(place).name}{_LOCK_SUFFIX}").unlink(missing_ok=True)
        for sink in self.staged.sinks:
            if isinstance(sink, LakeSink) and sink.url:
                removed.append(f"nothing of {sink.url}: remove it where it is")
            elif isinstance(sink, IcebergSink) and sink.directory is None:
                removed.append(f"nothing of {sink.table}, which is its catalog's: DROP TABLE {sink.table} PURGE")
        self._journal_path.unlink(missing_ok=True)
        return tuple(removed)

    def restart(self) -> tuple[str, ...]:
        """Removes what a backfill has computed; what keeps some of it, and what to do, in words. Raises PipelineError
        where it has begun to take a place.
        """
        if self.phase in (Phase.COMMITTING, Phase.EXCHANGING):
            raise self.pipeline.error(
                "the backfill is about to take its place: it can only be ended, without --restart"
            )
        if self.phase is not Phase.COMPUTING:
            return ()
        written = StateDirectory(self.staged.state_directory).has_batches()
        kept = tuple(self._kept_outside()) if written else ()
        with StateDirectory(self.staged.state_directory).locked(self.staged):
            for place in self._places():
                shutil.rmtree(_staged_path(place), ignore_errors=True)
        self._journal_path.unlink(missing_ok=True)
        return kept

    # Inside.

    def _kept_outside(self) -> Iterator[str]:
        """Of what was computed beside, that which is in no directory of ours."""
        for sink in self.staged.sinks:
            if isinstance(sink, TopicSink):
                told = "has what was computed so far; to have it once, delete it and create it again"
                yield f"topic {sink.topic} {told}"
            elif isinstance(sink, LakeSink) and sink.url:
                yield f"{sink.url} has what was computed so far: remove it where it is"
            elif isinstance(sink, IcebergSink) and sink.directory is None:
                yield f"{sink.table} is its catalog's, and has what was computed so far: DROP TABLE {sink.table} PURGE"

    def _refuse_to_begin(self, content: Mapping[str, Any] | None) -> None:
        pipeline = self.pipeline
        kept = [place.with_name(place.name + FORMER) for place in self._places()]
        by_commit = any(_is_replaced_by_a_commit(sink) for sink in pipeline.sinks)
        if content is not None and (any(path.exists() for path in kept) or by_commit):
            raise pipeline.error(
                "what the last backfill has replaced is still kept: remove it with --discard-old first"
            )
        if not self._state.has_batches():
            command = f"`barnabas pipeline run {pipeline.path}`"
            raise pipeline.error(
                f"{pipeline.state_directory} has no batches that could be replaced: begin with {command}"
            )
        before = self._state.definition()
        for sink in pipeline.sinks:
            if isinstance(sink, JdbcSink):
                message = "a table of a database is not replaced by a backfill: its names are the database's own"
                raise pipeline.error(
                    f"{message}; take this sink out, and give the table a pipeline of its own", sink.line
                )
            if isinstance(sink, TopicSink) and sink.target in before.get("sinks", {}):
                raise pipeline.error(
                    f"topic {sink.topic} cannot be replaced: no other topic can take its name, nor the places that "
                    f"readers have in it. Name a topic that is new, such as {sink.topic}-2, have readers move to it "
                    "when the backfill is done, and delete the old one then",
                    sink.line,
                )
        for place in kept:
            if place.exists():
                raise pipeline.error(f"{place} is in the way, where the old one is to be kept: move it elsewhere")
        for place in map(_staged_path, self._places()):
            if place.exists():
                raise pipeline.error(
                    f"{place} is in the way, and nobody knows what of: move it elsewhere, or remove it"
                )

    def _refuse_empty(self, offsets: OffsetRange) -> None:
        """The next run would begin where the sources do, since Spark notes an offset with a batch."""
        for query in self.pipeline.queries:
            if not offsets.has_records(streams_of(self.pipeline, query.from_view)):
                raise self.pipeline.error(f"there are no records in this range for {query.from_view}: give another one")

    def _refuse_nothing(self, staged_state: StateDirectory) -> None:
        for query in self.pipeline.queries:
            view = query.from_view
            if staged_state.batches_done(view).finished < 0 <= self._state.batches_done(view).finished:
                message = f"{view} has read nothing, and its tables would be replaced by nothing"
                raise self.pipeline.error(
                    f"{message}: begin anew with --restart when there are records, or another range"
                )

    def _replace_content(self, session: SparkSession, staged_state: StateDirectory, new: Sink, old: Sink) -> None:
        state_id = staged_state.state_id() or ""
        writer = writer_name(self.pipeline.name, state_id, staged_state.name_of(new.from_view))
        source, table = _table_of(new), _table_of(old)
        batch = staged_state.batches_done(new.from_view).finished
        if batch < 0:
            return
        if not table.exists(session) or table.marks(session).batches.get(writer) != batch:
            former = table.version(session) if table.exists(session) else ""
            told = json.dumps({"pipeline": self.pipeline.name, "view": new.from_view, "batch": batch, "backfill": True})
            # Before the commit: one that nobody has heard of is not the former version.
            self._note(Phase.COMMITTING, {"snapshots": {table.name: former, **self._noted("snapshots")}})
            # The session may know the table as it was when it was made.
            if isinstance(source, IcebergTable):
                session.catalog.refreshTable(source.name)
            table.replace(session.table(source.name), _partition_by(old), writer, batch, told)
        marks = table.marks(session)
        if marks.batches.get(writer) != batch:
            raise self.pipeline.error(f"the commit of the backfill to {old.target} does not say whose it is", old.line)
        path = note_path(staged_state, old.target)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"target": old.target, "writer": writer, "table_id": marks.table_id}
        write_json(path, {**content, "next_batch": batch + 1, "mark": batch})

    def _take_place(self) -> tuple[str, ...]:
        if self.phase is not Phase.EXCHANGING:
            marks = {str(place): identity_of_directory(_staged_path(place)) for place in self._exchanged()}
            self._note(Phase.EXCHANGING, {"directories": marks})
        # Not before that is noted: a run beside the old one would not know its tables by these names.
        state = self.pipeline.state_directory
        if identity_of_directory(_staged_path(state)) == self._noted("directories").get(str(state)):
            staged_state = StateDirectory(self.staged.state_directory)
            self._rename_notes(staged_state)
            staged_state.rename_targets(self.pipeline)
        for name, identity in self._noted("directories").items():
            if identity is not None:
                exchange(Path(name), _staged_path(Path(name)), identity)
        kept = []
        for place in self._exchanged():
            new, former = _staged_path(place), place.with_name(place.name + FORMER)
            if new.exists():
                new.rename(former)
                sync_directory(former.parent)
            if former.exists():
                kept.append(str(former))
        snapshots = self._noted("snapshots")
        self._note(Phase.DONE, {})
        return (*kept, *(f"{former} of {name}" for name, former in snapshots.items() if former))

    def _rename_notes(self, staged_state: StateDirectory) -> None:
        """What the new state notes of tables of Delta Lake, under the names that they are to have."""
        for new, old in self._pairs():
            if isinstance(new, DeltaSink) and not new.url:
                path = note_path(staged_state, new.target)
                if path.exists():
                    content = json.loads(path.read_text(encoding="utf-8"))
                    write_json(note_path(staged_state, old.target), {**content, "target": old.target})

    def _pairs(self) -> Iterator[tuple[Sink, Sink]]:
        return zip(self.staged.sinks, self.pipeline.sinks, strict=True)

    def _exchanged(self) -> list[Path]:
        """The directories that change places, the state last: as long as it is the old one, so is what a run sees."""
        tables = (sink.directory for sink in self.pipeline.sinks if isinstance(sink, ParquetSink | DeltaSink))
        return [*(directory for directory in tables if directory is not None), self.pipeline.state_directory]

    def _places(self) -> list[Path]:
        """The same, and those of Iceberg's tables."""
        directories = (sink.directory for sink in self.pipeline.sinks if isinstance(sink, IcebergSink))
        return [*(directory for directory in directories if directory is not None), *self._exchanged()]

    def _journal(self) -> dict[str, Any] | None:
        return read_journal(self.pipeline)

    def _noted(self, key: str) -> dict[str, Any]:
        return dict((self._journal() or {}).get(key, {}))

    def _note(self, phase: Phase, content: Mapping[str, Any]) -> None:
        before = {} if phase is Phase.COMPUTING else self._journal() or {}
        self._journal_path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._journal_path, {**before, **content, "phase": phase.value})


def journal_path(pipeline: Pipeline) -> Path:
    """Beside the state."""
    state = pipeline.state_directory
    return state.with_name(f"{state.name}{STAGED}.json")


def read_journal(pipeline: Pipeline) -> dict[str, Any] | None:
    """What a backfill has noted; None where there is none. Raises PipelineError where that cannot be understood."""
    path = journal_path(pipeline)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        Phase(content["phase"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PipelineError(f"{path} cannot be understood ({error!r}): restore it") from error
    return dict(content)


def refuse_half_replaced(pipeline: Pipeline) -> None:
    """Raises PipelineError while the tables may be of one state and the state another."""
    content = read_journal(pipeline)
    if content is not None and content["phase"] in (Phase.COMMITTING.value, Phase.EXCHANGING.value):
        command = f"`barnabas pipeline backfill {pipeline.path}`"
        raise pipeline.error(f"a backfill was cut short while it took its place: end it with {command}")


def _staged(pipeline: Pipeline) -> Pipeline:
    """The pipeline beside itself. Records that do not fit have been sent as letters by the runs before."""
    sources = tuple(
        replace(source, on_error=OnError.SKIP)
        if source.read is ReadMode.STREAM and source.on_error is OnError.TOPIC
        else source
        for source in pipeline.sources
    )
    return replace(
        pipeline,
        sources=sources,
        sinks=tuple(_staged_sink(sink) for sink in pipeline.sinks),
        state_directory=_staged_path(pipeline.state_directory),
    )


def _is_replaced_by_a_commit(sink: Sink) -> bool:
    return isinstance(sink, IcebergSink) or (isinstance(sink, DeltaSink) and sink.url != "")


def _table_of(sink: Sink) -> DeltaTable | IcebergTable:
    if isinstance(sink, IcebergSink):
        return IcebergTable(sink)
    if isinstance(sink, DeltaSink):
        return DeltaTable(sink)
    raise TypeError(f"{sink.target} is not replaced by a commit")


def _partition_by(sink: Sink) -> tuple[str, ...]:
    return sink.rows.partition_by if isinstance(sink, LakeSink) else ()


def _staged_sink(sink: Sink) -> Sink:
    if isinstance(sink, TopicSink | JdbcSink | ConsoleSink):
        return sink
    if isinstance(sink, LakeSink) and sink.url:
        return replace(sink, url=sink.url + STAGED)
    if isinstance(sink, IcebergSink) and sink.directory is None:
        return replace(sink, table=sink.table + _STAGED_TABLE)
    if sink.directory is None:
        raise TypeError("a table without a directory")
    return replace(sink, directory=_staged_path(sink.directory))


def _staged_path(place: Path) -> Path:
    return place.with_name(place.name + STAGED)
