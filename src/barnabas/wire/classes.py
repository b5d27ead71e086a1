"""Makes the classes of messages from their schemas:

one slotted class per message or structure, for all its versions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import GenericAlias
from typing import Any, ClassVar, Final

from barnabas.kernel.steps import Steps
from barnabas.wire import catalogue, generated_code, schema
from barnabas.wire.primitives import Buffer
from barnabas.wire.schema import Field, Fresh

MODULE: Final = "barnabas.wire.messages"
"""Where users find the classes, and what their `__module__` says."""
_DISSOLVED_PER_STEP: Final = 4096
SHOWN_BYTES_MAX: Final = 32
"""`repr` shows longer byte strings by their size."""

_PYTHON_TYPES: Final[Mapping[str, Any]] = {
    **dict.fromkeys(schema.INTEGER_RANGES, int),
    "bool": bool,
    "float64": float,
    "uuid": bytes,
    "string": str,
    "bytes": bytes,
    "records": Buffer,
}


class _DataclassFields:
    """What `dataclasses` knows of a class, found out when it first asks; brokers never do."""

    def __get__(self, instance: object, owner: type[Structure]) -> dict[str, dataclasses.Field[Any]]:
        if owner.__module__ != MODULE:  # a base: what is kept there, all messages would inherit in place of this
            return {}
        space = vars(message_class(owner.__qualname__.partition(".")[0]))
        annotations = {field.name: _python_type(field, space) for field in owner.FIELDS}
        twin = type(owner.__name__, (), {"__annotations__": annotations, **_dataclass_defaults(owner.FIELDS, space)})
        dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=True)(twin)
        owner.__annotations__ = annotations
        known: dict[str, dataclasses.Field[Any]] = vars(twin)["__dataclass_fields__"]
        owner.__dataclass_fields__ = known  # type: ignore[assignment]
        return known


class Structure:
    """What all messages and their structures share: compared and shown by their fields, dataclasses to who asks."""

    __slots__ = ()
    __dataclass_fields__ = _DataclassFields()
    __hash__ = None  # type: ignore[assignment]
    FIELDS: ClassVar[tuple[Field, ...]] = ()
    """The fields as the schema declares them, in the order of the wire."""

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.FIELDS)

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({', '.join(_shown(self, field) for field in self.FIELDS)})"


class Message(Structure):
    """A request, response, header, record or other message of the protocol."""

    __slots__ = ()
    SCHEMA: ClassVar[schema.Message]
    """Its key, versions and structures."""


def dissolve(structure: Structure | None) -> Steps[None]:
    """Empties the arrays of a message that nobody uses any more, in steps: freed all at once, half a million objects
    keep the loop from everything else.
    """
    if structure is not None:
        yield from _dissolve(structure, [0])


def _dissolve(structure: Structure, freed: list[int]) -> Steps[None]:
    """`freed` has how many elements went in this step, of all arrays: many short ones are as many as a long one."""
    for field in structure.FIELDS:
        elements = getattr(structure, field.name) if field.type.is_array else None
        while elements:
            last = elements[-_DISSOLVED_PER_STEP:]
            del elements[-_DISSOLVED_PER_STEP:]
            freed[0] += len(last)
            if freed[0] >= _DISSOLVED_PER_STEP:
                freed[0] = 0
                yield
            if isinstance(last[0], Structure) and any(inner.type.is_array for inner in last[0].FIELDS):
                for element in last:
                    yield from _dissolve(element, freed)


def _shown(structure: Structure, field: Field) -> str:
    value = getattr(structure, field.name)
    if field.secret and value:
        return f"{field.name}=<secret>"
    if isinstance(value, bytes | bytearray | memoryview) and len(value) > SHOWN_BYTES_MAX:
        return f"{field.name}=<{len(value)} bytes>"
    if isinstance(value, memoryview):
        value = bytes(value)
    return f"{field.name}={value!r}"


def may_be_none(field: Field) -> bool:
    """True if the value of the field is None in some version, or until it is given."""
    return bool(field.nullable_versions) or field.absent_is_none or field.default is None


_MADE: Final[dict[str, type[Message]]] = {}


def message_class(name: str) -> type[Message]:
    """The class of the message `name`, made on first use. Raises `KeyError` if there is no such message.

    There is one class of each name, also where several threads ask for it first at the same time: brokers on loops of
    their own may share a process (`barnabas.testing.kafka_cluster`).
    """
    made = _MADE.get(name)
    return _MADE.setdefault(name, _made(name)) if made is None else made


def _made(name: str) -> type[Message]:
    message = catalogue.message(name)
    space = _initialisers_of(message)
    structs: dict[str, type[Structure]] = {}
    for struct in message.structs.values():
        members: dict[str, Any] = {"__doc__": struct.meaning, "__qualname__": f"{name}.{struct.name}"}
        made = _slotted(struct.name, Structure, struct.fields, members, space)
        structs[struct.name] = space[struct.name] = made
    members = {"__doc__": message.meaning, "__qualname__": name, "SCHEMA": message, **structs}
    return _slotted(name, Message, message.fields, members, space)


_FRESH: Final = object()
"""Stands in a signature for a default that every message gets anew."""


def _initialisers_of(message: schema.Message) -> dict[str, Any]:
    """The functions of `initialisers`, by name, in the space where they look for the classes of structures."""
    generated = generated_code.module(message.file)
    if generated is None:
        space: dict[str, Any] = {"FRESH": _FRESH}
        exec("\n".join(initialisers(message)), space)  # noqa: S102 - the text comes from our schema files alone
        return space
    space = {"FRESH": generated["FRESH"]}
    for name in (*message.structs, message.name):
        space[f"init_{name}"] = generated_code.bound(generated["INITIALISERS"][message.name, name], space)
    return space


def initialisers(message: schema.Message) -> Iterator[str]:
    """Source of a function `init_NAME` for each structure and for the message itself."""
    for name, fields in [
        *((struct.name, struct.fields) for struct in message.structs.values()),
        (message.name, message.fields),
    ]:
        parameters = [f"{field.name}={_default_source(field)}" for field in fields]
        yield f"def init_{name}(self{', *, ' if parameters else ''}{', '.join(parameters)}):"
        for field in fields:
            value = field.name
            if isinstance(field.default, Fresh):
                fresh = "[]" if field.default is Fresh.LIST else f"{field.type.name}()"
                value = f"{fresh} if {field.name} is FRESH else {field.name}"
            yield f"    self.{field.name} = {value}"
        if not fields:
            yield "    pass"


def _default_source(field: Field) -> str:
    return "FRESH" if isinstance(field.default, Fresh) else repr(field.default)


def _python_type(field: Field, structs: Mapping[str, Any]) -> Any:
    element = _PYTHON_TYPES.get(field.type.name) or structs[field.type.name]
    annotation: Any = GenericAlias(list, element) if field.type.is_array else element
    return annotation | None if may_be_none(field) else annotation


def _slotted(
    name: str, base: type, fields: tuple[Field, ...], members: dict[str, Any], space: Mapping[str, Any]
) -> type[Any]:
    """A class with slots for `fields`, and `init_NAME` of `space` as its `__init__`.

    `dataclasses.dataclass` would make every class twice, and more objects than the class has itself.
    """
    own = {"__module__": MODULE, "__init__": space[f"init_{name}"], "FIELDS": fields}
    return type(name, (base,), {**members, **own, "__slots__": tuple(field.name for field in fields)})


def _dataclass_defaults(fields: tuple[Field, ...], space: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields:
        if field.default is Fresh.LIST:
            found[field.name] = dataclasses.field(default_factory=list)
        elif field.default is Fresh.STRUCT:
            found[field.name] = dataclasses.field(default_factory=space[field.type.name])
        else:
            found[field.name] = dataclasses.field(default=field.default)
    return found
