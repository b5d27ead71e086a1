"""What must hold between several keys of a broker, in ZooKeeper mode. Source: Apache Kafka 3.9's start-up checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from barnabas.config.derived import (
    Values,
    log_dirs,
    log_retention_ms,
    max_connections_per_ip_overrides,
    message_format_is_ignored,
    super_users,
    with_fall_back,
)
from barnabas.config.kafka_versions import is_at_least, record_magic
from barnabas.config.keys import ConfigError, Password

_MEBIBYTE: Final = 1024 * 1024
_PRINCIPAL_BUILDER: Final = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
_RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_AUTHORIZER: Final = "kafka.security.authorizer.AclAuthorizer"
_ASSIGNORS: Final = frozenset(
    f"org.apache.kafka.coordinator.group.assignor.{name}Assignor" for name in ("Uniform", "Range")
)
_TOPIC_IDS_SINCE: Final = "2.8-IV1"
_ZSTD: Final = 4
_NEWEST_MAGIC: Final = 2


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on the values of `keys`; `rule` says what must hold."""

    keys: tuple[str, ...]
    holds: Callable[[Values], bool]
    rule: str

    def problem(self, values: Values) -> str:
        """The keys, their values and the rule that these break."""
        shown = ", ".join(f"{key}={_shown(values[key])}" for key in self.keys)
        return f"Invalid values {shown}: {self.rule}"


def broken(values: Values, unusable: frozenset[str]) -> Iterator[str]:
    """A line for each check that fails; checks that need an `unusable` key, which is reported already, are left out."""
    for check in CHECKS:
        if unusable.isdisjoint(check.keys) and not check.holds(values):
            yield check.problem(values)
    if "max.connections.per.ip.overrides" not in unusable:
        try:
            overrides = max_connections_per_ip_overrides(values)
        except ConfigError as error:
            yield str(error)
        else:
            if values["max.connections.per.ip"] == 0 and not overrides:
                yield "Invalid value 0 for max.connections.per.ip: it needs max.connections.per.ip.overrides"
    # Without an authorizer nobody reads it, as in Kafka.
    if values["authorizer.class.name"] and unusable.isdisjoint({"authorizer.class.name", "super.users"}):
        try:
            super_users(values)
        except ConfigError as error:
            yield str(error)


def _shown(value: object) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return Password.HIDDEN if isinstance(value, Password) else str(value)


def _broker_id_in_range(values: Values) -> bool:
    least, most = (-1, values["reserved.broker.max.id"]) if values["broker.id.generation.enable"] else (0, None)
    return bool(least <= values["broker.id"] and (most is None or values["broker.id"] <= most))


def _cleaner_buffer_is_enough(values: Values) -> bool:
    threads = values["log.cleaner.threads"]
    return bool(threads and values["log.cleaner.dedupe.buffer.size"] // threads > _MEBIBYTE)


def _offers_consumer(values: Values) -> bool:
    return "consumer" in {protocol.lower() for protocol in values["group.coordinator.rebalance.protocols"]}


def _message_format_is_known_to_all(values: Values) -> bool:
    version = values["inter.broker.protocol.version"]
    return message_format_is_ignored(values) or record_magic(version) >= record_magic(
        values["log.message.format.version"]
    )


def _within(key: str, least: str, most: str) -> Check:
    return Check(
        (least, key, most),
        lambda values: values[least] <= values[key] <= values[most],
        "each must be at most the next",
    )


CHECKS: Final = (
    Check(
        ("zookeeper.connect",),
        lambda values: bool(values["zookeeper.connect"]),
        "it must name the ZooKeeper servers, such as localhost:2181",
    ),
    Check(
        ("process.roles",),
        lambda values: not values["process.roles"],
        "Barnabas runs in ZooKeeper mode; leave it out",
    ),
    Check(
        ("zookeeper.metadata.migration.enable",),
        lambda values: not values["zookeeper.metadata.migration.enable"],
        "Barnabas stays with ZooKeeper; leave it out",
    ),
    Check(
        ("controller.listener.names",),
        lambda values: not values["controller.listener.names"],
        "it belongs to KRaft mode; leave it out",
    ),
    Check(
        ("remote.log.storage.system.enable",),
        lambda values: (
            not values["remote.log.storage.system.enable"] or bool(values.get("barnabas.remote.storage.url"))
        ),
        "tiered storage needs to be told where it is: set barnabas.remote.storage.url, such as file:///mnt/tier",
    ),
    Check(
        ("broker.id", "broker.id.generation.enable", "reserved.broker.max.id"),
        _broker_id_in_range,
        "broker.id must be from 0 to reserved.broker.max.id, or -1 to have one generated; "
        "without generation, 0 or more",
    ),
    Check(
        ("node.id", "broker.id"),
        lambda values: values["node.id"] == values["broker.id"],
        "both set the broker's id; give one of them, or the same value for both",
    ),
    Check(
        ("log.roll.ms", "log.roll.hours"),
        lambda values: with_fall_back(values, "log.roll.ms") >= 1,
        "it must be at least 1",
    ),
    Check(
        ("log.roll.jitter.ms", "log.roll.jitter.hours"),
        lambda values: with_fall_back(values, "log.roll.jitter.ms") >= 0,
        "it must be at least 0",
    ),
    Check(
        ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        lambda values: log_retention_ms(values) != 0,
        "it must be at least 1, or -1 for no limit",
    ),
    Check(
        ("log.dirs", "log.dir"),
        lambda values: bool(log_dirs(values)),
        "at least one log directory must be named",
    ),
    Check(
        ("log.dirs",),
        lambda values: len(set(log_dirs(values))) == len(log_dirs(values)),
        "each log directory can be named once",
    ),
    Check(
        ("log.cleaner.dedupe.buffer.size", "log.cleaner.threads"),
        _cleaner_buffer_is_enough,
        "at least one cleaner is needed, with more than 1 MiB (1048576) each",
    ),
    Check(
        ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
        lambda values: values["log.cleaner.min.compaction.lag.ms"] <= values["log.cleaner.max.compaction.lag.ms"],
        "the first must not be above the second",
    ),
    Check(
        ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
        lambda values: values["replica.fetch.wait.max.ms"] <= values["replica.socket.timeout.ms"],
        "the first must not be above the second, or every quiet fetch would time out",
    ),
    Check(
        ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
        lambda values: values["replica.fetch.wait.max.ms"] <= values["replica.lag.time.max.ms"],
        "the first must not be above the second, or followers would leave the ISR while they wait",
    ),
    Check(
        ("log.message.format.version", "inter.broker.protocol.version"),
        _message_format_is_known_to_all,
        "the first must not be newer than the second; from 3.0 on it is ignored",
    ),
    Check(
        ("offsets.topic.compression.codec",),
        lambda values: 0 <= values["offsets.topic.compression.codec"] <= _ZSTD,
        "it must be 0 (none), 1 (gzip), 2 (snappy), 3 (lz4) or 4 (zstd)",
    ),
    Check(
        ("offsets.topic.compression.codec", "inter.broker.protocol.version"),
        lambda values: (
            values["offsets.topic.compression.codec"] != _ZSTD
            or record_magic(values["inter.broker.protocol.version"]) == _NEWEST_MAGIC
        ),
        "zstd (4) needs inter.broker.protocol.version 0.11 or newer",
    ),
    Check(
        ("offsets.commit.required.acks", "offsets.topic.replication.factor"),
        lambda values: -1 <= values["offsets.commit.required.acks"] <= values["offsets.topic.replication.factor"],
        "acks must be from -1 to the number of replicas",
    ),
    Check(
        ("queued.max.request.bytes", "socket.request.max.bytes"),
        lambda values: (
            values["queued.max.request.bytes"] <= 0
            or values["queued.max.request.bytes"] >= values["socket.request.max.bytes"]
        ),
        "the first must be at least the second, or -1 for no limit",
    ),
    Check(
        ("connection.failed.authentication.delay.ms", "connections.max.idle.ms"),
        lambda values: (
            values["connections.max.idle.ms"] < 0
            or values["connection.failed.authentication.delay.ms"] < values["connections.max.idle.ms"]
        ),
        "the first must be below the second",
    ),
    Check(
        ("authorizer.class.name",),
        # Taken and not heeded, it would be a cluster that is open to all while its configuration says that it is not.
        lambda values: values["authorizer.class.name"] in ("", _AUTHORIZER),
        f"Java classes cannot be loaded here; only {_AUTHORIZER} is known; without any, every request is allowed",
    ),
    Check(
        ("authorizer.zookeeper.url", "zookeeper.connect"),
        lambda values: (
            not values["authorizer.class.name"]
            or values["authorizer.zookeeper.url"] in (None, values["zookeeper.connect"])
        ),
        "ACLs are kept where all else is; leave authorizer.zookeeper.url out",
    ),
    Check(
        ("principal.builder.class",),
        lambda values: values["principal.builder.class"] == _PRINCIPAL_BUILDER,
        f"Java classes cannot be loaded here; only {_PRINCIPAL_BUILDER} is known",
    ),
    Check(
        ("replica.selector.class",),
        lambda values: values["replica.selector.class"] in (None, _RACK_AWARE_SELECTOR),
        f"Java classes cannot be loaded here; only {_RACK_AWARE_SELECTOR} is known, or leave it out",
    ),
    Check(
        ("group.coordinator.rebalance.protocols",),
        lambda values: "classic" in {protocol.lower() for protocol in values["group.coordinator.rebalance.protocols"]},
        "classic must be among them",
    ),
    Check(
        ("group.consumer.assignors",),
        lambda values: (
            bool(values["group.consumer.assignors"]) and set(values["group.consumer.assignors"]) <= _ASSIGNORS
        ),
        "Java classes cannot be loaded here; only Apache Kafka's UniformAssignor and RangeAssignor are known",
    ),
    Check(
        ("group.coordinator.rebalance.protocols", "inter.broker.protocol.version"),
        lambda values: (
            not _offers_consumer(values) or is_at_least(values["inter.broker.protocol.version"], _TOPIC_IDS_SINCE)
        ),
        "groups of the consumer protocol need topics with ids, and so inter.broker.protocol.version 2.8 or newer",
    ),
    *(
        _within(f"group.{kind}.{name}.ms", f"group.{kind}.min.{name}.ms", f"group.{kind}.max.{name}.ms")
        for kind in ("consumer", "share")
        for name in ("heartbeat.interval", "session.timeout")
    ),
)
