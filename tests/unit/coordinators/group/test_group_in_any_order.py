"""A group under everything that may happen to it, in any order, with replicas that lag and coordinators that change.

At every step there is one generation with exactly one leader among its members; what a member is told of its
assignment is that of the present generation, and its own; every request is answered once; offsets are those of the
last acknowledged commit or of a later one that was not acknowledged; and what another coordinator makes of the records
is what this one has, whatever became of them.
"""

from __future__ import annotations

import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.states import GroupState
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeGroupsResponse
from barnabas.wire.topics import TopicPartition
from tests.support.examples import examples
from tests.unit.coordinators.group.group_world import GroupWorld, TestMember
from tests.unit.coordinators.group.group_world import durable as durable_state
from tests.unit.coordinators.group.group_world import loaded as loaded_state

MEMBERS_MAX = 5
PARTITIONS = [TopicPartition("t", 0), TopicPartition("u", 0)]
FAILURES = [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT]


class Client:
    """A member's client: what it has sent, and what has come back."""

    def __init__(self, member: TestMember) -> None:
        self.member = member
        self.joins = 0
        self.syncs = 0


class AnyOrder(RuleBasedStateMachine):
    """See the module."""

    clients = Bundle("clients")

    @initialize(delay_ms=st.sampled_from([0, 3000]))
    def begin(self, delay_ms: int) -> None:
        self.world = GroupWorld(initial_rebalance_delay_ms=delay_ms, size_max=4)
        self.epoch = 1
        self.world.elect("g")
        self.all: list[Client] = []
        self.acknowledged: dict[TopicPartition, int] = {}
        self.written: dict[TopicPartition, list[int]] = {partition: [] for partition in PARTITIONS}
        self.commits: list[tuple[dict[TopicPartition, int], list[Any]]] = []
        self.counter = 0
        self.generation = 0

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.log.release()
        self.world.close()
        for client in self.all:
            assert len(client.member.joined) == client.joins
            assert len(client.member.synced) == client.syncs
        assert all(len(outcome) == 1 for _, outcome in self.commits)

    # What clients do.

    @rule(target=clients, is_static=st.booleans(), protocols=st.permutations(["range", "sticky"]))
    def come(self, is_static: bool, protocols: list[str]) -> Client:
        instance_id = f"s{len(self.all) % 2}" if is_static else None
        client = Client(TestMember(self.world, instance_id=instance_id, protocols=tuple(protocols)))
        self.all.append(client)
        return client

    @rule(client=clients, version=st.sampled_from([3, 5, 9]))
    def join(self, client: Client, version: int) -> None:
        client.joins += 1
        client.member.join(version)

    @rule(client=clients)
    def resubscribe(self, client: Client) -> None:
        client.member.topics = ("t", "u") if client.member.topics == ("t",) else ("t",)

    @precondition(lambda self: any(client.member.generation > 0 for client in self.all))
    @rule(client=clients, forgets_one=st.booleans())
    def sync(self, client: Client, forgets_one: bool) -> None:
        member = client.member
        client.syncs += 1
        if not member.is_leader:
            member.sync()
            return
        assignments = {
            each.member_id: f"{member.generation}:{each.member_id}".encode() for each in member.joined[-1].members
        }
        if forgets_one and assignments:
            assignments.popitem()
        member.sync(assignments)

    @rule(client=clients)
    def heartbeat(self, client: Client) -> None:
        error = client.member.heartbeat()
        if error is ErrorCode.NONE and self.is_led:
            group = self.world.group("g")
            assert client.member.generation == group.generation
            assert client.member.member_id in group.members

    @rule(client=clients, by_name=st.booleans())
    def leave(self, client: Client, by_name: bool) -> None:
        if self.is_led:
            client.member.leave(by_name=by_name and client.member.instance_id is not None)

    @rule(client=clients, partition=st.sampled_from(PARTITIONS), as_member=st.booleans())
    def commit(self, client: Client, partition: TopicPartition, as_member: bool) -> None:
        self.counter += 1
        member = client.member
        offsets = {partition: self.counter}
        identity = {"generation": member.generation, "member_id": member.member_id} if as_member else {}
        end = self.world.log.end_offsets.get(self.world.partition_of("g"), 0)
        try:
            outcome = self.world.commit("g", offsets, **identity)  # type: ignore[arg-type]
        except KafkaError:
            assert self.world.log.end_offsets.get(self.world.partition_of("g"), 0) == end
            return
        self.commits.append((offsets, outcome))
        if self.world.log.end_offsets.get(self.world.partition_of("g"), 0) > end:
            self.written[partition].append(self.counter)
        self.note_acknowledgements()

    # What happens to them.

    @rule(duration_ms=st.sampled_from([1, 500, 3000, 9000, 11_000, 31_000]))
    def pass_time(self, duration_ms: int) -> None:
        self.world.pass_ms(duration_ms)

    @rule()
    def lag(self) -> None:
        self.world.log.holds_back = True

    @rule(failure=st.none() | st.sampled_from(FAILURES))
    def catch_up(self, failure: ErrorCode | None) -> None:
        self.world.log.holds_back = False
        self.world.log.release(failure or ErrorCode.NONE)

    @rule()
    def commit_late(self) -> None:
        self.world.log.release_late()
        self.note_acknowledgements()

    @rule(is_refusing=st.booleans())
    def shrink(self, is_refusing: bool) -> None:
        self.world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS if is_refusing else None

    @precondition(lambda self: self.is_led)
    @rule()
    def resign(self) -> None:
        self.world.resign("g", self.epoch)
        self.note_acknowledgements()
        self.generation = 0

    @precondition(lambda self: not self.is_led)
    @rule()
    def elect(self) -> None:
        self.epoch += 1
        self.world.elect("g", self.epoch)

    # What holds.

    @property
    def is_led(self) -> bool:
        return self.world.partition_of("g") in self.world.log.leaders

    def note_acknowledgements(self) -> None:
        for offsets, outcome in self.commits:
            for partition, offset in offsets.items():
                if outcome and outcome[0][partition] is ErrorCode.NONE:
                    self.acknowledged[partition] = max(offset, self.acknowledged.get(partition, 0))

    @invariant()
    def answers_come_once(self) -> None:
        if not hasattr(self, "world"):
            return
        for client in self.all:
            assert len(client.member.joined) <= client.joins
            assert len(client.member.synced) <= client.syncs

    @invariant()
    def one_generation_has_one_leader(self) -> None:
        group = self.present_group()
        if group is None:
            return
        assert group.generation >= self.generation
        self.generation = group.generation
        if not group.members:
            assert group.state in (GroupState.EMPTY, GroupState.PREPARING_REBALANCE)
            return
        assert group.state is not GroupState.EMPTY
        assert group.members.leader_id is not None
        assert group.members.leader_id in group.members
        told = [
            client.member.joined[-1]
            for client in self.all
            if client.member.joined
            and client.member.joined[-1].error_code == ErrorCode.NONE
            and client.member.joined[-1].generation_id == group.generation
        ]
        assert len({response.protocol_name for response in told}) <= 1
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            assert sum(member.member_id == group.members.leader_id for member in group.members) == 1
            assert group.members.awaiting_join <= sum(member.is_static for member in group.members)

    @invariant()
    def assignments_are_of_the_generation(self) -> None:
        group = self.present_group()
        if group is None or group.state is not GroupState.STABLE:
            return
        for member in group.members:
            assigned = member.assignment.decode()
            assert not assigned or assigned.startswith(f"{group.generation}:")
        for client in self.all:
            member_of = client.member
            if (
                member_of.synced
                and member_of.synced[-1].error_code == ErrorCode.NONE
                and member_of.synced_generation == member_of.generation == group.generation
                and member_of.member_id in group.members
            ):
                present = group.members.get(member_of.member_id)
                assert present is not None
                assert member_of.synced[-1].assignment == present.assignment

    @invariant()
    def offsets_are_those_that_were_committed(self) -> None:
        if not hasattr(self, "world") or not self.is_led:
            return
        for partition in PARTITIONS:
            offset = self.world.offset("g", partition)
            assert (offset or 0) >= self.acknowledged.get(partition, 0)
            assert offset is None or offset in self.written[partition]

    @invariant()
    def another_coordinator_would_have_the_same(self) -> None:
        group = self.present_group()
        if group is None or self.world.log.held or self.world.log.refusal is not None:
            return
        if group.state not in (GroupState.STABLE, GroupState.EMPTY) or not self.is_clean:
            return
        other = GroupWorld()
        other.scheduler.tasks["delete-expired-group-metadata"].cancel()  # an unused group would be gone at once
        other.log.batches, other.log.end_offsets = self.world.log.batches, self.world.log.end_offsets
        other.elect("g", 99)
        try:
            if group.generation == 0 and not len(group.offsets):
                return
            assert durable(other, "g") == durable(self.world, "g")
        finally:
            other.close()

    @invariant()
    def what_is_durable_is_what_the_log_says(self) -> None:
        """At any moment, whatever was refused or came too late. Offsets that are on their way, or were not committed in
        time, are not seen yet.
        """
        if not hasattr(self, "world") or not self.is_led:
            return
        record, offsets = durable_state(self.world).get("g", (None, {}))
        loaded_record, loaded_offsets = loaded_state(self.world).get("g", (None, {}))
        assert record == loaded_record
        if not (self.world.log.held or self.world.log.late):
            assert offsets == loaded_offsets

    @property
    def is_clean(self) -> bool:
        """Nothing was refused that the group has decided: then the log is what it decided."""
        return not any("was not committed" in line or "Failed" in line for line in self.world.lines) and not any(
            outcome and any(code is not ErrorCode.NONE for code in outcome[0].values()) for _, outcome in self.commits
        )

    def present_group(self) -> Group | None:
        if not hasattr(self, "world"):
            return None
        return None if "g" not in self.world.coordinator._groups else self.world.group("g")


def durable(world: GroupWorld, group_id: str) -> tuple[Any, ...]:
    """What of a group survives its coordinator."""
    if group_id not in world.coordinator._groups:
        return ()
    group = world.group(group_id)
    described: DescribeGroupsResponse.DescribedGroup = group.described()
    described.members.sort(key=lambda member: member.member_id)
    return (
        group.state,
        group.generation,
        group.protocol if group.members else None,
        group.members.leader_id,
        described,
        {partition: group.offsets.get(partition) for partition in group.offsets.partitions},
    )


AnyOrder.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
TestGroupInAnyOrder = AnyOrder.TestCase


def test_random_walks_reach_stable_generations_and_failovers() -> None:
    """That the machine above is not idle: by plain chance it gets groups of several members through generations."""
    generations = failovers = members = 0
    for seed in range(15):
        chance = random.Random(seed)
        machine = AnyOrder()
        machine.begin(3000)
        for _ in range(3):
            machine.come(chance.random() < 0.3, ["range", "sticky"])
        for _ in range(120):
            client = chance.choice(machine.all)
            action = chance.random()
            if action < 0.35:
                machine.join(client, 9)
            elif action < 0.7:
                if client.member.generation > 0:
                    machine.sync(client, False)
            elif action < 0.8:
                machine.pass_time(chance.choice([1, 500, 3000]))
            elif action < 0.9:
                machine.commit(client, PARTITIONS[0], True)
            elif machine.is_led and action < 0.92:
                machine.resign()
            elif not machine.is_led:
                machine.elect()
                failovers += 1
            machine.one_generation_has_one_leader()
            machine.assignments_are_of_the_generation()
            machine.offsets_are_those_that_were_committed()
            machine.another_coordinator_would_have_the_same()
            group = machine.present_group()
            if group is not None and group.state is GroupState.STABLE:
                generations = max(generations, group.generation)
                members = max(members, len(group.members))
        machine.teardown()
    assert generations >= 3
    assert members >= 2
    assert failovers >= 5
