"""Reads schema files; `schema` describes their format."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from barnabas.wire.schema import (
    FIXED_WIDTH_TYPES,
    INTEGER_RANGES,
    NO_VERSIONS,
    Default,
    Field,
    FieldType,
    Fresh,
    Kind,
    Message,
    SchemaError,
    Struct,
    Versions,
)

VERSION_MAX: Final = 32767
_INDENT: Final = 4
_VERSIONS = re.compile(r"(\d+)(\+|-\d+)?")
_FIELD_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_TYPE_NAME = re.compile(r"[A-Z][A-Za-z0-9]*")
_FIELD_LINE = re.compile(r"(\w+):\s*(\[\])?(\w+)(\?)?\s*(?:,\s*(.*))?")


class _Line(NamedTuple):
    number: int
    depth: int
    text: str
    meaning: str


def read_schema(file: str, text: str) -> tuple[Message, ...]:
    """The messages that the schema file `file` with the content `text` declares, in order.

    Raises `SchemaError` when the text breaks a rule of the format.
    """
    return _Reader(file, text).messages()


class _Reader:
    """Reads one file; `self.position` is the next line."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.lines = list(self._split(text))
        self.position = 0
        self.versions = NO_VERSIONS
        self.flexible_versions = NO_VERSIONS
        self.structs: dict[str, Struct] = {}

    def _error(self, line: int, problem: str) -> SchemaError:
        return SchemaError(self.file, line, problem)

    def _split(self, text: str) -> Iterator[_Line]:
        for number, raw in enumerate(text.splitlines(), start=1):
            code, _, meaning = raw.partition("#")
            stripped = code.strip()
            if not stripped:
                continue
            indent = len(code) - len(code.lstrip(" "))
            if indent % _INDENT or code[indent] == "\t":
                raise self._error(number, f"indent by {_INDENT} spaces per level, without tabs")
            yield _Line(number, indent // _INDENT, stripped, meaning.strip())

    def _next(self, depth: int) -> _Line | None:
        """The next line if it stands at `depth`; None at the end or when it stands further out."""
        if self.position == len(self.lines):
            return None
        line = self.lines[self.position]
        if line.depth > depth:
            raise self._error(line.number, "indented too far: only fields of a structure stand below a field")
        if line.depth < depth:
            return None
        self.position += 1
        return line

    def messages(self) -> tuple[Message, ...]:
        first = self._next(0)
        if first is None:
            raise self._error(1, "the file is empty; it needs an `api`, `header`, `record` or `data` line")
        if first.text.split()[0] == "api":
            return self._api(first)
        found: list[Message] = []
        line: _Line | None = first
        while line is not None:
            kind = self._kind(line, {Kind.HEADER, Kind.RECORD, Kind.DATA})
            name, options = self._declaration(line, kind.value)
            open_ended = options.pop("open", None) is not None
            self._no_more(line, options)
            message = self._message(line, kind, name, None, open_ended=open_ended)
            if any(other.name == message.name for other in found):
                raise self._error(line.number, f"{message.name} is declared twice")
            found.append(message)
            line = self._next(0)
        return tuple(found)

    def _api(self, first: _Line) -> tuple[Message, ...]:
        name, options = self._declaration(first, "api")
        key = options.pop("key", None)
        if key is None or not key.isdigit():
            raise self._error(first.number, "an api line needs its key, such as `key 12`")
        self._no_more(first, options)
        found = []
        for kind in (Kind.REQUEST, Kind.RESPONSE):
            line = self._next(0)
            if line is None or self._kind(line, {kind}) is not kind or line.text != kind.value:
                where = line.number if line is not None else self.lines[-1].number
                raise self._error(where, f"here the file needs a line `{kind.value}`, alone but for its meaning")
            found.append(self._message(line, kind, name + kind.value.capitalize(), int(key), open_ended=False))
        extra = self._next(0)
        if extra is not None:
            raise self._error(extra.number, "an api file ends after its request and response")
        return tuple(found)

    def _kind(self, line: _Line, allowed: set[Kind]) -> Kind:
        word = line.text.split()[0]
        for kind in allowed:
            if kind.value == word:
                return kind
        raise self._error(
            line.number, f"expected {' or '.join(sorted(f'`{kind.value}`' for kind in allowed))}, not {word!r}"
        )

    def _declaration(self, line: _Line, word: str) -> tuple[str, dict[str, str]]:
        """Name and remaining options of `word Name: versions 0-4, flexible 4+, ...`; sets the versions."""
        match = re.fullmatch(rf"{word}\s+(\w+):\s*(.+)", line.text)
        if match is None or not _TYPE_NAME.fullmatch(match[1]):
            raise self._error(line.number, f"expected `{word} Name: versions 0-4, flexible 4+`")
        options = self._options(line, match[2])
        if "versions" not in options:
            raise self._error(line.number, "say which versions there are, such as `versions 0-4`")
        everything = Versions(0, VERSION_MAX)
        self.versions = self._parse_versions(line, options.pop("versions"), everything)
        if self.versions.high == VERSION_MAX:
            raise self._error(line.number, "the highest version must be a number")
        flexible = options.pop("flexible", None)
        self.flexible_versions = NO_VERSIONS
        if flexible is not None:
            self.flexible_versions = self._parse_versions(line, flexible, self.versions)
        return match[1], options

    def _options(self, line: _Line, text: str) -> dict[str, str]:
        """`a 1, b, 3+` as {"a": "1", "b": "", "": "3+"}; the empty key is the field's versions."""
        options: dict[str, str] = {}
        for part in (part.strip() for part in text.split(",")):
            word, _, value = part.partition(" ")
            if _VERSIONS.fullmatch(part):
                word, value = "", part
            if word in options:
                raise self._error(line.number, f"{part!r} is said twice")
            options[word] = value.strip()
        return options

    def _no_more(self, line: _Line, options: Mapping[str, str]) -> None:
        for word, value in options.items():
            raise self._error(line.number, f"does not belong here: {f'{word} {value}'.strip()!r}")

    def _parse_versions(self, line: _Line, text: str, allowed: Versions) -> Versions:
        match = _VERSIONS.fullmatch(text)
        if match is None:
            raise self._error(line.number, f"not versions: {text!r}; write 3, 3-5 or 3+")
        low = int(match[1])
        high = low if match[2] is None else allowed.high if match[2] == "+" else int(match[2][1:])
        versions = Versions(low, high)
        if not versions or not versions.within(allowed):
            raise self._error(line.number, f"versions {text} are not within {allowed}")
        return versions

    def _meaning(self, line: _Line) -> str:
        if not line.meaning:
            raise self._error(line.number, "say after a # what it means")
        return line.meaning

    def _message(self, line: _Line, kind: Kind, name: str, key: int | None, *, open_ended: bool) -> Message:
        meaning = self._meaning(line)
        self.structs = {}
        fields = self._fields(1)
        unused = set(self.structs) - {field.type.name for field in (*fields, *self._struct_fields())}
        if unused:
            raise self._error(line.number, f"no field is of the structure {', '.join(sorted(unused))}")
        return Message(
            name=name,
            kind=kind,
            api_key=key,
            versions=self.versions,
            flexible_versions=self.flexible_versions,
            open_ended=open_ended,
            fields=fields,
            structs=dict(self.structs),
            meaning=meaning,
            file=self.file,
        )

    def _struct_fields(self) -> Iterator[Field]:
        for struct in self.structs.values():
            yield from struct.fields

    def _fields(self, depth: int) -> tuple[Field, ...]:
        fields: dict[str, Field] = {}
        tags: list[int] = []
        while (line := self._next(depth)) is not None:
            word, _, name = line.text.partition(" ")
            if word == "struct":
                if depth != 1 or fields:
                    raise self._error(line.number, "shared structures come ahead of the fields of the message")
                self._add_struct(line, name.strip(), self._meaning(line), depth + 1)
                continue
            field = self._field(line, depth)
            if field.name in fields:
                raise self._error(line.number, f"the field {field.name} is declared twice")
            fields[field.name] = field
            if field.tag is not None:
                tags.append(field.tag)
                if tags != list(range(len(tags))):
                    raise self._error(
                        line.number, f"tags count up from 0 in the order of the fields; this is {tags[-1]}"
                    )
        return tuple(fields.values())

    def _add_struct(self, line: _Line, name: str, meaning: str, depth: int) -> None:
        if not _TYPE_NAME.fullmatch(name):
            raise self._error(line.number, f"not a name for a structure: {name!r}; write it LikeThis")
        fields = self._fields(depth)
        if not fields:
            raise self._error(line.number, f"the structure {name} has no fields")
        if name in self.structs:
            raise self._error(line.number, f"the structure {name} is declared twice")
        self.structs[name] = Struct(name, fields, meaning)

    def _field(self, line: _Line, depth: int) -> Field:
        match = _FIELD_LINE.fullmatch(line.text)
        if match is None:
            raise self._error(line.number, "expected `name: type, versions, ...   # meaning`")
        name, array, type_name, question, rest = match.groups()
        if not _FIELD_NAME.fullmatch(name) or keyword.iskeyword(name):
            raise self._error(line.number, f"not a name for a field: {name!r}; write it like_this")
        kind = FieldType(type_name, array is not None)
        meaning = self._meaning(line)
        options = self._options(line, rest) if rest else {}
        versions = self._parse_versions(line, options.pop("", f"{self.versions.low}+"), self.versions)
        nullable = versions if question else NO_VERSIONS
        if "nullable" in options:
            nullable = self._parse_versions(line, options.pop("nullable"), versions)
        tag, tagged = self._tag(line, options, versions)
        field = Field(
            name=name,
            type=kind,
            versions=versions,
            nullable_versions=nullable,
            default=None,
            tag=tag,
            tagged_versions=tagged,
            ignorable=self._flag(line, options, "ignorable", ""),
            int16_length=self._flag(line, options, "int16", "length"),
            secret=self._flag(line, options, "secret", ""),
            meaning=meaning,
            line=line.number,
        )
        default = options.pop("default", None)
        self._no_more(line, options)
        self._check_type(line, field, depth)
        return field._replace(default=self._default(line, field, default))

    def _flag(self, line: _Line, options: dict[str, str], word: str, rest: str) -> bool:
        value = options.pop(word, None)
        if value is not None and value != rest:
            raise self._error(line.number, f"does not belong here: {f'{word} {value}'.strip()!r}")
        return value is not None

    def _tag(self, line: _Line, options: dict[str, str], versions: Versions) -> tuple[int | None, Versions]:
        text = options.pop("tag", None)
        if text is None:
            return None, NO_VERSIONS
        number, _, where = text.partition(" in ")
        if not number.isdigit():
            raise self._error(line.number, f"not a tag: {text!r}; write `tag 0` or `tag 0 in 9+`")
        tagged = self._parse_versions(line, where, versions) if where else versions
        if not tagged.within(self.flexible_versions):
            raise self._error(
                line.number, f"tagged fields need flexible versions ({self.flexible_versions}), not {tagged}"
            )
        return int(number), tagged

    def _check_type(self, line: _Line, field: Field, depth: int) -> None:
        """Reads the fields of a structure that is declared here; refuses types that cannot be."""
        kind = field.type
        following = self.lines[self.position] if self.position < len(self.lines) else None
        has_fields = following is not None and following.depth > depth
        if kind.is_struct:
            if not has_fields and kind.name not in self.structs:
                raise self._error(
                    line.number,
                    f"unknown type {kind.name!r}: neither a basic type nor a structure with fields below it",
                )
            if has_fields:
                self._add_struct(line, kind.name, field.meaning, depth + 1)
        elif has_fields and following is not None:
            raise self._error(following.number, f"{kind} has no fields; only a structure has")
        if kind.is_array and kind.name == "records":
            raise self._error(line.number, "there are no arrays of records")
        if field.nullable_versions and not kind.is_array and kind.name in FIXED_WIDTH_TYPES:
            raise self._error(line.number, f"{kind} cannot be null")
        if field.int16_length and (kind.name != "string" or kind.is_array):
            raise self._error(line.number, "only a string has an int16 length")

    def _default(self, line: _Line, field: Field, text: str | None) -> Default:
        kind = field.type
        if text == "null":
            if not field.nullable_versions:
                raise self._error(line.number, "the default is null, but the field is nullable in no version")
            return None
        if field.tag is not None and field.nullable_versions:
            raise self._error(line.number, "a tagged field that may be null needs `default null`")
        if text is None:
            return _implicit_default(field)
        if kind.is_array or kind.is_struct:
            raise self._error(line.number, f"the default of {kind} can only be null, not {text!r}")
        value = _parse_default(kind.name, text)
        if value is None:
            raise self._error(line.number, f"not a default for {kind}: {text!r}")
        return value


def _implicit_default(field: Field) -> Default:
    kind = field.type
    if kind.is_array:
        return Fresh.LIST
    if kind.is_struct:
        return None if field.absent_is_none else Fresh.STRUCT
    defaults: dict[str, Default] = {
        "bool": False,
        "float64": 0.0,
        "uuid": bytes(16),
        "string": "",
        "bytes": b"",
        "records": None,
    }
    return defaults.get(kind.name, 0)


def _parse_default(type_name: str, text: str) -> bool | int | float | str | None:
    """The value that `text` says for a basic type; None if it says none."""
    if type_name == "bool":
        return {"true": True, "false": False}.get(text)
    if type_name == "string":
        return "" if text == '""' else None
    try:
        if type_name == "float64":
            return float(text)
        low, high = INTEGER_RANGES.get(type_name, (1, 0))
        value = int(text, 0)
    except ValueError:
        return None
    return value if low <= value <= high else None
