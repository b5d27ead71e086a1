"""The configuration of one broker: from `server.properties` to checked values.

    config = read_broker_config(text, "server.properties", overrides=["broker.id=2"])
    for notice in config.notices: log.warning(notice.text)
    replica_settings = take(ReplicaSettings, config.values)

Everything that is wrong is reported at once, by one `BrokerConfigError`. A key that nobody knows, that has no effect
yet or that is given twice is a notice, not an error, as in Kafka.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from barnabas.config import broker_checks, derived
from barnabas.config.broker_listeners import Listeners, resolve_listeners
from barnabas.config.derived import Values
from barnabas.config.key_table import Keys, broker_keys, nearest_name, plugin_keys
from barnabas.config.keys import ConfigError, ConfigKey, Required, Support
from barnabas.config.properties import PropertiesError, parse

LISTENER_PREFIX: Final = "listener.name."
_SAME_KEYS: Final = ("broker.id", "node.id")


class NoticeKind(enum.Enum):
    """What a start-up should say about a configuration that it takes."""

    UNKNOWN = "unknown"
    NOT_YET = "not yet"
    REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to be said once, about `keys`."""

    kind: NoticeKind
    keys: tuple[str, ...]
    text: str


class BrokerConfigError(ValueError):
    """A configuration that no broker can start with: one line for each problem."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n  ".join([f"{source} has {count}:", *problems]))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What a broker is told.

    `values` holds a value for every broker key, plug-in key and key of Barnabas's own. `given` is what was written, by
    name, unknown names and secrets included, and is never shown. `listener_values` holds what was given as
    `listener.name.NAME.KEY`, under that name.
    """

    values: Values
    given: Mapping[str, str] = field(repr=False)
    listener_values: Values
    listeners: Listeners
    notices: tuple[Notice, ...]

    @property
    def broker_id(self) -> int:
        """-1 when it is to come from meta.properties, or else from ZooKeeper."""
        return int(self.values["broker.id"])

    @property
    def log_dirs(self) -> tuple[str, ...]:
        return derived.log_dirs(self.values)

    def of_listener(self, listener_name: str, key: str, mechanism: str | None = None) -> Any:
        """A key's value for one listener and SASL mechanism: what is given for these goes before the key itself."""
        prefix = f"{LISTENER_PREFIX}{listener_name.lower()}."
        for name in (*([f"{prefix}{mechanism.lower()}.{key}"] if mechanism else []), f"{prefix}{key}"):
            if name in self.listener_values:
                return self.listener_values[name]
        return self.values[key]


def read_broker_config(
    text: str | bytes, source: str, overrides: Iterable[str] = (), own_keys: Iterable[ConfigKey[Any]] = ()
) -> BrokerConfig:
    """Reads a properties text; `overrides` are `key=value`, and go before it; `own_keys` are Barnabas's own.

    Raises BrokerConfigError.
    """
    problems: list[str] = []
    notices: list[Notice] = []
    given: dict[str, str] = {}
    places: dict[str, str] = {}
    try:
        entries = parse(text, source)
    except PropertiesError as error:
        raise BrokerConfigError(source, [str(error)]) from None
    for entry in entries:
        if entry.key in given:
            said = f"{entry.key} is given again on line {entry.line} of {source}; that value counts"
            notices.append(Notice(NoticeKind.REPEATED, (entry.key,), said))
        given[entry.key] = entry.value
        places[entry.key] = f"{source}:{entry.line}"
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            problems.append(f"The override {override!r} must have the form key=value")
            continue
        given[key.strip()] = value
        places[key.strip()] = "override"
    return check_broker_config(given, source, own_keys=own_keys, places=places, problems=problems, notices=notices)


def check_broker_config(
    given: Mapping[str, str],
    source: str,
    *,
    own_keys: Iterable[ConfigKey[Any]] = (),
    places: Mapping[str, str] = MappingProxyType({}),
    problems: Iterable[str] = (),
    notices: Iterable[Notice] = (),
) -> BrokerConfig:
    """Reads and checks the texts `given`, by name of key, as when dynamic configs are laid over the static ones.

    `places` says where a key was written, for messages; `problems` and `notices` come before those found here. Raises
    BrokerConfigError.
    """
    known = known_keys(own_keys)
    reading = _Reading(known, places, [*problems], [*notices])
    values = {name: None if isinstance(key.default, Required) else key.default for name, key in known.items()}
    listener_values: dict[str, Any] = {}
    for name, text in given.items():
        reading.read(name, text, values, listener_values)
    for name, other in _other_names(given):
        values[other] = values[name]
    reading.problems += broker_checks.broken(values, frozenset(reading.unusable))
    listeners = None
    if reading.unusable.isdisjoint({"listeners", "inter.broker.protocol.version", "security.inter.broker.protocol"}):
        listeners, found = resolve_listeners(values, given, listener_values)
        reading.problems += found
    if reading.problems or listeners is None:
        raise BrokerConfigError(source, reading.problems)
    return BrokerConfig(
        MappingProxyType(values),
        MappingProxyType({**given, **{other: given[name] for name, other in _other_names(given)}}),
        MappingProxyType(listener_values),
        listeners,
        (*reading.notices, *reading.about_not_yet()),
    )


def known_keys(own_keys: Iterable[ConfigKey[Any]] = ()) -> Keys:
    """All keys that `server.properties` may hold; one of Barnabas's own goes before Kafka's of the same name."""
    return {**broker_keys(), **plugin_keys(), **{key.name: key for key in own_keys}}


def base_name(name: str, known: Keys) -> str:
    """The key that `listener.name.NAME.KEY` or `listener.name.NAME.MECHANISM.KEY` sets; any other name itself."""
    if name in known or not name.startswith(LISTENER_PREFIX):
        return name
    rest = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
    after_mechanism = rest.partition(".")[2]
    return next((candidate for candidate in (rest, after_mechanism) if candidate in known), name)


class _Reading:
    """One pass over the given texts."""

    def __init__(self, known: Keys, places: Mapping[str, str], problems: list[str], notices: list[Notice]) -> None:
        self._known = known
        self._places = places
        self._not_yet: list[str] = []
        self.problems = problems
        self.notices = notices
        self.unusable: set[str] = set()
        """Keys whose values could not be read."""

    def read(self, name: str, text: str, values: dict[str, Any], listener_values: dict[str, Any]) -> None:
        base = base_name(name, self._known)
        key = self._known.get(base)
        if key is None:
            self._say_unknown(name)
            return
        if key.support is Support.NOT_YET and base not in self._not_yet:
            self._not_yet.append(base)
        try:
            value = key.parse(text)
        except ConfigError as error:
            # A key inside a listener's prefix is reported under the name that was written.
            written = error if base == name else ConfigError(name, error.value, error.allowed)
            place = self._places.get(name)
            self.problems.append(f"{place}: {written}" if place else str(written))
            self.unusable.add(base)
            return
        if base == name:
            values[name] = value
        else:
            listener_values[name] = value

    def about_not_yet(self) -> Iterable[Notice]:
        if self._not_yet:
            text = f"Known but not supported yet, and without effect: {', '.join(self._not_yet)}"
            yield Notice(NoticeKind.NOT_YET, tuple(self._not_yet), text)

    def _say_unknown(self, name: str) -> None:
        nearest = nearest_name(name, self._known)
        hint = f"; did you mean {nearest}?" if nearest else ""
        place = self._places.get(name)
        at = f" at {place}" if place else ""
        self.notices.append(Notice(NoticeKind.UNKNOWN, (name,), f"Unknown config {name}{at} is ignored{hint}"))


def _other_names(given: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """The broker's number has two names; the one that is not given follows the other."""
    for name, other in (_SAME_KEYS, _SAME_KEYS[::-1]):
        if name in given and other not in given:
            yield name, other
