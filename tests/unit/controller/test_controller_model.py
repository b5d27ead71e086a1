"""The controller's core against brokers with records: topics are made, grow, are moved, deleted and made again under
their names, leaders elected on demand, while brokers, their log directories and controllers fall, the last instead of
any effect. After each step and in the end it is looked at what may never be.

One seed is one run; a failure names it.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from barnabas.controller.effects import BrokerRequest
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.partition_states import PartitionState
from barnabas.coordination.layout.admin import (
    DELETE_TOPICS_PATH,
    PREFERRED_REPLICA_ELECTION_PATH,
    REASSIGN_PARTITIONS_PATH,
    PreferredReplicaElection,
    Reassignment,
    delete_topic_path,
)
from barnabas.coordination.layout.brokers import broker_id_path
from barnabas.coordination.layout.notifications import LOG_DIR_EVENTS_PATH, LogDirEvent, log_dir_event_path
from barnabas.coordination.layout.topics import TOPICS_PATH, ReplicaAssignment, TopicAssignment, topic_path
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import LeaderAndIsrRequest, StopReplicaRequest
from barnabas.wire.sentinels import EPOCH_DURING_DELETE, NO_LEADER
from barnabas.wire.topics import ElectionType, LeaderRecoveryState, TopicPartition
from tests.unit.controller.term_harness import CrashError, Terms

BROKERS = (1, 2, 3, 4, 5)
NEVER_THERE = 9
STEPS = 90
SEEDS = 40
EFFECTS_BEFORE_CRASH_MAX = 25
ROUNDS_TO_REST_MAX = 30
ACTIONS = (
    *("create", "delete", "grow", "reassign", "reassign", "cancel", "znode"),
    *("stop", "start", "start", "bounce"),
    *(("replicate_some",) * 8 + ("settle",) * 3 + ("shut_down", "read_again")),
    *("elect_preferred", "elect_by_znode", "rebalance"),
    *(("elect_uncleanly",) * 3 + ("fail_directory",) * 3),
)
"""What happens, as often as it is named."""


class Model:
    """A cluster on a store in memory. A log is the number of its records: a follower takes over its leader's whole."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.terms = Terms(*BROKERS)
        self.terms.deliver = self.deliver
        self.terms.answers = self.terms.replica_errors = lambda request, partition: (
            ErrorCode.KAFKA_STORAGE_ERROR if (partition, request.broker_id) in self.failed else ErrorCode.NONE
        )
        self.failed: dict[tuple[TopicPartition, int], None] = {}
        """Replicas in log directories that have failed, until their broker starts anew."""
        self.announced = 0
        self.logs: Counter[tuple[TopicPartition, int]] = Counter()
        self.committed: Counter[TopicPartition] = Counter()
        self.leaders: dict[tuple[TopicPartition, int], int] = {}
        self.latest: dict[TopicPartition, LeaderAndIsr] = {}
        self.topics = 0
        self.met: Counter[str] = Counter()
        self.elect()

    # What there is, as ZooKeeper has it.

    def assignments(self) -> Iterator[tuple[TopicPartition, ReplicaAssignment]]:
        for topic in self.terms.store.children(TOPICS_PATH):
            znode = TopicAssignment.decode(self.terms.store.znodes[topic_path(topic)][0], topic)
            for number, assignment in znode.partitions.items():
                yield TopicPartition(topic, number), assignment

    def partitions(self) -> list[TopicPartition]:
        return [partition for partition, _ in self.assignments()]

    def is_kept(self, partition: TopicPartition) -> bool:
        """Whether nobody has asked for its deletion."""
        return delete_topic_path(partition.topic) not in self.terms.store.znodes

    def is_up(self, broker_id: int) -> bool:
        return broker_id_path(broker_id) in self.terms.store.znodes

    def works(self, partition: TopicPartition, broker_id: int) -> bool:
        return self.is_up(broker_id) and (partition, broker_id) not in self.failed

    # Brokers.

    def start_broker(self, broker_id: int) -> None:
        """Its log directories have been mended, with what was in them."""
        self.failed = {replica: None for replica in self.failed if replica[1] != broker_id}
        self.terms.start_broker(broker_id)

    def deliver(self, request: BrokerRequest) -> None:
        """What a broker does with what it is told; nobody loses a request here."""
        message = request.message
        if isinstance(message, LeaderAndIsrRequest):
            for topic in message.topic_states:
                for state in topic.partition_states:
                    partition = TopicPartition(topic.topic_name, state.partition_index)
                    self.lead(partition, state.leader_epoch, state.leader)
        elif isinstance(message, StopReplicaRequest) and self.is_up(request.broker_id):
            for stopped in message.topic_states:
                for stop in stopped.partition_states:
                    partition = TopicPartition(stopped.topic_name, stop.partition_index)
                    is_there = (partition, request.broker_id) not in self.failed
                    if is_there and stop.delete_partition and stop.leader_epoch != EPOCH_DURING_DELETE:
                        known = self.terms.store.leadership(partition)
                        is_kept = self.is_kept(partition)
                        assert not is_kept or known is None or request.broker_id not in known.isr, "it is in the ISR"
                        self.logs.pop((partition, request.broker_id), None)
                        self.met["replicas deleted"] += 1

    def lead(self, partition: TopicPartition, epoch: int, leader: int) -> None:
        assert self.leaders.setdefault((partition, epoch), leader) == leader, f"two leaders of {partition} in {epoch}"

    def replicate(self, partition: TopicPartition) -> None:
        """The leader takes records, some fetch them, and those that have all may join the ISR."""
        known = self.terms.store.leadership(partition)
        if known is None or known.leader == NO_LEADER or not self.is_known(known.leader):
            return
        leader = known.leader
        if (partition, leader) in self.failed:
            return
        self.logs[partition, leader] += self.random.randint(0, 2)
        followers = [each for each in self.replicas(partition) if each != leader and self.works(partition, each)]
        fetching = [each for each in followers if self.random.random() < 0.8]
        for each in fetching:
            self.logs[partition, each] = self.logs[partition, leader]
        kept = [each for each in known.isr if each in {leader, *fetching} or self.random.random() < 0.7]
        joined = [each for each in fetching if each not in kept and self.random.random() < 0.7]
        self.propose(partition, known, *kept, *joined)
        self.commit(partition)

    def propose(self, partition: TopicPartition, known: LeaderAndIsr, *isr: int) -> None:
        """A leader that was elected uncleanly has recovered with the first change of its ISR."""
        state = dataclasses.replace(known, leader_recovery_state=LeaderRecoveryState.RECOVERED)
        self.terms.propose(partition, *dict.fromkeys(isr), state=state)

    def commit(self, partition: TopicPartition) -> None:
        known = self.terms.store.leadership(partition)
        if known is not None and known.leader != NO_LEADER:
            least = min(self.logs[partition, member] for member in known.isr)
            self.committed[partition] = max(self.committed[partition], least)

    def replicas(self, partition: TopicPartition) -> tuple[int, ...]:
        return self.terms.term.context.assignment(partition).replicas

    def is_known(self, broker_id: int) -> bool:
        return self.is_up(broker_id) and broker_id in self.terms.term.context.live_or_shutting_down_brokers

    # What happens.

    def step(self) -> None:
        name = self.random.choice(ACTIONS)
        self.act(name, self.random.randint(1, EFFECTS_BEFORE_CRASH_MAX) if self.random.random() < 0.25 else None)

    def act(self, name: str, effects_before_crash: int | None) -> None:
        """Does one thing, with a controller that falls after so many effects, or does not."""
        action: Callable[[], None] = getattr(self, name)
        if effects_before_crash is not None:
            self.terms.shell.crash_at = self.terms.shell.carried_out + effects_before_crash
        try:
            action()
        except CrashError:
            self.met["crashes"] += 1
            self.elect()
        self.terms.shell.crash_at = None
        self.check()

    def elect(self) -> None:
        self.check_refusals()
        crash_at = self.random.randint(1, 60) if self.random.random() < 0.3 else None
        try:
            self.terms.elect(crash_at)
        except CrashError:
            self.met["crashes of takeovers"] += 1
            self.elect()

    def some_partition(self) -> TopicPartition | None:
        there = self.partitions()
        return self.random.choice(there) if there else None

    def some_replicas(self, *more: int) -> tuple[int, ...]:
        return tuple(self.random.sample((*BROKERS, *more), self.random.randint(1, 3)))

    def create(self) -> None:
        if len(self.terms.store.children(TOPICS_PATH)) < 4:
            name = self.some_deleted_topic()
            if name is None:
                self.topics += 1
                name = f"t{self.topics}"
            self.terms.create(name, *(self.some_replicas() for _ in range(self.random.randint(1, 2))))
            self.settle()

    def some_deleted_topic(self) -> str | None:
        """A name to be used again, of which nothing is known any more; mostly one where there is any."""
        there = self.terms.store.children(TOPICS_PATH)
        gone = [name for number in range(self.topics) if (name := f"t{number + 1}") not in there]
        if not gone or self.random.random() < 0.3:
            return None
        name = self.random.choice(gone)
        self.met["names used again"] += 1
        for by_partition in (self.latest, self.committed):
            for partition in [each for each in by_partition if each.topic == name]:
                del by_partition[partition]
        for by_partition_and_more in (self.leaders, self.logs, self.failed):
            for key in [each for each in by_partition_and_more if each[0].topic == name]:
                del by_partition_and_more[key]
        return name

    def grow(self) -> None:
        """Somebody gives a topic one more partition, whatever is under way with the others."""
        partition = self.some_partition()
        if partition is None:
            return
        path = topic_path(partition.topic)
        znode = TopicAssignment.decode(self.terms.store.znodes[path][0], path)
        if len(znode.partitions) < 4:
            grown = {**znode.partitions, len(znode.partitions): ReplicaAssignment(self.some_replicas())}
            self.terms.store.put_data(path, dataclasses.replace(znode, partitions=grown).encode())
            self.met["partitions added"] += 1
            self.settle_later()

    def delete(self) -> None:
        partition = self.some_partition()
        if partition is not None and delete_topic_path(partition.topic) not in self.terms.store.znodes:
            self.terms.delete(partition.topic)
            self.settle()

    def alter(self, target: tuple[int, ...] | None) -> None:
        partition = self.some_partition()
        if partition is not None:
            error = self.terms.run(self.terms.term.reassignments.alter({partition: target}))[partition]
            what = "cancels" if target is None else "reassignments"
            self.met[what if error is None else error.code.name] += 1

    def reassign(self) -> None:
        self.alter(self.some_replicas())

    def cancel(self) -> None:
        self.alter(None)

    def znode(self) -> None:
        partition = self.some_partition()
        if partition is not None:
            wanted = Reassignment({partition: self.some_replicas(NEVER_THERE)})
            self.terms.store.put_data(REASSIGN_PARTITIONS_PATH, wanted.encode())
            self.settle()

    def elect_preferred(self) -> None:
        self.elect_leaders(ElectionType.PREFERRED)

    def elect_uncleanly(self) -> None:
        """What only members of the ISR had that are not there is lost, as the operator has chosen. Nobody who is there
        is passed over.
        """
        self.settle()
        before = {partition: self.terms.store.leadership(partition) for partition in self.partitions()}
        try:
            self.elect_leaders(ElectionType.UNCLEAN)
        finally:
            for partition, known in before.items():
                now = self.terms.store.leadership(partition)
                if known is None or now is None or now.leader in {NO_LEADER, *known.isr}:
                    continue
                passed_over = [member for member in known.isr if self.works(partition, member)]
                assert not passed_over, f"{partition}: {now.leader} overtakes {passed_over}"
                self.committed[partition] = self.logs[partition, now.leader]
                self.met["unclean elections"] += 1

    def elect_leaders(self, election_type: ElectionType) -> None:
        outcomes = self.terms.run(self.terms.term.replica_elections.elect(self.partitions(), election_type))
        for partition, outcome in outcomes.items():
            if isinstance(outcome, KafkaError):
                self.met[outcome.code.name] += 1
            else:
                known = self.terms.store.leadership(partition)
                assert known is not None
                assert known.leader == outcome
                assert election_type is ElectionType.UNCLEAN or outcome == self.replicas(partition)[0]
                self.met[f"{election_type.name.lower()} elections on demand"] += 1

    def elect_by_znode(self) -> None:
        partition = self.some_partition()
        if partition is not None:
            self.terms.store.put_data(PREFERRED_REPLICA_ELECTION_PATH, PreferredReplicaElection((partition,)).encode())
            self.settle_later()

    def rebalance(self) -> None:
        self.terms.run(self.terms.term.replica_elections.rebalance())

    def fail_directory(self) -> None:
        """Some of a broker's replicas are in a log directory that fails, which it announces."""
        broker_id = self.random.choice(BROKERS)
        hosted = [each for each in self.partitions() if (each, broker_id) in self.logs and self.works(each, broker_id)]
        if hosted and self.is_up(broker_id):
            self.failed.update(dict.fromkeys((each, broker_id) for each in hosted if self.random.random() < 0.6))
            self.announced += 1
            self.terms.store.put_data(log_dir_event_path(f"{self.announced:010}"), LogDirEvent(broker_id).encode())
            self.met["directories that failed"] += 1
            self.settle_later()

    def stop(self) -> None:
        broker_id = self.random.choice(BROKERS)
        if self.is_up(broker_id) and sum(map(self.is_up, BROKERS)) > 2:
            self.terms.stop_broker(broker_id)
            self.settle_later()

    def start(self) -> None:
        broker_id = self.random.choice(BROKERS)
        if not self.is_up(broker_id):
            self.start_broker(broker_id)
            self.settle_later()

    def bounce(self) -> None:
        broker_id = self.random.choice(BROKERS)
        if self.is_up(broker_id):
            self.terms.stop_broker(broker_id)
            self.start_broker(broker_id)
            self.settle_later()

    def shut_down(self) -> None:
        broker_id = self.random.choice(BROKERS)
        if self.is_known(broker_id):
            epoch = self.terms.term.context.live_or_shutting_down_brokers[broker_id].epoch
            try:
                self.terms.run(self.terms.term.shut_down(broker_id, epoch))
            except KafkaError:
                self.met["shutdowns refused"] += 1
            self.terms.stop_broker(broker_id)
            self.settle_later()

    def replicate_some(self) -> None:
        partition = self.some_partition()
        if partition is not None:
            self.replicate(partition)

    def read_again(self) -> None:
        if self.terms.term.must_read_again:
            self.terms.run(self.terms.term.read_again())

    def settle(self) -> None:
        self.terms.settle()

    def settle_later(self) -> None:
        if self.random.random() < 0.7:
            self.settle()

    # What may never be.

    def check(self) -> None:
        for partition, assignment in self.assignments():
            known = self.terms.store.leadership(partition)
            if known is None:
                continue
            if known.leader != NO_LEADER:
                self.lead(partition, known.leader_epoch, known.leader)
            assert known.leader in {NO_LEADER, *known.isr}
            assert known.isr
            is_kept = self.is_kept(partition)
            assert not is_kept or set(known.isr) <= set(assignment.replicas), f"{partition}: {known} on {assignment}"
            before = self.latest.get(partition, known)
            assert known.leader_epoch >= before.leader_epoch
            assert known.partition_epoch >= before.partition_epoch
            self.latest[partition] = known
            for member in known.isr if is_kept else ():
                assert self.logs[partition, member] >= self.committed[partition], f"{partition} on {member}"
        self.check_refusals()

    def check_refusals(self) -> None:
        assert self.terms.refusals() == []

    def come_to_rest(self) -> None:
        """Everybody is there, and nobody asks for anything any more."""
        for broker_id in BROKERS:
            if not self.is_up(broker_id):
                self.start_broker(broker_id)
        self.settle()
        for broker_id in {*self.terms.term.context.shutting_down_brokers, *(each for _, each in self.failed)}:
            self.terms.stop_broker(broker_id)
            self.start_broker(broker_id)
            self.settle()
        for _ in range(ROUNDS_TO_REST_MAX):
            self.settle()
            self.read_again()
            for partition, assignment in self.assignments():
                # What waits for nobody else ends by itself, also of a topic that is to be deleted.
                if NEVER_THERE in assignment.target_replicas:
                    self.terms.run(self.terms.term.reassignments.alter({partition: None}))
            for partition in self.partitions():
                known = self.terms.store.leadership(partition)
                if known is not None and self.is_known(known.leader):
                    wanted = (*known.isr, *(each for each in self.replicas(partition) if self.is_up(each)))
                    for each in wanted:
                        self.logs[partition, each] = self.logs[partition, known.leader]
                    self.propose(partition, known, *wanted)
            self.settle()
        self.check()

    def check_rest(self) -> None:
        context, store = self.terms.term.context, self.terms.store
        assert context.reassigned_partitions == ()
        assert REASSIGN_PARTITIONS_PATH not in store.znodes
        assert store.children(DELETE_TOPICS_PATH) == []
        assert PREFERRED_REPLICA_ELECTION_PATH not in store.znodes
        assert store.children(LOG_DIR_EVENTS_PATH) == []
        assert not self.terms.term.must_read_again
        for partition, assignment in self.assignments():
            known = store.leadership(partition)
            assert known is not None
            assert context.assignment(partition) == assignment
            assert context.partition_state(partition) is PartitionState.ONLINE
            assert set(known.isr) == set(assignment.replicas)
            assert known.leader in known.isr
            assert context.leadership(partition) == known
        assert set(context.partitions) == set(self.partitions())
        assert context.counts().offline_partitions_count == 0


def run(seed: int) -> Model:
    model = Model(seed)
    with pytest.MonkeyPatch.context() as patch:
        # So that a takeover reads states ahead.
        patch.setattr("barnabas.controller.state_loading.PARTITIONS_PER_BATCH", 2)
        for _ in range(STEPS):
            model.step()
        model.come_to_rest()
    model.check_rest()
    return model


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_falls_nothing_committed_is_deleted_and_everything_ends(seed: int) -> None:
    run(seed)


def test_the_runs_meet_what_they_are_for() -> None:
    met: Counter[str] = Counter()
    for seed in range(12):
        met += run(seed).met
    wanted = {"reassignments", "cancels", "crashes", "crashes of takeovers", "replicas deleted"}
    wanted |= {"INVALID_REPLICA_ASSIGNMENT", "NO_REASSIGNMENT_IN_PROGRESS", "ELIGIBLE_LEADERS_NOT_AVAILABLE"}
    wanted |= {"directories that failed", "preferred elections on demand", "unclean elections"}
    wanted |= {"ELECTION_NOT_NEEDED", "PREFERRED_LEADER_NOT_AVAILABLE", "names used again", "partitions added"}
    assert wanted <= met.keys(), met
