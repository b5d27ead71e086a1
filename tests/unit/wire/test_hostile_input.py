"""Bytes that are not what the protocol prescribes: always `ProtocolError`, soon, and without large allocations."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from typing import Any, Final

import hypothesis
import pytest
from hypothesis import strategies

from barnabas.wire import catalogue, codec, compiler_decode, headers
from barnabas.wire.classes import message_class
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.schema import FIXED_WIDTH_TYPES, Field, Message
from tests.support.examples import examples
from tests.support.wire_reference import encode_tree, encode_with_lies, unsigned_varint
from tests.support.wire_values import Shape, Tree, fields_of, is_tagged, make_tree

MESSAGES: Final = catalogue.message_names()
every_message = pytest.mark.parametrize("name", MESSAGES)

# What a peer may write anywhere: int32, int16 and varint at their extremes, endless varints, and small numbers.
INTRUDERS: Final = (
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xfe",
    b"\x7f\xff",
    b"\x80\x00",
    b"\xff\xfe",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x80\x80",
    b"\x80\x80\x01",
    b"\x00",
    b"\x7f",
)
POSITIONS_MAX: Final = 16
"""At most so many positions of one message are tried, evenly spread."""
ANNOUNCED: Final = (2**32 - 2, 2**31 - 1, 32_767, 20_000)
"""Lengths and counts that no message here can have."""

# A decoded message takes more memory than its bytes: an element of a list takes 8 bytes, an object of many fields 150,
# and the shortest of them come from 3 bytes. A hostile count would show as thousands of times the input.
ALLOCATED_PER_BYTE_MAX: Final = 100
ALLOCATED_BYTES_MAX: Final = 16_384
"""On top of that, for the message itself, the error, and a copy of the input."""


def decode_or_refuse(schema: Message, version: int, data: bytes) -> bool:
    """True if `data` decodes, False if it is refused as it should be; any other exception goes through."""
    try:
        codec.decode(message_class(schema.name), version, data)
    except ProtocolError:
        return False
    except Exception as error:
        error.add_note(f"{schema.name} version {version} from bytes.fromhex({data.hex()!r})")
        raise
    return True


def positions(data: bytes) -> range:
    return range(0, len(data), max(1, len(data) // POSITIONS_MAX))


def encoded_trees(schema: Message, version: int) -> Iterator[bytes]:
    for shape in (Shape.EMPTY, Shape.FULL, Shape.MIXED):
        yield encode_tree(schema, version, make_tree(schema, version, shape))


@every_message
def test_truncated_at_any_byte_is_refused(name: str) -> None:
    schema = catalogue.message(name)
    for version in schema.versions:
        decode_frame = compiler_decode.decoder(name, version)
        for data in encoded_trees(schema, version):
            for end in range(len(data)):
                with pytest.raises(ProtocolError):
                    decode_frame(data[:end], 0, end)
            for end in positions(data):
                # The same end inside a longer buffer: what follows belongs to the next frame and must not be used.
                with pytest.raises(ProtocolError):
                    decode_frame(b"\xff\xff" + data, 2, 2 + end)


@every_message
def test_bytes_left_over_are_refused(name: str) -> None:
    schema = catalogue.message(name)
    for version in schema.versions:
        for data in encoded_trees(schema, version):
            assert decode_or_refuse(schema, version, data)
            assert not decode_or_refuse(schema, version, data + b"\x00"), f"version {version}, {data.hex()}"


@every_message
def test_lengths_and_counts_that_lie_are_refused_and_allocate_little(name: str) -> None:
    schema = catalogue.message(name)
    for version in schema.versions:
        tree = make_tree(schema, version, Shape.FULL)
        decode_or_refuse(schema, version, encode_tree(schema, version, tree))  # what is kept for ever is not counted
        # Made beforehand, as tracing slows whatever allocates; without those that announced the same most.
        lies = {data: None for announced in ANNOUNCED for data in encode_with_lies(schema, version, tree, announced)}
        tracemalloc.start()
        try:
            for data in lies:
                assert not check_allocation(schema, version, data), f"version {version}, {data.hex()}"
        finally:
            tracemalloc.stop()


@every_message
def test_numbers_written_over_anything_are_refused_or_decoded(name: str) -> None:
    schema = catalogue.message(name)
    for version in schema.versions:
        data = encode_tree(schema, version, make_tree(schema, version, Shape.FULL))
        for position in positions(data):
            for intruder in INTRUDERS:
                decode_or_refuse(schema, version, data[:position] + intruder + data[position + len(intruder) :])


def check_allocation(schema: Message, version: int, data: bytes) -> bool:
    """`decode_or_refuse`, under tracemalloc."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    decoded = decode_or_refuse(schema, version, data)
    allocated = tracemalloc.get_traced_memory()[1] - before
    allowed = ALLOCATED_BYTES_MAX + ALLOCATED_PER_BYTE_MAX * len(data)
    assert allocated <= allowed, f"{schema.name} version {version}: {allocated} bytes for {data.hex()}"
    return decoded


@every_message
def test_many_small_elements_allocate_in_proportion(name: str) -> None:
    schema = catalogue.message(name)
    for version in schema.versions:
        tree = make_tree(schema, version, Shape.EMPTY)
        for field in fields_of(schema.fields, version):
            if field.type.is_array:
                element = make_tree(schema, version, Shape.LONG)[field.name][-1]
                tree[field.name] = [element] * 100
        data = encode_tree(schema, version, tree)
        decode_or_refuse(schema, version, data)
        tracemalloc.start()
        try:
            check_allocation(schema, version, data)
        finally:
            tracemalloc.stop()


@every_message
def test_random_bytes_and_flipped_bits_are_refused_or_decoded(name: str) -> None:
    schema = catalogue.message(name)
    generator = random.Random(name)
    for version in schema.versions:
        refused = 0
        for length in range(40):
            refused += not decode_or_refuse(schema, version, generator.randbytes(length))
            # Small numbers are plausible counts and lengths, and lead further in.
            small = bytes(generator.choices((0, 1, 2, 3, 127, 128, 255), k=length * 2))
            refused += not decode_or_refuse(schema, version, small)
        assert refused > 40
        for data in encoded_trees(schema, version):
            for position in positions(data):
                flipped = bytearray(data)
                flipped[position] ^= 1 << generator.randrange(8)
                decode_or_refuse(schema, version, bytes(flipped))


@every_message
def test_null_where_none_is_allowed_is_refused(name: str) -> None:
    for schema, version, field, tree in variable_fields(name):
        if not field.type.is_struct or field.type.is_array:
            tree[field.name] = None
            refused = not decode_or_refuse(schema, version, encode_tree(schema, version, tree))
            assert refused == (version not in field.nullable_versions), f"version {version}, {field.name}"


@every_message
def test_strings_that_are_not_utf8_or_too_long_are_refused(name: str) -> None:
    for schema, version, field, tree in variable_fields(name):
        if field.type.name == "string":
            bad = [b"\xc3", b"ab\xff", b"\xed\xa0\x80"]
            if version in schema.flexible_versions and not field.int16_length:
                bad.append(b"x" * 32_768)
            for text in bad:
                tree[field.name] = [text] if field.type.is_array else text
                data = encode_tree(schema, version, tree)
                assert not decode_or_refuse(schema, version, data), f"version {version}, {field.name}: {text[:8]!r}"


def variable_fields(name: str) -> Iterator[tuple[Message, int, Field, Tree]]:
    """Every untagged string, bytes, records and array at the top of a message, with a tree to spoil."""
    schema = catalogue.message(name)
    for version in schema.versions:
        for field in fields_of(schema.fields, version):
            if not is_tagged(field, version) and (field.type.is_array or field.type.name not in FIXED_WIDTH_TYPES):
                yield schema, version, field, make_tree(schema, version, Shape.FULL)


def tagged_sections(count: int) -> Iterator[bytes]:
    """Sections of tagged fields that break a rule, for a message whose own tags are below 1000."""
    yield unsigned_varint(2**32 - 1)
    yield unsigned_varint(2**32 - 1) + b"".join(unsigned_varint(tag) + b"\x00" for tag in range(1000, 1000 + count))
    yield b"\x01\xe8\x07" + unsigned_varint(2**31)
    yield b"\x01\xe8\x07\x05abcd"
    yield b"\x02\xe8\x07\x00\xe8\x07\x00"
    yield b"\x02\xe9\x07\x00\xe8\x07\x00"
    yield b"\x01" + b"\x80" * 9 + b"\x01\x00"
    yield b"\x80" * 5 + b"\x00"
    yield b"\xff\xff\xff\xff\x1f"


@every_message
def test_endless_and_broken_tagged_fields_are_refused(name: str) -> None:
    schema = catalogue.message(name)
    for version in schema.flexible_versions:
        data = encode_tree(schema, version, make_tree(schema, version, Shape.EMPTY))
        assert data.endswith(b"\x00"), "the last byte is the number of tagged fields"
        for section in tagged_sections(200):
            spoilt = data[:-1] + section
            assert not decode_or_refuse(schema, version, spoilt), f"version {version}, {spoilt.hex()}"


@every_message
def test_a_tagged_field_of_the_wrong_size_is_refused(name: str) -> None:
    schema = catalogue.message(name)
    for version in schema.flexible_versions:
        empty = make_tree(schema, version, Shape.EMPTY)
        data = encode_tree(schema, version, empty)
        full = make_tree(schema, version, Shape.FULL)
        for field in fields_of(schema.fields, version):
            if is_tagged(field, version):
                with_one = encode_tree(schema, version, {**empty, field.name: full[field.name]})
                start = len(data) - 1
                assert with_one[start : start + 2] == bytes([1, field.tag or 0])
                size, position = read_varint(with_one, start + 2)
                for wrong in (size - 1, size + 1, 0):
                    value = with_one[position:]
                    filler = b"\x00" if wrong > size else b""
                    spoilt = with_one[: start + 2] + unsigned_varint(wrong) + value + filler
                    assert not decode_or_refuse(schema, version, spoilt), f"version {version}, {field.name}"


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, position


def header_cases() -> list[bytes]:
    """A header of each version with a body behind it: ControlledShutdown v0, Metadata v1, Metadata v12 with a tag."""
    return [
        bytes.fromhex("0007 0000 00000001 00000005"),
        bytes.fromhex("0003 0001 00000001 0004") + b"name" + bytes(4),
        bytes.fromhex("0003 000c 00000001 0004") + b"name" + bytes.fromhex("01 05 02 aabb") + b"\x01\x01\x00\x00",
    ]


def read_header(data: bytes) -> Any:
    try:
        return headers.read_request_header(data, 0, len(data))
    except ProtocolError:
        return None
    except Exception as error:
        error.add_note(f"from bytes.fromhex({data.hex()!r})")
        raise


def test_headers_are_read_whole_or_refused() -> None:
    generator = random.Random(18)
    for data in header_cases():
        body = read_header(data)[4]
        for end in range(body):
            assert read_header(data[:end]) is None
            with pytest.raises(ProtocolError):
                headers.read_request_header(b"\xff" + data, 1, 1 + end)
        for position in range(body):
            for intruder in INTRUDERS:
                read_header(data[:position] + intruder + data[position + len(intruder) :])
    for length in range(200):
        read_header(generator.randbytes(length))
        read_header(bytes.fromhex("0003000c00000001") + generator.randbytes(length))


def test_a_key_that_does_not_exist_is_refused() -> None:
    for key in (-1, 52, 70, 1000, 32767):
        assert read_header(key.to_bytes(2, "big", signed=True) + bytes(20)) is None


def test_a_client_id_that_is_not_utf8_is_refused() -> None:
    assert read_header(bytes.fromhex("0003 0001 00000001 0002 c328") + bytes(4)) is None


@pytest.mark.parametrize("key", catalogue.api_names())
def test_responses_truncated_in_header_or_body_are_refused(key: int) -> None:
    schema = catalogue.response(key)
    for version in schema.versions:
        decode_response = codec.response_decoder(key, version)
        header = bytes(4 + headers.response_header_version(key, version))
        data = header + encode_tree(schema, version, make_tree(schema, version, Shape.MIXED))
        assert decode_response(data, 0, len(data))[1] == len(data)
        for end in positions(data):
            with pytest.raises(ProtocolError):
                decode_response(data[:end], 0, end)


def test_a_version_ahead_that_does_not_exist_is_refused() -> None:
    for name in MESSAGES:
        schema = catalogue.message(name)
        if schema.api_key is None:
            for prefix in (b"", b"\x00", b"\x80\x00", b"\xff\xff", b"" if schema.open_ended else b"\x7f\xff"):
                with pytest.raises(ProtocolError):
                    codec.decode_prefixed(message_class(name), prefix)


PAIRS: Final = [(name, version) for name in MESSAGES for version in catalogue.message(name).versions]
few_examples = hypothesis.settings(
    max_examples=examples(100),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)


@few_examples
@hypothesis.given(pair=strategies.sampled_from(PAIRS), data=strategies.binary(max_size=300))
def test_any_bytes_are_decoded_or_refused(pair: tuple[str, int], data: bytes) -> None:
    decode_or_refuse(catalogue.message(pair[0]), pair[1], data)


@few_examples
@hypothesis.given(
    pair=strategies.sampled_from(PAIRS),
    seed=strategies.integers(0, 1000),
    place=strategies.floats(0, 1),
    removed=strategies.integers(0, 8),
    inserted=strategies.binary(max_size=8),
)
def test_any_splice_is_decoded_or_refused(
    pair: tuple[str, int], seed: int, place: float, removed: int, inserted: bytes
) -> None:
    schema, version = catalogue.message(pair[0]), pair[1]
    data = encode_tree(schema, version, make_tree(schema, version, Shape.MIXED, seed))
    position = int(place * len(data))
    decode_or_refuse(schema, version, data[:position] + inserted + data[position + removed :])
