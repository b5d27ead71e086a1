"""The configs of a topic: its own, and below them what the broker's keys say for all topics.

    overrides = check_topic_configs({"retention.ms": "1000"}, broker_config.values)
    config = topic_config(overrides, broker_config.values)
    settings = take(LogSettings, config)

A topic's own configs are kept as text in `/config/topics/NAME`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from barnabas.config import derived
from barnabas.config.derived import Values
from barnabas.config.describing import (
    BrokerLayers,
    Described,
    Synonym,
    documentation,
    is_sensitive,
    type_number,
)
from barnabas.config.key_table import nearest_name, topic_keys
from barnabas.config.keys import ConfigError
from barnabas.config.sources import ConfigSource

_DERIVED: Final[Mapping[str, Callable[[Values], object]]] = {
    "retention.ms": derived.log_retention_ms,
    "segment.ms": lambda values: derived.with_fall_back(values, "log.roll.ms"),
    "segment.jitter.ms": lambda values: derived.with_fall_back(values, "log.roll.jitter.ms"),
    "flush.ms": lambda values: derived.with_fall_back(values, "log.flush.interval.ms"),
    "message.timestamp.before.max.ms": derived.timestamp_before_max_ms,
    "message.timestamp.after.max.ms": derived.timestamp_after_max_ms,
}
"""What a topic has, unless it says otherwise, where that is not simply the value of one key of the broker."""
_IGNORED_MESSAGE_FORMAT: Final = "3.0-IV1"
_TIERED: Final = "remote.storage.enable"
_UNLIMITED: Final = -1
_AS_TOTAL: Final = -2


class TopicConfigError(ValueError):
    """Configs that no topic can have: one line for each problem. `is_of_value` where the first is a value that its
    key cannot have.
    """

    def __init__(self, problems: Sequence[str], *, is_of_value: bool = False) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)
        self.is_of_value = is_of_value


def topic_defaults(broker_values: Values) -> dict[str, Any]:
    """The values of a topic without configs of its own."""
    defaults: dict[str, Any] = {}
    for name, key in topic_keys().items():
        if name in _DERIVED:
            defaults[name] = _DERIVED[name](broker_values)
        else:
            defaults[name] = broker_values[key.synonyms[0]] if key.synonyms else key.default
    if derived.message_format_is_ignored(broker_values):
        defaults["message.format.version"] = _IGNORED_MESSAGE_FORMAT
    return defaults


def topic_config(overrides: Mapping[str, str], broker_values: Values) -> Values:
    """The values of a topic by name. `overrides` have been checked; a name that nobody knows is passed over.

    Raises ConfigError for a value that cannot be read.
    """
    keys = topic_keys()
    own = {name: keys[name].parse(text) for name, text in overrides.items() if name in keys}
    return MappingProxyType(topic_defaults(broker_values) | own)


def check_topic_configs(
    overrides: Mapping[str, str], broker_values: Values, previous: Mapping[str, str] = MappingProxyType({})
) -> Values:
    """The values of a topic that is to have these configs of its own, in place of `previous`. Raises
    TopicConfigError."""
    problems: list[str] = []
    is_of_value = False
    values = topic_defaults(broker_values)
    for name, text in overrides.items():
        key = topic_keys().get(name)
        if key is None:
            nearest = nearest_name(name, topic_keys())
            problems.append(f"Unknown topic config name: {name}" + (f"; did you mean {nearest}?" if nearest else ""))
            continue
        try:
            values[name] = key.parse(text)
        except ConfigError as error:
            is_of_value = is_of_value or not problems
            problems.append(str(error))
    problems += _conflicts(values, broker_values)
    if previous.get(_TIERED, "").strip().lower() == "true" and not values[_TIERED]:
        problems.append(f"{_TIERED} cannot be switched off: what is in remote storage would be lost; delete the topic")
    if problems:
        raise TopicConfigError(problems, is_of_value=is_of_value)
    return MappingProxyType(values)


def describe_topic(overrides: Mapping[str, str], broker_values: Values, layers: BrokerLayers) -> tuple[Described, ...]:
    """All configs of a topic as DescribeConfigs answers them; all can be changed at run time."""
    values = topic_config(overrides, broker_values)
    keys = topic_keys()
    described = []
    for name in (*keys, *(name for name in overrides if name not in keys)):
        key = keys.get(name)
        sensitive = is_sensitive(name, keys)
        value = None if sensitive or key is None else key.format(values[name])
        synonyms = topic_synonyms(name, value, overrides, layers)
        described.append(
            Described(
                name,
                value,
                synonyms[0].source if synonyms else ConfigSource.DEFAULT,
                read_only=False,
                sensitive=sensitive,
                type=type_number(key),
                documentation=documentation(key),
                synonyms=synonyms,
            )
        )
    return tuple(described)


def topic_synonyms(
    name: str, value: str | None, overrides: Mapping[str, str], layers: BrokerLayers
) -> tuple[Synonym, ...]:
    """Every place that sets a topic's config, the one that counts first, under the names that it has there."""
    own = (Synonym(name, value, ConfigSource.DYNAMIC_TOPIC),) if name in overrides else ()
    key = topic_keys().get(name)
    return own + (layers.synonyms(key.synonyms[0]) if key is not None and key.synonyms else ())


def _conflicts(values: Values, broker_values: Values) -> list[str]:
    problems = []
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if least > most:
        problems.append(f"min.compaction.lag.ms ({least}) must not be above max.compaction.lag.ms ({most})")
    for name in ("remote.log.copy.disable", "remote.log.delete.on.disable"):
        if values[name]:
            problems.append(f"{name} is not possible in ZooKeeper mode")
    if values[_TIERED] and not broker_values["remote.log.storage.system.enable"]:
        problems.append("remote.storage.enable needs remote.log.storage.system.enable on the broker")
    return problems + (_tiered_conflicts(values) if values[_TIERED] else [])


def _tiered_conflicts(values: Values) -> list[str]:
    problems = []
    if "compact" in values["cleanup.policy"]:
        problems.append(f"{_TIERED} is not possible for compacted topics")
    for name in ("retention.bytes", "retention.ms"):
        total, local = values[name], values[f"local.{name}"]
        if total > _UNLIMITED and local != _AS_TOTAL and (local == _UNLIMITED or local > total):
            problems.append(f"local.{name} ({local}) must not be above {name} ({total}), nor -1 where that is set")
    return problems
