"""One broker with an authorizer, and every API of it: what each denies, and to whom nothing is denied.

The broker's own connections are of User:ANONYMOUS, which is a super user here; callers say who they are.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from barnabas.coordination.layout.acls import LITERAL_ACL_CHANGES_PATH
from barnabas.coordination.operations import Delete, GetChildrenNames
from barnabas.kernel.host import Host
from barnabas.kernel.timers import Timers
from barnabas.security.acl_rules import AclRules
from barnabas.security.acl_store import AclStore
from barnabas.security.acls import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from barnabas.server.broker import Broker
from barnabas.testing.simulation import Simulation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import (
    AddPartitionsToTxnRequest,
    CreateTopicsRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
)
from tests.support import acl_table
from tests.support.acl_rows import (
    BY_ID,
    BY_NAME,
    FOR_BOB,
    GROUP,
    OPEN,
    PRODUCED,
    ROWS,
    TOPIC,
    TRANSACTION,
    Need,
    Row,
)
from tests.support.made_messages import errors, made
from tests.unit.api.calling import Caller, Calls
from tests.unit.server.coordinated import TIMEOUT_MS, Lines, pause, session_on, start_coordinator, until
from tests.unit.server.test_broker import running

EVE, ADMIN = "User:eve", "User:admin"
AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
OVERRIDES = (
    f"authorizer.class.name={AUTHORIZER}",
    "group.coordinator.rebalance.protocols=classic,consumer",
    f"super.users=User:ANONYMOUS;{ADMIN}",
    "broker.id=1",
    "offsets.topic.replication.factor=1",
    "offsets.topic.num.partitions=1",
    "transaction.state.log.replication.factor=1",
    "transaction.state.log.min.isr=1",
    "transaction.state.log.num.partitions=1",
    "num.partitions=1",
    "group.initial.rebalance.delay.ms=0",
    "delegation.token.secret.key=secret",
)
Outcome = tuple[set[str], bool | None]
"""The errors in a response, and whether it shows what may be hidden."""


class World:
    """The broker, somebody who may do everything, and Eve."""

    def __init__(self, broker: Broker, host: Host) -> None:
        self.broker = broker
        self.components = broker.components
        authorization = self.components.authorization
        assert authorization is not None
        self.rules = authorization.rules
        self.calls = Calls(host, *self.components.handlers.registry.handlers.values())
        self.calls.dispatcher.authorizer = authorization.authorizer
        self.admin = self.caller(ADMIN)
        self.ids: dict[str, bytes] = {}

    def caller(self, principal: str) -> Caller:
        caller = self.calls.connect(client_id=principal)
        caller.connection.principal = principal
        return caller

    async def until_told(self, caller: Caller, request: Any, version: int) -> Any:
        """The answer, once a coordinator is there and has loaded."""
        for _ in range(600):
            response = await caller.call(request, version)
            if not {"COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"} & errors(response):
                return response
            await pause(0.1)
        raise AssertionError(f"{request} is never answered")

    async def set_up(self) -> None:
        """Topics, a record, a group with an offset, and an open transaction."""
        topic = CreateTopicsRequest.CreatableTopic
        names = [TOPIC, BY_NAME, BY_ID]
        await self.admin.call(
            CreateTopicsRequest(topics=[topic(name=name, num_partitions=1, replication_factor=1) for name in names]), 7
        )
        found = await self.admin.call(MetadataRequest(topics=None), 12)
        self.ids = {topic.name: topic.topic_id for topic in found.topics}
        assert errors(await self.admin.call(Row(ApiKey.PRODUCE, 9, PRODUCED, ()).request({}), 9)) == set()
        offsets = [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
        for key_type, key in ((0, GROUP), (1, TRANSACTION)):
            row = Row(ApiKey.FIND_COORDINATOR, 4, {"key_type": key_type, "coordinator_keys": [key]}, ())
            await self.until_told(self.admin, row.request({}), 4)
        commit = made(OffsetCommitRequest, {"group_id": GROUP, "topics": offsets}, {})
        assert errors(await self.until_told(self.admin, commit, 8)) == set()
        init = InitProducerIdRequest(transactional_id=TRANSACTION, transaction_timeout_ms=600_000)
        given = await self.until_told(self.admin, init, 4)
        assert given.error_code == 0
        add = made(
            AddPartitionsToTxnRequest,
            {
                "v3_and_below_transactional_id": TRANSACTION,
                "v3_and_below_producer_id": given.producer_id,
                "v3_and_below_producer_epoch": given.producer_epoch,
                "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}],
            },
            {},
        )
        assert errors(await self.until_told(self.admin, add, 3)) == set()
        bobs = Row(ApiKey.CREATE_DELEGATION_TOKEN, 3, FOR_BOB, ())
        assert errors(await self.admin.call(bobs.request({}), 3)) == set()

    async def state(self) -> Any:
        """What no denied request may change."""
        found = await self.admin.call(MetadataRequest(topics=None), 12)
        latest = made(
            ListOffsetsRequest,
            {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -1}]}]},
            {},
        )
        ends = await self.admin.call(latest, 9)
        groups = await self.admin.call(Row(ApiKey.DESCRIBE_GROUPS, 5, {"groups": [GROUP]}, ()).request({}), 5)
        fetched = {"groups": [{"group_id": GROUP, "topics": None}]}
        offsets = await self.admin.call(Row(ApiKey.OFFSET_FETCH, 8, fetched, ()).request({}), 8)
        open_ones = await self.admin.call(Row(ApiKey.LIST_TRANSACTIONS, 1, {}, ()).request({}), 1)
        return (
            sorted((topic.name, len(topic.partitions)) for topic in found.topics),
            *(repr(response) for response in (ends, groups, offsets, open_ones)),
        )

    def grant(self, needs: Iterable[Need]) -> None:
        """Eve may do this, and nothing else."""
        for pattern in self.rules.patterns():
            self.rules.replace(pattern, ())
        found: dict[ResourcePattern, set[AccessControlEntry]] = {}
        for operation, resource_type, name, _ in needs:
            entry = AccessControlEntry(EVE, "127.0.0.1", operation, AclPermissionType.ALLOW)
            found.setdefault(ResourcePattern(resource_type, name), set()).add(entry)
        for pattern, entries in found.items():
            self.rules.replace(pattern, entries)

    async def ask(self, row: Row) -> Outcome:
        response = await self.caller(EVE).call(row.request(self.ids), row.version)
        return errors(response), None if row.shows is None else row.shows(response)


async def play(broker: Broker, host: Host) -> dict[str, Any]:
    world = World(broker, host)
    await world.set_up()
    before = await world.state()
    found: dict[str, Any] = {}
    for row in ROWS:
        outcomes = []
        for missing in range(len(row.needs)):
            world.grant(need for position, need in enumerate(row.needs) if position != missing)
            outcomes.append(await world.ask(row))
        world.grant(())
        found[row.name] = [await world.ask(row), *outcomes]
    found["state"] = (before, await world.state())
    (update,) = (row for row in ROWS if row.api_key is ApiKey.UPDATE_METADATA)
    found["goes ahead"] = []
    for principal in (EVE, ADMIN):
        caller = world.caller(principal)
        await caller.call(update.request({}), update.version)
        found["goes ahead"].append(caller.connection.is_control)
    for row in ROWS:
        world.grant(row.needs)
        found[row.name].append(await world.ask(row))
    return found


@functools.cache
def outcomes_of_all() -> dict[str, Any]:
    lines = Lines()
    with Simulation(1) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("broker")
        found: dict[str, Any] = simulation.run_on(machine, running(play, lines, *OVERRIDES), 3600)
    assert "ERROR" not in lines
    return found


def test_the_page_has_the_table() -> None:
    text = acl_table.PAGE.read_text(encoding="utf-8")
    assert text == acl_table.page(text), "run python -m tests.support.acl_table"


def test_every_row_has_a_name_of_its_own() -> None:
    assert [name for name, count in Counter(row.name for row in ROWS).items() if count > 1] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_who_lacks_a_permission_is_denied_and_who_has_it_is_not(row: Row) -> None:
    without_any, *without_one, with_all = outcomes_of_all()[row.name]
    codes = [need[3].name for need in row.needs]
    if row.shows is None:
        assert without_any == ({codes[0]}, None)
        assert without_one == [({code}, None) for code in codes]
        assert not set(codes) & with_all[0]
    else:
        assert not without_any[1]
        assert not any(shows for _, shows in without_one)
        assert with_all[1]


def test_no_denied_request_changes_anything() -> None:
    before, after = outcomes_of_all()["state"]
    assert before == after


def test_who_may_not_speak_as_the_controller_goes_ahead_of_nobody() -> None:
    assert outcomes_of_all()["goes ahead"] == [False, True]


def test_every_api_is_in_the_table() -> None:
    async def handled(broker: Broker, _host: Host) -> set[int]:
        return set(broker.components.handlers.registry.handlers)

    with Simulation(1) as simulation:
        start_coordinator(simulation)
        found = simulation.run_on(simulation.machine("broker"), running(handled, Lines()))
    assert found == {int(row.api_key) for row in ROWS} | {int(key) for key in OPEN}


def test_a_broker_that_slept_past_its_session_takes_away_what_was_taken_away_meanwhile() -> None:
    pattern = ResourcePattern(ResourceType.TOPIC, TOPIC)
    entry = AccessControlEntry(EVE, "*", AclOperation.READ, AclPermissionType.ALLOW)
    lines = Lines()

    async def follow(broker: Broker, _host: Host) -> None:
        authorization = broker.components.authorization
        assert authorization is not None
        asked = (EVE, "10.0.0.9", AclOperation.READ, ResourceType.TOPIC, TOPIC)
        first = broker.components.session.session_id
        await until(lambda: authorization.authorizer.authorize(*asked, quietly=True))
        await until(lambda: not authorization.authorizer.authorize(*asked, quietly=True))
        assert broker.components.session.session_id != first

    async def write(host: Host) -> None:
        session = session_on(host, Lines())
        await session.connect()
        timers = Timers(host.loop)
        store = AclStore(host, session, AclRules(), timers=timers, logger=logging.getLogger("acls"))
        await pause(8.0)
        assert await store.create([AclBinding(pattern, entry)]) == [None]
        await pause(4.0)  # the broker sleeps now
        await store.delete([AclBindingFilter(ResourcePatternFilter(*pattern))])
        for name in await session.perform(GetChildrenNames(LITERAL_ACL_CHANGES_PATH)):
            await session.perform(Delete(f"{LITERAL_ACL_CHANGES_PATH}/{name}"))
        timers.close()
        await session.close()

    with Simulation(1) as simulation:
        start_coordinator(simulation)
        machine = simulation.machine("broker")
        process = machine.start(running(follow, lines, *OVERRIDES))
        writer = simulation.machine("writer").start(write)
        simulation.run_for(10.0)
        machine.pause()
        simulation.run_for(2 * TIMEOUT_MS / 1000)
        machine.resume()
        simulation.run_until(lambda: process.ended and writer.ended)
        writer.result()
        process.result()
