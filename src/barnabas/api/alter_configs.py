"""AlterConfigs, 0 to 2: replaces all dynamic configs of a topic, of this broker, or of all brokers (name "").

What is not named goes back to its default, but for passwords that cannot be decoded, which stay. Any broker answers for
topics. Other kinds of resources are refused, as Kafka does in ZooKeeper mode. Left out: policies
(`alter.config.policy.class.name`).
"""

from __future__ import annotations

from collections.abc import Mapping

from barnabas.api.administration.config_alteration import ConfigAlterer, Keys
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
from barnabas.security.stored_passwords import Sealed
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import AlterConfigsRequest, AlterConfigsResponse

Result = AlterConfigsResponse.AlterConfigsResourceResponse


class AlterConfigsHandler:
    """Replaces configs."""

    api_key = ApiKey.ALTER_CONFIGS
    versions = (0, 2)

    def __init__(self, alterer: ConfigAlterer) -> None:
        self._alterer = alterer

    async def handle(self, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
        access = ConfigAccess(context, AclOperation.ALTER_CONFIGS)

        async def alter(resource: AlterConfigsRequest.AlterConfigsResource) -> None:
            await self._alter(resource, access, validate_only=request.validate_only)

        outcomes = await alter_each(context, request.resources, alter)
        responses = each(lambda outcome: Result(**result_fields(*outcome)), outcomes)
        return AlterConfigsResponse(responses=await context.in_steps(responses))

    def error_response(
        self, _context: RequestContext, request: AlterConfigsRequest, error: KafkaError
    ) -> Steps[AlterConfigsResponse]:
        responses = yield from each(lambda resource: Result(**result_fields(resource, error)), request.resources)
        return AlterConfigsResponse(responses=responses)

    async def _alter(
        self, resource: AlterConfigsRequest.AlterConfigsResource, access: ConfigAccess, *, validate_only: bool
    ) -> None:
        """Raises `KafkaError`."""
        check_config_names(resource.configs)
        nulls = [config.name for config in resource.configs if config.value is None]
        if nulls:
            raise null_values(nulls)
        configs = {config.name: config.value for config in resource.configs if config.value is not None}

        def replace(existing: Mapping[str, str], _keys: Keys) -> dict[str, str]:
            # Whoever lists all that there is has not seen them, and would lose them for a secret that was mistyped.
            sealed = {name: text for name, text in existing.items() if isinstance(text, Sealed)}
            return {**sealed, **configs}

        if resource.resource_type not in (ResourceType.TOPIC, ResourceType.BROKER):
            raise unknown_type(resource.resource_type)
        access.check(resource)
        if resource.resource_type == ResourceType.TOPIC:
            await self._alterer.alter_topic(resource.resource_name, replace, validate_only=validate_only)
        else:
            await self._alterer.alter_broker(resource.resource_name, replace, validate_only=validate_only)
