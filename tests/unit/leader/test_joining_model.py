"""Followers that fetch in sessions, fall silent, lose their sessions with ZooKeeper, and start anew, in random orders:
nobody joins the ISR without all that may be committed, and whoever has it joins, and is not asked for on and on.

Apache Kafka looks at every partition of every fetch. Here a session's fetch that names nothing only sets a clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from barnabas.leader.isr_changes import IsrChange
from barnabas.leader.isr_expansion_retries import Reconsidered
from barnabas.leader.remote_replica import FetchClock
from barnabas.wire.errors import ErrorCode
from tests.unit.leader.partition_setting import LAG_MAX_SECONDS, BrokerSetting

FOLLOWERS = (2, 3)
STEPS = 120
QUIET_AFTER = 40
LOOK_SECONDS = 0.5
SETTLED_SECONDS = 3 * LAG_MAX_SECONDS
SEEDS_PER_TEST = 100


@dataclass
class Follower:
    """A broker that follows: what it has in truth, and what its fetch session has told."""

    broker_id: int
    broker_epoch: int = 1
    log_end_offset: int = 0
    leader_epoch: int = 0
    session: FetchClock | None = None
    told_offset: int | None = None
    """What the session has heard last; None where it must name the partition."""
    received: int | None = None
    """Until where the answer to the last fetch goes, which the follower has with its next one."""
    is_cut_off: bool = False
    """From the leader; its session goes on afterwards."""
    joins: list[float] = field(default_factory=list)


class World:
    """A leader with two followers, its controller, and the loop's timers."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.setting = BrokerSetting()
        self.setting.lead(isr=(1, *FOLLOWERS))
        self.followers = {broker_id: Follower(broker_id) for broker_id in FOLLOWERS}
        self.isr: tuple[int, ...] = (1, *FOLLOWERS)
        self.leader_epoch = self.partition_epoch = 0
        self.noted: dict[Reconsidered, float] = {}
        self.is_controller_there = True
        self._look_at = self._expire_at = self.setting.now
        self.acts: dict[str, int] = {}

    # What happens.

    def act(self, *, is_quiet: bool) -> None:
        """While it is quiet nothing is appended, and nobody starts anew: nothing is named because of that."""
        follower = self.chance.choice(tuple(self.followers.values()))
        acts: tuple[Callable[[Follower], None], ...] = (
            self.pass_time,
            self.pass_time,
            self.pass_time,
            self.cut_off,
            self.reconnect,
            self.expire_session,
            self.come_back,
            self.controller_goes,
            self.controller_comes,
            *(() if is_quiet else (self.append, self.start_anew)),
        )
        chosen = self.chance.choice(acts)
        self.acts[chosen.__name__] = self.acts.get(chosen.__name__, 0) + 1
        chosen(follower)

    def pass_time(self, _follower: Follower) -> None:
        self.run_for(self.chance.choice((0.1, 0.7, 2.0, 20.0, LAG_MAX_SECONDS + 6)))

    def append(self, _follower: Follower) -> None:
        self.setting.append("x", acks=1)

    def cut_off(self, follower: Follower) -> None:
        follower.is_cut_off = True

    def reconnect(self, follower: Follower) -> None:
        follower.is_cut_off = False

    def expire_session(self, follower: Follower) -> None:
        """With ZooKeeper: the broker goes on. A controller begins a new epoch only where it was in the ISR."""
        if follower.broker_id not in self.setting.alive or not self.is_controller_there:
            return
        self.setting.alive.discard(follower.broker_id)
        if follower.broker_id in self.isr:
            self.begin_epoch(tuple(member for member in self.isr if member != follower.broker_id))

    def come_back(self, follower: Follower) -> None:
        if follower.broker_id in self.setting.alive or not self.is_controller_there:
            return
        follower.broker_epoch += 1
        self.setting.alive.add(follower.broker_id)
        self.setting.partition.in_sync.brokers_returned({follower.broker_id})
        self.take_noted()
        self.tell(follower)

    def start_anew(self, follower: Follower) -> None:
        """It has lost the end of its log, down to what is committed or less."""
        if follower.broker_id in self.setting.alive:
            self.expire_session(follower)
        if follower.broker_id in self.setting.alive:
            return
        follower.session = follower.told_offset = follower.received = None
        follower.is_cut_off = False
        follower.log_end_offset = self.chance.randint(0, follower.log_end_offset)
        self.come_back(follower)

    def controller_goes(self, _follower: Follower) -> None:
        self.is_controller_there = False

    def controller_comes(self, _follower: Follower) -> None:
        self.is_controller_there = True

    # The controller.

    def begin_epoch(self, isr: tuple[int, ...]) -> None:
        self.isr = isr
        self.leader_epoch += 1
        self.partition_epoch += 1
        self.setting.lead(self.leader_epoch, isr, self.partition_epoch)
        for follower in self.followers.values():
            if follower.broker_id in self.setting.alive:
                self.tell(follower)

    def tell(self, follower: Follower) -> None:
        """LeaderAndIsr, which is news in a later epoch only."""
        if follower.leader_epoch < self.leader_epoch:
            follower.leader_epoch = self.leader_epoch
            follower.told_offset = None

    def answer(self) -> None:
        if not self.is_controller_there or not self.setting.asked:
            return
        change = self.setting.asked[0].change
        error = self.judge(change)
        if error is ErrorCode.NONE:
            self.isr = tuple(change.isr)
            self.partition_epoch = change.partition_epoch + 1
        self.setting.answer(error)
        self.take_noted()

    def judge(self, change: IsrChange) -> ErrorCode:
        if change.leader_epoch != self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        for member, epoch in change.isr.items():
            if member == 1:
                continue
            follower = self.followers[member]
            if member not in self.setting.alive or epoch not in (-1, follower.broker_epoch):
                return ErrorCode.INELIGIBLE_REPLICA
            if member not in self.isr:
                # Nobody joins who has less than may be committed.
                log = self.setting.log
                assert follower.log_end_offset >= log.high_watermark, "a replica joins without what is committed"
                follower.joins.append(self.setting.now)
        return ErrorCode.NONE

    # Time.

    def run_for(self, seconds: float) -> None:
        ends_at = self.setting.now + seconds
        while self.setting.now < ends_at:
            self.setting.now += 0.1
            for follower in self.followers.values():
                if round(self.setting.now * 10) % 5 == follower.broker_id:
                    self.fetch(follower)
            self.take_noted()
            self.answer()
            if self.setting.now >= self._look_at:
                self._look_at = self.setting.now + LOOK_SECONDS
                noted, self.noted = self.noted, {}
                for in_sync, since in noted.items():
                    if in_sync.reconsider(since):
                        self.noted.setdefault(in_sync, since)
                    self.take_noted()
            if self.setting.now >= self._expire_at:
                self._expire_at = self.setting.now + LAG_MAX_SECONDS / 2
                self.setting.partition.in_sync.expire()

    def take_noted(self) -> None:
        self.noted |= dict(self.setting.noted)
        self.setting.noted.clear()

    def fetch(self, follower: Follower) -> None:
        if follower.is_cut_off:
            return
        partition = self.setting.partition
        if follower.received is not None:
            follower.log_end_offset, follower.received = follower.received, None
        if follower.session is None:
            follower.session = FetchClock(self.setting.now, follower.broker_epoch)
            follower.told_offset = None
        session = follower.session
        session.time, session.broker_epoch = self.setting.now, follower.broker_epoch
        is_heard = partition.is_fetched_by(follower.broker_id, session)
        if follower.told_offset == follower.log_end_offset and is_heard:
            pass  # it names nothing, and is read only where there is something to say
        elif follower.leader_epoch != partition.leader_epoch:
            return  # fenced
        else:
            follower.told_offset = follower.log_end_offset
            partition.update_follower(
                follower.broker_id,
                fetch_offset=follower.log_end_offset,
                log_start_offset=0,
                leader_end_offset=self.setting.log.log_end_offset,
                now=self.setting.now,
                clock=session,
                broker_epoch=follower.broker_epoch,
            )
        if follower.leader_epoch == partition.leader_epoch:
            follower.received = self.setting.log.log_end_offset


@pytest.mark.parametrize("first", range(0, 2 * SEEDS_PER_TEST, SEEDS_PER_TEST))
def test_whoever_is_in_sync_joins_and_nobody_else(first: int) -> None:
    acts: dict[str, int] = {}
    joins = 0
    for seed in range(first, first + SEEDS_PER_TEST):
        world = World(seed)
        for number in range(STEPS):
            world.act(is_quiet=number % QUIET_AFTER > QUIET_AFTER // 4)
        joins += sum(len(follower.joins) for follower in world.followers.values())
        world.controller_comes(world.followers[2])
        for follower in world.followers.values():
            world.reconnect(follower)
            world.come_back(follower)
        asked_before = sum(len(follower.joins) for follower in world.followers.values())
        world.run_for(SETTLED_SECONDS)
        assert set(world.isr) == {1, *FOLLOWERS}, f"seed {seed}: out of sync for ever"
        assert set(world.setting.partition.isr) == {1, *FOLLOWERS}, f"seed {seed}"
        asked = sum(len(follower.joins) for follower in world.followers.values()) - asked_before
        assert asked <= 2 * len(FOLLOWERS), f"seed {seed}: asked for {asked} times"
        assert world.setting.log.high_watermark == world.setting.log.log_end_offset, f"seed {seed}"
        for name, count in world.acts.items():
            acts[name] = acts.get(name, 0) + count
    assert joins > SEEDS_PER_TEST
    assert len(acts) == 9
    assert min(acts.values()) > SEEDS_PER_TEST
