"""Runs the files of Python that a pipeline names, each once, and calls its functions with DataFrames.

What is run is the text that was read when the pipeline was checked. Functions and classes of these files, and of
modules beside them, go to Spark's workers as they are (pickled by value): there are no such files on other machines.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import sys
import sysconfig
import traceback
import types
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.pipelines.decorator import ARGUMENTS_ATTRIBUTE
from barnabas.pipelines.definition import RECORD_COLUMNS, Pipeline, PipelineError, Step
from barnabas.pipelines.python_code import PythonCode
from barnabas.pipelines.spark_internals import has_python_state, is_of_session
from barnabas.pipelines.spark_messages import spark_message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MODULE_PREFIX: Final = "_barnabas_pipeline_"
_BESIDE: Final = "__barnabas_beside__"
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_DIGEST_DIGITS: Final = 16
_STATE_API: Final = "pyspark.sql.streaming.proto.StateMessage_pb2"


def load_functions(pipeline: Pipeline) -> None:
    """Runs the files of the pipeline's functions, each once in this process, whatever asks for it how often.

    Raises PipelineError, at the line of the file, for what they raise, and for functions that are not what their text
    says. What they print goes to standard error.
    """
    for step in pipeline.steps:
        if step.python is not None:
            _function(step.python)


def forget_functions() -> None:
    """Has the files be run again, with the modules beside them, when they are needed next: they may be others now."""
    for name in [each for each in sys.modules if each.startswith(_MODULE_PREFIX)]:
        _forget(name)


class PythonFrames:
    """The DataFrames that the functions of a pipeline make of the views of a session; each function is called once."""

    def __init__(self, pipeline: Pipeline, session: SparkSession) -> None:
        self._pipeline = pipeline
        self._session = session
        self._returned: dict[tuple[Path, str], object] = {}

    def frame(self, step: Step, code: PythonCode) -> DataFrame:
        """What the function of a step returns for it. Raises PipelineError at the line of the function's file."""
        place = code.path, code.function
        if place not in self._returned:
            self._returned[place] = self._called(code)
        returned = self._returned[place]
        if code.result is not None:
            returned = self._entry(step, code, returned)
        return self._checked(code, returned)

    def _called(self, code: PythonCode) -> object:
        from pyspark.errors import PySparkException

        function = _function(code)
        frames = {name: self._given(name) for name in code.parameters}
        try:
            with _running(code):
                return function(**frames)
        except PySparkException as error:
            raise _at(error, code, f"{code.function}: {spark_message(error)}") from error
        except SystemExit as error:
            raise _at(error, code, f"{code.function} ends the process") from error
        except Exception as error:
            raise _at(error, code, f"{code.function}: {_words(error)}") from error

    def _given(self, name: str) -> DataFrame:
        """A view without the columns of the record, as `*` has it in SQL."""
        frame = self._session.table(name)
        return frame if self._pipeline.source(name) is None else frame.drop(*RECORD_COLUMNS)

    def _entry(self, step: Step, code: PythonCode, returned: object) -> object:
        if not isinstance(returned, Mapping):
            message = f"{code.function} returned {_kind(returned)}, not a dict, of which {step.name} would be an entry"
            raise PipelineError(message, path=code.path, line=code.line)
        if code.result not in returned:
            have = ", ".join(map(str, returned)) or "none"
            message = f'{code.function} returned no DataFrame "{code.result}"; there are: {have}'
            raise PipelineError(message, path=code.path, line=code.line)
        return returned[code.result]

    def _checked(self, code: PythonCode, returned: object) -> DataFrame:
        from pyspark.sql import DataFrame

        fault = None
        if not isinstance(returned, DataFrame):
            fault = f"returned {_kind(returned)}, not a DataFrame"
        elif not is_of_session(self._session, returned):
            fault = "returned a DataFrame of another session: make it of those that it is given"
        elif not returned.isStreaming and any(self._given(name).isStreaming for name in code.parameters):
            fault = "returned a DataFrame that reads none of the streams that it is given"
        if fault is not None or not isinstance(returned, DataFrame):
            raise PipelineError(f"{code.function} {fault}", path=code.path, line=code.line)
        if has_python_state(returned):
            _require_state_api(code)
        return returned


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _require_state_api(code: PythonCode) -> None:
    """Spark's workers speak with the state in Protocol Buffers, and would fail at the first batch."""
    try:
        importlib.import_module(_STATE_API)
    except Exception as error:
        message = f"{code.function} keeps state by transformWithStateInPandas, which needs protobuf ({error})"
        remedy = "pip install 'barnabas[stateful]'"
        raise PipelineError(f"{message}: {remedy}", path=code.path, line=code.line) from error


def _function(code: PythonCode) -> Any:
    function = getattr(_module(code), code.function, None)
    if not callable(function):
        message = f"{code.function} is no function once the file has run, but {_kind(function)}"
        raise PipelineError(message, path=code.path, line=code.line)
    if code.arguments is not None:
        given = getattr(function, ARGUMENTS_ATTRIBUTE, code.arguments)
        told = {key: value for key, value in code.arguments.items() if value is not None}
        for key, value in told.items():
            if given.get(key) != value:
                message = f"the argument {key} of @pipeline is another once the file has run, not what is written there"
                raise PipelineError(message, path=code.path, line=code.line)
    return function


def _module(code: PythonCode) -> types.ModuleType:
    """The module of a file's text; that of its former text is forgotten, with the modules beside it."""
    path = code.path.resolve()
    prefix = f"{_MODULE_PREFIX}{_digest(str(path))}_"
    name = prefix + _digest(code.content)
    known = sys.modules.get(name)
    if known is not None:
        return known
    for other in [each for each in sys.modules if each.startswith(_MODULE_PREFIX)]:
        _forget(other, keeps=not other.startswith(prefix))
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    before = set(sys.modules)
    try:
        _run(code, module)
    except BaseException:
        for each in (name, *_beside(before, path.parent)):
            sys.modules.pop(each, None)
        raise
    beside = _beside(before, path.parent)
    setattr(module, _BESIDE, beside)
    _send_by_value(module, *(sys.modules[each] for each in beside))
    return module


def _beside(before: Collection[str], directory: Path) -> tuple[str, ...]:
    """The modules beside a file that are there now, and were not before."""
    return tuple(name for name, each in list(sys.modules.items()) if name not in before and _is_beside(each, directory))


def _forget(name: str, *, keeps: bool = False) -> None:
    """Of a module that is kept only those beside it: another file may have others of the same names."""
    for beside in getattr(sys.modules[name], _BESIDE, ()):
        sys.modules.pop(beside, None)
    if not keeps:
        del sys.modules[name]


def _run(code: PythonCode, module: types.ModuleType) -> None:
    from pyspark import SparkContext

    had_spark = SparkContext._active_spark_context is not None  # noqa: SLF001
    try:
        with _running(code):
            # compile() warns of escapes that Python does not know, as an import would.
            exec(compile(code.content, str(code.path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        hint = ""
        if not had_spark and isinstance(error, Exception) and _is_of_spark(error):
            hint = "; Spark is not there yet when the file is run: move this into the function"
        what = "the file ends the process" if isinstance(error, SystemExit) else _words(error)
        raise _at(error, code, what + hint) from error
    started = SparkContext._active_spark_context  # noqa: SLF001
    if started is not None and not had_spark:
        started.stop()
        message = "the file starts a Spark of its own, but the pipeline has one: take that out"
        raise PipelineError(message, path=code.path, line=1)


def _is_of_spark(error: Exception) -> bool:
    """Whether pyspark has raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "pyspark" in Path(frames[-1].filename).parts


@contextlib.contextmanager
def _running(code: PythonCode) -> Iterator[None]:
    """Modules beside the file can be imported, and what is printed is not taken for what the command says."""
    directory = str(code.path.resolve().parent)
    writes = sys.dont_write_bytecode
    # Compiled files are known by the second: of two changes in one, `dev` would show the first.
    sys.dont_write_bytecode = True
    sys.path.append(directory)
    importlib.invalidate_caches()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.dont_write_bytecode = writes
        with contextlib.suppress(ValueError):
            sys.path.remove(directory)


def _is_beside(module: types.ModuleType, directory: Path) -> bool:
    """Whether a module is of a file of the user's beside the pipeline, and not installed, as in a .venv there."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return False
    return _is_users(Path(file).resolve(), directory)


def _is_users(path: Path, directory: Path) -> bool:
    """Whether a file below the directory is the user's. In somebody's home directory Python itself may be, too."""
    if not path.is_relative_to(directory) or _INSTALLED.intersection(path.relative_to(directory).parts):
        return False
    others = (other for other in _directories_of_others() if not directory.is_relative_to(other))
    return not any(path.is_relative_to(other) for other in others)


def _directories_of_others() -> list[Path]:
    """Python's library, Spark's and ours."""
    import pyspark

    import barnabas

    library = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    return [*library, *(Path(str(each.__file__)).resolve().parent for each in (pyspark, barnabas))]


def _send_by_value(*modules: types.ModuleType) -> None:
    from pyspark.cloudpickle import register_pickle_by_value

    for module in modules:
        if sys.modules.get(module.__name__) is module:  # not one that the user's code has made and named otherwise
            register_pickle_by_value(module)


def _at(error: BaseException, code: PythonCode, message: str) -> PipelineError:
    """An error at the innermost line of the user's files that it comes from."""
    path, line = code.path, code.line
    directory, trace = code.path.resolve().parent, error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file == code.path:
            path, line = code.path, trace.tb_lineno
        elif file.is_absolute() and _is_users(file, directory):
            path, line = code.path.parent / file.relative_to(directory), trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename is not None and Path(error.filename).is_file():
        path, line = Path(error.filename), error.lineno or 1
    return PipelineError(message, path=path, line=line)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]
