"""Calls with a time limit: no request of theirs may take longer, however the brokers behave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from barnabas.client.admin import Admin, ConfigOperation, NewTopic, ResourceType
from barnabas.client.client import Client
from barnabas.client.connections import Lane
from barnabas.client.errors import ClientTimeoutError
from barnabas.client.group_coordinator import GroupCoordinator, Membership
from barnabas.client.records import OffsetAndMetadata
from barnabas.kernel.host import Host
from barnabas.link.errors import RequestTimeoutError
from barnabas.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.wire.topics import TopicPartition
from tests.unit.client.scripted_client import ScriptedClient, simulated

PARTITION = TopicPartition("events", 0)
OFFSETS = {PARTITION: OffsetAndMetadata(1)}
LIMIT_MS = 1_000
LANE = Lane(1)

CALLS: dict[str, Callable[[Client, Admin], Awaitable[Any]]] = {
    "create_topics": lambda _, admin: admin.create_topics([NewTopic("new")], LIMIT_MS),
    "delete_topics": lambda _, admin: admin.delete_topics(["events"], LIMIT_MS),
    "create_partitions": lambda _, admin: admin.create_partitions({"events": 3}, LIMIT_MS),
    "alter_partition_reassignments": lambda _, admin: admin.alter_partition_reassignments({PARTITION: [1]}, LIMIT_MS),
    "list_partition_reassignments": lambda _, admin: admin.list_partition_reassignments(None, LIMIT_MS),
    "describe_topics": lambda _, admin: admin.describe_topics(["events"], LIMIT_MS),
    "describe_cluster": lambda _, admin: admin.describe_cluster(LIMIT_MS),
    "describe_configs": lambda _, admin: admin.describe_configs(ResourceType.BROKER, "1", LIMIT_MS),
    "alter_configs": lambda _, admin: admin.alter_configs(
        ResourceType.TOPIC, "events", [("retention.ms", ConfigOperation.SET, "1")], LIMIT_MS
    ),
    "list_offsets": lambda _, admin: admin.list_offsets({PARTITION: -1}, LIMIT_MS),
    "delete_records": lambda _, admin: admin.delete_records({PARTITION: 1}, LIMIT_MS),
    "describe_log_dirs": lambda _, admin: admin.describe_log_dirs(1, LIMIT_MS),
    "alter_replica_log_dirs": lambda _, admin: admin.alter_replica_log_dirs(1, {PARTITION: "/data"}, LIMIT_MS),
    "list_groups": lambda _, admin: admin.list_groups((), LIMIT_MS),
    "describe_group": lambda _, admin: admin.describe_group("group", LIMIT_MS),
    "delete_group": lambda _, admin: admin.delete_group("group", LIMIT_MS),
    "list_group_offsets": lambda _, admin: admin.list_group_offsets("group", None, LIMIT_MS),
    "alter_group_offsets": lambda _, admin: admin.alter_group_offsets("group", OFFSETS, LIMIT_MS),
    "delete_group_offsets": lambda _, admin: admin.delete_group_offsets("group", OFFSETS, LIMIT_MS),
    "commit": lambda client, _: GroupCoordinator(client, LANE, "group").commit(OFFSETS, Membership(), LIMIT_MS),
}


@pytest.mark.parametrize("finds_coordinator", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_ends_in_its_time(name: str, finds_coordinator: bool) -> None:
    async def main(host: Host) -> None:
        async def answer(request: Any, _lane: Lane) -> Any:
            """As a broker that is stopped: the time of the request passes."""
            if finds_coordinator and isinstance(request, FindCoordinatorRequest):
                coordinator = FindCoordinatorResponse.Coordinator(key="group", node_id=1, host="broker", port=9092)
                return FindCoordinatorResponse(coordinators=[coordinator])
            _, _, timeout_ms = client.asked[-1]
            assert timeout_ms is not None
            assert timeout_ms <= LIMIT_MS
            assert getattr(request, "timeout_ms", 0) < timeout_ms
            await client.timers.sleep(timeout_ms)
            raise RequestTimeoutError("no answer")

        client = ScriptedClient(host, answer, {"events": 1})
        admin = Admin(client)
        began = host.loop.time()
        with pytest.raises(ClientTimeoutError):
            await CALLS[name](client, admin)
        assert client.asked
        assert (host.loop.time() - began) * 1_000 <= LIMIT_MS + 100
        await admin.close()
        await client.close()

    simulated(main)


def test_a_broker_that_is_no_number_is_refused() -> None:
    async def nobody(_request: Any, _lane: Lane) -> Any:
        raise ConnectionError

    async def main(host: Host) -> None:
        client = ScriptedClient(host, nobody, {})
        with pytest.raises(ValueError, match="'broker-1' is not a broker id: give a number"):
            await Admin(client).describe_configs(ResourceType.BROKER, "broker-1")
        await client.close()

    simulated(main)
