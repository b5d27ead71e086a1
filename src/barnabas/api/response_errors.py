"""Finds the errors that a response carries, wherever its schema has them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from barnabas.wire import catalogue
from barnabas.wire.classes import Message
from barnabas.wire.schema import Field

_ERROR_CODE: Final = "error_code"


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a structure has errors: a code of its own, and in its fields (name, is an array, what is in it)."""

    has_code: bool
    inner: tuple[tuple[str, bool, _Places], ...]


def errors_of(response: Message) -> Iterator[int]:
    """The codes other than NONE of all fields called `error_code`."""
    return _errors_in(response, _places_of(type(response).__name__))


def _errors_in(structure: Any, places: _Places) -> Iterator[int]:
    if places.has_code and structure.error_code:
        yield int(structure.error_code)
    for name, is_array, inner in places.inner:
        value = getattr(structure, name)
        if value is None:
            continue
        for element in value if is_array else (value,):
            yield from _errors_in(element, inner)


@functools.cache
def _places_of(message_name: str) -> _Places:
    message = catalogue.message(message_name)
    structs = message.structs

    def places(fields: tuple[Field, ...]) -> _Places:
        found = []
        for field in fields:
            if field.type.is_struct:
                inner = places(structs[field.type.name].fields)
                if inner.has_code or inner.inner:
                    found.append((field.name, field.type.is_array, inner))
        return _Places(any(field.name == _ERROR_CODE for field in fields), tuple(found))

    return places(message.fields)
