"""Fetches the partitions that this broker follows from one of their leaders.

One request is in flight at a time, as in Apache Kafka's fetcher threads. The way from a response to the next request is
short: the records are appended while they lie in the receive buffer, and the request leaves in the same tick, behind
the write of what was appended, since it tells the leader that we have it. Whatever takes longer, cutting logs off and
asking the leader for offsets, is done by the fetcher's task between requests.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from barnabas.follower.fetch_pacing import FetchWait, retry_delay_ms
from barnabas.follower.fetch_protocol import FETCH_WITH_REPLICA_STATE
from barnabas.follower.fetcher_partitions import FetchedPartition, FetcherPartitions, FetchPhase
from barnabas.follower.follower_requests import fetch_request
from barnabas.follower.follower_session import FollowerSession, Position
from barnabas.follower.offset_reconciler import OffsetReconciler
from barnabas.follower.repeated_fetch_request import FetchedAgain, RepeatedFetchRequest
from barnabas.kernel.metrics import Meter
from barnabas.log.partition.appending import UnexpectedOffsetError
from barnabas.log.partition.leader_epochs import EpochEnd
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.fetch_session import Composition
from barnabas.wire.record_errors import CorruptRecordError
from barnabas.wire.sentinels import NO_EPOCH, NO_OFFSET
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.cluster.image import Node
    from barnabas.follower.fetcher_context import FetcherContext
    from barnabas.follower.hand_over import HandOver
    from barnabas.kernel.ids import Uuid
    from barnabas.log.partition.partition_log import PartitionLog
    from barnabas.quotas.replication_quota import ReplicationQuota
    from barnabas.wire.messages import FetchRequest, FetchResponse

NAMED_MAX: Final = 512
"""Partitions that a request names, if not more have got records: very many of them hold the loop here, and at the
leader."""
_LOG_START_CHECK_SECONDS: Final = 5.0
_WRITE_PATIENCE_MS: Final = 100
"""So long the next request waits for what is written off the loop."""
"""How often all log start offsets are compared with what the leader was told: retention moves them behind our back."""
_NO_LAG: Final = 0
_QUOTA_CHECK_SECONDS: Final = 1.0
_QUOTA_CHECK_SECONDS_MIN: Final = 0.001
_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""The leader has forgotten the session, or sees it otherwise: a full request opens another one at once."""


class ReplicaFetcher:
    """One fetcher, `ReplicaFetcherThread-I-B` of Kafka: number I of those that fetch from broker B."""

    def __init__(
        self,
        context: FetcherContext,
        leader: Node,
        fetcher_id: int,
        on_failed: Callable[[TopicPartition], object],
        hand_over: HandOver | None = None,
    ) -> None:
        """`on_failed` is told of a partition that this fetcher has given up, until it is added again; `hand_over` is
        for what the other one is to fetch."""
        self.name = f"ReplicaFetcherThread-{fetcher_id}-{leader.broker_id}"
        self.leader = leader
        self.requests = Meter(context.loop.time)
        self.bytes_fetched = Meter(context.loop.time)
        self._context = context
        self._on_failed = on_failed
        self._hand_over = hand_over
        self._client_id = f"broker-{context.broker_id}-fetcher-{fetcher_id}"
        self._connection = context.connections.connect(leader, self._client_id)
        self._partitions = FetcherPartitions()
        self._session = FollowerSession()
        self._wait = FetchWait(context.settings.fetch_wait_max_ms)
        self._reconciler = OffsetReconciler(
            context, self._partitions, self._connection, delay=self._ask_again_soon, fail=self._fail_partition
        )
        self._log_starts_checked = context.loop.time()
        self._log_starts_unchecked: list[FetchedPartition] = []
        self._named_before: TopicPartition | None = None
        """The one partition that the last request named."""
        self._names_in_parts = True
        """A request names `NAMED_MAX` partitions, and the next ones the others; where their leader does not keep them,
        False until a session is opened with all."""
        self._partitions_left = False
        """The last request has not named all that it had to."""
        self._is_filling = False
        """Nor has any since the one that was to open the session."""
        self._repeated: RepeatedFetchRequest | None = None
        """The request that the next one is expected to be like."""
        self._chain: asyncio.Future[None] | None = None
        """Done when the fetches that follow each other are to be interrupted."""
        self._awake = asyncio.Event()
        self._unwritten = 0
        """Appends of the last response that are not in their files yet."""
        self._response_number = 0
        self._is_closed = False
        self._task = context.loop.create_task(self._run(), name=self.name)

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def partitions(self) -> Iterable[FetchedPartition]:
        """What is fetched."""
        return tuple(self._partitions)

    @property
    def is_dead(self) -> bool:
        """The task has ended, though nobody closed the fetcher."""
        return self._task.done() and not self._is_closed

    @property
    def lag_max(self) -> int:
        """Records by which the partition is behind that is most behind."""
        return max((fetched.lag or _NO_LAG for fetched in self._partitions), default=_NO_LAG)

    def add(self, fetched: Iterable[FetchedPartition]) -> None:
        """Fetches these too; one that is here already in the same epoch goes on as it is."""
        for partition in fetched:
            known = self._partitions.get(partition.topic_partition)
            is_same = known is not None and known.partition is partition.partition
            if known is None or not is_same or known.leader_epoch != partition.leader_epoch:
                self._partitions.add(partition)
                self._wait.shorten()
        self._awake.set()

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Fetches these no more; what is on its way for them is dropped."""
        for topic_partition in topic_partitions:
            self._partitions.remove(topic_partition)

    def take_topic_id(self, topic_partition: TopicPartition, topic_id: Uuid) -> None:
        """A topic without id has got one: from the next request on it is asked for by that."""
        fetched = self._partitions.get(topic_partition)
        if fetched is not None:
            fetched.topic_id = topic_id
            self._partitions.mark(fetched)

    def wait_shortly(self, is_short: bool) -> None:
        """Whether the leader keeps a request without news for some milliseconds only: what has caught up comes here,
        and is not fetched before the next one."""
        self._wait.is_short = is_short

    def close(self) -> None:
        """Ends the fetcher; responses on their way are dropped."""
        if not self._is_closed:
            self._is_closed = True
            self._connection.close()
            self._reconciler.close()
            self._task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._task, return_exceptions=True)

    # The task.

    async def _run(self) -> None:
        while not self._is_closed:
            self._awake.clear()
            try:
                if self._partitions.has_unsettled:
                    await self._reconciler.settle()
                await self._fetch_on()
            except (OSError, KafkaError) as error:  # of the connection; time-outs are OSErrors too
                self._context.logger.warning("[%s] Fetching from %s failed: %s", self.name, self._leader_name, error)
                self._session.failed()
                await self._context.timers.sleep(self._context.settings.fetch_backoff_ms)
            except Exception:
                self._context.logger.exception("[%s] Fetching from %s failed", self.name, self._leader_name)
                self._session.failed()
                await self._context.timers.sleep(self._context.settings.fetch_backoff_ms)

    async def _fetch_on(self) -> None:
        """Fetches until something has to be settled, or there is nothing to fetch; raises when a fetch failed."""
        if self._session.is_full and self._partitions.has_due:
            # A leader that is gone is tried again and again, and a request that names all takes long to make.
            await self._connection.ready(self._context.settings.request_timeout_ms)
        chain = self._chain = self._context.loop.create_future()
        self._send()
        await chain
        if not self._partitions.has_unsettled and not self._awake.is_set():
            await self._rest()

    async def _rest(self) -> None:
        """Nothing can be fetched: waits until a partition comes, or a delay ends."""
        now = self._context.loop.time()
        end = self._partitions.next_delay_end
        timer = None
        if end is not None:
            timer = self._context.timers.call_after(max(0.0, end - now) * 1000, self._awake.set)
        try:
            await self._awake.wait()
        finally:
            if timer is not None:
                timer.cancel()

    # The way from response to request.

    def _send(self) -> None:
        """Sends the next request, or ends the chain where there is none or something has to be settled first."""
        context, partitions = self._context, self._partitions
        now = context.loop.time()
        partitions.end_delays(now)
        quota = context.quota
        if quota is not None and quota.topics and quota.is_exceeded:
            self._hold_back(quota, now)
        if self._is_closed or partitions.has_unsettled:
            self._interrupt(None)
            return
        if now - self._log_starts_checked >= _LOG_START_CHECK_SECONDS and not self._log_starts_unchecked:
            self._log_starts_checked = now
            self._log_starts_unchecked = list(partitions)
        if self._log_starts_unchecked:
            self._mark_moved_log_starts()
        max_wait_ms, broker_epoch = self._wait.begin(now, partitions.next_delay_end), context.broker_epoch()
        try:
            if not self._send_again(max_wait_ms, broker_epoch):
                self._send_composed(max_wait_ms, broker_epoch)
        except Exception as error:  # noqa: BLE001 - the task that waits for the chain must hear of it
            self._interrupt(error)

    def _hold_back(self, quota: ReplicationQuota, now: float) -> None:
        """Leaves throttled partitions out of the next requests, unless they are in sync as far as is known; the quota
        is looked at again when it may allow them, and every second.

        Whatever else is fetched goes on meanwhile; and what may be fetched is, however much a response brings: so
        throttled partitions get on, by at least one batch at a time. They are named anew after a delay, in the order of
        the fetcher; a leader gives in that order as much as a response holds, so whoever got records goes last there.
        Those of which nothing is known come first, where not all are named at once: they may be in sync.
        """
        until = now + min(max(quota.seconds_exceeded, _QUOTA_CHECK_SECONDS_MIN), _QUOTA_CHECK_SECONDS)
        held_back = [
            fetched
            for fetched in self._partitions
            if fetched.lag != _NO_LAG
            and fetched.phase is FetchPhase.FETCHING
            and fetched.delayed_until is None
            and quota.is_throttled(fetched.topic_partition)
        ]
        unknown = [fetched for fetched in held_back if fetched.lag is None]
        known = [fetched for fetched in held_back if fetched.lag is not None]
        for fetched in known if unknown else ():
            self._partitions.go_last(fetched)
        for fetched in (*unknown, *known):
            self._partitions.delay(fetched, until)

    def _send_again(self, max_wait_ms: int, broker_epoch: int) -> bool:
        """Sends the next request if it is like the last; False, and nothing has changed, if it is not."""
        repeated = self._repeated
        if (
            repeated is None
            or max_wait_ms != repeated.max_wait_ms
            or broker_epoch != repeated.broker_epoch
            or self._session.session_id != repeated.session_id
        ):
            return False
        fetched = self._partitions.only_changed(repeated.topic_partition)
        position = None if fetched is None else fetched.position()
        if (
            position is None
            or position.topic_id != repeated.topic_id
            or position.leader_epoch != repeated.leader_epoch
            or not self._session.name_again(repeated.topic_partition, position)
        ):
            return False
        self._partitions.forget_changed()
        encode = repeated.encoding(self._session.epoch, position)
        timeout_ms = self._context.settings.request_timeout_ms
        self._connection.start_encoded(encode, repeated.decode, timeout_ms, self._received, self._interrupt)
        return True

    def _send_composed(self, max_wait_ms: int, broker_epoch: int) -> None:
        """Sends a request of what has changed, or ends the chain where there is none."""
        context, partitions, session = self._context, self._partitions, self._session
        at_most = NAMED_MAX if self._names_in_parts else sys.maxsize
        changed = partitions.changed(at_most, session.positions)
        composition = session.compose(changed, lambda: partitions.everything(at_most))
        self._partitions_left = partitions.has_marked
        for fetched in partitions.take_withheld():
            self._ask_again_soon(fetched)
        if composition is None:
            self._interrupt(None)
            return
        self._is_filling = self._partitions_left if session.is_full else self._is_filling
        if self._partitions_left:
            max_wait_ms = self._wait.at_once()
        request, version = fetch_request(
            composition,
            session,
            context.settings,
            version=context.protocol.fetch_version,
            max_wait_ms=max_wait_ms,
            broker_id=context.broker_id,
            broker_epoch=broker_epoch,
        )
        self._expect_again(composition, request, version, broker_epoch)
        self._connection.start(request, version, context.settings.request_timeout_ms, self._received, self._interrupt)

    def _expect_again(
        self, composition: Composition[Position], request: FetchRequest, version: int, broker_epoch: int
    ) -> None:
        """Of requests that name the same one partition, the second is that which more are expected to be like."""
        is_usual = not (self._session.is_full or composition.forgotten) and version >= FETCH_WITH_REPLICA_STATE
        named, before = composition.fetched, self._named_before
        self._named_before = named[0][0] if is_usual and len(named) == 1 else None
        if self._named_before is not None and self._named_before == before:
            self._repeated = RepeatedFetchRequest(request, version, self._client_id, before, broker_epoch)

    def _received(self, response: FetchResponse | FetchedAgain) -> None:
        """Takes over a response while its records are there, and goes on when they are written."""
        if self._is_closed:
            return
        self.requests.count += 1
        try:
            if isinstance(response, FetchedAgain):
                appended = self._take_over_again(response)
            else:
                if not response.responses:
                    self._wait.end_empty(self._context.loop.time())
                appended = self._take_over(response)
        except Exception as error:  # noqa: BLE001 - the task that waits for the chain must hear of it
            self._interrupt(error)
            return
        # The next request says that we have the records; so it waits until their logs are written. One more is counted
        # until all were asked for, lest the first callback sends.
        self._unwritten = 1
        number = self._response_number = self._response_number + 1
        write_queue = self._context.write_queue
        for fetched, log in appended:
            if write_queue.needs_wait(log):
                if log.has_unwritten and self._unwritten == 1:
                    self._context.timers.call_after(_WRITE_PATIENCE_MS, functools.partial(self._go_on_without, number))
                self._unwritten += 1
                write_queue.when_written(log, functools.partial(self._written, fetched, number))
        self._written(None, number, None)

    def _written(self, fetched: FetchedPartition | None, number: int, error: KafkaError | None) -> None:
        if fetched is not None and error is not None and self._partitions.holds(fetched):
            self._fail_partition(fetched, f"writing failed: {error}")
        if number != self._response_number:
            return  # the next request was sent without it
        self._unwritten -= 1
        if not self._unwritten:
            self._go_on()

    def _go_on_without(self, number: int) -> None:
        """The files of some do not take what was appended, off the loop, for too long: the others are fetched on."""
        if number == self._response_number and self._unwritten and not self._is_closed:
            self._response_number += 1
            self._unwritten = 0
            self._go_on()

    def _go_on(self) -> None:
        if self._hand_over is not None and not self._is_closed:
            self._hand_over.take_out(self._partitions)
        self._send()

    def _interrupt(self, error: Exception | None) -> None:
        """Hands over to the task."""
        chain = self._chain
        if chain is None or chain.done():
            return
        if error is None:
            chain.set_result(None)
        else:
            chain.set_exception(error)

    def _take_over(self, response: FetchResponse) -> list[tuple[FetchedPartition, PartitionLog]]:
        """Takes over all partitions, and returns those that something was appended to.

        Raises KafkaError if the leader refuses the request for another reason than the session.
        """
        appended: list[tuple[FetchedPartition, PartitionLog]] = []
        error = ErrorCode.for_code(response.error_code)
        was_full = self._session.is_full
        is_answered = self._session.answered(response.session_id, error)
        if not self._session.is_full:
            # Where they are named at once only since the leader had kept no session, it keeps one with all of them now.
            self._names_in_parts = self._names_in_parts or was_full
        elif self._is_filling and self._session.positions:
            # The leader keeps no session, or none with all of them: what a request does not name would not be fetched.
            self._names_in_parts = False
        self._is_filling = self._is_filling and self._partitions_left
        if not is_answered:
            if was_full or error not in _SESSION_ERRORS:
                raise KafkaError(error, f"{self._leader_name} refuses to be fetched from")
            self._context.logger.info("[%s] %s ended the fetch session: %s", self.name, self._leader_name, error.name)
            return appended
        for topic in response.responses:
            name = topic.topic or self._session.topic_name(bytes(topic.topic_id))
            if name is None:
                continue
            for data in topic.partitions:
                topic_partition = TopicPartition(name, data.partition_index)
                fetched = self._wanted(topic_partition)
                if fetched is not None:
                    self._take_over_partition(fetched, data, appended)
        return appended

    def _take_over_again(self, data: FetchedAgain) -> list[tuple[FetchedPartition, PartitionLog]]:
        """As `_take_over`, of the answer to a request that was like the one before."""
        appended: list[tuple[FetchedPartition, PartitionLog]] = []
        repeated = self._repeated
        if repeated is not None:
            self._session.answered(repeated.session_id, ErrorCode.NONE)
            fetched = self._wanted(repeated.topic_partition)
            if fetched is not None:
                self._take_over_partition(fetched, data, appended)
        return appended

    def _wanted(self, topic_partition: TopicPartition) -> FetchedPartition | None:
        """The partition, if it is still to be fetched from where the last request has said."""
        fetched = self._partitions.get(topic_partition)
        position = self._session.positions.get(topic_partition)
        if (
            fetched is not None
            and position is not None
            and fetched.phase is FetchPhase.FETCHING
            and fetched.delayed_until is None
            and position.fetch_offset == fetched.fetch_offset
            and position.leader_epoch == fetched.leader_epoch
            and position.topic_id == fetched.topic_id
        ):
            return fetched
        return None  # taken out, put in anew or delayed while the request was on its way

    def _take_over_partition(
        self,
        fetched: FetchedPartition,
        data: FetchResponse.PartitionData | FetchedAgain,
        appended: list[tuple[FetchedPartition, PartitionLog]],
    ) -> None:
        if data.error_code:
            self._refused(fetched, ErrorCode.for_code(data.error_code))
            return
        fetched.refusals = 0
        end = data.diverging_epoch
        if end is not None and end.end_offset != NO_OFFSET:
            # Nothing else of the answer counts before the log is cut off.
            self._partitions.diverged(fetched, EpochEnd(end.epoch, end.end_offset))
            return
        log = fetched.partition.log
        try:
            if log is None:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log is not here any more")
            if self._append(fetched, log, data):
                appended.append((fetched, log))
        except CorruptRecordError as error:
            # One bad partition must not keep the others from being fetched; the next answer may be whole.
            self._context.logger.warning(
                "Found invalid messages during fetch for partition %s offset %d: %s",
                *(fetched.topic_partition, fetched.fetch_offset, error),
            )
            self._delay(fetched)
        except UnexpectedOffsetError as error:
            self._begin_before_start(fetched, log, data, error)
        except KafkaError as error:
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                self._fail_partition(fetched, str(error))
            else:  # such as while the log is being cut off
                self._delay(fetched)
        except Exception as error:
            self._context.logger.exception(
                "Unexpected error while processing data for partition %s at offset %d",
                *(fetched.topic_partition, fetched.fetch_offset),
            )
            self._fail_partition(fetched, str(error))

    def _append(
        self, fetched: FetchedPartition, log: PartitionLog, data: FetchResponse.PartitionData | FetchedAgain
    ) -> bool:
        """Appends what came for a partition, and follows the leader's high watermark and log start; True where there
        were records."""
        if fetched.fetch_offset != log.append_end_offset:
            raise RuntimeError(
                f"offset mismatch: fetched from {fetched.fetch_offset}, and the log ends at {log.append_end_offset}"
            )
        records = data.records
        result = log.append_as_follower(records, fetched.leader_epoch) if records else None
        before = log.high_watermark
        if log.update_high_watermark(data.high_watermark) != before:
            self._context.wake_ups.add(fetched.partition)
        if data.log_start_offset > log.log_start_offset:
            log.increase_log_start_offset(data.log_start_offset, "leader offset increment")
            self._partitions.mark(fetched)
        fetched.lag = max(_NO_LAG, data.high_watermark - log.append_end_offset)
        if self._hand_over is not None:
            self._hand_over.answered(fetched)
        if result is None:
            return False
        self.bytes_fetched.count += result.size_bytes
        quota = self._context.quota
        if quota is not None and quota.topics and quota.is_throttled(fetched.topic_partition):
            # In sync or not: it is the whole traffic that must not exceed the quota.
            quota.record(result.size_bytes)
            self._partitions.go_last(fetched)
        epoch = log.latest_epoch
        self._partitions.advanced(fetched, log.append_end_offset, NO_EPOCH if epoch is None else epoch)
        return True

    def _begin_before_start(
        self,
        fetched: FetchedPartition,
        log: PartitionLog | None,
        data: FetchResponse.PartitionData | FetchedAgain,
        error: UnexpectedOffsetError,
    ) -> None:
        """The leader's log starts within a batch, so that the batch begins before our empty log does: it begins there
        instead, once, with these records."""
        if log is None or log.append_end_offset != log.log_start_offset or data.records is None:
            self._context.logger.error("Fetching partition %s failed: %s", fetched.topic_partition, error)
            self._fail_partition(fetched, str(error))
            return
        self._context.logger.info(
            "First offset %d of partition %s is less than log start offset %d; the log will start from there",
            *(error.first_offset, fetched.topic_partition, log.log_start_offset),
        )
        self._partitions.begins_before(fetched, error.first_offset, bytes(data.records))

    def _refused(self, fetched: FetchedPartition, error: ErrorCode) -> None:
        logger, partition = self._context.logger, fetched.topic_partition
        match error:
            case ErrorCode.OFFSET_OUT_OF_RANGE:
                self._partitions.out_of_range(fetched)
                return
            case ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
                self._partitions.moved_to_remote(fetched)
                return
            case ErrorCode.FENCED_LEADER_EPOCH:
                self._fail_partition(
                    fetched,
                    f"its leader is in a newer epoch than {fetched.leader_epoch}, of which the controller will tell",
                )
                return
            case ErrorCode.UNKNOWN_LEADER_EPOCH | ErrorCode.NOT_LEADER_OR_FOLLOWER:
                logger.debug("%s is not the leader of partition %s yet: %s", self._leader_name, partition, error.name)
            case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION | ErrorCode.UNKNOWN_TOPIC_ID | ErrorCode.INCONSISTENT_TOPIC_ID:
                logger.warning(
                    "Received %s from the leader for partition %s. This may happen while the partition is created or "
                    "deleted, and is not expected to last",
                    *(error.name, partition),
                )
            case _:
                logger.error("Error for partition %s at offset %d: %s", partition, fetched.fetch_offset, error.name)
                self._delay(fetched)
                return
        self._ask_again_soon(fetched)

    # Small things.

    @property
    def _leader_name(self) -> str:
        return f"broker {self.leader.broker_id} at {self.leader.host}:{self.leader.port}"

    def _delay(self, fetched: FetchedPartition) -> None:
        self._partitions.delay(fetched, self._context.loop.time() + self._context.settings.fetch_backoff_ms / 1000)

    def _ask_again_soon(self, fetched: FetchedPartition) -> None:
        """For what is likely to pass at once: the leader has not heard yet what the controller has told us."""
        fetched.refusals += 1
        delay_ms = retry_delay_ms(fetched.refusals, self._context.settings.fetch_backoff_ms)
        self._partitions.delay(fetched, self._context.loop.time() + delay_ms / 1000)

    def _fail_partition(self, fetched: FetchedPartition, reason: str) -> None:
        if self._partitions.holds(fetched):
            self._partitions.remove(fetched.topic_partition)
            self._context.logger.warning(
                "[%s] Partition %s marked as failed: %s", self.name, fetched.topic_partition, reason
            )
            self._on_failed(fetched.topic_partition)

    def _mark_moved_log_starts(self) -> None:
        """Looks at as many as a request may name; at the others when the next ones are sent."""
        positions, unchecked = self._session.positions, self._log_starts_unchecked
        some = unchecked[-NAMED_MAX:]
        del unchecked[-NAMED_MAX:]
        for fetched in some:
            position, log = positions.get(fetched.topic_partition), fetched.partition.log
            if position is not None and log is not None and position.log_start_offset != log.log_start_offset:
                self._partitions.mark(fetched)
