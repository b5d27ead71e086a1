"""DescribeUserScramCredentials and AlterUserScramCredentials through the dispatcher, over an embedded coordinator."""

from __future__ import annotations

import json
from typing import Any

from barnabas.api.alter_user_scram_credentials import AlterUserScramCredentialsHandler
from barnabas.api.describe_user_scram_credentials import DescribeUserScramCredentialsHandler
from barnabas.coordination.layout.configs import EntityConfig
from barnabas.kernel.steps import Steps
from barnabas.sasl.scram_mechanisms import ScramCredential, ScramMechanism
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest
from tests.unit.api.administration.admin_world import AdminWorld, in_world
from tests.unit.api.calling import Caller, Calls

SHA_256, SHA_512 = ScramMechanism
SALT = b"some salt"
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
NO_USER = "Attempt to describe a user credential that does not exist"


def caller_of(world: AdminWorld) -> Caller:
    return Calls(
        world.host,
        DescribeUserScramCredentialsHandler(world.client, world.logger),
        AlterUserScramCredentialsHandler(world.controller, world.alterer),
    ).connect()


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096, salted: bytes | None = None) -> Upsertion:
    known = ScramMechanism.numbered(mechanism)
    if salted is None:
        salted = known.salted_password("secret", SALT, 4096) if known else b"x"
    return Upsertion(name=name, mechanism=mechanism, iterations=iterations, salt=SALT, salted_password=salted)


def deletion(name: str, mechanism: int = 1) -> Deletion:
    return Deletion(name=name, mechanism=mechanism)


async def alter(caller: Caller, *changes: Upsertion | Deletion) -> list[tuple[str, str, str | None]]:
    request = AlterUserScramCredentialsRequest(
        deletions=[change for change in changes if isinstance(change, Deletion)],
        upsertions=[change for change in changes if isinstance(change, Upsertion)],
    )
    response: Any = await caller.call(request, 0)
    return [(each.user, ErrorCode.for_code(each.error_code).name, each.error_message) for each in response.results]


async def describe(caller: Caller, *users: str) -> list[tuple[str, str, str | None, list[tuple[int, int]]]]:
    names = [DescribeUserScramCredentialsRequest.UserName(name=user) for user in users]
    response: Any = await caller.call(DescribeUserScramCredentialsRequest(users=names or None), 0)
    assert response.error_code == 0
    return [
        (
            each.user,
            ErrorCode.for_code(each.error_code).name,
            each.error_message,
            [(info.mechanism, info.iterations) for info in each.credential_infos],
        )
        for each in response.results
    ]


async def configs_of(world: AdminWorld, user: str) -> Any:
    return json.loads(await world.data(f"/config/users/{user}") or b"")["config"]


def test_credentials_are_kept_as_kafka_keeps_them() -> None:
    async def main(world: AdminWorld) -> None:
        caller = caller_of(world)
        changes = (upsertion("alice"), upsertion("alice", 2, 8192), upsertion("bob=,/ö", 2))
        assert sorted(await alter(caller, *changes)) == [("alice", "NONE", ""), ("bob=,/ö", "NONE", "")]
        configs = await configs_of(world, "alice")
        assert configs["SCRAM-SHA-256"] == ScramCredential.of_password(SHA_256, "secret", SALT).encode()
        assert ScramCredential.decode(SHA_512, configs["SCRAM-SHA-512"]).iterations == 8192
        assert list(await configs_of(world, "bob%3D%2C%2F%C3%B6")) == ["SCRAM-SHA-512"]
        announced = await world.children("/config/changes")
        last = json.loads(await world.data(f"/config/changes/{announced[-1]}") or b"")
        assert last == {"version": 2, "entity_path": "users/bob%3D%2C%2F%C3%B6"}
        assert await describe(caller) == [
            ("alice", "NONE", "", [(1, 4096), (2, 8192)]),
            ("bob=,/ö", "NONE", "", [(2, 4096)]),
        ]

    in_world(main)


def test_quotas_of_a_user_stay_when_credentials_change() -> None:
    async def main(world: AdminWorld) -> None:
        caller = caller_of(world)
        await world.client.create("/config/users/alice", EntityConfig({"producer_byte_rate": "1024"}).encode())
        await alter(caller, upsertion("alice"), upsertion("alice", 2))
        assert await alter(caller, deletion("alice")) == [("alice", "NONE", "")]
        assert sorted(await configs_of(world, "alice")) == ["SCRAM-SHA-512", "producer_byte_rate"]
        assert await alter(caller, deletion("alice", 2)) == [("alice", "NONE", "")]
        assert await configs_of(world, "alice") == {"producer_byte_rate": "1024"}
        assert await describe(caller) == []

    in_world(main)


def test_what_cannot_be_set_is_told_by_user_and_others_are_set() -> None:
    async def main(world: AdminWorld) -> None:
        caller = caller_of(world)
        outcomes = await alter(
            caller,
            upsertion(""),
            upsertion("few", iterations=4095),
            upsertion("many", iterations=16_385),
            upsertion("unknown", 3),
            upsertion("empty", salted=b""),
            upsertion("twice"),
            upsertion("twice"),
            upsertion("both", 2),
            deletion("both", 2),
            deletion("gone", 2),
            upsertion("partly"),
            deletion("partly", 7),
            upsertion("good"),
        )
        assert sorted(outcomes) == [
            ("", "UNACCEPTABLE_CREDENTIAL", "Username must not be empty"),
            ("both", "DUPLICATE_RESOURCE", "A user credential cannot be altered twice in the same request"),
            ("empty", "UNACCEPTABLE_CREDENTIAL", "Salt and salted password must not be empty"),
            ("few", "UNACCEPTABLE_CREDENTIAL", "Too few iterations"),
            ("gone", "RESOURCE_NOT_FOUND", "Attempt to delete a user credential that does not exist"),
            ("good", "NONE", ""),
            ("many", "UNACCEPTABLE_CREDENTIAL", "Too many iterations"),
            ("partly", "UNSUPPORTED_SASL_MECHANISM", "Unknown SCRAM mechanism"),
            ("twice", "DUPLICATE_RESOURCE", "A user credential cannot be altered twice in the same request"),
            ("unknown", "UNSUPPORTED_SASL_MECHANISM", "Unknown SCRAM mechanism"),
        ]
        assert await world.children("/config/users") == ["good"]

    in_world(main)


def test_who_is_asked_for_is_described_in_order_or_refused() -> None:
    async def main(world: AdminWorld) -> None:
        caller = caller_of(world)
        await alter(caller, upsertion("alice"))
        await world.client.create("/config/users/quota", EntityConfig({"producer_byte_rate": "1"}).encode())
        await world.client.create("/config/users/bad", EntityConfig({"SCRAM-SHA-256": "salt=hush"}).encode())
        await world.client.create("/config/users/broken", b'{"hush": ')
        unknown = ErrorCode.UNKNOWN_SERVER_ERROR.message
        assert await describe(caller, "quota", "alice", "", "bad", "twice", "broken", "twice", "nobody") == [
            ("quota", "RESOURCE_NOT_FOUND", f"{NO_USER}: quota", []),
            ("alice", "NONE", "", [(1, 4096)]),
            ("", "RESOURCE_NOT_FOUND", "Username must not be empty", []),
            ("bad", "UNKNOWN_SERVER_ERROR", unknown, []),
            (
                *("twice", "DUPLICATE_RESOURCE"),
                *("Cannot describe SCRAM credentials for the same user twice in a single request: twice", []),
            ),
            ("broken", "UNKNOWN_SERVER_ERROR", unknown, []),
            ("nobody", "RESOURCE_NOT_FOUND", f"{NO_USER}: nobody", []),
        ]
        assert [name for name, *_ in await describe(caller)] == ["alice", "bad", "broken"]
        cannot = "/config/users/broken cannot be read: it should be JSON, with a config of names and texts"
        assert await alter(caller, upsertion("broken")) == [("broken", "UNKNOWN_SERVER_ERROR", cannot)]
        assert "hush" not in "".join(world.lines.lines)

    in_world(main)


def test_only_the_controller_changes_credentials() -> None:
    async def main(world: AdminWorld) -> None:
        world.controller.is_active = False
        outcomes = await alter(caller_of(world), upsertion("bob"), deletion("alice"), upsertion("bob", 2))
        assert outcomes == [("alice", "NOT_CONTROLLER", None), ("bob", "NOT_CONTROLLER", None)]
        assert await world.children("/config/users") == []

    in_world(main)


def test_a_refusal_of_very_many_users_takes_steps() -> None:
    """Whoever may do nothing may name millions."""
    compared = [0]

    class Name(str):
        __slots__ = ()

        def __lt__(self, other: str) -> bool:
            compared[-1] += 1
            return str(self) < str(other)

    names = [Name(number * 7919 % 20_011) for number in range(20_000)]
    request = AlterUserScramCredentialsRequest(deletions=[deletion(name) for name in names])
    handler: Any = AlterUserScramCredentialsHandler
    steps = handler.error_response(None, None, request, KafkaError(ErrorCode.NOT_CONTROLLER))
    results: list[Any] = []

    def whole() -> Steps[None]:
        results.extend((yield from steps).results)

    for _ in whole():
        compared.append(0)
    assert [result.user for result in results] == sorted(map(str, names))
    assert max(compared) < len(names) * 2


def test_no_secret_is_logged() -> None:
    async def main(world: AdminWorld) -> None:
        caller = caller_of(world)
        await alter(caller, upsertion("alice"))
        logged = "\n".join(world.lines.lines)
        assert "users/alice" in logged
        for part in ScramCredential.of_password(SHA_256, "secret", SALT).encode().split(",")[:3]:
            assert part.partition("=")[2] not in logged

    in_world(main)


def test_very_many_users_are_described_in_turns() -> None:
    async def main(world: AdminWorld) -> None:
        caller = caller_of(world)
        for number in range(600):
            text = ScramCredential(SALT, bytes(32), bytes(32), 4096 + number).encode()
            await world.client.create(f"/config/users/u{number:03}", EntityConfig({"SCRAM-SHA-256": text}).encode())
        described = await describe(caller)
        assert [infos for *_, infos in described] == [[(1, 4096 + number)] for number in range(600)]
        names = [f"u{number:03}" for number in range(599, -1, -1)]
        assert [name for name, *_ in await describe(caller, *names)] == names

    in_world(main)
