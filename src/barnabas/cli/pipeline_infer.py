"""`barnabas pipeline infer`: the schema of a sample of a topic, in a file beside the pipeline."""

from __future__ import annotations

from pathlib import Path

from barnabas.cli.connection import CommandError
from barnabas.cli.output import counted, say
from barnabas.cli.pipeline_table import sample_of
from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.schema_files import widened
from barnabas.pipelines.schema_inference import infer_schema


def infer(topic: str, path: Path, bootstrap: str) -> None:
    """Writes the file, or adds to it the columns that it lacks. Raises CommandError and PipelineError, and leaves the
    file as it was then.
    """
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    found = infer_schema(record.value for record in sample_of(topic, bootstrap))
    if found is None:
        raise CommandError(f"no record of the topic {topic} is a JSON object that could tell the columns")
    for note in found.notes:
        say(f"warning: {note}")
    wider = widened(before, found.schema)
    if not wider.added:
        say(f"{path} has all columns of {counted(found.records, 'record')}: it is left as it is")
        return
    # By a rename: a run that reads it meanwhile finds the one or the other.
    being_written = path.with_name(f".{path.name}.being-written")
    try:
        being_written.write_text(wider.text, encoding="utf-8")
        being_written.replace(path)
    except FileNotFoundError:
        raise PipelineError(f"the directory {path.parent} does not exist: create it first") from None
    except OSError as error:
        raise PipelineError(f"{path} cannot be written: {error.strerror or error}") from None
    done = "is written, with" if before is None else "has more columns:"
    say(f"{path} {done} {', '.join(wider.added)}, from {counted(found.records, 'record')}")
