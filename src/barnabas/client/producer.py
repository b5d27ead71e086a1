"""Sends records: batches them by partition, finds the leaders, and repeats what may be repeated."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self, cast

from barnabas.client.batches import PartitionQueue, ProducerIdentity
from barnabas.client.errors import BufferFullError, ClientClosedError, RecordTooLargeError
from barnabas.client.partitioners import StickyPartitioner, partition_of_key, partitions_of_keys
from barnabas.client.producer_sender import NodeSender
from barnabas.client.settings import ProducerSettings
from barnabas.kernel.spoken import spoken_ms
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode, KafkaError, raise_for_code
from barnabas.wire.record_batch import BATCH_HEADER_BYTES
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.client.batches import ColumnFate
    from barnabas.client.client import Client
    from barnabas.client.cluster import BrokerNode, TopicInfo
    from barnabas.client.records import ProducerRecord, RecordMetadata
    from barnabas.kernel.timers import Timer
    from barnabas.wire.messages import InitProducerIdResponse
    from barnabas.wire.record_columns import ValueColumn

_RECORD_OVERHEAD_BYTES: Final = 36
"""Attributes, and the varints of length, timestamp, offset, key, value and count of headers at their longest."""
_HEADER_OVERHEAD_BYTES: Final = 10
_INT32_MAX: Final = 2**31 - 1


class Transaction(Protocol):
    """What a producer needs of the transaction that its records belong to."""

    @property
    def transactional_id(self) -> str: ...

    async def admit(self, partitions: Sequence[TopicPartition]) -> ProducerIdentity:
        """Takes partitions into the transaction: before that their leaders refuse its records."""
        ...

    def failed(self, error: Exception) -> None:
        """The transaction cannot be committed any more."""
        ...


class Producer:
    """A producer; use it as a context, or `close` it. The order of the calls of `send` holds within a partition."""

    def __init__(
        self, client: Client, settings: ProducerSettings | None = None, transaction: Transaction | None = None
    ) -> None:
        """With a `transaction`, every record is one of it: that is `TransactionalProducer`'s matter."""
        self.settings = settings or ProducerSettings()
        self._transaction = transaction
        self.retries = 0
        """How many batches were sent again."""
        self._client = client
        self._lane = client.connections.new_lane()
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._senders: dict[int, NodeSender] = {}
        self._sticky: dict[str, StickyPartitioner] = {}
        self._record_bytes_max = (
            min(self.settings.request_bytes_max, self.settings.buffer_bytes_max) - BATCH_HEADER_BYTES
        )
        self._buffered_bytes = 0
        self._waiting_for_room: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._expiry: Timer | None = None
        self._identifying: asyncio.Task[None] | None = None
        self._flushing = 0
        self._progress = asyncio.Event()
        self._closed = False
        self._stop_listening = client.metadata.add_listener(self.dispatch)

    @property
    def transactional_id(self) -> str | None:
        """Whose transactions the records belong to."""
        return None if self._transaction is None else self._transaction.transactional_id

    @property
    def failure(self) -> Exception | None:
        """Why the transaction cannot be committed: the first record of it that was given up."""
        return next((queue.failure for queue in self._queues.values() if queue.failure is not None), None)

    def leave_transaction(self) -> None:
        """The transaction has ended with everything acknowledged: what is sent from now on belongs to the next one."""
        for queue in self._queues.values():
            queue.leave_transaction()

    @property
    def buffered_bytes(self) -> int:
        """What waits to be sent or acknowledged."""
        return self._buffered_bytes

    async def send(self, record: ProducerRecord) -> asyncio.Future[RecordMetadata]:
        """Takes a record, and returns a future of where it is once it is acknowledged.

        Waits for room in the buffer and for a new topic to be known, `max_block_ms` at most: then it raises
        BufferFullError or ClientTimeoutError. Raises KafkaError for a topic that cannot be had, a partition that does
        not exist, or a record that is too large. The future raises DeliveryTimeoutError or KafkaError. Cancelling the
        future takes nothing back.
        """
        future = self.send_now(record)
        if future is not None:
            return future
        topic = await self._topic(record.topic)
        _check_partition(record.topic, record.partition, topic)
        size_bytes = _size_of(record)
        if self._buffered_bytes + size_bytes > self.settings.buffer_bytes_max or self._waiting_for_room:
            await self._wait_for_room(size_bytes)
        else:
            self._buffered_bytes += size_bytes
        return self._take(record, topic, size_bytes)

    def send_now(self, record: ProducerRecord) -> asyncio.Future[RecordMetadata] | None:
        """Like `send`, where it need not wait; None, and nothing is taken, where the topic is not known yet or there is
        no room. Costs less than `send` for callers with many records at hand.
        """
        self._check_open()
        size_bytes = _size_of(record)
        if size_bytes > self._record_bytes_max:
            raise self._too_large(size_bytes, record.topic)
        topic = self._client.metadata.cluster.topics.get(record.topic)
        if topic is None or not topic.partitions:
            return None
        if record.partition is not None and record.partition not in topic.partitions:
            self._client.metadata.request_update()
            _check_partition(record.topic, record.partition, topic)
        if self._buffered_bytes + size_bytes > self.settings.buffer_bytes_max or self._waiting_for_room:
            return None
        self._buffered_bytes += size_bytes
        return self._take(record, topic, size_bytes)

    async def send_column(
        self, topic: str, column: ValueColumn, fate: ColumnFate, partition: int | None = None
    ) -> None:
        """Takes many records for one partition at once, a tenth of the work of as many calls of `send`. What becomes of
        them `fate` hears, part by part. Without a `partition`, the key of the column or else the sticky partitioner
        chooses one; a column with a key for each record needs one (`partitions_of`).

        Waits and raises as `send` does; then nothing of the column was taken. Raises ValueError for a column that has
        nothing, or that is larger than the whole buffer.
        """
        self._check_open()
        size_bytes = column.size_bytes
        if column.keys is not None and partition is None:
            raise ValueError("name the partition of a column with a key for each record: see partitions_of")
        if not len(column) or size_bytes > self.settings.buffer_bytes_max:
            raise ValueError(f"a column of {len(column)} records takes {size_bytes} bytes; send some at a time")
        largest = column.largest_bytes
        if largest > self._record_bytes_max:
            raise self._too_large(largest, topic)
        info = await self._topic(topic)
        _check_partition(topic, partition, info)
        if self._buffered_bytes + size_bytes > self.settings.buffer_bytes_max or self._waiting_for_room:
            await self._wait_for_room(size_bytes)
        else:
            self._buffered_bytes += size_bytes
        try:
            self._check_open()
            now = self._client.host.loop.time()
            queue = self._queue(TopicPartition(topic, self._choose(topic, partition, column.key, info, size_bytes)))
            is_news = queue.append_column(column, fate, self._client.host.clock.time_ms(), now)
        except Exception:
            self.released(size_bytes)
            raise
        if is_news:
            self._news(queue, now)

    async def partitions_of(self, topic: str, keys: Sequence[bytes]) -> list[int]:
        """Which partition records with these keys go to, where they name none. Waits and raises as `send` does."""
        return partitions_of_keys(keys, len((await self._topic(topic)).partitions))

    async def send_and_wait(self, record: ProducerRecord) -> RecordMetadata:
        """Sends a record and returns where it is once it is acknowledged; raises what `send` and its future raise."""
        return await (await self.send(record))

    async def flush(self) -> None:
        """Returns when everything that was sent before is acknowledged, or has failed."""
        marks = [(queue, queue.last_order) for queue in self._queues.values() if not queue.is_empty]
        self._flushing += 1
        try:
            self.dispatch()
            while any(queue.is_pending(order) for queue, order in marks):
                self._progress.clear()
                await self._progress.wait()
        finally:
            self._flushing -= 1

    async def close(self, timeout_ms: float | None = None) -> None:
        """Sends what is left, for `timeout_ms` at most (`delivery_timeout_ms` where not given), and fails the rest."""
        if self._closed:
            return
        limit_ms = self.settings.delivery_timeout_ms if timeout_ms is None else timeout_ms
        try:
            if limit_ms > 0:
                async with asyncio.timeout(limit_ms / 1_000):
                    await self.flush()
        except TimeoutError:
            self._client.logger.warning("A producer was closed before everything it had was acknowledged")
        finally:
            await self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(timeout_ms=None if kind is None else 0)

    # Taking records.

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the producer is closed")

    async def _topic(self, name: str) -> TopicInfo:
        metadata = self._client.metadata
        metadata.use(name)
        info = metadata.cluster.topics.get(name)
        if info is None or not info.partitions:
            retry = self._client.retry(f"finding topic {name}", self.settings.max_block_ms)
            info = await metadata.topic(name, retry)
            self._check_open()
        return info

    async def _wait_for_room(self, size_bytes: int) -> None:
        """Returns when so much of the buffer is the caller's: `released` gives it."""
        future: asyncio.Future[None] = self._client.host.loop.create_future()
        entry = (size_bytes, future)
        self._waiting_for_room.append(entry)
        try:
            async with asyncio.timeout(self.settings.max_block_ms / 1_000):
                await future
        except (TimeoutError, asyncio.CancelledError) as error:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.released(size_bytes)  # it came at the same moment
            if isinstance(error, asyncio.CancelledError):
                raise
            raise BufferFullError(
                f"no room for a record within {spoken_ms(self.settings.max_block_ms)} (max.block.ms): "
                f"{self._buffered_bytes} bytes of {self.settings.buffer_bytes_max} (buffer.memory) wait to be "
                "acknowledged"
            ) from None
        finally:
            if entry in self._waiting_for_room:
                self._waiting_for_room.remove(entry)

    def _too_large(self, size_bytes: int, topic: str) -> KafkaError:
        settings = self.settings
        if settings.buffer_bytes_max < settings.request_bytes_max:
            limit = f"buffer.memory (buffer_bytes_max={settings.buffer_bytes_max})"
        else:
            limit = f"max.request.size (request_bytes_max={settings.request_bytes_max})"
        return RecordTooLargeError(
            f"a record of {size_bytes} bytes is larger than the producer's {limit} allows; raise that, and "
            f"max.message.bytes of topic {topic} where it is less"
        )

    def _take(self, record: ProducerRecord, topic: TopicInfo, size_bytes: int) -> asyncio.Future[RecordMetadata]:
        """Enqueues a record that has its room in the buffer, and gives that back where it cannot."""
        try:
            self._check_open()
            return self._enqueue(record, topic, size_bytes)
        except Exception:
            self.released(size_bytes)
            raise

    def _enqueue(self, record: ProducerRecord, topic: TopicInfo, size_bytes: int) -> asyncio.Future[RecordMetadata]:
        now = self._client.host.loop.time()
        number = self._choose(record.topic, record.partition, record.key, topic, size_bytes)
        queue = self._queue(TopicPartition(record.topic, number))
        future: asyncio.Future[RecordMetadata] = self._client.host.loop.create_future()
        timestamp_ms = self._client.host.clock.time_ms() if record.timestamp_ms is None else record.timestamp_ms
        if queue.append((timestamp_ms, record.key, record.value, record.headers), future, size_bytes, now):
            self._news(queue, now)
        return future

    def _queue(self, partition: TopicPartition) -> PartitionQueue:
        queue = self._queues.get(partition)
        if queue is None:
            is_transactional = self._transaction is not None
            queue = PartitionQueue(partition, self.settings, is_transactional=is_transactional)
            self._queues[partition] = queue
        return queue

    def _news(self, queue: PartitionQueue, now: float) -> None:
        if self._expiry is None:
            self._expire_at(now + self.settings.delivery_timeout_ms / 1_000)
        self._dispatch(queue)

    def _choose(self, name: str, partition: int | None, key: bytes | None, topic: TopicInfo, size_bytes: int) -> int:
        if partition is not None:
            return partition
        if key is not None:
            return partition_of_key(key, len(topic.partitions))
        sticky = self._sticky.get(name)
        if sticky is None:
            sticky = StickyPartitioner(self._client.host.random, self.settings.batch_bytes)
            self._sticky[name] = sticky
        brokers = self._client.cluster.brokers
        kept = sticky.keep(size_bytes)
        info = None if kept is None else topic.partitions.get(kept)
        if kept is not None and info is not None and info.leader_id in brokers:
            return kept
        led = [number for number, info in topic.partitions.items() if info.leader_id in brokers]
        return sticky.choose(led or list(topic.partitions), size_bytes)

    # For the senders.

    def dispatch(self) -> None:
        """Wakes the senders of all partitions that have something to send; called when leaders may have changed."""
        for queue in list(self._queues.values()):
            if not queue.is_empty:
                self._dispatch(queue)

    def queues_led_by(self, node_id: int) -> list[PartitionQueue]:
        """The partitions that a broker leads now."""
        cluster = self._client.cluster
        found = []
        for queue in self._queues.values():
            leader = cluster.leader(queue.partition)
            if leader is not None and leader[0].node_id == node_id and not queue.is_empty:
                found.append(queue)
        return found

    @property
    def is_flushing(self) -> bool:
        """What waits is to be sent without lingering."""
        return self._flushing > 0

    def released(self, size_bytes: int) -> None:
        """So much of the buffer is free again: a batch has succeeded or failed. Those who waited longest get it, before
        anybody else can take it.
        """
        self._buffered_bytes -= size_bytes
        self._progress.set()
        while self._waiting_for_room:
            wanted, future = self._waiting_for_room[0]
            if self._buffered_bytes + wanted > self.settings.buffer_bytes_max:
                return
            self._waiting_for_room.popleft()
            if not future.done():
                self._buffered_bytes += wanted
                future.set_result(None)

    def expire(self, queue: PartitionQueue) -> None:
        """Gives up what is too old and not in flight."""
        for batch in queue.expire(self._client.host.loop.time()):
            self.released(batch.size_bytes)
        if self._transaction is not None and queue.failure is not None:
            self._transaction.failed(queue.failure)

    # Inside.

    def _dispatch(self, queue: PartitionQueue) -> None:
        if self._closed:
            return
        self._client.metadata.use(queue.partition.topic)
        if queue.needs_identity:
            self._identify()
            return
        leader = self._client.cluster.leader(queue.partition)
        if leader is None:
            self._client.metadata.request_update()
            return
        node_id = leader[0].node_id
        sender = self._senders.get(node_id)
        if sender is None:
            sender = self._senders[node_id] = NodeSender(self, self._client, self._lane, node_id)
        sender.wake()

    def _identify(self) -> None:
        if self._identifying is None:
            identified = self._get_identity() if self._transaction is None else self._admit(self._transaction)
            self._identifying = self._client.host.loop.create_task(identified, name="producer id")

    async def _admit(self, transaction: Transaction) -> None:
        """Takes all partitions that have something to send into the transaction."""
        try:
            while queues := [queue for queue in self._queues.values() if queue.needs_identity]:
                identity = await transaction.admit([queue.partition for queue in queues])
                for queue in queues:
                    queue.identity = identity
        except Exception as error:  # noqa: BLE001 - whatever it is, the transaction cannot go on
            transaction.failed(error)
        finally:
            self._identifying = None
            if not self._closed:
                self._client.host.loop.call_soon(self.dispatch)

    async def _get_identity(self) -> None:
        """Asks for a producer id, for as long as it takes, and gives it to all partitions that need one."""
        backoff = self._client.backoff()
        try:
            while True:
                try:
                    response = await self._client.ask_any(self._ask_for_identity)
                    raise_for_code(response.error_code, "InitProducerId")
                except Exception as error:  # noqa: BLE001 - records expire if this lasts
                    self._client.logger.info("No producer id yet: %s", error)
                    await self._client.timers.sleep(backoff.next_ms())
                    continue
                identity = ProducerIdentity(response.producer_id, response.producer_epoch)
                for queue in self._queues.values():
                    if queue.identity is None:
                        queue.identity = identity
                return
        finally:
            self._identifying = None
            if not self._closed:
                self._client.host.loop.call_soon(self.dispatch)

    async def _ask_for_identity(self, node: BrokerNode) -> InitProducerIdResponse:
        request = messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_INT32_MAX)
        return cast("InitProducerIdResponse", await self._client.ask(node, self._lane, request))

    def _expire_at(self, when: float) -> None:
        self._expiry = self._client.timers.call_at(when, self._expire)

    def _expire(self) -> None:
        """Gives up what is too old, and comes again for what is next."""
        self._expiry = None
        now = self._client.host.loop.time()
        following: list[float] = []
        for queue in self._queues.values():
            self.expire(queue)
            when = queue.next_expiry(now)
            if when is not None:
                following.append(when)
        if following or self._buffered_bytes:
            soonest = min(following, default=now + self.settings.delivery_timeout_ms / 1_000)
            self._expire_at(max(soonest, now + 0.001))
        self.dispatch()

    async def _end(self) -> None:
        self._closed = True
        self._stop_listening()
        for sender in self._senders.values():
            await sender.close()
        if self._identifying is not None:
            self._identifying.cancel()
            await asyncio.wait([self._identifying])
        if self._expiry is not None:
            self._expiry.cancel()
        # What is in flight fails here, by the senders' callbacks, and is given up below.
        await self._client.connections.close_lane(self._lane)
        for queue in self._queues.values():
            for batch in queue.fail_all(
                lambda: ClientClosedError("the producer was closed before this was acknowledged")
            ):
                self._buffered_bytes -= batch.size_bytes
        self._progress.set()
        while self._waiting_for_room:
            _, future = self._waiting_for_room.popleft()
            if not future.done():
                future.set_exception(ClientClosedError("the producer was closed"))


def _size_of(record: ProducerRecord) -> int:
    """About what a record takes in a batch, and not less."""
    size_bytes = _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size_bytes += _HEADER_OVERHEAD_BYTES + len(name) + len(value or b"")
    return size_bytes


def _check_partition(name: str, partition: int | None, topic: TopicInfo) -> None:
    """Raises KafkaError for a partition that does not exist."""
    if partition is not None and partition not in topic.partitions:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"{name} has partitions 0 to {len(topic.partitions) - 1}, not {partition}",
        )
