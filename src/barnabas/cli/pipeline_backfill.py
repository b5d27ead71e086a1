"""`barnabas pipeline backfill`, and the ranges of `run`: what is asked of the cluster, in which order, what is said."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.cli.output import say
from barnabas.cli.pipeline_cluster import bootstrap_of

if TYPE_CHECKING:
    from barnabas.pipelines.backfill import Backfill
    from barnabas.pipelines.definition import Pipeline
    from barnabas.pipelines.offset_ranges import OffsetRange
    from barnabas.pipelines.spark_cluster import SparkCluster


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """What the command was given; `first` and `last` are the texts of --from and --to."""

    path: Path
    bootstrap_servers: str
    jars_directory: Path | None
    first: tuple[str, ...]
    last: tuple[str, ...]
    as_json: bool
    check: Callable[[Pipeline, str], Pipeline]
    """Sees that directories and topics are right."""
    stopping: Callable[[threading.Event], AbstractContextManager[None]]
    """Has signals set the event."""
    cluster: SparkCluster
    metrics: str | None = None
    """What --metrics says."""


def range_of_run(pipeline: Pipeline, bootstrap: str, first: tuple[str, ...], last: tuple[str, ...]) -> OffsetRange:
    """The offsets of `run --from --to`. Raises PipelineError where a run that goes on is told where to begin."""
    from barnabas.pipelines.offset_ranges import parse_bound, read_range
    from barnabas.pipelines.state_directory import StateDirectory

    beginning, end = parse_bound("--from", first), parse_bound("--to", last)
    if beginning is not None and StateDirectory(pipeline.state_directory).has_batches():
        raise pipeline.error(
            f"--from is for a first run, and {pipeline.state_directory} has batches: this one goes on where the last "
            "ended. To compute a part of the past again, use `barnabas pipeline backfill`"
        )
    found = read_range(pipeline, bootstrap, beginning, end)
    if beginning is not None and not found.has_records(found.starts):
        raise pipeline.error(
            "there are no records in this range, and a run that reads none keeps no place: name another"
        )
    return found


def run_backfill(plan: BackfillPlan, *, restarts: bool, discards: bool) -> bool:
    """Does what the command says; whether it was told to stop before it had come to its end."""
    from barnabas.pipelines.backfill import Backfill, Phase
    from barnabas.pipelines.offset_ranges import parse_bound, read_range, with_new_partitions
    from barnabas.pipelines.reading import read_pipeline

    pipeline = read_pipeline(plan.path)
    bootstrap = bootstrap_of(pipeline, plan.bootstrap_servers)
    backfill = Backfill(pipeline)
    if discards:
        removed = backfill.discard()
        for what in removed or ("nothing: no backfill has replaced anything",):
            say(f"removed {what}")
        return False
    if restarts:
        for what in backfill.restart():
            say(f"warning: {what}")
    beginning, end = parse_bound("--from", plan.first), parse_bound("--to", plan.last)
    offsets = backfill.begin(
        lambda: read_range(pipeline, bootstrap, beginning, end), has_range=bool(plan.first or plan.last)
    )
    if backfill.phase is not Phase.EXCHANGING:
        plan.check(backfill.staged, bootstrap)
        offsets = with_new_partitions(pipeline, bootstrap, offsets)
        if _was_stopped(plan, bootstrap, offsets, backfill):
            return True
    for what in backfill.take_place():
        say(f"the old one is kept: {what}")
    say(f"{plan.path}: what was computed has taken its place; `--discard-old` removes the old one")
    return False


def _was_stopped(plan: BackfillPlan, bootstrap: str, offsets: OffsetRange, backfill: Backfill) -> bool:
    from barnabas.cli.pipeline_metrics import serving_metrics
    from barnabas.cli.pipeline_progress import open_progress
    from barnabas.pipelines.run_options import RunOptions
    from barnabas.pipelines.runner import run_pipeline

    options = RunOptions(
        bootstrap,
        once=True,
        jars_directory=plan.jars_directory,
        offsets=offsets,
        commits_offsets=False,
        finish=backfill.commit_tables,
        cluster=plan.cluster,
    )
    stop = threading.Event()
    with (
        plan.stopping(stop),
        open_progress(plan.as_json, stop.set) as progress,
        serving_metrics(plan.metrics, backfill.staged, progress) as told,
    ):
        return run_pipeline(backfill.staged, options, told, stop).was_stopped
