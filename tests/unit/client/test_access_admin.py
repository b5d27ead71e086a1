"""What an administrator asks, and is told, of ACLs and of users."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from barnabas.client.acl_admin import Acl, AclAdmin
from barnabas.client.user_admin import NewCredential, UserAdmin, UserCredential
from barnabas.kernel.host import Host
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    AlterUserScramCredentialsResponse,
    CreateAclsResponse,
    DeleteAclsResponse,
    DescribeAclsResponse,
    DescribeUserScramCredentialsResponse,
)
from tests.unit.client.scripted_client import ScriptedClient, simulated

ACL = Acl(2, "t", 3, "User:ann", "*", 3, 3)


def asking(answers: list[Any], main: Callable[[ScriptedClient], Coroutine[Any, Any, None]]) -> list[Any]:
    """What is asked while `main` runs; each request gets the next answer."""
    asked: list[Any] = []
    left = iter(answers)

    async def answer(request: Any, _lane: Any) -> Any:
        asked.append(request)
        return next(left)

    async def on_host(host: Host) -> None:
        client = ScriptedClient(host, answer, {})
        await main(client)
        await client.close()

    simulated(on_host)
    return asked


def test_acls_are_asked_for_by_a_filter_and_come_in_order() -> None:
    described = DescribeAclsResponse.DescribeAclsResource
    entry = DescribeAclsResponse.AclDescription
    response = DescribeAclsResponse(
        resources=[
            described(
                resource_type=2,
                resource_name="t",
                pattern_type=3,
                acls=[
                    entry(principal="User:bob", host="*", operation=3, permission_type=3),
                    entry(principal="User:ann", host="*", operation=3, permission_type=3),
                ],
            )
        ]
    )

    async def main(client: ScriptedClient) -> None:
        async with AclAdmin(client) as admin:
            assert await admin.describe_acls(Acl(2, None, 1, "User:ann")) == [ACL, ACL._replace(principal="User:bob")]

    (request,) = asking([response], main)
    assert (request.resource_type_filter, request.resource_name_filter, request.pattern_type_filter) == (2, None, 1)
    assert (request.principal_filter, request.host_filter, request.operation, request.permission_type) == (
        *("User:ann", None),
        *(1, 1),
    )


def test_many_acls_are_created_in_parts() -> None:
    acls = [ACL._replace(host=f"10.0.{number}.1") for number in range(1_001)]
    result = CreateAclsResponse.AclCreationResult
    answers = [CreateAclsResponse(results=[result(error_code=0)] * count) for count in (500, 500, 1)]

    async def main(client: ScriptedClient) -> None:
        async with AclAdmin(client) as admin:
            await admin.create_acls(acls)

    asked = asking(answers, main)
    assert [creation.host for request in asked for creation in request.creations] == [acl.host for acl in acls]
    assert [len(request.creations) for request in asked] == [500, 500, 1]


def test_the_first_acl_that_is_refused_is_the_error() -> None:
    result = CreateAclsResponse.AclCreationResult
    answer = CreateAclsResponse(
        results=[result(error_code=0), result(error_code=ErrorCode.INVALID_REQUEST, error_message="no such host")]
    )

    async def main(client: ScriptedClient) -> None:
        async with AclAdmin(client) as admin:
            with pytest.raises(KafkaError, match="no such host"):
                await admin.create_acls([ACL, ACL._replace(host="?")])

    asking([answer], main)


def test_what_was_deleted_is_returned_and_a_failure_is_raised() -> None:
    result = DeleteAclsResponse.DeleteAclsFilterResult
    gone = DeleteAclsResponse.DeleteAclsMatchingAcl(
        resource_type=2, resource_name="t", pattern_type=3, principal="User:ann", host="*", operation=3,
        permission_type=3,
    )  # fmt: skip
    refused = DeleteAclsResponse.DeleteAclsMatchingAcl(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message="no")

    async def main(client: ScriptedClient) -> None:
        async with AclAdmin(client) as admin:
            assert await admin.delete_acls([ACL]) == [ACL]
            with pytest.raises(KafkaError, match="no"):
                await admin.delete_acls([ACL])

    asking(
        [
            DeleteAclsResponse(filter_results=[result(matching_acls=[gone])]),
            DeleteAclsResponse(filter_results=[result(matching_acls=[gone, refused])]),
        ],
        main,
    )


def test_users_without_credentials_are_left_out_and_others_refused() -> None:
    result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    info = DescribeUserScramCredentialsResponse.CredentialInfo

    def answer(*results: Any) -> Any:
        return DescribeUserScramCredentialsResponse(results=list(results))

    async def main(client: ScriptedClient) -> None:
        async with UserAdmin(client) as admin:
            assert await admin.describe_users(["ann", "bob"]) == [UserCredential("ann", 2, 4096)]
            with pytest.raises(KafkaError, match="twice"):
                await admin.describe_users(["ann", "ann"])

    known = result(user="ann", error_code=0, credential_infos=[info(mechanism=2, iterations=4096)])
    missing = result(user="bob", error_code=ErrorCode.RESOURCE_NOT_FOUND)
    twice = result(user="ann", error_code=ErrorCode.DUPLICATE_RESOURCE, error_message="named twice")
    first, _ = asking([answer(known, missing), answer(twice)], main)
    assert [user.name for user in first.users] == ["ann", "bob"]


def test_credentials_are_told_to_the_controller_as_they_are() -> None:
    result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    answers = [
        AlterUserScramCredentialsResponse(results=[result(user="ann", error_code=0)]),
        AlterUserScramCredentialsResponse(
            results=[result(user="ann", error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message="no such one")]
        ),
    ]

    async def main(client: ScriptedClient) -> None:
        async with UserAdmin(client) as admin:
            await admin.set_credentials([NewCredential("ann", 1, 4096, b"salt", b"salted")])
            with pytest.raises(KafkaError, match="user ann: no such one"):
                await admin.delete_credentials([("ann", 1)])

    set_, deleted = asking(answers, main)
    (told,) = set_.upsertions
    assert (told.name, told.mechanism, told.iterations, told.salt, told.salted_password) == (
        *("ann", 1, 4096),
        *(b"salt", b"salted"),
    )
    assert "b'salted'" not in repr(set_)
    assert [(each.name, each.mechanism) for each in deleted.deletions] == [("ann", 1)]
