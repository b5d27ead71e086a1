"""Messages that are made of plain data, and the errors in them."""

from __future__ import annotations

import dataclasses
from typing import Any

from barnabas.wire.classes import Structure
from barnabas.wire.errors import ErrorCode


def made(kind: Any, fields: dict[str, Any], ids: dict[str, bytes]) -> Any:
    """A message of fields, of which structures are dictionaries; `ID:topic` is the id of that topic."""
    return _made(kind, kind.SCHEMA.fields, kind, fields, ids)


def _made(kind: Any, known: Any, message: Any, fields: dict[str, Any], ids: dict[str, bytes]) -> Any:
    types = {field.name: field.type.name for field in known}
    structs = message.SCHEMA.structs

    def value(name: str, given: Any) -> Any:
        if isinstance(given, dict):
            struct = structs[types[name]]
            return _made(getattr(message, struct.name), struct.fields, message, given, ids)
        if isinstance(given, list):
            return [value(name, each) for each in given]
        return ids[given[3:]] if isinstance(given, str) and given.startswith("ID:") else given

    return kind(**{name: value(name, given) for name, given in fields.items()})


def errors(response: Any) -> set[str]:
    """The names of all errors in a response, but why configs are not told, which is no failure."""
    found: set[str] = set()
    for field in dataclasses.fields(response):
        value = getattr(response, field.name)
        if field.name.endswith("error_code") and value and field.name != "topic_config_error_code":
            found.add(ErrorCode.for_code(value).name)
        for each in value if isinstance(value, list) else ():
            if isinstance(each, Structure):
                found |= errors(each)
    return found
