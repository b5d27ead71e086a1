"""Which files are small, how sizes are written, and which tables are compacted."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.pipelines.compaction import (
    TARGET_BYTES_DEFAULT,
    TableFiles,
    files_of,
    parse_size,
    pipeline_of_table,
    table_at,
    tables_to_compact,
)
from barnabas.pipelines.definition import Compact, DeltaSink, IcebergSink, LakeSink, PipelineError
from barnabas.pipelines.parquet_table import MARKER
from barnabas.pipelines.reading import read_pipeline
from tests.unit.pipelines.made_pipelines import made_pipeline

MEBIBYTE = 1 << 20


@pytest.mark.parametrize(
    ("text", "size"),
    [("128MiB", 128), ("128 mb", 128), ("1g", 1024), ("2048 KiB", 2), ("4GiB", 4096)],
)
def test_sizes_are_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size * MEBIBYTE


@pytest.mark.parametrize("text", ["", "large", "128", "5 GiB", "-1MiB", "1.5GiB", "128 MiBs", "0x10M", "²MiB"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size|must be between 1 MiB and 4096 MiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], TableFiles(0, 0)),
        ([("a", 10)], TableFiles(1, 10)),
        ([("a", 10), ("b", 10)], TableFiles(2, 20)),
        ([("a", 10), ("a", 10), ("b", 10)], TableFiles(3, 30, 2, 20, 1)),
        ([("a", 74), ("a", 74), ("a", 75)], TableFiles(3, 223, 2, 148, 2)),
        ([("a", 100), ("a", 75)], TableFiles(2, 175)),
    ],
)
def test_small_files_are_counted_where_there_are_several_to_put_together(
    sizes: list[tuple[str, int]], expected: TableFiles
) -> None:
    assert files_of(iter(sizes), 100) == expected


def test_a_table_is_known_by_what_stands_in_its_directory(tmp_path: Path) -> None:
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    (tmp_path / "iceberg" / "metadata").mkdir(parents=True)
    (tmp_path / "iceberg" / "metadata" / "v1.metadata.json").touch()
    (tmp_path / "parquet").mkdir()
    (tmp_path / "parquet" / MARKER).touch()
    (tmp_path / "other").mkdir()
    assert isinstance(table_at(tmp_path / "delta"), DeltaSink)
    assert isinstance(table_at(tmp_path / "iceberg"), IcebergSink)
    with pytest.raises(PipelineError, match=r"is a Parquet table, which is not compacted: .*Use a Delta or Iceberg"):
        table_at(tmp_path / "parquet")
    with pytest.raises(PipelineError, match="is neither a Delta nor an Iceberg table"):
        table_at(tmp_path / "other")
    (sink,) = tables_to_compact(pipeline_of_table(tmp_path / "delta", tmp_path / "logs"))
    assert sink.directory == tmp_path / "delta"


def test_a_pipeline_without_such_tables_has_nothing_to_compact(tmp_path: Path) -> None:
    pipeline = made_pipeline(tmp_path)
    with pytest.raises(PipelineError, match=r"delays.yaml:33: parquet .* is not compacted"):
        tables_to_compact(pipeline)
    with pytest.raises(PipelineError, match="writes no Delta or Iceberg table"):
        tables_to_compact(made_pipeline(tmp_path, sinks=pipeline.sinks[:1]))


def sink_of(directory: Path, text: str) -> LakeSink:
    path = directory / "flights.yaml"
    path.write_text(
        f'name: f\nsources:\n  flights: {{topic: flights, schema: "id INT"}}\nsinks:\n  - {{from: flights, {text}}}\n'
    )
    (sink,) = read_pipeline(path).sinks
    assert isinstance(sink, DeltaSink | IcebergSink)
    return sink


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_sink_says_when_and_into_how_large_files(tmp_path: Path, kind: str) -> None:
    assert sink_of(tmp_path, f"{kind}: out").compact is None
    assert sink_of(tmp_path, f"{kind}: out, compact: {{every: 7}}").compact == Compact(7, TARGET_BYTES_DEFAULT)
    found = sink_of(tmp_path, f"{kind}: out, compact: {{every: 1, target: 2 MiB}}").compact
    assert found == Compact(1, 2 * MEBIBYTE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("delta: out, compact: {target: 2MiB}", "every"),
        ("delta: out, compact: {every: 0}", "every"),
        ("delta: out, compact: {every: 5, target: 2KiB}", "target .*must be between 1 MiB and 4096 MiB"),
        ("delta: out, compact: {every: 5, size: 2MiB}", 'unknown key "size"'),
        ("parquet: out, compact: {every: 5}", "compact is not for Parquet: readers of a Parquet table list"),
        ("topic: out, compact: {every: 5}", "compact is for Delta and Iceberg tables: remove it"),
    ],
)
def test_what_cannot_be_is_refused_at_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PipelineError, match=f"flights.yaml:5: .*{message}"):
        sink_of(tmp_path, text)
