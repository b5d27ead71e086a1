"""What the controller knows about the cluster, with the figures for its gauges.

Only the controller's event loop changes it. Everything that is iterated is kept in dicts, never in sets of names, so
that one seed of a simulation gives one order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from barnabas.controller.controller_counts import ControllerCounts
from barnabas.controller.known_brokers import ContextError, KnownBrokers
from barnabas.controller.known_topic import KnownTopic
from barnabas.controller.leadership import LeaderAndIsr, ToldLeadership, ToldOfTopic, nothing_was_told
from barnabas.controller.partition_states import PartitionState
from barnabas.controller.replica_states import PartitionReplica, ReplicaState
from barnabas.controller.settings import VERSIONS_PER_READING
from barnabas.coordination.layout.topics import ReplicaAssignment
from barnabas.kernel.ids import Uuid
from barnabas.wire.sentinels import EPOCH_DURING_DELETE, NO_EPOCH
from barnabas.wire.topics import TopicPartition

NO_REPLICAS = ReplicaAssignment(())


class ControllerContext(KnownBrokers):
    """Brokers, topics, assignments, leadership, states and deletions, as the active controller sees them.

    A new one is empty. `epoch` and `epoch_version` are the controller's epoch and the version of its znode, on which
    every write depends; `told_leadership` is what this broker has heard from controllers. This term and the one before
    it began with the transactions `began` and `former_began`.
    """

    def __init__(
        self,
        epoch: int = 0,
        epoch_version: int = 0,
        told_leadership: ToldLeadership = nothing_was_told,
        *,
        began: int = 0,
        former_began: int = 0,
    ) -> None:
        super().__init__()
        self.epoch = epoch
        self.epoch_version = epoch_version
        self._began = began
        self._former_began = former_began
        self._topics: dict[str, KnownTopic] = {}
        self._topic_names: dict[Uuid, str] = {}
        self._reassigned: dict[TopicPartition, None] = {}
        self._leadership: dict[TopicPartition, LeaderAndIsr] = {}
        self._partition_states: dict[TopicPartition, PartitionState] = {}
        self._partitions_in_state: dict[PartitionState, dict[TopicPartition, None]] = {
            state: {} for state in PartitionState
        }
        # By broker, since a key for each replica is half of what a controller of very many partitions would hold.
        self._replica_states: dict[int, dict[TopicPartition, ReplicaState]] = {}
        self._partitions_on_broker: dict[int, dict[TopicPartition, None]] = {}
        self._queued_for_deletion: dict[str, None] = {}
        self._deletion_started: dict[str, None] = {}
        self._ineligible_for_deletion: dict[str, None] = {}
        self.unreadable_topics: dict[str, None] = {}
        """Topics whose assignment cannot be read, as last seen."""
        self.known_assignments: dict[str, int] = {}
        """By topic, the transaction that wrote the assignment which is known here (`TopicReader.known`)."""
        self.unreadable_partitions: dict[TopicPartition, None] = {}
        """Partitions whose state cannot be read, as last seen."""
        self.lost_members: dict[TopicPartition, dict[int, None]] = {}
        """Replicas whose broker stopped or restarted while the state of their partition could not be read."""
        self.put_back_partitions: dict[TopicPartition, None] = {}
        """Partitions whose state was restored in a leader epoch that brokers may not know."""
        self.made_again: dict[TopicPartition, None] = {}
        """Those of the unreadable ones whose state was deleted, and has not as many versions yet as it must have."""
        self.versions_left = VERSIONS_PER_READING
        """How many more of them may be written before `ControllerTerm.read_again`."""
        self._told_leadership = told_leadership
        self._offline_partitions_count = 0
        self._preferred_replica_imbalance_count = 0
        self._replicas_to_delete_count = self._replicas_ineligible_to_delete_count = 0

    @property
    def is_complete(self) -> bool:
        """Whether all topics and partition states could be read."""
        known = map(self._leadership.__contains__, self.unreadable_partitions)
        return all(map(self.has_topic, self.unreadable_topics)) and all(known)

    # Topics and assignments.

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._topics)

    def has_topic(self, topic: str) -> bool:
        return topic in self._topics

    def add_topic(self, topic: str, topic_id: Uuid | None = None) -> None:
        """Adds a topic without partitions; a known one may get the id that it lacks.

        Raises `ContextError` when the topic has another id, or another topic has the id.
        """
        known = self._topics.get(topic)
        if topic_id is not None:
            if known is not None and known.topic_id not in {None, topic_id}:
                raise ContextError(f"topic {topic} has the id {known.topic_id}; it cannot get the id {topic_id}")
            holder = self._topic_names.get(topic_id, topic)
            if holder != topic:
                raise ContextError(f"the id {topic_id} belongs to topic {holder}; {topic} cannot get it")
        known = self._topics.setdefault(topic, KnownTopic())
        if topic_id is not None:
            known.topic_id = topic_id
            self._topic_names[topic_id] = topic

    def remove_topic(self, topic: str) -> None:
        """Forgets a topic with its partitions and its deletion; does nothing for an unknown one."""
        known = self._topics.get(topic)
        if known is None:
            return
        # While these are counted still; what is queued for deletion is not.
        self.remove_partitions(self.partitions_of(topic))
        for dropped in (self._queued_for_deletion, self._deletion_started, self._ineligible_for_deletion):
            dropped.pop(topic, None)
        self.known_assignments.pop(topic, None)
        if known.topic_id is not None:
            del self._topic_names[known.topic_id]
        del self._topics[topic]

    def remove_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets partitions, all of which their topic has."""
        for partition in partitions:
            self.remove_leadership(partition)
            self._drop_partition(partition)

    def _drop_partition(self, partition: TopicPartition) -> None:
        replicas = self.assignment(partition).replicas
        self._count_replicas((partition,), replicas, -1)
        del self._topics[partition.topic].partitions[partition]
        self.put_back_partitions.pop(partition, None)
        for dropped in (self._reassigned, self.unreadable_partitions, self.lost_members, self.made_again):
            dropped.pop(partition, None)
        for replica in replicas:
            self._forget_replica_state(partition, replica)
        state = self._partition_states.pop(partition, PartitionState.NON_EXISTENT)
        self._partitions_in_state[state].pop(partition, None)
        if state is PartitionState.OFFLINE and partition.topic not in self._deletion_started:
            self._offline_partitions_count -= 1

    def topic_id(self, topic: str) -> Uuid | None:
        known = self._topics.get(topic)
        return None if known is None else known.topic_id

    def topic_name(self, topic_id: Uuid) -> str | None:
        return self._topic_names.get(topic_id)

    @property
    def partitions(self) -> Iterator[TopicPartition]:
        """Every partition that has an assignment."""
        return (partition for known in self._topics.values() for partition in known.partitions)

    @property
    def reassigned_partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions that gain or lose replicas."""
        return tuple(self._reassigned)

    def is_being_reassigned(self, partition: TopicPartition) -> bool:
        return partition in self._reassigned

    def partitions_of(self, topic: str) -> tuple[TopicPartition, ...]:
        known = self._topics.get(topic)
        return () if known is None else tuple(known.partitions)

    def partition_count(self, topic: str) -> int:
        """The partitions of a topic; none when it is not known."""
        known = self._topics.get(topic)
        return 0 if known is None else len(known.partitions)

    def assignment(self, partition: TopicPartition) -> ReplicaAssignment:
        """Where the partition's replicas are; no replicas for a partition that is not known."""
        known = self._topics.get(partition.topic)
        return NO_REPLICAS if known is None else known.partitions.get(partition, NO_REPLICAS)

    def online_replicas(self, partition: TopicPartition, *, include_shutting_down: bool = False) -> tuple[int, ...]:
        """The assigned replicas that are online, in the order of the assignment."""
        return tuple(
            replica
            for replica in self.assignment(partition).replicas
            if self.is_replica_online(replica, partition, include_shutting_down=include_shutting_down)
        )

    def set_assignment(self, partition: TopicPartition, assignment: ReplicaAssignment) -> None:
        """Gives a partition its replicas. Raises `ContextError` when its topic is not known."""
        known = self._topics.get(partition.topic)
        if known is None:
            raise ContextError(f"{partition.topic}-{partition.partition} cannot get replicas: there is no such topic")
        before = known.partitions.get(partition)
        if before is not None:
            self._preferred_replica_imbalance_count -= self._imbalance(partition)
            self._count_replicas((partition,), before.replicas, -1)
            self._reassigned.pop(partition, None)
        known.partitions[partition] = assignment
        if assignment.is_being_reassigned:
            self._reassigned[partition] = None
        self._count_replicas((partition,), assignment.replicas, 1)
        if before is not None:
            self._preferred_replica_imbalance_count += self._imbalance(partition)

    def set_assignments(self, topic: str, assignments: Mapping[TopicPartition, ReplicaAssignment]) -> None:
        """`set_assignment` for new partitions of one topic; those with the same replicas are counted together."""
        known = self._topics.get(topic)
        if known is None or not known.partitions.keys().isdisjoint(assignments):
            for partition, assignment in assignments.items():
                self.set_assignment(partition, assignment)
            return
        alike: defaultdict[tuple[int, ...], list[TopicPartition]] = defaultdict(list)
        for partition, assignment in assignments.items():
            alike[assignment.replicas].append(partition)
            if assignment.adding_replicas or assignment.removing_replicas:
                self._reassigned[partition] = None
        known.partitions.update(assignments)
        for replicas, partitions in alike.items():
            self._count_replicas(partitions, replicas, 1)

    def _count_replicas(self, partitions: Sequence[TopicPartition], replicas: Iterable[int], step: int) -> None:
        """Counts the replicas of partitions of one topic, all of which have these, or takes them off."""
        name, counted = partitions[0].topic, dict.fromkeys(partitions)
        topic = self._topics[name]
        is_queued = name in self._queued_for_deletion
        if is_queued:
            self._count_deletion(topic, -1)
        for replica in dict.fromkeys(replicas):
            topic.replica_count += step * len(counted)
            states = self._replica_states.get(replica, {})
            for partition in filter(states.__contains__, counted) if states else ():
                topic.replica_states[states[partition]] += step
            on_broker = self._partitions_on_broker.setdefault(replica, {})
            if step > 0:
                on_broker.update(counted)
                continue
            for partition in partitions:
                del on_broker[partition]
            if not on_broker:
                del self._partitions_on_broker[replica]
        if is_queued:
            self._count_deletion(topic, 1)

    def _count_deletion(self, topic: KnownTopic, step: int) -> None:
        """Counts the replicas of a topic that is queued for deletion, or takes them off."""
        states = topic.replica_states
        self._replicas_to_delete_count += step * (topic.replica_count - states[ReplicaState.DELETION_SUCCESSFUL])
        self._replicas_ineligible_to_delete_count += step * states[ReplicaState.DELETION_INELIGIBLE]

    def partitions_on_broker(self, broker_id: int) -> tuple[TopicPartition, ...]:
        return tuple(self._partitions_on_broker.get(broker_id, ()))

    def replicas_on_broker(self, broker_id: int) -> tuple[PartitionReplica, ...]:
        return tuple(PartitionReplica(partition, broker_id) for partition in self.partitions_on_broker(broker_id))

    def replicas_of(self, topic: str) -> tuple[PartitionReplica, ...]:
        return tuple(
            PartitionReplica(partition, replica)
            for partition in self.partitions_of(topic)
            for replica in self.assignment(partition).replicas
        )

    # Leadership.

    def leadership(self, partition: TopicPartition) -> LeaderAndIsr | None:
        return self._leadership.get(partition)

    @property
    def leaderships(self) -> Mapping[TopicPartition, LeaderAndIsr]:
        """Of all partitions that ever had a leader, as it is now."""
        return self._leadership

    def told_leadership(self, topic: str) -> ToldOfTopic | None:
        """What a controller last told this broker about the partitions of the topic with this id; it may be older than
        their znodes. None where that is nothing.
        """
        return self._told_leadership(topic, self.topic_id(topic))

    def last_write_of(self, known: LeaderAndIsr) -> float:
        """The last transaction in which a controller can have written this state: later ones are somebody else's, since
        the term whose epoch it names was over then. Leaders that write ISRs themselves do so, too.
        """
        if known.controller_epoch >= self.epoch:
            return math.inf
        return self._began if known.controller_epoch == self.epoch - 1 else self._former_began

    def is_older(self, broker_epoch: int, state: LeaderAndIsr) -> bool:
        """Whether a broker has certainly not registered since a state was written: by the former controller, that is,
        and before whose term began it did.
        """
        return state.controller_epoch == self.epoch - 1 and broker_epoch < self._former_began

    def set_leadership(self, partition: TopicPartition, leader_and_isr: LeaderAndIsr) -> None:
        """Raises `ContextError` for a partition without an assignment."""
        self.set_leaderships({partition: leader_and_isr})

    def set_leaderships(self, leadership: Mapping[TopicPartition, LeaderAndIsr]) -> None:
        """`set_leadership` of many, in order; quick for partitions of one topic after the other that their preferred
        replicas lead.
        """
        topic: KnownTopic | None = None
        name = None
        for partition, leader_and_isr in leadership.items():
            if partition.topic is not name:
                name = partition.topic
                topic = self._topics.get(name)
            assignment = None if topic is None else topic.partitions.get(partition)
            if assignment is None:
                raise _without_assignment(partition)
            if partition in self._leadership:
                self._preferred_replica_imbalance_count -= self._imbalance(partition)
            self._leadership[partition] = leader_and_isr
            replicas = assignment.replicas
            if not replicas or leader_and_isr.leader != replicas[0] or assignment.adding_replicas:
                self._preferred_replica_imbalance_count += self._imbalance(partition)

    def remove_leadership(self, partition: TopicPartition) -> None:
        imbalance = self._imbalance(partition)
        self._leadership.pop(partition, None)
        self._preferred_replica_imbalance_count -= imbalance

    def leader_epoch(self, partition: TopicPartition) -> int:
        """The leader epoch in StopReplica: -2 for a topic that is queued for deletion, -1 where none is known."""
        if partition.topic in self._queued_for_deletion:
            return EPOCH_DURING_DELETE
        known = self._leadership.get(partition)
        return NO_EPOCH if known is None else known.leader_epoch

    @property
    def partitions_with_leadership(self) -> tuple[TopicPartition, ...]:
        """The partitions that ever had a leader, which brokers are told of."""
        return tuple(self._leadership)

    def with_offline_leader(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions whose known leader is not online, except those of topics that are queued for deletion."""
        return [
            partition
            for partition in partitions
            if partition.topic not in self._queued_for_deletion
            and (known := self._leadership.get(partition)) is not None
            and not self.is_replica_online(known.leader, partition)
        ]

    def partitions_led_by(self, broker_id: int) -> tuple[TopicPartition, ...]:
        """The partitions that a controlled shutdown must move."""
        return tuple(
            partition for partition in self.partitions_on_broker(broker_id) if self.must_leave(partition, broker_id)
        )

    def must_leave(self, partition: TopicPartition, broker_id: int) -> bool:
        """Whether a controlled shutdown of this broker must move the leadership: it is the leader, there are other
        replicas, and the topic is not queued for deletion.
        """
        known = self._leadership.get(partition)
        return (
            known is not None
            and known.leader == broker_id
            and partition.topic not in self._queued_for_deletion
            and len(self.assignment(partition).replicas) > 1
        )

    def _imbalance(self, partition: TopicPartition) -> int:
        """1 for a partition that is not led by its preferred replica, else 0.

        While that replica is being added by a reassignment, what counts is whether it is in sync yet.
        """
        known = self._leadership.get(partition)
        assignment = self.assignment(partition)
        if known is None or not assignment.replicas or partition.topic in self._queued_for_deletion:
            return 0
        preferred = assignment.replicas[0]
        if preferred in assignment.adding_replicas:
            return int(preferred not in known.isr)
        return int(known.leader != preferred)

    # States.

    def partition_state(self, partition: TopicPartition) -> PartitionState:
        return self._partition_states.get(partition, PartitionState.NON_EXISTENT)

    def set_partition_state(self, partition: TopicPartition, state: PartitionState) -> None:
        """Sets a partition's state; the state machine has checked the transition.

        Raises `ContextError` for a partition without an assignment.
        """
        known = self._topics.get(partition.topic)
        if known is None or partition not in known.partitions:
            raise _without_assignment(partition)
        before = self.partition_state(partition)
        self._partitions_in_state[before].pop(partition, None)
        self._partition_states[partition] = state
        self._partitions_in_state[state][partition] = None
        if partition.topic not in self._deletion_started:
            self._offline_partitions_count += (state is PartitionState.OFFLINE) - (before is PartitionState.OFFLINE)

    def partitions_in(self, *states: PartitionState) -> tuple[TopicPartition, ...]:
        """The partitions in one of these states."""
        return tuple(partition for state in states for partition in self._partitions_in_state[state])

    def replica_state(self, replica: PartitionReplica) -> ReplicaState:
        partition, broker_id = replica
        states = self._replica_states.get(broker_id)
        return ReplicaState.NON_EXISTENT if states is None else states.get(partition, ReplicaState.NON_EXISTENT)

    def set_replica_state(self, replica: PartitionReplica, state: ReplicaState) -> None:
        """Sets a replica's state; NON_EXISTENT is the state of all unknown ones."""
        partition, broker_id = replica
        if state is ReplicaState.NON_EXISTENT:
            before = self._forget_replica_state(partition, broker_id)
        else:
            states = self._replica_states.setdefault(broker_id, {})
            before = states.get(partition)
            states[partition] = state
        if broker_id in self.assignment(partition).replicas:
            topic = self._topics[partition.topic]
            is_queued = partition.topic in self._queued_for_deletion
            if is_queued:
                self._count_deletion(topic, -1)
            if before is not None:
                topic.replica_states[before] -= 1
            if state is not ReplicaState.NON_EXISTENT:
                topic.replica_states[state] += 1
            if is_queued:
                self._count_deletion(topic, 1)

    def _forget_replica_state(self, partition: TopicPartition, broker_id: int) -> ReplicaState | None:
        states = self._replica_states.get(broker_id)
        if states is None:
            return None
        before = states.pop(partition, None)
        if not states:
            del self._replica_states[broker_id]
        return before

    def replicas_in(self, topic: str, state: ReplicaState) -> tuple[PartitionReplica, ...]:
        """The topic's assigned replicas in a state."""
        if not self.is_any_replica_in(topic, state):
            return ()
        return tuple(replica for replica in self.replicas_of(topic) if self.replica_state(replica) is state)

    def are_all_replicas_in(self, topic: str, state: ReplicaState) -> bool:
        """True too for a topic without replicas."""
        return self._count_in(topic, state) == (self._topics[topic].replica_count if topic in self._topics else 0)

    def is_any_replica_in(self, topic: str, state: ReplicaState) -> bool:
        return self._count_in(topic, state) > 0

    def _count_in(self, topic: str, state: ReplicaState) -> int:
        known = self._topics.get(topic)
        if known is None:
            return 0
        if state is ReplicaState.NON_EXISTENT:
            return known.replica_count - known.replica_states.total()
        return known.replica_states[state]

    # Deletion of topics.

    def queue_for_deletion(self, topics: Iterable[str]) -> None:
        """Queues topics for deletion, which no longer count for the imbalance. Queueing one twice changes nothing.
        Raises `ContextError`, and queues none, when one is not known.
        """
        wanted = dict.fromkeys(topics)
        unknown = [topic for topic in wanted if topic not in self._topics]
        if unknown:
            raise ContextError(f"topics {', '.join(unknown)} cannot be deleted: they are not known")
        for topic in wanted:
            if topic not in self._queued_for_deletion:
                imbalance = sum(map(self._imbalance, self.partitions_of(topic)))
                self._queued_for_deletion[topic] = None
                self._preferred_replica_imbalance_count -= imbalance
                self._count_deletion(self._topics[topic], 1)

    def begin_deletion(self, topics: Iterable[str]) -> None:
        """The states of the topics' partitions no longer count for the gauges."""
        for topic in topics:
            if topic not in self._deletion_started:
                self._offline_partitions_count -= sum(
                    self.partition_state(partition) is PartitionState.OFFLINE for partition in self.partitions_of(topic)
                )
                self._deletion_started[topic] = None

    def mark_ineligible_for_deletion(self, topics: Iterable[str]) -> tuple[str, ...]:
        """Marks those of the topics that are queued for deletion as ineligible, and returns them."""
        held = tuple(topic for topic in dict.fromkeys(topics) if topic in self._queued_for_deletion)
        self._ineligible_for_deletion.update(dict.fromkeys(held))
        return held

    def mark_eligible_for_deletion(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._ineligible_for_deletion.pop(topic, None)

    @property
    def topics_queued_for_deletion(self) -> tuple[str, ...]:
        return tuple(self._queued_for_deletion)

    def is_queued_for_deletion(self, topic: str) -> bool:
        return topic in self._queued_for_deletion

    def is_deletion_started(self, topic: str) -> bool:
        return topic in self._deletion_started

    def is_ineligible_for_deletion(self, topic: str) -> bool:
        return topic in self._ineligible_for_deletion

    # Gauges.

    def counts(self) -> ControllerCounts:
        """The figures of the gauges, which are kept up to date as things change."""
        return ControllerCounts(
            global_topic_count=len(self._topics),
            global_partition_count=len(self._leadership),
            offline_partitions_count=self._offline_partitions_count,
            preferred_replica_imbalance_count=self._preferred_replica_imbalance_count,
            topics_to_delete_count=len(self._queued_for_deletion),
            replicas_to_delete_count=self._replicas_to_delete_count,
            topics_ineligible_to_delete_count=len(self._ineligible_for_deletion),
            replicas_ineligible_to_delete_count=self._replicas_ineligible_to_delete_count,
            active_broker_count=len(self._brokers),
        )


def _without_assignment(partition: TopicPartition) -> ContextError:
    return ContextError(f"{partition.topic}-{partition.partition} has no assignment; give it one first")
