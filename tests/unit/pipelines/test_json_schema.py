"""The JSON schemas take what the reading takes, and refuse the keys and values that it refuses by itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from barnabas.pipelines import cases, reading, sink_reading, source_reading
from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.example import example_text
from barnabas.pipelines.json_schema import cases_schema, pipeline_schema
from barnabas.pipelines.reading import read_pipeline
from tests.unit.pipelines.pipeline_files import FLIGHTS
from tests.unit.pipelines.test_cases import TESTS

ROOT = Path(__file__).resolve().parents[3]
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_KNOWN = {
    *("$schema", "title", "description", "examples", "type", "properties", "required", "additionalProperties", "enum"),
    *("items", "minItems", "maxItems", "propertyNames", "minProperties", "maxProperties", "pattern", "minimum"),
    *("maximum", "anyOf", "oneOf", "not"),
}


class Loader(yaml.SafeLoader):
    """As editors read YAML: a time is text."""


Loader.yaml_implicit_resolvers = {
    first: [each for each in resolvers if each[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def faults(value: Any, schema: dict[str, Any], place: str = "") -> list[str]:
    """What a validator of JSON schemas would say; of the words that our schemas use."""
    assert schema.keys() <= _KNOWN, schema.keys() - _KNOWN
    found: list[str] = []
    kinds = schema.get("type", [])
    wanted = [kinds] if isinstance(kinds, str) else kinds
    if wanted and not any(
        isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in wanted
    ):
        return [f"{place}: no {kinds}"]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{place}: not one of {schema['enum']}")
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        found.append(f"{place}: pattern")
    if isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        found.append(f"{place}: bounds")
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            found.append(f"{place}: items")
        found += [
            each for n, item in enumerate(value) for each in faults(item, schema.get("items", {}), f"{place}[{n}]")
        ]
    if isinstance(value, dict):
        found += [f"{place}: lacks {name}" for name in schema.get("required", []) if name not in value]
        if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
            found.append(f"{place}: properties")
        for name, each in value.items():
            found += faults(name, schema.get("propertyNames", {}), f"{place}.{name}")
            more = schema.get("properties", {}).get(name, schema.get("additionalProperties", {}))
            found += [f"{place}: unknown {name}"] if more is False else faults(each, more, f"{place}.{name}")
    for word, count in (("anyOf", 1), ("oneOf", 1)):
        fitting = [1 for each in schema.get(word, []) if not faults(value, each)]
        if word in schema and (len(fitting) < count or (word == "oneOf" and len(fitting) != 1)):
            found.append(f"{place}: {word}")
    if "not" in schema and not faults(value, schema["not"]):
        found.append(f"{place}: not")
    return found


def loaded(text: str) -> Any:
    return yaml.load(text, Loader)


def blocks(page: str, beginning: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text("utf-8")
    return [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if block.startswith(beginning)]


@pytest.mark.parametrize(
    "text",
    [
        FLIGHTS,
        example_text(Path("x.yaml")),
        (ROOT / "demo" / "delays.yaml").read_text("utf-8"),
        *(path.read_text("utf-8") for path in sorted((ROOT / "examples").glob("*.yaml"))),
        *blocks("pipelines.md", "name:"),
        *blocks("testing.md", "name:"),
    ],
)
def test_pipelines_that_are_read_fit(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    read_pipeline(path)
    assert faults(loaded(text), pipeline_schema()) == []


PARTS = [block for block in blocks("pipelines.md", "") if not block.startswith(("name:", "tests:", "scrape_configs:"))]


@pytest.mark.parametrize("part", PARTS, ids=[block.partition(":")[0] for block in PARTS])
def test_parts_of_a_pipeline_on_the_page_are_read(tmp_path: Path, part: str) -> None:
    """With the simplest of what each leaves out."""
    has, text = loaded(part), f"name: part\n{part}"
    if "sources" not in has:
        text += 'sources: {flights: {topic: flights, schema: "carrier STRING, day STRING"}}\n'
    if "sinks" not in has:
        text += "sinks: [{topic: copied, from: flights}]\n"
    elif "steps" not in has:
        text += "steps:\n"
        for name in dict.fromkeys(sink["from"] for sink in has["sinks"]):
            text += f"  - {{name: {name}, sql: 'SELECT carrier, day FROM flights'}}\n"
    path = tmp_path / "part.yaml"
    path.write_text(text)
    read_pipeline(path)
    assert faults(loaded(text), pipeline_schema()) == []


def test_there_are_parts_of_a_pipeline_on_the_page() -> None:
    assert {name for part in PARTS for name in loaded(part)} == {
        "cluster",
        "jars",
        "spark",
        "sources",
        "steps",
        "sinks",
    }


@pytest.mark.parametrize("text", [TESTS, *blocks("pipelines.md", "tests:"), *blocks("testing.md", "tests:")])
def test_tests_that_are_read_fit(text: str) -> None:
    assert faults(loaded(text), cases_schema()) == []


def test_every_key_of_the_reading_is_there_and_no_other() -> None:
    schema = pipeline_schema()["properties"]
    source, step, sink = (
        schema["sources"]["additionalProperties"],
        schema["steps"]["items"],
        schema["sinks"]["items"],
    )
    assert tuple(schema) == reading.PIPELINE_KEYS
    assert tuple(source["properties"]) == source_reading.SOURCE_KEYS
    assert tuple(step["properties"]) == reading.STEP_KEYS
    assert tuple(step["properties"]["watermark"]["properties"]) == reading.WATERMARK_KEYS
    assert tuple(sink["properties"]) == sink_reading.SINK_KEYS
    of_tests = cases_schema()["properties"]["tests"]["items"]["properties"]
    assert tuple(of_tests) == cases.CASE_KEYS
    assert set(of_tests["given"]["additionalProperties"]["items"]["properties"]) == set(cases.RECORD_KEYS)


CHANGES = [
    ("name: delays\n", ""),
    ("name: delays\n", "name: late flights\n"),
    ("name: delays\n", "name: delays\nsink: x\n"),
    ("name: delays\n", "name: delays\ntrigger: 5\n"),
    ("name: delays\n", "name: delays\ntrigger: soon\n"),
    ("name: delays\n", "name: delays\nstate: [x]\n"),
    ("    topic: flights\n", ""),
    ("    topic: flights\n", "    topic: a b\n"),
    ("    topic: flights\n", "    topic: flights\n    read: tabel\n"),
    ("    topic: flights\n", "    topic: flights\n    format: parquet\n"),
    ("    topic: flights\n", "    topic: flights\n    on_error: ignore\n"),
    ("    topic: flights\n", "    topic: flights\n    max_records_per_batch: 0\n"),
    ("    topic: flights\n", "    topic: flights\n    max_records_per_batch: '5'\n"),
    ("    topic: flights\n", "    topic: flights\n    allow_data_loss: 1\n"),
    ("  flights:\n", "  1flights:\n"),
    ("{column: time, delay: 1 hour}", "{column: time}"),
    ("{column: time, delay: 1 hour}", "{column: time, delay: 1 hour, late: x}"),
    ("  - name: by_hour\n", "  - name: by hour\n"),
    ("  - topic: delays\n", "  - topic: delays\n    parquet: x\n"),
    ("  - topic: delays\n    from: by_hour\n", "  - topic: delays\n"),
    ("  - topic: delays\n", "  - topic: delays\n    delivery: twice\n"),
    (
        "    key: [name, hour]\n  - parquet",
        "    delivery: exactly_once\n    key: [name, hour]\n  - delivery: exactly_once\n    parquet",
    ),
    ("    key: [name, hour]\n  - parquet", "    key: []\n  - parquet"),
    ("    key: [name, hour]\n  - parquet", "    key: [1]\n  - parquet"),
]


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_what_the_reading_refuses_by_a_key_or_a_value_alone_does_not_fit(tmp_path: Path, old: str, new: str) -> None:
    assert FLIGHTS.count(old) == 1
    text = FLIGHTS.replace(old, new)
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(PipelineError):
        read_pipeline(path)
    assert faults(loaded(text), pipeline_schema()) != []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    given:\n", "    givven:\n"),
        ("    counts: {rows_dropped_by_watermark: 1}", "    counts: {rows: 1}"),
        ("[{value: nonsense}]", "[{reson: x}]"),
        ("  - name: delays by hour\n", "  - name: ''\n"),
        ("_partition: 1", "_partition: x"),
    ],
)
def test_of_tests_too(old: str, new: str) -> None:
    assert TESTS.count(old) == 1
    assert faults(loaded(TESTS.replace(old, new)), cases_schema()) != []


def test_a_test_that_expects_nothing_does_not_fit() -> None:
    assert faults(loaded("tests: [{name: x, given: {}}]"), cases_schema()) == [".tests[0]: anyOf"]
