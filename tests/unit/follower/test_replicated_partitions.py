"""Three replicas of one partition and a controller, with messages that come late, twice, in any order or never.

The replicas are production partitions, and followers cut their logs off by production rules; only logs, messages and
the controller's elections are the test's. What happens next is chosen by a seed, and what must hold is looked at after
each step.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from barnabas.follower.truncation import truncation
from barnabas.leader.isr_changes import IsrAnswer
from barnabas.leader.partition import Partition
from barnabas.log.partition.leader_epochs import EpochEnd
from barnabas.wire.errors import ErrorCode, KafkaError
from tests.support.examples import examples
from tests.unit.leader.memory_log import Entry, MemoryLog
from tests.unit.leader.partition_setting import BrokerSetting, leader_and_isr

BROKERS = (1, 2, 3)
RECORDS_PER_FETCH = 2
STEPS = 400
REPEATED = 0.1
IN_TIME = 0.7
POWER_LOSSES = 0.5
USUAL = {
    "deliver": 160,
    "fetch": 80,
    "produce": 25,
    "alter_partition": 30,
    "lose_answer": 5,
    "lose": 10,
    "elect": 5,
    "crash": 4,
    "restart": 12,
    "let_time_pass": 8,
    "expire_followers": 20,
}
BOUNCES = {
    "deliver": 200,
    "fetch": 100,
    "produce": 25,
    "alter_partition": 12,
    "lose": 5,
    "elect": 8,
    "crash": 1,
    "restart": 12,
    "bounce": 8,
    "let_time_pass": 10,
    "expire_followers": 20,
}
"""Followers start anew while a slow controller has not decided whether they may join the ISR."""


class Fetch(NamedTuple):
    """A follower's request, of one run of its process."""

    follower: int
    run: int
    leader: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int


class Fetched(NamedTuple):
    """A leader's response."""

    request: Fetch
    entries: list[Entry]
    high_watermark: int
    diverging: EpochEnd | None


class Leadership(NamedTuple):
    """What the controller tells one broker."""

    broker: int
    run: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int


@dataclass
class Replica:
    """A broker: its log outlives its process, as the page cache does, but not a loss of power. `run` is its epoch."""

    setting: BrokerSetting
    run: int = 0
    is_up: bool = True

    @property
    def partition(self) -> Partition:
        return self.setting.partition

    @property
    def log(self) -> MemoryLog:
        return self.setting.log


@dataclass
class ControllerState:
    """What the controller has written."""

    leader: int = 1
    leader_epoch: int = 0
    isr: tuple[int, ...] = BROKERS
    partition_epoch: int = 0
    history: dict[int, int] = field(default_factory=dict)
    """The leader of each epoch."""


class ReplicatedPartition:
    """The cluster, and what must always hold."""

    def __init__(self, seed: int, *, min_insync_replicas: int) -> None:
        self.random = random.Random(seed)
        self.happened: Counter[str] = Counter()
        self.replicas = {
            broker: Replica(BrokerSetting(broker, min_insync_replicas=min_insync_replicas)) for broker in BROKERS
        }
        self.controller = ControllerState()
        self.messages: list[Any] = []
        self.values = itertools.count()
        self.exposed: dict[int, Entry] = {}
        """Every record that was below a leader's high watermark at some time, by offset."""
        self.high_watermarks: dict[tuple[int, int, int], int] = {}
        """Of each broker as leader, in each epoch and run."""
        self.tell(BROKERS)

    def run(self, steps: int, weights: Mapping[str, int]) -> None:
        events: list[Callable[[], None]] = [getattr(self, name) for name in weights]
        for event in self.random.choices(events, list(weights.values()), k=steps):
            event()
            self.check()

    def check(self) -> None:
        self.exposed_records_never_change()
        self.high_watermark_never_goes_back_within_an_epoch()
        self.logs_agree_below_high_watermarks()
        self.maximal_isr_covers_the_isr_in_force()

    def broker(self) -> int:
        return self.random.choice(BROKERS)

    def leader(self) -> int:
        """Mostly the leader, else anybody."""
        return self.controller.leader if self.random.random() < 0.8 else self.broker()

    # What may happen.

    def produce(self) -> None:
        """A client that believes the broker to lead."""
        replica = self.replicas[self.leader()]
        if replica.is_up and replica.partition.is_leader:
            with contextlib.suppress(KafkaError):  # too few are in sync
                replica.setting.append(*itertools.islice(self.values, self.random.randint(1, 3)))

    def fetch(self) -> None:
        """A follower asks whom it believes to lead."""
        broker = self.broker()
        replica = self.replicas[broker]
        partition = replica.partition
        if replica.is_up and partition.log is not None and not partition.is_leader and partition.leader_id in BROKERS:
            epoch = replica.log.latest_epoch
            # Without epochs a follower begins at its high watermark.
            if epoch is None:
                replica.log.cut(replica.log.high_watermark)
            self.messages.append(
                Fetch(
                    *(broker, replica.run, partition.leader_id, partition.leader_epoch),
                    *(replica.log.log_end_offset, -1 if epoch is None else epoch),
                )
            )

    def deliver(self) -> None:
        """Any message comes; it may come once more."""
        if not self.messages:
            return
        # Mostly the newest: nothing would get on among messages that are all out of date.
        at = -1 if self.random.random() < IN_TIME else self.random.randrange(len(self.messages))
        message = self.messages[at] if self.random.random() < REPEATED else self.messages.pop(at)
        match message:
            case Fetch():
                self.serve(message)
            case Fetched():
                self.take_over(message)
            case Leadership():
                self.become(message)

    def lose(self) -> None:
        if self.messages:
            self.messages.pop(self.random.randrange(len(self.messages)))

    def alter_partition(self) -> None:
        """The controller handles what a leader asked for, by the tests in their order (KIP-497)."""
        broker = self.leader()
        setting = self.replicas[broker].setting
        if not setting.asked or not self.replicas[broker].is_up:
            return
        change, answer = setting.asked.pop(0)
        state = self.controller
        if change.leader_epoch < state.leader_epoch:
            answer(IsrAnswer(ErrorCode.FENCED_LEADER_EPOCH))
        elif set(change.isr) == set(state.isr):
            answer(IsrAnswer(ErrorCode.NONE, state.leader_epoch, state.partition_epoch, state.isr))
        elif change.partition_epoch != state.partition_epoch:
            answer(IsrAnswer(ErrorCode.INVALID_UPDATE_VERSION))
        elif not self.are_eligible(change.isr):
            answer(IsrAnswer(ErrorCode.INELIGIBLE_REPLICA))
        else:
            self.happened["growth" if len(change.isr) > len(state.isr) else "shrink"] += 1
            state.isr = tuple(change.isr)
            state.partition_epoch += 1
            answer(IsrAnswer(ErrorCode.NONE, state.leader_epoch, state.partition_epoch, state.isr))

    def are_eligible(self, isr: Mapping[int, int]) -> bool:
        """Whether all are up, in the life that the leader has heard of (KIP-903)."""
        is_present = all(self.replicas[member].is_up for member in isr)
        if is_present and any(0 <= epoch < self.replicas[member].run for member, epoch in isr.items()):
            self.happened["former life"] += 1
            return False
        return is_present

    def lose_answer(self) -> None:
        """The controller makes a change, and its answer does not come; the leader asks the same again."""
        setting = self.replicas[self.leader()].setting
        if setting.asked:
            change, _ = setting.asked[0]
            state = self.controller
            is_current = (change.leader_epoch, change.partition_epoch) == (state.leader_epoch, state.partition_epoch)
            if is_current and self.are_eligible(change.isr):
                state.isr = tuple(change.isr)
                state.partition_epoch += 1

    def elect(self) -> None:
        """A clean election: somebody of the ISR who is up; the ISR loses who is down, unless that is all."""
        state = self.controller
        candidates = [member for member in state.isr if self.replicas[member].is_up]
        if candidates:
            state.leader = self.random.choice(candidates)
            state.leader_epoch += 1
            state.isr = tuple(candidates)
            state.partition_epoch += 1
            self.happened["election"] += 1
            self.tell(BROKERS)

    def bounce(self) -> None:
        """One that is not in the ISR, and may be about to join it, is away for no longer than a change of the ISR."""
        for broker in BROKERS:
            if broker not in self.controller.isr:
                self.crash(broker)
                self.restart(broker)

    def crash(self, broker: int | None = None) -> None:
        broker = broker or self.broker()
        replica = self.replicas[broker]
        if replica.is_up:
            replica.is_up = False
            for other in self.replicas.values():
                other.setting.alive.discard(broker)

    def restart(self, broker: int | None = None) -> None:
        """The process comes back with its log, and with a high watermark of some time ago. One that was in no ISR may
        have lost the end of its log with its power; the controller takes others out of the ISR before they are back.
        """
        broker = broker or self.broker()
        replica = self.replicas[broker]
        if not replica.is_up:
            log = replica.log
            log.update_high_watermark(log.high_watermark - self.random.randint(0, 3))
            if broker not in self.controller.isr and self.random.random() < POWER_LOSSES:
                self.happened["lost tail"] += bool(log.entries)
                log.cut(self.random.randint(0, log.log_end_offset))
            replica.setting = BrokerSetting(broker)
            replica.setting.log = log
            replica.run += 1
            replica.is_up = True
            for other in self.replicas.values():
                other.setting.alive = {each for each in BROKERS if self.replicas[each].is_up}
            self.tell((broker,))

    def let_time_pass(self) -> None:
        seconds = self.random.choice([0.1, 5.0, 20.0, 40.0])
        for replica in self.replicas.values():
            replica.setting.now += seconds

    def expire_followers(self) -> None:
        replica = self.replicas[self.leader()]
        if replica.is_up:
            replica.partition.in_sync.expire()

    # How messages are handled.

    def tell(self, brokers: tuple[int, ...]) -> None:
        state = self.controller
        assert state.history.setdefault(state.leader_epoch, state.leader) == state.leader
        for broker in brokers:
            self.messages.append(
                Leadership(
                    *(broker, self.replicas[broker].run, state.leader, state.leader_epoch),
                    *(state.isr, state.partition_epoch),
                )
            )

    def become(self, told: Leadership) -> None:
        replica = self.replicas[told.broker]
        # A request for a former life is fenced by the broker epoch; an epoch that is not greater is ignored.
        if not replica.is_up or told.run != replica.run or told.leader_epoch <= replica.partition.leader_epoch:
            return
        state = leader_and_isr(told.leader, told.leader_epoch, told.isr, told.partition_epoch)
        become = replica.partition.become_leader if told.leader == told.broker else replica.partition.become_follower
        become(state, lambda: replica.log.as_log)

    def serve(self, request: Fetch) -> None:
        replica = self.replicas[request.leader]
        partition = replica.partition
        if not replica.is_up:
            return
        try:
            partition.check_follower(request.follower, request.leader_epoch)
            diverging = None
            if request.last_fetched_epoch >= 0:
                diverging = partition.diverging_epoch(request.last_fetched_epoch, request.offset)
        except KafkaError:
            return
        if diverging is None and request.offset > replica.log.log_end_offset:
            return  # out of range
        high_watermark = replica.log.high_watermark
        entries: list[Entry] = []
        if diverging is None:
            entries = replica.log.read(request.offset, RECORDS_PER_FETCH)
            try:
                replica.setting.fetch(request.follower, request.offset, broker_epoch=request.run)
            except KafkaError:  # from before the follower's restart
                self.happened["late fetch"] += 1
                return
        self.messages.append(Fetched(request, entries, high_watermark, diverging))

    def take_over(self, response: Fetched) -> None:
        request = response.request
        replica = self.replicas[request.follower]
        partition, log = replica.partition, replica.log
        is_wanted = (
            replica.is_up
            and replica.run == request.run
            and partition.log is not None
            and not partition.is_leader
            and (partition.leader_id, partition.leader_epoch) == (request.leader, request.leader_epoch)
            and log.log_end_offset == request.offset
            and (-1 if log.latest_epoch is None else log.latest_epoch) == request.last_fetched_epoch
        )
        if not is_wanted:
            return
        if response.diverging is not None:
            found = truncation(
                response.diverging,
                log_end_offset=log.log_end_offset,
                fallback_offset=min(request.offset, log.high_watermark),
                local_end=log.end_offset_for_epoch,
            )
            self.happened["truncation"] += found.offset < log.log_end_offset
            log.cut(found.offset)
            return
        log.append_as_follower(response.entries)
        log.update_high_watermark(response.high_watermark)

    # What must hold.

    def exposed_records_never_change(self) -> None:
        """Committed data is what never goes back: every leader of the newest epoch that has begun has all of it."""
        for broker, replica in self.replicas.items():
            if not (replica.is_up and replica.partition.is_leader):
                continue
            log = replica.log
            if replica.partition.leader_epoch == self.controller.leader_epoch:
                for offset, entry in self.exposed.items():
                    assert offset < log.log_end_offset, f"leader {broker} lacks the committed offset {offset}"
                    assert log.entries[offset] == entry, f"leader {broker} has another record at {offset}"
            for entry in log.entries[: log.high_watermark]:
                known = self.exposed.setdefault(entry.offset, entry)
                assert known == entry, f"{known} was committed, and {entry} is"

    def high_watermark_never_goes_back_within_an_epoch(self) -> None:
        for broker, replica in self.replicas.items():
            if replica.is_up and replica.partition.is_leader:
                key = broker, replica.partition.leader_epoch, replica.run
                assert replica.log.high_watermark >= self.high_watermarks.get(key, 0)
                self.high_watermarks[key] = replica.log.high_watermark

    def logs_agree_below_high_watermarks(self) -> None:
        for one, other in itertools.combinations(self.replicas.values(), 2):
            end = min(one.log.high_watermark, other.log.high_watermark)
            assert one.log.entries[:end] == other.log.entries[:end]

    def maximal_isr_covers_the_isr_in_force(self) -> None:
        state = self.controller
        for replica in self.replicas.values():
            if replica.is_up and replica.partition.is_leader and replica.partition.leader_epoch == state.leader_epoch:
                assert set(state.isr) <= set(replica.partition.in_sync.state.maximal)


@pytest.mark.parametrize("weights", [USUAL, BOUNCES], ids=["usual", "bounces"])
@pytest.mark.parametrize("min_insync_replicas", [1, 2])
@settings(max_examples=examples(40))
@given(seed=st.integers(0, 2**32))
@example(seed=9159)  # a leader that missed the epoch of another one
@example(seed=36)  # a follower that has lost its log's end joins the ISR with what it had before
@example(seed=152)  # the same
def test_nothing_committed_is_lost(min_insync_replicas: int, weights: Mapping[str, int], seed: int) -> None:
    ReplicatedPartition(seed, min_insync_replicas=min_insync_replicas).run(STEPS, weights)


def test_the_walks_come_past_what_they_are_about() -> None:
    happened: Counter[str] = Counter()
    for seed, weights in itertools.product(range(40), (USUAL, BOUNCES)):
        cluster = ReplicatedPartition(seed, min_insync_replicas=1)
        cluster.run(STEPS, weights)
        happened += cluster.happened
        happened["commit"] += len(cluster.exposed)
    wanted = ("election", "truncation", "growth", "shrink", "commit", "lost tail", "former life", "late fetch")
    assert [event for event in wanted if happened[event] < 5] == []
