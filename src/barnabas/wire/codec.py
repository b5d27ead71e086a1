"""Messages to bytes and back.

For one message by its class: `encode`, `decode`, and with a version of two bytes ahead (records of internal topics,
the consumer protocol) `encode_prefixed` and `decode_prefixed`. For connections, where frames are many:
`request_decoder`, `response_encoder`, `request_encoder` and `response_decoder` return functions that are to be kept,
one per API and version; the first call for a pair compiles it.

Buffers that encoders return are sent in order; records are among them without being copied, so they must not change
until they are sent. Everything that is wrong with bytes from outside raises `ProtocolError`, every value that cannot
be written `EncodeError`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any, Final, TypeVar

from barnabas.kernel.steps import Steps
from barnabas.wire import catalogue, compiler_decode, compiler_encode, headers
from barnabas.wire.classes import Message
from barnabas.wire.primitives import Buffer, EncodeError, ProtocolError, skip_tagged_fields

AnyMessage = TypeVar("AnyMessage", bound=Message)
Decode = Callable[[Buffer, int, int], tuple[Any, int]]
"""(buffer, position, end) -> (message, position behind it)"""
EncodeFrame = Callable[[int, Any], list[Buffer]]
"""(correlation id, message) -> the whole frame: size, header, message"""
EncodeFrameInSteps = Callable[[int, Any], Steps[list[Buffer]]]

_VERSION: Final = struct.Struct(">h")
_SET_SIZE_AND_CORRELATION_ID: Final = struct.Struct(">ii").pack_into
_SET_INT32: Final = struct.Struct(">i").pack_into
_CORRELATION_ID_POSITION: Final = 8
"""In a request's frame it follows size, key and version."""


def encode(message: Message, version: int) -> list[Buffer]:
    """The message in `version`, as buffers that belong together.

    Raises `EncodeError` if it has no such version or holds what cannot be written in it.
    """
    name = type(message).__name__
    if version not in message.SCHEMA.versions:
        raise EncodeError(f"{name} has versions {message.SCHEMA.versions}, not {version}")
    return compiler_encode.encoder(name, version)(message, bytearray())


def encode_prefixed(message: Message, version: int) -> bytes:
    """The version as int16 and the message: the form of records of internal topics and of the consumer protocol.

    Raises `EncodeError` as `encode` does.
    """
    buffers = encode(message, version)
    return b"".join([_VERSION.pack(version), *buffers])


def encode_prefixed_in_steps(message: Message, version: int) -> Steps[bytes]:
    """As `encode_prefixed`, in steps, for messages of many elements."""
    buffers = yield from compiler_encode.step_encoder(type(message).__name__, version)(message, bytearray())
    return b"".join([_VERSION.pack(version), *buffers])


def decode(message_class: type[AnyMessage], version: int, buffer: Buffer) -> AnyMessage:
    """The message that fills `buffer`.

    Raises `ProtocolError` if there is no such version, the bytes are not such a message, or some are left over.
    """
    return _decode_from(message_class, version, buffer, 0, leftovers=False)


def decode_prefixed(message_class: type[AnyMessage], buffer: Buffer) -> tuple[int, AnyMessage]:
    """The version that stands ahead as int16, and the message that fills the rest of `buffer`.

    A message whose schema is open ended is read in our highest version if `buffer` has a higher one, whose additions
    at the end are ignored; for any other message a version that we do not know raises `ProtocolError`, as do broken
    and left over bytes.
    """
    version, readable = _prefix(message_class, buffer)
    return version, _decode_from(message_class, readable, buffer, _VERSION.size, leftovers=readable != version)


def decode_prefixed_in_steps(message_class: type[AnyMessage], buffer: Buffer) -> Steps[tuple[int, AnyMessage]]:
    """As `decode_prefixed`, in steps, for messages of many elements, however many: they come from our own log.

    The buffer must stay as it is until the end.
    """
    version, readable = _prefix(message_class, buffer)
    name = message_class.__name__
    _check_version(message_class, readable)
    decode_in_steps = compiler_decode.step_decoder(name, readable)
    message, position = yield from decode_in_steps(buffer, _VERSION.size, len(buffer), len(buffer))
    _check_left_over(name, readable, len(buffer) - position, leftovers=readable != version)
    return version, message


def _prefix(message_class: type[AnyMessage], buffer: Buffer) -> tuple[int, int]:
    """The version that stands ahead, and the one to read the message in."""
    if len(buffer) < _VERSION.size:
        raise ProtocolError(f"{message_class.__name__}: the bytes end within the version")
    (version,) = _VERSION.unpack_from(buffer)
    schema = message_class.SCHEMA
    return version, min(version, schema.versions.high) if schema.open_ended else version


def _decode_from(
    message_class: type[AnyMessage], version: int, buffer: Buffer, position: int, *, leftovers: bool
) -> AnyMessage:
    _check_version(message_class, version)
    name = message_class.__name__
    message: AnyMessage
    message, position = compiler_decode.decoder(name, version)(buffer, position, len(buffer))
    _check_left_over(name, version, len(buffer) - position, leftovers=leftovers)
    return message


def _check_version(message_class: type[AnyMessage], version: int) -> None:
    if version not in message_class.SCHEMA.versions:
        raise ProtocolError(f"{message_class.__name__} has versions {message_class.SCHEMA.versions}, not {version}")


def _check_left_over(name: str, version: int, count: int, *, leftovers: bool) -> None:
    if count and not leftovers:
        raise ProtocolError(f"{name} version {version}: {count} bytes are left over")


def request_decoder(api_key: int, version: int) -> Decode:
    """Decodes a request's body, which begins where `headers.read_request_header` says.

    Records in it are memoryviews of the buffer; everything else is copied. Raises `KeyError` for an unknown key,
    `ValueError` for an unknown version.
    """
    return compiler_decode.decoder(catalogue.request(api_key).name, version)


def request_step_decoder(api_key: int, version: int) -> compiler_decode.StepDecoder:
    """As `request_decoder`, in steps, for requests of many bytes; refuses more than `primitives.ELEMENTS_MAX` elements.

    The buffer must stay as it is until the end.
    """
    return compiler_decode.step_decoder(catalogue.request(api_key).name, version)


@functools.cache
def response_decoder(api_key: int, version: int) -> Decode:
    """Decodes a response that begins with its header, which is skipped: its correlation id is the int32 that it begins
    with.

    Records in it are memoryviews of the buffer; everything else is copied. Raises `KeyError` for an unknown key,
    `ValueError` for an unknown version.
    """
    name = catalogue.response(api_key).name
    decode_body = compiler_decode.decoder(name, version)
    if headers.response_header_version(api_key, version) == 0:
        return lambda buffer, position, end: decode_body(buffer, position + 4, end)

    def decode_response(buffer: Buffer, position: int, end: int) -> tuple[Any, int]:
        position += 5
        if position > end:
            raise ProtocolError(f"{name} version {version}: the bytes end within the header")
        tags = buffer[position - 1]
        if tags:
            position = skip_tagged_fields(buffer, position, end, tags)
        return decode_body(buffer, position, end)

    return decode_response


def response_in_steps(api_key: int, version: int, response: Buffer) -> Steps[Any]:
    """Decodes a response of many bytes, which begins with its header, in steps; otherwise as `response_decoder` does.

    The buffer must stay as it is until the end.
    """
    name = catalogue.response(api_key).name
    position, end = 4, len(response)
    if headers.response_header_version(api_key, version):
        if end < 5:
            raise ProtocolError(f"{name} version {version}: the bytes end within the header")
        position = skip_tagged_fields(response, 5, end, response[4]) if response[4] else 5
    # An element takes a byte and more: what has come bounds them.
    message, _ = yield from compiler_decode.step_decoder(name, version)(response, position, end, end)
    return message


@functools.cache
def response_encoder(api_key: int, version: int) -> EncodeFrame:
    """Encodes a response with size and header.

    Raises `KeyError` for an unknown key, `ValueError` for an unknown version.
    """
    encode_body = compiler_encode.encoder(catalogue.response(api_key).name, version)
    start = headers.response_header(api_key, version)

    def encode_response(correlation_id: int, message: Any) -> list[Buffer]:
        first = bytearray(start)
        return _framed(encode_body(message, first), first, correlation_id)

    return encode_response


@functools.cache
def response_step_encoder(api_key: int, version: int) -> EncodeFrameInSteps:
    """As `response_encoder`, in steps, for responses of many elements."""
    encode_body = compiler_encode.step_encoder(catalogue.response(api_key).name, version)
    start = headers.response_header(api_key, version)

    def encode_response(correlation_id: int, message: Any) -> Steps[list[Buffer]]:
        first = bytearray(start)
        return _framed((yield from encode_body(message, first)), first, correlation_id)

    return encode_response


def _framed(buffers: list[Buffer], first: bytearray, correlation_id: int) -> list[Buffer]:
    """The buffers of a response, of which the first begins with the header; size and correlation id are set in it."""
    size = len(first) if len(buffers) == 1 else sum(map(len, buffers))
    try:
        _SET_SIZE_AND_CORRELATION_ID(first, 0, size - headers.SIZE_BYTES, correlation_id)
    except struct.error as error:
        raise _unframable(size, correlation_id) from error
    return buffers


@functools.lru_cache(maxsize=1024)
def request_encoder(api_key: int, version: int, client_id: str | None) -> EncodeFrame:
    """Encodes a request with size and header, which carries `client_id`.

    Raises `KeyError` for an unknown key, `ValueError` for an unknown version.
    """
    encode_body = compiler_encode.encoder(catalogue.request(api_key).name, version)
    start = headers.request_header(api_key, version, client_id)

    def encode_request(correlation_id: int, message: Any) -> list[Buffer]:
        first = bytearray(start)
        return _framed_request(encode_body(message, first), first, correlation_id)

    return encode_request


def request_step_encoder(api_key: int, version: int, client_id: str | None) -> EncodeFrameInSteps:
    """As `request_encoder`, in steps, for requests of many elements; `set_correlation_id` may change the id after."""
    encode_body = compiler_encode.step_encoder(catalogue.request(api_key).name, version)
    start = headers.request_header(api_key, version, client_id)

    def encode_request(correlation_id: int, message: Any) -> Steps[list[Buffer]]:
        first = bytearray(start)
        return _framed_request((yield from encode_body(message, first)), first, correlation_id)

    return encode_request


def _framed_request(buffers: list[Buffer], first: bytearray, correlation_id: int) -> list[Buffer]:
    """As `_framed`, of a request."""
    size = len(first) if len(buffers) == 1 else sum(map(len, buffers))
    try:
        _SET_INT32(first, 0, size - headers.SIZE_BYTES)
        _SET_INT32(first, _CORRELATION_ID_POSITION, correlation_id)
    except struct.error as error:
        raise _unframable(size, correlation_id) from error
    return buffers


def set_correlation_id(frame: list[Buffer], correlation_id: int) -> list[Buffer]:
    """The frame of a request that was encoded in steps, with this id."""
    _SET_INT32(frame[0], _CORRELATION_ID_POSITION, correlation_id)
    return frame


def _unframable(size_bytes: int, correlation_id: object) -> EncodeError:
    return EncodeError(f"a frame of {size_bytes} bytes with the correlation id {correlation_id!r}: both must be int32")
