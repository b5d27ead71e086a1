"""Rows as Avro's binary encoding, for tests of pipelines: what is given has columns, and the pipeline decodes them.

Apache Avro 1.12, "Binary Encoding". A value takes the first branch of a union that it fits.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_BOUNDS: Final = {"int": 2**31, "long": 2**63}
_UNITS: Final = {
    "timestamp-millis": 1_000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1_000,
    "local-timestamp-micros": 1,
}
"""Microseconds of a unit."""


def encode(schema: str, columns: Mapping[str, object]) -> bytes:
    """A record of the schema (JSON) with these fields; those that are missing are null, or their default.

    Raises ValueError, in words, for a value that is not of its field's type.
    """
    return encode_value(schema, columns, "the record")


def encode_value(schema: str, value: object, place: str) -> bytes:
    """A value of a schema of any type (JSON); `place` is how messages call it. Raises as `encode` does."""
    parsed, encoder = json.loads(schema), _Encoder()
    encoder.note(parsed, "")
    return encoder.value(parsed, value, "", place)


class _Encoder:
    """Encodes values, with the names that were defined on the way."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[Mapping[str, Any], str]] = {}

    def note(self, schema: Any, namespace: str) -> None:
        """Takes note of all names that are defined: a type may be named behind a branch of a union that no value takes,
        in which it is defined.
        """
        if isinstance(schema, list):
            for branch in schema:
                self.note(branch, namespace)
        if not isinstance(schema, dict):
            return
        if "name" in schema and schema.get("type") in _NAMED:
            namespace = self._define(schema, namespace)
        for inner in (schema.get("type"), schema.get("items"), schema.get("values")):
            self.note(inner, namespace)
        for field in schema.get("fields", ()):
            self.note(field["type"], namespace)

    def value(self, schema: Any, value: object, namespace: str, place: str) -> bytes:
        """The value's bytes; `place` is how messages call it."""
        if isinstance(schema, list):
            return self._union(schema, value, namespace, place)
        if isinstance(schema, str):
            full = schema if "." in schema else f"{namespace}.{schema}".lstrip(".")
            named = self._named.get(full) or self._named.get(schema)
            return (
                self.value({"type": schema}, value, namespace, place)
                if named is None
                else self.value(named[0], value, named[1], place)
            )
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.value(kind, value, namespace, place)
        if "name" in schema and kind in _NAMED:
            namespace = self._define(schema, namespace)
        return self._of_kind(kind, schema, value, namespace, place)

    def _of_kind(self, kind: str, schema: Mapping[str, Any], value: object, namespace: str, place: str) -> bytes:
        if kind in {"record", "error"}:
            return self._record(schema, value, namespace, place)
        if kind == "array":
            items = _as(value, list, place, "a list")
            inner = [self.value(schema["items"], each, namespace, place) for each in items]
            return _blocks(inner)
        if kind == "map":
            pairs = _as(value, Mapping, place, "a block of keys").items()
            return _blocks(
                [_text(str(key)) + self.value(schema["values"], each, namespace, place) for key, each in pairs]
            )
        encode = _SIMPLE.get(kind)
        if encode is None:
            raise ValueError(f"{place}: there is no type {kind}")
        return encode(schema, value, place)

    def _define(self, schema: Mapping[str, Any], namespace: str) -> str:
        name, space = schema["name"], schema.get("namespace", namespace)
        full = name if "." in name else f"{space}.{name}".lstrip(".")
        inner = full.rpartition(".")[0]
        self._named[full] = (schema, inner)
        return inner

    def _record(self, schema: Mapping[str, Any], value: object, namespace: str, place: str) -> bytes:
        given = _as(value, Mapping, place, "a block of keys")
        known = [field["name"] for field in schema["fields"]]
        strange = [name for name in given if name not in known]
        if strange:
            raise ValueError(f'{place} has no field "{strange[0]}"; it has: {", ".join(known)}')
        parts = []
        for field in schema["fields"]:
            name = field["name"]
            parts.append(self.value(field["type"], given.get(name, field.get("default")), namespace, f"{name}"))
        return b"".join(parts)

    def _union(self, branches: Sequence[Any], value: object, namespace: str, place: str) -> bytes:
        faults = []
        for number, branch in enumerate(branches):
            try:
                return _whole(number) + self.value(branch, value, namespace, place)
            except ValueError as error:
                faults.append(str(error))
        raise ValueError(faults[-1])


def _whole(number: int) -> bytes:
    left, written = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        written.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*written, left])


def _text(value: str) -> bytes:
    content = value.encode()
    return _whole(len(content)) + content


def _blocks(items: Sequence[bytes]) -> bytes:
    return b"".join([_whole(len(items)), *items, b"\0"]) if items else b"\0"


def _as(value: object, kind: Any, place: str, words: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{place} is {value!r}, and must be {words}")  # what was written is wrong
    return value


def _null(_schema: object, value: object, place: str) -> bytes:
    if value is not None:
        raise ValueError(f"{place} is {value!r}, and must be null")
    return b""


def _boolean(_schema: object, value: object, place: str) -> bytes:
    return bytes([_as(value, bool, place, "true or false")])


def _integer(schema: Mapping[str, Any], value: object, place: str) -> bytes:
    logical = schema.get("logicalType")
    if logical == "date" and not isinstance(value, int):
        value = _date(value, place).toordinal() - _EPOCH.toordinal()
    elif logical in _UNITS and not isinstance(value, int):
        value = (_time(value, place) - _EPOCH) // dt.timedelta(microseconds=_UNITS[str(logical)])
    number: int = _as(value, int, place, "a whole number")
    bound = _BOUNDS[schema["type"]]
    if not -bound <= number < bound:
        raise ValueError(f"{place} is {number}, more than an Avro {schema['type']} holds")
    return _whole(number)


def _date(value: object, place: str) -> dt.date:
    if isinstance(value, dt.date):
        return value
    return dt.date.fromisoformat(_as(value, str, place, "a date such as 2013-01-01"))


def _time(value: object, place: str) -> dt.datetime:
    if not isinstance(value, dt.datetime):
        value = dt.datetime.fromisoformat(_as(value, str, place, "a time such as 2013-01-01T05:00:00Z"))
    return value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)


def _real(schema: Mapping[str, Any], value: object, place: str) -> bytes:
    number = _as(value, int | float, place, "a number")
    return struct.pack("<f" if schema["type"] == "float" else "<d", number)


def _string(_schema: object, value: object, place: str) -> bytes:
    return _text(_as(value, str, place, "text"))


def _bytes(schema: Mapping[str, Any], value: object, place: str) -> bytes:
    content = _content(schema, value, place)
    return _whole(len(content)) + content


def _fixed(schema: Mapping[str, Any], value: object, place: str) -> bytes:
    size = int(schema["size"])
    if schema.get("logicalType") == "decimal":
        return _unscaled(schema, value, place).to_bytes(size, "big", signed=True)
    content = _content(schema, value, place)
    if len(content) != size:
        raise ValueError(f"{place} has {len(content)} bytes, and must have {size}")
    return content


def _content(schema: Mapping[str, Any], value: object, place: str) -> bytes:
    if schema.get("logicalType") == "decimal":
        unscaled = _unscaled(schema, value, place)
        return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    return value.encode() if isinstance(value, str) else bytes(_as(value, bytes, place, "text or !!binary"))


def _unscaled(schema: Mapping[str, Any], value: object, place: str) -> int:
    number = decimal.Decimal(str(_as(value, int | float | str | decimal.Decimal, place, "a number")))
    scaled = number.scaleb(int(schema.get("scale", 0)))
    if not scaled.is_finite() or scaled != scaled.to_integral_value() or abs(scaled) >= 10 ** int(schema["precision"]):
        raise ValueError(
            f"{place} is {value}, which DECIMAL({schema['precision']}, {schema.get('scale', 0)}) does not hold"
        )
    return int(scaled)


def _enum(schema: Mapping[str, Any], value: object, place: str) -> bytes:
    symbols = list(schema["symbols"])
    if value not in symbols:
        raise ValueError(f"{place} is {value!r}, and must be one of {', '.join(symbols)}")
    return _whole(symbols.index(value))


_SIMPLE: Final[Mapping[str, Callable[[Mapping[str, Any], object, str], bytes]]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _integer,
    "long": _integer,
    "float": _real,
    "double": _real,
    "string": _string,
    "bytes": _bytes,
    "fixed": _fixed,
    "enum": _enum,
}
