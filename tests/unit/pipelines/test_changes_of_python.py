"""What of a changed function of Python a state goes on with: by its text, and by whether Spark has kept anything."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines.definition_changes import Changes
from barnabas.pipelines.python_code import changed_parts
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.state_definition import changes_since, definition_of

FILE = '''\
import beside_it
from barnabas.pipelines import pipeline

LIMIT = 15
OTHER = 1


def late(frame):
    """Text."""
    return frame.where(f"delay > {LIMIT}")


def other():
    return OTHER


@pipeline(
    sources={"flights": {"topic": "flights", "schema": "id INT, delay INT"}},
    steps=[{"name": "all", "sql": "SELECT * FROM flights"}],
    sinks=[{"topic": "out", "key": "id"}],
)
def passed(all):
    return beside_it.kept(late(all))
'''
BESIDE = "def kept(frame):\n    return frame\n"


def definition(directory: Path, *changes: tuple[str, str], beside: str = BESIDE) -> dict[str, Any]:
    text = FILE
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (directory / "beside_it.py").write_text(beside)
    (directory / "passed.py").write_text(text)
    # As it comes out of the state.
    found: dict[str, Any] = json.loads(json.dumps(definition_of(read_pipeline(directory / "passed.py"))))
    return found


def changes(
    directory: Path,
    *now: tuple[str, str],
    before: tuple[tuple[str, str], ...] = (),
    stateful: bool = True,
    beside: str = BESIDE,
) -> Changes:
    known = definition(directory, *before)
    definition(directory, *now, beside=beside)
    pipeline = read_pipeline(directory / "passed.py")
    return changes_since(pipeline, known, None, {"passed"} if stateful else set())


@pytest.mark.parametrize(
    "change",
    [
        ('"""Text."""', "'Other text.'  # and a comment"),
        ("return OTHER", "return OTHER + 1"),
        ("OTHER = 1", "OTHER = 2"),
        (
            'frame.where(f"delay > {LIMIT}")',
            "(\n        frame.where(\n            f'delay > {LIMIT}',\n        )\n    )",
        ),
        ("    sinks=", '    trigger="5 seconds", sinks='),
        ("SELECT * FROM flights", "select *   from flights"),
    ],
)
def test_what_is_nothing_to_the_function_is_no_change(tmp_path: Path, change: tuple[str, str]) -> None:
    assert changes(tmp_path, change) == Changes()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("LIMIT = 15", "LIMIT = 16"), "step passed was changed (LIMIT)"),
        (("{LIMIT}", "{LIMIT} + 1"), "step passed was changed (late)"),
        (("(late(all))", "(late(late(all)))"), "step passed was changed (passed)"),
        (("OTHER = 1", "OTHER = 1\nprint(OTHER)"), "step passed was changed (OTHER, other lines)"),
    ],
)
def test_a_changed_function_goes_on_where_spark_keeps_nothing_for_it(
    tmp_path: Path, change: tuple[str, str], what: str
) -> None:
    refused = changes(tmp_path, change).refused
    assert refused is not None
    assert refused[0].startswith(what)
    assert refused[0].endswith("without a `revision` by which the state of passed goes on,")
    assert refused[1] == 22 + change[1].count("\n")
    assert changes(tmp_path, change, stateful=False) == Changes(None, ("step passed was changed",))


def test_a_module_beside_the_file_is_a_part_of_the_function(tmp_path: Path) -> None:
    refused = changes(tmp_path, beside=BESIDE.replace("return frame", "return frame.distinct()")).refused
    assert refused is not None
    assert refused[0].startswith("step passed was changed (beside_it.py: kept), without a `revision` by which")
    assert changes(tmp_path, beside=f"# A comment.\n{BESIDE}") == Changes()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("package/__init__.py", "LIMIT = 15\n"),
        ("package/inner/__init__.py", "LIMIT = 15\n"),
        ("package/inner/made.py", "LIMIT = 15\n"),
        ("package/inner/near.py", "LIMIT = 15\n"),
        ("package/far.py", "LIMIT = 15\n"),
        ("package/odd.py", "LIMIT = 15 +\n"),
        ("package/deep.py", f"LIMIT = {'.'.join('a' * 20_000)}\n"),
        ("package/large.py", f"{'LIMIT = 15' + chr(10)}{'# ' + 'x' * 100 + chr(10)}" * 12_000),
    ],
)
def test_files_of_packages_beside_the_file_are_parts_of_the_function(tmp_path: Path, file: str, text: str) -> None:
    inner = tmp_path / "package/inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").touch()
    (inner / "__init__.py").touch()
    (inner / "made.py").write_text("from .near import LIMIT\nfrom ..far import LIMIT\nfrom . import near\n")
    for name in ("inner/near", "far", "odd", "deep", "large"):
        (inner.parent / f"{name}.py").touch()
    beside = f"import package.inner.made\nfrom package import deep, large, odd\n{BESIDE}"
    before = definition(tmp_path, beside=beside)
    (tmp_path / file).write_text(text)
    first = definition(tmp_path, beside=beside)
    (tmp_path / file).write_text(text.removesuffix("\n") + "1\n")
    parts = [each["steps"]["passed"]["code"] for each in (before, first, definition(tmp_path, beside=beside))]
    for one, other in itertools.pairwise(parts):
        assert {name.partition(":")[0] for name in changed_parts(one, other)} == {file}


def test_a_value_that_is_named_on_the_way_is_a_part(tmp_path: Path) -> None:
    before = (("LIMIT = 15", "FIRST = (LIMIT := 15)"),)
    refused = changes(tmp_path, ("LIMIT = 15", "FIRST = (LIMIT := 16)"), before=before).refused
    assert refused is not None
    assert refused[0].startswith("step passed was changed (FIRST, LIMIT)")


def test_a_number_of_any_length_is_a_part(tmp_path: Path) -> None:
    numbers = [definition(tmp_path, ("LIMIT = 15", f"LIMIT = 0x{'f' * 9_000}{end}")) for end in "ab"]
    assert numbers[0]["steps"]["passed"]["code"]["LIMIT"] != numbers[1]["steps"]["passed"]["code"]["LIMIT"]


def test_what_is_kept_is_the_same_for_each_version_of_python(tmp_path: Path) -> None:
    """Else a state would be refused once Python is another."""
    parts = definition(tmp_path)["steps"]["passed"]["code"]
    assert parts == {
        "LIMIT": "2bbfee2603c8b6c0",
        "beside_it": "2bc9ce2712ed6227",
        "late": "3ef2c7ca86d2aae1",
        "passed": "0a4995759ccdf770",
        "beside_it.py: kept": "bfdd4f09bb11f5e0",
    }


REVISION = ("    sinks=", '    revision="1", sinks=')
LIMITED = ("LIMIT = 15", "LIMIT = 16")


def test_a_revision_says_that_the_state_goes_on(tmp_path: Path) -> None:
    taken = ("step passed was changed (LIMIT), and goes on since it is of the same revision",)
    assert changes(tmp_path, REVISION, LIMITED, before=(REVISION,)) == Changes(None, taken)
    assert changes(tmp_path, REVISION, LIMITED).taken == taken
    assert changes(tmp_path, REVISION) == Changes()
    assert changes(tmp_path, LIMITED, before=(REVISION,)).refused is not None


def test_another_revision_says_that_it_does_not(tmp_path: Path) -> None:
    other = ("    sinks=", '    revision="2", sinks=')
    refused = changes(tmp_path, other, before=(REVISION,)).refused
    assert refused is not None
    assert refused[0] == "step passed was changed (revision), and Spark keeps state for passed"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("SELECT * FROM flights", "SELECT * FROM flights WHERE id > 1"), "step all was changed (sql)"),
        (('"id INT, delay INT"', '"id INT, delay INT, more INT"'), "the columns of source flights were changed"),
        (('FROM flights"', 'FROM flights", "watermark": {"column": "at", "delay": "1 hour"}'), "step all was changed"),
        (('"topic": "flights"', '"topic": "others"'), "source flights was changed (topic)"),
    ],
)
def test_what_a_function_with_state_reads_stays_what_it_is(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    refused = changes(tmp_path, change).refused
    assert refused is not None
    assert refused[0].startswith(told)


def test_columns_of_a_source_may_be_added_where_the_revision_says_so(tmp_path: Path) -> None:
    added = ('"id INT, delay INT"', '"id INT, delay INT, more INT"')
    assert changes(tmp_path, REVISION, added, before=(REVISION,)).refused is None


def test_a_step_may_become_a_function_where_spark_keeps_nothing(tmp_path: Path) -> None:
    sources = 'name: x\nsources: {flights: {topic: flights, schema: "id INT"}}\n'
    sinks = "sinks: [{topic: out, from: kept}]\n"
    (tmp_path / "steps.py").write_text("def kept(flights):\n    return flights\n")
    path = tmp_path / "x.yaml"
    found = []
    for step in ("sql: SELECT * FROM flights", 'python: "steps.py:kept"'):
        path.write_text(f"{sources}steps: [{{name: kept, {step}}}]\n{sinks}")
        found.append(definition_of(read_pipeline(path)))
    pipeline = read_pipeline(path)
    assert changes_since(pipeline, found[0], None, set()) == Changes(None, ("step kept was changed",))
    assert changes_since(pipeline, found[0], None, {"kept"}).refused is not None
    assert changes_since(pipeline, found[0]).refused is not None


def test_a_function_may_have_its_step_named_otherwise(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("def kept(flights):\n    return flights\n")
    path = tmp_path / "x.yaml"
    sources = 'name: x\nsources: {flights: {topic: flights, schema: "id INT"}}\n'
    text = f'{sources}steps: [{{name: NAME, python: "steps.py:kept"}}]\nsinks: [{{topic: out, from: NAME}}]\n'
    path.write_text(text.replace("NAME", "one"))
    before = definition_of(read_pipeline(path))
    path.write_text(text.replace("NAME", "two"))
    found = changes_since(read_pipeline(path), before, None, {"one"})
    assert found == Changes(None, ("step one is named two now",), {"two": "one"})
