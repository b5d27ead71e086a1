"""Files of Python that are run: each once, what they raise at its line, and what goes to other processes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from barnabas.pipelines.definition import Pipeline, PipelineError
from barnabas.pipelines.python_functions import PythonFrames, forget_functions, load_functions
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
        ("import ast\nast.literal_eval('1 +')", 3, "SyntaxError: "),
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


def test_a_module_beside_a_file_that_failed_is_run_again(tmp_path: Path) -> None:
    """`dev` shows what the user has mended there."""
    for number in (1, 2):
        (tmp_path / "beside_it.py").write_text(f"NUMBER = {number}\n")
        with pytest.raises(PipelineError, match=f"ValueError: {number}"):
            load_functions(made(tmp_path, "import beside_it\nraise ValueError(beside_it.NUMBER)"))
        assert "beside_it" not in sys.modules


def test_python_below_the_directory_of_the_file_is_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a home directory: its modules would be doubled, and each error told in them."""
    library = tmp_path / ".python/lib"
    library.mkdir(parents=True)
    (library / "of_python.py").write_text("def fail():\n    raise ValueError('no')\n")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(library))
    monkeypatch.syspath_prepend(library)
    load_functions(made(tmp_path, "import of_python"))
    forget_functions()
    assert sys.modules.pop("of_python").__file__ == str(library / "of_python.py")
    with pytest.raises(PipelineError, match="ValueError: no") as caught:
        load_functions(made(tmp_path, "import of_python\nof_python.fail()"))
    assert (caught.value.path, caught.value.line) == (tmp_path / "passed.py", 3)
    del sys.modules["of_python"]


def test_a_module_that_a_file_makes_under_another_name_is_none_beside_it(tmp_path: Path) -> None:
    lines = "import sys, types\nmade = types.ModuleType('made')\nmade.__file__ = __file__\nsys.modules['other'] = made"
    load_functions(made(tmp_path, lines))
    forget_functions()
    assert "other" not in sys.modules


def test_a_function_that_ends_the_process_is_told_at_its_line(tmp_path: Path) -> None:
    """Else a run would end with status 0, and say nothing."""
    made(tmp_path)
    path = tmp_path / "passed.py"
    path.write_text(path.read_text().replace("    return flights", "    raise SystemExit(0)\n    return flights"))
    pipeline = read_pipeline(path)
    (step,) = pipeline.steps
    assert step.python is not None
    with pytest.raises(PipelineError, match="passed ends the process") as caught:
        PythonFrames(pipeline, MagicMock()).frame(step, step.python)
    assert (caught.value.path, caught.value.line) == (path, 5)
