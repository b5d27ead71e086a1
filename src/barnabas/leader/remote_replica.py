"""What a leader knows of a follower: how far its log is, and since when it lags.

A follower is caught up at a time t when the offset that it fetches from is not below what the end of the leader's log
was at t. The last such time decides who is in the ISR (`replica.lag.time.max.ms`, C3 of Kafka's design since KIP-16):
an offset alone would throw out every follower of a busy partition.

In an incremental session (KIP-227) a follower does not name the partitions that it has nothing new to say of, and still
it fetches them. A leader that walked all of them for every request would spend its time on partitions where nothing
happens. So the session has one clock for all, and a follower's state takes the time over when it is looked at, or just
before the end of the leader's log moves: until then every fetch was for the same offsets.

What a follower has is known of one life of its broker, whose epoch its fetches bring (KIP-903): one that died may have
lost the end of its log, so the controller is told of which life the leader speaks when it wants it in the ISR.
"""

from __future__ import annotations

from typing import Final

from barnabas.wire.sentinels import NO_EPOCH, NO_OFFSET

NEVER: Final = float("-inf")
"""Before any time of the loop's clock."""


class FetchClock:
    """When a follower's session last fetched, and in which epoch of its broker; shared by the partitions of the
    session."""

    __slots__ = ("broker_epoch", "time")

    def __init__(self, time: float = NEVER, broker_epoch: int = NO_EPOCH) -> None:
        self.time = time
        """Of the last fetch request, in seconds of the loop's clock."""
        self.broker_epoch = broker_epoch


class RemoteReplica:
    """One follower of a partition that this broker leads. Times are seconds of the loop's clock.

    Invariants: `caught_up_time` never goes back within one leader's epoch and one life of the follower's broker, and is
    never later than the last fetch. `log_end_offset` was fetched from in `broker_epoch`, and in no earlier life.
    """

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "caught_up_time",
        "clock",
        "fetch_leader_end_offset",
        "fetch_time",
        "in_maximal_isr",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = NO_EPOCH
        """Of the last fetch in this leader's epochs."""
        self.in_maximal_isr = False
        """Kept by the partition: it may hold the high watermark back."""
        self.log_end_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.fetch_leader_end_offset = 0
        """The end of the leader's log at the last fetch."""
        self.fetch_time = NEVER
        self.caught_up_time = NEVER
        self.clock: FetchClock | None = None

    def reset(self, now: float, leader_end_offset: int, *, is_new_leader: bool, is_in_sync: bool) -> None:
        """A leader's epoch begins. Members of the ISR have until now to lag, so that an election shrinks nothing by
        itself; for all others the clock starts from zero, so that they hold nothing back.

        A leader that stays leader knows still how far its followers are.
        """
        if is_new_leader:
            self.log_start_offset = NO_OFFSET
            self.log_end_offset = NO_OFFSET
            self.broker_epoch = NO_EPOCH
            self.fetch_leader_end_offset = NO_OFFSET
            self.fetch_time = NEVER
        else:
            self.fetch_leader_end_offset = leader_end_offset
            self.fetch_time = now if is_in_sync else NEVER
        self.clock = None
        self.caught_up_time = now if is_in_sync else NEVER

    def is_of_former_life(self, broker_epoch: int) -> bool:
        """Whether a fetch in that epoch was sent before what is known of the follower, by a broker that has started
        anew since."""
        return NO_EPOCH < broker_epoch < self.broker_epoch

    def fetched(
        self,
        fetch_offset: int,
        log_start_offset: int,
        leader_end_offset: int,
        now: float,
        clock: FetchClock | None,
        broker_epoch: int = NO_EPOCH,
    ) -> None:
        """Takes over a fetch from `fetch_offset`, when the leader's log ended at `leader_end_offset`, which is not of a
        former life."""
        if broker_epoch != self.broker_epoch:
            self._begin_life(broker_epoch)
        if fetch_offset >= leader_end_offset:
            self._caught_up_at(now)
        elif fetch_offset >= self.fetch_leader_end_offset:
            self._caught_up_at(self.fetch_time)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        if leader_end_offset > self.fetch_leader_end_offset:
            self.fetch_leader_end_offset = leader_end_offset
        self.fetch_time = now
        self.clock = clock

    def observe(self, leader_end_offset: int) -> None:
        """Takes over the fetches that the session's clock stands for. Called before the leader's log grows, and before
        anybody asks whether the follower lags."""
        clock = self.clock
        if clock is not None and clock.time > self.fetch_time:
            self.fetched(
                self.log_end_offset,
                self.log_start_offset,
                leader_end_offset,
                clock.time,
                clock,
                clock.broker_epoch,
            )

    def is_caught_up(self, leader_end_offset: int, now: float, lag_max: float) -> bool:
        """Whether the follower has everything, or had it at most `lag_max` seconds ago; after `observe`."""
        return self.log_end_offset == leader_end_offset or now - self.caught_up_time <= lag_max

    def _begin_life(self, broker_epoch: int) -> None:
        """The follower's broker has started anew, or has told its epoch for the first time. What it had caught up with
        in its former life it may have lost. A member of the ISR keeps its time to lag: the controller takes it out."""
        if self.broker_epoch != NO_EPOCH:
            self.fetch_time = NEVER
            if not self.in_maximal_isr:
                self.caught_up_time = NEVER
        self.broker_epoch = broker_epoch

    def _caught_up_at(self, time: float) -> None:
        if time > self.caught_up_time:
            self.caught_up_time = time
