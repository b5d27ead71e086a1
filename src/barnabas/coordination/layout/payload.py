"""JSON payloads of znodes: strict reading that names the znode, and writing as compact as Kafka's.

A payload's dataclass has an `encode()` and a class method `decode(data, path)`; what a znode holds beyond the known
fields is kept in `extra` and written back behind them, so that a rewrite loses nothing a newer Kafka has put there.
Decoding raises `LayoutError` only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn

from barnabas.coordination.errors import CoordinationError


class _Empty(Mapping[str, Any]):
    """No fields. Hashable, so that it can be the default of a dataclass's field."""

    __slots__ = ()

    def __getitem__(self, name: str) -> NoReturn:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "{}"


NO_EXTRA: Mapping[str, Any] = _Empty()
EPOCH_MAX: Final = 2**31 - 2**20
"""The last epoch that is believed. Every election adds one to it, and requests have 32 bits for it: one without room
for that can only be a mistake, and a request that cannot be encoded would keep all later ones from the broker.
"""
_SHOWN_BYTES = 200
_INT32 = 2**31
_INT64 = 2**63


class LayoutError(CoordinationError, ValueError):
    """A znode whose payload is not what Kafka writes there."""

    def __init__(self, path: str, complaint: str) -> None:
        super().__init__(path, complaint)
        self.path = path
        self.complaint = complaint

    def __str__(self) -> str:
        return f"{self.path}: {self.complaint}"


def encode_json(fields: Mapping[str, Any], extra: Mapping[str, Any] = NO_EXTRA) -> bytes:
    """Compact JSON in UTF-8, the known fields first; known fields win over extra ones of the same name."""
    whole = {**fields, **{name: value for name, value in extra.items() if name not in fields}} if extra else fields
    return _ENCODER.encode(whole).encode()


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False, allow_nan=False)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large a number")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def decode_text(data: bytes | None, path: str) -> str:
    """The payload as text; a znode without data is an error."""
    if not data:
        raise LayoutError(path, "the znode has no data")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise LayoutError(path, f"the data is not UTF-8 ({error.reason}): {_shown(data)}") from None


def decode_number(data: bytes | None, path: str) -> int:
    """A payload that is one decimal number, as those of `/controller_epoch` and consumer offsets are."""
    text = decode_text(data, path).strip()
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise LayoutError(path, f"a number was expected: {_shown(text.encode())}")
    return int(text)


def decode_json(data: bytes | None, path: str) -> dict[str, Any]:
    """The payload's JSON object."""
    text = decode_text(data, path)
    try:
        value = _DECODER.decode(text)
        if "\\u" in text:
            # Half a surrogate pair can be escaped, but not be written again.
            _ENCODER.encode(value).encode()
    except (ValueError, RecursionError) as error:
        raise LayoutError(path, f"the data is not JSON ({error}): {_shown(text.encode())}") from None
    if not isinstance(value, dict):
        raise LayoutError(path, f"a JSON object was expected: {_shown(text.encode())}")
    return value


def _shown(data: bytes) -> str:
    return repr(data if len(data) <= _SHOWN_BYTES else data[:_SHOWN_BYTES] + b"...")


class Fields:
    """One JSON object, read field by field; `rest` is what nobody asked for."""

    __slots__ = ("_left", "_where", "path")

    def __init__(self, value: Mapping[str, Any], path: str, where: str = "") -> None:
        self._left = dict(value)
        self._where = where
        self.path = path

    @classmethod
    def decode(cls, data: bytes | None, path: str) -> Fields:
        return cls(decode_json(data, path), path)

    def rest(self) -> Mapping[str, Any]:
        """The fields that were not taken."""
        return MappingProxyType(self._left) if self._left else NO_EXTRA

    def has(self, name: str) -> bool:
        """Whether the field is there, is not null and has not been taken."""
        return self._left.get(name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        """A 32-bit integer."""
        return self._number(name, default, _INT32)

    def long(self, name: str, default: int | None = None) -> int:
        """A 64-bit integer."""
        return self._number(name, default, _INT64)

    def epoch(self, name: str) -> int:
        """A number that elections add one to: from 0 to EPOCH_MAX."""
        value = self.integer(name)
        if not 0 <= value <= EPOCH_MAX:
            raise self.wrong(name, f"an epoch from 0 to {EPOCH_MAX}", value)
        return value

    def text(self, name: str) -> str:
        value = self._take(name)
        if not isinstance(value, str):
            raise self.wrong(name, "a string", value)
        return value

    def optional_text(self, name: str) -> str | None:
        if self.has(name):
            return self.text(name)
        self._discard(name)
        return None

    def optional_integer(self, name: str) -> int | None:
        """A 32-bit integer; None where there is none, or null."""
        if self.has(name):
            return self.integer(name)
        self._discard(name)
        return None

    def decimal(self, name: str, default: int | None = None) -> int:
        """A 64-bit integer that is written as a string."""
        if default is not None and not self.has(name):
            self._discard(name)
            return default
        value = self._take(name)
        if isinstance(value, str):
            digits = value.removeprefix("-")
            if digits.isascii() and digits.isdigit() and len(digits) < 20 and -_INT64 <= int(value) < _INT64:
                return int(value)
        raise self.wrong(name, "a number in a string", value)

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._take(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "a list of strings", value)
        return tuple(value)

    def broker_ids(self, name: str) -> tuple[int, ...]:
        return self.as_broker_ids(name, self._take(name))

    def as_broker_ids(self, name: str, value: Any) -> tuple[int, ...]:
        """Checks a list of 32-bit integers."""
        if not isinstance(value, list):
            raise self.wrong(name, "a list of broker ids", value)
        for item in value:
            if type(item) is not int or not -_INT32 <= item < _INT32:
                raise self.wrong(name, "a list of broker ids", value)
        return tuple(value)

    def objects(self, name: str) -> list[Fields]:
        """A list of objects."""
        return list(self.each_object(name))

    def each_object(self, name: str) -> Iterator[Fields]:
        """A list of objects, of which there may be very many, one after the other."""
        value = self._take(name)
        if not isinstance(value, list):
            raise self.wrong(name, "a list of objects", value)
        for index, item in enumerate(value):
            if not isinstance(item, dict):
                raise self.wrong(name, "a list of objects", value)
            yield Fields(item, self.path, f"{self._name(name)}[{index}]")

    def mapping(self, name: str) -> dict[str, Any]:
        """An object whose names are data; empty when the field is missing."""
        value = self._left.pop(name, None)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.wrong(name, "an object", value)
        return value

    def wrong(self, name: str, expected: str, value: Any) -> LayoutError:
        """The error that says what the field should have been."""
        return LayoutError(self.path, f"{self._name(name)} should be {expected}, but is {_shown(repr(value).encode())}")

    def _number(self, name: str, default: int | None, limit: int) -> int:
        if default is not None and not self.has(name):
            self._discard(name)
            return default
        value = self._take(name)
        if type(value) is not int or not -limit <= value < limit:
            raise self.wrong(name, f"an integer of {limit.bit_length()} bits", value)
        return value

    def _take(self, name: str) -> Any:
        if name not in self._left:
            raise LayoutError(self.path, f"{self._name(name)} is missing")
        return self._left.pop(name)

    def _discard(self, name: str) -> None:
        self._left.pop(name, None)

    def _name(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name
