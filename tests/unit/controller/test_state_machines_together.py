"""Both state machines against brokers that come and go, and leaders that change the ISR under them."""

from __future__ import annotations

import dataclasses
import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from barnabas.controller.elections import ElectionStrategy
from barnabas.controller.partition_state_machine import PartitionStateMachine
from barnabas.controller.partition_states import PartitionState
from barnabas.controller.replica_state_machine import ReplicaStateMachine
from barnabas.controller.replica_states import ReplicaState
from barnabas.controller.settings import ControllerSettings
from barnabas.wire.topics import TopicPartition
from tests.support.examples import examples
from tests.unit.controller.memory_store import LISTENER, Cluster

PARTITIONS = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]


class Elections(RuleBasedStateMachine):
    """The store sees every leadership there ever was, and so do the brokers."""

    @initialize(
        seed=st.integers(0, 2**32),
        unclean=st.booleans(),
        spread=st.tuples(*(st.permutations([1, 2, 3, 4]).map(lambda order: order[:3]) for _ in PARTITIONS)),
    )
    def begin(self, seed: int, unclean: bool, spread: tuple[list[int], ...]) -> None:
        self.random = random.Random(seed)
        self.unclean = unclean
        self.cluster = Cluster(live=(1, 2, 3, 4))
        self.epochs: dict[tuple[TopicPartition, int], int] = {}
        self.last_epoch: dict[TopicPartition, int] = {}
        settings_ = ControllerSettings(1, LISTENER, unclean)
        self.partition_machine = PartitionStateMachine(self.cluster.context, settings_)
        self.replica_machine = ReplicaStateMachine(self.cluster.context, settings_)
        for partition, replicas in zip(PARTITIONS, spread, strict=True):
            self.cluster.assign(partition, *replicas)
        self.cluster.store.before_batch = self.leader_changes_the_isr
        self.cluster.shell.run(self.replica_machine.start_up())
        self.cluster.shell.run(self.partition_machine.start_up())

    def leader_changes_the_isr(self) -> None:
        """What a leader does by itself: same epoch, another ISR with itself in it, another version."""
        partition = self.random.choice(PARTITIONS)
        known = self.cluster.store.leadership(partition)
        if known is None or known.leader < 0 or self.random.random() < 0.5:
            return
        others = [replica for replica in self.cluster.context.assignment(partition).replicas if replica != known.leader]
        isr = (known.leader, *self.random.sample(others, self.random.randint(0, len(others))))
        self.cluster.store.put(partition, dataclasses.replace(known, isr=isr))

    @rule(broker_id=st.integers(1, 4))
    def die(self, broker_id: int) -> None:
        context, shell = self.cluster.context, self.cluster.shell
        if broker_id not in context.live_or_shutting_down_brokers:
            return
        context.remove_live_broker(broker_id)
        lost = context.with_offline_leader(context.partitions_with_leadership)
        shell.run(self.partition_machine.move(lost, PartitionState.OFFLINE))
        shell.run(self.partition_machine.try_online())
        shell.run(self.replica_machine.move(context.replicas_on_broker(broker_id), ReplicaState.OFFLINE))

    @rule(broker_id=st.integers(1, 4))
    def return_(self, broker_id: int) -> None:
        context, shell = self.cluster.context, self.cluster.shell
        if broker_id in context.live_or_shutting_down_brokers:
            return
        self.cluster.start_broker(broker_id)
        shell.run(self.replica_machine.move(context.replicas_on_broker(broker_id), ReplicaState.ONLINE))
        shell.run(self.partition_machine.try_online())

    @rule(strategy=st.sampled_from([ElectionStrategy.PREFERRED, ElectionStrategy.REASSIGN]))
    def elect(self, strategy: ElectionStrategy) -> None:
        online = self.cluster.context.partitions_in(PartitionState.ONLINE)
        self.cluster.shell.run(self.partition_machine.move(online, PartitionState.ONLINE, strategy))

    @rule(broker_id=st.integers(1, 4))
    def shut_down(self, broker_id: int) -> None:
        context = self.cluster.context
        if broker_id in context.live_brokers:
            context.begin_shutdown(broker_id)
            led = context.partitions_led_by(broker_id)
            strategy = ElectionStrategy.CONTROLLED_SHUTDOWN
            self.cluster.shell.run(self.partition_machine.move(led, PartitionState.ONLINE, strategy))

    @invariant()
    def one_leader_in_one_epoch_and_epochs_grow(self) -> None:
        for request in self.cluster.shell.requests:
            if request.api_key.name != "LEADER_AND_ISR":
                continue
            for topic in request.message.topic_states:  # type: ignore[attr-defined]
                for state in topic.partition_states:
                    partition = TopicPartition(topic.topic_name, state.partition_index)
                    assert self.epochs.setdefault((partition, state.leader_epoch), state.leader) == state.leader
        self.cluster.shell.requests.clear()
        for partition in PARTITIONS:
            known = self.cluster.store.leadership(partition)
            if known is not None:
                assert self.epochs.setdefault((partition, known.leader_epoch), known.leader) == known.leader
                assert known.leader_epoch >= self.last_epoch.get(partition, 0)
                self.last_epoch[partition] = known.leader_epoch

    @invariant()
    def what_is_in_sync_is_assigned(self) -> None:
        for partition in PARTITIONS:
            known = self.cluster.store.leadership(partition)
            assert known is not None
            assert known.isr
            assert set(known.isr) <= set(self.cluster.context.assignment(partition).replicas)
            assert known.leader in {-1, *known.isr}

    @invariant()
    def a_partition_is_offline_only_if_nobody_may_lead(self) -> None:
        for partition in self.cluster.context.partitions_in(PartitionState.OFFLINE):
            known = self.cluster.store.leadership(partition)
            assert known is not None
            assigned = self.cluster.context.assignment(partition).replicas
            candidates = self.cluster.context.online_replicas(partition)
            # As long as a member that shuts down is there, nobody who is not in sync may lead; a dying leader may have
            # taken it out of the ISR since.
            unclean = self.unclean and not set(self.cluster.context.shutting_down_brokers) & set(assigned)
            # A dying leader may still have grown the ISR after the election failed; nobody tries again before a broker
            # comes or goes, so what is in sync now does not count here.
            assert not candidates or (not unclean and known.leader not in candidates)


TestElections = Elections.TestCase
TestElections.settings = settings(max_examples=examples(30), stateful_step_count=25)
