"""YAML whose every value knows its line, read strictly: what is not asked for, doubled or of another type is refused.

Only the tree of nodes is made (PyYAML's `compose`), never objects of Python, so that no tag in a file does anything.
"""

from __future__ import annotations

import base64
import difflib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from barnabas.pipelines.definition import PipelineError, PipelineMissingError

if TYPE_CHECKING:
    import yaml

Known = TypeVar("Known")
FILE_BYTES_MAX: Final = 256 * 1024
VALUES_MAX: Final = 200_000
"""How many values a file may have once its aliases are followed: a short file can name very many."""
TAG_PREFIX: Final = "tag:yaml.org,2002:"
LINE_STARTS: Final = "line_starts"
"""What a node has that is not from a file of YAML: its `Text.line_starts`."""
_KIND_NAMES: Final = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "timestamp": "a time",
    "null": "nothing",
    "map": "a block of keys",
    "seq": "a list",
    "binary": "bytes in base64",
}

_INT_BASES: Final = (("0b", 2), ("0x", 16), ("0o", 8), ("0", 8))
_INT_CHARACTERS_MAX: Final = 4_000


def _number(text: str) -> int:
    """A whole number as YAML 1.1 writes it. Raises ValueError for one in base 60, such as 12:30."""
    digits = text.replace("_", "").lower()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    if len(digits) > _INT_CHARACTERS_MAX:
        raise ValueError("too long")
    base = next((base for prefix, base in _INT_BASES if digits.startswith(prefix) and digits != "0"), 10)
    return sign * int(digits.removeprefix("0b").removeprefix("0x").removeprefix("0o"), base)


def _float(text: str) -> float:
    return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


_SCALARS: Final[Mapping[str, Callable[[str], object]]] = {
    "str": str,
    "timestamp": str,
    "null": lambda _: None,
    "bool": lambda text: text.lower() in {"true", "yes", "on"},
    "int": _number,
    "float": _float,
    "binary": lambda text: base64.b64decode("".join(text.split()), validate=True),
}


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean "that"?`, with the known name that is most like `name`, or nothing where none is like it."""
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.6)
    return f'; did you mean "{by_lower_case[close[0]]}"?' if close else ""


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a scalar. `line_starts` has, in order, (offset in `value`, line of the file) where a line begins."""

    value: str
    line: int
    line_starts: tuple[tuple[int, int], ...]

    def line_at(self, offset: int) -> int:
        """The file's line of an offset in `value`."""
        return max((line for start, line in self.line_starts if start <= offset), default=self.line)


@dataclass(frozen=True, slots=True)
class Form:
    """A form of file: its name, what it is, and what to do where there is none, at `{path}`, or an empty one."""

    name: str
    what: str
    remedy: str


PIPELINE_FORM: Final = Form(
    "a pipeline",
    "a pipeline is a block of keys (name, sources, steps, sinks)",
    "`barnabas pipeline init{path}` writes one to begin with",
)


@dataclass(frozen=True, slots=True)
class Document:
    """A file that was read."""

    path: Path
    content: str
    values_left: Iterator[int]
    """One for each value that may still be taken by `Section.value`."""
    is_python: bool = False
    """Whether it is no YAML, but a file of Python whose values are given as nodes (`python_files`)."""
    known: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    """What parts of the file share that is costly to read (`Section.once`)."""

    def error(self, message: str, line: int) -> PipelineError:
        """An error at a line, counted from 1."""
        return PipelineError(message, path=self.path, line=line)


class Section:
    """A mapping of the file. `label` is how messages call it; empty for the file itself."""

    def __init__(self, document: Document, node: yaml.MappingNode, label: str, keys: Iterable[str] | None) -> None:
        """With `keys`, every other key is refused; without, each key is a name that the user gives."""
        self._document = document
        self._label = label
        self.line = node.start_mark.line + 1
        self._nodes: dict[str, yaml.Node] = {}
        self._lines: dict[str, int] = {}
        known = None if keys is None else tuple(keys)
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not _is_scalar(key_node):
                raise self._error("a key must be plain text", line)
            key = str(key_node.value)
            if known is not None and key not in known:
                hint = nearest(key, known) or f"; there are: {', '.join(known)}"
                raise self._error(f'unknown key "{key}"{hint}', line)
            if key in self._nodes:
                raise self._error(
                    f'the key "{key}" occurs twice, first in line {self._lines[key]}: keep one of them', line
                )
            self._nodes[key] = value_node
            self._lines[key] = line

    def __contains__(self, key: str) -> bool:
        return key in self._nodes

    @property
    def path(self) -> Path:
        """The file, as the user named it."""
        return self._document.path

    @property
    def is_python(self) -> bool:
        """Whether the file is one of Python."""
        return self._document.is_python

    def once(self, what: Hashable, read: Callable[[], Known]) -> Known:
        """What `read` returns, which is called once for the whole file for each `what`."""
        if what not in self._document.known:
            self._document.known[what] = read()
        known: Known = self._document.known[what]
        return known

    @property
    def keys(self) -> Mapping[str, int]:
        """The keys in the order of the file, each with its line."""
        return self._lines

    def text(self, key: str, *, also: tuple[str, ...] = ()) -> Text:
        """A text that is not empty; of other kinds of scalar (YAML's short tags) only those in `also` pass as text."""
        text = self._text(self._node(key), self._place(key), also)
        if not text.value.strip():
            raise self._document.error(f"{self._place(key)} is empty: give it a value, or remove the line", text.line)
        return text

    def texts(self, key: str, count_max: int) -> tuple[Text, ...]:
        """A list of texts, at least one; a single text counts as a list of it."""
        node = self._node(key)
        if _is_scalar(node):
            return (self.text(key),)
        return tuple(
            self._text(item, f"{self._place(key)}[{number}]", ()) for number, item in self._items(key, count_max)
        )

    def integer(self, key: str, minimum: int, maximum: int) -> int:
        """A whole number between the bounds, which may be written with `_` between its digits."""
        node = self._node(key)
        if _kind(node) != "int":
            raise self._wrong_kind(node, self._place(key), "a whole number such as 500000")
        digits = str(node.value).replace("_", "")
        if not digits.lstrip("+-").isdecimal() or (len(digits) > 1 and digits.startswith("0")):
            raise self._error(f"{key} must be a plain decimal number such as 500000, not {node.value}", _line(node))
        # The length is looked at first: Python refuses to read very long numbers.
        if len(digits) > len(str(maximum)) + 1 or not minimum <= int(digits) <= maximum:
            raise self._error(f"{key} must be between {minimum} and {maximum}", _line(node))
        return int(digits)

    def flag(self, key: str) -> bool:
        """True or false."""
        node = self._node(key)
        if _kind(node) != "bool":
            raise self._wrong_kind(node, self._place(key), "true or false")
        return str(node.value).lower() in {"true", "yes", "on"}

    def value(self, key: str) -> object:
        """Whatever is there: None, bool, int, float, str, bytes (`!!binary`), and lists and dicts of them.

        A time stays the text that it is written as.
        """
        return self._value(self._node(key), self._place(key))

    def section(self, key: str, keys: Iterable[str] | None, label: str | None = None) -> Section:
        """The mapping at a key."""
        return self._section(self._node(key), label or self._place(key), keys)

    def sections(self, key: str, keys: Iterable[str] | None, count_max: int, count_min: int = 1) -> tuple[Section, ...]:
        """A list of mappings. With `keys`, every other key of theirs is refused."""
        known = None if keys is None else tuple(keys)
        items = self._items(key, count_max, count_min)
        return tuple(self._section(node, f"{self._place(key)}[{number}]", known) for number, node in items)

    def error(self, message: str, line: int | None = None) -> PipelineError:
        """An error in this section; the line is the section's own where none is given."""
        return self._error(message, self.line if line is None else line)

    def _error(self, message: str, line: int) -> PipelineError:
        return self._document.error(f"{self._label}: {message}" if self._label else message, line)

    def _place(self, key: str) -> str:
        return f"{self._label}.{key}" if self._label else key

    def _node(self, key: str) -> yaml.Node:
        node = self._nodes.get(key)
        if node is None:
            raise self._error(f'the key "{key}" is missing', self.line)
        return node

    def _items(self, key: str, count_max: int, count_min: int = 1) -> list[tuple[int, yaml.Node]]:
        node = self._node(key)
        if _kind(node) != "seq":
            wanted = "a list" if self._document.is_python else 'a list, each item of it on a line that begins with "- "'
            raise self._wrong_kind(node, self._place(key), wanted)
        items = node.value
        if not count_min <= len(items) <= count_max:
            raise self._error(f"{key} has {len(items)} items: there must be {count_min} to {count_max}", _line(node))
        return list(enumerate(items, start=1))

    def _section(self, node: yaml.Node, label: str, keys: Iterable[str] | None) -> Section:
        import yaml

        if not isinstance(node, yaml.MappingNode) or _kind(node) != "map":
            wanted = "a dict" if self._document.is_python else "a block of keys, each as `key: value`"
            raise self._wrong_kind(node, label, wanted)
        return Section(self._document, node, label, keys)

    def _text(self, node: yaml.Node, place: str, also: tuple[str, ...]) -> Text:
        if not _is_scalar(node) or _kind(node) not in ("str", *also):
            wanted = "text"
            if _kind(node) in {"int", "float", "bool", "timestamp"}:
                wanted = f'text: write it in quotes, "{node.value}"'
            raise self._wrong_kind(node, place, wanted)
        return Text(str(node.value), _line(node), _line_starts(self._document.content, node))

    def _value(self, node: yaml.Node, place: str) -> object:
        if next(self._document.values_left, None) is None:
            raise self._document.error(f"there are more than {VALUES_MAX} values: divide this file", _line(node))
        kind = _kind(node)
        if kind == "seq":
            return [self._value(item, place) for item in node.value]
        if kind == "map":
            return self._mapping(node, place)
        if not _is_scalar(node) or kind not in _SCALARS:
            raise self._wrong_kind(node, place, "text, a number, true, false, null, a list, or a block of keys")
        try:
            return _SCALARS[kind](str(node.value))
        except ValueError:
            message = f"{place} cannot be read as {_KIND_NAMES[kind]}: write it in quotes if it is text"
            raise self._document.error(message, _line(node)) from None

    def _mapping(self, node: yaml.Node, place: str) -> dict[str, object]:
        found: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if not _is_scalar(key_node) or key in found:
                raise self._document.error(f"{place}: each key must be plain text, and there once", _line(key_node))
            found[key] = self._value(value_node, f"{place}.{key}")
        return found

    def _wrong_kind(self, node: yaml.Node, place: str, wanted: str) -> PipelineError:
        kind = _KIND_NAMES.get(_kind(node), f"of the tag {node.tag}, which pipelines do not support")
        return self._document.error(f"{place} is {kind}; it must be {wanted}", _line(node))


def read_document(path: Path, keys: Iterable[str], form: Form = PIPELINE_FORM) -> Section:
    """The mapping that a file is, with the keys that it may have.

    Raises PipelineMissingError without the file, PipelineError for one that is no such mapping.
    """
    import yaml

    document = Document(path, read_text(path, form), iter(range(VALUES_MAX)))
    try:
        node = yaml.compose(document.content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        hint = "indent with spaces, not with tabs" if "'\\t'" in problem else "check colons, quotes and indentation"
        raise document.error(f"this is not YAML ({problem}): {hint}", mark.line + 1 if mark else 1) from None
    except yaml.reader.ReaderError as error:
        line = document.content.count("\n", 0, error.position) + 1
        raise document.error(
            f"a character that YAML does not allow, {document.content[error.position]!r}: remove it", line
        ) from None
    except RecursionError:
        raise document.error(f"lists or blocks are nested too deeply for {form.name}", 1) from None
    if node is None:
        raise document.error(f"this file is empty: {form.remedy.format(path='')}", 1)
    if not isinstance(node, yaml.MappingNode):
        raise document.error(form.what, _line(node))
    return Section(document, node, "", keys)


def read_text(path: Path, form: Form) -> str:
    """The text of a file. Raises PipelineMissingError without it, PipelineError where it is too large or no UTF-8."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise PipelineMissingError(f"{path} does not exist: {form.remedy.format(path=f' {path}')}") from None
    except OSError as error:
        raise PipelineError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise PipelineError(f"{path} has more than {FILE_BYTES_MAX} bytes: that is not {form.name}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise PipelineError("this is not UTF-8: save the file as UTF-8", path=path, line=line) from None


def _is_scalar(node: yaml.Node) -> bool:
    import yaml

    return isinstance(node, yaml.ScalarNode)


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1


def _kind(node: yaml.Node) -> str:
    """YAML's short name of what a node is, such as `str`; the whole tag where it is none of YAML's own."""
    tag = str(node.tag)
    kind = tag.removeprefix(TAG_PREFIX)
    return kind if kind in _KIND_NAMES else tag


def _line_starts(content: str, node: yaml.Node) -> tuple[tuple[int, int], ...]:
    """Where in a scalar's text the lines of the file begin.

    YAML only takes away and joins white space (and, in quotes, has escapes, which are stepped over), so the text and
    the file are walked through side by side from one visible character to the next.
    """
    import yaml

    if (known := getattr(node, LINE_STARTS, None)) is not None:
        return tuple(known)
    begin, end = node.start_mark.index, node.end_mark.index
    line = _line(node)
    if isinstance(node, yaml.ScalarNode) and node.style in {"|", ">"}:
        begin = content.find("\n", begin, end) + 1 or end
        line += 1
    starts: list[tuple[int, int]] = []
    at = begin
    for offset, character in enumerate(node.value):
        if character.isspace():
            continue
        found = content.find(character, at, end)
        if found < 0:
            break
        line += content.count("\n", at, found)
        if not starts or line != starts[-1][1]:
            starts.append((offset, line))
        at = found + 1
    return tuple(starts) or ((0, line),)
