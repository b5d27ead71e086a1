"""What a leader keeps from throttled followers for a while (KIP-73).

A follower that is in the ISR gets everything, so that a throttle drives nobody out of it; its bytes count all the same.
A fetch of which something is held back waits like one for which there is nothing, and is woken when the quota allows
again: nobody asks in vain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.quotas.byte_quota import UNLIMITED

if TYPE_CHECKING:
    from barnabas.kernel.tick import Tick
    from barnabas.kernel.timers import Timer, Timers
    from barnabas.leader.partition import Partition
    from barnabas.leader.wake_ups import WakeUps
    from barnabas.quotas.replication_quota import ReplicationQuota
    from barnabas.wire.topics import TopicPartition

WAIT_MS_MAX: Final = 1000.0
"""So long at most until the quota is looked at again, whatever it was measured to take."""
_WAIT_MS_MIN: Final = 1.0


class LeaderThrottle:
    """The throttle of a broker as a leader.

    Invariant: a partition of which something was held back wakes those who watch it at most `WAIT_MS_MAX` after the
    quota allows again.
    """

    __slots__ = ("_given_bytes", "_held", "_quota", "_tick", "_timer", "_timers", "_wake_ups", "topics")

    def __init__(self, quota: ReplicationQuota, tick: Tick, timers: Timers, wake_ups: WakeUps) -> None:
        self.topics = quota.topics
        """Empty where nothing is throttled: then there is nothing to ask of this object."""
        self._quota = quota
        self._tick = tick
        self._timers = timers
        self._wake_ups = wake_ups
        self._held: dict[Partition, None] = {}
        self._timer: Timer | None = None
        self._given_bytes = 0
        quota.on_change = self._look_again

    @property
    def has_bound(self) -> bool:
        """Whether anything may be held back: topics that are throttled keep nobody waiting while no rate is set."""
        return bool(self.topics) and self._quota.bytes_per_second < UNLIMITED

    def holds_back(self, partition: Partition, follower_id: int) -> bool:
        """Whether the follower gets nothing of the partition now. Who watches it is told when to ask again."""
        if follower_id in partition.isr or not self._quota.is_throttled(partition.topic_partition):
            return False
        if self._timer is None:
            if not self._quota.is_exceeded:
                return False
            self._wait()
        # Otherwise it was, and is measured again when that time is over: to measure costs more than all else here.
        self._held[partition] = None
        return True

    def given(self, topic_partition: TopicPartition, size_bytes: int) -> None:
        """A follower was given so much of a partition.

        It is recorded at the end of the tick: followers that were woken together are served alike, and none is always
        the first.
        """
        if self._quota.is_throttled(topic_partition):
            if not self._given_bytes:
                self._tick.before_send(self._record)
            self._given_bytes += size_bytes

    def _record(self) -> None:
        given_bytes, self._given_bytes = self._given_bytes, 0
        self._quota.record(given_bytes)

    def _wait(self) -> None:
        wait_ms = min(max(self._quota.seconds_exceeded * 1000, _WAIT_MS_MIN), WAIT_MS_MAX)
        self._timer = self._timers.call_after(wait_ms, self._look_again)

    def _look_again(self) -> None:
        """Time has passed, or another quota was set."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if not self._held:
            return
        held, self._held = self._held, {}
        if self.topics and self._quota.is_exceeded:
            self._wait()
            is_throttled = self._quota.is_throttled
            for partition in held:
                if is_throttled(partition.topic_partition):
                    self._held[partition] = None
                else:
                    self._wake_ups.add(partition)
            return
        for partition in held:
            self._wake_ups.add(partition)
