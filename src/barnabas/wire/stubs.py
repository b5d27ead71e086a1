"""Writes the type stubs of the messages, so that type checkers see every field of classes which are made at run time.

`python -m barnabas.wire.stubs` writes `messages.pyi` beside `messages.py`; the wheel's build hook does the same. The
file is generated wherever it is needed and never committed.
"""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Iterator
from typing import Final

from barnabas.kernel.real_files import RealFiles
from barnabas.wire import catalogue, schema
from barnabas.wire.classes import may_be_none
from barnabas.wire.schema import Field

FILE_NAME: Final = "messages.pyi"
_HEAD: Final = """\
# Generated from the schema files by `python -m barnabas.wire.stubs`; not to be edited, not to be committed.
from dataclasses import dataclass

from barnabas.wire.classes import Message, Structure
from barnabas.wire.primitives import Buffer
"""
_DECORATOR: Final = "@dataclass(repr=False, eq=False, kw_only=True, slots=True)"
_TYPES: Final = {
    **dict.fromkeys(schema.INTEGER_RANGES, "int"),
    "bool": "bool",
    "float64": "float",
    "uuid": "bytes",
    "string": "str",
    "bytes": "bytes",
    "records": "Buffer",
}


def stubs() -> str:
    """The text of the stub file."""
    lines = [_HEAD]
    for name in catalogue.message_names():
        lines += _message(catalogue.message(name))
    return "\n".join(lines) + "\n"


def annotation(field: Field, owner: str) -> str:
    """The Python type of a field of the message `owner`, in whose class its structures are."""
    name = _TYPES.get(field.type.name) or f"{owner}.{field.type.name}"
    if field.type.is_array:
        name = f"list[{name}]"
    return f"{name} | None" if may_be_none(field) else name


def _message(message: schema.Message) -> Iterator[str]:
    yield from ("", _DECORATOR, f"class {message.name}(Message):")
    for struct in message.structs.values():
        yield from (f"    {_DECORATOR}", f"    class {struct.name}(Structure):")
        yield from _fields(struct.fields, message.name, "        ")
        yield ""
    yield from _fields(message.fields, message.name, "    ")


def _fields(fields: tuple[Field, ...], owner: str, indent: str) -> Iterator[str]:
    for field in fields:
        yield f"{indent}{field.name}: {annotation(field, owner)} = ..."
    if not fields:
        yield f"{indent}..."


def main() -> None:
    """Writes the stub file into the package that this module is a part of."""
    path = str(importlib.resources.files("barnabas.wire").joinpath(FILE_NAME))
    files = RealFiles()
    descriptor = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        text = memoryview(stubs().encode())
        while text:
            text = text[files.write(descriptor, text) :]
    finally:
        files.close(descriptor)


if __name__ == "__main__":
    main()
