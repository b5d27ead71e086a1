"""Reading for Fetch requests: what each partition has to give now, within the limits of the request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from barnabas.kernel.steps import Steps
from barnabas.leader.remote_replica import FetchClock
from barnabas.log.partition.read_plans import ReadIsolation, visible_end
from barnabas.serving.fetch_partition import FetchPartition, PartitionRead
from barnabas.serving.fetch_sessions import FEW_PARTITIONS, FetchScope
from barnabas.serving.ports import MetadataSource, Replicas
from barnabas.serving.remote_fetch import RemoteFetch
from barnabas.serving.replica_selection import replica_in_rack
from barnabas.serving.topic_metrics import BrokerTopicMetrics
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.primitives import ZERO_UUID
from barnabas.wire.sentinels import NO_EPOCH

if TYPE_CHECKING:
    from barnabas.cluster.image import MetadataImage
    from barnabas.leader.partition import Partition
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.serving.fetch_session import FetchSession
    from barnabas.serving.leader_throttle import LeaderThrottle

_LOG_END: Final = ReadIsolation.LOG_END
_EXPECTED: Final = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
    )
)


class FetchQuota(Protocol):
    """What a client may fetch in a second."""

    def throttle_ms(self, size_bytes: int) -> int:
        """Counts so many bytes of records, and says for how long they are held back: then they are not given, and were
        not counted after all.
        """
        ...

    @property
    def burst(self) -> float:
        """More bytes than these are never given at once."""
        ...

    def begin(self) -> None:
        """The loop begins to work at a request, whose time may be limited."""
        ...

    def end(self) -> None:
        """It has done so."""
        ...


class FetchAccess(Protocol):
    """Whether who has sent a request may fetch a topic."""

    @property
    def epoch(self) -> int:
        """Another number whenever what follows may have changed."""
        ...

    def may_fetch(self, topic: str) -> bool: ...


class FetchParameters(NamedTuple):
    """What holds for all partitions of a request."""

    follower_id: int
    """-1 for a client."""
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: ReadIsolation
    leader_only: bool
    """False for clients that may read from followers (KIP-392)."""
    is_max_bytes_hard: bool
    """Of requests before version 3: a first batch that is too large is cut off."""
    follower_epoch: int = NO_EPOCH
    """Of the follower's broker."""
    rack_id: str = ""
    """Where a consumer is, if it says so."""
    listener_name: str = ""
    """By which a consumer with a rack has come."""
    quota: FetchQuota | None = None
    """What a client may fetch; None where there is no limit."""
    access: FetchAccess | None = None
    """None where everybody may fetch everything."""

    @property
    def is_from_follower(self) -> bool:
        return self.follower_id >= 0


Reads = list[tuple[FetchPartition, PartitionRead]]
_UNKNOWN_PARTITION: Final = PartitionRead(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, is_unknown=True)
_DENIED: Final = PartitionRead(ErrorCode.TOPIC_AUTHORIZATION_FAILED, is_unknown=True)
"""It ends no wait for others, as in Kafka."""
_UNKNOWN_TOPIC_ID: Final = PartitionRead(ErrorCode.UNKNOWN_TOPIC_ID, is_unknown=True)
_UNKNOWN_TOPIC: Final = PartitionRead(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, is_unknown=True)
READ_PER_STEP: Final = 256


def _is_denied(parameters: FetchParameters, item: FetchPartition) -> bool:
    access = parameters.access
    return access is not None and item.is_resolved and not access.may_fetch(item.topic_partition.topic)


class _Limit:
    """What is left of `max_bytes` while the partitions of a request are read."""

    __slots__ = (
        "behind",
        "bytes",
        "catch_up_bytes",
        "has_minimum",
        "has_records_in_sync",
        "has_share",
        "is_in_sync",
        "reads_remote",
    )

    def __init__(self, parameters: FetchParameters, session: FetchSession | None, *, is_throttled: bool) -> None:
        self.bytes = self.catch_up_bytes = parameters.max_bytes
        """`catch_up_bytes` is for what a follower is behind with."""
        self.has_minimum = not parameters.is_max_bytes_hard
        self.reads_remote = False
        """A partition of the request is read from remote storage; there is one at most, as in Apache Kafka."""
        self.is_in_sync = self.has_records_in_sync = False
        """A follower, with one of those looked at; and it gets records of one."""
        self.behind: list[int] = []
        """The reads with records of what it is behind with."""
        # What has no news is in sync, or will be as soon as the controller knows.
        self.has_share = session is not None and (session.catch_up.is_in_sync or session.has_quiet)
        if session is not None:
            share = session.catch_up.limit(is_alone=not self.has_share, is_throttled=is_throttled)
            self.catch_up_bytes = min(parameters.max_bytes, share)


class FetchReader:
    """Plans reads, and takes note of what followers have."""

    def __init__(
        self,
        replicas: Replicas,
        metadata: MetadataSource,
        topic_metrics: BrokerTopicMetrics,
        now: Callable[[], float],
        logger: logging.Logger,
        throttle: LeaderThrottle | None = None,
        *,
        selects_by_rack: bool = False,
    ) -> None:
        """`now` is the loop's time in seconds; with `selects_by_rack` consumers are told of a nearer replica."""
        self._selects_by_rack = selects_by_rack
        self._replicas = replicas
        self._throttle = throttle
        self._throttled: Mapping[str, object] = {} if throttle is None else throttle.topics
        """Empty nearly always, and all that is looked at then."""
        self._metadata = metadata
        self._topic_metrics = topic_metrics
        self._now = now
        self._logger = logger

    def read(self, parameters: FetchParameters, scope: FetchScope, *, updates_followers: bool) -> Reads:
        """Looks at the partitions of the scope in their order, until `max_bytes` are found; the first one that has
        anything gives at least one batch. Where there may be news of very many, which came while a fetch was parked,
        the others wait for the next request.

        `updates_followers` takes the offsets that a follower fetches from for what it has: true when its request
        comes, not when a parked one is looked at again.
        """
        reads: Reads = []
        limit = self._limit(parameters, scope, updates_followers=updates_followers)
        self._read(parameters, scope, scope.few_items(), limit, reads, updates_followers=updates_followers)
        if scope.session is not None:
            scope.session.has_left_some = scope.session.candidate_count > len(reads)
        self._share(parameters, scope, limit, reads)
        return reads

    def read_in_steps(self, parameters: FetchParameters, scope: FetchScope, *, updates_followers: bool) -> Steps[Reads]:
        """As `read`, for very many partitions: each is looked at as it is in its step. Its item says whether it has
        changed since, if it is watched. Of a session, so many have news that a response is not too large to be made,
        or taken over, in one turn: the others wait for the next request, if this one is answered at once anyway.
        """
        reads: Reads = []
        news = errors = size_bytes = 0
        is_looked_at_again = parameters.is_from_follower and not updates_followers
        is_answered = parameters.max_wait_ms <= 0 or scope.goes_on or is_looked_at_again
        items, limit = scope.items(), self._limit(parameters, scope, updates_followers=updates_followers)
        for start in range(0, len(items), READ_PER_STEP):
            some = items[start : start + READ_PER_STEP]
            for item in some:
                item.has_changed = False
            self._read(parameters, scope, some, limit, reads, updates_followers=updates_followers)
            for item, read in reads[start:]:
                item.was_unknown = read.is_unknown
                news += item.is_news(read)
                errors += read.code != ErrorCode.NONE and not read.is_unknown
                size_bytes += read.size_bytes
            yield
            is_enough = is_answered or errors > 0 or size_bytes >= parameters.min_bytes
            if scope.session is not None and news >= FEW_PARTITIONS and is_enough:
                break
        if scope.session is not None:
            scope.session.has_left_some = len(reads) < len(items)
            if parameters.is_from_follower and updates_followers and scope.session.has_left_some:
                yield from self._take_note(parameters, scope, reads)
        self._share(parameters, scope, limit, reads)
        return reads

    def _take_note(self, parameters: FetchParameters, scope: FetchScope, reads: Reads) -> Steps[None]:
        """What a follower says that it has of partitions which are read for its next requests only. Taken note of then
        it would be less than what their leader had in the requests between: who keeps up would seem to lag."""
        are_read = {item for item, _ in reads}
        nothing = _Limit(parameters, None, is_throttled=False)
        nothing.bytes = nothing.catch_up_bytes = 0
        nothing.has_minimum = False
        for some in scope.named_items(READ_PER_STEP):
            items = [item for item in some if item not in are_read]
            self._read(parameters, scope, items, nothing, [], updates_followers=True)
            yield

    def _limit(self, parameters: FetchParameters, scope: FetchScope, *, updates_followers: bool) -> _Limit:
        session = scope.session if parameters.is_from_follower else None
        if session is not None and updates_followers:
            session.catch_up.asked(self._now())
        throttle = self._throttle
        return _Limit(parameters, session, is_throttled=throttle is not None and throttle.has_bound)

    def _share(self, parameters: FetchParameters, scope: FetchScope, left: _Limit, reads: Reads) -> None:
        """Takes note for the next request of a follower's session, and has what it is behind with wait, if that may
        be, for one response with what it is in sync with."""
        session = scope.session
        if session is None or not parameters.is_from_follower:
            return
        catch_up = session.catch_up
        # Of those that are left for the next request nobody has said that it is behind.
        catch_up.is_in_sync = left.is_in_sync or session.candidate_count > len(reads)
        if left.behind and left.has_records_in_sync and catch_up.may_wait():
            for position in left.behind:
                item, read = reads[position]
                reads[position] = (item, read._replace(plan=None))
        elif left.behind:
            catch_up.answered(self._now(), is_share=left.has_share)

    def _read(
        self,
        parameters: FetchParameters,
        scope: FetchScope,
        items: Iterable[FetchPartition],
        left: _Limit,
        reads: Reads,
        *,
        updates_followers: bool,
    ) -> None:
        limit, has_minimum = left.bytes, left.has_minimum
        image = self._metadata.image
        session = scope.session
        is_from_follower = parameters.is_from_follower
        now = self._now()
        clock = session.clock if session is not None and is_from_follower else None
        access = parameters.access
        names_replica = self._selects_by_rack and bool(parameters.rack_id) and not is_from_follower
        for item in items:
            if not item.is_resolved:
                name = image.topic_name(item.topic_id)
                if name is None:
                    # Without ids it is the empty name, which no topic has.
                    reads.append((item, _UNKNOWN_TOPIC_ID if scope.uses_topic_ids else _UNKNOWN_TOPIC))
                    continue
                item.resolve(name)
            if access is not None and not access.may_fetch(item.topic_partition.topic):
                reads.append((item, _DENIED))
                continue
            if image.partition(item.topic_partition) is None:
                reads.append((item, _UNKNOWN_PARTITION))
                continue
            self._topic_metrics.of(item.topic_partition.topic).fetch_requests.count += 1
            try:
                partition = self._partition(item)
                if session is not None:
                    session.watch(item, partition)
                log = self.log(parameters, item, partition)
                leader_end_offset = log.log_end_offset
                preferred = self._preferred(parameters, item, partition, image) if names_replica else None
                if preferred is not None:
                    reads.append((item, _elsewhere(partition, log, preferred)))
                    continue
                is_behind = False
                if is_from_follower:
                    follower = partition.in_sync.by_id.get(parameters.follower_id)
                    is_behind = follower is not None and not follower.in_maximal_isr
                    left.is_in_sync |= not is_behind
                bytes_max = min(limit, left.catch_up_bytes) if is_behind else limit
                read = self._read_one(parameters, item, partition, log, bytes_max, has_minimum=has_minimum)
                if is_behind:
                    left.catch_up_bytes = max(0, left.catch_up_bytes - read.size_bytes)
                    if read.size_bytes:
                        left.behind.append(len(reads))
                elif is_from_follower and read.size_bytes:
                    left.has_records_in_sync = True
                if updates_followers and is_from_follower and read.diverging is None:
                    partition.update_follower(
                        parameters.follower_id,
                        fetch_offset=item.fetch_offset,
                        log_start_offset=item.log_start_offset,
                        leader_end_offset=leader_end_offset,
                        now=now,
                        clock=clock,
                        broker_epoch=parameters.follower_epoch,
                    )
                    if log.high_watermark != read.high_watermark:
                        # This very fetch has moved it; the follower need not wait for the next to learn so.
                        read = read._replace(
                            high_watermark=log.high_watermark, last_stable_offset=log.last_stable_offset
                        )
            except Exception as error:  # noqa: BLE001 - sorted there
                read = self._refused(item, error)
                if read.code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE and not is_from_follower:
                    read = self._in_remote_storage(parameters, item, left, limit, has_minimum=has_minimum)
            if read.size_bytes:
                has_minimum = False
                limit = max(0, limit - read.size_bytes)
            reads.append((item, read))
        left.bytes, left.has_minimum = limit, has_minimum

    def log(self, parameters: FetchParameters, item: FetchPartition, partition: Partition) -> PartitionLog:
        """The log to read. Raises KafkaError where the reader may not, in the leader epoch that it names."""
        # Whatever is negative stands for no epoch.
        leader_epoch = item.leader_epoch if item.leader_epoch >= 0 else NO_EPOCH
        log = partition.readable_log(leader_epoch, leader_only=parameters.leader_only)
        if parameters.follower_id >= 0 and parameters.follower_id not in partition.in_sync.by_id:
            partition.check_follower(parameters.follower_id, leader_epoch)
        return log

    def log_in_step(
        self,
        parameters: FetchParameters,
        item: FetchPartition,
        leader_epoch: int,
        fetch_offset: int,
        last_fetched_epoch: int,
    ) -> PartitionLog | None:
        """The log that an item of a session stands for, where its follower may fetch from there, in this leader epoch,
        and agrees with the log as far as it has come; None where only `read` can tell what there is to say.

        Invariant: whatever `read` looks at before it looks for records was looked at here, or has been and would have
        been told to the session's watch since.
        """
        partition = item.watched
        if partition is None or not partition.is_leader or partition.leader_epoch != leader_epoch:
            return None
        if _is_denied(parameters, item):
            return None
        log = partition.log
        if (
            log is None
            or log.is_offline
            or log.is_closed
            or log.topic_id != item.topic_id
            or last_fetched_epoch < 0
            or last_fetched_epoch != log.leader_epochs.latest_epoch
            or not log.local_log_start_offset <= fetch_offset <= log.log_end_offset
        ):
            return None
        follower = partition.in_sync.by_id.get(parameters.follower_id)
        if follower is None or follower.broker_epoch != parameters.follower_epoch:
            return None
        if self._throttled and self._is_held_back(parameters, partition):
            return None
        return None if self._metadata.image.partition(item.topic_partition) is None else log

    def count_read(self, item: FetchPartition) -> None:
        """Counts that an item was looked at otherwise than by `read`."""
        self._topic_metrics.of(item.topic_partition.topic).fetch_requests.count += 1

    def follower_has(
        self, parameters: FetchParameters, item: FetchPartition, log: PartitionLog, clock: FetchClock, now: float
    ) -> None:
        """Takes the offset that an item is fetched from for what its follower has, of a log that `log_in_step` gave."""
        if item.watched is not None:
            item.watched.update_follower(
                parameters.follower_id,
                fetch_offset=item.fetch_offset,
                log_start_offset=item.log_start_offset,
                leader_end_offset=log.log_end_offset,
                now=now,
                clock=clock,
                broker_epoch=parameters.follower_epoch,
            )

    def find_partition(self, parameters: FetchParameters, item: FetchPartition) -> Partition | None:
        """The partition of an item, as far as it is here and may be fetched."""
        if _is_denied(parameters, item):
            return None
        try:
            return self._partition(item)
        except KafkaError:
            return None

    def available(self, parameters: FetchParameters, item: FetchPartition) -> int | None:
        """How many bytes a parked fetch would get of a partition, or fewer if they are enough for it; None if it must
        be answered, whatever it gets."""
        if _is_denied(parameters, item):
            return 0  # said before or after the wait, which it does not end
        known = item.watched
        if known is not None and known.is_leader and known.leader_epoch == item.leader_epoch and known.log is not None:
            # When it was parked, the reader's log was found to agree; and within its epoch a leader's log only grows.
            behind = visible_end(known.log, parameters.isolation) - item.fetch_offset
            if not behind or (behind > 0 and parameters.min_bytes <= 1):
                return 0 if not behind or (self._throttled and self._is_held_back(parameters, known)) else 1
        try:
            partition = self._partition(item)
            log = self.log(parameters, item, partition)
            if item.last_fetched_epoch >= 0 and partition.diverging_epoch(item.last_fetched_epoch, item.fetch_offset):
                return None
        except KafkaError:
            return None
        end_offset = visible_end(log, parameters.isolation)
        if item.fetch_offset > end_offset:
            return None  # the log was truncated
        if item.fetch_offset == end_offset or (self._throttled and self._is_held_back(parameters, partition)):
            return 0
        try:
            return min(log.bytes_from(item.fetch_offset, parameters.isolation), item.max_bytes)
        except KafkaError:
            return None

    def _is_held_back(self, parameters: FetchParameters, partition: Partition) -> bool:
        """A throttle keeps the partition's records from the follower for now."""
        throttle, follower_id = self._throttle, parameters.follower_id
        return throttle is not None and follower_id >= 0 and throttle.holds_back(partition, follower_id)

    @staticmethod
    def _preferred(
        parameters: FetchParameters, item: FetchPartition, partition: Partition, image: MetadataImage
    ) -> int | None:
        """A replica that is nearer to the consumer than this leader."""
        if not partition.is_leader:
            return None
        return replica_in_rack(partition, item.fetch_offset, parameters.rack_id, parameters.listener_name, image)

    def _partition(self, item: FetchPartition) -> Partition:
        partition = self._replicas.get_partition(item.topic_partition)
        topic_id = item.topic_id
        if topic_id != ZERO_UUID and partition.topic_id not in (topic_id, ZERO_UUID):
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{item.topic_partition.topic} has another id here than in the request"
            )
        return partition

    def _read_one(
        self,
        parameters: FetchParameters,
        item: FetchPartition,
        partition: Partition,
        log: PartitionLog,
        limit: int,
        *,
        has_minimum: bool,
    ) -> PartitionRead:
        if item.last_fetched_epoch >= 0:
            diverging = partition.diverging_epoch(item.last_fetched_epoch, item.fetch_offset)
            if diverging is not None:
                return PartitionRead(
                    ErrorCode.NONE,
                    log.high_watermark,
                    log.last_stable_offset,
                    log.log_start_offset,
                    diverging=diverging,
                    partition=partition,
                )
        is_readable = not (log.is_offline or log.is_closed)
        if item.fetch_offset == log.log_end_offset and parameters.isolation is _LOG_END and is_readable:
            # A follower that has everything, as it nearly always has when its request comes: there is nothing to plan.
            return PartitionRead(
                ErrorCode.NONE,
                log.high_watermark,
                log.last_stable_offset,
                log.log_start_offset,
                partition=partition,
                has_more=False,
            )
        if (
            self._throttled
            and is_readable
            and log.local_log_start_offset <= item.fetch_offset < log.log_end_offset
            and self._is_held_back(parameters, partition)
        ):
            # Very many may be held back, and be looked at whenever their follower fetches others.
            return PartitionRead(
                ErrorCode.NONE, log.high_watermark, log.last_stable_offset, log.log_start_offset, partition=partition
            )
        found = log.read(item.fetch_offset, min(item.max_bytes, limit), parameters.isolation, has_minimum=has_minimum)
        plan = found.plan
        if plan is not None and plan.is_first_batch_incomplete and not parameters.is_max_bytes_hard:
            # Clients of version 3 and above can do nothing with a part of a batch, and need no error to get on.
            plan = None
        return PartitionRead(
            ErrorCode.NONE,
            found.high_watermark,
            found.last_stable_offset,
            found.log_start_offset,
            plan,
            found.aborted,
            partition=partition,
            has_more=item.fetch_offset < visible_end(log, parameters.isolation),
        )

    def _in_remote_storage(
        self, parameters: FetchParameters, item: FetchPartition, left: _Limit, limit: int, *, has_minimum: bool
    ) -> PartitionRead:
        """What a consumer gets of a tiered partition whose local log starts behind its offset: it is read where the
        response is made, as what is not cached is."""
        try:
            partition = self._partition(item)
            log = self.log(parameters, item, partition)
        except KafkaError as error:
            return self._refused(item, error)
        remote = None
        bytes_max = min(item.max_bytes, limit)
        if not left.reads_remote and (bytes_max or has_minimum):
            left.reads_remote = True
            is_committed = parameters.isolation is ReadIsolation.COMMITTED
            remote = RemoteFetch(log, item.fetch_offset, max(1, bytes_max), has_minimum, is_committed)
        return PartitionRead(
            ErrorCode.NONE,
            log.high_watermark,
            log.last_stable_offset,
            log.log_start_offset,
            partition=partition,
            remote=remote,
        )

    def _refused(self, item: FetchPartition, error: Exception) -> PartitionRead:
        if isinstance(error, KafkaError):
            if error.code not in _EXPECTED:
                self._topic_metrics.of(item.topic_partition.topic).fetch_failures.count += 1
            return PartitionRead(error.code, partition=item.watched)
        self._topic_metrics.of(item.topic_partition.topic).fetch_failures.count += 1
        self._logger.error("Fetching %r failed", item, exc_info=error)
        return PartitionRead(ErrorCode.UNKNOWN_SERVER_ERROR, partition=item.watched)


def _elsewhere(partition: Partition, log: PartitionLog, preferred: int) -> PartitionRead:
    """Nothing is read for a consumer that had better ask another replica."""
    return PartitionRead(
        ErrorCode.NONE,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        partition=partition,
        preferred_replica=preferred,
    )


def drop_unreadable(reads: Reads, positions: Sequence[int]) -> None:
    """Gives nothing of segments that were closed or truncated since they were looked at in a former step: deleted, with
    their topic or for their age, or of a leader that was deposed. The client comes back.

    Invariant: what is read after this, in the same step, is whole batches of what was planned.
    """
    for position in positions:
        item, read = reads[position]
        if read.plan is not None and not read.plan.is_readable:
            reads[position] = (item, read._replace(plan=None))
