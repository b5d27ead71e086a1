"""Target `messages`: request headers and all messages of the protocol, of every version."""

from __future__ import annotations

import struct
from typing import Final

from barnabas.wire import catalogue, codec, headers
from barnabas.wire.classes import message_class
from barnabas.wire.primitives import ProtocolError
from tests.support.wire_reference import encode_tree
from tests.support.wire_values import Shape, make_tree

PAIRS: Final = [(name, version) for name in catalogue.message_names() for version in catalogue.message(name).versions]
_HEAD: Final = struct.Struct(">H")
_HEADER_NUMBER: Final = len(PAIRS)
"""The number, in the first two bytes of an input, that stands for a request's header."""


def check_message(data: bytes) -> bool:
    """Two bytes that choose, then the message."""
    if len(data) < _HEAD.size:
        return False
    number = _HEAD.unpack_from(data)[0] % (len(PAIRS) + 1)
    body = data[_HEAD.size :]
    if number == _HEADER_NUMBER:
        return _check_header(body)
    name, version = PAIRS[number]
    kind = message_class(name)
    try:
        message = codec.decode(kind, version, body)
    except ProtocolError:
        return False
    encoded = b"".join(codec.encode(message, version))
    again = codec.decode(kind, version, encoded)
    # Not the messages are compared: a float may be no number, which is not equal to itself.
    if b"".join(codec.encode(again, version)) != encoded:
        raise AssertionError(f"{name} version {version} is not the same when it was encoded and decoded")
    return True


def _check_header(body: bytes) -> bool:
    try:
        end = headers.read_request_header(body, 0, len(body))[4]
    except ProtocolError:
        return False
    if not 0 < end <= len(body):
        raise AssertionError(f"a header of {len(body)} bytes ends at {end}")
    return True


def message_seeds() -> list[bytes]:
    """Of each message the lowest and the highest version."""
    seeds = [_HEAD.pack(_HEADER_NUMBER) + bytes.fromhex("0003000c000000010004") + b"name\x00"]
    for name in catalogue.message_names():
        schema = catalogue.message(name)
        versions = list(schema.versions)
        for version in sorted({versions[0], versions[-1]}):
            data = encode_tree(schema, version, make_tree(schema, version, Shape.MIXED))
            seeds.append(_HEAD.pack(PAIRS.index((name, version))) + data)
    return seeds
