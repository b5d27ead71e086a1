"""Sends staged batches in transactions, by our own client: what one transactional id sends, and its offset.

Whatever goes wrong, the transaction is aborted, and the group's offset is read again before anything else is sent: only
it says whether the last batch was committed. What passes (brokers that come and go) is tried again for a while.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from barnabas.client.errors import (
    ClientClosedError,
    ClientError,
    ClientTimeoutError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionFailedError,
)
from barnabas.client.group_coordinator import GroupCoordinator
from barnabas.client.records import OffsetAndMetadata, ProducerRecord
from barnabas.client.retrying import is_retriable
from barnabas.client.transactional_producer import TransactionalProducer
from barnabas.kernel.host import OffloadKind
from barnabas.kernel.spoken import spoken_ms
from barnabas.link.errors import InFlightLimitError, UnsupportedVersionError
from barnabas.pipelines.definition import Pipeline, PipelineError, PipelineUnreachableError, TopicSink
from barnabas.pipelines.outbox_offsets import Sent, name_of_sender
from barnabas.pipelines.outbox_options import batch_bytes, producer_settings, request_bytes_max
from barnabas.pipelines.sources import ROW_BYTES_MAX
from barnabas.pipelines.staged_batches import StagedBatch, StagedBatchError, StagedRecords
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_columns import RecordShape, ValueColumn
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.connections import Lane

Result = TypeVar("Result")
TRANSACTION_MS_MIN: Final = 60_000
TRANSACTION_MS_MAX: Final = 900_000
"""The brokers' own bound, `transaction.max.timeout.ms`, if nobody has changed it."""
BYTES_PER_MS_MIN: Final = 1_000
"""A transaction is given time for so slow a cluster; one that needs more is tried again with twice the time."""

_SMALL_BATCH_BYTES: Final = 16 * 1024
_RECORD_BYTES_MAX: Final = ROW_BYTES_MAX - 1_024
_OWN_PART: Final = 0.9
"""Of a transaction's time, after which we abort it, before its coordinator does."""
_ATTEMPTS_SECONDS: Final = 120.0
ANSWER_MS_MAX: Final = 30_000
REQUEST_MS_MAX: Final = 6_000
_PAUSE_SECONDS: Final = 0.5
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_REFUSED: Final = frozenset(
    {
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_LOST_ITS_PLACE: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""In this transaction; the next one begins in another epoch."""
_EXPECTED: Final = (
    ClientError,
    KafkaError,
    ConnectionError,
    UnsupportedVersionError,
    InFlightLimitError,
    TimeoutError,
)
_LOGGER = logging.getLogger("barnabas.pipelines.outbox_sender")
_LOGGER.addHandler(logging.NullHandler())


class SenderContext(Protocol):
    """What a sender has of its run."""

    pipeline: Pipeline
    group_id: str
    """The group of the state: two checkouts of a pipeline share its name, and not this."""

    def call(self, work: Coroutine[Any, Any, Result], *, is_opening: bool = False) -> Result:
        """Has the client's loop do it, and returns the result or raises what it raises; RunStopped where it
        `is_opening` and the run is told to stop.
        """
        ...

    async def client(self) -> Client:
        """The client, once it knows the cluster. Raises ClientTimeoutError."""
        ...

    def now_ms(self) -> int:
        """The time of day."""
        ...

    def gone(self, topics: Iterable[str]) -> list[str]:
        """Those that the brokers say there are none of."""
        ...


class QuerySender:
    """Sends batches of one query, or its shares of them, under one transactional id; its offset is kept in a group that
    is only its own.
    """

    def __init__(
        self, senders: SenderContext, transactional_id: str, sinks: Sequence[TopicSink], number: int = 1
    ) -> None:
        """`transactional_id` is that of the first sender of the query."""
        self._senders = senders
        self._sinks = tuple(sinks)
        self._number = number
        self._name = transactional_id
        self._transactional_id = name_of_sender(transactional_id, number)
        self._producer: TransactionalProducer | None = None
        self._lane: Lane | None = None
        self._group: GroupCoordinator | None = None
        self._batch_bytes = batch_bytes(sinks[0])
        self._made_batch_bytes = 0
        """Those that the producer was made with."""
        self._timeout_ms = TRANSACTION_MS_MIN
        self._timeout_ms_max = TRANSACTION_MS_MAX
        self._sent: Sent | None = None
        """What the offset says, as far as we know."""
        self._taken_by_another: PipelineError | None = None
        self._is_begun = False
        """Whether a transaction of the producer may be open: what is in it must not be committed with anything else."""
        self._overdue_ms = 0
        """When the last transaction was to be over, by the wall clock: that goes on while a machine sleeps."""
        self._lock = asyncio.Lock()

    @property
    def group_id(self) -> str:
        """The group whose offsets tell what was sent."""
        return name_of_sender(self._senders.group_id, self._number)

    @property
    def taken_by_another(self) -> PipelineError | None:
        """What has shown that another run sends under the same id."""
        return self._taken_by_another

    def take_measures_of(self, other: QuerySender) -> None:
        """Its transactions are to be as long, and its batches as large, as those of the other."""
        self._batch_bytes, self._timeout_ms = other._batch_bytes, other._timeout_ms
        self._timeout_ms_max = other._timeout_ms_max

    async def refresh(self) -> None:
        """Commits the offset again, unless a batch is on its way; whatever goes wrong, the next batch tells."""
        if self._sent is None or self._taken_by_another is not None or self._lock.locked():
            return
        async with self._lock:
            try:
                await self._attempt(None, self._sent)
            except PipelineError as raised:
                self._taken_by_another = raised
                await self._give_up_transaction(raised)
            except Exception as raised:  # noqa: BLE001 - the next attempt may do better
                failure = await self._give_up_transaction(raised)
                if isinstance(failure, ProducerFencedError) and not self._may_pass(failure):
                    # Whoever has the id now keeps it: another attempt would fence him.
                    self._taken_by_another = self._taken(failure.code.name)

    async def end(self) -> None:
        """Sends no more."""
        if self._producer is not None:
            await self._producer.close()

    async def opened(self) -> Sent | None:
        """Ends what a former sender has begun, fences it, and returns what the offset says."""
        async with self._lock:
            return await self._until_done(self._open, ANSWER_MS_MAX / 1_000)

    async def deliver(self, batch: StagedBatch | None, sent: Sent) -> None:
        """Sends the records of a batch, and commits `sent` with them; all of it, once, or nothing."""
        async with self._lock:
            if self._taken_by_another is not None:
                raise self._taken_by_another
            if batch is not None:
                self._timeout_ms = max(self._timeout_ms, TRANSACTION_MS_MIN + batch.size_bytes // BYTES_PER_MS_MIN)

            async def attempt() -> None:
                await self._attempt(batch, sent)

            await self._until_done(attempt, ANSWER_MS_MAX / 1_000 if batch is None else _ATTEMPTS_SECONDS)
            self._sent = sent

    # Inside.

    async def _until_done(self, attempt: Callable[[], Coroutine[Any, Any, Result]], seconds: float) -> Result:
        """Tries again what may pass. Raises PipelineError and PipelineUnreachableError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            try:
                return await attempt()
            except _EXPECTED as raised:
                error = await self._give_up_transaction(raised)
                if not self._may_pass(error):
                    raise self._final(error) from error
                gone = self._senders.gone(sink.topic for sink in self._sinks)
                if isinstance(error, _TooSlowError) and not gone:
                    deadline = loop.time() + seconds  # what is slow gets more time, and that has an end
                if loop.time() > deadline:
                    reason = f"there is no topic {gone[0]}" if gone else f"{_cause(error)}"
                    raise PipelineUnreachableError(
                        f"the brokers have not taken a batch for {self._topics} within "
                        f"{spoken_ms(seconds * 1_000)}: {reason}; run it again when they are back"
                    ) from error
                _LOGGER.info("Trying again after: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)
            except (StagedBatchError, PipelineError) as error:
                await self._give_up_transaction(error)
                raise

    async def _attempt(self, batch: StagedBatch | None, sent: Sent) -> None:
        """One transaction; none where an attempt before has turned out to be committed."""
        producer = await self._prepared(sent, is_batch=batch is not None)
        if producer is not None:
            await self._in_time(producer, batch, sent)

    async def _prepared(self, sent: Sent, *, is_batch: bool) -> TransactionalProducer | None:
        """What makes a transaction; None where it turned out that there was one that was committed."""
        producer = self._producer
        is_longer = producer is not None and producer.timeout_ms < min(self._timeout_ms, self._timeout_ms_max)
        if producer is None or self._is_begun or is_longer or self._made_batch_bytes != self._batch_bytes:
            found = await self._open()
            if found is not None and found.next_batch >= sent.next_batch:
                if found.next_batch > sent.next_batch or found.fingerprint not in {"", sent.fingerprint}:
                    how = f"its group says {found.next_batch}, and {sent.next_batch} comes next"
                    raise self._taken(how if found.next_batch > sent.next_batch else "it has sent another batch")
                if is_batch:
                    return None
            if self._producer is None:
                raise ClientTimeoutError("the producer was closed")
            producer = self._producer
        return producer

    async def _in_time(self, producer: TransactionalProducer, batch: StagedBatch | None, sent: Sent) -> None:
        self._begun(producer)
        limit = asyncio.timeout(producer.timeout_ms / 1_000 * _OWN_PART)
        try:
            async with limit:
                await self._transact(producer, batch, sent)
        except TimeoutError as error:
            if not limit.expired() or isinstance(error, ClientTimeoutError):
                raise
            raise _TooSlowError(batch, producer.timeout_ms) from error
        self._is_begun = False

    def _begun(self, producer: TransactionalProducer) -> None:
        self._overdue_ms, self._is_begun = self._senders.now_ms() + producer.timeout_ms, True

    async def _open(self) -> Sent | None:
        """Makes a producer, which fences whoever had the id, and reads the offset that is stable from then on."""
        if self._producer is not None:
            await self._producer.close()
            self._producer = None
        client = await self._senders.client()
        self._made_batch_bytes = self._batch_bytes
        settings = producer_settings(self._sinks[0], self._batch_bytes, TRANSACTION_MS_MAX)
        while True:
            timeout_ms = min(self._timeout_ms, self._timeout_ms_max)
            producer = TransactionalProducer(client, self._transactional_id, settings, timeout_ms=timeout_ms)
            try:
                await producer.begin(ANSWER_MS_MAX)
            except KafkaError as error:
                await producer.close()
                if error.code is not ErrorCode.INVALID_TRANSACTION_TIMEOUT or timeout_ms < 2_000:
                    raise
                self._timeout_ms_max = timeout_ms // 2
            except BaseException:
                await producer.close()
                raise
            else:
                break
        self._producer, self._is_begun = producer, False
        if self._group is None:
            self._lane = client.connections.new_lane()
            self._group = GroupCoordinator(client, self._lane, self.group_id)
        found = await self._group.committed(self._places, ANSWER_MS_MAX, require_stable=True)
        places = (Sent.of(place.offset, place.metadata) for place in found.values())
        self._sent = max(places, key=lambda place: place.next_batch, default=None)
        return self._sent

    async def _transact(self, producer: TransactionalProducer, batch: StagedBatch | None, sent: Sent) -> None:
        await producer.begin(ANSWER_MS_MAX)
        ids = {} if batch is None else await self._topic_ids(batch)
        await self._fill(producer, batch)
        if batch is not None:
            await self._refuse_renewed(batch, ids)
        await self._send_offset(producer, sent)
        await producer.commit()

    async def _fill(self, producer: TransactionalProducer, batch: StagedBatch | None) -> None:
        """They are in their topics when this returns, and what was staged was what was sent."""
        for part in () if batch is None else batch.parts:
            await self._send_part(producer, part)
        await producer.flush()

    async def _send_offset(self, producer: TransactionalProducer, sent: Sent) -> None:
        place = OffsetAndMetadata(sent.next_batch, metadata=sent.metadata)
        await producer.send_offsets(self.group_id, dict.fromkeys(self._places, place))

    async def _refuse_renewed(self, batch: StagedBatch, ids: Mapping[str, bytes]) -> None:
        """What was sent to a former topic went with it, and a part of a batch must not be there."""
        await (await self._senders.client()).metadata.update()
        if await self._topic_ids(batch) != ids:
            raise _RenewedError(f"{self._topics} was made again in the middle of a batch")

    async def _topic_ids(self, batch: StagedBatch) -> dict[str, bytes]:
        """As far as brokers tell them, and as far as is known; known they are when this returns."""
        client = await self._senders.client()
        retry = client.retry(f"finding {self._topics}", TRANSACTION_MS_MAX)
        return {part.topic: (await client.metadata.topic(part.topic, retry)).topic_id for part in batch.parts}

    async def _send_part(self, producer: TransactionalProducer, part: StagedRecords) -> None:
        shape = RecordShape()
        columns = part.columns()
        offload = (await self._senders.client()).host.offload
        # Read while what came before is sent; no more than that is held.
        while (column := await offload(OffloadKind.DISK, next, columns, None)) is not None:
            keys, values = column
            places: dict[int | None, list[int]] = {}
            if keys is None:
                places[None] = list(range(len(values)))
            else:
                for place, partition in enumerate(await producer.partitions_of(part.topic, keys)):
                    places.setdefault(partition, []).append(place)
            whole = ValueColumn(shape, [value or b"" for value in values], keys)
            if whole.largest_bytes > _RECORD_BYTES_MAX:
                raise RecordTooLargeError(f"a record of {whole.largest_bytes} bytes is larger than any that is written")
            for chosen, those in places.items():
                await self._send_records(producer, part, whole, those, chosen, column)
            if self._batch_bytes == 1:
                await producer.flush()  # a batch for each record takes far more memory than its bytes

    async def _send_records(
        self,
        producer: TransactionalProducer,
        part: StagedRecords,
        whole: ValueColumn,
        those: Sequence[int],
        partition: int | None,
        column: tuple[Sequence[bytes] | None, Sequence[bytes | None]],
    ) -> None:
        """Sends those of a column that are for one partition, in order."""
        topic, (keys, values) = part.topic, column
        if keys is None or None not in values:
            await producer.send_column(topic, whole.of(those), _Fate(), partition)
            return
        for is_deletion, alike in itertools.groupby(those, key=lambda place: values[place] is None):
            if not is_deletion:
                await producer.send_column(topic, whole.of(list(alike)), _Fate(), partition)
                continue
            for place in alike:
                sent = await producer.send(ProducerRecord(topic, None, keys[place], partition=partition))
                # The transaction fails with it.
                sent.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _give_up_transaction(self, error: Exception) -> Exception:
        """Nothing of the transaction counts, unless it was committed: the next attempt asks for that.

        Returns the error, or that another producer has come, which only the coordinator knows for sure.
        """
        producer, self._producer = self._producer, None
        if producer is None:
            return error
        try:
            # Readers need not wait for the time-out.
            if not isinstance(error, ProducerFencedError):
                async with asyncio.timeout(REQUEST_MS_MAX / 1_000):
                    await producer.abort()
        except ProducerFencedError as fenced:
            return fenced
        except Exception as failure:  # noqa: BLE001 - the next producer ends it
            _LOGGER.info("A transaction was not aborted: %s", failure)
        finally:
            await producer.close()
        return error

    def _may_pass(self, error: Exception) -> bool:
        """Whether another attempt may do better; also makes it another one."""
        cause = _cause(error)
        if isinstance(error, _TooSlowError):
            is_longest = error.timeout_ms >= min(self._timeout_ms_max, TRANSACTION_MS_MAX)
            self._timeout_ms = min(error.timeout_ms * 2, TRANSACTION_MS_MAX)
            return not is_longest
        if isinstance(cause, RecordTooLargeError):
            return False
        if isinstance(cause, KafkaError) and cause.code in _TOO_LARGE:
            # The batches are too large, and perhaps not the records: the smallest batch has one record.
            is_one_record = self._batch_bytes == 1
            self._batch_bytes = _SMALL_BATCH_BYTES if self._batch_bytes > _SMALL_BATCH_BYTES else 1
            return not is_one_record
        if isinstance(error, ProducerFencedError):
            # After so long, as on a machine that has slept, it was the coordinator.
            is_overdue = self._senders.now_ms() > self._overdue_ms
            return is_overdue or error.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if isinstance(cause, KafkaError):
            return cause.retriable or cause.code in _LOST_ITS_PLACE
        return is_retriable(cause) or isinstance(cause, ClientError | TimeoutError)

    def _final(self, error: Exception) -> PipelineError:
        """What stops the run, and what to do."""
        pipeline, line = self._senders.pipeline, self._sinks[0].line
        cause = _cause(error)
        otherwise = "or set `delivery: at_least_once` at the sink"
        if isinstance(error, _TooSlowError):
            return pipeline.error(
                f"a batch for {self._topics} ({error}): lower `max_records_per_batch`, raise the brokers' "
                f"`transaction.max.timeout.ms`, {otherwise}",
                line,
            )
        if isinstance(error, ProducerFencedError):
            return self._taken(error.code.name)
        if isinstance(cause, RecordTooLargeError) and request_bytes_max(self._sinks[0]) < ROW_BYTES_MAX:
            return pipeline.error(
                f"a row for {self._topics} is larger than kafka.max.request.size in its options: {cause}; run it again "
                "with more, nothing of its batch is in the topic",
                line,
            )
        if isinstance(cause, KafkaError) and cause.code in _TOO_LARGE:
            return pipeline.error(
                f"a row is larger than the topic takes ({self._topics}): {cause}; raise its `max.message.bytes`, for "
                f"rows up to {ROW_BYTES_MAX // 1024**2} MiB, and run it again",
                line,
            )
        if isinstance(cause, KafkaError) and cause.code in _REFUSED:
            return pipeline.error(
                f"the brokers refuse transactions for {self._topics}: {cause}; allow {self._transactional_id} and the "
                f"group {self.group_id}, {otherwise}",
                line,
            )
        if isinstance(cause, UnsupportedVersionError):
            return pipeline.error(f"the brokers know no such transactions ({cause}): {otherwise[3:]}", line)
        return pipeline.error(f"a batch for {self._topics} was not written: {cause}", line)

    def _taken(self, how: str) -> PipelineError:
        pipeline = self._senders.pipeline
        return pipeline.error(
            f"another run sends as {self._transactional_id} ({how}), so a copy of {pipeline.state_directory} is in "
            "use: stop that run, or give it a state of its own, and run this one again",
            self._sinks[0].line,
        )

    @property
    def _topics(self) -> str:
        names = [sink.topic for sink in self._sinks]
        return f"topic{'s' if len(names) > 1 else ''} {' and '.join(names)}"

    @property
    def _places(self) -> list[TopicPartition]:
        """Where the offset is kept: with each topic, so that it is there as long as one of them is."""
        return [TopicPartition(sink.topic, 0) for sink in self._sinks]


class _RenewedError(ClientError):
    """A topic is not the one any more that the transaction has begun with."""


class _TooSlowError(TimeoutError):
    """A transaction took longer than it may."""

    def __init__(self, batch: StagedBatch | None, timeout_ms: int) -> None:
        what = "" if batch is None else f"{batch.record_count:,} records, {batch.size_bytes / 1e6:,.1f} MB "
        super().__init__(f"{what}not written within {spoken_ms(timeout_ms * _OWN_PART)}")
        self.timeout_ms = timeout_ms


class _Fate:
    """What became of records: the transaction's failure says all."""

    def written(self, _first: int, _count: int, _partition: TopicPartition, _base_offset: int) -> None:
        """It counts when the transaction is committed."""

    def failed(self, _first: int, _count: int, error: Exception) -> None:
        """The transaction fails with it."""
        if not isinstance(error, ClientClosedError):
            _LOGGER.info("Records were not written: %s", error)


def _cause(error: Exception) -> Exception:
    """What stood in the way of a transaction."""
    cause = error.__cause__
    return cause if isinstance(error, TransactionFailedError) and isinstance(cause, Exception) else error
