"""`__remote_log_metadata`, read and written by our own client, as Apache Kafka's brokers do by theirs.

A broker reads the partitions of the topic that tell of partitions which it hosts, and keeps in memory what all of these
say. Invariants: what was published is not published, to its publisher, before this broker has read it back: whoever
decides next has seen it. An offset counts in the life of the topic, which its id tells, that it was read in: a topic
that was deleted and made again is read from its start, and what is known of the former one stays known.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.client.admin import Admin, NewTopic
from barnabas.client.client import Client
from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientError, ClientTimeoutError
from barnabas.client.producer import Producer
from barnabas.client.records import ProducerRecord
from barnabas.client.settings import ClientSettings, ConsumerSettings, OffsetReset, ProducerSettings
from barnabas.kernel.host import Host
from barnabas.kernel.ids import ZERO_UUID
from barnabas.kernel.timers import Timers
from barnabas.kernel.transitions import IllegalTransitionError
from barnabas.sasl.mechanisms import AnyLogin
from barnabas.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.tiered.metadata_records import decode_metadata, encode_metadata, metadata_partition
from barnabas.tiered.segment_metadata import (
    RemoteLogMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
    partition_of,
)
from barnabas.tiered.settings import TieredSettings
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.topics import REMOTE_LOG_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    import ssl

_POLL_MS: Final = 1_000
_AGAIN_MS: Final = 1_000
_POSITION_MS: Final = 100
"""It is known but while a leader is sought or a start is asked for."""
_APPLIED_PER_POLL: Final = 200
_WAIT_SECONDS: Final = 30.0


class _Access(NamedTuple):
    """The client of one connection to the cluster, and what is made of it."""

    client: Client
    admin: Admin
    consumer: Consumer
    producer: Producer


@dataclass(slots=True, eq=False)
class _Unread:
    """A record that is being published."""

    number: int
    """Its partition of the topic."""
    value: bytes
    read_at: set[int] = field(default_factory=set)
    """The offsets at which its value was read since."""


class MetadataTopic:
    """What one broker knows of remote segments, and says of them."""

    def __init__(
        self,
        host: Host,
        timers: Timers,
        settings: TieredSettings,
        bootstrap_servers: Callable[[], tuple[str, ...]],
        logger: logging.Logger,
        login: AnyLogin | None = None,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """`bootstrap_servers` are asked for when the first partition is needed; `login` is this broker's there,
        and `tls` secures its connections.
        """
        self._login = login
        self._tls = tls
        self._host = host
        self._timers = timers
        self._settings = settings
        self._bootstrap_servers = bootstrap_servers
        self._logger = logger
        self._caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
        self._needed: set[int] = set()
        self._assigned: set[int] = set()
        self._read_to: dict[int, int] = {}
        """The offset of the next record, by partition that is read."""
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._access: _Access | None = None
        self._partition_count = settings.metadata_partitions
        self._topic_id: bytes = ZERO_UUID
        """Of the life of the topic that `_read_to` is about; zeros before the first."""
        self._unread: list[_Unread] = []
        """What is being published."""

    def cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """What is known of a partition so far; `catch_up` says when that is all."""
        return self._caches.setdefault(partition, RemoteLogMetadataCache())

    def partitions(self) -> list[TopicIdPartition]:
        """All of which anything is known."""
        return list(self._caches)

    async def catch_up(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """Returns when everything is known that was published of a partition before the call. Raises TimeoutError,
        ClientError and KafkaError."""
        async with asyncio.timeout(_WAIT_SECONDS):
            while True:
                number, access = await self._ready(partition)
                topic_id = self._topic_id
                place = TopicPartition(REMOTE_LOG_METADATA_TOPIC, number)
                end_offset = (await access.consumer.end_offsets([place]))[place]
                # The end may be that of a topic which was made since: of which life it is, is asked after it.
                described = await access.admin.describe_topics([REMOTE_LOG_METADATA_TOPIC])
                is_same = described[REMOTE_LOG_METADATA_TOPIC].topic_id in (ZERO_UUID, topic_id)
                if is_same and await self._read_up_to(number, end_offset, topic_id):
                    return self.cache(partition)
                access.client.metadata.request_update()
                await self._wait()

    async def publish(self, metadata: RemoteLogMetadata) -> None:
        """Writes what is to be known; returns when this broker has read it. Raises TimeoutError, ClientError and
        KafkaError, and then it may have been written or not."""
        value = encode_metadata(metadata)
        async with asyncio.timeout(_WAIT_SECONDS):
            number, access = await self._ready(partition_of(metadata))
            unread = _Unread(number, value)
            self._unread.append(unread)
            try:
                written = await access.producer.send_and_wait(
                    ProducerRecord(REMOTE_LOG_METADATA_TOPIC, value, partition=number)
                )
                # Its offset alone says nothing where the topic was made again: one as high was read in its former life.
                while written.offset not in unread.read_at:
                    await self._wait()
            finally:
                self._unread.remove(unread)

    async def close(self) -> None:
        """Reads no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _ready(self, partition: TopicIdPartition) -> tuple[int, _Access]:
        """The partition of the topic that tells of it, which is being read when this returns."""
        if self._task is None:
            self._task = self._host.loop.create_task(self._run(), name="remote-log-metadata")
        self.cache(partition)
        while True:
            access = self._access
            if access is not None:
                # How many partitions there are is known from then on.
                number = metadata_partition(partition, self._partition_count)
                self._needed.add(number)
                if number in self._read_to:
                    return number, access
            await self._wait()

    async def _read_up_to(self, number: int, end_offset: int, topic_id: bytes) -> bool:
        """False where that life of the topic has ended before."""
        while self._topic_id == topic_id:
            if self._read_to.get(number, 0) >= end_offset:
                return True
            await self._wait()
        return False

    async def _wait(self) -> None:
        await self._news.wait()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _run(self) -> None:
        """Invariant: nothing but `close` ends this."""
        while True:
            try:
                await self._read()
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, reading goes on
                self._logger.warning("Reading %s failed; trying again: %s", REMOTE_LOG_METADATA_TOPIC, error)
            self._access = None
            await self._timers.sleep(_AGAIN_MS)

    async def _read(self) -> None:
        """Returns where the topic was made again."""
        self._assigned.clear()
        # Not in an `async with`, which waits in the end: a process that is killed in a simulation closes nothing.
        stack = AsyncExitStack()
        try:
            await self._read_on(stack)
        except (Exception, asyncio.CancelledError):
            await stack.aclose()
            raise
        await stack.aclose()

    async def _read_on(self, stack: AsyncExitStack) -> None:
        settings = ClientSettings(
            bootstrap_servers=self._bootstrap_servers(),
            client_id="remote-log-metadata",
            login=self._login,
            tls=self._tls(),
        )
        client = await stack.enter_async_context(Client(self._host, settings, self._logger))
        admin = Admin(client)
        await self._create_topic(client, admin)
        producer = await stack.enter_async_context(Producer(client, ProducerSettings()))
        consumer = await stack.enter_async_context(
            Consumer(client, ConsumerSettings(offset_reset=OffsetReset.EARLIEST, auto_commit=False))
        )
        self._access = _Access(client, admin, consumer, producer)
        self._tell()
        while True:
            if self._needed != self._assigned:
                await self._assign(consumer)
            records = await consumer.poll(_POLL_MS if self._assigned else 100, _APPLIED_PER_POLL)
            if self._is_made_again(client):
                # Whatever these are of, the new one is read from its start, where they are again.
                self._logger.warning(
                    "%s was deleted and made again; reading it from its start", REMOTE_LOG_METADATA_TOPIC
                )
                return
            for record in records:
                if record.value is not None:
                    self._apply(record.value, record.partition.partition, record.offset)
            await self._note_positions(consumer)
            self._tell()

    def _is_made_again(self, client: Client) -> bool:
        """Whether the topic has another id than the one that is read, as far as the client knows."""
        topic = client.cluster.topics.get(REMOTE_LOG_METADATA_TOPIC)
        return topic is not None and topic.topic_id not in (ZERO_UUID, self._topic_id)

    def _begin_life(self, client: Client, partition_count: int) -> None:
        """Notes which life of the topic is read from now on."""
        if not self._is_made_again(client):
            return
        self._topic_id = client.cluster.topics[REMOTE_LOG_METADATA_TOPIC].topic_id
        self._partition_count = partition_count
        self._read_to.clear()
        self._needed = {metadata_partition(partition, partition_count) for partition in self._caches}

    async def _note_positions(self, consumer: Consumer) -> None:
        """Up to where there is nothing that was not read. The last record is not always what says that: a partition may
        end in the end of somebody's transaction, retention may have taken what was not read yet, and a topic that was
        made again begins anew."""
        for number in self._assigned:
            with contextlib.suppress(ClientTimeoutError):
                place = TopicPartition(REMOTE_LOG_METADATA_TOPIC, number)
                self._read_to[number] = await consumer.position(place, _POSITION_MS)

    async def _create_topic(self, client: Client, admin: Admin) -> None:
        settings = self._settings
        topic = NewTopic(
            REMOTE_LOG_METADATA_TOPIC,
            partitions=settings.metadata_partitions,
            replication_factor=settings.metadata_replication_factor,
            configs={"cleanup.policy": "delete", "retention.ms": str(settings.metadata_retention_ms)},
        )
        try:
            await admin.create_topics([topic])
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        except ClientError as error:
            if REMOTE_LOG_METADATA_TOPIC not in await admin.list_topics():
                raise error from None
        topic_retry = client.retry(f"find {REMOTE_LOG_METADATA_TOPIC}")
        found = len((await client.metadata.topic(REMOTE_LOG_METADATA_TOPIC, topic_retry)).partitions)
        self._begin_life(client, found)
        if found != settings.metadata_partitions:
            self._logger.warning(
                "%s has %d partitions, and not %d as configured",
                *(REMOTE_LOG_METADATA_TOPIC, found, settings.metadata_partitions),
            )

    async def _assign(self, consumer: Consumer) -> None:
        needed = set(self._needed)
        consumer.assign(TopicPartition(REMOTE_LOG_METADATA_TOPIC, number) for number in sorted(needed))
        added = [TopicPartition(REMOTE_LOG_METADATA_TOPIC, number) for number in needed - self._assigned]
        starts = await consumer.beginning_offsets(added) if added else {}
        for place, offset in starts.items():
            self._read_to[place.partition] = max(offset, self._read_to.get(place.partition, 0))
            consumer.seek(place, self._read_to[place.partition])
        self._assigned = needed

    def _apply(self, value: bytes, number: int, offset: int) -> None:
        for unread in self._unread:
            if unread.number == number and unread.value == value:
                unread.read_at.add(offset)
        try:
            metadata = decode_metadata(value)
            partition = partition_of(metadata)
            cache = self.cache(partition)
            cache.apply(metadata)
            if cache.deletion is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                del self._caches[partition]
        except (ProtocolError, IllegalTransitionError) as error:
            # A leader that was deposed in the middle of a copy says that it has finished, after another has begun to
            # delete that; whoever reads this decides the same.
            self._logger.warning(
                "Record %d of %s-%d is passed over: %s", offset, REMOTE_LOG_METADATA_TOPIC, number, error
            )
