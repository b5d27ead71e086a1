"""The controller's context: what it answers, and that its counts are those of a recount."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from barnabas.controller.context import ControllerContext
from barnabas.controller.controller_counts import ControllerCounts
from barnabas.controller.known_brokers import ContextError
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.live_broker import LiveBroker
from barnabas.controller.partition_states import PartitionState
from barnabas.controller.replica_states import PartitionReplica, ReplicaState
from barnabas.coordination.layout.brokers import BrokerRegistration
from barnabas.coordination.layout.topics import ReplicaAssignment
from barnabas.kernel.ids import Uuid
from barnabas.wire.topics import TopicPartition
from tests.support.examples import examples

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
PARTITIONS = [TopicPartition(topic, partition) for topic in ("a", "b", "c") for partition in (0, 1, 2)]
FIRST_ID, SECOND_ID = Uuid(b"1" * 16), Uuid(b"2" * 16)


def broker(broker_id: int, epoch: int = 100) -> LiveBroker:
    return LiveBroker(broker_id, epoch, BrokerRegistration((), 0))


def filled() -> ControllerContext:
    context = ControllerContext(5, 8)
    for broker_id in (1, 2, 3):
        context.add_live_broker(broker(broker_id))
    context.add_topic("a", FIRST_ID)
    context.add_topic("b")
    context.set_assignment(A0, ReplicaAssignment((1, 2)))
    context.set_assignment(A1, ReplicaAssignment((2,)))
    context.set_assignment(B0, ReplicaAssignment((3, 1)))
    for partition, leader, isr in ((A0, 1, (1, 2)), (A1, 2, (2,)), (B0, 1, (1, 3))):
        context.set_leadership(partition, LeaderAndIsr(leader, 6, isr, 5))
    return context


def test_a_broker_that_shuts_down_is_online_only_for_those_who_ask() -> None:
    context = filled()
    context.begin_shutdown(1)
    assert context.live_brokers == (2, 3)
    assert list(context.live_or_shutting_down_brokers) == [1, 2, 3]
    assert context.online_replicas(A0) == (2,)
    assert context.online_replicas(A0, include_shutting_down=True) == (1, 2)
    assert context.with_offline_leader(context.partitions_with_leadership) == [A0, B0]
    assert context.counts().active_broker_count == 3
    with pytest.raises(ContextError, match="broker 9 cannot shut down"):
        context.begin_shutdown(9)


def test_a_broker_that_comes_back_starts_with_nothing_held_against_it() -> None:
    context = filled()
    context.begin_shutdown(1)
    context.log_dirs_failed(1, [A0])
    context.remove_live_broker(1)
    assert not context.is_replica_online(1, A0, include_shutting_down=True)
    context.add_live_broker(broker(1, 200))
    assert context.is_replica_online(1, A0)
    assert context.shutting_down_brokers == ()
    assert context.live_or_shutting_down_brokers[1].epoch == 200


def test_a_replica_in_a_failed_log_directory_is_offline() -> None:
    context = filled()
    context.log_dirs_failed(1, [A0])
    assert (context.is_replica_online(1, A0), context.is_replica_online(1, B0)) == (False, True)
    assert context.with_offline_leader(context.partitions_with_leadership) == [A0]


def test_topic_ids_are_one_to_one() -> None:
    context = filled()
    assert (context.topic_id("a"), context.topic_id("b"), context.topic_id("z")) == (FIRST_ID, None, None)
    with pytest.raises(ContextError, match="it cannot get the id"):
        context.add_topic("a", SECOND_ID)
    with pytest.raises(ContextError, match="belongs to topic a"):
        context.add_topic("b", FIRST_ID)
    context.add_topic("b", SECOND_ID)
    assert context.topic_name(SECOND_ID) == "b"
    context.remove_topic("b")
    assert (context.topic_name(SECOND_ID), context.topics) == (None, ("a",))


def test_partitions_of_brokers_and_leaders_to_move() -> None:
    context = filled()
    assert context.partitions_on_broker(1) == (A0, B0)
    assert context.partitions_led_by(1) == (A0, B0)
    assert context.partitions_led_by(2) == ()  # a-1 has no other replica
    context.queue_for_deletion(["b"])
    assert context.partitions_led_by(1) == (A0,)
    context.set_assignment(A0, ReplicaAssignment((2, 3)))
    assert context.partitions_on_broker(1) == (B0,)
    assert context.replicas_on_broker(3) == (PartitionReplica(B0, 3), PartitionReplica(A0, 3))


def test_leader_epoch_that_stop_replica_carries() -> None:
    context = filled()
    assert context.leader_epoch(A0) == 6
    context.remove_leadership(A0)
    assert context.leader_epoch(A0) == -1
    context.queue_for_deletion(["a"])
    assert context.leader_epoch(A0) == -2


def test_what_is_not_known_cannot_be_changed() -> None:
    context = filled()
    with pytest.raises(ContextError, match="no such topic"):
        context.set_assignment(TopicPartition("z", 0), ReplicaAssignment((1,)))
    missing = TopicPartition("a", 7)
    with pytest.raises(ContextError, match="a-7 has no assignment"):
        context.set_partition_state(missing, PartitionState.NEW)
    with pytest.raises(ContextError, match="a-7 has no assignment"):
        context.set_leadership(missing, LeaderAndIsr(1, 0, (1,), 5))
    with pytest.raises(ContextError, match="topics z cannot be deleted"):
        context.queue_for_deletion(["a", "z"])
    assert context.topics_queued_for_deletion == ()
    assert context.mark_ineligible_for_deletion(["a"]) == ()


def test_a_replica_that_is_being_added_is_imbalanced_until_it_is_in_sync() -> None:
    context = filled()
    assert context.counts().preferred_replica_imbalance_count == 1  # b-0 is led by 1, not by 3
    context.set_assignment(A0, ReplicaAssignment((3, 1, 2), adding_replicas=(3,)))
    assert context.counts().preferred_replica_imbalance_count == 2
    context.set_leadership(A0, LeaderAndIsr(1, 7, (1, 2, 3), 5))
    assert context.counts().preferred_replica_imbalance_count == 1


def calls_of(work: Callable[[], object]) -> int:
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def test_a_broker_is_older_than_a_state_of_the_former_controllers_term_alone() -> None:
    """Since when one of an earlier term is written is not known: the broker may have started anew after that."""
    context = ControllerContext(5, former_began=50)
    of_former, of_earlier = (LeaderAndIsr(1, 0, (1,), epoch) for epoch in (4, 3))
    assert [context.is_older(registered, of_former) for registered in (49, 50, 60)] == [True, False, False]
    assert not context.is_older(49, of_earlier)


def test_gauges_are_read_at_the_same_cost_however_many_topics_are_to_be_deleted() -> None:
    def reading(topics: int) -> int:
        context = ControllerContext()
        for number in range(topics):
            context.add_topic(f"t{number}")
            context.set_assignment(TopicPartition(f"t{number}", 0), ReplicaAssignment((1, 2)))
        context.queue_for_deletion(context.topics)
        assert context.counts().replicas_to_delete_count == 2 * topics
        return calls_of(context.counts)

    assert reading(500) == reading(5)


class CountsAreThoseOfARecount(RuleBasedStateMachine):
    """Random changes, and a model that remembers facts only and counts anew each time."""

    partitions = st.sampled_from(PARTITIONS)
    topics = st.sampled_from(["a", "b", "c"])
    replica_lists = st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True).map(tuple)

    def __init__(self) -> None:
        super().__init__()
        self.context = ControllerContext()
        self.assignments: dict[TopicPartition, ReplicaAssignment] = {}
        self.leaders: dict[TopicPartition, LeaderAndIsr] = {}
        self.partition_states: dict[TopicPartition, PartitionState] = {}
        self.replica_states: dict[PartitionReplica, ReplicaState] = {}
        self.known: set[str] = set()
        self.queued: set[str] = set()
        self.started: set[str] = set()
        self.ineligible: set[str] = set()

    @rule(partition=partitions, replicas=replica_lists, added=st.booleans())
    def assign(self, partition: TopicPartition, replicas: tuple[int, ...], added: bool) -> None:
        assignment = ReplicaAssignment(replicas, adding_replicas=replicas[:1] if added else ())
        self.context.add_topic(partition.topic)
        self.context.set_assignment(partition, assignment)
        self.known.add(partition.topic)
        self.assignments[partition] = assignment

    @rule(topic=topics, wanted=st.dictionaries(st.integers(0, 2), st.tuples(replica_lists, st.booleans())))
    def assign_all(self, topic: str, wanted: dict[int, tuple[tuple[int, ...], bool]]) -> None:
        assignments = {
            TopicPartition(topic, number): ReplicaAssignment(replicas, adding_replicas=replicas[:1] if added else ())
            for number, (replicas, added) in wanted.items()
        }
        self.context.add_topic(topic)
        self.context.set_assignments(topic, assignments)
        self.known.add(topic)
        self.assignments |= assignments

    @rule(data=st.data(), leader=st.integers(-1, 4), isr=replica_lists)
    def lead(self, data: st.DataObject, leader: int, isr: tuple[int, ...]) -> None:
        if self.assignments:
            partition = data.draw(st.sampled_from(sorted(self.assignments)))
            self.leaders[partition] = LeaderAndIsr(leader, 0, isr, 0)
            self.context.set_leadership(partition, self.leaders[partition])

    @rule(data=st.data(), wanted=st.lists(st.tuples(st.integers(-1, 4), replica_lists), max_size=5))
    def lead_many(self, data: st.DataObject, wanted: list[tuple[int, tuple[int, ...]]]) -> None:
        if self.assignments:
            assigned = st.sampled_from(sorted(self.assignments))
            led = {data.draw(assigned): LeaderAndIsr(leader, 0, isr, 0) for leader, isr in wanted}
            self.leaders |= led
            self.context.set_leaderships(led)

    @rule(partition=partitions)
    def lose_leadership(self, partition: TopicPartition) -> None:
        self.context.remove_leadership(partition)
        self.leaders.pop(partition, None)

    @rule(data=st.data(), state=st.sampled_from(PartitionState))
    def move_partition(self, data: st.DataObject, state: PartitionState) -> None:
        if self.assignments:
            partition = data.draw(st.sampled_from(sorted(self.assignments)))
            self.context.set_partition_state(partition, state)
            self.partition_states[partition] = state

    @rule(data=st.data(), broker_id=st.integers(1, 4), state=st.sampled_from(ReplicaState))
    def move_replica(self, data: st.DataObject, broker_id: int, state: ReplicaState) -> None:
        if self.assignments:
            replica = PartitionReplica(data.draw(st.sampled_from(sorted(self.assignments))), broker_id)
            self.context.set_replica_state(replica, state)
            self.replica_states[replica] = state

    @rule(topic=topics)
    def queue(self, topic: str) -> None:
        if topic in self.known:
            self.context.queue_for_deletion([topic, topic])
            self.queued.add(topic)

    @rule(topic=topics)
    def begin(self, topic: str) -> None:
        if topic in self.queued:
            self.context.begin_deletion([topic])
            self.started.add(topic)

    @rule(topic=topics, hold=st.booleans())
    def hold(self, topic: str, hold: bool) -> None:
        if not hold:
            self.context.mark_eligible_for_deletion([topic])
            self.ineligible.discard(topic)
        elif self.context.mark_ineligible_for_deletion([topic]):
            self.ineligible.add(topic)

    @rule(topic=topics)
    def remove(self, topic: str) -> None:
        self.context.remove_topic(topic)
        for facts in (self.assignments, self.leaders, self.partition_states):
            for partition in [partition for partition in facts if partition.topic == topic]:
                del facts[partition]
        for names in (self.known, self.queued, self.started, self.ineligible):
            names.discard(topic)

    def replicas(self, topic: str) -> list[PartitionReplica]:
        return [
            PartitionReplica(partition, replica)
            for partition, assignment in self.assignments.items()
            if partition.topic == topic
            for replica in assignment.replicas
        ]

    def is_imbalanced(self, partition: TopicPartition, known: LeaderAndIsr) -> bool:
        assignment = self.assignments[partition]
        preferred = assignment.replicas[0]
        if partition.topic in self.queued:
            return False
        return preferred not in known.isr if preferred in assignment.adding_replicas else preferred != known.leader

    @invariant()
    def counts_are_right(self) -> None:
        doomed = [self.context.replica_state(replica) for topic in self.queued for replica in self.replicas(topic)]
        assert self.context.counts() == ControllerCounts(
            global_topic_count=len(self.known),
            global_partition_count=len(self.leaders),
            offline_partitions_count=sum(
                state is PartitionState.OFFLINE and partition.topic not in self.started
                for partition, state in self.partition_states.items()
            ),
            preferred_replica_imbalance_count=sum(self.is_imbalanced(*item) for item in self.leaders.items()),
            topics_to_delete_count=len(self.queued),
            replicas_to_delete_count=sum(state is not ReplicaState.DELETION_SUCCESSFUL for state in doomed),
            topics_ineligible_to_delete_count=len(self.ineligible),
            replicas_ineligible_to_delete_count=doomed.count(ReplicaState.DELETION_INELIGIBLE),
            active_broker_count=0,
        )

    @invariant()
    def indexes_are_right(self) -> None:
        for broker_id in range(1, 5):
            assert set(self.context.partitions_on_broker(broker_id)) == {
                partition for partition, assignment in self.assignments.items() if broker_id in assignment.replicas
            }
        for state in PartitionState:
            assert set(self.context.partitions_in(state)) == {
                partition for partition, known in self.partition_states.items() if known is state
            }

    @invariant()
    def questions_about_replicas_are_answered_right(self) -> None:
        for topic in ("a", "b", "c"):
            states: list[Any] = [self.context.replica_state(replica) for replica in self.replicas(topic)]
            for state in ReplicaState:
                assert self.context.are_all_replicas_in(topic, state) == all(known is state for known in states)
                assert self.context.is_any_replica_in(topic, state) == (state in states)
                assert len(self.context.replicas_in(topic, state)) == states.count(state)


TestCountsAreThoseOfARecount = CountsAreThoseOfARecount.TestCase
TestCountsAreThoseOfARecount.settings = settings(max_examples=examples(30), stateful_step_count=40)
