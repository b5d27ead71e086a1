"""Whether this machine can keep what a pipeline writes, and what it has of earlier runs fits. Nothing is made here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from barnabas.pipelines.definition import Pipeline, TableSink
from barnabas.pipelines.sinks import check_tables
from barnabas.pipelines.state_directory import StateDirectory

_STATE_FILES: Final = frozenset({"lock", "run.json", "definition.json", "checkpoints", "logs"})


def check_directories(pipeline: Pipeline) -> None:
    """Raises PipelineError for a directory that cannot be written, or whose content is not what this pipeline left."""
    state = pipeline.state_directory
    _refuse_unwritable(pipeline, state, "the state directory", pipeline.state_line)
    content = {path.name for path in state.iterdir()} if state.is_dir() else set()
    if content and not content & _STATE_FILES:
        message = f"the state directory {state} holds other files ({min(content)}): name a directory of its own"
        raise pipeline.error(message, pipeline.state_line)
    for sink in pipeline.sinks:
        if isinstance(sink, TableSink) and sink.directory is not None:
            title = sink.target.partition(" ")[0].capitalize()
            _refuse_unwritable(pipeline, sink.directory, f"the {title} directory", sink.line)
    earlier = StateDirectory(state)
    state_id, _ = earlier.check_definition(pipeline)
    check_tables(pipeline, earlier, state_id)


def _refuse_unwritable(pipeline: Pipeline, directory: Path, what: str, line: int) -> None:
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not existing.is_dir():
        problem = "it is a file" if existing == directory else f"{existing} is a file"
    elif not os.access(existing, os.W_OK | os.X_OK):
        problem = f"{existing} cannot be written by this user"
    else:
        return
    raise pipeline.error(f"{what} {directory} cannot be used: {problem}; name another, or correct that", line)
