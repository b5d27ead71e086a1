"""How a room takes the configs it needs: a frozen dataclass whose fields name their keys.

    @dataclass(frozen=True, slots=True)
    class ReplicaSettings:
        lag_time_max_ms: int = setting("replica.lag.time.max.ms", int)
        rack: str | None = optional_setting("broker.rack", str)

    settings = take(ReplicaSettings, broker_config.values)

mypy holds a field's annotation against the Python type in its call; `take`, and making an instance, hold that type
against the key's own. `ReplicaSettings()` has Kafka's defaults, and any field can be given, which is what tests want.
A key that Kafka does not know is a `ConfigKey` in the room itself, and taken by `own_setting`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from barnabas.config.key_table import kafka_key, topic_key
from barnabas.config.keys import ConfigKey, ConfigType, Password, Required

Value = TypeVar("Value", bool, int, float, str, Password, "tuple[str, ...]")
OwnValue = TypeVar("OwnValue")
Settings = TypeVar("Settings")

_METADATA: Final = "barnabas.config"
_PYTHON_TYPES: Final[Mapping[ConfigType, type]] = {
    ConfigType.BOOLEAN: bool,
    ConfigType.STRING: str,
    ConfigType.INT: int,
    ConfigType.SHORT: int,
    ConfigType.LONG: int,
    ConfigType.DOUBLE: float,
    ConfigType.LIST: tuple,
    ConfigType.CLASS: str,
    ConfigType.PASSWORD: Password,
}


@dataclass(frozen=True, slots=True)
class _Taken:
    """What one field asks for. The key is looked up on first use, so that declaring settings reads no file."""

    name: str
    type: type
    may_be_none: bool
    of_topic: bool = False
    own: ConfigKey[Any] | None = None

    def key(self) -> ConfigKey[Any]:
        if self.own is not None:
            return self.own
        key = topic_key(self.name) if self.of_topic else kafka_key(self.name)
        if _PYTHON_TYPES[key.type] is not self.type:
            raise TypeError(f"{self.name} is of type {key.type.name}, which is not {self.type.__name__} in Python")
        if (key.default is None) != self.may_be_none:
            raise TypeError(
                f"{self.name} {'may' if key.default is None else 'cannot'} be without a value: "
                f"take it by {'optional_setting' if key.default is None else 'setting'}"
            )
        return key


def setting(name: str, kind: type[Value]) -> Value:
    """A field that takes a broker key which always has a value. `kind` is its Python type; of a list, `tuple`."""
    return cast("Value", _field(_Taken(name, kind, may_be_none=False)))


def optional_setting(name: str, kind: type[Value]) -> Value | None:
    """A field that takes a broker key which may be without a value."""
    return cast("Value | None", _field(_Taken(name, kind, may_be_none=True)))


def topic_setting(name: str, kind: type[Value]) -> Value:
    """A field that takes a config of topics; all of them have values."""
    return cast("Value", _field(_Taken(name, kind, may_be_none=False, of_topic=True)))


def own_setting(key: ConfigKey[OwnValue]) -> OwnValue:
    """A field that takes a key of Barnabas's own, which the room declares beside it."""
    return cast("OwnValue", _field(_Taken(key.name, object, may_be_none=False, own=key)))


def take(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """The dataclass filled from `values`, by name of key.

    Raises `KeyError` for a key that `values` lacks, and `TypeError` for a field that disagrees with its key.
    """
    return kind(**{field: values[key.name] for field, key in _fields(kind).items()})


def taken_keys(kind: type[object]) -> tuple[ConfigKey[Any], ...]:
    """The keys that a dataclass of settings takes. Raises `TypeError` for a field that disagrees with its key."""
    return tuple(_fields(kind).values())


def _field(taken: _Taken) -> object:
    return dataclasses.field(default_factory=lambda: _default(taken.key()), metadata={_METADATA: taken})


def _default(key: ConfigKey[Any]) -> object:
    if isinstance(key.default, Required):
        raise TypeError(f"{key.name} has no default and must be given")
    return key.default


def _fields(kind: type[object]) -> Mapping[str, ConfigKey[Any]]:
    fields = dataclasses.fields(cast("Any", kind))
    return {field.name: field.metadata[_METADATA].key() for field in fields if _METADATA in field.metadata}
