"""What the schema files of the Kafka protocol say, and how they say it.

A schema file (`schemas/12_heartbeat.api`) is the one source of what a message looks like in each of its versions;
classes, codec and type stubs are made from it. One line per field, structures by indentation of four spaces, a
meaning after every `#`:

    api Heartbeat: key 12, versions 0-4, flexible 4+

    request                                        # A group member says that it is alive.
        group_id: string                           # The group that the member belongs to.
        group_instance_id: string?, 3+, default null    # The name of a static member; null for a dynamic one.

    response                                       # ...

- A file of an API starts with its `api` line: key, versions, and from which version on messages are *flexible*
  (compact lengths and tagged fields, KIP-482); then come `request` and `response`. Everything else starts with
  `header`, `record` or `data`, a name and versions: `record OffsetCommitKey: versions 0-1   # ...`. `open ended`
  after the versions says that a version above the highest is read as the highest.
- A field is `name: type, versions, ...`. Versions are `3`, `3-5` or `3+` and may be left out: then the field is in
  all.
- Types: bool, int8, int16, uint16, int32, uint32, int64, float64, uuid, string, bytes, records, a structure by name,
  and `[]` in front of any but records for an array of them. `?` behind the type: may be null in every version that
  has the field.
- `nullable 7+`: may be null in these versions. `default X`: the value of a field that a version lacks, and of one
  that is not given (without it 0, false, "", empty; records: null). `ignorable`: dropped without complaint when a
  value is written in a version that lacks the field; any other field must then be at its default. `tag 0`: a tagged
  field in all its versions (`tag 0 in 9+`: in these), left out when at its default. `int16 length`: never a compact
  length. `secret`: not shown by `repr`.
- The fields of a structure follow the field that names it first, indented; a structure of several uses is declared by
  a line `struct Name` ahead of the fields and belongs to the message.
- A structure that is a tagged field, not there and not given, is None.

`schema_reader.read_schema` checks all of this and raises `SchemaError` with file and line.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from barnabas.kernel.facts import fact

INTEGER_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint32": (0, (1 << 32) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}
FIXED_WIDTH_TYPES: Final = frozenset({*INTEGER_RANGES, "bool", "float64", "uuid"})
VARIABLE_WIDTH_TYPES: Final = frozenset({"string", "bytes", "records"})


class SchemaError(ValueError):
    """A schema file breaks the rules of the format; the text starts with `file:line:`."""

    def __init__(self, file: str, line: int, problem: str) -> None:
        super().__init__(f"{file}:{line}: {problem}")


class Kind(enum.Enum):
    """What a message is, as the schema file declares it."""

    REQUEST = "request"
    RESPONSE = "response"
    HEADER = "header"
    RECORD = "record"
    DATA = "data"


class Fresh(enum.Enum):
    """The default of a field whose empty value is mutable: every message gets its own."""

    LIST = "list"
    STRUCT = "struct"


Default = bool | int | float | str | bytes | Fresh | None


@fact
class Versions:
    """The versions `low` to `high`, both included; none if `high` is below `low`."""

    low: int
    high: int

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high + 1))

    def __bool__(self) -> bool:
        return self.low <= self.high

    def __str__(self) -> str:
        if not self:
            return "none"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"

    def within(self, other: Versions) -> bool:
        """True if every version of these is one of `other`."""
        return not self or (other.low <= self.low and self.high <= other.high)


NO_VERSIONS: Final = Versions(0, -1)


class FieldType(NamedTuple):
    """A type: a basic type's name or a structure's, or an array of them."""

    name: str
    is_array: bool

    @property
    def is_struct(self) -> bool:
        """True for a structure and for an array of structures."""
        return self.name not in FIXED_WIDTH_TYPES and self.name not in VARIABLE_WIDTH_TYPES

    def __str__(self) -> str:
        return f"[]{self.name}" if self.is_array else self.name


class Field(NamedTuple):
    """One field of a message or structure; `tag` is None unless it is tagged in `tagged_versions`."""

    name: str
    type: FieldType
    versions: Versions
    nullable_versions: Versions
    default: Default
    tag: int | None
    tagged_versions: Versions
    ignorable: bool
    int16_length: bool
    secret: bool
    meaning: str
    line: int

    @property
    def absent_is_none(self) -> bool:
        """True if the field may be None in Python because its tag was not there, though null is never written."""
        return self.tag is not None and self.type.is_struct and not self.type.is_array and not self.nullable_versions


class Struct(NamedTuple):
    """A structure; its name is unique in its message."""

    name: str
    fields: tuple[Field, ...]
    meaning: str


class Message(NamedTuple):
    """One message: its fields in the order of the wire, and the structures that they use, by name, inner ones first."""

    name: str
    kind: Kind
    api_key: int | None
    versions: Versions
    flexible_versions: Versions
    open_ended: bool
    fields: tuple[Field, ...]
    structs: Mapping[str, Struct]
    meaning: str
    file: str

    def __hash__(self) -> int:
        return hash((self.file, self.name))
