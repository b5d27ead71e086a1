"""Resources whose configs are described and altered, as the protocol names them."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from barnabas.wire.errors import ErrorCode, KafkaError


class ResourceType(enum.IntEnum):
    """Kinds of resources (KIP-133, KIP-412, KIP-714)."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class NamedConfig(Protocol):
    """One config of a request."""

    name: str


class NamedResource(Protocol):
    """One resource of a request."""

    resource_type: int
    resource_name: str


Resource = TypeVar("Resource", bound=NamedResource)


def repeated(resources: Iterable[Resource]) -> frozenset[tuple[int, str]]:
    """Type and name of the resources that come more than once."""
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    return frozenset(key for key, count in counts.items() if count > 1)


def check_config_names(configs: Sequence[NamedConfig]) -> None:
    """Raises `KafkaError` (INVALID_REQUEST) when a config comes twice."""
    if len({config.name for config in configs}) < len(configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")


def repeated_resource() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")


def null_values(names: Iterable[str]) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(names)}")


def unknown_type(resource_type: int) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
