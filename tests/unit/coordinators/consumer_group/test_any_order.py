"""A consumer group under everything that may happen to it, in any order, with replicas that lag and coordinators that
change.

At every step no two members own the same partition, as they learnt from their heartbeats; durable state is what a load
of the log makes of it; and when all is quiet, every partition is owned, balanced, and the group is stable.
"""

from __future__ import annotations

from typing import Any

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
)

from barnabas.coordinators.consumer_group.group import ConsumerGroup
from barnabas.coordinators.consumer_group.hosted import HostedConsumerGroup
from barnabas.coordinators.consumer_group.records import partitions_of
from barnabas.coordinators.consumer_group.states import ConsumerGroupState
from barnabas.coordinators.group.group import Group
from barnabas.wire.errors import ErrorCode
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

MEMBERS_MAX = 5
LEFT_MIN = 1
TOPICS = ("t", "u")


class _Consumer(NextMember):
    """As clients do, it gives up everything before it joins again, or when it has not been answered for so long that
    its session has ended.
    """

    last_answer = 0.0
    answered_whole = 0.0
    """When it last owned all, and no more, than it was told."""

    def _answered(self, answer: Any) -> None:
        super()._answered(answer)
        if self.epoch == 0:
            self.member_id = ""  # as one that is started again; the former is fenced for the rest of its session
        now = self.last_answer = self.world.loop.time()
        if answer.assignment is None or partitions_of(answer.assignment.topic_partitions) == self.owned:
            self.answered_whole = now


class AnyOrder(RuleBasedStateMachine):
    """See the module."""

    members = Bundle("members")

    @initialize(target=members, assignor=st.sampled_from(["uniform", "range"]), is_slow=st.booleans())
    def begin(self, assignor: str, is_slow: bool) -> MultipleResults[_Consumer]:
        self.assignor = assignor
        self.world = ConsumerWorld(FakeTopics(t=3))
        self.epoch = 1
        self.all: list[_Consumer] = [_Consumer(self.world, assignor=assignor) for _ in range(2)]
        self.all_beat(3)
        self.all[0].gives_up = not is_slow
        return multiple(*self.all)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self._calm_down()
        self.world.close()

    @precondition(lambda self: len(self.all) < MEMBERS_MAX)
    @rule(
        target=members,
        topics=st.sampled_from([{"t"}, {"t"}, {"u"}, {"t", "u"}]),
        name=st.sampled_from([None, None, "a"]),
    )
    def join(self, topics: set[str], name: str | None) -> _Consumer:
        member = _Consumer(self.world, *topics, instance_id=name, assignor=self.assignor)
        self.all.append(member)
        member.join()
        return member

    @rule(member=members, is_full=st.booleans())
    def beat(self, member: _Consumer, is_full: bool) -> None:
        if member in self.all:
            self._beat(member, is_full=is_full)

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
                member.beat(epoch=member.epoch - 1)
        else:
            self.all.remove(member)
            if how != "dies" and member.epoch:
                member.owned = {}
                stays = how == "leaves for a while" and member.instance_id is not None
                member.beat(epoch=-2 if stays else -1, owned=None)

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

    @rule(loses=st.booleans())
    def fail_over(self, loses: bool) -> None:
        """To another coordinator, which may lack what was not committed."""
        partition, log = self.world.partition_of("g"), self.world.log
        self.epoch += 1
        self.world.resign("g")
        lost = len(log.held) if loses else 0
        if lost:
            del log.batches[partition][-lost:]
            kept = log.records(partition)
            log.end_offsets[partition] = kept[-1].offset + 1 if kept else 0
        log.held.clear()
        log.late.clear()
        self.world.elect("g", self.epoch)

    @invariant()
    def nobody_owns_what_another_owns(self) -> None:
        if hasattr(self, "world"):
            owners(*self.all)

    @invariant()
    def the_log_says_what_the_state_says(self) -> None:
        if not hasattr(self, "world"):
            return
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
                self._beat(member, is_full=member.error is not ErrorCode.NONE)
                self.nobody_owns_what_another_owns()
            self.world.pass_ms(HEARTBEAT_MS)
            self._give_up_what_is_lost()
        if not self.all:
            return
        counts = self.world.topics.counts()
        subscribed = {name for member in self.all for name in member.topics if name in counts}
        assert len(owners(*self.all)) == sum(counts[name] for name in subscribed)
        assert self.world.hosted().state is ConsumerGroupState.STABLE
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


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=examples(25), stateful_step_count=30, deadline=None, database=None, derandomize=True
)
