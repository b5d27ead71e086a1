"""DescribeConfigs, 0 to 4: the configs of topics, of this broker, of all brokers (name ""), and logger levels.

Of each: its value, where that comes from, from version 1 on whatever else could set it, and from 3 on its type and what
it is for. Topics' configs are read from ZooKeeper, so that what was changed anywhere is told at once. Differences to
Kafka: the documentation is Barnabas's own. Left out: client metrics, which ZooKeeper mode does not have.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable
from typing import Any, Final

from barnabas.api.administration.config_alteration import check_broker_name
from barnabas.api.administration.guarded_writes import as_kafka_error
from barnabas.api.administration.logger_levels import LoggerLevels
from barnabas.api.config_resources import ConfigAccess, ResourceType, result_fields
from barnabas.api.context import RequestContext
from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.config.describing import Described, describe_broker, describe_cluster_default
from barnabas.config.keys import ConfigError
from barnabas.config.sources import ConfigSource
from barnabas.config.topic_config import describe_topic
from barnabas.controller.topic_assignment import check_topic_name
from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.configs import ConfigEntityType, EntityConfig, config_path
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import ZnodeData
from barnabas.coordination.ports import Store
from barnabas.kernel.steps import Steps, each
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse

_TYPE_UNKNOWN: Final = 0
_LOOKED_AT_PER_STEP: Final = 2048
_ENTRIES_PER_STEP: Final = 128
"""A broker has some 200 configs, with their documentation and whatever else could set them."""
_READ_AT_A_TIME: Final = 1024
_DESCRIBED_TYPES: Final = frozenset(set(ResourceType) - {ResourceType.UNKNOWN, ResourceType.GROUP})

Resource = DescribeConfigsRequest.DescribeConfigsResource
Result = DescribeConfigsResponse.DescribeConfigsResult
Entry = DescribeConfigsResponse.DescribeConfigsResourceResult
Found = ZnodeData | CoordinationError


class DescribeConfigsHandler:
    """Tells configs."""

    api_key = ApiKey.DESCRIBE_CONFIGS
    versions = (0, 4)

    def __init__(
        self,
        store: Store,
        metadata: MetadataCache,
        broker_configs: BrokerConfigs,
        logger_levels: LoggerLevels,
        logger: logging.Logger,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._broker_configs = broker_configs
        self._logger_levels = logger_levels
        self._logger = logger

    def handle(
        self, context: RequestContext, request: DescribeConfigsRequest
    ) -> Steps[DescribeConfigsResponse | Coroutine[Any, Any, DescribeConfigsResponse]]:
        for position, resource in enumerate(request.resources):
            if position % _LOOKED_AT_PER_STEP == _LOOKED_AT_PER_STEP - 1:
                yield
            if resource.resource_type not in _DESCRIBED_TYPES:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Unexpected resource type {resource.resource_type} for resource {resource.resource_name}",
                )
        access = ConfigAccess(context, AclOperation.DESCRIBE_CONFIGS)
        topics: dict[str, None] = {}

        def take(resource: Resource) -> None:
            name = resource.resource_name
            if (
                resource.resource_type == ResourceType.TOPIC
                and name in self._metadata.image.topics
                and access.allow_topic(name)
            ):
                topics[name] = None

        yield from each(take, request.resources)
        if topics:
            return self._describe_with_topics(context, request, list(topics), access)
        return (yield from self._describe(request, context.api_version, {}, access))

    def error_response(
        self, _context: RequestContext, request: DescribeConfigsRequest, error: KafkaError
    ) -> Steps[DescribeConfigsResponse]:
        results = yield from each(lambda resource: Result(**result_fields(resource, error)), request.resources)
        return DescribeConfigsResponse(results=results)

    async def _describe_with_topics(
        self, context: RequestContext, request: DescribeConfigsRequest, topics: list[str], access: ConfigAccess
    ) -> DescribeConfigsResponse:
        found: dict[str, Found] = {}
        for start in range(0, len(topics), _READ_AT_A_TIME):
            some = topics[start : start + _READ_AT_A_TIME]
            try:
                read = await self._store.get_many([config_path(ConfigEntityType.TOPICS, topic) for topic in some])
            except CoordinationError as error:
                raise as_kafka_error(error, self._logger, "Reading the configs of topics") from None
            found.update(zip(some, read, strict=True))
        return await context.in_steps(self._describe(request, context.api_version, found, access))

    def _describe(
        self, request: DescribeConfigsRequest, api_version: int, topics: dict[str, Found], access: ConfigAccess
    ) -> Steps[DescribeConfigsResponse]:
        results: list[Result] = []
        left = _ENTRIES_PER_STEP
        for resource in request.resources:
            result = self._result(resource, request, api_version, topics, access)
            results.append(result)
            left -= 1 + len(result.configs)
            if left <= 0:
                yield
                left = _ENTRIES_PER_STEP
        return DescribeConfigsResponse(results=results)

    def _result(
        self,
        resource: Resource,
        request: DescribeConfigsRequest,
        api_version: int,
        topics: dict[str, Found],
        access: ConfigAccess,
    ) -> Result:
        try:
            access.check(resource)
            described = self._described(resource, topics)
        except KafkaError as error:
            return Result(**{**result_fields(resource, error), "error_message": error.detail or ""})
        wanted = frozenset(resource.configuration_keys or ())
        entries = [_entry(config, request, api_version) for config in described if not wanted or config.name in wanted]
        return Result(
            error_message="",  # as in Kafka, where no other answer has an empty text for none
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=entries,
        )

    def _described(self, resource: Resource, topics: dict[str, Found]) -> Iterable[Described]:
        """Raises `KafkaError`."""
        name = resource.resource_name
        if resource.resource_type == ResourceType.TOPIC:
            return self._topic(name, topics)
        if resource.resource_type == ResourceType.BROKER:
            check_broker_name(name, self._broker_configs.broker_id)
            if not name:
                return describe_cluster_default(self._broker_configs.layers)
            return describe_broker(self._broker_configs.config, self._broker_configs.layers)
        if resource.resource_type == ResourceType.BROKER_LOGGER:
            return [_logger(*level) for level in self._logger_levels.describe(name).items()]
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Config type client-metrics is only supported on KRaft clusters")

    def _topic(self, name: str, topics: dict[str, Found]) -> Iterable[Described]:
        check_topic_name(name)
        if name not in topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        found = topics[name]
        path = config_path(ConfigEntityType.TOPICS, name)
        if isinstance(found, CoordinationError) and not isinstance(found, NoNodeError):
            raise as_kafka_error(found, self._logger, f"Reading {path}")
        data = None if isinstance(found, NoNodeError) else found.data
        try:
            overrides = EntityConfig.decode(data, path).config
            return describe_topic(overrides, self._broker_configs.values, self._broker_configs.layers)
        except (LayoutError, ConfigError) as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None


def _logger(name: str, level: str) -> Described:
    return Described(
        name,
        level,
        ConfigSource.DYNAMIC_BROKER_LOGGER,
        read_only=False,
        sensitive=False,
        type=_TYPE_UNKNOWN,
        documentation="",
        synonyms=(),
    )


def _entry(described: Described, request: DescribeConfigsRequest, api_version: int) -> Entry:
    synonyms = described.synonyms if request.include_synonyms else ()
    return Entry(
        name=described.name,
        value=described.value,
        read_only=described.read_only,
        is_default=api_version == 0 and described.source is ConfigSource.DEFAULT,
        config_source=described.source,
        is_sensitive=described.sensitive,
        synonyms=[
            DescribeConfigsResponse.DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
            for each in synonyms
        ],
        config_type=described.type,
        documentation=described.documentation if request.include_documentation else None,
    )
