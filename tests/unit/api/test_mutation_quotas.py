"""What clients may have the controller change (KIP-599): new clients are refused, older ones held back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from barnabas.api.administration.topic_creation import NewTopic
from barnabas.api.create_partitions import CreatePartitionsHandler
from barnabas.api.create_topics import CreateTopicsHandler
from barnabas.api.delete_topics import DeleteTopicsHandler
from barnabas.coordination.layout.topics import TOPICS_PATH
from barnabas.quotas.client_quotas import DEFAULT, QuotaEntity
from barnabas.server.client_quota_metrics import client_quota_metrics
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from tests.unit.api.administration.admin_world import AdminWorld, in_world
from tests.unit.api.calling import Caller, Calls
from tests.unit.api.test_client_throttles import answer

NONE, TIMED_OUT, REFUSED = "NONE", "REQUEST_TIMED_OUT", "THROTTLING_QUOTA_EXCEEDED"
BOUND = 2.0
BURST = 22
"""What may be changed at once."""


class Client:
    """A client whose requests say that they wait for nothing: what is done is told as a time-out."""

    def __init__(self, world: AdminWorld, calls: Calls, client_id: str) -> None:
        self.world = world
        self.caller: Caller = calls.connect(client_id=client_id)
        self.throttle_ms = 0

    async def create(self, version: int, *topics: tuple[str, int], validate_only: bool = False) -> list[str]:
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
                for name, count in topics
            ],
            timeout_ms=0,
            validate_only=validate_only,
        )
        return self.take(await answer(self.caller, request, version), "topics")

    async def grow(self, version: int, *topics: tuple[str, int]) -> list[str]:
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
                for name, count in topics
            ],
            timeout_ms=0,
        )
        return self.take(await answer(self.caller, request, version), "results")

    async def delete(self, version: int, *topics: str) -> list[str]:
        request = DeleteTopicsRequest(timeout_ms=0)
        if version >= 6:
            request.topics = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in topics]
        else:
            request.topic_names = list(topics)
        return self.take(await answer(self.caller, request, version), "responses")

    def take(self, response: Any, field: str) -> list[str]:
        self.throttle_ms = response.throttle_time_ms
        assert self.caller.connection.is_throttled == (self.throttle_ms > 0)
        outcomes = getattr(response, field)
        assert not any(getattr(outcome, "error_message", None) for outcome in outcomes if outcome.error_code == 89)
        return [ErrorCode.for_code(outcome.error_code).name for outcome in outcomes]


def scenario(body: Callable[[Client, Client], Awaitable[None]]) -> None:
    """Runs with a limited client and one that is not."""

    async def main(world: AdminWorld) -> None:
        calls = Calls(
            world.host,
            CreateTopicsHandler(world.controller, world.creator, world.waits, world.broker_configs, world.mutations),
            CreatePartitionsHandler(world.controller, world.partitions, world.waits, world.mutations),
            DeleteTopicsHandler(
                world.controller, world.deleter, world.waits, world.metadata, world.mutations, is_enabled=True
            ),
        )
        world.throttles.controller_mutation.set(QuotaEntity(None, "limited"), BOUND)
        await body(Client(world, calls, "limited"), Client(world, calls, "free"))

    in_world(main)


@pytest.mark.parametrize("version", [6, 7])
def test_topics_are_refused_when_nothing_may_be_changed_any_more(version: int) -> None:
    async def body(client: Client, free: Client) -> None:
        assert await client.create(version, ("a", BURST + 8), ("b", 1), ("a", 1)) == [
            "INVALID_REQUEST",
            TIMED_OUT,
            "INVALID_REQUEST",
        ]
        assert await client.create(version, ("c", BURST + 7), ("d", 1)) == [TIMED_OUT, REFUSED]
        assert client.throttle_ms == pytest.approx(4_000, abs=100)
        assert set(await client.world.children(TOPICS_PATH)) == {"b", "c"}
        assert await free.create(version, ("e", 50)) == [TIMED_OUT]
        assert free.throttle_ms == 0
        began = asyncio.get_running_loop().time()
        assert await client.create(version, ("d", 1)) == [TIMED_OUT]
        assert asyncio.get_running_loop().time() - began == pytest.approx(4, abs=0.2)

    scenario(body)


@pytest.mark.parametrize("version", [0, 5])
def test_older_clients_are_held_back_and_never_refused(version: int) -> None:
    async def body(client: Client, _free: Client) -> None:
        assert await client.create(version, ("a", BURST), ("b", 10), ("c", 10)) == [TIMED_OUT] * 3
        if version:
            assert client.throttle_ms == pytest.approx(10_000, abs=100)
        assert await client.create(version, ("d", 1)) == [TIMED_OUT]

    # Version 0 cannot tell it, and the connection is not read all the same.
    async def of_version_0(client: Client, _free: Client) -> None:
        client.caller.send(
            CreateTopicsRequest(
                topics=[CreateTopicsRequest.CreatableTopic(name="a", num_partitions=100, replication_factor=1)],
                timeout_ms=0,
            ),
            0,
        )
        await client.caller.responses(1)
        assert client.caller.connection.is_throttled

    scenario(body if version else of_version_0)


def test_what_is_only_checked_or_fails_otherwise_takes_nothing() -> None:
    async def body(client: Client, _free: Client) -> None:
        assert await client.create(7, ("a", 1_000), validate_only=True) == [NONE]
        assert await client.create(7, ("bad name", 1_000), ("a", 0)) == [
            "INVALID_TOPIC_EXCEPTION",
            "INVALID_PARTITIONS",
        ]
        account = client.world.throttles.controller_mutation.account("ANONYMOUS", "limited")
        assert account is not None
        assert account.tokens == BURST

    scenario(body)


@pytest.mark.parametrize(("version", "is_strict"), [(2, False), (3, True)])
def test_new_partitions_count(version: int, is_strict: bool) -> None:
    async def body(client: Client, _free: Client) -> None:
        world = client.world
        await world.creator.create([NewTopic("a", 5, 1), NewTopic("b", 5, 1)])
        world.show({"a": [1] * 5, "b": [1] * 5})
        assert await client.grow(version, ("a", 40), ("b", 6)) == [TIMED_OUT, REFUSED if is_strict else TIMED_OUT]
        assert client.throttle_ms == pytest.approx(6_500 if is_strict else 7_000, abs=100)
        assert len((await world.assignment("a")).partitions) == 40
        assert len((await world.assignment("b")).partitions) == (5 if is_strict else 6)

    scenario(body)


@pytest.mark.parametrize(("version", "is_strict"), [(4, False), (5, True), (6, True)])
def test_deleted_partitions_count(version: int, is_strict: bool) -> None:
    async def body(client: Client, _free: Client) -> None:
        world = client.world
        await world.creator.create([NewTopic("a", 30, 1), NewTopic("b", 1, 1)])
        world.show({"a": [1] * 30, "b": [1]})
        assert await client.delete(version, "a", "nobody", "b") == [
            TIMED_OUT,
            "UNKNOWN_TOPIC_OR_PARTITION",
            REFUSED if is_strict else TIMED_OUT,
        ]
        assert client.throttle_ms == pytest.approx(4_000 if is_strict else 4_500, abs=100)
        assert await world.children("/admin/delete_topics") == (["a"] if is_strict else ["a", "b"])

    scenario(body)


def test_the_rate_is_that_of_the_quota() -> None:
    async def body(client: Client, _free: Client) -> None:
        loop = asyncio.get_running_loop()
        began, made, number = loop.time(), 0, 0
        while loop.time() - began < 60:
            number += 1
            done = await client.create(7, (f"t{number}", 4))
            made += 4 * (done == [TIMED_OUT])
        assert made == pytest.approx(BURST + BOUND * 60, rel=0.1)

    scenario(body)


def test_the_metrics_say_how_many_tokens_are_left() -> None:
    async def body(client: Client, _free: Client) -> None:
        await client.create(7, ("a", BURST + 8))
        told = {
            str(name): metric.read()
            for name, metric in client_quota_metrics(client.world.throttles)
            if name.type == "ControllerMutation"
        }
        place = "kafka.server:type=ControllerMutation,name="
        assert told[f"{place}tokens,client-id=limited"] == pytest.approx(-8, abs=0.2)
        assert told[f"{place}mutation-rate,client-id=limited"] == pytest.approx(3, abs=0.1)
        assert told[f"{place}throttle-time,client-id=limited"] == 0
        assert told[f"{place}queue-size"] == 0

    scenario(body)


def test_a_default_for_all_users_counts_each_for_itself() -> None:
    async def body(_client: Client, free: Client) -> None:
        free.world.throttles.controller_mutation.set(QuotaEntity(DEFAULT, None), BOUND)
        assert await free.create(7, ("a", BURST + 2)) == [TIMED_OUT]
        assert await free.create(7, ("b", 1)) == [REFUSED]

    scenario(body)
