"""Delegation tokens beside a real coordinator in virtual time: two brokers, which come to hold the same ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from barnabas.coordination.errors import BadVersionError, ConnectionLossError, MultiFailedError
from barnabas.coordination.layout.delegation_tokens import DelegationToken
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import ZnodeData
from barnabas.coordination.protocol import REQUEST_BYTES_MAX, CreateMode
from barnabas.coordination.session_settings import ClientSettings
from barnabas.security.delegation_tokens import DelegationTokens, TokenLifetimes
from barnabas.security.token_changes import TokenChanges
from barnabas.security.token_store import UPDATES_MAX, TokenStore
from barnabas.wire.errors import ErrorCode, KafkaError
from tests.unit.api.administration.admin_world import AdminWorld, in_world

LIFETIMES = TokenLifetimes(lifetime_ms_max=100_000, expiry_ms=10_000)
ALICE, BOB = "User:alice", "User:bob"
TOKENS, CHANGES = "/delegation_token/tokens", "/delegation_token/token_changes"


class Broker:
    """One broker's tokens, and what keeps them."""

    def __init__(self, world: AdminWorld) -> None:
        self.world = world
        self.tokens = DelegationTokens("secret", world.host.entropy)
        self.store = TokenStore(
            world.host, world.client, self.tokens, LIFETIMES, timers=world.timers, logger=world.logger
        )
        self.changes = TokenChanges(world.host, world.client, self.store, timers=world.timers, logger=world.logger)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.01)

    async def token(self) -> DelegationToken:
        return await self.store.create(ALICE, ALICE, (BOB,), -1)

    def hmac(self, token: DelegationToken) -> bytes:
        return self.tokens.hmac_of(token.token_id)


def between(test: Callable[[Broker, Broker], Awaitable[None]], *, follows: bool = True) -> None:
    """`test` gets two brokers, of which the first follows what changes."""

    async def main(world: AdminWorld) -> None:
        one, other = Broker(world), Broker(world)
        await other.store.create_paths()
        if follows:
            await one.changes.start()
        try:
            await test(one, other)
        finally:
            await one.changes.stop()

    in_world(main)


async def refusal(outcome: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        await outcome
    return refused.value.code


def test_makes_the_paths_and_reads_everything_at_the_start() -> None:
    async def main(one: Broker, other: Broker) -> None:
        made = [await other.token() for _ in range(3)]
        await one.changes.start()
        assert {token.token_id for token in one.tokens.every()} == {token.token_id for token in made}
        assert sorted(one.tokens.every(), key=lambda token: token.token_id) == sorted(
            made, key=lambda token: token.token_id
        )

    between(main, follows=False)


def test_hears_of_tokens_that_are_made_changed_and_deleted() -> None:
    async def main(one: Broker, other: Broker) -> None:
        token = await other.token()
        await one.until(lambda: one.tokens.find(token.token_id) == token)
        assert one.hmac(token) == other.hmac(token)
        end = await other.store.renew(other.hmac(token), BOB, 50_000)

        def is_renewed() -> bool:
            found = one.tokens.find(token.token_id)
            return found is not None and found.expiry_timestamp_ms == end

        await one.until(is_renewed)
        await other.store.expire(other.hmac(token), ALICE, -1)
        await one.until(lambda: one.tokens.find(token.token_id) is None)
        assert await one.world.children(TOKENS) == []

    between(main)


def test_a_token_is_kept_as_kafka_keeps_it() -> None:
    async def main(one: Broker, _other: Broker) -> None:
        token = await one.store.create("User:al ice", BOB, (BOB, "User:c*"), 5000)
        fields = json.loads(await one.world.data(f"{TOKENS}/{token.token_id}") or b"")
        now = token.issue_timestamp_ms
        assert fields == {
            "version": 3,
            "owner": "User%3Aal%20ice",
            "tokenRequester": "User%3Abob",
            "renewers": ["User%3Abob", "User%3Ac%2A"],
            "issueTimestamp": now,
            "maxTimestamp": now + 5000,
            "expiryTimestamp": now + 5000,
            "tokenId": token.token_id,
        }
        (change,) = await one.world.children(CHANGES)
        assert change == "token_change_0000000000"
        assert await one.world.data(f"{CHANGES}/{change}") == token.token_id.encode()

    between(main)


def test_a_token_that_another_has_deleted_is_not_brought_back() -> None:
    """Kafka's broker would, which has not heard of it yet."""

    async def main(one: Broker, other: Broker) -> None:
        token = await one.token()
        await other.changes.start()
        await other.store.expire(other.hmac(token), ALICE, -1)
        # In the same turn: it has not heard.
        assert one.tokens.find(token.token_id) is not None
        assert await refusal(one.store.renew(one.hmac(token), ALICE, -1)) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        assert one.tokens.find(token.token_id) is None
        assert await one.world.children(TOKENS) == []
        await other.changes.stop()

    between(main, follows=False)


def test_of_two_who_change_a_token_at_once_the_later_sees_what_the_earlier_did() -> None:
    async def main(one: Broker, other: Broker) -> None:
        token = await one.token()
        await other.store.load()
        ends = await asyncio.gather(
            one.store.renew(one.hmac(token), ALICE, 30_000),
            other.store.renew(other.hmac(token), BOB, 20_000),
            one.store.expire(one.hmac(token), ALICE, 25_000),
        )
        data = await one.world.data(f"{TOKENS}/{token.token_id}")
        assert DelegationToken.decode(data, TOKENS).expiry_timestamp_ms in ends
        assert len(await one.world.children(CHANGES)) == 4

    between(main)


def test_only_what_has_expired_is_deleted_and_what_another_has_renewed_is_not() -> None:
    async def main(one: Broker, other: Broker) -> None:
        token, renewed, young = await one.token(), await one.token(), None
        await other.store.load()
        await asyncio.sleep(9)
        await other.store.renew(other.hmac(renewed), BOB, 50_000)
        young = await one.token()
        await asyncio.sleep(2)
        await one.store.remove_expired()
        assert set(await one.world.children(TOKENS)) == {renewed.token_id, young.token_id}
        assert one.tokens.find(token.token_id) is None
        found = one.tokens.find(renewed.token_id)
        assert found is not None
        assert found.expiry_timestamp_ms > renewed.expiry_timestamp_ms

    between(main, follows=False)


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"{}", b'{"version":9}', b'{"version":3,"owner":1}', b"\xff"],
)
def test_a_token_that_cannot_be_read_is_none_and_the_others_are_there(data: bytes) -> None:
    async def main(one: Broker, other: Broker) -> None:
        token = await other.token()
        await one.world.client.create(f"{TOKENS}/broken", data)
        await one.world.client.create(f"{TOKENS}/not an id", data)
        await one.changes.start()
        assert [each.token_id for each in one.tokens.every()] == [token.token_id]
        assert "broken" in "\n".join(one.world.lines.lines)

    between(main, follows=False)


@pytest.mark.parametrize("data", [b"", b"\xff", b"/", b"../../brokers", b"..", b"x" * 300, b"no such token", b"a\0b"])
def test_announcements_that_make_no_sense_do_no_harm(data: bytes) -> None:
    async def main(one: Broker, other: Broker) -> None:
        await one.world.client.create(f"{CHANGES}/token_change_", data, mode=CreateMode.PERSISTENT_SEQUENTIAL)
        token = await other.token()
        await one.until(lambda: one.tokens.find(token.token_id) == token)

    between(main)


class Breaking:
    """A store whose connection breaks once, after a multi or before it, and so often when it is read."""

    def __init__(self, store: Any, *, after: bool, breaks_reading: int = 0) -> None:
        self._store = store
        self._after = after
        self.breaks = 1
        self.breaks_reading = breaks_reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def perform(self, operation: Any) -> Any:
        if not self.breaks and self.breaks_reading:
            self.breaks_reading -= 1
            raise ConnectionLossError("/")
        return await self._store.perform(operation)

    async def multi(self, operations: Any) -> Any:
        if not self.breaks:
            return await self._store.multi(operations)
        self.breaks -= 1
        if self._after:
            await self._store.multi(operations)
        raise ConnectionLossError("/")


@pytest.mark.parametrize("after", [False, True])
def test_what_a_broken_connection_leaves_open_is_found_out(after: bool) -> None:
    async def main(one: Broker, _other: Broker) -> None:
        breaking = Breaking(one.world.client, after=after, breaks_reading=2)
        one.store._store = breaking
        token = await one.token()
        assert not breaking.breaks_reading
        assert await one.world.children(TOKENS) == [token.token_id]
        assert len(await one.world.children(CHANGES)) == 1
        for period in (50_000, -1):
            breaking.breaks, breaking.breaks_reading = 1, 2
            await one.store.expire(one.hmac(token), ALICE, period)
        assert await one.world.children(TOKENS) == []
        assert one.tokens.find(token.token_id) is None

    between(main)


def test_a_token_that_is_gone_before_its_maker_hears_of_it_does_not_come_back() -> None:
    async def main(one: Broker, other: Broker) -> None:
        gone: list[str] = []

        class Deleting(Breaking):
            async def perform(self, operation: Any) -> Any:
                if not gone:
                    gone.extend(await one.world.children(TOKENS))
                    await other.store.load()
                    await other.store.expire(other.tokens.hmac_of(gone[0]), ALICE, -1)
                return await self._store.perform(operation)

        one.store._store = Deleting(one.world.client, after=True)
        token = await one.token()
        assert len(gone) == 1
        assert await one.world.children(TOKENS) == [token.token_id] != gone

    between(main, follows=False)


class Overtaken(Breaking):
    """A store at which somebody else is faster, once, between a read and the write that goes by it."""

    def __init__(self, store: Any, overtake: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(store, after=False)
        self._overtake: Callable[[], Awaitable[Any]] | None = overtake

    async def multi(self, operations: Any) -> Any:
        overtake, self._overtake = self._overtake, None
        if overtake is not None:
            await overtake()
        return await self._store.multi(operations)


def test_a_renewal_counts_only_for_the_token_that_it_has_looked_at() -> None:
    async def main(one: Broker, other: Broker) -> None:
        token = await one.token()
        await other.store.load()

        async def shorten() -> None:
            await other.store.expire(other.hmac(token), ALICE, 1)
            await asyncio.sleep(0.1)

        one.store._store = Overtaken(one.world.client, shorten)
        assert await refusal(one.store.renew(one.hmac(token), ALICE, -1)) is ErrorCode.DELEGATION_TOKEN_EXPIRED

    between(main)


def test_a_token_that_is_renewed_while_it_is_looked_at_is_not_deleted_as_expired() -> None:
    """By a broker whose clock is late."""

    async def main(one: Broker, _other: Broker) -> None:
        token = await one.token()
        await asyncio.sleep(11)
        path = f"{TOKENS}/{token.token_id}"
        renewed = replace(token, expiry_timestamp_ms=token.max_timestamp_ms)
        one.store._store = Overtaken(one.world.client, lambda: one.world.client.set_data(path, renewed.encode()))
        await one.store.remove_expired()
        assert await one.world.data(path) == renewed.encode()
        assert one.tokens.find(token.token_id) == renewed

    between(main)


def test_who_makes_changes_fail_again_and_again_does_not_keep_others_waiting() -> None:
    async def main(one: Broker, other: Broker) -> None:
        token, renewed = await one.token(), await other.token()
        await one.store.load()

        class Busy(Breaking):
            async def multi(self, operations: Any) -> Any:
                self.breaks += 1
                raise MultiFailedError(0, BadVersionError("/"), ())

        one.store._store = busy = Busy(one.world.client, after=False)
        changes = [asyncio.ensure_future(one.store.renew(one.hmac(token), ALICE, -1)) for _ in range(100)]
        await asyncio.sleep(0.05)
        await other.store.expire(other.hmac(renewed), ALICE, -1)
        await asyncio.wait_for(one.store.refresh([renewed.token_id]), 1)
        assert one.tokens.find(renewed.token_id) is None
        for change in changes:
            assert await refusal(change) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert busy.breaks == 1 + 100 * UPDATES_MAX

    between(main, follows=False)


def test_deleting_what_has_expired_ends_with_the_office() -> None:
    async def main(one: Broker, _other: Broker) -> None:
        for _ in range(3):
            await one.token()
        await asyncio.sleep(11)
        await one.store.remove_expired(lambda: len(one.tokens) > 1)
        assert len(one.tokens) == 1

    between(main)


def test_a_token_with_the_id_of_another_is_none_and_is_not_changed() -> None:
    async def main(one: Broker, other: Broker) -> None:
        first, second = await one.token(), await one.token()
        path = f"{TOKENS}/{first.token_id}"
        await one.world.client.set_data(path, second.encode())
        with pytest.raises(LayoutError, match="id of another"):
            await one.store.renew(one.hmac(first), ALICE, -1)
        assert await one.world.data(path) == second.encode()
        await other.store.load()
        assert other.tokens.ids() == {second.token_id}

    between(main, follows=False)


class AtHand(Breaking):
    """A store that has one token, and answers at once."""

    def __init__(self, store: Any, token: DelegationToken, stat: Any) -> None:
        super().__init__(store, after=False)
        self._name = token.token_id
        self._found = ZnodeData(token.encode(), stat)

    async def get_children_names_of_many(self, _paths: Any) -> Any:
        return [[self._name]]

    async def get_many(self, _paths: Any) -> Any:
        return [self._found]

    async def perform(self, _operation: Any) -> Any:
        return self._found

    async def multi(self, operations: Any) -> Any:
        return list(operations)


def test_a_token_of_very_many_names_is_read_and_renewed_in_many_turns() -> None:
    """As a broker of Apache Kafka makes it, which has no bound."""

    async def turns_of(work: Awaitable[Any]) -> int:
        waiting, turns = asyncio.ensure_future(work), 0
        while not waiting.done():
            turns += 1
            await asyncio.sleep(0)
        await waiting
        return turns

    async def main(one: Broker, _other: Broker) -> None:
        token = await one.token()
        (found,) = await one.world.client.get_many([f"{TOKENS}/{token.token_id}"])
        assert isinstance(found, ZnodeData)
        large = replace(token, renewers=tuple(f"User:{number}" for number in range(20_000)))
        steps = sum(1 for _ in DelegationToken.decode_in_steps(large.encode(), "x"))
        one.store._store = AtHand(one.world.client, large, found.stat)
        assert await turns_of(one.store.load()) > steps
        assert await turns_of(one.store.renew(one.hmac(token), ALICE, 5000)) > steps * 3 // 2
        held = one.tokens.find(token.token_id)
        assert held is not None
        assert held.renewers == large.renewers

    between(main, follows=False)


def test_no_reply_with_tokens_can_be_larger_than_one_that_is_taken() -> None:
    """Else some of the largest tokens, which anybody can make, would keep all brokers from starting."""

    async def main(one: Broker, other: Broker) -> None:
        made = [await one.token() for _ in range(100)]
        asked: list[int] = []

        class Counting(Breaking):
            async def get_many(self, paths: Any) -> Any:
                asked.append(len(paths))
                return await self._store.get_many(paths)

        other.store._store = Counting(one.world.client, after=False)
        await other.store.load()
        await other.store.refresh(token.token_id for token in made)
        assert len(other.tokens) == 100
        assert sum(asked) == 200
        reply_bytes_max = ClientSettings(connect="x:1").reply_bytes_max
        assert max(asked) * REQUEST_BYTES_MAX < reply_bytes_max

    between(main, follows=False)
