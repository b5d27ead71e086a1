"""Compaction of the small files that batches leave in tables of Delta Lake and Iceberg, by the formats' own means.

A table is compacted by commits of its own format that change no row: readers see the files before or those after, and
go on with those that they have begun with, since old files stay until the format's own expiry (VACUUM,
`expire_snapshots`). What is killed in between leaves files that no commit names. Such a commit says of no batch that it
is done, so what says which batches the table has stays what it is.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.pipelines.definition import DeltaSink, IcebergSink, LakeSink, ParquetSink, Pipeline, PipelineError
from barnabas.pipelines.parquet_table import MARKER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES_DEFAULT: Final = 128 << 20
TARGET_BYTES_MIN: Final = 1 << 20
TARGET_BYTES_MAX: Final = 4 << 30
COMMITTED_TARGETS: Final = 10
"""So many files of the target's size are made by one commit: more than that no kill has to be done again."""
SMALL_SHARE: Final = 0.75
"""A file is small that is below this part of the target: what was compacted, and is no exact fit, is not small then."""

PARQUET_REFUSED: Final = (
    "readers of a Parquet table list its directories and read what they have listed: files that are exchanged under "
    "them are missing, or read twice. Use a Delta or Iceberg table, whose files are known by its log"
)
_SIZE: Final = re.compile(r"\s*(\d{1,12})\s*([kmg])(?:i?b)?\s*", re.IGNORECASE | re.ASCII)
_SHIFTS: Final = {"k": 10, "m": 20, "g": 30}


class CompactionFailedError(Exception):
    """What a table has said of a compaction that did not do all that it was to do."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of a table now, and those of them that compaction would replace, by how many."""

    files: int
    size_bytes: int
    small: int = 0
    small_bytes: int = 0
    instead: int = 0


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction has done."""

    removed: int
    added: int


def parse_size(text: str, minimum: int = TARGET_BYTES_MIN, maximum: int = TARGET_BYTES_MAX) -> int:
    """Bytes of `128MiB`, `1 GiB` and the like; units are those of 1024. Raises ValueError, which says what to write."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text}" is not a size: write a whole number and a unit, such as 128MiB')
    size = int(match[1]) << _SHIFTS[match[2].lower()]
    if not minimum <= size <= maximum:
        raise ValueError(f'"{text}" must be between {minimum >> 20} MiB and {maximum >> 20} MiB')
    return size


def small_bytes_of(target_bytes: int) -> int:
    """Below which size a file is small."""
    return int(target_bytes * SMALL_SHARE)


def files_of(sizes: Iterator[tuple[object, int]], target_bytes: int) -> TableFiles:
    """Of the partition and the size of each file. One small file of a partition has nothing to be put together with."""
    files = total = 0
    small: dict[object, tuple[int, int]] = {}
    for partition, size in sizes:
        files, total = files + 1, total + size
        if size < small_bytes_of(target_bytes):
            count, size_bytes = small.get(partition, (0, 0))
            small[partition] = (count + 1, size_bytes + size)
    several = [each for each in small.values() if each[0] > 1]
    instead = sum(-(-size_bytes // target_bytes) for _, size_bytes in several)
    return TableFiles(
        files, total, sum(count for count, _ in several), sum(size_bytes for _, size_bytes in several), instead
    )


def table_at(directory: Path) -> LakeSink:
    """The table in a directory, by what stands in it. Raises PipelineError where there is none that is compacted."""
    directory = directory.resolve()
    if (directory / "_delta_log").is_dir():
        return DeltaSink(directory, "", 0, 0)
    if any((directory / "metadata").glob("*.metadata.json")):
        return IcebergSink(directory, "", "", 0, 0)
    if (directory / MARKER).exists():
        raise PipelineError(f"{directory} is a Parquet table, which is not compacted: {PARQUET_REFUSED}")
    raise PipelineError(f"{directory} is neither a Delta nor an Iceberg table: name one, or the file of a pipeline")


def pipeline_of_table(directory: Path, logs: Path) -> Pipeline:
    """Stands for the pipeline that a table has none of, for Spark and its jars; `logs` is a directory of its own."""
    return Pipeline("compact", directory, logs, (), (), (table_at(directory),))


def tables_to_compact(pipeline: Pipeline) -> tuple[LakeSink, ...]:
    """Those that a pipeline writes. Raises PipelineError where there are none."""
    found = tuple(sink for sink in pipeline.sinks if isinstance(sink, DeltaSink | IcebergSink))
    if not found:
        parquet = next((sink for sink in pipeline.sinks if isinstance(sink, ParquetSink)), None)
        if parquet is not None:
            raise pipeline.error(f"{parquet.target} is not compacted: {PARQUET_REFUSED}", parquet.line)
        raise pipeline.error("the pipeline writes no Delta or Iceberg table that could be compacted", pipeline.line)
    return found


@contextlib.contextmanager
def settings_for(session: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Settings of a session for the time of a block, which are what they were afterwards."""
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            if former is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, former)
