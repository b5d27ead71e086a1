"""The table of every config name of Kafka 3.9, read from the `.keys` files beside this module.

A `.keys` file holds the keys of one subject, in blocks that a blank line ends:

    subject: The log                                          the subject, for the reference page
    # ...                                                     a remark
    log.roll.ms: long?; falls back to log.roll.hours; high    a key and its facts, `; ` between them
        Age at which a segment is closed even if it is ...    its documentation, indented by four

The first fact is the type (a `ConfigType` in lower case); `?` says that there may be no value, and that this is the
default; ` = ` gives any other default. The facts after it are words that `_FACTS` explains. Facts too long for a line
go on below, indented by eight. A key is read-only unless another update mode is given, and not supported yet unless
`active` or `without effect` is.

Facts are Apache Kafka 3.9.1's, held against a running one by `tests/interop/test_config.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from barnabas.config.kafka_versions import VersionName
from barnabas.config.keys import (
    Between,
    BetweenOr,
    ConfigKey,
    ConfigType,
    EachOf,
    Importance,
    NotEmpty,
    OneOf,
    Support,
    ThrottledReplicas,
    UpdateMode,
    Validator,
)

Keys = Mapping[str, ConfigKey[Any]]

BROKER_SUBJECTS: Final = (
    *("broker", "network", "topics", "log", "cleaner", "replication", "controller", "groups", "transactions", "quotas"),
    *("tls", "sasl", "authorization", "zookeeper", "metrics", "tiered", "kraft"),
)
"""Files whose keys are what Kafka's brokers define."""
PLUGIN_SUBJECT: Final = "plugins"
DYNAMIC_SUBJECT: Final = "dynamic"
TOPIC_SUBJECT: Final = "topic"

_INDENT: Final = " " * 4
_DEEPER: Final = " " * 8


class KeyTableError(ValueError):
    """A `.keys` file that cannot be read; says file and line."""

    def __init__(self, file: str, line: int, reason: str) -> None:
        super().__init__(f"{file}:{line}: {reason}")


class UnknownKeyError(KeyError):
    """A name that Kafka does not know; says the nearest it does know."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(name)
        self.name = name
        self.nearest = nearest_name(name, known)

    def __str__(self) -> str:
        return f"Unknown config {self.name}" + (f"; did you mean {self.nearest}?" if self.nearest else "")


@dataclass(frozen=True, slots=True)
class Subject:
    """The keys of one file, in its order."""

    name: str
    title: str
    keys: tuple[ConfigKey[Any], ...]


def kafka_key(name: str) -> ConfigKey[Any]:
    """The broker key of that name. Raises UnknownKeyError."""
    return _look_up(broker_keys(), name)


def topic_key(name: str) -> ConfigKey[Any]:
    """The topic config of that name. Raises UnknownKeyError."""
    return _look_up(topic_keys(), name)


@functools.cache
def broker_keys() -> Keys:
    """All keys that Kafka's brokers define, and that DescribeConfigs therefore answers with."""
    return _joined(BROKER_SUBJECTS)


@functools.cache
def plugin_keys() -> Keys:
    """Keys of server.properties that only Kafka's plug-ins read."""
    return _joined((PLUGIN_SUBJECT,))


@functools.cache
def dynamic_keys() -> Keys:
    """Keys of brokers that are set at run time only."""
    return _joined((DYNAMIC_SUBJECT,))


@functools.cache
def topic_keys() -> Keys:
    """All configs of topics; `synonyms` are the broker keys that one falls back to."""
    return _joined((TOPIC_SUBJECT,))


@functools.cache
def subject(name: str) -> Subject:
    """The keys of one file. Raises KeyTableError when the file cannot be read."""
    file = f"{name}.keys"
    data = pkgutil.get_data("barnabas.config", f"kafka_keys/{file}")
    if data is None:
        raise KeyTableError(file, 1, "the file cannot be read from where Barnabas is installed; install it again")
    return read_subject(name, data.decode("utf-8"))


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that somebody who wrote `name` may have meant, if there is one near enough."""
    import difflib

    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.8)), None)


def read_subject(name: str, text: str) -> Subject:
    """Reads the text of one `.keys` file. Raises KeyTableError."""
    file = f"{name}.keys"
    title = ""
    keys: list[ConfigKey[Any]] = []
    head, documentation, began = "", list[str](), 0
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        if line.startswith("#"):
            continue
        if line.startswith(_DEEPER) and not documentation:
            head += " " + line.strip()
        elif line.startswith(_INDENT) and head:
            documentation.append(line.strip())
        elif line.startswith("subject: "):
            title = line.removeprefix("subject: ")
        elif line.strip() and not head:
            head, began = line, number
        elif line.strip():
            raise KeyTableError(file, number, "a blank line must stand before the next key")
        elif head:
            try:
                keys.append(_read_key(head, " ".join(documentation)))
            except ValueError as error:
                raise KeyTableError(file, began, str(error)) from None
            head, documentation = "", []
    if not title:
        raise KeyTableError(file, 1, "the file must begin with `subject: ` and a title")
    return Subject(name, title, tuple(keys))


@dataclass(slots=True)
class _Facts:
    """What has been read of one key."""

    type: ConfigType
    importance: Importance | None = None
    validator: Validator[Any] | None = None
    update_mode: UpdateMode = UpdateMode.READ_ONLY
    support: Support = Support.NOT_YET
    synonyms: tuple[str, ...] = ()
    internal: bool = False


_WORDS: Final[Mapping[str, tuple[str, object]]] = {
    **{importance.value: ("importance", importance) for importance in Importance},
    **{mode.value: ("update_mode", mode) for mode in UpdateMode},
    **{support.value: ("support", support) for support in Support},
    "internal": ("internal", True),
    "not empty": ("validator", NotEmpty()),
    "a Kafka version": ("validator", VersionName()),
    "throttled replicas": ("validator", ThrottledReplicas()),
}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


_FACTS: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "at least ": ("validator", lambda text: Between(least=_number(text))),
    "one of ": ("validator", lambda text: OneOf(_words(text))),
    "one, in any case, of ": ("validator", lambda text: OneOf(_words(text), any_case=True)),
    "each one of ": ("validator", lambda text: EachOf(_words(text))),
    "falls back to ": ("synonyms", _words),
}


def _read_key(head: str, documentation: str) -> ConfigKey[Any]:
    """Raises ValueError."""
    name, colon, rest = head.partition(": ")
    first, *others = rest.split(";")
    type_name, equals, default = (part.strip() for part in first.partition("="))
    if not colon or not documentation:
        raise ValueError("a key is written `name: type = default; facts`, with its documentation below")
    may_be_none = type_name.endswith("?")
    if may_be_none == bool(equals):
        raise ValueError(f"{name} needs either `?` or a default")
    try:
        facts = _Facts(ConfigType[type_name.removesuffix("?").upper()])
    except KeyError:
        raise ValueError(f"{name} is of the unknown type {type_name}") from None
    for fact in others:
        _read_fact(facts, fact.strip())
    if facts.importance is None:
        raise ValueError(f"{name} needs an importance")
    key: ConfigKey[Any] = ConfigKey(
        name,
        facts.type,
        None,
        documentation,
        importance=facts.importance,
        validator=facts.validator,
        update_mode=facts.update_mode,
        support=facts.support,
        synonyms=facts.synonyms,
        internal=facts.internal,
    )
    return key if may_be_none else dataclasses.replace(key, default=key.parse(default))


def _read_fact(facts: _Facts, fact: str) -> None:
    if fact in _WORDS:
        setattr(facts, *_WORDS[fact])
        return
    for beginning, (field, read) in _FACTS.items():
        if fact.startswith(beginning):
            setattr(facts, field, read(fact.removeprefix(beginning)))
            return
    facts.validator = _read_range(fact)


def _read_range(fact: str) -> Validator[Any]:
    """`1 to 9`, or `1 to 9 or -1`."""
    limits, _, other = fact.partition(" or ")
    least, to, most = limits.partition(" to ")
    if not to:
        raise ValueError(f"the fact {fact!r} is unknown")
    return BetweenOr(int(least), int(most), int(other)) if other else Between(_number(least), _number(most))


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)


def _look_up(keys: Keys, name: str) -> ConfigKey[Any]:
    try:
        return keys[name]
    except KeyError:
        raise UnknownKeyError(name, keys) from None


def _joined(names: tuple[str, ...]) -> Keys:
    return MappingProxyType({key.name: key for name in names for key in subject(name).keys})
