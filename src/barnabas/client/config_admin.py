"""What an administrator asks for about configurations; part of `Admin`."""

from __future__ import annotations

import enum
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from barnabas.client.admin_calls import AdminCalls
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode, raise_for_code

if TYPE_CHECKING:
    from barnabas.client.cluster import BrokerNode
    from barnabas.client.config_entries import ConfigEntry

Result = TypeVar("Result")

_DESCRIBED_AT_A_TIME: Final = 1_000


class ResourceType(enum.IntEnum):
    """What has configurations; the value is that of the protocol."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class ConfigOperation(enum.IntEnum):
    """How a configuration changes (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigAdmin(AdminCalls):
    """Calls about configurations; users make an `Admin`."""

    async def describe_configs(
        self,
        resource_type: ResourceType,
        name: str,
        timeout_ms: float | None = None,
        *,
        with_synonyms: bool = False,
        keys: Iterable[str] | None = None,
    ) -> dict[str, ConfigEntry]:
        """All configurations of a topic or a broker, or those of `keys` that it has, by name; "" as broker is what is
        set for all of them.
        """
        resource = messages.DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=int(resource_type),
            resource_name=name,
            configuration_keys=None if keys is None else list(keys),
        )
        request = messages.DescribeConfigsRequest(resources=[resource], include_synonyms=with_synonyms)

        async def ask(node: BrokerNode, attempt_ms: float) -> dict[str, ConfigEntry]:
            response = await self._client.ask(node, self._lane, request, attempt_ms)
            result = response.results[0]
            raise_for_code(result.error_code, _told(resource_type, name, result))
            return _entries(result)

        return await self._at_resource(resource_type, name, "describing configs", ask, timeout_ms)

    async def describe_topic_configs(
        self, names: Iterable[str], keys: Iterable[str] | None = None, timeout_ms: float | None = None
    ) -> dict[str, dict[str, ConfigEntry]]:
        """These configurations (None: all) of many topics, in one request for each thousand; topics that do not exist
        are left out.
        """
        wanted, wanted_keys = list(names), None if keys is None else list(keys)
        found: dict[str, dict[str, ConfigEntry]] = {}
        for first in range(0, len(wanted), _DESCRIBED_AT_A_TIME):
            resources = [
                messages.DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=int(ResourceType.TOPIC), resource_name=name, configuration_keys=wanted_keys
                )
                for name in wanted[first : first + _DESCRIBED_AT_A_TIME]
            ]
            found |= await self._describe_topics_at_once(
                messages.DescribeConfigsRequest(resources=resources), timeout_ms
            )
        return found

    async def alter_configs(
        self,
        resource_type: ResourceType,
        name: str,
        changes: Iterable[tuple[str, ConfigOperation, str | None]],
        timeout_ms: float | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Changes single configurations (key, operation, value) of a topic or a broker; "" as broker is all of them."""
        configs = [
            messages.IncrementalAlterConfigsRequest.AlterableConfig(
                name=key, config_operation=int(operation), value=value
            )
            for key, operation, value in changes
        ]
        resource = messages.IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=int(resource_type), resource_name=name, configs=configs
        )
        request = messages.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        alter = self._alter_with(request, resource_type, name)
        await self._at_resource(resource_type, name, "altering configs", alter, timeout_ms, is_change=True)

    async def replace_configs(
        self, resource_type: ResourceType, name: str, configs: Mapping[str, str], timeout_ms: float | None = None
    ) -> None:
        """Gives a topic or a broker exactly these configurations of its own (the older AlterConfigs)."""
        resource = messages.AlterConfigsRequest.AlterConfigsResource(
            resource_type=int(resource_type),
            resource_name=name,
            configs=[
                messages.AlterConfigsRequest.AlterableConfig(name=key, value=value) for key, value in configs.items()
            ],
        )
        request = messages.AlterConfigsRequest(resources=[resource], validate_only=False)
        alter = self._alter_with(request, resource_type, name)
        await self._at_resource(resource_type, name, "replacing configs", alter, timeout_ms, is_change=True)

    # Inside.

    async def _describe_topics_at_once(
        self, request: messages.DescribeConfigsRequest, timeout_ms: float | None
    ) -> dict[str, dict[str, ConfigEntry]]:
        async def ask(node: BrokerNode, attempt_ms: float) -> dict[str, dict[str, ConfigEntry]]:
            response = await self._client.ask(node, self._lane, request, attempt_ms)
            found = {}
            for result in response.results:
                if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue
                raise_for_code(result.error_code, _told(ResourceType.TOPIC, result.resource_name, result))
                found[result.resource_name] = _entries(result)
            return found

        return await self._somewhere("describing configs", ask, timeout_ms)

    async def _at_resource(
        self,
        resource_type: ResourceType,
        name: str,
        what: str,
        ask: Callable[[BrokerNode, float], Coroutine[Any, Any, Result]],
        timeout_ms: float | None,
        *,
        is_change: bool = False,
    ) -> Result:
        """Configurations of one broker are its own to tell and change; all others any broker's."""
        if resource_type is ResourceType.TOPIC or not name:
            return await self._somewhere(what, ask, timeout_ms, is_change=is_change)
        if not name.isdecimal():
            raise ValueError(f"{name!r} is not a broker id: give a number")
        return await self._client.repeat(
            what, lambda attempt_ms: ask(self._client.node(int(name)), attempt_ms), timeout_ms
        )

    def _alter_with(
        self, request: Any, resource_type: ResourceType, name: str
    ) -> Callable[[BrokerNode, float], Coroutine[Any, Any, None]]:
        async def ask(node: BrokerNode, attempt_ms: float) -> None:
            response = await self._client.ask(node, self._lane, request, attempt_ms)
            for result in response.responses:
                raise_for_code(result.error_code, _told(resource_type, name, result))

        return ask


def _entries(result: Any) -> dict[str, ConfigEntry]:
    from barnabas.client.config_entries import ConfigEntry, ConfigSynonym

    return {
        entry.name: ConfigEntry(
            entry.name,
            entry.value,
            entry.config_source,
            entry.read_only,
            entry.is_sensitive,
            tuple(ConfigSynonym(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms),
        )
        for entry in result.configs
    }


def _told(resource_type: ResourceType, name: str, result: Any) -> str:
    """What a broker says of a resource in words, or only which it is."""
    match resource_type:
        case ResourceType.BROKER:
            subject = f"broker {name}" if name else "all brokers"
        case ResourceType.BROKER_LOGGER:
            subject = f"loggers of broker {name}"
        case _:
            subject = name
    return f"{subject}: {result.error_message}" if result.error_message else subject
