"""A query of functions of Python that had no state of Spark's and has some now: its state would begin in the middle.

Of SQL the text says that (`definition_changes`); of a function only its plan does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.pipelines.advice import views_behind
from barnabas.pipelines.definition import Pipeline
from barnabas.pipelines.spark_internals import keeps_state
from barnabas.pipelines.state_directory import StateDirectory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def refuse_new_state(pipeline: Pipeline, session: SparkSession, state: StateDirectory) -> None:
    """Raises PipelineError, at the step, where a query has finished batches without the state that it would have."""
    for query in pipeline.queries:
        view = query.from_view
        steps = [pipeline.step(name) for name in views_behind(pipeline, view)]
        made = [step for step in steps if step is not None and step.python is not None]
        if not made or state.batches_done(view).finished < 0 or state.has_spark_state(view):
            continue
        if keeps_state(session.table(view)):
            message = f"{view} has run without state, and {made[0].name} has some now, which would know nothing of that"
            again = f"compute it again by `barnabas pipeline backfill {pipeline.path}`, or undo the change"
            raise pipeline.error(f"{message}: {again}", made[0].line)
