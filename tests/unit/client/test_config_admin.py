"""Configurations of many topics at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from barnabas.client.admin import Admin, ResourceType
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse
from tests.unit.client.scripted_client import ScriptedClient, simulated

if TYPE_CHECKING:
    from barnabas.client.connections import Lane
    from barnabas.kernel.host import Host


def test_many_topics_are_asked_about_together_and_missing_ones_left_out() -> None:
    asked: list[DescribeConfigsRequest] = []

    async def answer(request: Any, _lane: Lane) -> Any:
        assert isinstance(request, DescribeConfigsRequest)
        asked.append(request)
        await asyncio.sleep(0)
        config = DescribeConfigsResponse.DescribeConfigsResourceResult(
            name="min.insync.replicas", value="2", config_source=1
        )
        codes = {"gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "refused": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResponse.DescribeConfigsResult(
                    error_code=codes.get(each.resource_name, ErrorCode.NONE),
                    resource_type=2,
                    resource_name=each.resource_name,
                    configs=[] if each.resource_name in codes else [config],
                )
                for each in request.resources
            ]
        )

    async def main(host: Host) -> None:
        client = ScriptedClient(host, answer, {"events": 2})
        async with Admin(client) as admin:
            names = ["gone", *(f"topic-{number}" for number in range(2_000))]
            found = await admin.describe_topic_configs(names, ["min.insync.replicas"])
            assert sorted(found) == sorted(names[1:])
            assert found["topic-7"]["min.insync.replicas"].value == "2"
            with pytest.raises(KafkaError, match="refused"):
                await admin.describe_topic_configs(["topic-1", "refused"])
            assert await admin.describe_topic_configs([]) == {}
        await client.close()

    simulated(main)
    assert [len(request.resources) for request in asked] == [1_000, 1_000, 1, 2]
    assert asked[0].resources[0].configuration_keys == ["min.insync.replicas"]


def test_of_one_resource_only_what_is_wanted_is_asked_for() -> None:
    asked: list[Any] = []

    async def answer(request: Any, _lane: Lane) -> Any:
        asked.append(request.resources[0].configuration_keys)
        result = DescribeConfigsResponse.DescribeConfigsResult(resource_type=2, resource_name="t", configs=[])
        return DescribeConfigsResponse(results=[result])

    async def main(host: Host) -> None:
        client = ScriptedClient(host, answer, {"t": 1})
        async with Admin(client) as admin:
            assert await admin.describe_configs(ResourceType.TOPIC, "t", keys=("retention.ms",)) == {}
            assert await admin.describe_configs(ResourceType.TOPIC, "t") == {}
        await client.close()

    simulated(main)
    assert asked == [["retention.ms"], None]
