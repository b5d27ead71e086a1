"""ACLs in ZooKeeper, beside a real coordinator in virtual time: reading, changing, and others who change them too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from barnabas.coordination.errors import (
    BadArgumentsError,
    ConnectionLossError,
    NoNodeError,
    SessionExpiredError,
)
from barnabas.coordination.layout.acls import decode_acl_change
from barnabas.coordination.ports import Store
from barnabas.kernel.turns import yield_to_loop
from barnabas.security.acl_rules import AclRules
from barnabas.security.acl_store import ENTRIES_MAX, UPDATES_MAX, AclDeletion, AclStore, AclUpdateError
from barnabas.security.acl_znodes import DENY_ALL, encode_entries, pattern_of, read_entries
from barnabas.security.acls import (
    AccessControlEntry,
    AccessControlEntryFilter,
    AclBinding,
    AclBindingError,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from tests.unit.api.administration.admin_world import AdminWorld, in_world

ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")
PREFIX = ResourcePattern(ResourceType.GROUP, "team-", PatternType.PREFIXED)
ORDERS_PATH, PREFIX_PATH = "/kafka-acl/Topic/orders", "/kafka-acl-extended/prefixed/Group/team-"
CHANGES = ("/kafka-acl-changes", "/kafka-acl-extended-changes")
READ = AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)
WRITE = READ._replace(operation=AclOperation.WRITE)
DENY = READ._replace(permission_type=AclPermissionType.DENY)


class Meddled:
    """The client, and somebody who does something before or after a multi; all else is the client's."""

    def __init__(self, world: AdminWorld) -> None:
        self._client = world.client
        self.before: Callable[[], Awaitable[None]] | None = None
        self.lost_after = 0
        """How many multis happen, though their answers are lost."""
        self.multis = 0
        self.failure: Exception | None = None
        """Of every read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def perform(self, operation: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        return await self._client.perform(operation)

    async def multi(self, operations: Sequence[Any]) -> list[Any]:
        self.multis += 1
        if self.before is not None:
            await self.before()
        answers = await self._client.multi(operations)
        if self.lost_after:
            self.lost_after -= 1
            raise ConnectionLossError("multi")
        return answers


class Acls:
    """One broker's ACLs."""

    def __init__(self, world: AdminWorld) -> None:
        self.world = world
        self.client = world.client
        self.meddled = Meddled(world)
        self.rules = AclRules()
        self.store = AclStore(
            world.host, cast("Store", self.meddled), self.rules, timers=world.timers, logger=world.logger
        )

    async def announced(self) -> list[ResourcePattern]:
        """The patterns that were announced, literal ones first, each in order."""
        patterns = []
        for path in CHANGES:
            for name in await self.world.children(path):
                assert name.startswith("acl_changes_")
                data = await self.world.data(f"{path}/{name}")
                patterns.append(pattern_of(decode_acl_change(data, f"{path}/{name}")))
        return patterns

    async def kept(self, path: str) -> set[AccessControlEntry]:
        entries, damage = read_entries(await self.world.data(path), path)
        assert damage is None
        return set(entries)


def with_acls(test: Callable[[Acls], Awaitable[None]]) -> None:
    async def main(world: AdminWorld) -> None:
        acls = Acls(world)
        await acls.store.create_paths()
        await test(acls)

    in_world(main)


def picking(pattern: ResourcePattern | None = None, **entry: Any) -> AclBindingFilter:
    return AclBindingFilter(
        ResourcePatternFilter() if pattern is None else ResourcePatternFilter(*pattern),
        AccessControlEntryFilter(**entry),
    )


def test_makes_kafkas_paths_and_takes_those_that_are_there() -> None:
    async def main(acls: Acls) -> None:
        types = ["Cluster", "DelegationToken", "Group", "Topic", "TransactionalId", "User"]
        assert await acls.world.children("/kafka-acl") == types
        assert await acls.world.children("/kafka-acl-extended/prefixed") == types
        assert await acls.announced() == []
        await acls.store.create_paths()

    with_acls(main)


def test_what_is_created_is_kept_announced_and_loaded_by_others() -> None:
    async def main(acls: Acls) -> None:
        bindings = [AclBinding(ORDERS, READ), AclBinding(PREFIX, WRITE), AclBinding(ORDERS, DENY)]
        assert await acls.store.create(bindings) == [None, None, None]
        assert await acls.kept(ORDERS_PATH) == {READ, DENY}
        assert await acls.kept(PREFIX_PATH) == {WRITE}
        assert await acls.announced() == [ORDERS, PREFIX]
        assert set(acls.rules.matching(picking())) == set(bindings)
        other = Acls(acls.world)
        await other.store.load()
        assert set(other.rules.matching(picking())) == set(bindings)

    with_acls(main)


def test_what_is_there_already_is_not_announced_again() -> None:
    async def main(acls: Acls) -> None:
        for _ in range(2):
            assert await acls.store.create([AclBinding(ORDERS, READ)]) == [None]
        assert len(await acls.announced()) == 1
        assert await acls.store.delete([picking(PREFIX)]) == [[]]
        assert len(await acls.announced()) == 1

    with_acls(main)


def test_what_cannot_be_kept_is_refused_alone() -> None:
    async def main(acls: Acls) -> None:
        names = ["a/b", "", "..", "\x00", "good"]
        bindings = [AclBinding(ORDERS._replace(name=name), READ) for name in names]
        bindings.append(AclBinding(ORDERS, READ._replace(operation=AclOperation.ANY)))
        outcomes = await acls.store.create(bindings)
        kinds = [AclBindingError, BadArgumentsError, BadArgumentsError, BadArgumentsError, type(None), AclBindingError]
        assert [type(outcome) for outcome in outcomes] == kinds
        assert await acls.world.children("/kafka-acl/Topic") == ["good"]
        assert await acls.announced() == [ORDERS._replace(name="good")]

    with_acls(main)


def test_deletes_what_filters_pick_and_says_for_which() -> None:
    async def main(acls: Acls) -> None:
        await acls.store.create([AclBinding(ORDERS, READ), AclBinding(ORDERS, WRITE), AclBinding(PREFIX, READ)])
        filters = [picking(operation=AclOperation.WRITE), picking(principal="User:bob"), picking(ORDERS)]
        assert await acls.store.delete(filters) == [
            [AclDeletion(AclBinding(ORDERS, WRITE))],
            [],
            [AclDeletion(AclBinding(ORDERS, READ))],
        ]
        assert await acls.world.children("/kafka-acl/Topic") == []
        assert await acls.announced() == [ORDERS, ORDERS, PREFIX]
        assert acls.rules.patterns() == (PREFIX,)

    with_acls(main)


def test_a_filter_that_names_its_pattern_finds_rules_that_were_not_heard_of() -> None:
    async def main(acls: Acls) -> None:
        await Acls(acls.world).store.create([AclBinding(ORDERS, READ), AclBinding(PREFIX, READ)])
        assert await acls.store.delete([picking()]) == [[]]
        assert await acls.store.delete([picking(ORDERS)]) == [[AclDeletion(AclBinding(ORDERS, READ))]]
        any_type = AclBindingFilter(ResourcePatternFilter(ResourceType.GROUP, "team-", PatternType.ANY))
        assert await acls.store.delete([any_type]) == [[AclDeletion(AclBinding(PREFIX, READ))]]

    with_acls(main)


def test_no_change_of_another_broker_is_lost() -> None:
    async def main(acls: Acls) -> None:
        other = Acls(acls.world)
        steps: list[Callable[[], Awaitable[Any]]] = [
            lambda: other.store.create([AclBinding(ORDERS, WRITE)]),
            lambda: other.store.create([AclBinding(ORDERS, DENY)]),
            lambda: other.store.delete([picking()]),
        ]

        async def meddle() -> None:
            if steps:
                await steps.pop(0)()

        acls.meddled.before = meddle
        assert await acls.store.create([AclBinding(ORDERS, READ)]) == [None]
        assert acls.meddled.multis == 4
        assert await acls.kept(ORDERS_PATH) == {READ} == acls.rules.entries(ORDERS)
        steps.append(lambda: other.store.create([AclBinding(ORDERS, WRITE)]))
        deleted = await acls.store.delete([picking(ORDERS)])
        assert deleted == [[AclDeletion(AclBinding(ORDERS, READ)), AclDeletion(AclBinding(ORDERS, WRITE))]]

    with_acls(main)


def test_gives_up_when_others_change_the_rules_all_the_time() -> None:
    async def main(acls: Acls) -> None:
        async def meddle() -> None:
            made = acls.meddled.multis
            data = encode_entries({READ._replace(principal=f"User:{made}")})
            if made == 1:
                await acls.client.create(ORDERS_PATH, data)
            else:
                await acls.client.set_data(ORDERS_PATH, data)

        acls.meddled.before = meddle
        (outcome,) = await acls.store.create([AclBinding(ORDERS, READ)])
        assert isinstance(outcome, AclUpdateError)
        assert acls.meddled.multis == UPDATES_MAX
        assert await acls.kept(ORDERS_PATH) == {READ._replace(principal=f"User:{UPDATES_MAX}")}
        assert await acls.announced() == []

    with_acls(main)


def test_a_lost_answer_neither_loses_nor_repeats_the_announcement() -> None:
    async def main(acls: Acls) -> None:
        acls.meddled.lost_after = 1
        assert await acls.store.create([AclBinding(ORDERS, READ)]) == [None]
        assert await acls.announced() == [ORDERS]
        assert acls.rules.entries(ORDERS) == {READ}

    with_acls(main)


def test_a_failure_leaves_what_was_known_and_is_told() -> None:
    async def main(acls: Acls) -> None:
        await acls.store.create([AclBinding(ORDERS, READ)])
        for name in await acls.world.children(CHANGES[0]):
            await acls.client.delete(f"{CHANGES[0]}/{name}")
        await acls.client.delete(CHANGES[0])
        (outcome,) = await acls.store.create([AclBinding(ORDERS, WRITE)])
        assert isinstance(outcome, NoNodeError)
        ((deletion,),) = await acls.store.delete([picking()])
        assert deletion.binding == AclBinding(ORDERS, READ)
        assert isinstance(deletion.error, NoNodeError)
        assert await acls.kept(ORDERS_PATH) == {READ} == acls.rules.entries(ORDERS)
        await acls.client.delete(ORDERS_PATH)
        await acls.client.delete("/kafka-acl/Topic")
        (outcome,) = await acls.store.create([AclBinding(ORDERS, WRITE)])
        assert isinstance(outcome, NoNodeError)

    with_acls(main)


def test_what_cannot_be_read_is_not_said_to_be_deleted() -> None:
    async def main(acls: Acls) -> None:
        await acls.store.create([AclBinding(ORDERS, READ)])
        acls.meddled.failure = SessionExpiredError(ORDERS_PATH)
        assert await acls.store.delete([picking()]) == [[AclDeletion(AclBinding(ORDERS, READ), acls.meddled.failure)]]
        assert await acls.store.create([AclBinding(ORDERS, WRITE)]) == [acls.meddled.failure]
        assert acls.rules.entries(ORDERS) == {READ}

    with_acls(main)


def test_refreshing_takes_what_is_there_now() -> None:
    async def main(acls: Acls) -> None:
        await acls.store.refresh([ORDERS])
        assert acls.rules.entries(ORDERS) == frozenset()
        other = Acls(acls.world)
        await other.store.create([AclBinding(ORDERS, READ), AclBinding(PREFIX, READ)])
        await acls.store.refresh([ORDERS])
        assert acls.rules.patterns() == (ORDERS,)
        await other.store.delete([picking(ORDERS)])
        await acls.store.refresh([ORDERS])
        assert acls.rules.patterns() == ()

    with_acls(main)


def test_loading_again_forgets_what_is_gone_and_changes_nothing_else() -> None:
    async def main(acls: Acls) -> None:
        many = [AclBinding(ORDERS._replace(name=f"t{number}"), READ) for number in range(600)]
        other = Acls(acls.world)
        await other.store.create([*many, AclBinding(PREFIX, READ)])
        await acls.store.load()
        assert set(acls.rules.matching(picking())) == {*many, AclBinding(PREFIX, READ)}
        epoch = acls.rules.epoch
        await acls.store.load()
        assert acls.rules.epoch == epoch
        await other.store.delete([picking(many[7].pattern), picking(PREFIX)])
        await acls.store.load()
        assert set(acls.rules.matching(picking())) == {*many} - {many[7]}

    with_acls(main)


def test_an_unknown_type_of_resource_is_said_and_ignored() -> None:
    async def main(acls: Acls) -> None:
        await acls.client.create("/kafka-acl/Spaceship", b"")
        await acls.store.create([AclBinding(ORDERS, READ)])
        await acls.store.load()
        assert acls.rules.patterns() == (ORDERS,)
        assert any("Spaceship" in line for line in acls.world.lines.lines)

    with_acls(main)


@pytest.mark.parametrize("reading", ["load", "refresh"])
def test_a_damaged_znode_is_said_and_denies_until_its_rule_is_deleted(reading: str) -> None:
    async def main(acls: Acls) -> None:
        await acls.client.create(ORDERS_PATH, b"garbage")
        await (acls.store.load() if reading == "load" else acls.store.refresh([ORDERS]))
        assert acls.rules.entries(ORDERS) == {DENY_ALL}
        assert any(ORDERS_PATH in line for line in acls.world.lines.lines)
        assert await acls.store.create([AclBinding(ORDERS, READ)]) == [None]
        assert await acls.kept(ORDERS_PATH) == {DENY_ALL, READ}
        await acls.store.delete([picking(ORDERS, permission_type=AclPermissionType.DENY)])
        assert await acls.kept(ORDERS_PATH) == {READ} == acls.rules.entries(ORDERS)

    with_acls(main)


def test_more_rules_than_a_znode_holds_are_refused_before_they_are_sent() -> None:
    async def main(acls: Acls) -> None:
        bindings = [AclBinding(ORDERS, READ._replace(host=f"h{number}")) for number in range(ENTRIES_MAX + 1)]
        outcomes = await acls.store.create([*bindings, AclBinding(PREFIX, READ)])
        assert isinstance(outcomes[0], AclBindingError)
        assert set(outcomes[:-1]) == {outcomes[0]}
        assert outcomes[-1] is None
        assert acls.meddled.multis == 1

    with_acls(main)


@pytest.mark.parametrize("resource_type", [ResourceType.ANY, ResourceType.GROUP, ResourceType.TOPIC])
def test_no_turn_looks_at_all_filters_for_all_rules(
    monkeypatch: pytest.MonkeyPatch, resource_type: ResourceType
) -> None:
    looks = most = 0

    def counted(kind: Any) -> None:
        matches = kind.matches

        def look(self: Any, other: Any) -> bool:
            nonlocal looks, most
            looks += 1
            most = max(most, looks)
            return bool(matches(self, other))

        monkeypatch.setattr(kind, "matches", look)

    async def main(acls: Acls) -> None:
        some = [AclBinding(ORDERS, READ._replace(host=f"h{number}")) for number in range(200)]
        others = [AclBinding(ORDERS._replace(name=f"t{number}"), READ) for number in range(200)]
        await acls.store.create([*some, *others])

        async def forget() -> None:
            nonlocal looks
            while True:
                looks = 0
                await yield_to_loop()

        forgetting = acls.world.host.loop.create_task(forget())
        counted(ResourcePatternFilter)
        counted(AccessControlEntryFilter)
        name = "orders" if resource_type is ResourceType.TOPIC else None
        pattern = ResourcePatternFilter(resource_type, name)
        filters = [
            AclBindingFilter(pattern, AccessControlEntryFilter(principal=f"User:u{number}")) for number in range(500)
        ]
        assert await acls.store.delete(filters) == [[]] * 500
        forgetting.cancel()
        assert 0 < most <= 2 * 4096
        assert set(acls.rules.matching(picking())) == {*some, *others}

    with_acls(main)


def test_a_change_that_is_heard_does_not_wait_for_the_end_of_a_long_request() -> None:
    async def main(acls: Acls) -> None:
        await acls.store.create([AclBinding(PREFIX, READ)])
        await Acls(acls.world).store.delete([picking(PREFIX)])
        many = [AclBinding(ORDERS._replace(name=f"t{number}"), READ) for number in range(100)]
        long = acls.world.host.loop.create_task(acls.store.create(many))
        while not acls.meddled.multis:
            await yield_to_loop()
        await acls.store.refresh([PREFIX])
        assert acls.rules.entries(PREFIX) == frozenset()
        assert not long.done()
        assert await long == [None] * 100

    with_acls(main)
