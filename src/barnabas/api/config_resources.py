"""Resources whose configs are described and altered, as the protocol names them."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from barnabas.api.authorization import Decisions
from barnabas.api.context import RequestContext
from barnabas.kernel.steps import STEP_ELEMENTS
from barnabas.security import acls
from barnabas.security.acls import AclOperation
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
_COUNTED_PER_TURN: Final = 4096
CONFIGS_MAX: Final = 1000
"""Configs of one resource in one request; there are some 200."""


class ConfigAccess:
    """Whether who has sent the request may do `operation` with the configs of its resources."""

    def __init__(self, context: RequestContext, operation: AclOperation) -> None:
        self._topics = Decisions(context, operation, acls.ResourceType.TOPIC)
        self._cluster = Decisions(context, operation, acls.ResourceType.CLUSTER)

    def allow_topic(self, name: str) -> bool:
        return self._topics.allow(name)

    def check(self, resource: NamedResource) -> None:
        """Raises `KafkaError`. What is no topic's is the cluster's."""
        if resource.resource_type == ResourceType.TOPIC:
            if not self._topics.allow(resource.resource_name):
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        elif not self._cluster.allow(acls.CLUSTER_NAME):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


async def alter_each(
    context: RequestContext, resources: Sequence[Resource], alter: Callable[[Resource], Awaitable[None]]
) -> list[tuple[Resource, KafkaError | None]]:
    """Alters one resource after another; returns each with what refused it, or None. One that comes more than once is
    refused each time.
    """
    counts: Counter[tuple[int, str]] = Counter()
    for start in range(0, len(resources), _COUNTED_PER_TURN):
        if start:
            await context.turn()
        some = resources[start : start + _COUNTED_PER_TURN]
        counts.update((resource.resource_type, resource.resource_name) for resource in some)
    outcomes: list[tuple[Resource, KafkaError | None]] = []
    for position, resource in enumerate(resources):
        if position % STEP_ELEMENTS == STEP_ELEMENTS - 1:
            await context.turn()
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            await alter(resource)
        except KafkaError as error:
            # Without the frames that it came through, which hold what they have looked at.
            outcomes.append((resource, error.with_traceback(None)))
        else:
            outcomes.append((resource, None))
    return outcomes


def result_fields(resource: NamedResource, error: KafkaError | None) -> dict[str, Any]:
    """The fields that both kinds of alterations have for the outcome of one resource."""
    return {
        "error_code": ErrorCode.NONE if error is None else error.code,
        "error_message": None if error is None else error.detail,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


def check_config_names(configs: Sequence[NamedConfig]) -> None:
    """Raises `KafkaError` (INVALID_REQUEST) when a config comes twice, or there are far more than exist."""
    if len(configs) > CONFIGS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{len(configs)} configs of one resource; at most {CONFIGS_MAX} can be named"
        )
    if len({config.name for config in configs}) < len(configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")


def null_values(names: Iterable[str]) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(names)}")


def unknown_type(resource_type: int) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
