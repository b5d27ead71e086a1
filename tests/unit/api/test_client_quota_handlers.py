"""AlterClientQuotas and DescribeClientQuotas through the dispatcher, in every version."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

from barnabas.api.administration.quota_alteration import QuotaAlterer, QuotaReader
from barnabas.api.alter_client_quotas import AlterClientQuotasHandler
from barnabas.api.describe_client_quotas import DescribeClientQuotasHandler
from barnabas.coordination.layout.configs import EntityConfig
from barnabas.kernel.steps import STEP_ELEMENTS
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tests.unit.api.administration.admin_world import AdminWorld, in_world
from tests.unit.api.calling import Caller, Calls

EXACT, DEFAULT, ANY = range(3)
Entity = dict[str, str | None]
RATE = "producer_byte_rate"


class Quotas:
    """A client of one broker."""

    def __init__(self, world: AdminWorld, version: int) -> None:
        async def resolves(name: str) -> bool:
            return name in {"10.0.0.1", "::1", "localhost"}

        self.world = world
        self.version = version
        self.caller: Caller = Calls(
            world.host,
            AlterClientQuotasHandler(QuotaAlterer(world.client, resolves, world.logger)),
            DescribeClientQuotasHandler(QuotaReader(world.client, world.logger)),
        ).connect()

    async def send(self, *entries: Any, validate_only: bool = False) -> AlterClientQuotasResponse:
        request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
        response: AlterClientQuotasResponse = await self.caller.call(request, self.version)
        return response

    async def alter(self, entity: Entity, changes: dict[str, float | None], *, validate_only: bool = False) -> str:
        """The error, NONE for none."""
        response = await self.send(entry(entity, changes), validate_only=validate_only)
        (told,) = response.entries
        assert {part.entity_type: part.entity_name for part in told.entity} == entity
        return ErrorCode.for_code(told.error_code).name + (f": {told.error_message}" if told.error_code else "")

    async def ask(self, *components: tuple[str, int, str | None], strict: bool = False) -> DescribeClientQuotasResponse:
        request = DescribeClientQuotasRequest(
            components=[
                DescribeClientQuotasRequest.ComponentData(entity_type=kind, match_type=match_type, match=match)
                for kind, match_type, match in components
            ],
            strict=strict,
        )
        response: DescribeClientQuotasResponse = await self.caller.call(request, self.version)
        return response

    async def describe(
        self, *components: tuple[str, int, str | None], strict: bool = False
    ) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
        response = await self.ask(*components, strict=strict)
        assert response.error_code == 0
        assert response.entries is not None
        return {
            tuple((part.entity_type, part.entity_name) for part in entry.entity): {
                value.key: value.value for value in entry.values
            }
            for entry in response.entries
        }

    async def config(self, path: str) -> dict[str, str]:
        data = await self.world.data(f"/config/{path}")
        found: dict[str, str] = json.loads(data or b'{"config": {}}')["config"]
        return found

    async def announced(self) -> list[str]:
        paths = [f"/config/changes/{name}" for name in await self.world.children("/config/changes")]
        return [json.loads(await self.world.data(path) or b"")["entity_path"] for path in paths]


def entry(entity: Entity, changes: dict[str, float | None]) -> AlterClientQuotasRequest.EntryData:
    return AlterClientQuotasRequest.EntryData(
        entity=[
            AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()
        ],
        ops=[
            AlterClientQuotasRequest.OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in changes.items()
        ],
    )


@pytest.fixture(params=[0, 1])
def scenario(request: pytest.FixtureRequest) -> Callable[[Callable[[Quotas], Awaitable[None]]], None]:
    def run(body: Callable[[Quotas], Awaitable[None]]) -> None:
        in_world(lambda world: body(Quotas(world, request.param)))

    return run


Scenario = Callable[[Callable[[Quotas], Awaitable[None]]], None]

ENTITIES: tuple[tuple[Entity, str], ...] = (
    ({"user": "U 1"}, "users/U%201"),
    ({"user": None}, "users/<default>"),
    ({"client-id": "c"}, "clients/c"),
    ({"client-id": None}, "clients/<default>"),
    ({"user": "U 1", "client-id": "c/d"}, "users/U%201/clients/c%2Fd"),
    ({"user": None, "client-id": None}, "users/<default>/clients/<default>"),
)


def test_quotas_are_set_where_kafka_has_them_and_announced(scenario: Scenario) -> None:
    async def body(quotas: Quotas) -> None:
        for entity, path in ENTITIES:
            assert await quotas.alter(entity, {RATE: 1e6, "request_percentage": 12.5}) == "NONE"
            assert await quotas.config(path) == {RATE: "1000000", "request_percentage": "12.5"}
            assert await quotas.alter(entity, {RATE: None, "controller_mutation_rate": 2}) == "NONE"
            assert await quotas.config(path) == {"request_percentage": "12.5", "controller_mutation_rate": "2.0"}
        for address, path in (("10.0.0.1", "ips/10.0.0.1"), (None, "ips/<default>"), ("::1", "ips/%3A%3A1")):
            assert await quotas.alter({"ip": address}, {"connection_creation_rate": 5}) == "NONE"
            assert await quotas.config(path) == {"connection_creation_rate": "5"}
        paths = [path for _, path in ENTITIES for _ in range(2)]
        assert await quotas.announced() == [*paths, "ips/10.0.0.1", "ips/<default>", "ips/%3A%3A1"]

    scenario(body)


def test_what_has_no_quota_any_more_goes_with_what_is_empty_above_it(scenario: Scenario) -> None:
    async def body(quotas: Quotas) -> None:
        children = quotas.world.children
        one: Entity = {"user": "u", "client-id": "1"}
        two: Entity = {"user": "u", "client-id": "2"}
        user: Entity = {"user": "u"}
        for entity in (one, two, user):
            assert await quotas.alter(entity, {RATE: 1}) == "NONE"
        assert await quotas.alter({"user": "u"}, {RATE: None}) == "NONE"
        assert await quotas.config("users/u") == {}, "it has client ids below it"
        assert await quotas.alter(one, {RATE: None}) == "NONE"
        assert await children("/config/users/u/clients") == ["2"]
        assert await quotas.alter(two, {RATE: None}) == "NONE"
        assert await children("/config/users") == []
        for entity in (one, user):
            assert await quotas.alter(entity, {RATE: 1}) == "NONE"
        assert await quotas.alter(one, {RATE: None}) == "NONE"
        assert await children("/config/users/u") == []
        assert await quotas.config("users/u") == {RATE: "1"}
        count = len(await quotas.announced())
        assert await quotas.alter({"client-id": "nobody"}, {RATE: None}) == "NONE"
        assert await children("/config/clients") == []
        assert len(await quotas.announced()) == count + 1

    scenario(body)


def test_credentials_of_a_user_stay(scenario: Scenario) -> None:
    async def body(quotas: Quotas) -> None:
        client = quotas.world.client
        config = {"version": 1, "config": {"SCRAM-SHA-256": "secret"}}
        await client.create("/config/users/u", json.dumps(config).encode())
        assert await quotas.alter({"user": "u"}, {RATE: 1}) == "NONE"
        assert await quotas.config("users/u") == {"SCRAM-SHA-256": "secret", RATE: "1"}
        assert (await quotas.describe(("user", ANY, None)))[("user", "u"),] == {RATE: 1.0}
        assert await quotas.alter({"user": "u"}, {RATE: None}) == "NONE"
        assert await quotas.config("users/u") == {"SCRAM-SHA-256": "secret"}
        assert await quotas.describe() == {}
        await client.create("/config/users/v", b"")
        await client.create("/config/users/v/clients", b"")
        await client.create("/config/users/v/clients/c", json.dumps(config).encode())
        told = await quotas.alter({"user": "v", "client-id": "c"}, {RATE: 1})
        assert told.startswith("UNKNOWN_SERVER_ERROR: /config/users/v/clients/c has configs that are none of it")

    scenario(body)


def test_what_a_users_znode_says_is_neither_told_nor_logged(scenario: Scenario) -> None:
    """It may be a credential."""

    async def body(quotas: Quotas) -> None:
        client = quotas.world.client
        cannot = (
            "UNKNOWN_SERVER_ERROR: /config/users/u cannot be read: it should be JSON, with a config of names and texts"
        )
        for garbage in (b"SCRAM-SHA-256=hush", b'{"version": 1, "config": {"SCRAM-SHA-256": ["hush"]}}'):
            await client.create("/config/users/u", garbage)
            assert await quotas.alter({"user": "u"}, {RATE: 1}) == cannot
            assert (await quotas.ask(("user", ANY, None))).error_message == "the quotas of users/u cannot be read"
            await client.create("/config/users/u/clients", b"")
            await client.create("/config/users/u/clients/c", b"")
            assert await quotas.alter({"user": "u", "client-id": "c"}, {RATE: None}) == cannot
            await client.delete("/config/users/u/clients/c")
            await client.delete("/config/users/u/clients")
            await client.delete("/config/users/u")
        assert "hush" not in "".join(quotas.world.lines.lines)

    scenario(body)


@pytest.mark.parametrize(
    ("entity", "changes", "expected"),
    [
        ({"user": "u"}, {"SCRAM-SHA-256": None}, "Invalid configuration key SCRAM-SHA-256"),
        ({"user": "u"}, {"SCRAM-SHA-512": 1}, "Invalid configuration key SCRAM-SHA-512"),
        ({}, {RATE: 1}, "Invalid empty client quota entity"),
        ({"team": "x"}, {RATE: 1}, "Unhandled client quota entity type: team"),
        ({"user": ""}, {RATE: 1}, "Empty user not supported"),
        ({"client-id": ""}, {RATE: 1}, "Empty client-id not supported"),
        (
            {"user": "u", "ip": "10.0.0.1"},
            {RATE: 1},
            "Invalid quota entity combination, IP entity should not be used with user/client ID entity.",
        ),
        ({"ip": "nowhere"}, {"connection_creation_rate": 1}, "nowhere is not a valid IP or resolvable host."),
        ({"ip": "10.0.0.1"}, {RATE: 1}, f"Invalid configuration key {RATE}"),
        ({"user": "u"}, {"connection_creation_rate": 1}, "Invalid configuration key connection_creation_rate"),
        ({"user": "u"}, {RATE: 1.5}, f"Configuration {RATE} must be a LONG value"),
        ({"user": "u"}, {RATE: 1e30}, f"Configuration {RATE} must be a LONG value"),
        ({"user": "u"}, {RATE: float("inf")}, f"Configuration {RATE} must be a LONG value"),
        (
            {"ip": None},
            {"connection_creation_rate": 2**31},
            "Configuration connection_creation_rate must be a INT value",
        ),
        ({"user": "u"}, {RATE: -1}, f"Configuration {RATE} must be a number of at least 0, not -1.0"),
        ({"user": "u"}, {"request_percentage": float("inf")}, "Configuration request_percentage must be a number"),
        ({"user": "u"}, {"request_percentage": float("nan")}, "Configuration request_percentage must be a number"),
    ],
)
def test_what_is_no_quota_is_refused(
    scenario: Scenario, entity: Entity, changes: dict[str, float | None], expected: str
) -> None:
    async def body(quotas: Quotas) -> None:
        for validate_only in (False, True):
            told = await quotas.alter(entity, changes, validate_only=validate_only)
            assert told.startswith(f"INVALID_REQUEST: {expected}")
        assert await quotas.announced() == []

    scenario(body)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0.0"),
        (50, "50.0"),
        (12.34, "12.34"),
        (0.001, "0.001"),
        (0.00012, "1.2E-4"),
        (9_999_999, "9999999.0"),
        (1e7, "1.0E7"),
        (123_456_789.5, "1.234567895E8"),
        (1e22, "1.0E22"),
        (5e-324, "5.0E-324"),
    ],
)
def test_doubles_are_written_as_java_writes_them(value: float, expected: str) -> None:
    async def body(world: AdminWorld) -> None:
        quotas = Quotas(world, 1)
        assert await quotas.alter({"user": "u"}, {"request_percentage": value}) == "NONE"
        assert await quotas.config("users/u") == {"request_percentage": expected}
        assert (await quotas.describe())[("user", "u"),] == {"request_percentage": value}

    in_world(body)


def test_the_largest_values_are_kept(scenario: Scenario) -> None:
    async def body(quotas: Quotas) -> None:
        assert await quotas.alter({"user": "u"}, {RATE: 2.0**63}) == "NONE"
        assert await quotas.config("users/u") == {RATE: str(2**63 - 1)}
        assert await quotas.alter({"ip": None}, {"connection_creation_rate": 2**31 - 1}) == "NONE"

    scenario(body)


def test_each_entity_is_answered_for_itself_and_what_is_only_checked_is_not_written(scenario: Scenario) -> None:
    async def body(quotas: Quotas) -> None:
        entries = [entry({"user": f"u{n}"}, {RATE: n if n != 1 else -1}) for n in range(3)]
        response = await quotas.send(*entries, validate_only=True)
        assert [each.error_code for each in response.entries] == [0, ErrorCode.INVALID_REQUEST, 0]
        assert await quotas.describe() == {}
        await quotas.send(*entries)
        assert await quotas.describe() == {(("user", "u0"),): {RATE: 0.0}, (("user", "u2"),): {RATE: 2.0}}

    scenario(body)


def test_two_changes_at_once_are_both_kept(scenario: Scenario) -> None:
    async def body(quotas: Quotas) -> None:
        other = Quotas(quotas.world, quotas.version)
        entity: Entity = {"user": "u", "client-id": "c"}
        for _ in range(5):
            quotas.caller.send(AlterClientQuotasRequest(entries=[entry(entity, {RATE: 1})]), 1)
            other.caller.send(AlterClientQuotasRequest(entries=[entry(entity, {"consumer_byte_rate": 2})]), 1)
            for caller in (quotas.caller, other.caller):
                (response,) = await caller.responses(1)
                assert response.entries[0].error_code == 0
            assert await quotas.config("users/u/clients/c") == {RATE: "1", "consumer_byte_rate": "2"}
            assert await quotas.alter(entity, {RATE: None, "consumer_byte_rate": None}) == "NONE"

    scenario(body)


def test_quotas_are_found_by_what_they_have_in_common(scenario: Scenario) -> None:
    async def body(quotas: Quotas) -> None:
        for number, (entity, _) in enumerate(ENTITIES):
            await quotas.alter(entity, {RATE: number})
        await quotas.alter({"ip": "10.0.0.1"}, {"connection_creation_rate": 9})

        async def numbers(*components: tuple[str, int, str | None], strict: bool = False) -> set[float]:
            found = await quotas.describe(*components, strict=strict)
            return {value for values in found.values() for value in values.values()}

        assert await numbers() == {0, 1, 2, 3, 4, 5, 9}
        assert await numbers(strict=True) == set()
        assert await numbers(("user", ANY, None)) == {0, 1, 4, 5}
        assert await numbers(("user", ANY, None), strict=True) == {0, 1}
        assert await numbers(("user", DEFAULT, None)) == {1, 5}
        assert await numbers(("user", EXACT, "U 1")) == {0, 4}
        assert await numbers(("user", EXACT, "U 1"), strict=True) == {0}
        assert await numbers(("user", EXACT, "nobody")) == set()
        assert await numbers(("client-id", ANY, None), strict=True) == {2, 3}
        assert await numbers(("client-id", EXACT, "c/d"), ("user", ANY, None)) == {4}
        assert await numbers(("user", DEFAULT, None), ("client-id", DEFAULT, None), strict=True) == {5}
        assert await numbers(("ip", ANY, None)) == await numbers(("ip", EXACT, "10.0.0.1"), strict=True) == {9}
        assert await numbers(("ip", DEFAULT, None)) == set()

    scenario(body)


@pytest.mark.parametrize(
    ("components", "expected"),
    [
        ([("", ANY, None)], "INVALID_REQUEST: Unexpected empty filter component entity type"),
        ([("team", ANY, None)], "UNSUPPORTED_VERSION: Custom entity type 'team' not supported"),
        ([("user", ANY, None)] * 2, "INVALID_REQUEST: Duplicate user filter component entity type"),
        ([("client-id", ANY, None)] * 2, "INVALID_REQUEST: Duplicate client filter component entity type"),
        ([("user", ANY, None), ("ip", ANY, None)], "INVALID_REQUEST: Invalid entity filter component combination"),
        ([("user", 7, None)], "INVALID_REQUEST: Unexpected match type: 7"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(
    scenario: Scenario, components: list[tuple[str, int, str | None]], expected: str
) -> None:
    async def body(quotas: Quotas) -> None:
        response = await quotas.ask(*components)
        assert f"{ErrorCode.for_code(response.error_code).name}: {response.error_message}".startswith(expected)
        assert response.entries is None

    scenario(body)


def test_a_refusal_of_one_entity_of_very_many_parts_takes_steps() -> None:
    """Whoever may do nothing may name millions."""
    part = AlterClientQuotasRequest.EntityData(entity_type="user", entity_name="alice")
    entries = [AlterClientQuotasRequest.EntryData(entity=[part] * 10 * STEP_ELEMENTS)]
    handler: Any = AlterClientQuotasHandler
    error = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    steps = handler.error_response(None, None, AlterClientQuotasRequest(entries=entries), error)
    assert len(list(steps)) >= 10


def test_very_many_are_read_in_pieces() -> None:
    class Read:
        data = EntityConfig({"producer_byte_rate": "5"}).encode()

    class OneTurn:
        async def get_children_names_of_many(self, paths: Sequence[str]) -> list[list[str]]:
            return [[f"u{number}" for number in range(5000)] if path == "/config/users" else [] for path in paths]

        async def get_many(self, paths: Sequence[str]) -> list[Any]:
            return [Read()] * len(paths)

    looked_at = in_turn = most_in_turn = 0

    def matches(_parts: Mapping[str, str | None]) -> bool:
        nonlocal looked_at, in_turn, most_in_turn
        looked_at, in_turn = looked_at + 1, in_turn + 1
        most_in_turn = max(most_in_turn, in_turn)
        return True

    async def main() -> int:
        nonlocal in_turn
        store: Any = OneTurn()
        reader = QuotaReader(store, logging.getLogger("tests.quotas"))
        reading = asyncio.ensure_future(reader.read(matches, with_clients=True, with_ips=True))
        turns = 0
        while not reading.done():
            in_turn = 0
            turns += 1
            await asyncio.sleep(0)
        assert len(await reading) == looked_at == 5000
        return turns

    assert asyncio.run(main()) >= 2 * 5000 // 512
    assert most_in_turn <= 512
