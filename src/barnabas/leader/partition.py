"""One replica of one partition on this broker: whether it leads or follows, and what that allows.

A leader takes records, knows how far its followers are, decides with the controller who is in sync, and moves the high
watermark. A follower's log is filled by a fetcher. What either becomes is decided by the controller alone
(LeaderAndIsr, StopReplica), each decision with a greater leader epoch than the one before.

Invariants, held by tests/unit/follower/test_replicated_partitions.py in any order of events:
- within one leader epoch the high watermark of the leader never goes back;
- what is below a high watermark that was ever exposed is in the log of every leader that is elected from an ISR;
- below the least of two replicas' high watermarks their logs agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.leader.in_sync_replicas import InSyncReplicas
from barnabas.leader.remote_replica import FetchClock, RemoteReplica
from barnabas.log.partition.leader_epochs import EpochEnd
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_validation import AppendOrigin, ValidatedBatch
from barnabas.wire.sentinels import ACKS_ALL, NO_EPOCH, NO_LEADER, NO_OFFSET

if TYPE_CHECKING:
    from barnabas.kernel.host import Buffer
    from barnabas.leader.partition_context import PartitionContext
    from barnabas.leader.wake_ups import PartitionWatcher
    from barnabas.log.partition.appending import AppendedTogether, AppendResult, Validation
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.wire.messages import LeaderAndIsrRequest
    from barnabas.wire.topics import TopicPartition

_CLIENT: Final = AppendOrigin.CLIENT


class Partition:
    """A partition, as far as this broker has to do with it. Made by `ReplicaManager`."""

    __slots__ = (
        "_context",
        "adding_replicas",
        "controller_epoch",
        "in_sync",
        "is_leader",
        "is_offline",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_id",
        "log",
        "partition_epoch",
        "removing_replicas",
        "replicas",
        "topic_partition",
        "watchers",
    )

    def __init__(self, topic_partition: TopicPartition, context: PartitionContext) -> None:
        self.topic_partition = topic_partition
        self.log: PartitionLog | None = None
        """None until the controller has spoken of the partition, and when it is not here any more."""
        self.leader_id = NO_LEADER
        self.is_leader = False
        """This broker leads the partition, and has its log."""
        self.is_offline = False
        self.leader_epoch = NO_EPOCH
        self.leader_epoch_start_offset: int | None = None
        """Where the log ended when this broker began to lead in this epoch; None for a follower."""
        self.partition_epoch = 0
        self.controller_epoch = 0
        self.replicas: tuple[int, ...] = ()
        self.adding_replicas: tuple[int, ...] = ()
        self.removing_replicas: tuple[int, ...] = ()
        self.watchers: dict[PartitionWatcher, None] = {}
        self._context = context
        self.in_sync = InSyncReplicas(self, context)
        """Followers, ISR and high watermark, of a leader."""

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else f"follower of {self.leader_id}"
        return f"<Partition {self.topic}-{self.number} {role} epoch {self.leader_epoch} isr {list(self.isr)}>"

    # What is known of it.

    @property
    def topic(self) -> str:
        return self.topic_partition.topic

    @property
    def name(self) -> str:
        """As its directory: `topic-0`."""
        return f"{self.topic_partition.topic}-{self.topic_partition.partition}"

    @property
    def number(self) -> int:
        return self.topic_partition.partition

    @property
    def topic_id(self) -> Uuid:
        """ZERO_UUID where the log has none."""
        log = self.log
        return ZERO_UUID if log is None or log.topic_id is None else log.topic_id

    @property
    def isr(self) -> tuple[int, ...]:
        """The ISR that the controller has confirmed; empty for a follower."""
        return self.in_sync.state.committed

    @property
    def replication_factor(self) -> int:
        """During a reassignment, that of the original replicas."""
        return len([replica for replica in self.replicas if replica not in self.adding_replicas])

    @property
    def followers(self) -> tuple[RemoteReplica, ...]:
        """The other replicas, of a leader."""
        return self.in_sync.followers

    @property
    def is_under_replicated(self) -> bool:
        return self.is_leader and self.replication_factor > len(self.in_sync.state.committed)

    @property
    def is_under_min_isr(self) -> bool:
        log = self.log
        return log is not None and self.is_leader and not self.in_sync.has_enough(log)

    @property
    def is_at_min_isr(self) -> bool:
        log = self.log
        return log is not None and self.is_leader and len(self.isr) == self.in_sync.min_isr(log)

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def log_start_offset(self) -> int:
        return self._local_log().log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._local_log().log_end_offset

    @property
    def high_watermark(self) -> int:
        return self._local_log().high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self._local_log().last_stable_offset

    def leader_log(self, current_leader_epoch: int = NO_EPOCH) -> PartitionLog:
        """The log, if this broker leads; `current_leader_epoch` is what the client believes.

        Raises KafkaError: NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH for an epoch that is over,
        UNKNOWN_LEADER_EPOCH for one that this broker has not heard of.
        """
        return self.readable_log(current_leader_epoch, leader_only=True)

    def readable_log(self, current_leader_epoch: int = NO_EPOCH, *, leader_only: bool) -> PartitionLog:
        """As `leader_log`; without `leader_only` a follower's log will do."""
        log = self.log
        if (
            log is None
            or (leader_only and not self.is_leader)
            or current_leader_epoch not in (NO_EPOCH, self.leader_epoch)
        ):
            raise self._refusal(current_leader_epoch)
        return log

    # Becoming something.

    def become_leader(
        self,
        state: LeaderAndIsrRequest.LeaderAndIsrPartitionState,
        make_log: Callable[[], PartitionLog],
    ) -> bool:
        """Leads from now on; True where it did not before. A state that is older than ours changes nothing.

        `make_log` gives the log where there is none yet. Raises KafkaError with KAFKA_STORAGE_ERROR as it does.
        """
        if self._is_older(state):
            # Equal is allowed: the answer to AlterPartition may have brought the epoch before the request came.
            self._context.state_changes.info(
                "Skipped the become-leader state change of %s at partition epoch %d: a newer one, %d, is known",
                *(self.name, state.partition_epoch, self.partition_epoch),
            )
            return False
        log = self.log if self.log is not None else make_log()
        self.log = log
        self._take_over(state)
        is_new_leader = not self.is_leader
        # Between two epochs that do not follow each other somebody else may have led, and a follower may have cut off
        # what it had then: what is known of it counts no more, or the high watermark would be moved ahead of it.
        has_led_throughout = self.is_leader and state.leader_epoch <= self.leader_epoch + 1
        self.in_sync.replace(state.replicas, state.isr)
        if state.leader_epoch > self.leader_epoch:
            self._begin_epoch(log, state.leader_epoch, is_new_leader=not has_led_throughout)
        self.leader_id = self._context.broker_id
        self.is_leader = True
        self.in_sync.advance_high_watermark()  # the ISR may have no other member
        self._context.wake_ups.add(self)
        return is_new_leader

    def become_follower(
        self,
        state: LeaderAndIsrRequest.LeaderAndIsrPartitionState,
        make_log: Callable[[], PartitionLog],
    ) -> bool:
        """Follows `state.leader` from now on; True if its fetching has to start anew, for the epoch is new.

        As `become_leader` otherwise.
        """
        if self._is_older(state):
            self._context.state_changes.info(
                "Skipped the become-follower state change of %s at partition epoch %d: a newer one, %d, is known",
                *(self.name, state.partition_epoch, self.partition_epoch),
            )
            return False
        log = self.log if self.log is not None else make_log()
        self.log = log
        is_new_epoch = state.leader_epoch > self.leader_epoch
        previous_leader, previous_epoch = self.leader_id, self.leader_epoch
        self._take_over(state)
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.leader_epoch_start_offset = None
        self.is_leader = False
        self.in_sync.clear()
        self._context.wake_ups.add(self)
        if is_new_epoch:
            self._context.state_changes.info(
                "Follower %s starts at leader epoch %d from offset %d with partition epoch %d and high watermark %d. "
                "Current leader is %d. Previous leader %d and previous leader epoch was %d",
                *(self.name, self.leader_epoch, log.log_end_offset, self.partition_epoch),
                *(log.high_watermark, self.leader_id, previous_leader, previous_epoch),
            )
        return is_new_epoch

    def _is_older(self, state: LeaderAndIsrRequest.LeaderAndIsrPartitionState) -> bool:
        """Of a later leader epoch none is, whatever its partition epoch: somebody has deleted the state znode, and the
        controller that made it again had not heard how many versions it had. (Kafka's brokers skip it, so that the
        leader of before goes on for as long.)
        """
        return state.partition_epoch < self.partition_epoch and state.leader_epoch <= self.leader_epoch

    def create_log(self, make_log: Callable[[], PartitionLog]) -> None:
        """Makes the log where there is none, for a follower whose leader is not known yet: its high watermark must not
        be missing from the checkpoint."""
        if self.log is None:
            self.log = make_log()

    def replace_log(self, log: PartitionLog) -> None:
        """Goes on with another log, of which the records, offsets and epochs are those of the former one; whoever waits
        for something looks again."""
        self.log = log
        self._context.wake_ups.add(self)

    def close(self, *, is_offline: bool = False) -> None:
        """The replica is not here any more, because it was deleted or because its log directory has failed."""
        self.log = None
        self.is_leader = False
        self.is_offline = is_offline
        self.leader_id = NO_LEADER
        self.leader_epoch_start_offset = None
        self.replicas = self.adding_replicas = self.removing_replicas = ()
        self.in_sync.clear()
        self._context.wake_ups.add(self)

    def _take_over(self, state: LeaderAndIsrRequest.LeaderAndIsrPartitionState) -> None:
        self.controller_epoch = state.controller_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = tuple(state.replicas)
        self.adding_replicas = tuple(state.adding_replicas)
        self.removing_replicas = tuple(state.removing_replicas)

    def _begin_epoch(self, log: PartitionLog, leader_epoch: int, *, is_new_leader: bool) -> None:
        start_offset = log.append_end_offset
        self._context.state_changes.info(
            "Leader %s starts at leader epoch %d from offset %d with partition epoch %d, high watermark %d, ISR %s, "
            "adding replicas %s and removing replicas %s. Previous leader %d and previous leader epoch was %d",
            *(self.name, leader_epoch, start_offset, self.partition_epoch, log.high_watermark),
            *(list(self.isr), list(self.adding_replicas), list(self.removing_replicas)),
            *(self.leader_id, self.leader_epoch),
        )
        # Known before the first record of the epoch: a follower may have records of an epoch that this log lacks, and
        # must learn where they part.
        log.begin_epoch(leader_epoch, start_offset)
        self.in_sync.begin_epoch(start_offset, is_new_leader=is_new_leader)
        self.leader_epoch = leader_epoch
        self.leader_epoch_start_offset = start_offset

    # A leader's data.

    def append(
        self,
        records: bytearray | memoryview,
        *,
        required_acks: int,
        produce_version: int | None,
        origin: AppendOrigin = _CLIENT,
        writes_at_once: bool = False,
        only_at_once: bool = False,
    ) -> AppendResult:
        """Appends records of a client, or of a coordinator of this broker, in the present leader epoch.

        `writes_at_once` is for records that no others will join in this tick, however few they are. `only_at_once` has
        TakesLongError raised for records that are to go by `validation` and `append_after`.

        Raises KafkaError: NOT_LEADER_OR_FOLLOWER; NOT_ENOUGH_REPLICAS if all in sync must have the records
        (`required_acks` -1) and too few are, by the confirmed ISR; and what the log raises.
        """
        log, in_sync = self.log, self.in_sync
        if log is None or not self.is_leader or required_acks == ACKS_ALL or in_sync.followers:
            log = self._log_to_append_to(required_acks)
        result = log.append_as_leader(
            records,
            self.leader_epoch,
            origin=origin,
            produce_version=produce_version,
            writes_at_once=writes_at_once,
            only_at_once=only_at_once,
        )
        self._has_grown()
        return result

    def validation(
        self, records: bytearray, *, required_acks: int, produce_version: int
    ) -> tuple[PartitionLog, Validation]:
        """The first half of `append` in steps, and the log that it is for; nothing has changed after it. Raises
        KafkaError as `append`, and the steps RecordsError.
        """
        log = self._appendable_log(required_acks)
        return log, log.validation(records, produce_version)

    def append_after(
        self, log: PartitionLog, validation: Validation, batch: ValidatedBatch, *, required_acks: int
    ) -> AppendResult | None:
        """The second half, whole in this turn; None where the log or its rules are not those of the first half any
        more, which is to be done again then.

        Invariant: whether this broker leads, whether enough replicas are in sync, the leader epoch, the offsets and the
        producer's state are those of the turn of the append; nothing of the first half is kept but what follows from
        the bytes and the rules alone. Raises KafkaError as `append`.
        """
        if self._log_to_append_to(required_acks) is not log:
            return None
        result = log.append_after(validation, batch, self.leader_epoch)
        if result is not None:
            self._has_grown()
        return result

    def append_all(
        self, batches: Sequence[Buffer], *, required_acks: int, produce_version: int, writes_at_once: bool = False
    ) -> AppendedTogether:
        """`append` for what several requests of clients have brought, in their order and each with its own outcome.

        Raises KafkaError where nothing can be appended at all.
        """
        log = self._log_to_append_to(required_acks)
        together = log.append_all_as_leader(
            batches, self.leader_epoch, produce_version=produce_version, writes_at_once=writes_at_once
        )
        if together.error_count < len(batches):
            self._has_grown()
        return together

    def _has_grown(self) -> None:
        """Something was appended."""
        if self.in_sync.advance_high_watermark():
            self._context.wake_ups.add(self)
        else:
            self._context.wake_ups.add_grown(self)

    def log_written(self) -> None:
        """What was appended some time ago is in the log from now on, for all but those who append."""
        if self.is_leader:
            self._has_grown()
        else:
            self._context.wake_ups.add(self)

    def _log_to_append_to(self, required_acks: int) -> PartitionLog:
        log = self._appendable_log(required_acks)
        if self.in_sync.followers:
            self.in_sync.log_grows(log.log_end_offset)
        return log

    def _appendable_log(self, required_acks: int) -> PartitionLog:
        log = self.log
        if log is None or not self.is_leader:
            raise self._refusal(NO_EPOCH)
        in_sync = self.in_sync
        if required_acks == ACKS_ALL and not in_sync.has_enough(log):
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"of {self.name} {list(self.isr)} are in sync; min.insync.replicas is {in_sync.min_isr(log)}",
            )
        return log

    def is_replicated(self, required_offset: int) -> ErrorCode | None:
        """Whether all in sync have the records below `required_offset`: None for not yet.

        NONE when they have; NOT_ENOUGH_REPLICAS_AFTER_APPEND when they have and are too few by now;
        NOT_LEADER_OR_FOLLOWER when this broker cannot tell any more.
        """
        log = self.log
        if log is None or not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if log.high_watermark < required_offset:
            return None
        if len(self.in_sync.state.maximal) < self.in_sync.min_isr(log):
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def awaits_disk_only(self, required_offset: int) -> bool:
        """Whether no other broker is waited for until all in sync have the records below `required_offset`: they have
        them, or are this broker alone, which has not written them yet."""
        if self.is_replicated(required_offset) is not None:
            return True
        return self.log is not None and self.log.has_unwritten and len(self.in_sync.state.maximal) == 1

    def delete_records(self, offset: int) -> int:
        """Drops the records below `offset` (-1: the high watermark), and returns the low watermark.

        Raises KafkaError: NOT_LEADER_OR_FOLLOWER, and as the log does POLICY_VIOLATION and OFFSET_OUT_OF_RANGE.
        """
        log = self.leader_log()
        log.delete_records_to(offset)
        self._context.wake_ups.add(self)
        return self.low_watermark

    @property
    def low_watermark(self) -> int:
        """The least log start offset of all replicas that are alive. Raises KafkaError if this broker does not lead."""
        low = self.leader_log().log_start_offset
        for follower in self.in_sync.followers:
            if follower.log_start_offset < low and self._context.is_alive(follower.broker_id):
                low = follower.log_start_offset
        return low

    def latest_offset_error(self) -> ErrorCode | None:
        """OFFSET_NOT_AVAILABLE as long as a new leader's high watermark is behind the start of its epoch, where it
        may be behind what clients have seen already (KIP-207)."""
        start_offset = self.leader_epoch_start_offset
        if start_offset is not None and self.log is not None and start_offset > self.log.high_watermark:
            return ErrorCode.OFFSET_NOT_AVAILABLE
        return None

    # Followers, seen by the leader.

    def check_follower(self, follower_id: int, current_leader_epoch: int) -> RemoteReplica:
        """The replica of a follower that wants to read. Raises KafkaError as `leader_log`, and for a broker that has no
        replica as far as we know UNKNOWN_LEADER_EPOCH, so that it tries again."""
        self.leader_log(current_leader_epoch)
        follower = self.in_sync.by_id.get(follower_id)
        if follower is None:
            # Without an epoch nobody can say which of the two is behind.
            has_epoch = current_leader_epoch != NO_EPOCH
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH if has_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {follower_id} has no replica of {self.name} among {list(self.replicas)} "
                f"in leader epoch {self.leader_epoch}",
            )
        return follower

    def diverging_epoch(self, last_fetched_epoch: int, fetch_offset: int) -> EpochEnd | None:
        """Where the log of a reader parts from ours, which fetches from `fetch_offset` and whose last record is of
        `last_fetched_epoch`; None if it does not (KIP-595).

        Raises KafkaError with OFFSET_OUT_OF_RANGE where that cannot be told.
        """
        log = self._local_log()
        is_in_range = log.log_start_offset <= fetch_offset <= log.log_end_offset
        if is_in_range and last_fetched_epoch == log.leader_epochs.latest_epoch:
            return None  # the last epoch ends where the log does
        end = log.end_offset_for_epoch(last_fetched_epoch)
        if end.end_offset == NO_OFFSET or end.epoch == NO_EPOCH:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name} does not know where leader epoch {last_fetched_epoch} ends",
            )
        if fetch_offset < log.log_start_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name} has the offsets from {log.log_start_offset} to {log.log_end_offset}, not {fetch_offset}",
            )
        if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset:
            return end
        return None

    def end_offset_for_epoch(
        self, leader_epoch: int, current_leader_epoch: int = NO_EPOCH, *, leader_only: bool
    ) -> EpochEnd:
        """Where a leader epoch ends in this log, for OffsetForLeaderEpoch. Raises KafkaError as `readable_log`."""
        return self.readable_log(current_leader_epoch, leader_only=leader_only).end_offset_for_epoch(leader_epoch)

    def update_follower(
        self,
        follower_id: int,
        *,
        fetch_offset: int,
        log_start_offset: int,
        leader_end_offset: int,
        now: float,
        clock: FetchClock | None = None,
        broker_epoch: int = NO_EPOCH,
    ) -> None:
        """Takes note of a follower's fetch, which did not diverge. May ask for a greater ISR and move the high
        watermark. Raises KafkaError with NOT_LEADER_OR_FOLLOWER for a fetch of a former life of the follower's broker.

        `leader_end_offset` is the end of the log before the read; `now` the loop's time; `clock` that of the follower's
        incremental session, which stands for its later fetches that do not name the partition; `broker_epoch` that of
        the life in which the follower's broker has fetched (KIP-903).
        """
        follower = self.in_sync.by_id.get(follower_id)
        if follower is None:
            return
        has_moved = follower.log_end_offset != fetch_offset
        may_raise_low_watermark = log_start_offset > follower.log_start_offset
        if broker_epoch != follower.broker_epoch and follower.is_of_former_life(broker_epoch):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {follower_id} has fetched {self.name} in its epoch {follower.broker_epoch} already, "
                f"and this fetch is of epoch {broker_epoch}",
            )
        follower.fetched(fetch_offset, log_start_offset, leader_end_offset, now, clock, broker_epoch)
        if not follower.in_maximal_isr:
            self.in_sync.consider(follower, now)
        if (has_moved and self.in_sync.advance_high_watermark()) or may_raise_low_watermark:
            self._context.wake_ups.add(self)

    def follower_joined(self, follower_id: int, clock: FetchClock) -> None:
        """A fetch of the follower has opened a session: `clock` tells of the next ones, if `update_follower` has told
        of this one."""
        follower = self.in_sync.by_id.get(follower_id)
        if follower is not None and follower.clock is None and follower.log_end_offset != NO_OFFSET:
            follower.clock = clock

    def is_fetched_by(self, follower_id: int, clock: FetchClock) -> bool:
        """Whether `clock` tells of the follower's fetches; so it does not if the follower is none as far as we know."""
        follower = self.in_sync.by_id.get(follower_id)
        return follower is not None and follower.clock is clock

    def follower_left(self, follower_id: int, clock: FetchClock) -> None:
        """The follower's session does not fetch the partition any more."""
        follower = self.in_sync.by_id.get(follower_id)
        log = self.log
        if follower is not None and follower.clock is clock and log is not None:
            follower.observe(log.log_end_offset)
            follower.clock = None

    def _local_log(self) -> PartitionLog:
        if self.log is None:
            raise self._refusal(NO_EPOCH)
        return self.log

    def _refusal(self, current_leader_epoch: int) -> KafkaError:
        if current_leader_epoch != NO_EPOCH and current_leader_epoch != self.leader_epoch:
            is_over = current_leader_epoch < self.leader_epoch
            return KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH if is_over else ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"{self.name} is at leader epoch {self.leader_epoch} here, not {current_leader_epoch}",
            )
        if self.is_offline:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} is in an offline log directory")
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self._context.broker_id} does not lead {self.name}"
        )
