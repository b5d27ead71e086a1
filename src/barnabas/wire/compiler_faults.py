"""Says which field of a message cannot be written in a version, and why; asked only after an encoder has failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from barnabas.wire.classes import Structure, message_class
from barnabas.wire.primitives import STRING_BYTES_MAX, ZERO_UUID
from barnabas.wire.schema import INTEGER_RANGES, Field, Fresh


def first_fault(name: str, version: int, message: object) -> str | None:
    """Path of the first field that the encoder of the message `name` refuses in `version`, and the reason;

    None if there is none.
    """
    expected = message_class(name)
    if not isinstance(message, expected):
        return f"expected {name}, not {type(message).__qualname__}"
    return next(_struct_faults(message, version, ""), None)


def _struct_faults(structure: Structure, version: int, path: str) -> Iterator[str]:
    for field in structure.FIELDS:
        here = f"{path}.{field.name}" if path else field.name
        value = getattr(structure, field.name, None)
        if version in field.versions:
            yield from _field_faults(field, value, version, here)
        elif not field.ignorable and not _is_default(field, value):
            yield f"{here}: only versions {field.versions} have it; leave it at its default"


def _is_default(field: Field, value: object) -> bool:
    if field.default is Fresh.LIST:
        return isinstance(value, Sequence) and not value
    if isinstance(value, Structure):
        return (field.absent_is_none or field.default is Fresh.STRUCT) and all(
            _is_default(inner, getattr(value, inner.name)) for inner in value.FIELDS
        )
    return value == field.default


def _field_faults(field: Field, value: object, version: int, path: str) -> Iterator[str]:
    if value is None:
        if version not in field.nullable_versions and not field.absent_is_none:
            yield f"{path}: may not be None in version {version}"
    elif not field.type.is_array:
        yield from _value_faults(field, value, version, path)
    elif not isinstance(value, Sequence) or isinstance(value, str | bytes):
        yield f"{path}: expected a list, not {type(value).__qualname__}"
    else:
        for index, element in enumerate(value):
            yield from _value_faults(field, element, version, f"{path}[{index}]")


def _value_faults(field: Field, value: object, version: int, path: str) -> Iterator[str]:
    name = field.type.name
    if name in INTEGER_RANGES:
        low, high = INTEGER_RANGES[name]
        if not isinstance(value, int):
            yield f"{path}: expected an integer, not {type(value).__qualname__}"
        elif not low <= value <= high:
            yield f"{path}: {value} is not {'an' if name[0] == 'i' else 'a'} {name} ({low} to {high})"
    elif name == "string":
        yield from _string_faults(value, path)
    elif name == "uuid":
        if not isinstance(value, bytes) or len(value) != len(ZERO_UUID):
            yield f"{path}: expected the {len(ZERO_UUID)} bytes of a UUID, not {value!r}"
    elif name in ("bytes", "records"):
        if not isinstance(value, bytes | bytearray | memoryview):
            yield f"{path}: expected bytes, not {type(value).__qualname__}"
    elif name == "float64":
        if not isinstance(value, int | float):
            yield f"{path}: expected a float, not {type(value).__qualname__}"
    elif name != "bool":
        if isinstance(value, Structure) and type(value).__name__ == name:
            yield from _struct_faults(value, version, path)
        else:
            yield f"{path}: expected {name}, not {type(value).__qualname__}"


def _string_faults(value: object, path: str) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{path}: expected a string, not {type(value).__qualname__}"
        return
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        yield f"{path}: {error}"
        return
    if size > STRING_BYTES_MAX:
        yield f"{path}: a string of {size} bytes; at most {STRING_BYTES_MAX} are allowed"
