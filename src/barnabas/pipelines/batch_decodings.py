"""By which schemas the last batch of a query was written that a table may have before its letters are there.

A commit of Delta Lake or Iceberg cannot be held back until the letters of its batch are written. Killed in between, the
batch is done again, for its letters: by another schema they would be of other records than the table lacks.

STATE/tables/VIEW.decodings    digests: the last batch that was begun was written by one of these
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from barnabas.pipelines.durable_files import write_json

if TYPE_CHECKING:
    from barnabas.pipelines.definition import KeyFormat, Pipeline, Source
    from barnabas.pipelines.state_directory import StateDirectory


class BatchDecodings:
    """The note of one query whose records may become letters; for the thread of the query."""

    def __init__(self, pipeline: Pipeline, view: str, sources: Sequence[Source], state: StateDirectory) -> None:
        """Made before the first batch of a run begins; `sources` are those whose letters the query of the view writes,
        one at least.
        """
        self._pipeline = pipeline
        self._view = view
        self._sources = sources
        self._path = state.table_notes / f"{state.name_of(view)}.decodings"
        self._begun = state.batches_done(view).begun
        self._decoding = decoding_of(sources)
        self._before: list[str] = []

    def begin(self, batch_id: int) -> None:
        """Before anything of a batch is written."""
        noted = self._read()
        self._before = noted if batch_id <= self._begun else []
        wanted = list(dict.fromkeys([*self._before, self._decoding]))
        if wanted != noted:
            self._note(wanted)

    def written(self, batch_id: int, *, was_there: bool) -> None:
        """A table that commits at once has the batch. Raises PipelineError where it had it by other schemas."""
        if not was_there:
            if self._before not in ([], [self._decoding]):
                self._note([self._decoding])
            return
        if self._before and self._decoding not in self._before:
            self._note(self._before)
            raise self._pipeline.error(
                f"batch {batch_id} of {self._view} is in its table as the schema was before, and was cut short before "
                "the letters of what it left out were written: undo the change of the schema, run `barnabas pipeline "
                f"run {self._pipeline.path} --once`, and change it then",
                self._sources[0].line,
            )

    def _read(self) -> list[str]:
        try:
            return [str(each) for each in json.loads(self._path.read_text(encoding="utf-8"))["decodings"]]
        except (OSError, ValueError, TypeError, KeyError):
            return []

    def _note(self, decodings: list[str]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, {"decodings": decodings})


def decoding_of(sources: Sequence[Source]) -> str:
    """A digest of all by which a record of the sources fits or does not, but what a registry says (SchemaLearner)."""
    content = [[source.name, source.tombstones.value, source.requires_key, *_part(source)] for source in sources]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _part(source: Source) -> list[object]:
    value = [*_format(source), source.schema, source.delimiter, source.drops_others]
    return [value, None if source.key_format is None else [*_format(source.key_format), source.key_format.type]]


def _format(part: Source | KeyFormat) -> list[object]:
    return [part.format.value, part.framing.value, part.avro_schema, part.descriptors.hex(), part.message]
