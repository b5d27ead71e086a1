"""Target `pipelines`: pipeline files, which people write."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.reading import read_pipeline
from tests.unit.pipelines.pipeline_files import FLIGHTS


@cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="barnabas-fuzz-")


def check_pipeline_file(data: bytes) -> bool:
    """The file; there is nothing that writes one, so what is refused has to be refused at a line that there is."""
    path = Path(_directory().name) / "fuzzed.yaml"
    path.write_bytes(data)
    try:
        read_pipeline(path)
    except PipelineError as error:
        lines = len(data.splitlines()) + 1
        if error.line is not None and not 1 <= error.line <= lines:
            raise AssertionError(f"a file of {lines - 1} lines is wrong in line {error.line}") from error
        return False
    return True


def pipeline_seeds() -> list[bytes]:
    """A whole file, what is in it by itself, and what YAML can do."""
    small = "name: a\nsources:\n  s: {topic: t, schema: a INT}\nsteps:\n  - {name: x, sql: SELECT a FROM s}\nsinks:\n"
    sinks: tuple[str, ...] = (
        "  - {topic: o, from: x}\n",
        "  - {parquet: out, from: x, key: [a]}\n",
        "  - topic: o\n    from: s\n",
    )
    sinks += (
        "  - {delta: out, from: x, key: a, delete: b, newest_by: [c]}\nspark: {spark.x: 1}\n",
        "  - {iceberg: a.b.c, from: s, partition_by: a}\n",
    )
    texts = [FLIGHTS, *(small + sink for sink in sinks), "", "[", "a: &b {c: *b}\n", "- !!set {a}\n", "name: |\n  x\n"]
    return [text.encode() for text in texts]
