"""Values that follow from several keys of a broker: units, fall-backs, and older names of the same thing.

Each function takes the broker's values by name of key. Source: the documentation of the keys named here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from barnabas.config.kafka_versions import is_at_least
from barnabas.config.key_table import kafka_key
from barnabas.config.keys import ConfigError, Password

Values = Mapping[str, Any]

_MILLISECONDS: Final[Mapping[str, int]] = {"hours": 60 * 60 * 1000, "minutes": 60 * 1000}
_HOST: Final = re.compile(r"[0-9a-zA-Z\-%._:]*")
LONG_MAX: Final = (1 << 63) - 1


def milliseconds_per_unit(name: str) -> int:
    """What a key's value is multiplied with to be in milliseconds, by the unit that its name ends with."""
    return _MILLISECONDS.get(name.rpartition(".")[2], 1)


def with_fall_back(values: Values, name: str) -> int:
    """A time in milliseconds: of the key `name`, or of the nearest of its synonyms that has a value.

    Raises `ValueError` where none has; the last synonym of every such key has a default.
    """
    for candidate in (name, *kafka_key(name).synonyms):
        if values[candidate] is not None:
            return int(values[candidate]) * milliseconds_per_unit(candidate)
    raise ValueError(f"neither {name} nor a synonym of it has a value")


def log_retention_ms(values: Values) -> int:
    """Age at which records are deleted; -1 is never."""
    return max(-1, with_fall_back(values, "log.retention.ms"))


def log_dirs(values: Values) -> tuple[str, ...]:
    """The log directories as written, in order."""
    text = values["log.dir"] if values["log.dirs"] is None else values["log.dirs"]
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())


def timestamp_before_max_ms(values: Values) -> int:
    """How far behind a record's time may lie: its own key, unless that is unlimited; then the older key (KIP-937)."""
    return _unless_unlimited(values, "log.message.timestamp.before.max.ms")


def timestamp_after_max_ms(values: Values) -> int:
    """How far ahead a record's time may lie: its own key, unless that is unlimited; then the older key (KIP-937)."""
    return _unless_unlimited(values, "log.message.timestamp.after.max.ms")


def message_format_is_ignored(values: Values) -> bool:
    """Whether brokers speak a version, 3.0 or newer, that always stores the newest format of records (KIP-724)."""
    return is_at_least(values["inter.broker.protocol.version"], "3.0-IV1")


def zookeeper_connection_timeout_ms(values: Values) -> int:
    given = values["zookeeper.connection.timeout.ms"]
    return int(values["zookeeper.session.timeout.ms"] if given is None else given)


def delegation_token_secret_key(values: Values) -> Password | None:
    """The secret of delegation tokens, by its name or the former one; None where there are no tokens."""
    secret = values["delegation.token.secret.key"]
    return (values["delegation.token.master.key"] if secret is None else secret) or None


def max_connections_per_ip_overrides(values: Values) -> dict[str, int]:
    """Limits by host name or address. Raises ConfigError."""
    key = "max.connections.per.ip.overrides"
    found: dict[str, int] = {}
    for pair in filter(None, (entry.strip() for entry in values[key].split(","))):
        host, colon, count = (part.strip() for part in pair.rpartition(":"))
        if not colon or not _HOST.fullmatch(host) or not (count.isascii() and count.isdigit()):
            raise ConfigError(key, values[key], f"{pair!r} must be a pair host:count")
        found[host] = int(count)
    return found


def super_users(values: Values) -> frozenset[str]:
    """The principals that everything is allowed to; semicolons part them, since names of certificates have commas.

    Raises ConfigError.
    """
    key = "super.users"
    # As in Kafka: nothing stands behind the last semicolons, while an empty principal before them is a mistake.
    kept = values[key].rstrip(";")
    users = [user.strip() for user in kept.split(";")] if kept else []
    for user in users:
        if ":" not in user:
            raise ConfigError(
                key, values[key], f"{user!r} must be TYPE:NAME, as in User:alice; semicolons part several"
            )
    return frozenset(users)


def _unless_unlimited(values: Values, name: str) -> int:
    limit = int(values[name])
    return limit if limit != LONG_MAX else int(values["log.message.timestamp.difference.max.ms"])
