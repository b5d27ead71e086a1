"""Pictures of pipelines: what is in them, and that no name can break them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from barnabas.pipelines.definition import Pipeline, TopicSink
from barnabas.pipelines.graph import dot_of, graph_of, mermaid_of, svg_of, text_of
from tests.support.command_runs import run_barnabas
from tests.unit.pipelines.pipeline_files import read_flights

DOCS = Path(__file__).resolve().parents[3] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
UNUSED = ("  - name: by_hour\n", "  - name: idle\n    sql: SELECT name FROM named\n  - name: by_hour\n")


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return read_flights(tmp_path)


def test_the_text_shows_sinks_above_what_they_are_made_of(pipeline: Pipeline) -> None:
    assert list(text_of(pipeline)) == [
        "topic delays [key: name, hour]",
        "parquet out/delays [key: name, hour]",
        "└─ by_hour [groups]",
        "   └─ named [watermark: time, 1 hour]",
        "      ├─ flights ◂ topic flights [stream]",
        "      └─ airlines ◂ topic airlines [table]",
        "topic delays.dlq [dead letters of flights]",
    ]


def test_what_no_sink_needs_is_named_and_what_is_read_twice_is_shown_once(tmp_path: Path) -> None:
    again = ("      GROUP BY name, window(time, '1 hour')\n", "      GROUP BY name, window(time, '1 hour')\n" + TWICE)
    pipeline = read_flights(tmp_path, UNUSED, again)
    lines = list(text_of(pipeline))
    assert "no sink needs idle, twice" in lines
    wanted = dataclasses.replace(pipeline, sinks=(TopicSink("t", "twice", 1, 1), TopicSink("u", "idle", 1, 1)))
    assert [line for line in text_of(wanted) if "named" in line] == [
        "   ├─ named [watermark: time, 1 hour]",
        "   └─ named (above)",
    ]


TWICE = "  - name: twice\n    sql: SELECT n.name FROM named AS n JOIN airlines AS a ON a.name = n.name\n"


def test_the_graph_has_each_part_and_the_letters(pipeline: Pipeline) -> None:
    graph = graph_of(pipeline)
    titles = [node.title for node in graph.nodes]
    assert titles == [
        *("flights", "airlines", "named", "by_hour"),
        *("topic delays", "parquet out/delays", "topic delays.dlq"),
    ]
    named = [(titles[edge.start], titles[edge.end]) for edge in graph.edges if not edge.is_dotted]
    assert named == [
        ("flights", "named"),
        ("airlines", "named"),
        ("named", "by_hour"),
        ("by_hour", "topic delays"),
        ("by_hour", "parquet out/delays"),
    ]
    assert [titles[edge.start] for edge in graph.edges if edge.is_dotted] == ["flights"]


def hostile(pipeline: Pipeline) -> Pipeline:
    columns = ('a"b', "c\\", "<&>", "\x1b", "#quot;", "]]>", "x" * 200)
    return dataclasses.replace(pipeline, name='"&<', sinks=(TopicSink("t", "by_hour", 1, 1, columns),))


def test_svg_is_xml_whose_boxes_stand_apart_behind_what_they_read(pipeline: Pipeline) -> None:
    root = ET.fromstring(svg_of(graph_of(pipeline)))
    boxes = [
        tuple(float(box.get(name) or 0) for name in ("x", "y", "width", "height")) for box in root.iter(f"{SVG}rect")
    ]
    assert len(boxes) == 7
    for number, (x, y, width, height) in enumerate(boxes):
        for ox, oy, owidth, oheight in boxes[number + 1 :]:
            assert x + width <= ox or ox + owidth <= x or y + height <= oy or oy + oheight <= y
    assert len(list(root.iter(f"{SVG}path"))) == 7
    made = ET.fromstring(svg_of(graph_of(hostile(pipeline))))
    assert [title.text for title in made.iter(f"{SVG}title")] == ['"&<']


def test_mermaid_and_dot_quote_whatever_a_name_has(pipeline: Pipeline) -> None:
    mermaid = mermaid_of(graph_of(hostile(pipeline)))
    labels = re.findall(r'^    n\d+\[\(?"(.*)"\)?\]$', mermaid, re.MULTILINE)
    assert len(labels) == 6
    assert all(re.fullmatch(r"(?:[\w .,:/-]|#\d+;|<br/>)*", label) for label in labels)
    assert "n0 --> n2" in mermaid
    assert "n0 -.-> n5" in mermaid
    dot = dot_of(graph_of(hostile(pipeline)))
    assert dot.startswith('digraph "\\"&<" {')
    strings = re.sub(r'"(?:[^"\\]|\\.)*"', "", dot)
    assert '"' not in strings
    assert "\x1b" not in dot


def test_the_picture_in_the_docs_is_of_the_file_above_it(tmp_path: Path) -> None:
    page = (DOCS / "pipelines.md").read_text("utf-8")
    picture = "![What the pipeline above does: topics and tables, steps, results](images/pipeline-graph.svg)"
    above, _, _ = page.partition(picture)
    file = tmp_path / "delays.yaml"
    file.write_text(above.rpartition("```yaml\n")[2].partition("```")[0], "utf-8")
    drawn = run_barnabas("pipeline", "graph", str(file), "--format", "svg")
    assert drawn.status == 0, drawn.errors
    assert drawn.output == (DOCS / "images" / "pipeline-graph.svg").read_text("utf-8")
