"""Avro schemas of a registry that name types of other schemas there: made one that stands on its own, as Java needs it.

Each type is written out where it is first named, and named from then on, as it was; so the result is hardly longer
than all texts together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from barnabas.pipelines.avro_schema import NAME_CHARACTERS_MAX, TYPES_MAX, AvroSchemaError

_NAMED_KINDS: Final = frozenset({"record", "error", "enum", "fixed"})
_OTHER_KINDS: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string", "array", "map"}
)
_DEPTH_MAX: Final = 100


def with_references(text: str, others: Iterable[str]) -> str:
    """The schema (JSON) with the types in it that it names and `others` define, themselves or by each other.

    What nobody defines stays a name. Raises AvroSchemaError for what is no JSON, or too deep.
    """
    definitions: dict[str, tuple[Mapping[str, Any], str]] = {}
    for each in others:
        _collect(_parsed(each), "", definitions, 0)
    return json.dumps(_Inliner(definitions).of(_parsed(text), "", 0), separators=(",", ":"))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AvroSchemaError(f"is not JSON ({error})") from error


def _full_name(schema: Mapping[str, Any], namespace: str) -> str | None:
    name, space = schema.get("name"), schema.get("namespace", namespace)
    if not isinstance(name, str) or not isinstance(space, str):
        return None
    if len(name) + len(space) > NAME_CHARACTERS_MAX:
        raise AvroSchemaError(f"has a type's name of more than {NAME_CHARACTERS_MAX} characters")
    return name if "." in name else f"{space}.{name}".lstrip(".")


def _refuse_too_deep(depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise AvroSchemaError(f"is deeper than {_DEPTH_MAX} levels")


def _collect(schema: Any, namespace: str, found: dict[str, tuple[Mapping[str, Any], str]], depth: int) -> None:
    """Each named type in a schema, by its full name, with the namespace that it stands in."""
    _refuse_too_deep(depth)
    if isinstance(schema, list):
        for each in schema:
            _collect(each, namespace, found, depth + 1)
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in _NAMED_KINDS:
        for key in ("type", "items", "values"):
            _collect(schema.get(key), namespace, found, depth + 1)
        return
    full = _full_name(schema, namespace)
    if full is None:
        return
    found.setdefault(full, (schema, namespace))
    fields = schema.get("fields")
    for field in fields if isinstance(fields, list) else ():
        if isinstance(field, dict):
            _collect(field.get("type"), full.rpartition(".")[0], found, depth + 1)


class _Inliner:
    """Writes a schema out, and knows which types it has written by then."""

    def __init__(self, definitions: Mapping[str, tuple[Mapping[str, Any], str]]) -> None:
        self._definitions = definitions
        self._written: set[str] = set()

    def of(self, schema: Any, namespace: str, depth: int) -> Any:
        """The schema, which stands in a namespace."""
        _refuse_too_deep(depth)
        if isinstance(schema, list):
            return [self.of(each, namespace, depth + 1) for each in schema]
        if isinstance(schema, str):
            return self._of_name(schema, namespace, depth)
        if not isinstance(schema, dict):
            return schema
        kind = schema.get("type")
        if isinstance(kind, str) and kind in _NAMED_KINDS:
            return self._definition(schema, namespace, depth)
        inner = {
            key: self.of(schema[key], namespace, depth + 1) for key in ("type", "items", "values") if key in schema
        }
        return {**schema, **inner}

    def _of_name(self, name: str, namespace: str, depth: int) -> Any:
        if name in _OTHER_KINDS:
            return name
        for full in (name,) if "." in name else (f"{namespace}.{name}".lstrip("."), name):
            if full in self._written:
                return name
            if full in self._definitions:
                return self._definition(*self._definitions[full], depth + 1)
        return name

    def _definition(self, schema: Mapping[str, Any], namespace: str, depth: int) -> Any:
        full = _full_name(schema, namespace)
        if full is None:
            return schema
        if full in self._written:
            return full
        self._written.add(full)
        if len(self._written) > TYPES_MAX:
            raise AvroSchemaError(f"has more than {TYPES_MAX} types that have names")
        # Said outright: it stands in another namespace than in its own text, perhaps.
        inner, _, name = full.rpartition(".")
        made = {**schema, "name": name, "namespace": inner}
        fields = schema.get("fields")
        if isinstance(fields, list):
            made["fields"] = [
                {**field, "type": self.of(field["type"], inner, depth + 1)}
                if isinstance(field, dict) and "type" in field
                else field
                for field in fields
            ]
        return made
