"""A consumer group under everything that may happen to it, in any order, with replicas that lag and coordinators that
change.

At every step no two members own the same partition, as they learnt from their heartbeats; durable state is what a load
of the log makes of it; and when all is quiet, every partition is owned, balanced, and the group is stable.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from barnabas.coordinators.consumer_group.group import ConsumerGroup
from barnabas.coordinators.consumer_group.hosted import HostedConsumerGroup
from barnabas.coordinators.consumer_group.records import partitions_of
from barnabas.coordinators.consumer_group.states import ConsumerGroupState, MemberState
from barnabas.coordinators.group.group import Group
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.support.examples import examples
from tests.unit.coordinators.consumer_group.consumer_world import (
    HEARTBEAT_MS,
    REBALANCE_MS,
    SESSION_MS,
    ConsumerWorld,
    FakeTopics,
    NextMember,
    owners,
)
from tests.unit.coordinators.memory_log import base_offset

MEMBERS_MAX = 5
LEFT_MIN = 1
TOPICS = ("t", "u")
TO_BE_MET = (
    "answers lost",
    "coordinators that lack what was uncommitted",
    "coordinators that have what is uncommitted",
    "held on",
    "fenced by epoch",
    "names in use",
    "names that came back",
    "told of doubt",
    "waits for others",
    "gives up",
    "commits taken",
    "commits of former members",
)


class _Consumer(NextMember):
    """As clients do, it gives up everything before it joins again, or when it has not been answered for so long that
    its session has ended, counted from when it asked; and says everything after what was not answered.
    """

    met: ClassVar[Counter[str]] = Counter()
    last_answer = 0.0
    answered_whole = 0.0
    """When it last asked, and owned then all, and no more, than it was told."""
    hears = True
    """Whether answers reach it."""
    says_all = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._asked_at: list[float] = []

    def beat(self, *, is_full: bool = False, waits: bool = True, **fields: Any) -> Any:
        self._asked_at.append(self.world.loop.time())
        return super().beat(is_full=is_full or self.says_all, waits=waits, **fields)

    def _answered(self, answer: Any) -> None:
        asked_at = self._asked_at.pop(0)
        if not self.hears or (self.world.loop.time() - asked_at) * 1000 >= HEARTBEAT_MS:  # who asks has given up
            self.met["answers lost"] += 1
            self.says_all = True
            return
        owned = self.owned
        super()._answered(answer)
        self.met[_MET.get(self.error, "answers")] += 1
        self.says_all = self.error is not ErrorCode.NONE
        if self.epoch == 0:
            self.member_id = ""  # as one that is started again; the former is fenced for the rest of its session
        self.last_answer = asked_at
        if answer.assignment is None or partitions_of(answer.assignment.topic_partitions) == self.owned:
            self.answered_whole = asked_at
            self.met["gives up"] += any(owned[topic] - self.owned.get(topic, frozenset()) for topic in owned)
        else:
            self.met["held on"] += 1


_MET = {
    ErrorCode.FENCED_MEMBER_EPOCH: "fenced by epoch",
    ErrorCode.UNRELEASED_INSTANCE_ID: "names in use",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "told of doubt",
}


class AnyOrder(RuleBasedStateMachine):
    """See the module."""

    members = Bundle("members")

    @initialize(target=members, assignor=st.sampled_from(["uniform", "range"]), is_slow=st.booleans())
    def begin(self, assignor: str, is_slow: bool) -> MultipleResults[_Consumer]:
        self.assignor = assignor
        self.world = ConsumerWorld(FakeTopics(t=3))
        self.epoch = 1
        self.former: list[tuple[str, int]] = []
        """Members that have left, which was committed."""
        self.offset = 0
        self.compared: dict[TopicPartition, int] = {}
        self.all: list[_Consumer] = [_Consumer(self.world, assignor=assignor) for _ in range(2)]
        self.all_beat(3)
        self.all[0].gives_up = not is_slow
        return multiple(*self.all)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self._calm_down()
        finally:
            self.world.close()

    @precondition(lambda self: len(self.all) < MEMBERS_MAX)
    @rule(
        target=members,
        topics=st.sampled_from([{"t"}, {"t"}, {"u"}, {"t", "u"}]),
        name=st.sampled_from([None, "a", "b"]),
    )
    def join(self, topics: set[str], name: str | None) -> _Consumer:
        member = _Consumer(self.world, *topics, instance_id=name, assignor=self.assignor)
        self.all.append(member)
        member.join()
        return member

    @rule(member=members, how=st.sampled_from(["says all", "says little", "says what it owns", "hears nothing"]))
    def beat(self, member: _Consumer, how: str) -> None:
        if member not in self.all:
            return
        member.hears = how != "hears nothing"
        if how == "says little" and member.epoch and not member.says_all:
            member.beat(owned=None)
        else:
            self._beat(member, is_full=how == "says all")
        member.hears = True

    @rule(rounds=st.integers(1, 3))
    def all_beat(self, rounds: int) -> None:
        for _ in range(rounds):
            for member in self.all:
                self._beat(member)
                owners(*self.all)

    def _beat(self, member: _Consumer, *, is_full: bool = False) -> None:
        if member.epoch == 0:
            member.join()
        else:
            member.beat(is_full=is_full)

    @rule(member=members, topics=st.sets(st.sampled_from(TOPICS), min_size=1))
    def subscribe(self, member: _Consumer, topics: set[str]) -> None:
        member.topics = frozenset(topics)
        if member in self.all and member.epoch:
            member.beat(is_full=True)

    @rule(member=members, how=st.sampled_from(["leaves", "leaves for a while", "dies", "is slow", "repeats itself"]))
    def misses(self, member: _Consumer, how: str) -> None:
        if member not in self.all or (len(self.all) <= LEFT_MIN and how in ("leaves", "dies")):
            return
        if how == "is slow":
            member.gives_up = not member.gives_up
        elif how == "repeats itself":
            if member.epoch > 1:
                member.beat(epoch=member.epoch + 1 - 2 * (self.offset % 2))  # one ahead, or behind
        else:
            self.all.remove(member)
            if how != "dies" and member.epoch:
                before = member.member_id, member.epoch
                member.owned = {}
                stays = how == "leaves for a while" and member.instance_id is not None
                answer = member.beat(epoch=-2 if stays else -1, owned=None)
                if answer is not None and not answer.error_code and not stays:
                    self.former.append(before)
                    self._refuse_former()

    @precondition(lambda self: any(member.epoch and member.instance_id for member in self.all))
    @rule(target=members, topics=st.sampled_from([None, {"t", "u"}]))
    def another_takes_the_name(self, topics: set[str] | None) -> _Consumer:
        """A process that is started anew, after it has left for a while."""
        before = next(member for member in self.all if member.epoch and member.instance_id)
        self.all.remove(before)
        before.owned = {}
        before.beat(epoch=-2, owned=None)
        names = topics or before.topics
        member = _Consumer(self.world, *names, instance_id=before.instance_id, assignor=self.assignor)
        self.all.append(member)
        answer = member.join()
        member.met["names that came back"] += answer is not None and not answer.error_code
        return member

    @rule(member=members)
    def commits(self, member: _Consumer) -> None:
        """Of its epoch; those who have left are refused for good."""
        self._refuse_former()
        if member in self.all and member.epoch:
            hosted = self.world.coordinator._groups.get("g")
            known = None if hosted is None else hosted.group.core.members.get(member.member_id)  # type: ignore[union-attr]
            if known is not None and known.epoch == member.epoch:
                self._commit(member.member_id, member.epoch)
                member.met["commits taken"] += 1
            else:
                with pytest.raises(KafkaError):
                    self._commit(member.member_id, member.epoch)

    def _refuse_former(self) -> None:
        for member_id, epoch in self.former:
            with pytest.raises(KafkaError):
                self._commit(member_id, epoch)
            self.met["commits of former members"] += 1

    def _commit(self, member_id: str, epoch: int) -> None:
        self.offset += 1
        self.world.commit("g", {TopicPartition("t", 0): self.offset}, generation=epoch, member_id=member_id)

    @rule(name=st.sampled_from(TOPICS), more=st.integers(0, 4))
    def change_topic(self, name: str, more: int) -> None:
        if more:
            self.world.make_topic(name, self.world.topics.counts().get(name, 0) + more)
        else:
            self.world.delete_topic(name)

    @rule(duration_ms=st.sampled_from([10, HEARTBEAT_MS, HEARTBEAT_MS, SESSION_MS - 1, SESSION_MS + 1, REBALANCE_MS]))
    def wait(self, duration_ms: int) -> None:
        self.world.pass_ms(duration_ms)
        self._give_up_what_is_lost()

    def _give_up_what_is_lost(self) -> None:
        """A consumer that the coordinator may have given up has given up, too."""
        now = self.world.loop.time()
        for member in self.all:
            if (now - member.last_answer) * 1000 >= SESSION_MS or self._is_overdue(member):
                member.epoch, member.owned, member.member_id = 0, {}, ""

    def _is_overdue(self, member: _Consumer) -> bool:
        """It has not given up what it was to within its rebalance time-out."""
        return (self.world.loop.time() - member.answered_whole) * 1000 >= REBALANCE_MS

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

    @rule(is_too_large=st.booleans())
    def refuse_for_a_heartbeat(self, is_too_large: bool) -> None:
        self.world.log.refusal = ErrorCode.MESSAGE_TOO_LARGE if is_too_large else ErrorCode.NOT_ENOUGH_REPLICAS
        self.all_beat(1)
        self.world.log.refusal = None

    @precondition(lambda self: len(self.all) < MEMBERS_MAX)
    @rule(rounds=st.sampled_from([1, 3, REBALANCE_MS // HEARTBEAT_MS + 1]))
    def one_holds_on(self, rounds: int) -> None:
        """To what it is to give up for another one, until that is served or the time for it is over."""
        holder = max(self.all, key=lambda member: sum(map(len, member.owned.values())))
        holder.gives_up = False
        self.join(set(holder.topics), None)
        for _ in range(rounds):
            self.all_beat(1)
            self.wait(HEARTBEAT_MS)
        holder.gives_up = True
        self.all_beat(1)

    @rule(lost_max=st.sampled_from([0, 1, 2, 99]), rounds=st.integers(1, 2), leaves=st.booleans())
    def fall_one_after_another(self, lost_max: int, rounds: int, leaves: bool) -> None:
        """The coordinator falls before replicas have what members did, and so does the one that has some of it."""
        self.world.log.holds_back = True
        if leaves and len(self.all) > LEFT_MIN:
            member = self.all.pop(0)
            member.owned = {}
            member.beat(epoch=-1, owned=None)
        else:
            self.world.make_topic("t", self.world.topics.counts().get("t", 0) + 3)
        self.all_beat(rounds)
        self.fail_over(lost_max)
        self.all_beat(rounds)
        self.fail_over(99)
        self.replicas_lag(ErrorCode.NONE)
        if len(self.all) < MEMBERS_MAX:
            self.join({"t"}, None)  # before anybody else is heard of
            self.nobody_owns_what_another_owns()
        self.all_beat(rounds)

    @rule(lost_max=st.sampled_from([0, 0, 1, 2, 99]))
    def fail_over(self, lost_max: int) -> None:
        """To another coordinator, which may lack what was not committed; what it has of that is not committed yet."""
        partition, log = self.world.partition_of("g"), self.world.log
        self.epoch += 1
        self.world.resign("g")
        batches, committed = log.batches.get(partition, []), log.high_watermarks.get(partition, 0)
        for _ in range(lost_max):
            if not batches or base_offset(batches[-1]) < committed:
                break
            log.end_offsets[partition] = base_offset(batches.pop())
            self.met["coordinators that lack what was uncommitted"] += 1
        self.met["coordinators that have what is uncommitted"] += log.end_offsets.get(partition, 0) > committed
        log.held.clear()
        log.late.clear()
        self.world.elect("g", self.epoch)

    @property
    def met(self) -> Counter[str]:
        return _Consumer.met

    @invariant()
    def nobody_is_left_over(self) -> None:
        """What goes with members is there for members only, and each has a session."""
        group = self.world.coordinator._groups.get("g") if hasattr(self, "world") else None
        if group is None or not isinstance(group.group, HostedConsumerGroup):
            return
        hosted, core = group.group, group.group.core
        assert hosted.deadlines.keys() == core.members.keys()
        assert {key.member_id for key in group.timers} <= core.members.keys()
        assert core.targets.keys() <= core.members.keys()
        names = {each.instance_id: each.member_id for each in core.members.values() if each.instance_id is not None}
        assert core.static_members == names
        self.met["waits for others"] += any(
            each.state is MemberState.UNRELEASED_PARTITIONS for each in core.members.values()
        )

    @invariant()
    def nobody_owns_what_another_owns(self) -> None:
        if hasattr(self, "world"):
            owners(*self.all)

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
        for member in self.all:
            member.gives_up = True
        names = set()
        for member in list(self.all):  # of two with one name one would wait for ever
            if member.instance_id in names:
                self.all.remove(member)
            elif member.instance_id is not None:
                names.add(member.instance_id)
        for _ in range((SESSION_MS + REBALANCE_MS) // HEARTBEAT_MS + 8):
            for member in self.all:
                self._beat(member)
                self.nobody_owns_what_another_owns()
            self.world.pass_ms(HEARTBEAT_MS)
            self._give_up_what_is_lost()
        if not self.all:
            return
        counts = self.world.topics.counts()
        subscribed = {name for member in self.all for name in member.topics if name in counts}
        assert len(owners(*self.all)) == sum(counts[name] for name in subscribed)
        assert self.world.hosted().state is ConsumerGroupState.STABLE
        assert {member.epoch for member in self.all} == {self.world.hosted().core.epoch}
        assert self.world.hosted().core.members.keys() == {member.member_id for member in self.all}
        if self.assignor == "uniform":
            self._is_balanced()

    def _is_balanced(self) -> None:
        """No partition could move to a member that has at least two less."""
        sizes = {member.member_id: sum(map(len, member.owned.values())) for member in self.all}
        for owner in self.all:
            for topic_id in owner.owned:
                name = self.world.topics.name(topic_id)
                for other in self.all:
                    assert name not in other.topics or sizes[owner.member_id] - sizes[other.member_id] < 2


def _durable(world: ConsumerWorld) -> dict[str, Any]:
    return {group_id: _told(handle.group) for group_id, handle in world.coordinator._groups.items()}


def _told(group: Group | HostedConsumerGroup) -> dict[str, Any]:
    assert isinstance(group, HostedConsumerGroup)
    fields = set(ConsumerGroup.__slots__)
    return {name: getattr(group.core, name) for name in sorted(fields)}


def test_a_group_keeps_its_promises_whatever_comes_in_any_order() -> None:
    _Consumer.met.clear()
    run_state_machine_as_test(
        AnyOrder,
        settings=settings(
            max_examples=examples(40), stateful_step_count=30, deadline=None, database=None, derandomize=True
        ),
    )
    assert not [what for what in TO_BE_MET if not _Consumer.met[what]], "what is not met proves nothing"
