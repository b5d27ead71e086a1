"""Files of Python that are run: each once, what they raise at its line, and what goes to other processes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines.definition import Pipeline, PipelineError
from barnabas.pipelines.python_functions import forget_functions, load_functions
from barnabas.pipelines.reading import read_pipeline

HEAD = """\
from barnabas.pipelines import pipeline
{}
@pipeline(sources={{"flights": {{"topic": "flights", "schema": "id INT"}}}}, sinks=[{{"topic": "out"}}])
def passed(flights):
    return flights
"""


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    forget_functions()


def made(directory: Path, lines: str = "", name: str = "passed.py") -> Pipeline:
    path = directory / name
    path.write_text(HEAD.format(lines))
    return read_pipeline(path)


def function_of(pipeline: Pipeline) -> Any:
    (code,) = [step.python for step in pipeline.steps if step.python is not None]
    modules = [module for name, module in sys.modules.items() if name.startswith("_barnabas_pipeline_")]
    (module,) = [each for each in modules if each.__file__ == str(code.path.resolve())]
    return getattr(module, code.function)


def test_a_file_is_run_once_however_often_it_is_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = made(tmp_path, "print('run')")
    load_functions(first)
    load_functions(read_pipeline(first.path))
    # What a command prints may be JSON for another program.
    assert capfd.readouterr() == ("", "run\n")
    load_functions(made(tmp_path, "print('again')"))
    assert capfd.readouterr().err == "again\n"


@pytest.mark.parametrize(
    ("lines", "line", "told"),
    [
        ("\nimport no_such_package", 3, "ModuleNotFoundError: No module named 'no_such_package'"),
        ("\nraise SystemExit(0)", 3, "the file ends the process"),
        ("def fail():\n    return 1 / 0\nfail()", 3, "ZeroDivisionError: division by zero"),
        ("from pyspark.sql import functions as F\nCOLUMN = F.col('id')", 3, "move this into the function"),
    ],
)
def test_what_a_file_raises_is_told_at_its_line(tmp_path: Path, lines: str, line: int, told: str) -> None:
    pipeline = made(tmp_path, lines)
    for _ in range(2):  # a file that failed is not taken for one that was run
        with pytest.raises(PipelineError) as caught:
            load_functions(pipeline)
        assert told in str(caught.value)
        assert (caught.value.path, caught.value.line) == (pipeline.path, line)


@pytest.mark.parametrize(("text", "line"), [("x = 1\ny = nothing\n", 2), ("x = 1\n\ny = (\n", 3)])
def test_what_a_module_beside_it_raises_is_told_there(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "beside_it.py").write_text(text)
    with pytest.raises(PipelineError) as caught:
        load_functions(made(tmp_path, "import beside_it"))
    assert (caught.value.path, caught.value.line) == (tmp_path / "beside_it.py", line)


def test_an_argument_that_is_changed_while_the_file_runs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "passed.py"
    text = HEAD.format('SINKS = [{"topic": "out"}]\nSINKS.append({"topic": "more"})')
    path.write_text(text.replace('sinks=[{"topic": "out"}]', "sinks=SINKS"))
    with pytest.raises(PipelineError, match="the argument sinks of @pipeline is another once the file has run"):
        load_functions(read_pipeline(path))


def test_a_name_that_is_no_function_any_more_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "passed.py"
    path.write_text(HEAD.format("") + "\npassed = 1\n")
    with pytest.raises(PipelineError, match="passed is no function once the file has run, but a int"):
        load_functions(read_pipeline(path))


def test_other_processes_need_neither_the_file_nor_the_modules_beside_it(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    (tmp_path / "beside_it.py").write_text("def double(number):\n    return 2 * number\n")
    pipeline = made(
        tmp_path, "import beside_it\n\ndef twice(number):\n    return beside_it.double(number) + OFFSET\n\nOFFSET = 1\n"
    )
    load_functions(pipeline)
    sent = cloudpickle.dumps(function_of(pipeline).__globals__["twice"])
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(20))"
    done = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=True)
    assert done.stdout == b"41\n"
    assert pickle.loads(sent)(1) == 3


def test_files_of_two_directories_have_each_their_own_module_of_one_name(tmp_path: Path) -> None:
    found = []
    for number in (1, 2):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "beside_it.py").write_text(f"NUMBER = {number}\n")
        pipeline = made(directory, "import beside_it\nNUMBER = beside_it.NUMBER")
        load_functions(pipeline)
        found.append(function_of(pipeline).__globals__["NUMBER"])
    assert found == [1, 2]
    assert str(tmp_path / "1") not in sys.path


def test_what_is_forgotten_is_run_again_with_the_modules_beside_it(tmp_path: Path) -> None:
    pipeline = made(tmp_path, "import beside_it\nNUMBER = beside_it.NUMBER")
    for number in (1, 2):
        (tmp_path / "beside_it.py").write_text(f"NUMBER = {number}\n")
        forget_functions()
        load_functions(pipeline)
        assert function_of(pipeline).__globals__["NUMBER"] == number
