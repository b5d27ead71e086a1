"""Who is in sync with a leader, and how far all of them are: the ISR and the high watermark.

The leader alone decides whom it wants in the ISR, and the controller alone whether that is so (`isr`); the high
watermark follows from both and from how far the followers are (`remote_replica`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from barnabas.leader.isr import IsrPhase, IsrState, RefusalAction, refusal_action
from barnabas.leader.isr_changes import IsrAnswer, IsrChange
from barnabas.leader.remote_replica import RemoteReplica
from barnabas.leader.wake_ups import WatchedPartition
from barnabas.wire.errors import ErrorCode
from barnabas.wire.sentinels import NO_EPOCH

if TYPE_CHECKING:
    from barnabas.kernel.ids import Uuid
    from barnabas.leader.partition_context import PartitionContext
    from barnabas.log.partition.partition_log import PartitionLog


class LedPartition(WatchedPartition, Protocol):
    """What is to be known of a partition to say who is in sync with it."""

    partition_epoch: int
    """Taken over from the controller's answer to a change of the ISR."""

    @property
    def name(self) -> str: ...
    @property
    def topic_id(self) -> Uuid: ...
    @property
    def log(self) -> PartitionLog | None: ...
    @property
    def is_leader(self) -> bool: ...
    @property
    def is_under_min_isr(self) -> bool: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def controller_epoch(self) -> int: ...
    @property
    def leader_epoch_start_offset(self) -> int | None: ...


class InSyncReplicas:
    """The replicas of one partition, as its leader sees them; empty for a follower.

    Invariant: the high watermark is moved only to an offset that every member of the maximal ISR has.
    """

    __slots__ = ("_context", "_partition", "_refused_id", "by_id", "followers", "state")

    def __init__(self, partition: LedPartition, context: PartitionContext) -> None:
        self.followers: tuple[RemoteReplica, ...] = ()
        self.by_id: dict[int, RemoteReplica] = {}
        self.state = IsrState()
        self._partition = partition
        self._context = context
        self._refused_id: int | None = None
        """The follower that the controller has refused last."""

    def clear(self) -> None:
        """This broker does not lead."""
        self.followers = ()
        self.by_id = {}
        self.state = IsrState()

    def replace(self, replicas: Iterable[int], isr: Iterable[int]) -> None:
        """The controller has told the replicas and the ISR; what is known of followers that stay is kept."""
        followers = (replica for replica in replicas if replica != self._context.broker_id)
        self.followers = tuple(self.by_id.get(broker_id) or RemoteReplica(broker_id) for broker_id in followers)
        self.by_id = {follower.broker_id: follower for follower in self.followers}
        self._set(self.state.replace(tuple(isr)))

    def begin_epoch(self, start_offset: int, *, is_new_leader: bool) -> None:
        """A leader's epoch begins."""
        now = self._context.now()
        for follower in self.followers:
            follower.reset(now, start_offset, is_new_leader=is_new_leader, is_in_sync=follower.in_maximal_isr)

    def log_grows(self, end_offset: int) -> None:
        """The log ends at `end_offset` and is about to grow: whoever has fetched it all so far was in time."""
        for follower in self.followers:
            follower.observe(end_offset)

    def min_isr(self, log: PartitionLog) -> int:
        """`min.insync.replicas`, but never more than there are replicas."""
        return min(log.config.min_insync_replicas, len(self.followers) + 1)

    def has_enough(self, log: PartitionLog) -> bool:
        """The confirmed ISR has as many members as `min.insync.replicas` asks for."""
        return len(self.state.committed) >= self.min_isr(log)

    def expire(self) -> None:
        """Asks for an ISR without the members that lag (`replica.lag.time.max.ms`), stuck or slow; and moves the high
        watermark where it waited for a replica outside the ISR that has not come."""
        log = self._partition.log
        if log is None or not self._partition.is_leader:
            return
        now, end_offset = self._context.now(), log.log_end_offset
        lagging = [] if self.state.is_pending else self._out_of_sync(end_offset, now)
        if lagging:
            self._say(
                logging.INFO,
                "Shrinking ISR from %s to %s. Leader: (highWatermark: %d, endOffset: %d). Out of sync replicas: %s",
                list(self.state.committed),
                [member for member in self.state.committed if member not in lagging],
                *(log.high_watermark, end_offset, ", ".join(self._lag_of(member, now) for member in lagging)),
            )
            self._propose(self.state.shrink(tuple(lagging)))
        if log.high_watermark < end_offset and self.advance_high_watermark():
            self._context.wake_ups.add(self._partition)

    def reconsider(self, since: float) -> bool:
        """Asks for followers to join the ISR that could not when they were looked at, at the time `since`, and have
        fetched again; True as long as one of them may still be able to."""
        log = self._partition.log
        if log is None or not self._partition.is_leader:
            return False
        now, end_offset = self._context.now(), log.log_end_offset
        is_open = False
        for follower in self._in_turn():
            if follower.in_maximal_isr:
                continue
            follower.observe(end_offset)
            if follower.fetch_time > since:
                self.consider(follower, now)
            elif now - follower.fetch_time <= self._context.lag_max_seconds or (
                # However long it is silent: its session goes on without naming what it has. Of one that is not alive
                # `brokers_returned` will tell.
                follower.clock is not None and self._context.is_alive(follower.broker_id)
            ):
                is_open = True
        return is_open

    def _in_turn(self) -> tuple[RemoteReplica, ...]:
        """The followers, those behind the one that was refused last first: there is one change at a time, so who is
        refused again and again would be in the way of all others."""
        for position, follower in enumerate(self.followers, 1):
            if follower.broker_id == self._refused_id:
                return self.followers[position:] + self.followers[:position]
        return self.followers

    def brokers_returned(self, broker_ids: Collection[int]) -> None:
        """These brokers are alive again: who of them is outside of the ISR is looked at when its fetch session goes on.

        One that never stopped, since only its session with ZooKeeper was over, names nothing of a quiet partition then;
        and the controller tells nothing of one whose ISR it had left. Who has started anew names all.
        """
        for follower in self.followers:
            if follower.broker_id in broker_ids and follower.clock is not None and not follower.in_maximal_isr:
                self._context.reconsider_later(self, self._context.now())
                return

    def _out_of_sync(self, end_offset: int, now: float) -> list[int]:
        lag_max = self._context.lag_max_seconds
        lagging = []
        for member in self.state.committed:
            if member == self._context.broker_id:
                continue
            follower = self.by_id.get(member)
            if follower is not None:
                follower.observe(end_offset)
                if follower.is_caught_up(end_offset, now, lag_max):
                    continue
            lagging.append(member)
        return lagging

    def _lag_of(self, broker_id: int, now: float) -> str:
        follower = self.by_id.get(broker_id)
        if follower is None:
            return f"(brokerId: {broker_id}, not assigned)"
        seconds = now - follower.caught_up_time
        return f"(brokerId: {broker_id}, endOffset: {follower.log_end_offset}, caught up {seconds:.1f} s ago)"

    def consider(self, follower: RemoteReplica, now: float) -> None:
        """Asks for a follower to join the ISR if it has all that may be committed: up to the high watermark, and up to
        the start of this epoch, below which earlier leaders may have committed more than this one knows of."""
        log, start_offset = self._partition.log, self._partition.leader_epoch_start_offset
        if log is None or start_offset is None:
            return
        if follower.log_end_offset < log.high_watermark or follower.log_end_offset < start_offset:
            return
        if self.state.is_pending:
            return  # looked at again when that is decided
        if not self._context.is_alive(follower.broker_id):
            self._context.reconsider_later(self, now)
            return
        self._say(
            logging.INFO,
            "Expanding ISR from %s to %s. Leader: (highWatermark: %d, endOffset: %d)",
            *(list(self.state.committed), [*self.state.committed, follower.broker_id]),
            *(log.high_watermark, log.log_end_offset),
        )
        self._propose(self.state.expand(follower.broker_id))

    def _propose(self, state: IsrState) -> None:
        self._set(state)
        change = IsrChange(
            self._partition.topic_partition,
            self._partition.topic_id,
            self._partition.leader_epoch,
            self._partition.partition_epoch,
            {member: self._broker_epoch(member) for member in state.proposed},
            self._partition.controller_epoch,
        )
        self._context.alter_partition(change, lambda answer: self._answered(state, answer))

    def _broker_epoch(self, broker_id: int) -> int:
        """Of the life in which the follower has what this leader knows that it has. Who has not fetched since this
        broker leads is in the ISR already, and leaves it by the controller if it dies; so it needs none."""
        follower = self.by_id.get(broker_id)
        return NO_EPOCH if follower is None else follower.broker_epoch

    def _answered(self, asked: IsrState, answer: IsrAnswer) -> None:
        """The controller's answer to the change that made the state `asked`."""
        if self.state is not asked:
            return  # the controller has told a newer state meanwhile
        if answer.error is ErrorCode.NONE:
            self._confirmed(asked, answer)
        else:
            self._refused(asked, answer.error)
        self._context.reconsider_later(self, self._context.now())

    def _confirmed(self, asked: IsrState, answer: IsrAnswer) -> None:
        context, partition = self._context, self._partition
        if answer.leader_epoch != partition.leader_epoch or answer.partition_epoch < partition.partition_epoch:
            context.failed_updates.count += 1
            return  # the controller will tell of what has happened, or has told already
        meter = context.expands if asked.phase is IsrPhase.EXPANDING else context.shrinks
        meter.count += 1
        partition.partition_epoch = answer.partition_epoch
        self._set(asked.confirm(answer.isr))
        self._say(
            logging.INFO,
            "ISR updated to %s%s and version updated to %d",
            *(list(answer.isr), " (under-min-isr)" if partition.is_under_min_isr else "", answer.partition_epoch),
        )
        if self.advance_high_watermark():
            context.wake_ups.add(partition)

    def _refused(self, asked: IsrState, error: ErrorCode) -> None:
        self._context.failed_updates.count += 1
        proposed = list(asked.proposed)
        match refusal_action(error):
            case RefusalAction.ROLL_BACK:
                self._say(logging.INFO, "The controller refused the ISR %s with %s", proposed, error.name)
                if asked.phase is IsrPhase.EXPANDING:
                    self._refused_id = asked.proposed[-1]
                self._set(asked.refuse())
                if self.advance_high_watermark():
                    self._context.wake_ups.add(self._partition)
            case RefusalAction.WAIT:
                self._say(logging.DEBUG, "The controller will tell what became of the ISR %s: %s", proposed, error.name)
                self.state = asked.leave_undecided()
            case RefusalAction.RETRY:
                self._say(logging.WARNING, "Changing the ISR to %s failed with %s. Retrying", proposed, error.name)
                self._propose(IsrState(asked.committed, asked.phase, asked.proposed))

    def _say(self, level: int, message: str, *arguments: object) -> None:
        self._context.logger.log(
            level, "[Partition %s broker=%d] " + message, self._partition.name, self._context.broker_id, *arguments
        )

    def _set(self, state: IsrState) -> None:
        self.state = state
        maximal = state.maximal
        for follower in self.followers:
            follower.in_maximal_isr = follower.broker_id in maximal

    def advance_high_watermark(self) -> bool:
        """Moves the high watermark to what all have that may be in sync; True where it moved.

        Those are the maximal ISR, and whoever is caught up and about to join: were they left behind, they would never
        reach the high watermark of a busy partition. It stays while too few are in the confirmed ISR.
        """
        partition = self._partition
        log = partition.log
        if log is None or not partition.is_leader:
            return False
        if not self.followers:
            return bool(self.state.committed) and log.increase_high_watermark(log.log_end_offset)
        if not self.has_enough(log):
            return False
        end_offset = least = log.log_end_offset
        for follower in self.followers:
            if follower.log_end_offset < least and (follower.in_maximal_isr or self._is_joining(follower, end_offset)):
                least = follower.log_end_offset
        return least > log.high_watermark and log.increase_high_watermark(least)

    def _is_joining(self, follower: RemoteReplica, end_offset: int) -> bool:
        context = self._context
        follower.observe(end_offset)
        return follower.is_caught_up(end_offset, context.now(), context.lag_max_seconds) and context.is_alive(
            follower.broker_id
        )
