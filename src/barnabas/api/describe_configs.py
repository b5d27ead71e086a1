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
from barnabas.api.config_resources import ResourceType, result_fields
from barnabas.api.context import RequestContext
from barnabas.cluster.broker_configs import BrokerConfigs
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.config.describing import ConfigSource, Described, describe_broker, describe_cluster_default
from barnabas.config.keys import ConfigError
from barnabas.config.topic_config import describe_topic
from barnabas.controller.topic_assignment import check_topic_name
from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.configs import ConfigEntityType, EntityConfig, config_path
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import ZnodeData
from barnabas.coordination.ports import Store
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse

_TYPE_UNKNOWN: Final = 0

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
    ) -> DescribeConfigsResponse | Coroutine[Any, Any, DescribeConfigsResponse]:
        for resource in request.resources:
            if resource.resource_type not in set(ResourceType) - {ResourceType.UNKNOWN, ResourceType.GROUP}:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Unexpected resource type {resource.resource_type} for resource {resource.resource_name}",
                )
        topics = dict.fromkeys(
            resource.resource_name
            for resource in request.resources
            if resource.resource_type == ResourceType.TOPIC and resource.resource_name in self._metadata.image.topics
        )
        if topics:
            return self._describe_with_topics(request, context.api_version, list(topics))
        return self._describe(request, context.api_version, {})

    def error_response(
        self, _context: RequestContext, request: DescribeConfigsRequest, error: KafkaError
    ) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(
            results=[Result(**result_fields(resource, error)) for resource in request.resources]
        )

    async def _describe_with_topics(
        self, request: DescribeConfigsRequest, api_version: int, topics: list[str]
    ) -> DescribeConfigsResponse:
        try:
            found = await self._store.get_many([config_path(ConfigEntityType.TOPICS, topic) for topic in topics])
        except CoordinationError as error:
            raise as_kafka_error(error, self._logger, "Reading the configs of topics") from None
        return self._describe(request, api_version, dict(zip(topics, found, strict=True)))

    def _describe(
        self, request: DescribeConfigsRequest, api_version: int, topics: dict[str, Found]
    ) -> DescribeConfigsResponse:
        results = []
        for resource in request.resources:
            try:
                described = self._described(resource, topics)
            except KafkaError as error:
                results.append(Result(**result_fields(resource, error)))
                continue
            wanted = resource.configuration_keys
            entries = [_entry(each, request, api_version) for each in described if not wanted or each.name in wanted]
            results.append(
                Result(resource_type=resource.resource_type, resource_name=resource.resource_name, configs=entries)
            )
        return DescribeConfigsResponse(results=results)

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
