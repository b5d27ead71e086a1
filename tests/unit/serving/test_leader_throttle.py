"""`barnabas.serving.leader_throttle`, with a clock that is driven by hand."""

from __future__ import annotations

from typing import Any

from barnabas.kernel.tick import Tick
from barnabas.kernel.timers import Timers
from barnabas.quotas.replication_quota import ReplicationQuota
from barnabas.quotas.settings import ReplicationQuotaSettings
from barnabas.serving.leader_throttle import LeaderThrottle
from tests.unit.kernel.virtual_loop import HandDrivenLoop
from tests.unit.leader.partition_setting import PARTITION, BrokerSetting

BEHIND, IN_SYNC = 3, 2
LIMIT = 1000


class Setting:
    """A leader with a follower in sync, and one behind."""

    def __init__(self) -> None:
        self.loop = HandDrivenLoop()
        self.quota = ReplicationQuota(ReplicationQuotaSettings(), self.loop.time)
        self.woken: list[float] = []
        loop: Any = self.loop.as_loop
        self.throttle = LeaderThrottle(self.quota, Tick(loop), Timers(loop), self)  # type: ignore[arg-type]
        broker = BrokerSetting()
        broker.lead(isr=(1, IN_SYNC))
        self.partition = broker.partition

    def add(self, _partition: object) -> None:
        self.woken.append(self.loop.now)

    def give(self, size_bytes: int) -> None:
        self.throttle.given(PARTITION, size_bytes)
        self.loop.advance(0)


def test_holds_back_who_is_throttled_and_behind_while_the_quota_is_exceeded() -> None:
    setting = Setting()
    throttle, quota, partition = setting.throttle, setting.quota, setting.partition
    quota.limit(LIMIT)
    setting.give(5 * LIMIT)
    assert quota.byte_rate == 0, "what is not throttled does not count"
    quota.throttle(PARTITION.topic, ["*"], 1)
    assert not throttle.holds_back(partition, BEHIND)
    setting.give(5 * LIMIT)
    assert throttle.holds_back(partition, BEHIND)
    assert not throttle.holds_back(partition, IN_SYNC)


def test_followers_of_one_tick_are_served_alike() -> None:
    setting = Setting()
    setting.quota.limit(LIMIT)
    setting.quota.throttle(PARTITION.topic, ["*"], 1)
    setting.throttle.given(PARTITION, 2 * LIMIT)
    assert not setting.throttle.holds_back(setting.partition, BEHIND)
    setting.throttle.given(PARTITION, 2 * LIMIT)
    setting.loop.advance(0)
    assert setting.throttle.holds_back(setting.partition, BEHIND)
    assert setting.quota.byte_rate == 4 * LIMIT


def test_wakes_once_as_soon_as_the_quota_allows() -> None:
    setting = Setting()
    setting.quota.limit(LIMIT)
    setting.quota.throttle(PARTITION.topic, ["*"], 1)
    setting.give(int(3.5 * LIMIT))
    for _ in range(3):
        assert setting.throttle.holds_back(setting.partition, BEHIND)
    turns = 0
    while setting.loop.now < 10:
        setting.loop.advance(0.01)
        turns += 1
    (woken,) = setting.woken
    assert 3.5 <= woken <= 3.6
    assert not setting.loop.pending_timers
    assert not setting.throttle.holds_back(setting.partition, BEHIND)


def test_wakes_when_the_throttle_is_taken_away_or_raised() -> None:
    setting = Setting()
    setting.quota.limit(1)
    setting.quota.throttle(PARTITION.topic, ["*"], 1)
    setting.give(LIMIT)
    assert setting.throttle.holds_back(setting.partition, BEHIND)
    setting.quota.limit(2)
    assert setting.woken == []
    setting.quota.limit(2 * LIMIT)
    assert len(setting.woken) == 1
    setting.quota.limit(1)
    assert setting.throttle.holds_back(setting.partition, BEHIND)
    setting.quota.throttle(PARTITION.topic, [], 1)
    assert len(setting.woken) == 2


def test_wakes_what_is_not_throttled_any_more_while_other_topics_are() -> None:
    setting = Setting()
    setting.quota.limit(1)
    for topic in (PARTITION.topic, "other"):
        setting.quota.throttle(topic, ["*"], 1)
    setting.give(LIMIT)
    assert setting.throttle.holds_back(setting.partition, BEHIND)
    setting.quota.throttle("other", ["0:1"], 1)
    assert setting.woken == []
    setting.quota.throttle(PARTITION.topic, [], 1)
    assert len(setting.woken) == 1
    assert not setting.throttle.holds_back(setting.partition, BEHIND)
    setting.loop.advance(100)
    assert len(setting.woken) == 1
