"""Who has a quota, as requests name it and as `/config` does: a user, a client id, both, or an address (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.coordination.layout.configs import (
    CONFIG_PATH,
    DEFAULT_ENTITY,
    ConfigEntityType,
    config_type_path,
    desanitize,
    sanitize,
    user_clients_path,
)
from barnabas.wire.errors import ErrorCode, KafkaError

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)
CLIENT_QUOTAS: Final[Mapping[str, type[int | float]]] = {
    "producer_byte_rate": int,
    "consumer_byte_rate": int,
    "request_percentage": float,
    "controller_mutation_rate": float,
}
"""The quotas of users and client ids, and what their values are."""
IP_QUOTAS: Final[Mapping[str, type[int | float]]] = {"connection_creation_rate": int}
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

Parts = Mapping[str, str | None]
"""The name by the type of entity; None for the default of that type."""


@dataclass(frozen=True, slots=True)
class QuotaPath:
    """Where the quotas of an entity are, below `/config`."""

    entity: str
    """The path that announcements have, `users/U/clients/C`."""
    parents: tuple[str, ...]
    """The znodes between it and those that are always there, from above."""
    quotas: Mapping[str, type[int | float]]
    """Those that it may have."""

    @property
    def znode(self) -> str:
        return f"{CONFIG_PATH}/{self.entity}"


def quota_path(parts: Parts) -> QuotaPath:
    """Raises `KafkaError` (INVALID_REQUEST) for what has no quotas; the checks and their order are Kafka's."""
    if not parts:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    for entity_type, name in parts.items():
        if entity_type not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Empty {entity_type} not supported")
    names = {entity_type: _sanitized(name) for entity_type, name in parts.items()}
    if IP in names:
        if len(names) > 1:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Invalid quota entity combination, IP entity should not be used with user/client ID entity.",
            )
        return QuotaPath(f"{ConfigEntityType.IPS.value}/{names[IP]}", (), IP_QUOTAS)
    if USER not in names:
        return QuotaPath(f"{ConfigEntityType.CLIENTS.value}/{names[CLIENT_ID]}", (), CLIENT_QUOTAS)
    user = f"{ConfigEntityType.USERS.value}/{names[USER]}"
    if CLIENT_ID not in names:
        return QuotaPath(user, (), CLIENT_QUOTAS)
    clients = user_clients_path(names[USER])
    return QuotaPath(f"{user}/clients/{names[CLIENT_ID]}", (f"{CONFIG_PATH}/{user}", clients), CLIENT_QUOTAS)


def parts_of(entity: str) -> Parts:
    """The entity whose quotas are at this path below `/config`. Raises ValueError for what has none."""
    match entity.split("/"):
        case ["users", user]:
            return {USER: _name(user)}
        case ["clients", client_id]:
            return {CLIENT_ID: _name(client_id)}
        case ["users", user, "clients", client_id]:
            return {USER: _name(user), CLIENT_ID: _name(client_id)}
        case ["ips", address]:
            return {IP: _name(address)}
    raise ValueError(f"no quotas are at {entity!r}")


USERS_PATH: Final = config_type_path(ConfigEntityType.USERS)
CLIENTS_PATH: Final = config_type_path(ConfigEntityType.CLIENTS)
IPS_PATH: Final = config_type_path(ConfigEntityType.IPS)


def _sanitized(name: str | None) -> str:
    return DEFAULT_ENTITY if name is None else sanitize(name)


def _name(sanitized: str) -> str | None:
    return None if sanitized == DEFAULT_ENTITY else desanitize(sanitized)
