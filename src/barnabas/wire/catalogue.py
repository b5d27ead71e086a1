"""Which messages there are: finds and reads the schema files, each on first use.

The file of an API is named by key and name, so that a key or a message's name leads to its file without reading any
other.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from typing import Final

from barnabas.wire.schema import Message, SchemaError, read_schema

_API_FILE: Final = re.compile(r"(\d\d)_([a-z_]+)\.api")
_SUFFIXES: Final = (".api", ".record")


@functools.cache
def _files() -> Mapping[str, Traversable]:
    folder = importlib.resources.files("barnabas.wire").joinpath("schemas")
    found = (entry for entry in folder.iterdir() if entry.name.endswith(_SUFFIXES))
    return {entry.name: entry for entry in sorted(found, key=lambda entry: entry.name)}


@functools.cache
def _messages_of(file: str) -> tuple[Message, ...]:
    messages = read_schema(file, _files()[file].read_text(encoding="utf-8"))
    named = _API_FILE.fullmatch(file)
    if named is not None and (messages[0].api_key, messages[0].name) != (
        int(named[1]),
        _camel_case(named[2]) + "Request",
    ):
        raise SchemaError(file, 1, f"the name of the file says another key or name than {messages[0].name}")
    return messages


def _camel_case(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


@functools.cache
def api_names() -> Mapping[int, str]:
    """Every API by key: {12: "Heartbeat", ...}."""
    named = (_API_FILE.fullmatch(file) for file in _files())
    return {int(match[1]): _camel_case(match[2]) for match in named if match is not None}


@functools.cache
def _places() -> Mapping[str, str]:
    """The file of each message by the message's name; of the files that no API names, the content is read."""
    places: dict[str, str] = {}
    for file in _files():
        match = _API_FILE.fullmatch(file)
        if match is not None:
            name = _camel_case(match[2])
            places |= {f"{name}Request": file, f"{name}Response": file}
        else:
            places |= {message.name: file for message in _messages_of(file)}
    return places


def message_names() -> tuple[str, ...]:
    """The names of all messages, sorted."""
    return tuple(sorted(_places()))


@functools.cache
def message(name: str) -> Message:
    """The schema of the message `name`, such as `FetchRequest`.

    Raises `KeyError` if there is none, `SchemaError` if it is wrong.
    """
    return next(found for found in _messages_of(_places()[name]) if found.name == name)


def request(api_key: int) -> Message:
    """The schema of the request of an API. Raises `KeyError` if there is no such key."""
    return message(f"{api_names()[api_key]}Request")


def response(api_key: int) -> Message:
    """The schema of the response of an API. Raises `KeyError` if there is no such key."""
    return message(f"{api_names()[api_key]}Response")
