"""Pipelines in Python as their text says: read, or refused at the line of the fault, without running anything."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from barnabas.pipelines import python_code, python_files
from barnabas.pipelines.cases import path_of_tests
from barnabas.pipelines.definition import Pipeline, PipelineError, PipelineMissingError
from barnabas.pipelines.graph import text_of
from barnabas.pipelines.reading import read_pipeline

DELAYS = '''\
"""Delays."""
from barnabas.pipelines import pipeline

raise SystemExit("nothing of this is run")
SCHEMA = """
carrier STRING,
dep_delay INT, time TIMESTAMP
"""
COMMON = {"topic": "flights", "on_error": "skip"}


def late(frame):
    return frame.where("dep_delay > 15")


@pipeline(
    sources={
        "flights": {**COMMON, "on_error": "fail", "schema": SCHEMA, "max_records_per_batch": 500_000},
        "airlines": dict(topic="airlines", read="table", schema="carrier STRING"),
    },
    steps=[{"name": "timed", "sql": "SELECT * FROM flights", "watermark": {"column": "time", "delay": "1 hour"}}],
    sinks=[{"topic": "late", "key": ["carrier"]}, {"parquet": "out/raw", "from": "flights"}],
    trigger="5 seconds",
    spark={"spark.sql.shuffle.partitions": 4, "spark.sql.ansi.enabled": False},
)
def delays(timed, *, airlines):
    return late(timed).join(airlines, "carrier")
'''


def read(directory: Path, text: str = DELAYS) -> Pipeline:
    path = directory / "delays.py"
    path.write_text(text)
    return read_pipeline(path)


def changed(*changes: tuple[str, str]) -> str:
    text = DELAYS
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def test_a_decorated_function_is_a_pipeline_and_nothing_is_run(tmp_path: Path) -> None:
    pipeline = read(tmp_path)
    assert pipeline.name == "delays"
    assert pipeline.state_directory == tmp_path / ".barnabas/delays"
    assert pipeline.trigger_ms == 5_000
    flights, airlines = pipeline.sources
    assert [(column.name, column.type) for column in flights.columns][1:] == [
        ("dep_delay", "INT"),
        ("time", "TIMESTAMP"),
    ]
    assert (flights.on_error.value, flights.max_records_per_batch, airlines.read.value) == ("fail", 500_000, "table")
    timed, delays = pipeline.steps
    assert timed.watermark is not None
    assert delays.python is not None
    assert (delays.name, delays.reads, delays.sql) == ("delays", ("timed", "airlines"), "")
    assert (delays.python.function, delays.python.line, delays.line) == ("delays", 26, 26)
    assert [sink.from_view for sink in pipeline.sinks] == ["delays", "flights"]
    assert dict(pipeline.spark)["spark.sql.ansi.enabled"] == "false"
    assert "RocksDB" in dict(pipeline.spark)["spark.sql.streaming.stateStore.providerClass"]
    assert "└─ delays [python: delays.py:delays]" in "\n".join(text_of(pipeline))
    assert path_of_tests(pipeline.path) == tmp_path / "delays.test.yaml"


def test_importing_the_decorator_brings_no_package_in() -> None:
    program = "import sys; from barnabas.pipelines import pipeline; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert {name.partition(".")[0] for name in loaded}.isdisjoint({"pyspark", "yaml", "sqlglot", "pandas", "py4j"})


def test_a_decorated_function_is_called_as_before() -> None:
    from barnabas.pipelines import pipeline

    @pipeline(sources={}, sinks=[])
    def double(number: int) -> int:
        return 2 * number

    assert double(2) == 4


def test_of_several_results_each_that_a_sink_names_is_a_step(tmp_path: Path) -> None:
    pipeline = read(
        tmp_path,
        changed(
            ('"late", "key": ["carrier"]', '"late", "from": "one"'),
            ('{"parquet": "out/raw", "from": "flights"}', '{"parquet": "out/raw", "from": "two"}'),
            ('return late(timed).join(airlines, "carrier")', 'return {"one": timed, "two": airlines}'),
        ),
    )
    found = [(step.name, step.python.result) for step in pipeline.steps if step.python is not None]
    assert found == [("one", "one"), ("two", "two")]


@pytest.mark.parametrize(
    "spelled",
    [
        ("from barnabas.pipelines import pipeline as p", "@p("),
        ("import barnabas.pipelines", "@barnabas.pipelines.pipeline("),
        ("import barnabas.pipelines as bp", "@bp.pipeline("),
        ("from barnabas import pipelines", "@pipelines.pipeline("),
    ],
)
def test_the_decorator_is_known_by_what_the_file_imports(tmp_path: Path, spelled: tuple[str, str]) -> None:
    text = changed(("from barnabas.pipelines import pipeline", spelled[0]), ("@pipeline(", spelled[1]))
    assert read(tmp_path, text).name == "delays"


@pytest.mark.parametrize(
    ("old", "new", "line", "told"),
    [
        ("def late(frame):", "def late(frame:", 12, "this is not Python: "),
        ('"""Delays."""', '"""Delays.""" \0', 1, "this is not Python: "),
        ("import pipeline", "import pipelines", 1, "no function at the top of this file has @pipeline"),
        ("def late(frame):", "@pipeline(sources={}, sinks=[])\ndef late(frame):", 27, "delays is a second pipeline"),
        ("@pipeline(\n", "@pipeline(1,\n", 16, "the arguments of @pipeline have names"),
        ('trigger="5 seconds"', "**COMMON", 23, "an argument of @pipeline must be written out"),
        ('trigger="5 seconds"', 'triger="5 seconds"', 23, 'unknown key "triger"; did you mean "trigger"?'),
        ('trigger="5 seconds"', "trigger=5", 23, 'trigger "5" has no unit'),
        ('trigger="5 seconds"', 'trigger="5 " + "seconds"', 23, "trigger must be written out"),
        ('trigger="5 seconds"', "trigger=TRIGGER", 23, "trigger, TRIGGER, must be written out"),
        ('COMMON = {"topic"', 'COMMON = COMMON\nOTHER = {"topic"', 9, "sources.flights, COMMON, must be written out"),
        ("SCHEMA = ", "SCHEMA = None\nSCHEMA = ", 19, "sources.flights.schema, SCHEMA, must be written out"),
        (
            '"on_error": "fail"',
            '"on_errors": "fail"',
            18,
            'sources.flights: unknown key "on_errors"; did you mean "on_error"?',
        ),
        ('"on_error": "fail"', '"on_error": "fail", "on_error": "skip"', 18, 'the key "on_error" occurs twice'),
        ('"on_error": "fail"', '"on_error": b"fail"', 18, "sources.flights.on_error must be written out"),
        ('"on_error": "fail"', '"on_error": "\\ud800"', 18, "sources.flights.on_error must be written out"),
        ('"max_records_per_batch": 500_000', '"max_records_per_batch": -1', 18, "must be between 1 and"),
        ('"max_records_per_batch": 500_000', f'"max_records_per_batch": 0x{"f" * 4_000}', 18, "must be written out"),
        ("dep_delay INT,", "dep_delay INTT,", 7, "schema: "),
        ('read="table"', 'read="tabel"', 19, 'read "tabel" is not known; did you mean "table"?'),
        ('"SELECT * FROM flights"', '"SELECT * FROM fligths"', 21, 'timed reads "fligths", which is neither'),
        (
            "    return late(timed).join",
            "    return 1\n\n\ndef delays(timed):\n    return timed.join",
            30,
            "delays is defined again here",
        ),
        ("    sources={", '    sources="flights",\n    registry={', 17, "sources is text; it must be a dict"),
        ("    sources={", "    sources=[1],\n    registry={", 17, "sources is a list; it must be a dict"),
        ('steps=[{"name": "timed"', 'steps=[{"name": [1]', 21, "steps[1].name is a list; it must be text"),
        ('steps=[{"name"', 'steps={"a": 1},\n    jars=[{"name"', 21, "steps must be a list"),
        ('{"parquet": "out/raw", "from": "flights"}', '"out/raw"', 22, "it must be a dict"),
        (
            "delays(timed, *, airlines)",
            "delays(timed, airline)",
            26,
            'reads "airline", which is neither a source nor an earlier step; did you mean "airlines"?',
        ),
        ("delays(timed, *, airlines)", "delays(*timed)", 26, "takes any number of arguments (*timed)"),
        ("delays(timed, *, airlines)", "delays(timed, airlines=None)", 26, "a parameter of delays has a default"),
        ("delays(timed, *, airlines)", "delays(timed, /, airlines)", 26, 'has parameters without names ("/")'),
        ("delays(timed, *, airlines)", "delays()", 26, "delays takes no DataFrame"),
        ("def delays(", "async def delays(", 26, "is `async`"),
        ('return late(timed).join(airlines, "carrier")', "pass", 26, "delays returns nothing"),
        (
            'return late(timed).join(airlines, "carrier")',
            'return {"a": timed}',
            27,
            "delays returns a dict of DataFrames (a): say in `from`",
        ),
        ('"from": "flights"', '"from": "fligths"', 22, '"delays" is not what'),
        ('"key": ["carrier"]', '"key": []', 22, "key has 0 items"),
    ],
)
def test_a_fault_is_told_at_its_line(tmp_path: Path, old: str, new: str, line: int, told: str) -> None:
    changes = [(old, new)]
    if "is not what" in told:
        changes.append(('return late(timed).join(airlines, "carrier")', 'return {"x": timed}'))
    with pytest.raises(PipelineError) as caught:
        read(tmp_path, changed(*changes))
    assert told in caught.value.message
    assert (caught.value.path, caught.value.line) == (tmp_path / "delays.py", line)


def test_names_that_name_each_other_many_times_are_refused(tmp_path: Path) -> None:
    names = "".join(f"N{number + 1} = [{', '.join([f'N{number}'] * 10)}]\n" for number in range(20))
    with pytest.raises(PipelineError, match="there are more than"):
        read(tmp_path, changed(("COMMON = ", f"N0 = 1\n{names}COMMON = "), ('trigger="5 seconds"', "jars=N20")))


def test_names_that_are_nested_deeper_than_python_goes_are_refused(tmp_path: Path) -> None:
    names = "".join(f"N{number + 1} = {'[' * 90}N{number}{']' * 90}\n" for number in range(20))
    with pytest.raises(PipelineError, match="nested too deeply"):
        read(tmp_path, changed(("COMMON = ", f"N0 = 1\n{names}COMMON = "), ('trigger="5 seconds"', "jars=N20")))


def test_a_file_may_be_a_link_and_its_code_a_long_chain(tmp_path: Path) -> None:
    chain = "".join(f".withColumn('c{number}', timed.time)" for number in range(200))
    read(tmp_path, changed(("late(timed).join", f"late(timed){chain}.join")))
    (tmp_path / "linked.py").symlink_to(tmp_path / "delays.py")
    (*_, step) = read_pipeline(tmp_path / "linked.py").steps
    assert step.python is not None
    assert step.python.path == tmp_path / "linked.py"


def test_a_file_is_read_once_for_all_that_its_function_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = Mock(wraps=ast.parse)
    monkeypatch.setattr("ast.parse", parsed)
    (tmp_path / "beside_it.py").write_text("LIMIT = 15\n")
    sinks = ", ".join(f'{{"topic": "out{number}", "from": "v{number}"}}' for number in range(20))
    start, _, end = DELAYS.partition("    sinks=")
    text = f"import beside_it\n{start}    sinks=[{sinks}],\n{end.partition(chr(10))[2]}"
    made = "return {" + ", ".join(f'"v{number}": beside_it' for number in range(20)) + "}"
    pipeline = read(tmp_path, text.replace('return late(timed).join(airlines, "carrier")', made))
    assert len(pipeline.steps) == 21
    assert parsed.call_count == 2


def test_what_a_file_imports_is_looked_at_once_however_many_decorators_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = Mock(wraps=python_files._words_of)
    monkeypatch.setattr(python_files, "_words_of", looked)
    read(tmp_path, changed(("def late(frame):", "@other\ndef one(): 0\n" * 100 + "def late(frame):")))
    assert looked.call_count == 2


def test_every_file_that_is_imported_counts_and_too_many_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = changed(("raise SystemExit", "import m0\nraise SystemExit"), ("return late(timed)", "return late(m0.timed)"))
    for number in range(150):
        (tmp_path / f"m{number}.py").write_text(f"import m{number + 1}\nX = {number}\n")
    (tmp_path / "m150.py").write_text("X = 1\n")
    before, after = (dict(read_parts(tmp_path, text, f"X = {each}\n")) for each in (1, 2))
    assert [name for name in after if before[name] != after[name]] == ["m150.py: X"]
    monkeypatch.setattr(python_code, "FILES_BESIDE_MAX", 151)
    read(tmp_path, text)
    monkeypatch.setattr(python_code, "FILES_BESIDE_MAX", 150)
    with pytest.raises(PipelineError, match=r"delays\.py:\d+: .*imports more than 150 files of its dir.*as a package"):
        read(tmp_path, text)


def read_parts(directory: Path, text: str, last: str) -> tuple[tuple[str, str], ...]:
    (directory / "m150.py").write_text(last)
    python = read(directory, text).steps[-1].python
    assert python is not None
    return python.parts


@pytest.mark.parametrize("target", ["blob", "of its own:here.py"])
def test_a_link_may_be_of_a_file_of_any_name(tmp_path: Path, target: str) -> None:
    read(tmp_path)
    (tmp_path / "delays.py").rename(tmp_path / target)
    (tmp_path / "delays.py").symlink_to(target)
    assert read_pipeline(tmp_path / "delays.py").name == "delays"


def test_the_files_beside_it_are_beside_what_a_link_names(tmp_path: Path) -> None:
    """`dev` looks at them for changes."""
    real = tmp_path / "real"
    real.mkdir()
    (real / "beside_it.py").write_text("LIMIT = 15\n")
    read(
        real,
        changed(("raise SystemExit", "import beside_it\nraise SystemExit"), ("return late(timed)", "return beside_it")),
    )
    (tmp_path / "delays.py").symlink_to("real/delays.py")
    (*_, step) = read_pipeline(tmp_path / "delays.py").steps
    assert step.python is not None
    assert step.python.files == (tmp_path / "delays.py", real / "beside_it.py")


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / " a b:c.py").write_text(DELAYS)
    (*_, step) = read_pipeline(tmp_path / " a b:c.py").steps
    assert step.python is not None
    assert step.python.path == tmp_path / " a b:c.py"


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PipelineMissingError, match=r"none.py does not exist: it has a function under @pipeline"):
        read_pipeline(tmp_path / "none.py")


OF_YAML = """\
name: mixed
sources:
  flights: {topic: flights, schema: "carrier STRING, delay INT"}
steps:
  - {name: late, python: "steps.py:late"}
  - {name: named, sql: SELECT carrier FROM late}
  - name: split
    python: steps.py:split
    result: one
sinks:
  - {topic: out, from: named}
"""
STEPS = "def late(flights):\n    return flights\n\ndef split(named):\n    return {'one': named}\n"


def mixed(directory: Path, old: str = "", new: str = "", steps: str = STEPS) -> Pipeline:
    (directory / "steps.py").write_text(steps)
    path = directory / "mixed.yaml"
    assert old in OF_YAML
    path.write_text(OF_YAML.replace(old, new, 1) if old else OF_YAML)
    return read_pipeline(path)


def test_steps_of_yaml_may_be_functions_of_a_file_beside_it(tmp_path: Path) -> None:
    late, named, split = mixed(tmp_path).steps
    assert late.python is not None
    assert split.python is not None
    assert (late.python.path, late.python.line, late.reads) == (tmp_path / "steps.py", 1, ("flights",))
    assert (named.reads, split.reads, split.python.result) == (("late",), ("named",), "one")


def test_functions_are_beside_the_file_that_a_link_of_yaml_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    mixed(tmp_path / "real")
    (tmp_path / "mixed.yaml").symlink_to("real/mixed.yaml")
    (tmp_path / "steps.py").write_text("this is another file")
    late = read_pipeline(tmp_path / "mixed.yaml").steps[0]
    assert late.python is not None
    assert late.python.path == tmp_path / "real/steps.py"


@pytest.mark.parametrize(
    ("old", "new", "line", "told"),
    [
        ("python: steps.py:split", "python: steps", 8, 'python "steps" must be FILE.py:FUNCTION'),
        ("python: steps.py:split", "python: none.py:split", 8, "none.py does not exist"),
        ("python: steps.py:split", "python: steps.py:spilt", 8, 'no function spilt of its own; did you mean "split"?'),
        ("python: steps.py:split", "sql: SELECT 1 AS a FROM late", 9, "result is for steps with `python`"),
        ("result: one", "sql: SELECT 1 AS a FROM late", 9, 'by "python", a function, or by "sql"'),
        ("result: one", "result: two", 9, '"two" is not what split returns; it returns: one'),
        ("sql: SELECT carrier FROM late", "watermark: {column: a, delay: 1 hour}", 6, 'the key "sql" is missing'),
    ],
)
def test_a_faulty_reference_is_told_at_its_line(tmp_path: Path, old: str, new: str, line: int, told: str) -> None:
    with pytest.raises(PipelineError) as caught:
        mixed(tmp_path, old, new)
    assert told in caught.value.message
    assert (caught.value.path, caught.value.line) == (tmp_path / "mixed.yaml", line)


def test_a_parameter_that_is_no_view_is_told_in_the_file_of_python(tmp_path: Path) -> None:
    with pytest.raises(
        PipelineError, match=r'late reads "flight", which is neither .* did you mean "flights"'
    ) as caught:
        mixed(tmp_path, steps=STEPS.replace("late(flights)", "late(flight)"))
    assert (caught.value.path, caught.value.line) == (tmp_path / "steps.py", 1)
