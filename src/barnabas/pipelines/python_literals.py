"""A file of Python as text: its syntax tree, and literals in it as the nodes that a file of YAML would have."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.yaml_positions import LINE_STARTS, TAG_PREFIX, VALUES_MAX, Form, read_text

if TYPE_CHECKING:
    import yaml

WRITTEN_OUT: Final = (
    "must be written out, so that the pipeline is known without running it: text, a number, True, False, a list, a "
    "dict, or the name of such a value that stands once at the top of this file"
)
_INT_BITS_MAX: Final = 128
_FORM: Final = Form(
    "a file of Python for pipelines", "", "it has a function under @pipeline (docs/pipelines.md, Pipelines in Python)"
)


@dataclass(frozen=True, slots=True)
class PythonModule:
    """A file of Python."""

    path: Path
    content: str
    tree: ast.Module

    def error(self, message: str, line: int) -> PipelineError:
        """An error at a line of the file, to be raised."""
        return PipelineError(message, path=self.path, line=line)


def read_module(path: Path) -> PythonModule:
    """Raises PipelineMissingError without the file, PipelineError for one that is not Python."""
    content = read_text(path, _FORM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are told when the file is run
        try:
            return PythonModule(path, content, ast.parse(content))
        except SyntaxError as error:
            raise PipelineError(f"this is not Python: {error.msg}", path=path, line=error.lineno or 1) from None
        except ValueError as error:
            raise PipelineError(f"this is not Python: {error}", path=path, line=1) from None
        except (MemoryError, RecursionError):
            raise PipelineError("this is not Python: it is nested too deeply", path=path, line=1) from None


class LiteralNodes:
    """Literals of a file of Python as nodes of YAML, and as what they are."""

    def __init__(self, module: PythonModule) -> None:
        self._module = module
        self._constants = _constants(module.tree)
        self._following: list[str] = []
        self._left = VALUES_MAX

    def text(self, value: str, at: Any) -> yaml.ScalarNode:
        """A text that stands where `at` does, a node of either kind."""
        return self._scalar("str", value, at)

    def mapping(self, pairs: list[Any], at: Any) -> yaml.MappingNode:
        """Of pairs of nodes, or of names and such pairs."""
        import yaml

        nodes = [each[1] if isinstance(each[0], str) else each for each in pairs]
        return yaml.MappingNode(TAG_PREFIX + "map", nodes, *_marks(at))

    def sequence(self, nodes: list[yaml.Node], at: Any) -> yaml.SequenceNode:
        """A list."""
        import yaml

        return yaml.SequenceNode(TAG_PREFIX + "seq", nodes, *_marks(at))

    def plain(self, value: ast.expr) -> Any:
        """What a literal is, once `node` has taken it."""
        value = self._named(value)
        if isinstance(value, ast.Dict):
            found: dict[Any, Any] = {}
            for key, each in zip(value.keys, value.values, strict=True):
                found.update(self.plain(each) if key is None else {self.plain(key): self.plain(each)})
            return found
        if isinstance(value, ast.Call):
            return {each.arg: self.plain(each.value) for each in value.keywords}
        if isinstance(value, ast.List | ast.Tuple):
            items = [self.plain(each) for each in value.elts]
            return items if isinstance(value, ast.List) else tuple(items)
        return ast.literal_eval(value)

    def node(self, value: ast.expr, place: str) -> yaml.Node:
        """Raises PipelineError for what is no literal; `place` is what messages call it."""
        self._left -= 1
        if self._left < 0:
            raise self._module.error(f"there are more than {VALUES_MAX} values: divide this file", value.lineno)
        if isinstance(value, ast.Name):
            return self._follow(value, place)
        if isinstance(value, ast.Dict):
            return self.mapping(self._pairs(value, place), value)
        if isinstance(value, ast.Call) and _is_dict(value):
            pairs = [
                (self.text(str(each.arg), each), self.node(each.value, f"{place}.{each.arg}"))
                for each in value.keywords
            ]
            return self.mapping(pairs, value)
        if isinstance(value, ast.List | ast.Tuple):
            items = [self.node(each, f"{place}[{number}]") for number, each in enumerate(value.elts, start=1)]
            return self.sequence(items, value)
        negative = isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub)
        constant = value.operand if isinstance(value, ast.UnaryOp) and negative else value
        if isinstance(constant, ast.Constant):
            found = constant.value
            if found is None and not negative:
                return self._scalar("null", "null", value)
            if isinstance(found, bool) and not negative:
                return self._scalar("bool", str(found).lower(), value)
            if isinstance(found, float) or (type(found) is int and found.bit_length() <= _INT_BITS_MAX):
                return self._scalar("int" if isinstance(found, int) else "float", f"{'-' * negative}{found}", value)
            if isinstance(found, str) and not negative and _is_text(found):
                return self._scalar("str", found, value, _line_starts(constant))
        raise self._module.error(f"{place} {WRITTEN_OUT}", value.lineno)

    def _follow(self, name: ast.Name, place: str) -> yaml.Node:
        """The value of a name at the top of the file."""
        value = self._constants.get(name.id)
        if value is None or name.id in self._following:
            raise self._module.error(f"{place}, {name.id}, {WRITTEN_OUT}", name.lineno)
        self._following.append(name.id)
        found = self.node(value, place)
        self._following.pop()
        return found

    def _named(self, value: ast.expr) -> ast.expr:
        followed: set[str] = set()
        while isinstance(value, ast.Name) and value.id in self._constants and value.id not in followed:
            followed.add(value.id)
            value = self._constants[value.id]
        return value

    def _pairs(self, value: ast.Dict, place: str) -> list[tuple[yaml.Node, yaml.Node]]:
        """Keys and values; those behind `**` give way to those that come later."""
        found: list[tuple[Any, Any, bool]] = []
        for key, each in zip(value.keys, value.values, strict=True):
            if key is None:
                inner = self.node(each, place)
                if not is_kind(inner, "map"):
                    raise self._module.error(f"{place} {WRITTEN_OUT}", each.lineno)
                added = [(*pair, True) for pair in inner.value]
            else:
                name = text_of(self._named(key))
                if name is None:
                    raise self._module.error(f"a key of {place} {WRITTEN_OUT}", key.lineno)
                added = [(self.text(name, key), self.node(each, f"{place}.{name}"), False)]
            names = {new.value for new, _, _ in added}
            found = [(*old, gives_way) for *old, gives_way in found if not gives_way or old[0].value not in names]
            found += added
        return [(key, each) for key, each, _ in found]

    def _scalar(self, kind: str, value: str, at: Any, starts: tuple[tuple[int, int], ...] = ()) -> yaml.ScalarNode:
        import yaml

        node = yaml.ScalarNode(TAG_PREFIX + kind, value, *_marks(at))
        setattr(node, LINE_STARTS, starts or ((0, line_of(at)),))
        return node


def text_of(node: ast.expr | None) -> str | None:
    """The text of a literal, None where it is none."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_text(text: str) -> bool:
    """Whether it has no half of a surrogate pair, which no file can have."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _is_dict(call: ast.Call) -> bool:
    """`dict(key=value)`."""
    is_named = isinstance(call.func, ast.Name) and call.func.id == "dict"
    return is_named and not call.args and all(each.arg is not None for each in call.keywords)


def _constants(tree: ast.Module) -> Mapping[str, ast.expr]:
    """The names at the top of a file that are given a value once, and by no function."""
    values: dict[str, ast.expr] = {}
    times: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            times.update(dict.fromkeys(node.names, 2))
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            times[statement.name] = 2
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
                times[node.id] = times.get(node.id, 0) + 1
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        else:
            continue
        if isinstance(target, ast.Name):
            values[target.id] = value
    return {name: value for name, value in values.items() if times.get(name) == 1}


def _line_starts(constant: ast.Constant) -> tuple[tuple[int, int], ...]:
    """Where in a text the lines of the file begin, if each of its line breaks is one of the file's."""
    text, line = str(constant.value), constant.lineno
    if text.count("\n") != (constant.end_lineno or line) - line:
        return ((0, line),)
    starts = [(0, line)]
    for offset, character in enumerate(text):
        if character == "\n":
            line += 1
            starts.append((offset + 1, line))
    return tuple(starts)


def is_kind(node: yaml.Node, kind: str) -> bool:
    """Whether a node is of that kind, by YAML's short name."""
    return bool(node.tag == TAG_PREFIX + kind)


def line_of(at: Any) -> int:
    """The line of a node of either kind, from 1."""
    return int(at.lineno if hasattr(at, "lineno") else at.start_mark.line + 1)


def _marks(at: Any) -> tuple[yaml.Mark, yaml.Mark]:
    import yaml

    mark = yaml.Mark("", 0, line_of(at) - 1, 0, None, 0)
    return mark, mark
