"""Generates, when Barnabas is built, what a process would otherwise make of the schema files at each start.

`python -m barnabas.wire.generating` writes a module per schema file into the folder `generated`; the wheel's build hook
does the same. `generated_code` finds them. Each has the rows of the file's messages, and the code of their classes and
of their newest version's decoder and encoder: the very text that would be compiled without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final

from barnabas.kernel.real_files import RealFiles
from barnabas.wire import catalogue, classes, compiler_decode, compiler_encode, generated_code, schema_rows
from barnabas.wire.compiler import Source
from barnabas.wire.schema import Message

_WRITERS: Final = {"decode": compiler_decode.written, "encode": compiler_encode.written}
_ALSO: Final = {"ApiVersionsRequest": (3,), "ApiVersionsResponse": (3,)}
"""Versions that are in use beside the newest: clients begin with it."""
_HEAD: Final = '''\
"""Generated from {file} by `python -m barnabas.wire.generating`; not to be edited, not to be committed."""

FRESH = object()
INITIALISERS = {{}}
CODEC = {{}}
'''


def texts() -> dict[str, str]:
    """The text of every file of the folder, by its name."""
    return {f"{generated_code.module_name(file)}.py": text(file) for file in catalogue.file_names()}


def text(file: str) -> str:
    """The module of a schema file."""
    messages = catalogue.messages_of(file)
    lines = [_HEAD.format(file=file), f"MESSAGES = {tuple(map(schema_rows.row, messages))!r}"]
    for message in messages:
        lines += _initialisers(message)
        for version in (*_ALSO.get(message.name, ()), message.versions.high):
            for kind, write in _WRITERS.items():
                lines += _function(write(message.name, version), kind)
    # Last of all: a file that was not written to its end has none.
    return "\n".join([*lines, f'MADE_OF = "{generated_code.made_of(file)}"', ""])


def _initialisers(message: Message) -> Iterator[str]:
    yield from classes.initialisers(message)
    for name in (*message.structs, message.name):
        yield f"INITIALISERS[{message.name!r}, {name!r}] = init_{name}"


def _function(source: Source, kind: str) -> Iterator[str]:
    yield from source.lines
    references = tuple(source.references.items())
    yield f"CODEC[{source.message.name!r}, {source.version}, {kind!r}] = {kind}, {references!r}"


def write(folder: str, files: Mapping[str, str]) -> None:
    """Writes the files into the folder, each as a whole or not at all; removes modules that are not among them.

    Raises OSError.
    """
    port = RealFiles()
    port.make_directories(folder)
    for name, content in files.items():
        path = f"{folder}/{name}"
        passing = f"{path}.{os.getpid()}"
        descriptor = port.open(passing, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            left = memoryview(content.encode())
            while left:
                left = left[port.write(descriptor, left) :]
        finally:
            port.close(descriptor)
        port.rename(passing, path)
    for name in port.list_directory(folder):
        if name not in files and name.endswith(".py"):
            port.unlink(f"{folder}/{name}")


def main() -> None:
    """Writes the folder into the package that this module is a part of."""
    write(generated_code.FOLDER, texts())


if __name__ == "__main__":
    main()
