"""Spark's DDL of a schema, such as `carrier STRING, delays ARRAY<DOUBLE>`: read well enough to find its faults.

Spark reads the schema itself when it starts; what is wrong with it is to be known before that. Types are those that
JSON can be read into (Spark's "Data Types", SQL names).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.pipelines.definition import Column
from barnabas.pipelines.yaml_positions import nearest

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

JSON_OPTIONS: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""How rows become JSON. The bytes of keys are a contract: compaction, and whoever reads, compare them. Left to itself
Spark cuts times to milliseconds, so that two groups would share one key.
"""

COLUMNS_MAX: Final = 1_000
DEPTH_MAX: Final = 20
_SIMPLE_TYPES: Final = frozenset(
    "BOOLEAN TINYINT BYTE SMALLINT SHORT INT INTEGER BIGINT LONG FLOAT REAL DOUBLE STRING BINARY DATE "
    "TIMESTAMP TIMESTAMP_NTZ TIMESTAMP_LTZ VARIANT".split()
)
_DECIMAL_TYPES: Final = frozenset({"DECIMAL", "DEC", "NUMERIC"})
_NESTED_TYPES: Final = frozenset({"ARRAY", "MAP", "STRUCT"})
_DECIMAL_DIGITS_MAX: Final = 38
_TOKEN: Final = re.compile(
    r"(?P<space>\s+)|(?P<word>\w+)|(?P<quoted>`(?:[^`]|``)+`)|(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<mark>[<>(),:])",
    re.DOTALL,
)


class SchemaError(ValueError):
    """What is wrong with a schema, and the offset in its text."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    offset: int


def parse_schema(text: str) -> tuple[Column, ...]:
    """The columns of a schema, at least one, their names unique without regard to case. Raises SchemaError."""
    reader = _Reader(_tokens(text), len(text))
    columns = reader.fields(closing="", depth=0)
    if not columns:
        raise SchemaError('a schema has at least one column, such as "carrier STRING"', 0)
    return columns


def fields_of_struct(kind: str) -> tuple[Column, ...]:
    """The fields of a type STRUCT<...>; none of other types. Raises SchemaError."""
    begin = "STRUCT<"
    if not kind.startswith(begin):
        return ()
    inner = kind.removeprefix(begin)
    return _Reader(_tokens(inner), len(inner)).fields(closing=">", depth=1)


def quoted_name(name: str) -> str:
    """A column's name as SQL and DDL take it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def ddl_of(kind: DataType) -> str:
    """A type of Spark's in DDL. Its own `simpleString` has names of fields without quotes, which `user-agent` needs."""
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(kind, T.StructType):
        return f"STRUCT<{', '.join(f'{quoted_name(each.name)}: {ddl_of(each.dataType)}' for each in kind.fields)}>"
    if isinstance(kind, T.ArrayType):
        return f"ARRAY<{ddl_of(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"MAP<{ddl_of(kind.keyType)}, {ddl_of(kind.valueType)}>"
    return str(kind.simpleString())


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    offset = 0
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if match is None:
            message = f'"{text[offset]}" does not belong in a schema: write "name TYPE, name TYPE"'
            raise SchemaError(f"{message}, odd names in backticks", offset)
        if match.lastgroup != "space":
            tokens.append(_Token(str(match.lastgroup), match.group(), offset))
        offset = match.end()
    return tokens


class _Reader:
    """Reads tokens by recursive descent."""

    def __init__(self, tokens: list[_Token], length: int) -> None:
        self._tokens = tokens
        self._at = 0
        self._end = _Token("end", "", max(length - 1, 0))

    def fields(self, closing: str, depth: int) -> tuple[Column, ...]:
        """Fields up to the closing mark, which is taken, or to the end of the text."""
        columns: list[Column] = []
        names: set[str] = set()
        while self._peek().text != closing:
            if columns:
                self._expect(",", "between two columns")
            name = self._name()
            if name.lower() in names:
                raise SchemaError(
                    f'the column "{name}" is there twice (names must differ by more than case)', self._before()
                )
            names.add(name.lower())
            if len(columns) == COLUMNS_MAX:
                raise SchemaError(f"there are more than {COLUMNS_MAX} columns", self._before())
            if self._peek().text == ":" and closing:
                self._take()
            columns.append(Column(name, self._type(name, depth)))
            self._comment()
        self._take()
        return tuple(columns)

    def _name(self) -> str:
        token = self._take()
        if token.kind == "quoted":
            return token.text[1:-1].replace("``", "`")
        if token.kind != "word":
            found = f'"{token.text}"' if token.text else "the end"
            raise SchemaError(f"a column name is expected here, not {found}", token.offset)
        return token.text

    def _type(self, column: str, depth: int) -> str:
        token = self._take()
        if token.kind != "word":
            raise SchemaError(f'the column "{column}" has no type: write "{column} STRING", for instance', token.offset)
        name = token.text.upper()
        if depth == DEPTH_MAX:
            raise SchemaError(f'the type of "{column}" is deeper than {DEPTH_MAX} levels', token.offset)
        if name in _DECIMAL_TYPES:
            return name + self._decimal()
        if name == "ARRAY":
            self._expect("<", "after ARRAY, as in ARRAY<INT>")
            element = self._type(column, depth + 1)
            self._expect(">", "after the type of an array's elements")
            return f"ARRAY<{element}>"
        if name == "MAP":
            self._expect("<", "after MAP, as in MAP<STRING, INT>")
            key = self._type(column, depth + 1)
            self._expect(",", "between a map's types of key and value")
            value = self._type(column, depth + 1)
            self._expect(">", "after a map's type of value")
            return f"MAP<{key}, {value}>"
        if name == "STRUCT":
            self._expect("<", "after STRUCT, as in STRUCT<a: INT, b: STRING>")
            inner = self.fields(closing=">", depth=depth + 1)
            quoted = (f"{quoted_name(field.name)}: {field.type}" for field in inner)
            return f"STRUCT<{', '.join(quoted)}>"
        if name not in _SIMPLE_TYPES:
            known = (*_SIMPLE_TYPES, *_DECIMAL_TYPES, *_NESTED_TYPES)
            raise SchemaError(f'"{token.text}" is not a type{_type_hint(name, known)}', token.offset)
        return name

    def _decimal(self) -> str:
        if self._peek().text != "(":
            return ""
        self._take()
        precision = self._digits()
        scale = 0
        if self._peek().text == ",":
            self._take()
            scale = self._digits()
        if scale > precision:
            raise SchemaError(
                f"a decimal of {precision} digits has no {scale} of them behind the point", self._before()
            )
        self._expect(")", "after a decimal's digits, as in DECIMAL(10, 2)")
        return f"({precision}, {scale})"

    def _digits(self) -> int:
        token = self._take()
        if not (token.text.isascii() and token.text.isdecimal()) or not int(token.text[:4]) <= _DECIMAL_DIGITS_MAX:
            raise SchemaError(f"a decimal has up to {_DECIMAL_DIGITS_MAX} digits, as in DECIMAL(10, 2)", token.offset)
        return int(token.text)

    def _comment(self) -> None:
        if self._peek().text.upper() == "NOT":
            raise SchemaError(
                "NOT NULL is not enforced when JSON is read: remove it, and leave rows out with WHERE in a step",
                self._peek().offset,
            )
        if self._peek().text.upper() == "COMMENT":
            self._take()
            token = self._take()
            if token.kind != "string":
                raise SchemaError("a COMMENT's text must be in quotes", token.offset)

    def _peek(self) -> _Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else self._end

    def _take(self) -> _Token:
        token = self._peek()
        self._at += 1
        return token

    def _before(self) -> int:
        return self._tokens[min(self._at, len(self._tokens)) - 1].offset

    def _expect(self, mark: str, where: str) -> None:
        token = self._take()
        if token.text != mark:
            found = f'"{token.text}"' if token.text else "the end"
            raise SchemaError(f'"{mark}" is expected {where}, not {found}', token.offset)


def _type_hint(name: str, known: tuple[str, ...]) -> str:
    spark_names = {"TEXT": "STRING", "VARCHAR": "STRING", "CHAR": "STRING", "NUMBER": "DOUBLE", "DATETIME": "TIMESTAMP"}
    if name in spark_names:
        return f'; Spark calls it "{spark_names[name]}"'
    return nearest(name, known) or "; there are: " + ", ".join(sorted(known))
