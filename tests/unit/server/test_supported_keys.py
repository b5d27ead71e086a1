"""Keys are marked `active` exactly when something reads them, so that a start-up says the truth about the others."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import barnabas
from barnabas.config.key_table import broker_keys, topic_keys
from barnabas.config.keys import Support
from barnabas.config.settings import taken_keys

SOURCE = Path(barnabas.__file__).parent
KEY_READ = re.compile(
    r"""values\[\s*"([a-z0-9.]+)"\s*\]|\.of_listener\([^"]*"([a-z0-9.]+)\"|(?:value_of|text)\("(s(?:as|s)l\.[a-z0-9.]+)\""""
)

THROUGH_CONFIG = {
    "listeners": "config.broker_listeners",
    "advertised.listeners": "config.broker_listeners",
    "listener.security.protocol.map": "config.broker_listeners",
    "inter.broker.listener.name": "config.broker_listeners",
    "security.inter.broker.protocol": "config.broker_listeners",
    "control.plane.listener.name": "config.broker_listeners",
    "broker.id": "BrokerConfig.broker_id",
    "node.id": "BrokerConfig.broker_id",
    "broker.id.generation.enable": "config.broker_checks",
    "log.dir": "BrokerConfig.log_dirs",
    "log.dirs": "BrokerConfig.log_dirs",
    "sasl.jaas.config": "BrokerConfig.listener_values",
    "zookeeper.connection.timeout.ms": "config.derived",
    "max.connections.per.ip.overrides": "config.derived",
    "delegation.token.secret.key": "config.derived",
    "delegation.token.master.key": "config.derived",
    "message.timestamp.difference.max.ms": "config.topic_config",
}
"""Keys that rooms read in a form which `barnabas.config` makes of them."""


def settings_classes() -> Iterator[type]:
    for module_info in pkgutil.walk_packages(barnabas.__path__, "barnabas."):
        if not module_info.name.endswith("__main__"):
            module = importlib.import_module(module_info.name)
            for _, kind in inspect.getmembers(module, inspect.isclass):
                if kind.__module__ == module.__name__ and dataclasses.is_dataclass(kind):
                    yield kind


def read_keys() -> set[str]:
    """Every broker key and topic config that a room takes by a setting, or reads by its name."""
    found = {key.name for kind in settings_classes() for key in taken_keys(kind)}
    for path in SOURCE.rglob("*.py"):
        if path.parent.name != "config":
            found |= {name for match in KEY_READ.findall(path.read_text(encoding="utf-8")) for name in match if name}
    # A topic's config is, where the topic has none, its broker key.
    for name, key in topic_keys().items():
        if name in found or name in THROUGH_CONFIG:
            found |= set(key.synonyms)
    return found | THROUGH_CONFIG.keys()


def test_what_is_read_is_marked_active_and_nothing_else_is() -> None:
    read = read_keys()
    for keys in (broker_keys(), topic_keys()):
        active = {name for name, key in keys.items() if key.support is Support.ACTIVE}
        assert active - read == set(), "marked active in the .keys files, and read by nobody"
        assert {name for name in read if name in keys} - active == set(), "read, and not marked active"
