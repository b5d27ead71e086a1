"""The four requests about delegation tokens through the dispatcher, over an embedded coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.api.create_delegation_token import NAMES_MAX, RENEWERS_MAX, CreateDelegationTokenHandler
from barnabas.api.delegation_tokens import secret_of
from barnabas.api.describe_delegation_token import DescribeDelegationTokenHandler
from barnabas.api.expire_delegation_token import ExpireDelegationTokenHandler
from barnabas.api.renew_delegation_token import RenewDelegationTokenHandler
from barnabas.coordination.layout.delegation_tokens import DelegationToken
from barnabas.network.config import ListenerConfig
from barnabas.security.delegation_tokens import DelegationTokens, TokenLifetimes
from barnabas.security.token_store import TokenStore
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tests.unit.api.administration.admin_world import AdminWorld, in_world
from tests.unit.api.calling import DATA, Caller, Calls

ALICE = "User:alice"
Renewer = CreateDelegationTokenRequest.CreatableRenewers
Owner = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
REQUESTS = {
    "create": (CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3),
    "renew": (RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=-1), 2),
    "expire": (ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=-1), 2),
    "describe": (DescribeDelegationTokenRequest(owners=None), 3),
}


class World:
    """A broker with tokens, or without."""

    def __init__(self, world: AdminWorld, *, has_tokens: bool = True) -> None:
        self.tokens = DelegationTokens("secret", world.host.entropy)
        store = TokenStore(
            world.host,
            world.client,
            self.tokens,
            TokenLifetimes(1000_000, 1000),
            timers=world.timers,
            logger=world.logger,
        )
        given = store if has_tokens else None
        self.store = store
        self.calls = Calls(
            world.host,
            CreateDelegationTokenHandler(given),
            RenewDelegationTokenHandler(given),
            ExpireDelegationTokenHandler(given),
            DescribeDelegationTokenHandler(given),
        )

    def caller(self, principal: str | None = ALICE, listener: ListenerConfig = DATA) -> Caller:
        caller = self.calls.connect(listener)
        if principal is not None:
            caller.connection.principal = principal
        return caller


def with_tokens(test: Callable[[World], Awaitable[None]], *, has_tokens: bool = True) -> None:
    async def main(world: AdminWorld) -> None:
        made = World(world, has_tokens=has_tokens)
        await made.store.create_paths()
        await test(made)

    in_world(main)


def code(answer: Any) -> str:
    return ErrorCode.for_code(answer.error_code).name


@pytest.mark.parametrize("what", REQUESTS)
def test_nobody_handles_tokens_who_is_not_known_or_known_by_a_token(what: str) -> None:
    async def main(world: World) -> None:
        unknown, by_token = world.caller(None), world.caller()
        by_token.connection.is_by_token = True
        for caller in (unknown, by_token):
            assert code(await caller.call(*REQUESTS[what])) == "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"
        assert len(world.tokens) == 0

    with_tokens(main)


@pytest.mark.parametrize("what", REQUESTS)
def test_a_broker_without_a_secret_has_no_tokens(what: str) -> None:
    async def main(world: World) -> None:
        assert code(await world.caller(None).call(*REQUESTS[what])) == "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"
        answer = await world.caller().call(*REQUESTS[what])
        assert code(answer) == "DELEGATION_TOKEN_AUTH_DISABLED"
        if what != "describe":
            assert answer.expiry_timestamp_ms == -1
        if what == "create":
            assert (answer.principal_name, answer.token_requester_principal_name) == ("alice", "alice")
            assert (answer.issue_timestamp_ms, answer.max_timestamp_ms) == (-1, -1)
            assert (answer.token_id, bytes(answer.hmac)) == ("", b"")

    with_tokens(main, has_tokens=False)


def test_a_token_is_made_described_renewed_and_expired_in_every_version() -> None:
    async def main(world: World) -> None:
        caller = world.caller()
        for version in range(4):
            made = await caller.call(
                CreateDelegationTokenRequest(
                    renewers=[Renewer(principal_type="User", principal_name="bob")], max_lifetime_ms=5000
                ),
                version,
            )
            assert code(made) == "NONE"
            (told,) = (await caller.call(DescribeDelegationTokenRequest(owners=None), version)).tokens
            assert (told.token_id, bytes(told.hmac)) == (made.token_id, bytes(made.hmac))
            assert [(each.principal_type, each.principal_name) for each in told.renewers] == [("User", "bob")]
            assert told.token_requester_principal_name == ("alice" if version == 3 else "")
            bob, later = world.caller("User:bob"), min(version, 2)
            renewed = await bob.call(RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=2**63 - 1), later)
            assert renewed.expiry_timestamp_ms == made.max_timestamp_ms
            gone = await bob.call(ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1), later)
            assert code(gone) == "NONE"
            assert len(world.tokens) == 0

    with_tokens(main)


def test_too_many_or_too_long_renewers_are_refused() -> None:
    async def main(world: World) -> None:
        for count, length in ((RENEWERS_MAX + 1, 1), (4, NAMES_MAX // 4 + 1)):
            renewers = [Renewer(principal_type="User", principal_name="x" * length)] * count
            request = CreateDelegationTokenRequest(renewers=renewers, max_lifetime_ms=-1)
            assert code(await world.caller().call(request, 3)) == "INVALID_REQUEST"
        renewers = [
            Renewer(principal_type="User", principal_name="\U0001f600" * (NAMES_MAX // RENEWERS_MAX))
        ] * RENEWERS_MAX
        request = CreateDelegationTokenRequest(renewers=renewers, max_lifetime_ms=-1)
        assert code(await world.caller().call(request, 3)) == "NONE"

    with_tokens(main)


def test_many_tokens_are_described_in_many_turns() -> None:
    async def main(world: World) -> None:
        for number in range(200):
            await world.store.create(ALICE if number % 2 else "User:bob", ALICE, (), -1)
        caller = world.caller()
        assert len((await caller.call(DescribeDelegationTokenRequest(owners=None), 3)).tokens) == 200
        for names, count in (([], 0), (["bob"], 100), (["bob", "alice"], 200), (["carol"], 0)):
            owners = [Owner(principal_type="User", principal_name=name) for name in names]
            told = await caller.call(DescribeDelegationTokenRequest(owners=owners), 3)
            assert len(told.tokens) == count

    with_tokens(main)


def test_a_secret_of_very_many_bytes_is_nobodys_and_is_not_looked_at() -> None:
    async def main(world: World) -> None:
        caller = world.caller()
        made = await caller.call(CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3)
        for hmac in (bytes(made.hmac) + b"x", bytes(made.hmac) * 2, bytes(made.hmac)[:-1], bytes(10_000_000), b""):
            for request in (
                RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=-1),
                ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=-1),
            ):
                assert code(await caller.call(request, 2)) == "DELEGATION_TOKEN_NOT_FOUND"
        assert len(world.tokens) == 1

    assert [len(secret_of(bytes(size))) for size in (0, 64, 65, 10_000_000)] == [0, 64, 65, 65]
    with_tokens(main)


def test_tokens_of_very_many_renewers_are_described_in_steps() -> None:
    """As brokers of Apache Kafka make them, which have no bound."""

    async def main(world: World) -> None:
        renewers = tuple(f"User:u{number}" for number in range(10_000))
        connection = SimpleNamespace(is_by_token=False, listener=SimpleNamespace(authenticates=True))
        context: Any = SimpleNamespace(connection=connection, principal=ALICE, api_version=3)
        nobody = [Owner(principal_type="User", principal_name="x")]
        for count in (1, 3):
            world.tokens.put(DelegationToken(f"t{count}", ALICE, ALICE, renewers, 1, 2, 3))
            world.tokens.put(DelegationToken(f"t{count + 1}", ALICE, ALICE, renewers, 1, 2, 3))
            for owners, steps_min in ((None, 5 * (count + 1)), (nobody, count + 1)):
                handler = DescribeDelegationTokenHandler(world.store)
                steps = sum(1 for _ in handler.handle(context, DescribeDelegationTokenRequest(owners=owners)))
                assert steps_min <= steps < steps_min + 5
        for owners, count in ((None, 4), (nobody, 0)):
            told = (await world.caller().call(DescribeDelegationTokenRequest(owners=owners), 3)).tokens
            assert [len(token.renewers) for token in told] == [len(renewers)] * count

    with_tokens(main)


def test_very_many_owners_are_looked_at_in_steps() -> None:
    async def main(world: World) -> None:
        await world.store.create(ALICE, ALICE, (), -1)
        owners = [Owner(principal_type="User", principal_name=f"u{number}") for number in range(20_000)]
        owners.append(Owner(principal_type="User", principal_name="alice"))
        caller = world.caller()
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.ensure_future(count())
        assert len((await caller.call(DescribeDelegationTokenRequest(owners=owners), 3)).tokens) == 1
        counting.cancel()
        assert turns > len(owners) // 256

    with_tokens(main)
