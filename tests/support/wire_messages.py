"""Trees of `wire_values` as the messages of the product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from barnabas.wire.classes import Message, Structure, message_class
from barnabas.wire.schema import Field
from barnabas.wire.schema import Message as Schema


def to_message(schema: Schema, tree: Mapping[str, Any]) -> Message:
    """A tree as an object; fields that the tree lacks are at their defaults."""
    made = message_class(schema.name)
    message = _build(made, made, schema.fields, tree)
    if not isinstance(message, Message):
        raise TypeError(f"{schema.name} is no message")
    return message


def _build(owner: type[Message], made: type[Structure], fields: Sequence[Field], tree: Mapping[str, Any]) -> Structure:
    arguments: dict[str, Any] = {}
    for field in fields:
        if field.name not in tree:
            continue
        value = tree[field.name]
        if field.type.is_struct and value is not None:
            inner: type[Structure] = getattr(owner, field.type.name)
            if field.type.is_array:
                value = [_build(owner, inner, inner.FIELDS, each) for each in value]
            else:
                value = _build(owner, inner, inner.FIELDS, value)
        arguments[field.name] = value
    return made(**arguments)


def to_tree(message: Message, version: int) -> dict[str, Any]:
    """The fields that `version` has, as a tree; the reverse of `to_message`."""
    return _take_apart(message, version)


def _take_apart(structure: Structure, version: int) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for field in structure.FIELDS:
        if version in field.versions:
            value = getattr(structure, field.name)
            if isinstance(value, list):
                value = [_take_apart(each, version) if isinstance(each, Structure) else each for each in value]
            elif isinstance(value, Structure):
                value = _take_apart(value, version)
            tree[field.name] = value
    return tree
