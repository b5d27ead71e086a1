"""Sends records, and offsets of groups, in transactions: all of one count, or none (KIP-98, KIP-360, KIP-447).

    async with TransactionalProducer(client, "copier-1") as producer:
        await producer.begin()
        await producer.send(ProducerRecord("delays", value=b"..."))
        await producer.send_offsets("copiers", {TopicPartition("flights", 0): OffsetAndMetadata(17)})
        await producer.commit()

The identity is the producer's, for all partitions: a batch that cannot be written does not raise the epoch of its
partition, as without transactions, but ends the transaction; `abort` asks the coordinator for the next epoch, which
fences what may still be on its way. Each epoch has a `Producer` of its own, so that sequences begin at 0 with it.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from barnabas.client.batches import ProducerIdentity
from barnabas.client.coordinator import Coordinator, KeyType
from barnabas.client.errors import (
    ClientClosedError,
    ProducerFencedError,
    TransactionFailedError,
    TransactionInDoubtError,
)
from barnabas.client.group_coordinator import GroupCoordinator
from barnabas.client.producer import Producer
from barnabas.client.settings import ProducerSettings
from barnabas.client.subscription_bytes import by_topic
from barnabas.link.errors import RequestTimeoutError
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.sentinels import NO_EPOCH, NO_PRODUCER_ID
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from barnabas.client.batches import ColumnFate
    from barnabas.client.client import Client
    from barnabas.client.records import OffsetAndMetadata, ProducerRecord, RecordMetadata
    from barnabas.wire.record_columns import ValueColumn

Result = TypeVar("Result")
TRANSACTION_TIMEOUT_MS_DEFAULT: Final = 60_000
_FENCED: Final = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)
_COMPLETING_PAUSE_MS: Final = 20
"""The markers of the last transaction are written within milliseconds, mostly."""


class TransactionalProducer:
    """One instance of a transactional id; only the last one to call `begin` can commit. Use it as a context, or `close`
    it. For one task at a time, but `send` and `send_column` for several.

    Calls raise ProducerFencedError, which is final: only another instance can go on, which fences the one that there
    is; TransactionFailedError, after which only `abort` helps; TransactionInDoubtError by a `commit`, after which only
    another instance helps; and by `begin` and `abort` also KafkaError and ClientTimeoutError, when the coordinator
    refuses or does not answer.
    """

    def __init__(
        self,
        client: Client,
        transactional_id: str,
        settings: ProducerSettings | None = None,
        *,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS_DEFAULT,
    ) -> None:
        """A transaction that takes longer than `timeout_ms` (`transaction.timeout.ms`, at most the brokers'
        `transaction.max.timeout.ms`) is aborted by its coordinator. Raises ValueError for settings that are not
        idempotent.
        """
        self._settings = settings or ProducerSettings()
        if not self._settings.idempotent:
            raise ValueError("a transactional producer needs idempotent=True")
        self._transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self._client = client
        self._lane = client.connections.new_lane()
        self._coordinator = Coordinator(client, self._lane, transactional_id, KeyType.TRANSACTIONAL_ID)
        self._groups: dict[str, GroupCoordinator] = {}
        self._identity: ProducerIdentity | None = None
        self._producer: Producer | None = None
        self._admitted: set[TopicPartition] = set()
        self._admitted_groups: set[str] = set()
        self._may_be_open = False
        """Whether the coordinator may have a transaction of ours that is not ended."""
        self._is_in_doubt = False
        """Whether the transaction may have been committed without our being told."""
        self._error: Exception | None = None
        self._fenced: ProducerFencedError | None = None
        self._ending: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def transactional_id(self) -> str:
        """Whose transactions they are, over all instances."""
        return self._transactional_id

    @property
    def identity(self) -> ProducerIdentity | None:
        """The id and epoch, once the coordinator has given them."""
        return self._identity

    async def begin(self, api_timeout_ms: float | None = None) -> None:
        """Makes ready for a transaction, if that is not done: asks for the id and epoch, which ends what another
        instance has begun and fences it. A transaction itself begins with its first record or offset.
        """
        self._check_open()
        if self._error is not None:
            raise TransactionFailedError(f"abort the transaction first: {self._error}") from self._error
        if self._producer is None:
            await self._initialize(api_timeout_ms)

    async def send(self, record: ProducerRecord) -> asyncio.Future[RecordMetadata]:
        """As `Producer.send`; that a record is acknowledged does not mean that it counts."""
        return await self._sending(lambda producer: producer.send(record))

    async def send_column(
        self, topic: str, column: ValueColumn, fate: ColumnFate, partition: int | None = None
    ) -> None:
        """As `Producer.send_column`."""
        await self._sending(lambda producer: producer.send_column(topic, column, fate, partition))

    async def partitions_of(self, topic: str, keys: Sequence[bytes]) -> list[int]:
        """As `Producer.partitions_of`."""
        return await self._sending(lambda producer: producer.partitions_of(topic, keys))

    async def send_offsets(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commits offsets of a group with the transaction, as somebody who is no member of it."""
        self._ready()
        if group_id not in self._admitted_groups:
            adding = messages.AddOffsetsToTxnRequest(
                transactional_id=self._transactional_id,
                producer_id=self._known.producer_id,
                producer_epoch=self._known.epoch,
                group_id=group_id,
            )
            self._may_be_open = True
            await self._in_transaction(
                self._ask(self._coordinator, adding, lambda answer: [answer.error_code], "adding a group")
            )
            self._admitted_groups.add(group_id)
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = GroupCoordinator(self._client, self._lane, group_id)
        request = messages.TxnOffsetCommitRequest(
            transactional_id=self._transactional_id,
            group_id=group_id,
            producer_id=self._known.producer_id,
            producer_epoch=self._known.epoch,
            topics=[
                messages.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        messages.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=number,
                            committed_offset=offsets[TopicPartition(topic, number)].offset,
                            committed_leader_epoch=offsets[TopicPartition(topic, number)].leader_epoch,
                            committed_metadata=offsets[TopicPartition(topic, number)].metadata,
                        )
                        for number in numbers
                    ],
                )
                for topic, numbers in by_topic(offsets).items()
            ],
        )
        await self._in_transaction(self._ask(group, request, _codes_of_offsets, "committing offsets"))

    async def flush(self) -> None:
        """Returns when everything that was sent is acknowledged. Raises TransactionFailedError where it will not be."""
        producer = self._ready()
        await producer.flush()
        if producer.failure is not None:
            self.failed(producer.failure)
        self._ready()

    async def commit(self) -> None:
        """Everything since the last `commit` or `abort` counts when this returns. Nothing was sent: nothing is done.

        Raises TransactionFailedError, and then nothing counts; TransactionInDoubtError and, cancelled, CancelledError,
        and then nobody knows.
        """
        await self.flush()
        if self._may_be_open:
            self._is_in_doubt = True
            try:
                await self._end(is_commit=True)
            except ProducerFencedError:
                raise
            except Exception as error:
                message = f"whether a transaction of {self._transactional_id} was committed is not known: {error}"
                raise TransactionInDoubtError(message) from error
            self._is_in_doubt = False
        self._ready().leave_transaction()

    async def abort(self) -> None:
        """Nothing since the last `commit` or `abort` counts, also when this raises something else than
        TransactionInDoubtError. Another transaction may follow.
        """
        self._check_open()
        if self._producer is not None and self._error is None and not self._may_be_open:
            # The next epoch is for what may be on its way. Asked for in vain by an instance that was replaced, it would
            # end the transaction of the one that has the id now, before that is refused.
            return
        await self._end_producer()
        if self._may_be_open:
            try:
                await self._end(is_commit=False)
            except KafkaError as error:
                # The coordinator has heard of no partition.
                if error.code is not ErrorCode.INVALID_TXN_STATE:
                    raise
                self._may_be_open = False
        self._error = None
        await self._initialize()

    async def close(self) -> None:
        """Ends everything at once, and tells nobody: an open transaction is ended by the next instance, or when its
        time is up.
        """
        if self._closed:
            return
        self._closed = True
        await self._end_producer()
        await self._client.connections.close_lane(self._lane)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # For the producer of an epoch (`client.producer.Transaction`).

    async def admit(self, partitions: Sequence[TopicPartition]) -> ProducerIdentity:
        """Takes partitions into the transaction. Raises as the coordinator answers."""
        new = [partition for partition in partitions if partition not in self._admitted]
        if new:
            identity = self._known
            request = messages.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self._transactional_id,
                v3_and_below_producer_id=identity.producer_id,
                v3_and_below_producer_epoch=identity.epoch,
                v3_and_below_topics=[
                    messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=numbers)
                    for topic, numbers in by_topic(new).items()
                ],
            )
            self._may_be_open = True
            await self._ask(self._coordinator, request, _codes_of_partitions, "adding partitions")
            self._admitted.update(new)
        return self._known

    def failed(self, error: Exception) -> None:
        """Sends no more: whoever waits for room or for an answer hears of it at once."""
        if self._error is None:
            self._error = error
            self._client.logger.info("A transaction of %s has failed: %s", self._transactional_id, error)
            self._ending = self._client.host.loop.create_task(self._close_producer(), name="failed transaction")

    # Inside.

    @property
    def _known(self) -> ProducerIdentity:
        if self._identity is None:
            raise RuntimeError(f"{self._transactional_id} has no producer id: call begin first")
        return self._identity

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the producer is closed")
        if self._is_in_doubt:
            message = f"whether the last transaction of {self._transactional_id} was committed is not known: close this"
            raise TransactionInDoubtError(message)
        if self._fenced is not None:
            raise self._fenced

    def _ready(self) -> Producer:
        """The producer of the present epoch."""
        self._check_open()
        if self._error is not None:
            self._raise_failure(self._error)
        if self._producer is None:
            raise RuntimeError(f"{self._transactional_id} has no transaction: call begin first")
        return self._producer

    def _raise_failure(self, error: Exception) -> None:
        if isinstance(error, ProducerFencedError):
            raise error
        raise TransactionFailedError(f"the transaction of {self._transactional_id} has failed: {error}") from error

    async def _sending(self, send: Callable[[Producer], Awaitable[Result]]) -> Result:
        producer = self._ready()
        try:
            return await send(producer)
        except ClientClosedError:
            self._ready()  # says why
            raise

    async def _in_transaction(self, asking: Coroutine[Any, Any, object]) -> None:
        try:
            await asking
        except Exception as error:
            self.failed(error)
            if isinstance(error, ProducerFencedError):
                raise
            raise TransactionFailedError(f"the transaction of {self._transactional_id} has failed: {error}") from error

    async def _initialize(self, api_timeout_ms: float | None = None) -> None:
        """The first identity, or the next epoch of it: that is refused when another instance has come meanwhile."""
        identity = self._identity
        request = messages.InitProducerIdRequest(
            transactional_id=self._transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=NO_PRODUCER_ID if identity is None else identity.producer_id,
            producer_epoch=NO_EPOCH if identity is None else identity.epoch,
        )
        answer = await self._ask(
            self._coordinator, request, lambda answer: [answer.error_code], "a producer id", api_timeout_ms
        )
        self._identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        self._forget_transaction()
        self._producer = Producer(self._client, self._settings, self)

    async def _end(self, *, is_commit: bool) -> None:
        request = messages.EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=self._known.producer_id,
            producer_epoch=self._known.epoch,
            committed=is_commit,
        )
        what = "committing" if is_commit else "aborting"
        await self._ask(self._coordinator, request, lambda answer: [answer.error_code], what)
        self._forget_transaction()

    def _forget_transaction(self) -> None:
        self._admitted.clear()
        self._admitted_groups.clear()
        self._may_be_open = False

    async def _end_producer(self) -> None:
        if self._ending is not None:
            await asyncio.wait([self._ending])
            self._ending = None
        await self._close_producer()

    async def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(timeout_ms=0)

    async def _ask(
        self,
        coordinator: Coordinator,
        request: Any,
        codes_of: Callable[[Any], Sequence[int]],
        what: str,
        timeout_ms: float | None = None,
    ) -> Any:
        """Asks until the coordinator has done it. Raises ProducerFencedError, KafkaError, ClientTimeoutError."""
        retry = self._client.retry(f"{what} for {self._transactional_id}", timeout_ms)
        while True:
            try:
                answer = await coordinator.ask(request, retry.attempt_ms)
                for code in codes_of(answer):
                    if code in _FENCED:
                        self._fenced = self._fencing(ErrorCode.for_code(code))
                        raise self._fenced
                    coordinator.check(code, what)
            except (KafkaError, ConnectionError, RequestTimeoutError) as error:
                is_completing = isinstance(error, KafkaError) and error.code is ErrorCode.CONCURRENT_TRANSACTIONS
                if is_completing and retry.left_ms > _COMPLETING_PAUSE_MS:
                    await self._client.timers.sleep(_COMPLETING_PAUSE_MS)
                else:
                    await retry.again(error)
            else:
                return answer

    def _fencing(self, code: ErrorCode) -> ProducerFencedError:
        return ProducerFencedError(
            f"transactional id {self._transactional_id} is another producer's now, or its transaction has taken longer "
            f"than {self.timeout_ms} ms ({code.name})",
            code,
        )


def _codes_of_partitions(answer: Any) -> list[int]:
    """Of a request of which one partition fails the others are not tried: what says more comes first."""
    codes = [
        told.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for told in topic.results_by_partition
    ]
    return sorted(codes, key=lambda code: code == ErrorCode.OPERATION_NOT_ATTEMPTED)


def _codes_of_offsets(answer: Any) -> list[int]:
    return [told.error_code for topic in answer.topics for told in topic.partitions]
