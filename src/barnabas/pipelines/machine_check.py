"""Whether this machine can keep what a pipeline writes: its Parquet tables and its state. Nothing is made here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from barnabas.pipelines.definition import ParquetSink, Pipeline
from barnabas.pipelines.state_directory import StateDirectory

BATCH_DIRECTORY_PREFIX: Final = "batch_id="
"""Each batch of a Parquet sink is a directory of this prefix below the sink's own."""
_STATE_FILES: Final = frozenset({"lock", "run.json", "definition.json", "checkpoints", "logs"})


def check_directories(pipeline: Pipeline) -> None:
    """Raises PipelineError for a directory that cannot be written, or whose content would be mixed with ours."""
    state = pipeline.state_directory
    _refuse_unwritable(pipeline, state, "the state directory", pipeline.state_line)
    content = {path.name for path in state.iterdir()} if state.is_dir() else set()
    if content and not content & _STATE_FILES:
        message = f"the state directory {state} holds other things ({min(content)}): name one of its own"
        raise pipeline.error(message, pipeline.state_line)
    for sink in pipeline.sinks:
        if isinstance(sink, ParquetSink):
            _refuse_unwritable(pipeline, sink.directory, "the Parquet directory", sink.line)
            _refuse_foreign_content(pipeline, sink)


def _refuse_unwritable(pipeline: Pipeline, directory: Path, what: str, line: int) -> None:
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not existing.is_dir():
        problem = "it is a file" if existing == directory else f"{existing} is a file"
    elif not os.access(existing, os.W_OK | os.X_OK):
        problem = f"{existing} cannot be written by this user"
    else:
        return
    raise pipeline.error(f"{what} {directory} cannot be used: {problem}; name another, or mend that", line)


def _refuse_foreign_content(pipeline: Pipeline, sink: ParquetSink) -> None:
    """Batches are numbered from 0 by the state, so a table and the state that numbered it belong together."""
    if not sink.directory.is_dir():
        return
    names = sorted(path.name for path in sink.directory.iterdir() if not path.name.startswith((".", "_")))
    foreign = next((name for name in names if not name.startswith(BATCH_DIRECTORY_PREFIX)), None)
    if foreign is not None:
        message = f"the Parquet directory {sink.directory} holds other things ({foreign}): name one of its own"
        raise pipeline.error(message, sink.line)
    if names and not StateDirectory(pipeline.state_directory).has_batches():
        message = f"{sink.directory} has batches of an earlier run, and {pipeline.state_directory} has no state of it"
        raise pipeline.error(f"{message}: remove the table, or bring the state back", sink.line)
