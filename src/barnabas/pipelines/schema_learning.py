"""Schemas that turn up while a run lasts: who asks the registry for them, when, and how often at most.

A query's plan has the schemas that are known when it starts. A record with another id ends it, before anything of its
batch is written; then all ids of the batch are asked for together, and the query begins the batch again.

Ids that the registry does not know are garbage, and each may be another one. So once there was one (`is_careful`), the
query does not end by them any more: their records do not fit. Instead the ids of each batch are looked at before it is
begun, which costs a second reading of the topic, and only a schema that can be read has the query begin again. What is
asked in vain is bounded by `MISSES_MAX` at once and `MISSES_PER_SECOND` from then on, the smallest ids first, since
registries count up; an id that was not asked for is garbage for the time of the run.

What was garbage of a batch stays garbage of it where a run is killed: it is noted before the batch is begun, and held
back when the batch is done again, also if the registry knows it by then. Else a table that has the batch would lack the
row, and nobody would write a letter.

INVARIANT: what the plan takes for garbage is no id of a schema that can be read, unless too many others are.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.pipelines.advice import views_behind
from barnabas.pipelines.batch_offsets import batch_range
from barnabas.pipelines.definition import (
    KeyFormat,
    Pipeline,
    PipelineUnreachableError,
    ReadMode,
    Source,
)
from barnabas.pipelines.durable_files import write_json
from barnabas.pipelines.schema_registry import learn_id, learn_unknown, unknown_in
from barnabas.pipelines.sources import KafkaOptions, records_of_batch
from barnabas.pipelines.state_directory import StateDirectory

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

MISSES_MAX: Final = 100
MISSES_PER_SECOND: Final = 5.0
IDS_MAX: Final = 20_000
"""How many ids of a batch are looked at, the smallest."""
ASKING_SECONDS_MAX: Final = 60.0


class NewSchemas(Exception):  # noqa: N818  # no error: the query begins its batch again
    """A batch has records of schemas that are known now, and were not when the query started."""


class _Plan(NamedTuple):
    """What the plan of a query knows of the schemas of one part of a source."""

    ids: frozenset[int]
    is_careful: bool

    def ends_by(self, schema_id: int) -> bool:
        """Whether a record with this id ends the query. What names another has it from elsewhere: from the bytes of a
        record, which are in the message of what is wrong with it.
        """
        return not self.is_careful and schema_id not in self.ids


_NO_PLAN: Final = _Plan(frozenset(), is_careful=False)


class _Garbage(NamedTuple):
    """The ids that were garbage of a batch, by what of a source."""

    batch_id: int
    ids: Mapping[str, frozenset[int]]


_NO_GARBAGE: Final = _Garbage(-1, {})


class SchemaLearner:
    """Learns schemas for the queries of a run; called by the threads of all of them."""

    def __init__(
        self,
        pipeline: Pipeline,
        kafka: KafkaOptions,
        state: StateDirectory,
        session: SparkSession,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` is in seconds."""
        self._now = now
        self._pipeline = pipeline
        self._kafka = kafka
        self._state = state
        self._session = session
        self._lock = threading.Lock()
        self._in_views: dict[str, _Plan] = {}
        self._in_plans: dict[str, dict[str, _Plan]] = {}
        """By query, and by what of a source, the schemas that its plan has: others may have been learned since."""
        self._noted: dict[str, _Garbage] = {}
        self._misses = float(MISSES_MAX)
        self._filled_at = now()

    def makes_view(self, source: Source, view: str) -> None:
        """The source's view is made now, on this thread, for the query of a view, by the schemas that are known."""
        done = self._state.batches_done(view)
        held = self._garbage_of(view, done.begun if done.begun > done.finished else -1)
        for mark, part in source.registered_parts:
            assert part.writers is not None
            part.writers.hold_back(held.get(mark, frozenset()))
            # So that the batch behind it is looked at, which may have them too.
            part.writers.is_careful |= bool(held.get(mark))
            self._in_views[mark] = _Plan(frozenset(part.writers.usable), part.writers.is_careful)

    def starts(self, view: str) -> None:
        """A query starts by the views that are there."""
        self._in_plans[view] = dict(self._in_views)

    def look(self, view: str, batch_id: int) -> None:
        """Before a batch is begun, on the thread that writes it. Raises NewSchemas, PipelineUnreachableError,
        PipelineError, and what Spark raises.

        Asks nothing, and reads nothing, where no id was met that the registry does not know.
        """
        held, garbage = self._garbage_of(view, batch_id), dict[str, frozenset[int]]()
        for source in self._streams(view):
            for mark, part in source.registered_parts:
                assert part.writers is not None
                part.writers.hold_back(held.get(mark, frozenset()))
                if not part.writers.is_careful:
                    continue
                found = self._learn(source, mark, part, view, batch_id)
                if not (found - held.get(mark, frozenset())).isdisjoint(part.writers.by_id):
                    raise NewSchemas
                garbage[mark] = found
        if any(garbage.values()) and not held:
            self._note(view, _Garbage(batch_id, garbage))

    def has_learned(self, view: str, failure: str, error: Exception | None) -> bool:
        """Whether a query has ended by schemas that it did not know, and is to begin again: by what Spark says of its
        end, or what its writer has raised. Raises as `look` does.
        """
        if isinstance(error, NewSchemas):
            return True
        failure = f"{failure}\n{error or ''}"
        named = unknown_in(self._pipeline, failure)
        if named is None:
            return False
        source, mark, part, schema_id = named
        if source.read is ReadMode.TABLE:
            return self.has_learned_of_table(failure)
        if not self._in_plans.get(view, {}).get(mark, _NO_PLAN).ends_by(schema_id):
            return False
        self._learn(source, mark, part, view, self._state.batches_done(view).begun, (schema_id,))
        assert part.writers is not None
        if schema_id not in part.writers.by_id:
            part.writers.is_careful = True
        return True

    def has_learned_of_table(self, failure: str) -> bool:
        """The same of a topic that is read as a table: the one id, since a record that does not fit ends the run."""
        with self._lock:
            return learn_unknown(self._pipeline, failure)

    def _streams(self, view: str) -> list[Source]:
        behind = (self._pipeline.source(name) for name in views_behind(self._pipeline, view))
        return [source for source in behind if source is not None and source.read is ReadMode.STREAM]

    def _learn(
        self,
        source: Source,
        mark: str,
        part: Source | KeyFormat,
        view: str,
        batch_id: int,
        more: Iterable[int] = (),
    ) -> frozenset[int]:
        """The ids of a batch that the plan has not; those of them that nobody knows are asked for."""
        assert part.writers is not None
        known = self._in_plans.get(view, {}).get(mark, _NO_PLAN).ids
        place = batch_range(self._state.checkpoint(view), batch_id, source.topic)
        found = set(more)
        if place.ends:
            records = records_of_batch(self._session, source, place, self._kafka)
            found |= set(unknown_ids(records, "key" if part.is_key else "value", known))
        with self._lock:
            self._ask(part, sorted(found))
        return frozenset(found) - known

    def _garbage_of(self, view: str, batch_id: int) -> Mapping[str, frozenset[int]]:
        """What was noted of a batch; nothing of a batch that has had none."""
        if view not in self._noted:
            try:
                content = json.loads(self._note_path(view).read_text(encoding="utf-8"))
                ids = {str(mark): frozenset(map(int, each)) for mark, each in content["garbage"].items()}
                self._noted[view] = _Garbage(int(content["batch"]), ids)
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                self._noted[view] = _NO_GARBAGE
        noted = self._noted[view]
        return noted.ids if noted.batch_id == batch_id else {}

    def _note(self, view: str, garbage: _Garbage) -> None:
        path = self._note_path(view)
        path.parent.mkdir(parents=True, exist_ok=True)
        ids = {mark: sorted(each) for mark, each in garbage.ids.items()}
        write_json(path, {"batch": garbage.batch_id, "garbage": ids})
        self._noted[view] = garbage

    def _note_path(self, view: str) -> Path:
        return self._state.table_notes / f"{self._state.name_of(view)}.schemas"

    def _ask(self, part: Source | KeyFormat, ids: list[int]) -> None:
        assert part.writers is not None
        began = self._now()
        for schema_id in ids:
            if part.writers.is_settled(schema_id):
                continue
            if not self._may_miss():
                # Not asked for again in this run, so that all queries leave out the same records.
                part.writers.refuse(schema_id)
                part.writers.is_careful = True
                continue
            if self._now() - began > ASKING_SECONDS_MAX:
                message = f"the schema registry {self._pipeline.registry.url} answers too slowly; run it again later"
                raise PipelineUnreachableError(message, path=self._pipeline.path, line=self._pipeline.registry.line)
            if not learn_id(self._pipeline, part, schema_id):
                self._misses -= 1

    def _may_miss(self) -> bool:
        now = self._now()
        self._misses = min(self._misses + (now - self._filled_at) * MISSES_PER_SECOND, float(MISSES_MAX))
        self._filled_at = now
        return self._misses >= 1


def unknown_ids(records: DataFrame, column: str, known: Iterable[int]) -> list[int]:
    """The ids of schemas before the keys or values of records, without those that are known, in order."""
    from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

    content = F.col(column)
    schema_id = F.conv(F.hex(F.substring(content, 2, 4)), 16, 10).cast("bigint").alias("id")
    framed = records.where((F.length(content) >= F.lit(5)) & (F.substring(content, 1, 1) == F.lit(b"\0")))
    ids = framed.select(schema_id).distinct()
    listed = list(known)
    left = ids.where(~F.col("id").isin(listed)) if listed else ids
    return [int(row.id) for row in left.orderBy("id").limit(IDS_MAX).collect()]
