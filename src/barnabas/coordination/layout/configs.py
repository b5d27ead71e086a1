"""`/config`: dynamic configs of topics, brokers, users, clients and addresses, and the announcements of their
changes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from barnabas.coordination.layout.payload import NO_EXTRA, Fields, LayoutError, encode_json

CONFIG_PATH = "/config"
CONFIG_CHANGES_PATH = "/config/changes"
CONFIG_CHANGE_PREFIX = "config_change_"
# The name of the entity that stands for all that have no config of their own.
DEFAULT_ENTITY = "<default>"
VERSION = 1
CHANGE_VERSION = 2


class ConfigEntityType(enum.Enum):
    """What can have dynamic configs; the value is the znode's name."""

    TOPICS = "topics"
    CLIENTS = "clients"
    USERS = "users"
    BROKERS = "brokers"
    IPS = "ips"


def sanitize(name: str) -> str:
    """The name of a user or a client id as part of a path, as Kafka's Sanitizer writes it: percent-encoded UTF-8."""
    from urllib.parse import quote  # 0.5 MiB, for brokers whose users or clients have configs

    return quote(name, safe="").replace("~", "%7E")


def desanitize(name: str) -> str:
    from urllib.parse import unquote_plus

    return unquote_plus(name, errors="replace")


def config_type_path(entity_type: ConfigEntityType) -> str:
    return f"{CONFIG_PATH}/{entity_type.value}"


def config_path(entity_type: ConfigEntityType, entity_name: str) -> str:
    """The znode of one entity. The names of users and clients are sanitized by the caller, `DEFAULT_ENTITY` is not."""
    return f"{CONFIG_PATH}/{entity_type.value}/{entity_name}"


def user_clients_path(user: str) -> str:
    """The parent of the configs that one user (sanitized) has for its client ids."""
    return f"{CONFIG_PATH}/users/{user}/clients"


def user_client_config_path(user: str, client_id: str) -> str:
    """The znode of one user's (sanitized) one client id (sanitized)."""
    return f"{user_clients_path(user)}/{client_id}"


def config_change_path() -> str:
    """The path to create a sequential announcement at."""
    return f"{CONFIG_CHANGES_PATH}/{CONFIG_CHANGE_PREFIX}"


@dataclass(frozen=True, slots=True)
class EntityConfig:
    """Payload of `/config/TYPE/NAME`, version 1: config names and values, all text. A znode without data has none."""

    config: Mapping[str, str]
    version: int = VERSION
    extra: Mapping[str, Any] = NO_EXTRA

    def encode(self) -> bytes:
        return encode_json({"version": self.version, "config": dict(self.config)}, self.extra)

    @classmethod
    def decode(cls, data: bytes | None, path: str) -> EntityConfig:
        if not data:
            return cls({})
        fields = Fields.decode(data, path)
        config = fields.mapping("config")
        for name, value in config.items():
            if not isinstance(value, str):
                raise fields.wrong(f"config.{name}", "a string", value)
        return cls(config, fields.integer("version", VERSION), fields.rest())


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Payload of a sequential `/config/changes/config_change_*`, version 2: which entity has new configs, as the
    path below `/config`.

    Version 1, of brokers before 0.10.1, named type and name of a topic or a client; it is read, never written.
    """

    entity_path: str
    extra: Mapping[str, Any] = NO_EXTRA

    def encode(self) -> bytes:
        return encode_json({"version": CHANGE_VERSION, "entity_path": self.entity_path}, self.extra)

    @classmethod
    def decode(cls, data: bytes | None, path: str) -> ConfigChange:
        fields = Fields.decode(data, path)
        version = fields.integer("version")
        if version == 1:
            entity_type = fields.text("entity_type")
            if entity_type not in {"topics", "clients"}:
                raise fields.wrong("entity_type", "topics or clients", entity_type)
            return cls(f"{entity_type}/{fields.text('entity_name')}", fields.rest())
        if version != CHANGE_VERSION:
            raise fields.wrong("version", "1 or 2", version)
        entity_path = fields.text("entity_path")
        root, slash, name = entity_path.partition("/")
        if not slash or not name or root not in {entity_type.value for entity_type in ConfigEntityType}:
            raise LayoutError(path, f"entity_path should be TYPE/NAME as below {CONFIG_PATH}: {entity_path!r}")
        return cls(entity_path, fields.rest())
