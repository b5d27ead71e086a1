"""What a run does with a sink: a small protocol, and a file for each kind of sink that has it.

check       before Spark starts, also by `barnabas pipeline check`: the target is of this state, or nobody's
check_rows  with Spark: the target can hold these columns
prepare     before Spark starts: the target is this run's for as long as it lasts; what a killed run left is removed
recover     with Spark, before the first batch: the target is made where it is missing, and says which batches it has
write       each batch: its rows are computed, and brought to where the target has them or can take them from
commit      each batch: what was written is the target's, whole, and on the disk
shown       each batch that all targets have: its rows for whoever watches
tidy        the same: what makes the target better for readers, and changes no row of it

Spark notes a batch as done after its `commit`, so a batch may come again, with the same records, after anything: after
`write`, after `commit`. A target that is exact knows by then that it has it.
"""

# What a sink has no need of does nothing with what it is given.
# ruff: noqa: ARG002

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from barnabas.pipelines.progress import ShownRows
from barnabas.pipelines.state_directory import StateDirectory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Offsets = Mapping[str, Mapping[int, int]]
"""By topic and partition the offset behind the last record of a batch."""


@dataclass(frozen=True, slots=True)
class Written:
    """What `write` did: whether the rows were computed, and whether there is something for `commit`."""

    is_computed: bool
    is_held: bool


class SinkWriter(Protocol):
    """One target of one query; topics that are written in one transaction are one. What it has no need of does nothing.

    Errors are PipelineErrors at the sink's line. `write` and `commit` are called on the thread of the query.
    """

    @property
    def commits_at_once(self) -> bool:
        """Whether readers see rows as soon as `write` has returned, so that the checkpoint of the batch must be on the
        disk before.
        """
        return False

    @property
    def knows_order(self) -> bool:
        """Whether it takes rows with ORDER_COLUMN (`lake_rows`) behind them."""
        return False

    def check(self, state: StateDirectory, state_id: str | None) -> None:
        """Sees that the target holds what was written from the state of this id, and changes nothing."""
        return

    def check_rows(self, session: SparkSession, frame: DataFrame) -> None:
        """Sees that the target can hold rows of the frame's columns; analyses only, and changes nothing."""
        return

    def prepare(self, state: StateDirectory, state_id: str) -> AbstractContextManager[None]:
        """Takes the target for this run: for as long as the block lasts."""
        return contextlib.nullcontext()

    def recover(self, frame: DataFrame, state: StateDirectory, state_id: str) -> None:
        """Finds out which batches the target has, and makes it where it is missing, for rows as the frame's."""
        return

    def write(self, frame: DataFrame, batch_id: int) -> Written:
        """Computes the rows of a batch, unless the target has them."""
        ...

    def commit(self, batch_id: int, offsets: Offsets) -> None:
        """Has what `write` held be the target's; the batch ends at these offsets."""
        return

    def shown(self) -> ShownRows | None:
        """Of the batch that was written last what a person is to see, if anything."""
        return None

    def tidy(self, batch_id: int) -> str:
        """Has the target be in order; what there is to say of it. That it cannot be done is no failure of the batch."""
        return ""
