"""Tables of Delta Lake and Iceberg as sinks: what both have in common. A batch is one commit of the table, which says
which batch it is; so a batch that is done again is known by what the table itself says.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from barnabas.pipelines.compaction import Compacted, CompactionFailedError, TableFiles
from barnabas.pipelines.compaction_attempts import AttemptsNote
from barnabas.pipelines.definition import LakeSink, Pipeline, PipelineError
from barnabas.pipelines.durable_files import sync_directory, sync_new_files, write_json
from barnabas.pipelines.file_secrets import without_secrets
from barnabas.pipelines.lake_marks import TableMarks, TableNote, refuse_other_records, settle, writer_name
from barnabas.pipelines.lake_rows import newest_of_keys, refuse_missing_columns, table_columns
from barnabas.pipelines.parquet_table import TableError
from barnabas.pipelines.sink import Offsets, SinkWriter, Written
from barnabas.pipelines.spark_internals import columns_parquet_refuses
from barnabas.pipelines.spark_messages import spark_message
from barnabas.pipelines.spark_schema import ddl_of, quoted_name
from barnabas.pipelines.state_directory import BatchesDone, StateDirectory
from barnabas.pipelines.store_check import refuse_other_files, refuse_unknown_stores

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

_CLOCK_SLACK_NS: Final = 2_000_000_000
_REASON_CHARACTERS_MAX: Final = 400
_LOCK_SUFFIX: Final = ".barnabas.lock"
_SOURCE_VIEW: Final = "_barnabas_batch"
# Whole numbers that a kind of table keeps as a larger one.
_WIDER: Final = {"tinyint": {"smallint", "int", "bigint"}, "smallint": {"int", "bigint"}, "int": {"bigint"}}


class LakeTable(Protocol):
    """What differs from one kind of table to another."""

    @property
    def title(self) -> str:
        """The kind, as people call it."""
        ...

    @property
    def provider(self) -> str:
        """The kind, as Spark calls it."""
        ...

    @property
    def name(self) -> str:
        """The table, as Spark's SQL names it."""
        ...

    @property
    def log_directory(self) -> str:
        """Of a table that is a directory, what every such directory has."""
        ...

    def refused_names(self, names: Sequence[str]) -> list[str]:
        """The names that no column can have."""
        ...

    def exists(self, session: SparkSession) -> bool:
        """Whether the table is there."""
        ...

    def marks(self, session: SparkSession) -> TableMarks:
        """What the table says of its batches, as of now."""
        ...

    def take(self, session: SparkSession, writer: str, run: str) -> None:
        """Has the table say whose it is, where its history might not, and which run has it, where no lock can."""
        ...

    def told(self, session: SparkSession, writer: str, batch_id: int) -> str:
        """What was told with the commit of a batch of this writer, which is the last; empty if that is gone."""
        ...

    def append(self, rows: DataFrame, writer: str, batch_id: int, told: str) -> None:
        """Adds rows, in one commit that says which batch of whom it is; `told` is kept with it, for people."""
        ...

    def merging(self, session: SparkSession, writer: str, batch_id: int, told: str) -> AbstractContextManager[None]:
        """Has the commit of a MERGE in the block say the same."""
        ...

    def files(self, session: SparkSession, target_bytes: int) -> TableFiles:
        """How many files it has, and how many of them `compact` would replace."""
        ...

    def compact(self, session: SparkSession, target_bytes: int) -> Compacted:
        """Has files of this size in the place of small ones, by commits that say of no batch."""
        ...


class LakeWriter(SinkWriter):
    """Writes batches into one table."""

    def __init__(self, pipeline: Pipeline, sink: LakeSink, table: LakeTable) -> None:
        self._pipeline = pipeline
        self._sink = sink
        self._table = table
        self._state: StateDirectory | None = None
        self._writer = ""
        self._run = secrets.token_hex(8)
        self._next = 0
        self._attempted = -1
        self._began_ns = 0
        self._held: TableMarks | None = None
        self._session: SparkSession | None = None

    @property
    def commits_at_once(self) -> bool:
        """A commit of a table cannot be held back."""
        return True

    @property
    def knows_order(self) -> bool:
        """Of several rows of a key the newest counts."""
        return True

    def check(self, state: StateDirectory, state_id: str | None) -> None:  # noqa: ARG002
        """Sees that the directory holds a table of this kind, or nothing; the rest is the table's to say."""
        directory = self._sink.directory
        if directory is None:
            return
        content = {entry.name for entry in directory.iterdir()} if directory.is_dir() else set()
        if content and self._table.log_directory not in content:
            message = f"{directory} holds files that are no {self._table.title} table ({min(content)})"
            raise self._pipeline.error(f"{message}: give the table its own directory", self._sink.line)
        if not content and state.batches_done(self._sink.from_view).finished >= 0:
            raise self._gone()

    def check_rows(self, session: SparkSession, frame: DataFrame) -> None:
        """Sees that such a table can hold the columns, and that those that the sink names are there."""
        sink, view = self._sink, self._sink.from_view
        refuse_missing_columns(self._pipeline, sink, frame)
        kept = frame.select(*(quoted_name(name) for name in table_columns(frame, sink)))
        refused = columns_parquet_refuses(session, kept)
        if refused:
            message = f"{self._table.title} cannot hold {', '.join(refused)} of {view}"
            raise self._pipeline.error(f"{message}: cast it to a type that it can", sink.from_line)
        wrong = self._table.refused_names(kept.columns)
        if wrong:
            message = f"{self._table.title} cannot have a column named {json.dumps(wrong[0])}: rename it in {view}"
            raise self._pipeline.error(message, sink.from_line)

    def prepare(self, state: StateDirectory, state_id: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """Keeps other runs from a table in a directory: also those of a copy of the state, which its lock knows nothing
        of. What a commit says tells them apart only where they are not at the same batch.
        """
        return self.alone()

    def alone(self) -> AbstractContextManager[None]:
        """Has a table in a directory for as long as the block lasts. Raises PipelineError where another run has it."""
        return contextlib.nullcontext() if self._sink.directory is None else self._alone(self._sink.directory.resolve())

    def recover(self, frame: DataFrame, state: StateDirectory, state_id: str) -> None:
        """Makes the table, or its new columns, and finds out which batches it has."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        session, done = frame.sparkSession, state.batches_done(self._sink.from_view)
        self._state = state
        self._writer = writer_name(self._pipeline.name, state_id, state.name_of(self._sink.from_view))
        note = self._read_note()
        refuse_unknown_stores(session, self._pipeline, (self._sink,))
        try:
            if not self._table.exists(session):
                if done.finished >= 0 or (note is not None and note.next_batch > 0):
                    raise self._gone()
                refuse_other_files(session, self._pipeline, self._sink)
                session.sql(self._creation(frame))
                # If there is one it is of a table without a batch that somebody has removed.
                note = None
            self._settled(note, self._table.marks(session), done)
            # Not before: a table of others is left as it is. And what it says afterwards no former run will change.
            self._table.take(session, self._writer, self._run)
            marks = self._table.marks(session)
            self._next = self._settled(note, marks, done)
            self._refuse_copy(session, marks, state)
            self._fit(session, frame)
        except (PySparkException, Py4JJavaError) as error:
            said = without_secrets(_reason(error), self._pipeline)
            message = f"the {self._table.title} table {self.place} cannot be used: {said}"
            raise self._pipeline.error(message, self._sink.line) from error
        self._sync_since_note()
        # Of a table that has lost its history the batch that it once named is still the last that was seen.
        self._write_note(marks, self._next, -1 if marks.is_whole or note is None else note.mark)

    def write(self, frame: DataFrame, batch_id: int) -> Written:
        """Commits the rows of the batch to the table, unless it has them."""
        self._session = frame.sparkSession  # the query's own, whose settings are nobody else's
        if batch_id < self._next:
            # Held still, where something failed between the commit of the table and ours.
            return Written(is_computed=False, is_held=self._held is not None)
        session = frame.sparkSession
        if self._has(self._table.marks(session), batch_id):
            return Written(is_computed=False, is_held=True)
        self._began_ns, self._attempted = time.time_ns() - _CLOCK_SLACK_NS, batch_id
        told = json.dumps(
            {
                "pipeline": self._pipeline.name,
                "view": self._sink.from_view,
                "batch": batch_id,
                "writer": self._writer,
                "records": "" if self._state is None else self._state.fingerprint(self._sink.from_view, batch_id),
            }
        )
        types = _types(session.table(self._table.name))
        if not self._sink.key:
            rows = frame.select(*_columns(frame, types))
            self._table.append(rows, self._writer, batch_id, told)
        else:
            self._merge(frame, types, batch_id, told)
        if not self._has(self._table.marks(session), batch_id):
            raise PipelineError(f"the commit of batch {batch_id} to {self.place} does not say whose it is")
        return Written(is_computed=True, is_held=True)

    def commit(self, batch_id: int, offsets: Offsets) -> None:  # noqa: ARG002
        """Brings the commit to the disk, and notes it."""
        if self._held is None:
            return
        if self._sink.directory is not None:
            sync_new_files(self._sink.directory, self._began_ns)
        self._write_note(self._held, batch_id + 1)
        self._held = None

    def tidy(self, batch_id: int) -> str:
        """Compacts the table behind each batch whose number is one of `compact`'s. The batch is the table's by then:
        what is killed here is done again behind it, or a later one.
        """
        from pyspark.errors import PySparkException

        wanted = self._sink.compact
        if wanted is None or self._session is None or self._state is None or (batch_id + 1) % wanted.every:
            return ""
        note = AttemptsNote(self._note_path.with_suffix(".compaction"))
        not_done = f"the {self._table.title} table {self.place} was not compacted behind batch {batch_id}"
        before = note.read()
        if before is not None and batch_id < (due_at := before.due_at(wanted.every)):
            return (
                f"{not_done}: {before.count} runs ended while they did that; it is tried again behind batch {due_at}. "
                "Give Spark more memory (--driver-memory), or a smaller `target`"
            )
        note.begin(batch_id)
        try:
            done = self.compact(self._session, wanted.target_bytes)
        except (PySparkException, CompactionFailedError) as error:
            note.end()
            said = _reason(error) if isinstance(error, PySparkException) else str(error)
            return f"{not_done}: {without_secrets(said, self._pipeline)}"
        note.end()
        return f"{self.place}: {done.removed:,} files became {done.added:,}" if done.removed else ""

    def compact(self, session: SparkSession, target_bytes: int) -> Compacted:
        """Compacts the table now, and brings that to the disk. Raises what Spark does, and CompactionFailedError."""
        from py4j.protocol import Py4JJavaError

        began_ns = time.time_ns() - _CLOCK_SLACK_NS
        try:
            return self._table.compact(session, target_bytes)
        except Py4JJavaError as error:
            raise CompactionFailedError(_reason(error)) from error
        finally:
            if self._sink.directory is not None:
                sync_new_files(self._sink.directory, began_ns)

    def exists(self, session: SparkSession) -> bool:
        """Whether the table is there."""
        return self._table.exists(session)

    def files(self, session: SparkSession, target_bytes: int) -> TableFiles:
        """The files of the table, and those that `compact` would replace."""
        return self._table.files(session, target_bytes)

    # Inside.

    @contextlib.contextmanager
    def _alone(self, directory: Path) -> Iterator[None]:
        # Beside it: no table is made in a directory that has something.
        path = directory.with_name(f".{directory.name}{_LOCK_SUFFIX}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = path.open("a+")
        except OSError as error:
            message = f"the {self._table.title} directory {directory} cannot be used: {error.strerror or error}"
            raise self._pipeline.error(f"{message}; name another, or correct that", self._sink.line) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                message = f"{directory} is being written by another run: stop that run, or give the table another"
                raise self._pipeline.error(f"{message} directory", self._sink.line) from None
            yield

    def _refuse_doubled(self, marks: TableMarks, batch_id: int) -> None:
        """Raises PipelineError where two runs have added one batch at the same moment. To replace rows twice by the
        same ones changes nothing.
        """
        if marks.is_doubled and not self._sink.key:
            raise self._pipeline.error(
                f"{self.place} has batch {batch_id} twice: two runs added it at the same moment. Stop the other run, "
                "take the table back by one snapshot (CALL catalog.system.rollback_to_snapshot), and run again",
                self._sink.line,
            )

    def _settled(self, note: TableNote | None, marks: TableMarks, done: BatchesDone) -> int:
        self._refuse_doubled(marks, marks.batches.get(self._writer, -1))
        try:
            return settle(note, marks, self._writer, done)
        except TableError as error:
            where = f" (the note is {self._note_path})" if "the note" in str(error) else ""
            raise self._pipeline.error(f"{self.place} {error}{where}", self._sink.line) from error

    def _refuse_copy(self, session: SparkSession, marks: TableMarks, state: StateDirectory) -> None:
        """Raises PipelineError where a copy of the state has written the last batch, with other records."""
        batch_id = marks.batches.get(self._writer, -1)
        known = state.fingerprint(self._sink.from_view, batch_id) if batch_id >= 0 else ""
        if not known:
            return
        try:
            told = json.loads(self._table.told(session, self._writer, batch_id) or "{}")
            refuse_other_records(str(told.get("records", "")), known, batch_id)
        except (ValueError, AttributeError):
            return  # of a former version, or not ours
        except TableError as error:
            raise self._pipeline.error(f"{self.place} {error}", self._sink.line) from error

    def _sync_since_note(self) -> None:
        """Brings to the disk how the table was made or got columns, and the commit of a run that was killed behind it.

        What is older than the note was there when the note was written.
        """
        if self._sink.directory is None:
            return
        noted_ns = self._note_path.stat().st_mtime_ns if self._note_path.exists() else _CLOCK_SLACK_NS
        sync_new_files(self._sink.directory, noted_ns - _CLOCK_SLACK_NS)
        sync_directory(self._sink.directory.parent)

    def _has(self, marks: TableMarks, batch_id: int) -> bool:
        """Whether the table has the batch, from a former attempt of this run, perhaps, of which nobody has heard.

        Raises PipelineError where another run has written meanwhile.
        """
        strangers = [each for each in marks.batches if each != self._writer]
        mark = marks.batches.get(self._writer, -1)
        is_taken = marks.run not in {"", self._run}
        if strangers or is_taken or mark > batch_id or (mark == batch_id and self._attempted != batch_id):
            raise self._pipeline.error(
                f"{self.place} is written by another run too (the last batch is {mark}, {strangers or self._writer}): "
                "stop that one; a state, or a copy of it, has one run, and a table one pipeline",
                self._sink.line,
            )
        self._refuse_doubled(marks, mark)
        if mark < batch_id:
            return False
        self._held, self._next = marks, batch_id + 1
        return True

    def _merge(self, frame: DataFrame, types: Mapping[str, str], batch_id: int, told: str) -> None:
        """One row of each key, in the place of the former one. MERGE reads them several times."""
        session = frame.sparkSession
        rows = newest_of_keys(frame, self._sink)
        delete = next((name for name in rows.columns if name.lower() == (self._sink.rows.delete or "").lower()), None)
        # A column that others have added to the table keeps what it has.
        mine = {name.lower() for name in rows.columns}
        types = {name: kind for name, kind in types.items() if name.lower() in mine}
        kept = rows.select(*_columns(rows, types), *([quoted_name(delete)] if delete else [])).persist()
        try:
            kept.createOrReplaceTempView(_SOURCE_VIEW)
            with self._table.merging(session, self._writer, batch_id, told):
                columns = [name for name in kept.columns if name in types]
                session.sql(merge_statement(self._table.name, _SOURCE_VIEW, columns, self._sink.key, delete))
        finally:
            kept.unpersist()
            session.catalog.dropTempView(_SOURCE_VIEW)

    def _fit(self, session: SparkSession, frame: DataFrame) -> None:
        """Adds columns that the table lacks. Raises PipelineError for a column that is of another type there."""
        there = {name.lower(): (name, kind) for name, kind in session.table(self._table.name).dtypes}
        types, in_ddl = dict(frame.dtypes), _types(frame)
        missing = []
        for name in table_columns(frame, self._sink):
            if name.lower() not in there:
                missing.append(f"{quoted_name(name)} {in_ddl[name]}")
                continue
            kind = there[name.lower()][1]
            if kind != types[name] and kind not in _WIDER.get(types[name], ()):
                message = f"{self.place} has {name} as {kind}, and {self._sink.from_view} gives {types[name]}"
                raise self._pipeline.error(f"{message}: cast it in a step, or name another table", self._sink.from_line)
        if missing:
            session.sql(f"ALTER TABLE {self._table.name} ADD COLUMNS ({', '.join(missing)})")

    def _creation(self, frame: DataFrame) -> str:
        types = _types(frame)
        columns = ", ".join(f"{quoted_name(name)} {types[name]}" for name in table_columns(frame, self._sink))
        by = ", ".join(quoted_name(name) for name in self._sink.rows.partition_by)
        divided = f" PARTITIONED BY ({by})" if by else ""
        return f"CREATE TABLE {self._table.name} ({columns}) USING {self._table.provider}{divided}"

    @property
    def place(self) -> str:
        """What people call the table."""
        return str(self._sink.directory or self._sink.target.partition(" ")[2])

    def _gone(self) -> PipelineError:
        message = f"the {self._table.title} table {self.place} is gone, and the state says that batches were written"
        return self._pipeline.error(
            f"{message}: restore it, or remove {self._pipeline.state_directory} too to compute everything again",
            self._sink.line,
        )

    @property
    def _note_path(self) -> Path:
        if self._state is None:
            raise RuntimeError("the table was not recovered")
        return note_path(self._state, self._sink.target)

    def _read_note(self) -> TableNote | None:
        path = self._note_path
        try:
            content: Any = json.loads(path.read_text(encoding="utf-8"))
            begin_at = content.get("begin_at")
            note = TableNote(
                str(content["table_id"]),
                int(content["next_batch"]),
                int(content["mark"]),
                None if begin_at is None else int(begin_at),
            )
            return note if content["writer"] == self._writer else None
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            message = f"{path} cannot be understood ({error!r}): restore it"
            raise self._pipeline.error(message, self._pipeline.state_line) from error

    def _write_note(self, marks: TableMarks, next_batch: int, mark_min: int = -1) -> None:
        path = self._note_path
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "target": self._sink.target,
            "writer": self._writer,
            "table_id": marks.table_id,
            "next_batch": next_batch,
            "mark": max(marks.batches.get(self._writer, -1), mark_min),
        }
        write_json(path, content)


def _reason(error: PySparkException | Py4JJavaError) -> str:
    """What Spark, or Java, says, in one line."""
    from py4j.protocol import Py4JJavaError

    if isinstance(error, Py4JJavaError):
        return " ".join(str(error.java_exception).split())[:_REASON_CHARACTERS_MAX]
    return spark_message(error)


def note_path(state: StateDirectory, target: str) -> Path:
    """Where a state notes what a table has, by the target of its sink."""
    return state.table_notes / f"{hashlib.sha256(target.encode()).hexdigest()[:16]}.json"


def _types(frame: DataFrame) -> dict[str, str]:
    """The type of each column, in DDL."""
    return {field.name: ddl_of(field.dataType) for field in frame.schema.fields}


def _columns(frame: DataFrame, types: Mapping[str, str]) -> list[Any]:
    """The table's columns, in its order and its types; those that the frame lacks are null."""
    from pyspark.sql import functions as F  # noqa: N812

    names = {name.lower(): name for name in frame.columns}
    return [
        (F.col(quoted_name(names[name.lower()])) if name.lower() in names else F.lit(None)).cast(kind).alias(name)
        for name, kind in types.items()
    ]


def merge_statement(table: str, source: str, columns: Sequence[str], key: Sequence[str], delete: str | None) -> str:
    """SQL that has the rows of `source` take the place of those with the same key, or remove them.

    A key may be null.
    """
    names = {name.lower(): quoted_name(name) for name in columns}
    same = " AND ".join(f"t.{names[name.lower()]} <=> s.{names[name.lower()]}" for name in key)
    all_names = [quoted_name(name) for name in columns]
    update = ", ".join(f"t.{name} = s.{name}" for name in all_names)
    values = ", ".join(f"s.{name}" for name in all_names)
    goes = None if delete is None else f"coalesce(s.{quoted_name(delete)}, false)"
    clauses = [f"MERGE INTO {table} AS t USING {source} AS s ON {same}"]
    if goes is not None:
        clauses.append(f"WHEN MATCHED AND {goes} THEN DELETE")
    unless = "" if goes is None else f" AND NOT {goes}"
    clauses.append(f"WHEN MATCHED THEN UPDATE SET {update}")
    clauses.append(f"WHEN NOT MATCHED{unless} THEN INSERT ({', '.join(all_names)}) VALUES ({values})")  # noqa: S608
    return "\n".join(clauses)
