"""IncrementalAlterConfigs, 0 and 1: changes single dynamic configs of a topic, of this broker, of all brokers (name
""), or the levels of this broker's loggers (KIP-339, KIP-412).

Any broker answers for topics. Two changes of one resource at once are both kept, which Kafka's brokers do not promise.
Left out: policies (`alter.config.policy.class.name`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.api.administration.config_alteration import ConfigAlterer, ConfigEdit, ConfigOperation, Keys, edited
from barnabas.api.administration.logger_levels import LoggerLevels
from barnabas.api.config_resources import (
    ConfigAccess,
    ResourceType,
    alter_each,
    check_config_names,
    null_values,
    result_fields,
    unknown_type,
)
from barnabas.api.context import RequestContext
from barnabas.kernel.steps import Steps, each
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

_KNOWN_TYPES: Final = frozenset(
    (ResourceType.TOPIC, ResourceType.BROKER, ResourceType.BROKER_LOGGER, ResourceType.CLIENT_METRICS)
)
Resource = IncrementalAlterConfigsRequest.AlterConfigsResource
Result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


class IncrementalAlterConfigsHandler:
    """Changes single configs."""

    api_key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    versions = (0, 1)

    def __init__(self, alterer: ConfigAlterer, logger_levels: LoggerLevels) -> None:
        self._alterer = alterer
        self._logger_levels = logger_levels

    async def handle(
        self, context: RequestContext, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        access = ConfigAccess(context, AclOperation.ALTER_CONFIGS)

        async def alter(resource: Resource) -> None:
            await self._alter(resource, access, validate_only=request.validate_only)

        outcomes = await alter_each(context, request.resources, alter)
        responses = each(lambda outcome: Result(**result_fields(*outcome)), outcomes)
        return IncrementalAlterConfigsResponse(responses=await context.in_steps(responses))

    def error_response(
        self, _context: RequestContext, request: IncrementalAlterConfigsRequest, error: KafkaError
    ) -> Steps[IncrementalAlterConfigsResponse]:
        responses = yield from each(lambda resource: Result(**result_fields(resource, error)), request.resources)
        return IncrementalAlterConfigsResponse(responses=responses)

    async def _alter(self, resource: Resource, access: ConfigAccess, *, validate_only: bool) -> None:
        """Raises `KafkaError`."""
        edits = _edits(resource)

        def edit(existing: Mapping[str, str], keys: Keys) -> dict[str, str]:
            return edited(edits, existing, keys)

        if resource.resource_type not in _KNOWN_TYPES:
            raise unknown_type(resource.resource_type)
        access.check(resource)
        if resource.resource_type == ResourceType.TOPIC:
            await self._alterer.alter_topic(resource.resource_name, edit, validate_only=validate_only)
        elif resource.resource_type == ResourceType.BROKER:
            await self._alterer.alter_broker(resource.resource_name, edit, validate_only=validate_only)
        elif resource.resource_type == ResourceType.BROKER_LOGGER:
            self._logger_levels.alter(resource.resource_name, edits, validate_only=validate_only)
        else:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "AlterConfigs is only supported for topics and brokers, but resource type is CLIENT_METRICS",
            )


def _edits(resource: Resource) -> list[ConfigEdit]:
    """Raises `KafkaError` (INVALID_REQUEST)."""
    check_config_names(resource.configs)
    nulls = [
        config.name
        for config in resource.configs
        if config.value is None and config.config_operation != ConfigOperation.DELETE
    ]
    if nulls:
        raise null_values(nulls)
    edits = []
    for config in resource.configs:
        try:
            operation = ConfigOperation(config.config_operation)
        except ValueError:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {config.config_operation}") from None
        edits.append(ConfigEdit(config.name, operation, config.value))
    return edits
