"""The transaction coordinator of one broker: the transactional ids of the partitions of `__transaction_state` that it
leads.

A request is decided by `transactions`, its record is appended, and it is answered when that is committed. Behind a
record with an outcome, and never before it is committed, the markers are sent; when all are written, the last record of
the transaction is appended, and again where it is refused.

Invariant: what a client or a partition is told is in a committed record. A record that is not committed in time leaves
its id pending, and nobody decides on it, until it is committed or another broker leads. What a new coordinator finds in
its log is committed before it answers anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Final

from barnabas.coordinators.placement import partition_for
from barnabas.coordinators.ports import InternalLog
from barnabas.coordinators.shard import APPEND_ERRORS, Shard, ShardSettings
from barnabas.coordinators.shard_runtime import ShardRuntime
from barnabas.coordinators.transaction.completions import Completions
from barnabas.coordinators.transaction.descriptions import described, listed
from barnabas.coordinators.transaction.expiry import expire
from barnabas.coordinators.transaction.loading import TransactionLoader
from barnabas.coordinators.transaction.markers import Ending, MarkerSender
from barnabas.coordinators.transaction.metrics import TransactionMetrics
from barnabas.coordinators.transaction.producer_ids import ProducerIdManager
from barnabas.coordinators.transaction.records import (
    Transaction,
    transaction_key,
    transaction_value,
    transaction_value_in_steps,
)
from barnabas.coordinators.transaction.settings import TransactionSettings
from barnabas.coordinators.transaction.states import TransactionState
from barnabas.coordinators.transaction.transactions import NO_PRODUCER, Decision, Producer, Transactions
from barnabas.kernel.host import Host
from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.scheduler import Scheduler
from barnabas.kernel.steps import STEP_ELEMENTS, StepRunner, Steps
from barnabas.kernel.timers import Timers
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeTransactionsResponse, ListTransactionsResponse
from barnabas.wire.topics import TRANSACTION_TOPIC, TopicPartition

_ABORT_TASK: Final = "transaction-abort"
_EXPIRY_TASK: Final = "transactionalId-expiration"
_APPEND: Final = 8
"""Elements of a step that an append counts as, without the partitions of its record: it costs some 100 us."""
_ENCODED_AT_ONCE: Final = 1024
"""Partitions of a record that is made in the turn of its request, some milliseconds; one with more is made in steps."""
_PASSED: Final = (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
"""Outcomes after which the high watermark has passed the record."""
_ERRORS: Final = {
    **APPEND_ERRORS,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What a client is told when its record could not be appended; other errors as they are."""

InitReply = Callable[[ErrorCode, Producer], object]
Reply = Callable[[ErrorCode], object]


class TransactionCoordinator:
    """The coordinator's requests, and its comings and goings as leader of partitions.

    A reply is called once, perhaps before the request returns. All may be told NOT_COORDINATOR,
    COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, INVALID_REQUEST for an id without a character, and
    CONCURRENT_TRANSACTIONS, after which a client asks again.
    """

    def __init__(
        self,
        settings: TransactionSettings,
        *,
        host: Host,
        timers: Timers,
        scheduler: Scheduler,
        steps: StepRunner,
        log: InternalLog,
        producer_ids: ProducerIdManager,
        markers: MarkerSender,
        metrics: MetricsRegistry,
        logs: Logs,
    ) -> None:
        self._settings = settings
        self._loop = host.loop
        self._clock = host.clock
        self._scheduler = scheduler
        self._steps = steps
        self._producer_ids = producer_ids
        self._markers = markers
        self._logger = logs.logger("kafka.coordinator.transaction.TransactionCoordinator")
        manager_logger = logs.logger("kafka.coordinator.transaction.TransactionStateManager")
        self._runtime: ShardRuntime[Transactions, TransactionLoader] = ShardRuntime(
            TRANSACTION_TOPIC,
            host=host,
            timers=timers,
            log=log,
            settings=ShardSettings(settings.load_buffer_bytes, settings.append_timeout_ms, loads_committed=True),
            steps=steps,
            new_loader=lambda _shard: TransactionLoader(manager_logger),
            take_content=TransactionLoader.take,
            on_loaded=self._loaded,
            on_unloaded=self._unloaded,
            logger=manager_logger,
        )
        self._shards: dict[int, Shard[Transactions]] = {}
        """The active ones."""
        self._completions = Completions(self._complete, host.loop, timers, steps, manager_logger)
        completions = self._completions
        self._metrics = TransactionMetrics(metrics, lambda: markers.waiting, lambda: completions.refused)
        self._under_way: set[asyncio.Task[None]] = set()
        """Requests that wait for a producer id, or until a large record of theirs is made."""
        self._is_active = False
        self._partition_count: int | None = None

    def start(self, partition_count: int | None) -> None:
        """`partition_count` is that of `__transaction_state`, or what it will be created with; None while that cannot
        be read, until `place`.
        """
        self.place(partition_count)
        self._is_active = True
        self._scheduler.schedule(_ABORT_TASK, self.abort_timed_out, period_ms=self._settings.abort_interval_ms)
        self._scheduler.schedule(_EXPIRY_TASK, self.expire_ids, period_ms=self._settings.expiry_interval_ms)

    async def stop(self) -> None:
        """Hands everything back: what waits is answered NOT_COORDINATOR, what comes COORDINATOR_NOT_AVAILABLE."""
        self._is_active = False
        for name in (_ABORT_TASK, _EXPIRY_TASK):
            task = self._scheduler.tasks.get(name)
            if task is not None:
                task.cancel()
        await self._runtime.stop()
        await self._markers.stop()
        await self._completions.stop()
        for request in tuple(self._under_way):
            request.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        self._metrics.remove()

    def place(self, partition_count: int | None) -> None:
        """`__transaction_state` was made anew, with so many partitions; None while that is not known yet."""
        self._partition_count = partition_count

    def partition_for(self, transactional_id: str) -> int:
        """The partition of `__transaction_state` that has the id. Raises KafkaError COORDINATOR_NOT_AVAILABLE while it
        is not known how many there are.
        """
        if self._partition_count is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return partition_for(transactional_id, self._partition_count)

    # Leadership of partitions.

    def on_elected(self, partition_index: int, leader_epoch: int, topic_id: Uuid = ZERO_UUID) -> None:
        """This broker leads the partition: its transactional ids are loaded."""
        self._runtime.elect(partition_index, leader_epoch, topic_id)

    def on_resigned(self, partition_index: int, leader_epoch: int | None, topic_id: Uuid = ZERO_UUID) -> None:
        """This broker leads the partition no more; None for whatever epoch that is as of."""
        self._runtime.resign(partition_index, leader_epoch, topic_id)

    def on_deleted(self, partition_index: int) -> None:
        """The partition of `__transaction_state` is deleted, with its ids; another may take its place."""
        self._runtime.forget(partition_index)

    def _loaded(self, shard: Shard[Transactions], transactions: Transactions, seconds: float) -> Steps[None]:
        self._metrics.loaded(seconds)
        self._shards[shard.partition.partition] = shard
        return self._send_loaded(shard, transactions.prepared_ids)

    def _send_loaded(self, shard: Shard[Transactions], prepared: list[str]) -> Steps[None]:
        """Goes on where the coordinator before it was. Nobody can change what is prepared before that."""
        left = STEP_ELEMENTS
        for transactional_id in prepared:
            if not shard.is_active:
                return
            self._send_markers_if_due(shard, transactional_id)
            left -= 1
            if not left:
                yield
                left = STEP_ELEMENTS

    def _unloaded(self, shard: Shard[Transactions], transactions: Transactions) -> Steps[None]:
        self._shards.pop(shard.partition.partition, None)
        return transactions.emptied()

    # Requests.

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None, reply: InitReply
    ) -> None:
        """`reply` takes NONE with the id and epoch of the producer, or an error: INVALID_TRANSACTION_TIMEOUT,
        PRODUCER_FENCED. `expected` is the producer's present id and epoch, where it has one (KIP-360).
        """
        try:
            if transactional_id and not 0 < timeout_ms <= self._settings.timeout_max_ms:
                raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
            new_producer_id = None
            if self._shard(transactional_id).content.needs_producer_id(transactional_id, expected):
                new_producer_id = self._producer_ids.next_id_now()
                if new_producer_id is None:
                    self._start(
                        self._init_with_new_id(transactional_id, timeout_ms, expected, reply),
                        lambda: reply(ErrorCode.NOT_COORDINATOR, NO_PRODUCER),
                    )
                    return
        except KafkaError as error:
            reply(ErrorCode.for_code(error.code), NO_PRODUCER)
            return
        self._init(transactional_id, timeout_ms, expected, new_producer_id, reply)

    async def _init_with_new_id(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None, reply: InitReply
    ) -> None:
        try:
            producer_id = await self._producer_ids.next_id()
        except KafkaError as error:
            reply(ErrorCode.for_code(error.code), NO_PRODUCER)
            return
        self._init(transactional_id, timeout_ms, expected, producer_id, reply)

    def _init(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Producer | None,
        new_producer_id: int | None,
        reply: InitReply,
    ) -> None:
        try:
            shard = self._shard(transactional_id)
            decision = shard.content.init_producer_id(
                transactional_id,
                timeout_ms=timeout_ms,
                expected=expected,
                new_producer_id=new_producer_id,
                now_ms=self._clock.time_ms(),
            )
        except KafkaError as error:
            reply(ErrorCode.for_code(error.code), NO_PRODUCER)
            return
        transaction = decision.transaction
        given = Producer(transaction.producer_id, transaction.producer_epoch)

        def done(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                reply(error, NO_PRODUCER)
            elif transaction.state is TransactionState.EMPTY:
                self._logger.info(
                    "Initialized transactionalId %s with producerId %d and producer epoch %d on partition %s",
                    transactional_id,
                    *given,
                    shard.partition,
                )
                reply(ErrorCode.NONE, given)
            else:  # the open transaction is aborted first
                reply(ErrorCode.CONCURRENT_TRANSACTIONS, NO_PRODUCER)

        self._append(shard, transactional_id, decision, done)

    def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition], reply: Reply
    ) -> None:
        """Takes partitions into the transaction, and opens one where none is. `reply` takes NONE,
        INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED.
        """
        self._decide(
            transactional_id,
            lambda known: known.add_partitions(transactional_id, producer, partitions, self._clock.time_ms()),
            reply,
        )

    def verification(self, transactional_id: str, producer: Producer) -> Callable[[TopicPartition], ErrorCode]:
        """Whether a partition is in the open transaction (KIP-890), as it is now: NONE or TRANSACTION_ABORTABLE. Raises
        KafkaError with what concerns all of them.
        """
        return self._shard(transactional_id).content.verification(transactional_id, producer)

    def end(self, transactional_id: str, producer: Producer, reply: Reply, *, is_commit: bool) -> None:
        """`reply` takes NONE when the outcome is committed, or INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
        INVALID_TXN_STATE. The partitions are told after that.
        """
        self._decide(
            transactional_id,
            lambda known: known.end(transactional_id, producer, is_commit=is_commit, now_ms=self._clock.time_ms()),
            reply,
        )

    # Time-outs.

    async def abort_timed_out(self) -> None:
        """Aborts transactions that are open for longer than their time-out, and fences their producers."""
        await self._steps.run(self._abort_timed_out())

    def _abort_timed_out(self) -> Steps[None]:
        left = STEP_ELEMENTS
        for shard in tuple(self._shards.values()):
            for transactional_id in shard.content.open_ids if shard.is_active else ():
                if not shard.is_active:
                    break
                left -= 1
                if shard.content.is_timed_out(transactional_id, self._clock.time_ms()):
                    left -= _APPEND + shard.content.partition_count(transactional_id)
                    self._abort(shard, transactional_id)
                if left <= 0:
                    yield
                    left = STEP_ELEMENTS

    def _abort(self, shard: Shard[Transactions], transactional_id: str) -> None:
        def done(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                self._logger.info("The transaction of %s has timed out and is aborted", transactional_id)
            else:
                self._logger.warning(
                    "The transaction of %s has timed out and cannot be aborted yet: %s", transactional_id, error.name
                )

        try:
            decision = shard.content.fence(transactional_id, self._clock.time_ms())
        except KafkaError as error:
            done(ErrorCode.for_code(error.code))
            return
        self._append(shard, transactional_id, decision, done)

    async def expire_ids(self) -> None:
        """Forgets ids without a transaction that have not changed for `transactional.id.expiration.ms`."""
        for shard in tuple(self._shards.values()):
            await self._steps.run(expire(shard, self._settings.id_expiration_ms, self._clock.time_ms(), self._logger))

    # What there is.

    def describe(self, transactional_ids: Iterable[str]) -> Steps[list[DescribeTransactionsResponse.TransactionState]]:
        """Each id with its transaction; errors are in the answers, TRANSACTIONAL_ID_NOT_FOUND among them."""
        return described(transactional_ids, self._transaction)

    def list_transactions(
        self, producer_ids: Collection[int], state_names: Collection[str], duration_ms: int
    ) -> Steps[ListTransactionsResponse]:
        """The ids of all partitions that this broker leads, or an error while one of them is being loaded."""
        if not self._is_active:
            return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._runtime.is_loading:
            return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        shards = [shard.content for shard in self._shards.values() if shard.is_active]
        return (yield from listed(shards, producer_ids, state_names, duration_ms, self._clock.time_ms()))

    # Inside.

    def _transaction(self, transactional_id: str) -> Transaction:
        transaction = self._shard(transactional_id).content.get(transactional_id)
        if transaction is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return transaction

    def _shard(self, transactional_id: str) -> Shard[Transactions]:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if not self._is_active:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self._runtime.shard(self.partition_for(transactional_id))

    def _decide(self, transactional_id: str, decide: Callable[[Transactions], Decision | None], reply: Reply) -> None:
        try:
            shard = self._shard(transactional_id)
            decision = decide(shard.content)
        except KafkaError as error:
            reply(ErrorCode.for_code(error.code))
            return
        if decision is None:
            reply(ErrorCode.NONE)
        else:
            self._append(shard, transactional_id, decision, reply)

    def _append(self, shard: Shard[Transactions], transactional_id: str, decision: Decision, reply: Reply) -> bool:
        """Whether the log has taken the record, or is to be asked in a later turn, since the record is large: nobody
        decides on the id meanwhile. `reply` is called before any marker is sent.
        """
        transaction = decision.transaction
        if len(transaction.partitions) <= _ENCODED_AT_ONCE:
            return self._append_value(shard, transactional_id, decision, transaction_value(transaction), reply)
        shard.content.reserve(transactional_id)
        self._start(
            self._append_large(shard, transactional_id, decision, reply), lambda: reply(ErrorCode.NOT_COORDINATOR)
        )
        return True

    async def _append_large(
        self, shard: Shard[Transactions], transactional_id: str, decision: Decision, reply: Reply
    ) -> None:
        value = await self._steps.run(transaction_value_in_steps(decision.transaction))
        if not shard.is_active:
            reply(ErrorCode.NOT_COORDINATOR)
            return
        shard.content.committed(transactional_id)
        self._append_value(shard, transactional_id, decision, value, reply)

    def _start(self, work: Coroutine[Any, Any, None], on_cancelled: Callable[[], object]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._under_way.discard(task)
            if task.cancelled():  # perhaps before it began
                on_cancelled()

        task = self._loop.create_task(work, name="transaction-request")
        self._under_way.add(task)
        task.add_done_callback(ended)

    def _append_value(
        self, shard: Shard[Transactions], transactional_id: str, decision: Decision, value: bytes, reply: Reply
    ) -> bool:
        transactions = shard.content
        key = transaction_key(transactional_id)
        replayed_at = -1

        def replay(base_offset: int) -> None:
            nonlocal replayed_at
            replayed_at = base_offset
            transactions.replay_appended(transactional_id, decision.transaction, decision.previous)

        def committed_late(offset: int) -> None:
            if offset >= replayed_at and shard.is_active:
                transactions.committed(transactional_id)
                self._send_markers_if_due(shard, transactional_id)

        def done(error: ErrorCode) -> None:
            is_passed = error in _PASSED and shard.is_active
            if is_passed:
                transactions.committed(transactional_id)
            reply(_ERRORS.get(error, error))
            if is_passed:
                self._send_markers_if_due(shard, transactional_id)
            elif error is ErrorCode.REQUEST_TIMED_OUT:
                shard.await_commit(transactional_id, replayed_at, committed_late)

        try:
            shard.append([(key, value)], self._clock.time_ms(), replay, done)
        except KafkaError as error:
            code = ErrorCode.for_code(error.code)
            reply(_ERRORS.get(code, code))
            return False
        return True

    def _send_markers_if_due(self, shard: Shard[Transactions], transactional_id: str) -> None:
        transaction = shard.content.get(transactional_id)
        if transaction is None or not shard.content.are_markers_due(transactional_id):
            return
        self._markers.send(
            Ending(
                transactional_id,
                Producer(transaction.producer_id, transaction.producer_epoch),
                shard.leader_epoch,
                transaction.partitions,
                is_commit=transaction.state is TransactionState.PREPARE_COMMIT,
                is_wanted=lambda: shard.is_active,
                on_written=lambda: self._completions.add(shard, transactional_id),
            )
        )

    def _complete(self, shard: Shard[Transactions], transactional_id: str) -> bool:
        """Appends the record that the transaction has ended everywhere; False where it is refused now."""

        def done(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                self._logger.info("The last record of the transaction of %s waits: %s", transactional_id, error.name)

        decision = shard.content.complete(transactional_id, self._clock.time_ms())
        return self._append(shard, transactional_id, decision, done)
