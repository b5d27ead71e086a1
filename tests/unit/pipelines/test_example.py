"""The first pipeline that `init` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.pipelines.advice import advice_on
from barnabas.pipelines.definition import PipelineError, PipelineMissingError
from barnabas.pipelines.example import example_text, write_example
from barnabas.pipelines.reading import read_pipeline


def test_is_a_pipeline_without_fault(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    write_example(path)
    pipeline = read_pipeline(path)
    assert pipeline.name == "revenue"
    assert advice_on(pipeline) == ()
    assert [sink.target for sink in pipeline.sinks] == ["topic revenue", f"parquet {tmp_path}/revenue-table"]
    # What is commented out is what holds without it.
    assert f"# state: {pipeline.state_directory.relative_to(tmp_path)} " in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "name", "shown"),
    [("sales.yaml", "sales", "sales.yaml"), ("sales.2.yml", "sales", "sales.2.yml"),
     ("my sales.yaml", "revenue", "'my sales.yaml'"), ("pipeline.yaml", "revenue", "pipeline.yaml")],
)  # fmt: skip
def test_has_the_name_of_its_file(file: str, name: str, shown: str) -> None:
    text = example_text(Path(file))
    assert f"\nname: {name}\n" in text
    assert f"#   barnabas pipeline run {shown} --once\n" in text
    assert "NAME" not in text
    assert "FILE" not in text


def test_is_not_written_into_a_file_of_python(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"sales\.py: the first pipeline is YAML, so name it .*sales\.yaml"):
        write_example(tmp_path / "sales.py")
    assert not (tmp_path / "sales.py").exists()


def test_overwrites_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(PipelineError, match=r"mine\.yaml exists already: name another file, or remove it"):
        write_example(path)
    assert path.read_text(encoding="utf-8") == "mine"


def test_says_what_is_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(PipelineMissingError, match=r"the directory .*/no does not exist: create it first"):
        write_example(tmp_path / "no" / "a.yaml")
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match=r"a\.yaml cannot be written: Not a directory"):
        write_example(tmp_path / "file" / "a.yaml")
