"""A group whose members use either protocol, which goes over from one to the other as they come and go, in any order,
with replicas that lag and coordinators that change.

At every step no two members own the same partition by what they were told; durable state is what a load of the log
makes of it; and when all is quiet every partition is owned, and the group is of the kind that its members need.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from barnabas.coordinators.consumer_group.hosted import HostedConsumerGroup
from barnabas.coordinators.consumer_group.states import ConsumerGroupState
from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.states import GroupState
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.support.examples import examples
from tests.unit.coordinators.consumer_group.classic_consumer import CLASSIC_SESSION_MS, ClassicConsumer
from tests.unit.coordinators.consumer_group.consumer_world import (
    SESSION_MS,
    ConsumerWorld,
    FakeTopics,
    NextMember,
    owners,
)
from tests.unit.coordinators.memory_log import base_offset

MEMBERS_MAX = 5
BEAT_MS = 2_000
KINDS = ("next", "next", "eager", "cooperative", "cooperative")
TO_BE_MET = (
    "upgraded",
    "downgraded",
    "upgraded in a rebalance",
    "failed over in an upgrade",
    "failed over in a downgrade",
    "classic members of consumer groups",
    "commits taken",
    "commits refused",
    "answers lost",
)
met: Counter[str] = Counter()


class MixedInAnyOrder(RuleBasedStateMachine):
    """See the module."""

    @initialize(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    def begin(self, kinds: list[str]) -> None:
        self.world = ConsumerWorld(FakeTopics(t=4), migration_policy="bidirectional", initial_rebalance_delay_ms=0)
        self.epoch = 1
        self.offset = 0
        self.compared: dict[TopicPartition, int] = {}
        self.all: list[ClassicConsumer | NextMember] = []
        self.heard: dict[ClassicConsumer | NextMember, float] = {}
        self.kind: type | None = None
        self.changed_at = 0.0
        for kind in kinds:
            self.join(kind, None)
        self.all_beat(4)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self._calm_down()
            finally:
                self.world.close()

    # What happens.

    @precondition(lambda self: len(self.all) < MEMBERS_MAX)
    @rule(kind=st.sampled_from(KINDS), name=st.sampled_from([None, None, "a", "b"]))
    def join(self, kind: str, name: str | None) -> None:
        if name is not None and any(member.instance_id == name for member in self.all):
            return
        member: ClassicConsumer | NextMember
        if kind == "next":
            member = NextMember(self.world, instance_id=name)
        else:
            member = ClassicConsumer(self.world, instance_id=name, is_eager=kind == "eager")
        self.all.append(member)
        self.heard[member] = self.world.loop.time()
        self._beat(member)

    @rule(rounds=st.integers(1, 4))
    def all_beat(self, rounds: int) -> None:
        for _ in range(rounds):
            for member in list(self.all):
                self._beat(member)
                self.nobody_owns_what_another_owns()
            self.wait(10)

    @rule(position=st.integers(0, MEMBERS_MAX - 1))
    def one_beats(self, position: int) -> None:
        if position < len(self.all):
            self._beat(self.all[position])

    def _beat(self, member: ClassicConsumer | NextMember) -> None:
        asked_at = self.world.loop.time()
        before = _answers(member)
        if isinstance(member, ClassicConsumer):
            member.beat()
            self.world.pass_ms(1)
            if member.is_fenced:
                self.all.remove(member)
            elif not member.is_waiting:
                self.heard[member] = asked_at
        else:
            if member.epoch == 0:
                member.member_id = ""
                member.join()
            else:
                member.beat(is_full=bool(member.answers) and member.error is not ErrorCode.NONE)
            if _answers(member) > before and member.error is ErrorCode.NONE:
                self.heard[member] = asked_at
        self._look()

    @precondition(lambda self: len(self.all) > 1)
    @rule(position=st.integers(0, MEMBERS_MAX - 1), dies=st.booleans())
    def goes(self, position: int, *, dies: bool) -> None:
        member = self.all.pop(position % len(self.all))
        member.owned = {}
        if not dies:
            if isinstance(member, ClassicConsumer):
                with suppress(KafkaError):
                    member.leave()
            elif member.epoch:
                member.beat(epoch=-1, owned=None)
        else:
            _forget(member)
        self._look()

    @precondition(lambda self: any(isinstance(member, NextMember) for member in self.all))
    @rule(joins_first=st.booleans())
    def all_next_members_leave(self, *, joins_first: bool) -> None:
        """And the group is a classic one, if there are others."""
        for member in [each for each in self.all if isinstance(each, NextMember)]:
            if len(self.all) > 1:
                self.all.remove(member)
                member.owned = {}
                if member.epoch:
                    member.beat(epoch=-1, owned=None)
                self._look()
        if joins_first and len(self.all) < MEMBERS_MAX:
            self.join("next", None)

    @rule(holds_back=st.booleans())
    def answers_are_lost(self, *, holds_back: bool) -> None:
        """To JoinGroups and SyncGroups; those that wait for others, or for the log."""
        self.world.log.holds_back |= holds_back
        for member in list(self.all):
            if isinstance(member, ClassicConsumer):
                self._beat(member)
                if member.is_waiting:
                    member.give_up_waiting()
                    met["answers lost"] += 1

    @rule(more=st.integers(1, 2))
    def topic_grows(self, more: int) -> None:
        self.world.make_topic("t", min(12, self.world.topics.counts()["t"] + more))
        for member in self.all:
            if isinstance(member, ClassicConsumer) and member.leads:
                member.needs_join = True  # as consumers do that see that

    @rule(duration_ms=st.sampled_from([10, BEAT_MS, BEAT_MS, CLASSIC_SESSION_MS + 1, SESSION_MS + 1]))
    def wait(self, duration_ms: int) -> None:
        self.world.pass_ms(duration_ms)
        now = self.world.loop.time()
        for member in self.all:
            if isinstance(member, ClassicConsumer):
                self.heard[member] = max(self.heard[member], member.synced_at)
            session_ms = CLASSIC_SESSION_MS if isinstance(member, ClassicConsumer) else SESSION_MS
            if (now - self.heard[member]) * 1000 >= session_ms:
                if isinstance(member, ClassicConsumer) and member.is_waiting:
                    member.owned = {}  # its session goes on where it is waited for by a classic group
                else:
                    _forget(member)
                    self.heard[member] = now
        self._look()

    @rule(position=st.integers(0, MEMBERS_MAX - 1), behind=st.sampled_from([0, 0, 1]))
    def commits(self, position: int, behind: int) -> None:
        """Taken from a member of its epoch, and from nobody else."""
        member = self.all[position % len(self.all)]
        handle = self.world.coordinator._groups.get("g")
        epoch = member.epoch - behind
        if handle is None or epoch < 1:
            return
        group = handle.group
        if isinstance(group, HostedConsumerGroup):
            known = group.core.members.get(member.member_id)
            is_taken = known is not None and known.epoch == epoch
        else:
            is_taken = (
                member.member_id in group.members
                and epoch == group.generation
                and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE)
            )
        self.offset += 1
        try:
            self.world.commit("g", {TopicPartition("t", 0): self.offset}, generation=epoch, member_id=member.member_id)
        except KafkaError:
            assert not is_taken
            met["commits refused"] += 1
        else:
            assert is_taken
            met["commits taken"] += 1

    @rule(
        code=st.sampled_from(
            [None, ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT]
        )
    )
    def replicas_lag(self, code: ErrorCode | None) -> None:
        """From now on, or until now."""
        log = self.world.log
        log.holds_back = code is None
        if code is not None:
            log.release(code)
            if code is not ErrorCode.REQUEST_TIMED_OUT:
                log.release_late()

    @rule(lost_max=st.sampled_from([0, 1, 2, 99]))
    def fail_over(self, lost_max: int) -> None:
        """To another coordinator, which may lack what was not committed."""
        partition, log = self.world.partition_of("g"), self.world.log
        self.epoch += 1
        if self.world.loop.time() - self.changed_at < 0.1 and self.kind is not None:
            met["failed over in an upgrade" if self.kind is HostedConsumerGroup else "failed over in a downgrade"] += 1
        self.world.resign("g")
        batches, committed = log.batches.get(partition, []), log.high_watermarks.get(partition, 0)
        for _ in range(lost_max):
            if not batches or base_offset(batches[-1]) < committed:
                break
            log.end_offsets[partition] = base_offset(batches.pop())
        log.held.clear()
        log.late.clear()
        self.kind = None
        self.world.elect("g", self.epoch)
        self._look()

    @precondition(lambda self: len(self.all) < MEMBERS_MAX)
    @rule(lost_max=st.sampled_from([0, 1, 99]), leaves=st.booleans())
    def fall_while_it_goes_over(self, lost_max: int, *, leaves: bool) -> None:
        self.world.log.holds_back = True
        if leaves:
            self.all_next_members_leave(joins_first=False)
        else:
            self.join("next", None)
        self.fail_over(lost_max)
        self.replicas_lag(ErrorCode.NONE)
        self.all_beat(1)

    def _look(self) -> None:
        """Counts what is met."""
        handle = self.world.coordinator._groups.get("g")
        if handle is None:
            return
        group = handle.group
        kind = type(group)
        if self.kind is not None and kind is not self.kind and group.member_count > (kind is HostedConsumerGroup):
            is_upgrade = kind is HostedConsumerGroup
            met["upgraded" if is_upgrade else "downgraded"] += 1
            self.changed_at = self.world.loop.time()
            if is_upgrade and any(isinstance(each, ClassicConsumer) and each.needs_join for each in self.all):
                met["upgraded in a rebalance"] += 1
        self.kind = kind
        if isinstance(group, HostedConsumerGroup):
            met["classic members of consumer groups"] += group.core.classic_count > 0

    # What holds.

    @invariant()
    def nobody_owns_what_another_owns(self) -> None:
        if hasattr(self, "world"):
            owners(*self.all)  # type: ignore[arg-type]

    @invariant()
    def nobody_is_left_over(self) -> None:
        handle = self.world.coordinator._groups.get("g") if hasattr(self, "world") else None
        if handle is None or not isinstance(handle.group, HostedConsumerGroup):
            return
        hosted, core = handle.group, handle.group.core
        assert hosted.deadlines.keys() == core.members.keys()
        assert {key.member_id for key in handle.timers} <= core.members.keys()
        assert {key.member_id for key in hosted.rung} <= core.members.keys()
        assert core.targets.keys() <= core.members.keys()
        assert core.classic_count == sum(member.classic is not None for member in core.members.values())

    @invariant()
    def the_log_says_what_the_state_says(self) -> None:
        if not hasattr(self, "world") or self.compared == self.world.log.end_offsets:
            return
        self.compared = dict(self.world.log.end_offsets)
        other = ConsumerWorld(self.world.topics)
        other.scheduler.tasks["delete-expired-group-metadata"].cancel()
        other.resign("g")
        other.log.batches, other.log.end_offsets = self.world.log.batches, self.world.log.end_offsets
        other.elect("g", 99)
        found = _durable(other)
        other.close()
        assert _durable(self.world) == found

    def _calm_down(self) -> None:
        self.replicas_lag(ErrorCode.NONE)
        self.world.pass_ms(10)
        for member in self.all:
            if isinstance(member, ClassicConsumer) and member.is_waiting:
                member.give_up_waiting()
        for _ in range((SESSION_MS + 60_000) // BEAT_MS + 10):
            self.all_beat(1)
            self.wait(BEAT_MS)
        assert len(owners(*self.all)) == self.world.topics.counts()["t"]  # type: ignore[arg-type]
        group = self.world.coordinator._groups["g"].group
        if any(isinstance(member, NextMember) for member in self.all):
            assert isinstance(group, HostedConsumerGroup)
            assert group.state is ConsumerGroupState.STABLE
            assert group.core.members.keys() == {member.member_id for member in self.all}
        elif isinstance(group, Group):
            assert group.state is GroupState.STABLE
            assert set(group.members.ids) == {member.member_id for member in self.all}
        else:  # the last of the other kind became a static member of this one
            assert group.core.classic_count == len(group.core.members)


def _answers(member: ClassicConsumer | NextMember) -> int:
    return 0 if isinstance(member, ClassicConsumer) else len(member.answers)


def _forget(member: ClassicConsumer | NextMember) -> None:
    """It has nothing any more, and begins anew."""
    member.owned, member.member_id = {}, ""
    if isinstance(member, ClassicConsumer):
        member.give_up_waiting()
        member.epoch = -1
    else:
        member.epoch = 0


def _durable(world: ConsumerWorld) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for group_id, handle in world.coordinator._groups.items():
        group = handle.group
        if isinstance(group, HostedConsumerGroup):
            if group.core.is_recorded:
                found[group_id] = {name: getattr(group.core, name) for name in group.core.__slots__}
        elif group.recorded is not None:
            found[group_id] = group.recorded
    return found


def test_a_group_of_both_kinds_keeps_its_promises_whatever_comes_in_any_order() -> None:
    met.clear()
    run_state_machine_as_test(
        MixedInAnyOrder,
        settings=settings(
            max_examples=examples(40), stateful_step_count=30, deadline=None, database=None, derandomize=True
        ),
    )
    assert not [what for what in TO_BE_MET if not met[what]], "what is not met proves nothing"
