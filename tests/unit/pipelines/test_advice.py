"""What is allowed in a pipeline and probably not meant."""

from __future__ import annotations

from pathlib import Path

from barnabas.pipelines.advice import advice_on, views_behind
from tests.unit.pipelines.pipeline_files import read_flights


def advice(directory: Path, *changes: tuple[str, str]) -> list[str]:
    pipeline = read_flights(directory, *changes)
    return [line.removeprefix(f"{pipeline.path}:") for line in advice_on(pipeline)]


def test_has_nothing_to_say_to_a_pipeline_that_uses_all_it_has(tmp_path: Path) -> None:
    assert advice(tmp_path) == []


def test_tells_of_sources_and_steps_that_no_sink_needs(tmp_path: Path) -> None:
    changes = (
        ("  airlines:\n", "  spare: {topic: spare, schema: a INT}\n  airlines:\n"),
        ("sinks:\n", "  - {name: unused, sql: SELECT * FROM spare}\nsinks:\n"),
    )
    assert advice(tmp_path, *changes) == [
        '6: no sink needs the source "spare": it is not read',
        '23: no sink needs the step "unused": it is not computed',
    ]


def test_tells_of_groups_that_are_kept_for_ever(tmp_path: Path) -> None:
    groups = '"by_hour" groups a stream without a watermark in an earlier step'
    assert advice(tmp_path, ("    watermark: {column: time, delay: 1 hour}\n", "")) == [
        f"16: {groups}: Spark keeps every group for as long as the pipeline lives"
    ]


def test_takes_a_table_for_no_stream(tmp_path: Path) -> None:
    step = "  - {name: names, sql: SELECT DISTINCT name FROM airlines}\n"
    changes = (
        ("  - name: by_hour\n", f"{step}  - name: by_hour\n"),
        ("FROM named\n", "FROM named JOIN names USING (name)\n"),
    )
    assert advice(tmp_path, *changes) == []


def test_tells_of_changing_rows_without_a_key(tmp_path: Path) -> None:
    sink = "  - topic: delays\n    from: by_hour\n"
    keyed = f"{sink}    key: [name, hour]\n"
    assert advice(tmp_path, (keyed, sink)) == [
        '23: rows of "by_hour" are written again when they change: name its columns in "key"'
    ]
    assert advice(tmp_path, (keyed, sink.replace("by_hour", "named"))) == []


def test_follows_views_to_their_sources(tmp_path: Path) -> None:
    pipeline = read_flights(tmp_path)
    assert set(views_behind(pipeline, "by_hour")) == {"by_hour", "named", "flights", "airlines"}
    assert views_behind(pipeline, "airlines") == ("airlines",)
