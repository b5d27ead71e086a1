"""Pipelines in Python, and functions of Python in pipelines, as the text of their files says; nothing is run here.

The arguments of `@pipeline` are literals, or names of literals at the top of the file. They become the nodes that a
file of YAML would be, each with its line, so that both are read, and refused, by the same reader.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.pipelines.file_parts import directory_of
from barnabas.pipelines.python_code import PythonCode, TooManyFilesError, parts_of_code
from barnabas.pipelines.python_literals import (
    WRITTEN_OUT,
    LiteralNodes,
    PythonModule,
    is_kind,
    line_of,
    read_module,
    text_of,
)
from barnabas.pipelines.yaml_positions import VALUES_MAX, Document, Section, Text, nearest

if TYPE_CHECKING:
    import yaml

SUFFIX: Final = ".py"
_OF_STEP: Final = ("revision",)
_DECORATOR: Final = "pipeline"
_PACKAGE: Final = "barnabas.pipelines"


def is_python(path: Path) -> bool:
    """Whether a pipeline's file is of Python."""
    return path.suffix == SUFFIX


def python_document(path: Path, keys: tuple[str, ...]) -> Section:
    """The pipeline of a file of Python as the mapping that it would be in YAML: its function is the last step.

    Raises PipelineMissingError without the file, PipelineError for the first thing in it that is wrong.
    """
    module = read_module(path)
    function, call = _decorated(module)
    try:
        return _document(module, function, call, keys)
    except RecursionError:
        raise module.error("lists or dicts are nested too deeply for a pipeline", call.lineno) from None


def _document(module: PythonModule, function: _Function, call: ast.Call, keys: tuple[str, ...]) -> Section:
    path, own = module.path, f"{module.path.name}:{function.name}"
    values = LiteralNodes(module)
    given = _arguments(module, call, values)
    document = Document(path, module.content, iter(range(VALUES_MAX)), is_python=True)
    # Unknown keys are refused here, before keys are added that nobody wrote.
    written = Section(document, values.mapping(list(given.items()), call), "", (*keys, *_OF_STEP))
    written.once(path.resolve(), lambda: module)
    if "name" not in given:
        given["name"] = (values.text("name", function), values.text(function.name, function))
    steps = given.pop("steps", (values.text("steps", function), values.sequence([], function)))
    _give_views(given, function, values)
    revision = given.pop("revision", None)
    added = [
        values.mapping(
            [
                ("name", (values.text("name", function), name)),
                ("python", (values.text("python", function), values.text(own, function))),
                *([] if result is None else [("result", (values.text("result", function), result))]),
                *([] if revision is None else [("revision", revision)]),
            ],
            function,
        )
        for name, result in _results(given, steps[1], function, values)
    ]
    if not is_kind(steps[1], "seq"):
        raise module.error("steps must be a list, each a dict with name and sql", line_of(steps[1]))
    given["steps"] = (steps[0], values.sequence([*steps[1].value, *added], steps[1]))
    return Section(document, values.mapping(list(given.items()), call), "", keys)


def python_code(section: Section) -> PythonCode:
    """The function that the step of a section names, `FILE.py:FUNCTION`. Raises PipelineError for what is none."""
    text, path = section.text("python"), section.path
    name, _, function_name = text.value.rpartition(":")
    if not name.endswith(SUFFIX) or not function_name.isidentifier():
        message = f'python "{text.value}" must be FILE.py:FUNCTION, a file beside this one and a function in it'
        raise section.error(message, text.line)
    is_own = section.is_python and name == path.name  # a link's file may have any name
    file = path.resolve() if is_own else directory_of(section, path, "python", replace(text, value=name))
    if not file.is_file():
        raise section.error(f"python {file} does not exist: it is the file of the function {function_name}", text.line)
    named = path if file == path.resolve() else path.parent / name
    module = section.once(file, lambda: read_module(named if named.resolve() == file else file))
    functions = {each.name: each for each in module.tree.body if isinstance(each, _FUNCTIONS)}
    function = functions.get(function_name)
    if function is None:
        hint = nearest(function_name, functions) or f"; there are: {', '.join(functions) or 'none'}"
        raise section.error(f"python {name} has no function {function_name} of its own{hint}", text.line)
    parameters = _parameters(module, function)
    result = section.text("result") if "result" in section else None
    _refuse_other_results(module, section, function, result)
    words = section.once((file, _DECORATOR), lambda: _words_of(module))
    decorators = [each for each in function.decorator_list if _is_pipeline(words, each)]
    decorator = decorators[0] if decorators else None
    arguments = None
    if isinstance(decorator, ast.Call) and section.is_python:
        arguments = section.once((file, "arguments"), lambda: _plain_arguments(module, decorator))
    try:
        parts = section.once(
            (file, function.name), lambda: parts_of_code(module.tree, function.name, file.parent, decorator)
        )
    except TooManyFilesError as error:
        message = f"{file.name} {error}, more than are compared with those of the last run: install them as a package"
        raise section.error(message, text.line) from None
    return PythonCode(
        path=module.path,
        function=function.name,
        line=function.lineno,
        parameters=parameters,
        result=None if result is None else result.value,
        revision=section.text("revision", also=("int",)).value if "revision" in section else "",
        content=module.content,
        parts=tuple(parts.items()),
        arguments=arguments,
    )


_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Given = dict[str, "tuple[yaml.Node, yaml.Node]"]


def _decorated(module: PythonModule) -> tuple[_Function, ast.Call]:
    """The function under `@pipeline`, and the decorator."""
    words = _words_of(module)
    found = [
        (each, decorator)
        for each in module.tree.body
        if isinstance(each, _FUNCTIONS)
        for decorator in each.decorator_list
        if _is_pipeline(words, decorator)
    ]
    if not found:
        message = "no function at the top of this file has @pipeline(sources=..., sinks=...)"
        raise module.error(f"{message}; it comes from `from {_PACKAGE} import {_DECORATOR}`", 1)
    if len(found) > 1:
        first, second = found[0][0], found[1][0]
        message = f"{second.name} is a second pipeline in this file, after {first.name} in line {first.lineno}"
        raise module.error(f"{message}: give it a file of its own", second.lineno)
    function, decorator = found[0]
    names = [
        each for each in module.tree.body if isinstance(each, (*_FUNCTIONS, ast.ClassDef)) if each.name == function.name
    ]
    if names[-1] is not function:
        message = f"{function.name} is defined again here, so the pipeline in line {function.lineno} is there no longer"
        raise module.error(f"{message}: name one of them otherwise", names[-1].lineno)
    if not isinstance(decorator, ast.Call):
        raise module.error("@pipeline needs its arguments: @pipeline(sources=..., sinks=...)", decorator.lineno)
    return function, decorator


def _words_of(module: PythonModule) -> frozenset[str]:
    """What our decorator is called in a file, by what that imports."""
    words: set[str] = set()
    for statement in module.tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module in {_PACKAGE, f"{_PACKAGE}.decorator"}:
            words |= {each.asname or each.name for each in statement.names if each.name == _DECORATOR}
        elif isinstance(statement, ast.ImportFrom) and statement.module == _PACKAGE.partition(".")[0]:
            words |= {
                f"{each.asname or each.name}.{_DECORATOR}" for each in statement.names if each.name == "pipelines"
            }
        elif isinstance(statement, ast.Import):
            words |= {f"{each.asname or each.name}.{_DECORATOR}" for each in statement.names if each.name == _PACKAGE}
    return frozenset(words)


def _is_pipeline(words: frozenset[str], decorator: ast.expr) -> bool:
    """Whether that is our decorator."""
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    names: list[str] = []
    while isinstance(target, ast.Attribute):
        names.append(target.attr)
        target = target.value
    return isinstance(target, ast.Name) and ".".join([target.id, *reversed(names)]) in words


def _arguments(module: PythonModule, call: ast.Call, values: LiteralNodes) -> _Given:
    given: _Given = {}
    if call.args:
        raise module.error("the arguments of @pipeline have names, as sources=...", call.args[0].lineno)
    for keyword in call.keywords:
        if keyword.arg is None:
            raise module.error(f"an argument of @pipeline {WRITTEN_OUT}", keyword.value.lineno)
        if isinstance(keyword.value, ast.Constant) and keyword.value.value is None:
            continue
        given[keyword.arg] = (values.text(keyword.arg, keyword), values.node(keyword.value, keyword.arg))
    return given


def _plain_arguments(module: PythonModule, call: ast.Call) -> Mapping[str, Any]:
    values = LiteralNodes(module)
    return {each.arg: values.plain(each.value) for each in call.keywords if each.arg}


def _give_views(given: _Given, function: _Function, values: LiteralNodes) -> None:
    """Sinks that do not say from where are from the function."""
    sinks = given.get("sinks")
    if sinks is None or not is_kind(sinks[1], "seq"):
        return
    for sink in sinks[1].value:
        if is_kind(sink, "map") and all(key.value != "from" for key, _ in sink.value):
            sink.value.append((values.text("from", sink), values.text(function.name, sink)))


def _results(
    given: _Given, steps: yaml.Node, function: _Function, values: LiteralNodes
) -> Iterator[tuple[yaml.Node, yaml.Node | None]]:
    """The names of the views that the function makes, and where it is a dict of several, of what is in it."""
    sources = given["sources"][1] if "sources" in given else None
    known = (
        {key.value.lower() for key, _ in sources.value} if sources is not None and is_kind(sources, "map") else set()
    )
    for step in steps.value if is_kind(steps, "seq") else ():
        pairs = step.value if is_kind(step, "map") else ()
        known |= {value.value.lower() for key, value in pairs if key.value == "name" and is_kind(value, "str")}
    found: dict[str, yaml.Node] = {}
    for sink in given["sinks"][1].value if "sinks" in given and is_kind(given["sinks"][1], "seq") else ():
        for key, value in sink.value if is_kind(sink, "map") else ():
            if key.value == "from" and is_kind(value, "str") and value.value.lower() not in known:
                found.setdefault(value.value, value)
    if not found or list(found) == [function.name]:
        yield values.text(function.name, function), None
        return
    for node in found.values():
        yield values.text(node.value, function), node


def _parameters(module: PythonModule, function: _Function) -> tuple[str, ...]:
    """Raises PipelineError for a function that cannot be called with DataFrames by their names."""
    arguments = function.args
    for each in (arguments.vararg, arguments.kwarg):
        if each is not None:
            message = f"{function.name} takes any number of arguments (*{each.arg})"
            raise module.error(f"{message}: name each source and step that it needs", each.lineno)
    named = [*arguments.args, *arguments.kwonlyargs]
    if isinstance(function, ast.AsyncFunctionDef) or arguments.posonlyargs:
        what = "is `async`" if isinstance(function, ast.AsyncFunctionDef) else 'has parameters without names ("/")'
        raise module.error(f"{function.name} {what}: make it a plain function", function.lineno)
    for default in (*arguments.defaults, *arguments.kw_defaults):
        if default is not None:
            message = f"a parameter of {function.name} has a default, but each is a source or an earlier step"
            raise module.error(f"{message}: make a name at the top of the file of it", default.lineno)
    if not named:
        message = f"{function.name} takes no DataFrame: its parameters are the names of sources and earlier steps"
        raise module.error(message, function.lineno)
    return tuple(each.arg for each in named)


def _refuse_other_results(module: PythonModule, section: Section, function: _Function, result: Text | None) -> None:
    """Where the text says what the function returns."""
    returned = [each.value for each in _own_returns(function) if each.value is not None]
    if not returned:
        raise module.error(f"{function.name} returns nothing: it must return a DataFrame", function.lineno)
    if not all(isinstance(each, ast.Dict) for each in returned):
        return
    names = [text_of(key) for each in returned if isinstance(each, ast.Dict) for key in each.keys]
    told = list(dict.fromkeys(name for name in names if name is not None))
    if result is None:
        message = f"{function.name} returns a dict of DataFrames ({', '.join(told) or 'none'})"
        remedy = (
            "say in `from` of each sink which it writes" if section.is_python else "say in `result` which is this step"
        )
        raise module.error(f"{message}: {remedy}", returned[0].lineno)
    if None not in names and result.value not in told:
        hint = nearest(result.value, told) or f"; it returns: {', '.join(told)}"
        raise section.error(f'"{result.value}" is not what {function.name} returns{hint}', result.line)


def _own_returns(function: ast.AST) -> Iterator[ast.Return]:
    """Those of the function itself, in the order of the text, and not of functions inside it."""
    waiting = [*ast.iter_child_nodes(function)][::-1]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting += [*ast.iter_child_nodes(node)][::-1]
