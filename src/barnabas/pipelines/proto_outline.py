"""Which messages a .proto file has, and where: all that a registry's framing needs of a writer's schema.

A record names its message by places: of the message in its file, of the one in that, and so on. Its bytes are read by
the descriptor set of the pipeline; so of the writer's text only names and their order count, no imports and no types.
Protocol Buffers, "Language Specification"; Confluent's client in Java counts the messages that the text has.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

MESSAGES_MAX: Final = 10_000
DEPTH_MAX: Final = 100
NAME_CHARACTERS_MAX: Final = 4_096
"""Of a full name. Each message in another has the other's name in its own."""
_TOKEN: Final = re.compile(
    r"""(?P<skipped>\s+|//[^\n]*|/\*(?:.*?\*/|.*))|(?P<text>"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?)"""
    r"""|(?P<word>[.]?[A-Za-z_][A-Za-z0-9_.]*)|(?P<sign>.)""",
    re.DOTALL,
)
_SIGNS: Final = ("{", "}", ";", '"')
"""One of these is in every text that says something, and none in base64."""
Places = dict[tuple[int, ...], str]
"""The full names of messages by their places."""


class ProtoOutlineError(ValueError):
    """A text is no .proto file, or has more than is looked at."""


@dataclass(slots=True)
class _Scope:
    """What is between two braces; of a message also its name and places."""

    name: str | None
    places: tuple[int, ...] = ()
    with_maps: tuple[int, ...] = ()
    messages: int = 0
    entries: int = 0
    """Maps in it: protoc makes a message of each, and some clients count those."""


@dataclass(slots=True)
class _Found:
    places: Places = field(default_factory=dict)
    others: Places = field(default_factory=dict)


def messages_of(schema: str) -> Places:
    """The messages of a schema: the text of a .proto file, or base64 of a FileDescriptorProto, as some clients write
    it. Places by which clients of Python and Go name a message, who count maps, are there too where they are free.

    Takes time that grows with the text. Raises ProtoOutlineError.
    """
    found = _Found()
    if not schema.strip():
        raise ProtoOutlineError("is empty")
    if any(sign in schema for sign in _SIGNS):
        _of_text(schema, found)
    else:
        _of_descriptor(schema, found)
    return {**found.others, **found.places}


def places_of(schema: str, message: str) -> str:
    """The places of the message of this full name, as JSON: a list of lists, empty where the schema does not have it.

    Raises ProtoOutlineError.
    """
    return json.dumps([list(places) for places, name in sorted(messages_of(schema).items()) if name == message])


def _of_text(text: str, found: _Found) -> None:
    scopes = [_Scope("")]
    statement: list[str] = []
    for word in _tokens(text):
        if word not in ("{", "}", ";"):
            if len(statement) < 3:
                statement.append(word)
            continue
        if statement[:2] == ["map", "<"]:
            scopes[-1].entries += 1
        if word == "{":
            if len(scopes) > DEPTH_MAX:
                raise ProtoOutlineError(f"is deeper than {DEPTH_MAX} levels")
            scopes.append(_opened(scopes[-1], statement, found))
        elif word == "}":
            if len(scopes) == 1:
                raise ProtoOutlineError("closes more than it opens")
            scopes.pop()
        elif statement[:1] == ["package"] and len(scopes) == 1 and len(statement) == 2:
            scopes[0].name = statement[1]
        statement = []
    if len(scopes) != 1 or statement:
        raise ProtoOutlineError("ends too early")


def _opened(outer: _Scope, statement: list[str], found: _Found) -> _Scope:
    """The scope that a brace opens: of a message, or of anything else, which has none that count."""
    if outer.name is None or len(statement) != 2 or statement[0] != "message":
        return _Scope(None)
    name = f"{outer.name}.{statement[1]}".lstrip(".")
    return _added(outer, name, found)


def _added(outer: _Scope, name: str, found: _Found) -> _Scope:
    if len(found.places) >= MESSAGES_MAX:
        raise ProtoOutlineError(f"has more than {MESSAGES_MAX} messages")
    if len(name) > NAME_CHARACTERS_MAX:
        raise ProtoOutlineError(f"has a name of more than {NAME_CHARACTERS_MAX} characters")
    inner = _Scope(name, (*outer.places, outer.messages), (*outer.with_maps, outer.messages + outer.entries))
    outer.messages += 1
    found.places[inner.places] = name
    found.others[inner.with_maps] = name
    return inner


def _of_descriptor(schema: str, found: _Found) -> None:
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    file = descriptor_pb2.FileDescriptorProto()
    try:
        file.ParseFromString(base64.b64decode(schema))
    except (DecodeError, binascii.Error, ValueError):
        raise ProtoOutlineError("is no descriptor of a file") from None
    outermost = _Scope(file.package)
    left = [(outermost, each) for each in reversed(file.message_type)]
    while left:
        outer, message = left.pop()
        if message.options.map_entry:
            outer.messages += 1
            continue
        inner = _added(outer, f"{outer.name}.{message.name}".lstrip("."), found)
        left += [(inner, each) for each in reversed(message.nested_type)]


def _tokens(text: str) -> Iterator[str]:
    for token in _TOKEN.finditer(text):
        if token.lastgroup != "skipped":
            yield token.group()
