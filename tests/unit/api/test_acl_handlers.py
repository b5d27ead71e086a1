"""DescribeAcls, CreateAcls and DeleteAcls through the dispatcher, beside a coordinator that keeps the rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from barnabas.api.create_acls import CreateAclsHandler
from barnabas.api.delete_acls import DeleteAclsHandler
from barnabas.api.describe_acls import DescribeAclsHandler
from barnabas.coordination.errors import SessionExpiredError
from barnabas.security.acl_rules import AclRules
from barnabas.security.acl_store import AclStore
from barnabas.security.acls import (
    CLUSTER_NAME,
    AccessControlEntry,
    AccessControlEntryFilter,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from barnabas.security.authorizer import Authorizer
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from tests.unit.api.administration.admin_world import AdminWorld, in_world
from tests.unit.api.calling import Caller, Calls

VERSIONS = range(4)
ANONYMOUS = "User:ANONYMOUS"
ANY: dict[str, Any] = {
    "resource_type_filter": ResourceType.ANY,
    "resource_name_filter": None,
    "pattern_type_filter": PatternType.ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": AclOperation.ANY,
    "permission_type": AclPermissionType.ANY,
}
ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")
PREFIX = ResourcePattern(ResourceType.GROUP, "team-", PatternType.PREFIXED)
CLUSTER = ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME)
READ = AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)


def creation(pattern: ResourcePattern = ORDERS, **fields: Any) -> CreateAclsRequest.AclCreation:
    entry = READ._replace(**{name: value for name, value in fields.items() if name in READ._fields})
    return CreateAclsRequest.AclCreation(
        resource_type=fields.get("resource_type", pattern.resource_type),
        resource_name=fields.get("name", pattern.name),
        resource_pattern_type=fields.get("pattern_type", pattern.pattern_type),
        **entry._asdict(),
    )


def deleting(**fields: Any) -> DeleteAclsRequest.DeleteAclsFilter:
    return DeleteAclsRequest.DeleteAclsFilter(**{**ANY, **fields})


class World:
    """A broker with an authorizer, whose only user may do everything, and a caller."""

    def __init__(self, world: AdminWorld) -> None:
        self.world = world
        self.rules = AclRules(super_users=[ANONYMOUS])
        self.store = AclStore(world.host, world.client, self.rules, timers=world.timers, logger=world.logger)
        calls = Calls(
            world.host, DescribeAclsHandler(self.rules), CreateAclsHandler(self.store), DeleteAclsHandler(self.store)
        )
        calls.dispatcher.authorizer = Authorizer(self.rules, world.logger)
        self.caller = calls.connect()

    async def create(self, *creations: CreateAclsRequest.AclCreation, version: int = 3) -> list[tuple[int, str | None]]:
        response = await self.caller.call(CreateAclsRequest(creations=list(creations)), version)
        return [(result.error_code, result.error_message) for result in response.results]

    async def codes(self, *creations: CreateAclsRequest.AclCreation) -> list[int]:
        return [code for code, _ in await self.create(*creations)]

    async def described(self, version: int = 3, **fields: Any) -> dict[ResourcePattern, list[AccessControlEntry]]:
        response = await self.caller.call(DescribeAclsRequest(**{**ANY, **fields}), version)
        assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
        return resources(response)

    async def delete(self, *filters: DeleteAclsRequest.DeleteAclsFilter, version: int = 3) -> list[Any]:
        response = await self.caller.call(DeleteAclsRequest(filters=list(filters)), version)
        return list(response.filter_results)


def resources(response: DescribeAclsResponse) -> dict[ResourcePattern, list[AccessControlEntry]]:
    return {
        ResourcePattern(ResourceType(each.resource_type), each.resource_name, PatternType(each.pattern_type)): [
            AccessControlEntry(
                acl.principal, acl.host, AclOperation(acl.operation), AclPermissionType(acl.permission_type)
            )
            for acl in each.acls
        ]
        for each in response.resources
    }


def with_acls(test: Callable[[World], Awaitable[None]]) -> None:
    async def main(world: AdminWorld) -> None:
        acls = World(world)
        await acls.store.create_paths()
        await test(acls)

    in_world(main)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_created_is_described_and_deleted(version: int) -> None:
    async def main(acls: World) -> None:
        write = READ._replace(operation=AclOperation.WRITE)
        created = await acls.create(
            creation(), creation(operation=AclOperation.WRITE), creation(CLUSTER), version=version
        )
        assert created == [(0, None)] * 3
        literal: dict[str, Any] = {"pattern_type_filter": PatternType.LITERAL}
        assert await acls.described(version, **literal) == {ORDERS: [READ, write], CLUSTER: [READ]}
        named: dict[str, Any] = {
            **literal,
            "resource_type_filter": ResourceType.TOPIC,
            "resource_name_filter": "orders",
        }
        assert await acls.described(version, **named) == {ORDERS: [READ, write]}
        results = await acls.delete(
            deleting(**named, operation=AclOperation.WRITE), deleting(**named), deleting(**named), version=version
        )
        assert [(result.error_code, result.error_message) for result in results] == [(0, None)] * 3
        assert [[acl.operation for acl in result.matching_acls] for result in results] == [
            [AclOperation.WRITE],
            [AclOperation.READ],
            [],
        ]
        ((deleted,), *_) = [result.matching_acls for result in results]
        assert (deleted.error_code, deleted.error_message) == (0, None)
        assert (deleted.resource_type, deleted.resource_name, deleted.pattern_type) == tuple(ORDERS)
        assert await acls.described(version, **literal) == {CLUSTER: [READ]}

    with_acls(main)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_prefixed_patterns_are_there_from_version_1_on(version: int) -> None:
    async def main(acls: World) -> None:
        assert await acls.create(creation(PREFIX), version=version) == [(0, None)]
        matching: dict[str, Any] = {
            "resource_type_filter": ResourceType.GROUP,
            "resource_name_filter": "team-a",
            "pattern_type_filter": PatternType.MATCH,
        }
        assert await acls.described(version, **matching) == {PREFIX: [READ]}
        (result,) = await acls.delete(deleting(**matching), version=version)
        assert [acl.pattern_type for acl in result.matching_acls] == [PatternType.PREFIXED]
        assert await acls.described(version) == {}

    with_acls(main)


def test_version_0_means_literal_patterns() -> None:
    async def main(acls: World) -> None:
        await acls.create(creation(), creation(PREFIX))
        assert await acls.described(0, pattern_type_filter=PatternType.LITERAL) == {ORDERS: [READ]}

    with_acls(main)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (creation(CLUSTER, name="cluster"), "The only valid name for the CLUSTER resource is kafka-cluster"),
        (creation(name=""), "Invalid empty resource name"),
        (creation(name="a/b"), "no slash"),
        (creation(principal="alice"), "TYPE:NAME"),
        (creation(resource_type=99), "UNKNOWN"),
        (creation(operation=99), "UNKNOWN"),
        (creation(permission_type=99), "UNKNOWN"),
        (creation(pattern_type=99), "UNKNOWN"),
        (creation(resource_type=ResourceType.ANY), "ANY"),
        (creation(pattern_type=PatternType.MATCH), "MATCH"),
        (creation(operation=AclOperation.ANY), "ANY"),
        (creation(permission_type=AclPermissionType.ANY), "ANY"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_alone(wrong: CreateAclsRequest.AclCreation, says: str) -> None:
    async def main(acls: World) -> None:
        good, refused, other = await acls.create(creation(), wrong, creation(PREFIX))
        assert good == other == (ErrorCode.NONE, None)
        assert refused[0] == ErrorCode.INVALID_REQUEST
        assert says in (refused[1] or "")
        assert await acls.described() == {ORDERS: [READ], PREFIX: [READ]}

    with_acls(main)


def test_prefixed_patterns_are_refused_while_a_broker_may_not_know_them() -> None:
    async def main(acls: World) -> None:
        acls.store._takes_prefixed = False
        (code, message), good = await acls.create(creation(PREFIX), creation())
        assert code == ErrorCode.INVALID_REQUEST
        assert "inter.broker.protocol.version" in (message or "")
        assert good[0] == ErrorCode.NONE

    with_acls(main)


@pytest.mark.parametrize("field", ["resource_type", "pattern_type", "operation", "permission_type"])
@pytest.mark.parametrize("request_of", ["create", "describe", "delete"])
def test_unknown_elements_end_the_connection_as_in_kafka(field: str, request_of: str) -> None:
    async def main(acls: World) -> None:
        fields = {field if field in {"operation", "permission_type"} else f"{field}_filter": 0}
        unknown: dict[str, Any] = {field: 0}
        request: Any = {
            "create": CreateAclsRequest(creations=[creation(), creation(**unknown)]),
            "describe": DescribeAclsRequest(**{**ANY, **fields}),
            "delete": DeleteAclsRequest(filters=[deleting(), deleting(**fields)]),
        }[request_of]
        await acls.create(creation())
        acls.caller.send(request, 3)
        while not acls.caller.transport.closed:
            await acls.world.client.exists("/")
        assert acls.rules.entries(ORDERS) == {READ}

    with_acls(main)


def test_what_zookeeper_does_not_take_is_told() -> None:
    async def main(acls: World) -> None:
        await acls.create(creation())

        async def failing(*_: Any) -> Any:
            raise SessionExpiredError("/kafka-acl")

        acls.world.client.perform = cast("Any", failing)  # type: ignore[method-assign]
        ((code, message),) = await acls.create(creation(operation=AclOperation.WRITE))
        assert code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert "session" in (message or "")
        (result,) = await acls.delete(deleting())
        (acl,) = result.matching_acls
        assert acl.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert "session" in acl.error_message
        assert acls.rules.entries(ORDERS) == {READ}

    with_acls(main)


def test_a_rule_in_words_that_nobody_knows_makes_no_list_and_can_be_deleted() -> None:
    async def main(acls: World) -> None:
        data = b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Fly","host":"*"}]}'
        await acls.world.client.create("/kafka-acl/Topic/orders", data)
        await acls.store.load()
        response = await acls.caller.call(DescribeAclsRequest(**ANY), 3)
        assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert "Topic 'orders'" in response.error_message
        (result,) = await acls.delete(deleting())
        assert (result.error_code, result.matching_acls) == (0, [])
        assert await acls.described() == {}

    with_acls(main)


def test_one_who_may_not_neither_sees_nor_changes_rules() -> None:
    async def main(acls: World) -> None:
        await acls.create(creation())
        eve = acls.caller
        eve.connection.principal = "User:eve"
        response = await eve.call(DescribeAclsRequest(**ANY), 3)
        assert (response.error_code, response.resources) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
        failed = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert await acls.codes(creation(operation=AclOperation.ALL), creation()) == [failed, failed]
        results = await acls.delete(deleting(), deleting())
        assert [(result.error_code, result.matching_acls) for result in results] == [(failed, [])] * 2
        # To see them is DESCRIBE, which ALTER implies; to change them is ALTER.
        allowed = READ._replace(principal="User:eve", operation=AclOperation.DESCRIBE)
        acls.rules.replace(CLUSTER, [allowed])
        assert ORDERS in await acls.described()
        assert await acls.codes(creation()) == [failed]
        acls.rules.replace(CLUSTER, [allowed._replace(operation=AclOperation.ALTER)])
        assert ORDERS in await acls.described()
        assert await acls.codes(creation()) == [ErrorCode.NONE]

    with_acls(main)


@pytest.mark.parametrize("version", VERSIONS)
def test_without_an_authorizer_security_is_disabled(version: int) -> None:
    async def main(world: AdminWorld) -> None:
        handlers = DescribeAclsHandler(None), CreateAclsHandler(None), DeleteAclsHandler(None)
        caller: Caller = Calls(world.host, *handlers).connect()
        literal: dict[str, Any] = {"pattern_type_filter": PatternType.LITERAL}
        described = await caller.call(DescribeAclsRequest(**{**ANY, **literal}), version)
        assert (described.error_code, described.resources) == (ErrorCode.SECURITY_DISABLED, [])
        assert "No Authorizer is configured" in described.error_message
        created = await caller.call(CreateAclsRequest(creations=[creation(), creation()]), version)
        assert [result.error_code for result in created.results] == [ErrorCode.SECURITY_DISABLED] * 2
        deleted = await caller.call(DeleteAclsRequest(filters=[deleting(**literal)]), version)
        assert [result.error_code for result in deleted.filter_results] == [ErrorCode.SECURITY_DISABLED]

    in_world(main)


def test_many_are_described_in_pieces() -> None:
    """No piece looks at all patterns, also where the filter picks none."""
    rules = AclRules()
    for number in range(10_000):
        rules.replace(ResourcePattern(ResourceType.TOPIC, f"t{number}"), [READ])
    everything = AclBindingFilter()
    pieces = list(rules.matching_in_pieces(everything))
    assert max(map(len, pieces)) <= 4096
    assert sum(map(len, pieces)) == 10_000
    nothing = everything._replace(entry=AccessControlEntryFilter(principal="User:nobody"))
    assert len(list(rules.matching_in_pieces(nothing))) >= 2
