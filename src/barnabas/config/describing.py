"""Which of the places where a config can be set it comes from, as DescribeConfigs tells it (KIP-226, KIP-569).

Of the places, nearest first: the topic's dynamic configs, the broker's dynamic configs, the cluster-wide default of
the dynamic configs, `server.properties`, Kafka's default. Within one place, a key goes before its synonyms in coarser
units.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.config.broker_config import LISTENER_PREFIX, BrokerConfig, base_name
from barnabas.config.key_table import Keys, broker_keys, dynamic_keys
from barnabas.config.keys import ConfigKey, ConfigType, Required, UpdateMode
from barnabas.config.sources import ConfigSource

Texts = Mapping[str, str]
_TYPE_UNKNOWN: Final = 0
_BOUNDS_OF_LISTENERS: Final = ("max.connections", "max.connection.creation.rate", "num.network.threads")


@dataclass(frozen=True, slots=True)
class Synonym:
    """One of the places and names that could set a config; a `value` of None is a secret, or none."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class Described:
    """One config as DescribeConfigs answers it. `type` is its number there, 0 for a name that Kafka does not know."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    type: int
    documentation: str
    synonyms: tuple[Synonym, ...]


@dataclass(frozen=True, slots=True)
class BrokerLayers:
    """What is set for one broker, by place; texts by name, as in `server.properties` and the `/config` znodes.

    Secrets are in the clear, so `repr` leaves the texts out. `known` are the keys that have a type and a default.
    """

    static: Texts = field(repr=False)
    cluster_default: Texts = field(default_factory=dict, repr=False)
    broker: Texts = field(default_factory=dict, repr=False)
    known: Keys = field(default_factory=broker_keys, repr=False)

    def merged(self) -> dict[str, str]:
        """What holds, for `check_broker_config`: a key set at run time takes the place of its synonyms below."""
        merged = dict(self.static)
        for layer in (self.cluster_default, self.broker):
            for name in layer:
                for other in _chains().get(name, ()):
                    merged.pop(other, None)
            merged.update(layer)
        return merged

    def synonyms(self, name: str) -> tuple[Synonym, ...]:
        """Every place that sets `name` or a synonym of it, the one that counts first; from `name` itself on."""
        names = synonym_chain(name, self.known)
        sensitive = is_sensitive(name, self.known)
        found: list[Synonym] = []
        for texts, source in (
            (self.broker, ConfigSource.DYNAMIC_BROKER),
            (self.cluster_default, ConfigSource.DYNAMIC_DEFAULT_BROKER),
            (self.static, ConfigSource.STATIC_BROKER),
        ):
            found += [Synonym(each, None if sensitive else texts[each], source) for each in names if each in texts]
        for each in names:
            text = default_text(self.known.get(each))
            if text is not None:
                found.append(Synonym(each, None if sensitive else text, ConfigSource.DEFAULT))
        first = next((position for position, synonym in enumerate(found) if synonym.name == name), len(found))
        return tuple(found[first:])


def describe_broker(config: BrokerConfig, layers: BrokerLayers) -> tuple[Described, ...]:
    """All configs of a broker: every key of Kafka's and whatever else was given. `config` is made of `layers.merged()`.

    Keys that only Kafka's developers use are there when they were given.
    """
    known = layers.known
    names = [name for name, key in known.items() if not key.internal or name in config.given]
    names += [name for name in config.given if name not in known]
    return tuple(_describe(name, _key_of(name, known), config, layers) for name in names)


def describe_cluster_default(layers: BrokerLayers) -> tuple[Described, ...]:
    """The dynamic configs that are set for all brokers, which is what DescribeConfigs tells of the broker named ""."""
    return tuple(
        Described(
            name,
            None if is_sensitive(name, layers.known) else text,
            ConfigSource.DYNAMIC_DEFAULT_BROKER,
            is_read_only(name, layers.known),
            is_sensitive(name, layers.known),
            type_number(_key_of(name, layers.known)),
            documentation(_key_of(name, layers.known)),
            tuple(each for each in layers.synonyms(name) if each.source is ConfigSource.DYNAMIC_DEFAULT_BROKER),
        )
        for name, text in layers.cluster_default.items()
    )


def check_dynamic_configs(changes: Texts, *, of_one_broker: bool) -> list[str]:
    """What forbids setting these configs of brokers at run time; values are checked by `check_broker_config`.

    A line for each problem. Names that nobody knows are allowed: a plug-in may read them.
    """
    known = broker_keys()
    problems: list[str] = []
    for name in changes:
        prefixed = base_name(name, known) != name
        key = known.get(base_name(name, known))
        if key is None:
            continue
        if not prefixed and key.update_mode is UpdateMode.READ_ONLY:
            problems.append(f"{name} cannot be changed at run time; set it in server.properties and start again")
        elif not prefixed and _needs_listener_prefix(key):
            problems.append(f"{name} can be changed at run time only for one listener: {LISTENER_PREFIX}NAME.{name}")
        elif not of_one_broker and key.update_mode is UpdateMode.PER_BROKER:
            problems.append(f"{name} can be changed for one broker only, not for all at once; name the broker")
    return problems


def fixed_changes(before: BrokerConfig, after: BrokerConfig, known: Keys) -> list[str]:
    """What `after` says otherwise of listeners that `before` has, and a new listener only could have.

    Source: Kafka's `DynamicListenerConfig`: of a listener that there is, stores and bounds of connections can change.
    """
    names = {endpoint.listener_name for endpoint in before.listeners.bound}
    names &= {endpoint.listener_name for endpoint in after.listeners.bound}
    prefixes = tuple(f"{LISTENER_PREFIX}{name.lower()}." for name in names)
    changed = {name for name in before.given.keys() | after.given.keys() if name.startswith(prefixes)}
    return sorted(
        name
        for name in changed
        if before.given.get(name) != after.given.get(name)
        and not _may_change_of_listener(base_name(name, known), known)
    )


def _may_change_of_listener(name: str, known: Keys) -> bool:
    key = known.get(name)
    return name in _BOUNDS_OF_LISTENERS or (key is not None and _needs_listener_prefix(key))


def synonym_chain(name: str, known: Keys) -> tuple[str, ...]:
    """All names of the thing that `name` sets, nearest first, with the names in finer units that go before it.

    For one inside a listener's prefix, the key without the prefix comes last.
    """
    base = base_name(name, known)
    if base != name:
        return (name, base)
    return _chains().get(name, (name,))


@functools.cache
def _chains() -> Mapping[str, tuple[str, ...]]:
    """All synonyms, nearest first, by each name that has synonyms or is one."""
    keys = broker_keys()
    coarser = {synonym for key in keys.values() for synonym in key.synonyms}
    finest = [(key.name, *key.synonyms) for key in keys.values() if key.synonyms and key.name not in coarser]
    return {name: chain for chain in finest for name in chain}


def is_sensitive(name: str, known: Keys) -> bool:
    """Whether a value must not be shown: a password, or of a name that nobody knows and that may be one."""
    key = _key_of(name, known)
    return key is None or key.sensitive


def _key_of(name: str, known: Keys) -> ConfigKey[Any] | None:
    """The key that a name sets, which may be one that is set at run time only."""
    return known.get(base_name(name, known)) or dynamic_keys().get(name)


def is_read_only(name: str, known: Keys) -> bool:
    """Whether a broker must be started again for a new value; so it is with names that nobody knows."""
    key = known.get(name)
    return key is None or key.update_mode is UpdateMode.READ_ONLY


def default_text(key: ConfigKey[Any] | None) -> str | None:
    """A key's default as text; None where it has none."""
    return None if key is None or isinstance(key.default, Required) else key.format(key.default)


def type_number(key: ConfigKey[Any] | None) -> int:
    return _TYPE_UNKNOWN if key is None else key.type.value


def documentation(key: ConfigKey[Any] | None) -> str:
    return "" if key is None else key.documentation


def _describe(name: str, key: ConfigKey[Any] | None, config: BrokerConfig, layers: BrokerLayers) -> Described:
    sensitive = is_sensitive(name, layers.known)
    synonyms = layers.synonyms(name)
    own = layers.known.get(name)
    value: str | None
    if sensitive:
        value = None
    elif own is not None:
        value = own.format(config.values[name])
    else:
        value = config.given[name]
    return Described(
        name,
        value,
        synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        is_read_only(name, layers.known),
        sensitive,
        type_number(key),
        documentation(key),
        synonyms,
    )


def _needs_listener_prefix(key: ConfigKey[Any]) -> bool:
    """Keys and certificates belong to one listener (KIP-226)."""
    return key.name.startswith(("ssl.keystore.", "ssl.truststore.", "ssl.key.")) or (
        key.type is ConfigType.PASSWORD and key.name.startswith("ssl.")
    )
