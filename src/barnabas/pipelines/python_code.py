"""The Python function of a step, as its file's text has it, and what of that text counts as the function.

Nothing here runs it. What counts is the function and each top-level definition of its file that it names, itself or
through others; of files beside it that are imported there, all. What is installed elsewhere is not looked at.
"""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_LEFT_OUT: Final = frozenset({"ctx", "kind", "type_comment"})
_DIGEST_DIGITS: Final = 16
_INT_BITS_MAX: Final = 1024
_IN_FILE: Final = ": "
_OTHER_LINES: Final = "other lines"
_ALL_OF_IT: Final = "all of it"
FILES_BESIDE_MAX: Final = 1_000
SOURCE_BYTES_MAX: Final = 1024 * 1024


class TooManyFilesError(Exception):
    """More files are imported than are looked at, so that nobody would see what is changed in the others."""

    def __init__(self) -> None:
        super().__init__(f"imports more than {FILES_BESIDE_MAX:,} files of its directory")


@dataclass(frozen=True, slots=True)
class PythonCode:
    """A function over DataFrames: `function` of the file `path`, defined in `line`.

    `parameters` are the views that it gets. With a `result` it returns a dict, and the step is that entry of it.
    `revision`, if not empty, stands for the code where that is compared with the one of before. `content` is the file's
    text, `parts` a digest of each definition that counts. `arguments` are those of `@pipeline`, None without it.
    """

    path: Path
    function: str
    line: int
    parameters: tuple[str, ...]
    result: str | None = None
    revision: str = ""
    content: str = field(default="", repr=False)
    parts: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    arguments: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def files(self) -> tuple[Path, ...]:
        """The file, and those beside it that count."""
        beside = {name.partition(_IN_FILE)[0] for name, _ in self.parts if _IN_FILE in name}
        return (self.path, *(self.path.resolve().parent / each for each in sorted(beside)))


def parts_of_code(
    tree: ast.Module, function: str, directory: Path, decorator: ast.expr | None = None
) -> dict[str, str]:
    """A digest of each definition that counts, by its name; those of files beside it as `FILE: NAME`.

    Layout, comments and docstrings are nothing, and so is the `decorator` that makes the pipeline: its arguments are
    compared by themselves. Raises TooManyFilesError.
    """
    definitions, others = _statements(tree)
    found: dict[str, list[ast.stmt]] = {}
    waiting = [function, *(name for each in others for name in _names(each, decorator))]
    while waiting:
        name = waiting.pop()
        if name in found or name not in definitions:
            continue
        found[name] = definitions[name]
        waiting += [each for statement in definitions[name] for each in _names(statement, decorator)]
    parts = {name: _digest(each, decorator) for name, each in sorted(found.items())}
    if others:
        parts[_OTHER_LINES] = _digest(others, decorator)
    reached = [*others, *(each for statements in found.values() for each in statements)]
    return {**parts, **_parts_beside(reached, directory)}


def changed_parts(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The names of the definitions that differ, those of now first."""
    names = dict.fromkeys([*after, *before])
    return [name for name in names if before.get(name) != after.get(name)]


def _parts_beside(statements: list[ast.stmt], directory: Path) -> dict[str, str]:
    """Of the files in the directory that the statements import, and those that they do: whole, by their definitions."""
    parts: dict[str, str] = {}
    seen: set[Path] = set()
    waiting = list(_imported(statements, directory))
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        if len(seen) >= FILES_BESIDE_MAX:
            raise TooManyFilesError
        seen.add(path)
        file = str(path.relative_to(directory))
        try:
            with path.open("rb") as opened:
                content = opened.read(SOURCE_BYTES_MAX + 1)
                tree = None if len(content) > SOURCE_BYTES_MAX else _tree(content)
                if tree is None:
                    opened.seek(0)
                    digest = hashlib.file_digest(opened, "sha256").hexdigest()[:_DIGEST_DIGITS]
                    parts[f"{file}{_IN_FILE}{_ALL_OF_IT}"] = digest
                    continue
        except OSError:
            continue  # importing it says why
        definitions, others = _statements(tree)
        for name, each in sorted({**definitions, **({_OTHER_LINES: others} if others else {})}.items()):
            parts[f"{file}{_IN_FILE}{name}"] = _digest(each, None)
        waiting += _imported(tree.body, directory, path.relative_to(directory).parent.parts)
    return parts


def _tree(content: bytes) -> ast.Module | None:
    """None for what is no Python, or cannot be read as such: importing it says why."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(content)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return None


def _imported(statements: list[ast.stmt], directory: Path, package: tuple[str, ...] = ()) -> Iterator[Path]:
    """The files below the directory that are run by the imports of a module in a package of it, those of packages, too;
    packages that the module is in itself are there already.
    """
    for statement in statements:
        for node in ast.walk(statement):
            modules: list[list[str]] = []
            if isinstance(node, ast.Import):
                modules = [alias.name.split(".") for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level <= len(package):
                base = list(package[: len(package) + 1 - node.level]) if node.level else []
                base += node.module.split(".") if node.module else []
                modules = [base, *([*base, alias.name] for alias in node.names)]
            wanted = {tuple(names[:count]): None for names in modules for count in range(1, len(names) + 1)}
            for names in wanted:
                place = directory.joinpath(*names)
                candidates = (place.with_name(f"{place.name}.py"), place / "__init__.py")
                yield from (path for path in candidates if path.is_file())


def _statements(tree: ast.Module) -> tuple[dict[str, list[ast.stmt]], list[ast.stmt]]:
    """The top-level statements that define names, by each of these; and the others, which count in any case."""
    definitions: dict[str, list[ast.stmt]] = {}
    others: list[ast.stmt] = []
    for statement in tree.body:
        if _is_text(statement):
            continue
        names = _defined(statement)
        for name in names:
            definitions.setdefault(name, []).append(statement)
        if not names:
            others.append(statement)
    return definitions, others


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        if any(alias.name == "*" for alias in statement.names):
            return []
        return [(alias.asname or alias.name).split(".")[0] for alias in statement.names]
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = [statement.target]
    if targets:
        # And those that a value names on its way (`x = (y := 1)`).
        targets += [node.target for node in ast.walk(statement) if isinstance(node, ast.NamedExpr)]
    names = [node for target in targets for node in ast.walk(target)]
    # What is changed by its parts (`x.y = 1`, `x["y"] = 1`) counts with x, too.
    return list(dict.fromkeys(node.id for node in names if isinstance(node, ast.Name)))


def _names(node: ast.AST, left_out: ast.expr | None) -> Iterator[str]:
    """The names that a piece of code uses."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if each is left_out:
            continue
        if isinstance(each, ast.Name):
            yield each.id
        waiting.extend(ast.iter_child_nodes(each))


def _digest(statements: list[ast.stmt], left_out: ast.expr | None) -> str:
    text = ";".join(_form(statement, left_out) for statement in statements)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]


@dataclass(frozen=True, slots=True)
class _Mark:
    """What stands between the parts of a tree, in its text."""

    text: str


def _form(tree: object, left_out: ast.expr | None) -> str:
    """A syntax tree as text that each version of Python writes alike: what is absent in a node is not there.

    Long chains of calls are deep trees: no function calls itself here.
    """
    written: list[str] = []
    waiting: list[object] = [tree]
    while waiting:
        each = waiting.pop()
        if isinstance(each, _Mark):
            written.append(each.text)
        elif isinstance(each, ast.AST):
            written.append(f"{type(each).__name__}(")
            waiting.append(_Mark(")"))
            for name, value in reversed(list(ast.iter_fields(each))):
                if name not in _LEFT_OUT and value is not None and value != []:
                    waiting += [value, _Mark(f" {name}=")]
        elif isinstance(each, list):
            written.append("[")
            waiting.append(_Mark("]"))
            for item in reversed(each):
                if item is not left_out and not _is_text(item):
                    waiting += [_Mark(","), item]
        elif type(each) is int and each.bit_length() > _INT_BITS_MAX:
            written.append(hex(each))  # Python refuses to write very long ones as decimals
        else:
            written.append(ascii(each))  # which characters repr() writes as they are depends on Python's version
    return "".join(written)


def _is_text(node: object) -> bool:
    """A docstring, or what has no more effect."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
