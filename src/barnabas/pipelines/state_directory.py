"""What a pipeline keeps on disk between its runs: checkpoints, its definition, what became of its runs, logs.

STATE/lock              held by the run under way
      run.json          the last run: process, start, end, reason
      definition.json   what the checkpoints were made from
      progress.jsonl    one line for each finished batch; bounded
      last/VIEW.json    the last line of each query, with its sums
      checkpoints/VIEW/ Spark's, of each query
      outbox/VIEW/      what is to be sent to topics, once (`outbox`)
      tables/           what tables of Delta Lake and Iceberg have (`lake_sink`)
      read/             what tables that are read from topics were when batches saw them (`table_versions`)
      logs/             spark.log and jvm.log
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from barnabas.pipelines.cluster_identity import ClusterIdentity, foreign_identity, renewed_sinks
from barnabas.pipelines.definition import Pipeline, PipelineError, TableSink, TopicSink
from barnabas.pipelines.durable_files import sync_tree, write_json
from barnabas.pipelines.state_definition import (
    STATE_VERSION,
    changed_schemas,
    changes_since,
    definition_of,
    views_shown_before,
)

SENT_NOTE: Final = "sent.json"
"""In an outbox: which batches were sent (`outbox`)."""

PROGRESS_BYTES_MAX = 1024 * 1024
"""When `progress.jsonl` is longer it becomes `progress.jsonl.1`, so that twice as much is kept at most."""

_LOCK_ATTEMPTS = 5
_LOCK_PAUSE_SECONDS = 0.05
_LEFT_BEHIND_SECONDS_MAX = 30.0


class RunEnd(enum.Enum):
    """How a run ended, as `run.json` has it."""

    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The last run; `end` is None while it is under way, and when it was killed."""

    process_id: int
    started_ms: int
    end: RunEnd | None = None
    ended_ms: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class BatchesDone:
    """What a checkpoint knows: the last batch that was begun, and the last that was finished; -1 where none was."""

    begun: int
    finished: int


class StateDirectory:
    """The state of one pipeline. `locked` it belongs to this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lock_descriptor: int | None = None
        self._progress_path = directory / "progress.jsonl"
        self._last_directory = directory / "last"
        self._run_path = directory / "run.json"
        self._definition_path = directory / "definition.json"
        self._lock_path = directory / "lock"
        self._names: Mapping[str, str] = _names(_read_json(self._definition_path) or {})

    @property
    def log_directory(self) -> Path:
        """For the logs of Spark."""
        return self.directory / "logs"

    def name_of(self, view: str) -> str:
        """What the state calls the query of a view: as the view was named when its first batch was made."""
        return self._names.get(view, view)

    def checkpoint(self, view: str) -> Path:
        """Where Spark keeps what the query of a view has done."""
        return self.directory / "checkpoints" / self.name_of(view)

    def outbox(self, view: str) -> Path:
        """Where batches of the query of a view wait to be sent to topics."""
        return self.directory / "outbox" / self.name_of(view)

    @property
    def table_notes(self) -> Path:
        """Where it is noted what tables of Delta Lake and Iceberg have (`lake_sink`)."""
        return self.directory / "tables"

    @property
    def tables_read(self) -> Path:
        """Where the records of tables that are read from topics are kept (`table_versions`)."""
        return self.directory / "read"

    @contextlib.contextmanager
    def locked(self, pipeline: Pipeline) -> Iterator[None]:
        """Keeps other runs of the pipeline away. Raises PipelineError when one is under way.

        Meanwhile `lock_descriptor` is that of the lock: a process that inherits it keeps the lock when this one is
        killed. So the lock of a process that is gone is waited for: Spark's ends a moment later.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = self._lock_path.open("a+")
        except OSError as error:
            message = f"state directory {self.directory} cannot be used: {error.strerror or error}"
            raise pipeline.error(f"{message}; set `state` to one that can be written", pipeline.state_line) from error
        with lock:
            deadline = time.monotonic() + _LEFT_BEHIND_SECONDS_MAX
            while not (is_ours := _flocked(lock)) and not _is_alive(_process_id(lock.name)):
                if time.monotonic() > deadline:
                    break
            if not is_ours:
                raise PipelineError(
                    f"pipeline {pipeline.name} is already running, in process {_process_id(lock.name) or 'unknown'} "
                    f"with state directory {self.directory}: stop that run first"
                )
            if not _is_at(lock, self._lock_path):
                raise PipelineError(f"{self.directory} was replaced while this run began: run it again")
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            self.lock_descriptor = lock.fileno()
            try:
                yield
            finally:
                self.lock_descriptor = None

    def lock_holder(self) -> int | None:
        """The process whose run is under way, 0 where that cannot be told; None when there is none."""
        try:
            with self._lock_path.open("r") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    return _process_id(lock.name) or 0
        except OSError:
            return None
        return None

    def begin(self) -> None:
        """Notes that a run has begun."""
        self._write_run(RunRecord(os.getpid(), _now_ms()))

    def end(self, end: RunEnd, reason: str | None = None) -> None:
        """Notes how the run of this process ended."""
        last = self.last_run()
        started_ms = _now_ms() if last is None else last.started_ms
        self._write_run(RunRecord(os.getpid(), started_ms, end, _now_ms(), reason))

    def last_run(self) -> RunRecord | None:
        """The last run, under way or not; None when there never was one."""
        content = _read_json(self._run_path)
        if content is None:
            return None
        try:
            end = content.get("end")
            return RunRecord(**{**content, "end": None if end is None else RunEnd(end)})
        except (TypeError, ValueError):
            return None

    def check_definition(self, pipeline: Pipeline) -> tuple[str | None, tuple[str, ...]]:
        """Sees that the checkpoints, if any, were made from the same definition; the id of the state, and warnings.

        What has no part in the rows (triggers, the size of batches) may change; what the state can go on with
        (`definition_changes`), and a schema, with a warning: a record that stopped a run may be the reason. Changes
        nothing; the id is None where there is no state yet. Raises PipelineError, with the first change that cannot be
        gone on with, and what to do.
        """
        before = _read_json(self._definition_path)
        if not self.has_batches():
            return None if before is None else str(before.get("id")), ()
        if before is None:
            raise pipeline.error(
                f"{self.directory} has checkpoints without a readable definition.json, so nobody can tell whether "
                "they belong to this pipeline: remove it to compute everything again, or set another `state`",
                pipeline.state_line,
            )
        self._refuse_other_version(pipeline, before)
        changes = changes_since(
            pipeline, self._of_batches(before["definition"], pipeline), _names(before), self._with_spark_state()
        )
        if changes.refused is not None:
            what, line = changes.refused
            raise pipeline.error(
                f"{what} since the runs that {self.directory} is the state of: undo that, or compute it again into new "
                f"tables that take the place of those, `barnabas pipeline backfill {pipeline.path}`, or "
                f"{self._again(pipeline)}, or give the changed pipeline another `state` and other sinks",
                line,
            )
        self._names = changes.names
        told = tuple(f"{what} since the last run: what was written before stays as it is" for what in changes.taken)
        return str(before.get("id")), (*changed_schemas(pipeline, before["definition"]), *told)

    def check_identity(self, pipeline: Pipeline, identity: ClusterIdentity) -> tuple[str, ...]:
        """Sees that the cluster and the topics are those that the checkpoints, if any, have offsets of; warnings.

        Changes nothing. Raises PipelineError where offsets would be of records that are others now.
        """
        before = (_read_json(self._definition_path) or {}).get("cluster")
        if not self.has_batches() or not isinstance(before, dict):
            return ()
        foreign = foreign_identity(pipeline, before, identity)
        if foreign is not None:
            what, line = foreign
            raise pipeline.error(
                f"{what}, so that the offsets in {self.directory} are of other records: {self._again(pipeline)}, "
                "or set another `state`, and other sinks",
                line,
            )
        return renewed_sinks(pipeline, before, identity)

    def take_definition(self, pipeline: Pipeline, identity: ClusterIdentity) -> tuple[str, tuple[str, ...]]:
        """Like `check_definition` and `check_identity`; also saves both for later runs, and creates an id where there
        is none.

        Where batches were sent, and none is known of, as when somebody has removed the checkpoints, the id is another:
        batches are numbered from 0 again, and must not be taken for those.
        """
        state_id, warnings = self.check_definition(pipeline)
        self._forget_shown(pipeline)
        warnings += self.check_identity(pipeline, identity)
        has_sent = False
        if not self.has_batches():
            # Nothing was ever computed from it, so that it counts for nothing.
            shutil.rmtree(self.directory / "checkpoints", ignore_errors=True)
            has_sent = self._has_sent_batches()
        state_id = uuid.uuid4().hex if has_sent or state_id is None else state_id
        content = {
            "version": STATE_VERSION,
            "id": state_id,
            "pipeline": pipeline.name,
            "cluster": identity.to_json(),
            "definition": definition_of(pipeline),
            **({"names": dict(self._names)} if self._names else {}),
        }
        write_json(self._definition_path, content)
        if has_sent:
            # Not before there is another id: what was sent under this one is known by it.
            shutil.rmtree(self.directory / "outbox", ignore_errors=True)
            shutil.rmtree(self.table_notes, ignore_errors=True)
        return state_id, warnings

    def definition(self) -> Mapping[str, Any]:
        """What the checkpoints were made from; empty where that is not known."""
        content = (_read_json(self._definition_path) or {}).get("definition")
        return content if isinstance(content, dict) else {}

    def state_id(self) -> str | None:
        """The id of the state; None where there is none."""
        content = _read_json(self._definition_path)
        return None if content is None else str(content.get("id"))

    def rename_targets(self, pipeline: Pipeline) -> None:
        """Notes that the checkpoints are those of the pipeline, whose sinks had other names until now."""
        content = _read_json(self._definition_path)
        if content is not None:
            write_json(self._definition_path, {**content, "definition": definition_of(pipeline)})

    def has_batches(self) -> bool:
        """Whether any batch was ever begun from this state."""
        return any(self.directory.glob("checkpoints/*/offsets/[0-9]*"))

    def has_spark_state(self, view: str) -> bool:
        """Whether Spark has kept state for the view's query."""
        return self.name_of(view) in self._with_spark_state()

    def batches_done(self, view: str) -> BatchesDone:
        """The last batch of the view's query that was begun, and the last that was finished."""
        checkpoint = self.checkpoint(view)
        return BatchesDone(_last(checkpoint / "offsets"), _last(checkpoint / "commits"))

    def finished_offsets(self, view: str) -> dict[str, dict[int, int]]:
        """The next offset of each partition, by topic, after the last batch of the view's query that is finished.

        Read from Spark's own checkpoint; where a topic is read twice, what both have done. Empty before the first.
        """
        finished = self.batches_done(view).finished
        return {} if finished < 0 else self.end_offsets(view, finished)

    def begun_since_ms(self) -> int:
        """When the first query of this state was begun, in milliseconds since 1970; 0 where none was."""
        times = [path.stat().st_mtime_ns for path in self.directory.glob("checkpoints/*/metadata")]
        return min(times, default=0) // 1_000_000

    def end_offsets(self, view: str, batch_id: int, *, furthest: bool = False) -> dict[str, dict[int, int]]:
        """The next offset of each partition, by topic, after a batch; empty where that cannot be read. Where a topic is
        read twice, what both have done, or else the `furthest`.
        """
        try:
            text = (self.checkpoint(view) / "offsets" / str(batch_id)).read_text(encoding="utf-8")
            readers = (json.loads(line) for line in text.splitlines()[2:] if line.startswith("{"))
            return merged_offsets(readers, max if furthest else min)
        except (OSError, ValueError, AttributeError):
            return {}

    def fingerprint(self, view: str, batch_id: int) -> str:
        """Of a batch that has begun, which records it ends at: two batches of one number and other records differ in
        it. Empty where that cannot be read.
        """
        try:
            text = (self.checkpoint(view) / "offsets" / str(batch_id)).read_text(encoding="utf-8")
            ends = [line if line == "-" else json.loads(line) for line in text.splitlines()[2:]]
        except (OSError, ValueError):
            return ""
        return hashlib.sha256(json.dumps(ends, sort_keys=True).encode()).hexdigest()[:32] if ends else ""

    def sync_checkpoint(self, view: str, since_ns: int) -> None:
        """Brings to the disk what Spark has written for the view's query since then: it does not wait for that."""
        sync_tree(self.checkpoint(view), since_ns)

    def add_progress(self, line: Mapping[str, Any]) -> None:
        """Adds a line to the history, and notes it as the last of its query."""
        if self._progress_path.exists() and self._progress_path.stat().st_size > PROGRESS_BYTES_MAX:
            self._progress_path.replace(self._progress_path.with_suffix(".jsonl.1"))
        with self._progress_path.open("a", encoding="utf-8") as output:
            output.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._last_directory.mkdir(exist_ok=True)
        write_json(self._last_directory / f"{line['query']}.json", line, is_durable=False)

    def last_progress(self) -> dict[str, dict[str, Any]]:
        """The newest line of each query, by its view: it has the sums over all batches."""
        found = {path.stem: _read_json(path) for path in self._last_directory.glob("*.json")}
        return {query: line for query, line in found.items() if line is not None}

    def _has_sent_batches(self) -> bool:
        paths = (*self.directory.glob(f"outbox/*/{SENT_NOTE}"), *self.table_notes.glob("*.json"))
        notes = (_read_json(path) for path in paths)
        return any(note is None or note.get("next_batch") != 0 for note in notes)

    def _with_spark_state(self) -> frozenset[str]:
        """The queries for which Spark has kept state, as the state calls them."""
        return frozenset(path.parents[1].name for path in self.directory.glob("checkpoints/*/state/*"))

    def _of_batches(self, definition: Mapping[str, Any], pipeline: Pipeline) -> Mapping[str, Any]:
        """Without the sinks of queries that have begun no batch: they have no state, and may be anything. Nor those of
        queries that were only shown, and are no more.
        """
        sinks, gone = definition.get("sinks", {}).items(), views_shown_before(definition, pipeline)
        kept = {
            key: sink for key, sink in sinks if sink["from"] not in gone and self.batches_done(sink["from"]).begun >= 0
        }
        return {**definition, "sinks": kept}

    def _forget_shown(self, pipeline: Pipeline) -> None:
        """Removes the checkpoints of queries that were only shown, and are no more."""
        content = _read_json(self._definition_path) or {}
        names, definition = _names(content), content.get("definition")
        for view in views_shown_before(definition, pipeline) if isinstance(definition, dict) else ():
            shutil.rmtree(self.directory / "checkpoints" / names.get(view, view), ignore_errors=True)

    def _refuse_other_version(self, pipeline: Pipeline, before: Mapping[str, Any]) -> None:
        version = before.get("version", 1)
        if version == STATE_VERSION and isinstance(before.get("definition"), dict):
            return
        whose = "an earlier" if isinstance(version, int) and version <= STATE_VERSION else "a later"
        raise pipeline.error(
            f"{self.directory} is the state of {whose} version of Barnabas (form {version}, this one has form "
            f"{STATE_VERSION}), which wrote other keys: {self._again(pipeline)}, or run it with that version",
            pipeline.state_line,
        )

    def _again(self, pipeline: Pipeline) -> str:
        """What to remove so that everything is computed again, in words."""
        tables = [sink for sink in pipeline.sinks if isinstance(sink, TableSink)]
        outputs = [str(sink.directory or sink.target) for sink in tables]
        topics = [sink.topic for sink in pipeline.sinks if isinstance(sink, TopicSink)]
        # The new results replace those of the same key, and compaction keeps the others for ever.
        which = f"topic{'s' if len(topics) > 1 else ''} {' and '.join(topics)}"
        former = f" (delete the {which} too, and create again: results of former keys would stay)" if topics else ""
        return f"remove {' and '.join([str(self.directory), *outputs])} to compute everything again{former}"

    def _write_run(self, run: RunRecord) -> None:
        write_json(self._run_path, {**asdict(run), "end": None if run.end is None else run.end.value})


def spark_path(path: Path) -> str:
    """A path of this machine as Spark takes it: with its scheme, and, unlike a URI, with no character escaped."""
    return f"file://{path}"


def merged_offsets(
    sources: Iterator[Mapping[str, Mapping[str, int]]], chosen: Callable[[int, int], int] = min
) -> dict[str, dict[int, int]]:
    """Offsets by topic and partition of several readers: what all of them have passed, or by `max` one of them."""
    merged: dict[str, dict[int, int]] = {}
    for source in sources:
        for topic, partitions in source.items():
            of_topic = merged.setdefault(topic, {})
            for partition, offset in partitions.items():
                number = int(partition)
                of_topic[number] = chosen(int(offset), of_topic.get(number, int(offset)))
    return merged


def _flocked(lock: TextIO) -> bool:
    """Takes the lock; tries again for a moment, since `lock_holder` of another process holds it to look at it."""
    for _ in range(_LOCK_ATTEMPTS):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            time.sleep(_LOCK_PAUSE_SECONDS)
        else:
            return True
    return False


def _is_at(lock: TextIO, path: Path) -> bool:
    """Whether that is the lock of the directory which is there now: a backfill may have put another in its place."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _is_alive(process_id: int | None) -> bool:
    """Whether there is such a process; also when nobody knows which it is."""
    try:
        os.kill(process_id or os.getpid(), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True


def _process_id(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        return None


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _names(content: Mapping[str, Any]) -> dict[str, str]:
    """The names that views had when their state was made, where they are others (`definition_changes`)."""
    names = content.get("names")
    return {str(view): str(name) for view, name in names.items()} if isinstance(names, dict) else {}


def _last(log: Path) -> int:
    """The last batch that one of Spark's logs has; -1 where it has none."""
    return max((int(entry.name) for entry in log.glob("*") if entry.name.isdecimal()), default=-1)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
