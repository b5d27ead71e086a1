"""Who is measured: Barnabas, kafka-python and kio, each made ready to encode and decode one case.

Every contender encodes from a message that exists already to what is handed to the transport, and decodes `bytes` to a
message, through the calls that its own users make. For kafka-python and kio the former is one `bytes`; for Barnabas it
is a list of buffers for a gather write, in which large records are not copied. All must encode the same bytes, which
`prepare` checks.
"""

from __future__ import annotations

import functools
import importlib
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from barnabas.wire import catalogue, compiler_decode, compiler_encode
from barnabas.wire.schema import Field, Kind, Message
from benchmarks.codec.cases import Case
from tests.support.wire_messages import to_message
from tests.support.wire_reference import encode_tree
from tests.support.wire_values import Tree

BARNABAS: Final = "barnabas"
KAFKA_PYTHON: Final = "kafka-python"
KIO: Final = "kio"
CONTENDERS: Final = (BARNABAS, KAFKA_PYTHON, KIO)

_KAFKA_PYTHON_MODULES: Final = ("kafka.protocol.producer", "kafka.protocol.consumer", "kafka.protocol.metadata")


class NotSupportedError(Exception):
    """A contender cannot do a case; the text says why."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A contender at the start: calls without arguments that encode or decode the case once."""

    encode: Callable[[], Any]
    decode: Callable[[], Any]


def prepare(case: Case) -> tuple[dict[str, Ready], dict[str, str]]:
    """Those who can do the case, and for the others why not. Raises `ValueError` if their bytes differ."""
    encoded = encode_tree(catalogue.message(case.message), case.version, case.tree)
    makers: Mapping[str, Callable[[Case, bytes], Ready]] = {
        BARNABAS: _barnabas,
        KAFKA_PYTHON: _kafka_python,
        KIO: _kio,
    }
    ready: dict[str, Ready] = {}
    missing: dict[str, str] = {}
    for name, make in makers.items():
        try:
            contender = make(case, encoded)
        except NotSupportedError as reason:
            missing[name] = str(reason)
            continue
        if _joined(contender.encode()) != encoded:
            raise ValueError(f"{name} encodes {case.name} to other bytes than the others")
        contender.decode()
        ready[name] = contender
    return ready, missing


def _joined(encoded: Any) -> bytes:
    return b"".join(encoded) if isinstance(encoded, list) else encoded


def _barnabas(case: Case, encoded: bytes) -> Ready:
    schema = catalogue.message(case.message)
    message = to_message(schema, case.tree)
    encode = compiler_encode.encoder(schema.name, case.version)
    decode = compiler_decode.decoder(schema.name, case.version)
    return Ready(lambda: encode(message, bytearray()), lambda: decode(encoded, 0, len(encoded)))


def _kio(case: Case, encoded: bytes) -> Ready:
    schema = catalogue.message(case.message)
    if schema.api_key is None:
        raise NotSupportedError("not an API's message")
    load: Callable[[int, int], Any] = load_request_schema if schema.kind is Kind.REQUEST else load_response_schema
    entity_class = load(schema.api_key, case.version)
    write, read = entity_writer(entity_class), entity_reader(entity_class)
    entity = read(encoded, 0)[0]

    def encode() -> bytes:
        buffer = io.BytesIO()
        write(buffer, entity)
        return buffer.getvalue()

    return Ready(encode, lambda: read(encoded, 0))


def _kafka_python(case: Case, encoded: bytes) -> Ready:
    message_class = _kafka_python_class(case.message)
    version = case.version
    schema = catalogue.message(case.message)
    fields = _kafka_python_fields(schema, schema.fields, message_class._struct, case.tree, version)
    message = message_class(version=version, **fields)
    return Ready(lambda: message.encode(version=version), lambda: message_class.decode(encoded, version=version))


def _kafka_python_class(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas by a deprecated function
        for module in _KAFKA_PYTHON_MODULES:
            found = getattr(importlib.import_module(module), name, None)
            if found is not None:
                return found
    raise NotSupportedError("it has only the requests of clients")


def _kafka_python_fields(schema: Message, fields: Sequence[Field], struct: Any, tree: Tree, version: int) -> Tree:
    """A tree as keyword arguments of kafka-python's class; an absent tagged structure is left out."""
    converted: Tree = {}
    for field in fields:
        if field.name not in tree or (field.absent_is_none and tree[field.name] is None):
            continue
        value = tree[field.name]
        name = field.name
        if field.type.is_struct and value is not None:
            theirs, inner_fields = struct.fields[name], schema.structs[field.type.name].fields
            inner = functools.partial(_kafka_python_fields, schema, inner_fields, theirs)
            value = [theirs.data_class(version=version, **inner(each, version)) for each in value]
        elif field.type.name == "uuid":
            value = UUID(bytes=value)
        elif name == "topic_authorized_operations":  # to kafka-python it is a set of bits, and None where not asked for
            name, value = "authorized_operations", None
        converted[name] = value
    return converted
