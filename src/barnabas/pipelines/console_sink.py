"""The console as a sink: the first rows of each batch, for whoever watches the run; nothing of it is kept.

A batch that is done again, after its run was cut short, is shown again, and says so. What is shown is bounded: rows,
the characters of each value, and those of a batch in all; values are cut before they leave Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.pipelines.definition import ConsoleSink
from barnabas.pipelines.progress import ShownRows
from barnabas.pipelines.sink import SinkWriter, Written
from barnabas.pipelines.spark_schema import quoted_name
from barnabas.pipelines.state_directory import StateDirectory

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CHARACTERS_MAX: Final = 4_000_000
"""Of all values of a batch that are shown; there is a row in any case."""
CUT: Final = "…"


class ConsoleWriter(SinkWriter):
    """Takes the first rows of a batch, which are shown once all other sinks have the batch."""

    def __init__(self, sink: ConsoleSink) -> None:
        self._sink = sink
        self._begun = -1
        """The last batch that was begun before: by another run, or by this one before the query began again."""
        self._shown: ShownRows | None = None

    def recover(self, frame: DataFrame, state: StateDirectory, state_id: str) -> None:  # noqa: ARG002
        """Finds out which batches may have been shown before."""
        self._begun = state.batches_done(self._sink.from_view).begun

    def write(self, frame: DataFrame, batch_id: int) -> Written:
        """Takes the rows; the others of the batch are somebody else's to compute."""
        rows_max = min(self._sink.rows_max, max(1, CHARACTERS_MAX // (self._sink.width * max(1, len(frame.columns)))))
        found = _texts(frame, self._sink.width + 1).limit(rows_max + 1).collect()
        rows = tuple(tuple(self._cut(value) for value in row) for row in found[:rows_max])
        again = batch_id <= self._begun
        self._begun = max(self._begun, batch_id)
        self._shown = (
            ShownRows(self._sink.from_view, batch_id, tuple(frame.columns), rows, len(found) > rows_max, again)
            if rows
            else None
        )
        return Written(is_computed=False, is_held=False)

    def shown(self) -> ShownRows | None:
        """The rows, once; None of a batch without any."""
        shown, self._shown = self._shown, None
        return shown

    def _cut(self, value: str | None) -> str | None:
        width = self._sink.width
        return value if value is None or len(value) <= width else value[: width - len(CUT)] + CUT


def _texts(frame: DataFrame, characters: int) -> DataFrame:
    """The rows as text, of each value the first characters; bytes as X'...' in hexadecimal."""
    from pyspark.sql import functions as F  # noqa: N812

    def text(name: str, kind: str) -> Column:
        column = F.col(quoted_name(name))
        if kind == "binary":
            column = F.concat(F.lit("X'"), F.hex(F.substring(column, 1, characters)), F.lit("'"))
        return F.substring(column.cast("string"), 1, characters).alias(name)

    return frame.select(*(text(name, kind) for name, kind in frame.dtypes))
