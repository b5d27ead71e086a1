"""What simulated brokers make of dynamic configs, against what ZooKeeper has of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.coordination.layout.configs import DEFAULT_ENTITY, ConfigEntityType, EntityConfig, config_path
from barnabas.coordination.layout.payload import LayoutError

if TYPE_CHECKING:
    from barnabas.config.derived import Values
    from barnabas.coordination.embedded.tree import ZnodeTree
    from barnabas.server.broker import Broker

BROKER_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "num.replica.fetchers": ("1", "2", "3"),
    "log.segment.bytes": ("8192", "16384", "32768"),
    "log.retention.ms": ("86400000", "604800000"),
    "message.max.bytes": ("1048588", "2097164"),
}
"""Dynamic configs of brokers, and what they are set to."""
TOPIC_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "segment.bytes": ("4096", "16384"),
    "retention.ms": ("86400000", "259200000"),
    "max.message.bytes": ("1000012", "2000024"),
}
_LOG_KEYS: Final = {
    "segment.bytes": ("log.segment.bytes", "segment_bytes"),
    "retention.ms": ("log.retention.ms", "retention_ms"),
    "max.message.bytes": ("message.max.bytes", "message_bytes_max"),
}
"""For a topic's config the broker's, and where a log has it."""


def differing_configs(broker: Broker, tree: ZnodeTree, topic: str, static: Values) -> Iterator[str]:
    """What a broker has not taken from the dynamic configs of all brokers, its own and one topic's: as values, and
    where rooms go by them. `static` is what holds without any.
    """
    of_brokers = {
        **_stored(tree, ConfigEntityType.BROKERS, DEFAULT_ENTITY),
        **_stored(tree, ConfigEntityType.BROKERS, str(broker.broker_id)),
    }
    of_topic = _stored(tree, ConfigEntityType.TOPICS, topic)
    storage = broker.components.storage
    values = storage.broker_configs.values
    for key in BROKER_VALUES:
        wanted = of_brokers.get(key, static[key])
        if str(values[key]) != str(wanted):
            yield f"broker {broker.broker_id} has {key}={values[key]}, and should have {wanted}"
    fetchers = int(of_brokers.get("num.replica.fetchers") or static["num.replica.fetchers"])
    if broker.components.replica_manager.fetchers.fetchers_per_leader != fetchers:
        yield f"broker {broker.broker_id} has not {fetchers} fetchers for each leader"
    for partition, log in storage.log_manager.logs.items():
        if partition.topic != topic:
            continue
        for key, (broker_key, name) in _LOG_KEYS.items():
            wanted = of_topic.get(key, of_brokers.get(broker_key, static[broker_key]))
            if wanted is not None and str(getattr(log.config, name)) != str(wanted):
                yield f"{topic}-{partition.partition} on broker {broker.broker_id} has not {key}={wanted}"


def acting_value(broker: Broker, key: str, topic: str) -> str | None:
    """The value of a config of brokers, or of one topic, that a broker goes by now, as far as it has a log of it."""
    if key == "num.replica.fetchers":
        return str(broker.components.replica_manager.fetchers.fetchers_per_leader)
    name = next(name for topic_key, (broker_key, name) in _LOG_KEYS.items() if key in (topic_key, broker_key))
    for partition, log in broker.components.storage.log_manager.logs.items():
        if partition.topic == topic:
            return str(getattr(log.config, name))
    return None


def has_stored(tree: ZnodeTree, entity_type: ConfigEntityType, entity: str, key: str, value: str | None) -> bool:
    """Whether ZooKeeper has this value for a config; none is None."""
    return _stored(tree, entity_type, entity).get(key) == value


def _stored(tree: ZnodeTree, entity_type: ConfigEntityType, name: str) -> Mapping[str, str]:
    path = config_path(entity_type, name)
    node = tree.find(path)
    if node is None:
        return {}
    try:
        return EntityConfig.decode(node[0], path).config
    except LayoutError:
        return {}
