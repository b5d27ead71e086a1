"""The users of a simulated cluster: they produce, consume in a group and commit, and create and delete topics.

Each is the `main` of a process of its own. What they see goes into the `History`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from barnabas.client.access import Access
from barnabas.client.admin import Admin, NewTopic
from barnabas.client.client import Client
from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientError, DeliveryTimeoutError
from barnabas.client.group_coordinator import GroupCoordinator
from barnabas.client.producer import Producer
from barnabas.client.records import OffsetAndMetadata, ProducerRecord
from barnabas.client.settings import ClientSettings, ConsumerSettings, OffsetReset, ProducerSettings
from barnabas.kernel.timers import Timers
from barnabas.link.errors import AuthenticationFailedError
from barnabas.link.outgoing import OutgoingSettings
from barnabas.sasl.mechanisms import Login
from barnabas.server.cluster_security import ADMIN, CLIENT, MECHANISM
from barnabas.testing.cluster_history import Acknowledged, Committed, CommittedRead, Consumed, RecordId
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.records import RecordMetadata
    from barnabas.kernel.host import Host
    from barnabas.testing.cluster_history import History

ADMINISTRATORS: Final = frozenset({"administrator", "operator"})
"""Machines, of whose users it is supposed that they may do everything."""
OUTSTANDING_MAX: Final = 200
UNKNOWN_FOR_SECONDS: Final = 8.0
"""Two sessions: no longer does a controller act after it was replaced."""
DELETE_PAUSE_MS: Final = 500
LOGIN_PAUSE_MS: Final = 300


@dataclass(frozen=True, slots=True)
class Load:
    """How much the users do. Times are seconds, or ms where the name says so."""

    topic: str = "events"
    partitions: int = 3
    records_pause_ms: float = 200
    """On average between two records of one producer."""
    producers: int = 2
    producer_life_seconds: float = 20
    """On average, until a producer is closed and another one, with another id, takes its place."""
    consumers: int = 2
    consumer_life_seconds: float = 15
    group: str = "readers"
    commit_pause_ms: float = 1_000
    topic_pause_seconds: float = 4
    """On average between two creations or deletions of topics."""
    temporary_topics_max: int = 3
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    """The configs of the topic under load."""
    flush_messages: tuple[int, ...] = ()
    """For each one topic more with that `flush.messages` (see `flushed_topics`)."""
    racks: tuple[str, ...] = ()
    """Where consumers are, one after another; each broker is in the one of its number."""
    has_renewed_topic: bool = False
    """One topic more, that is deleted and made anew under its name (see `renewed_topic`)."""
    has_compacted_topic: bool = False
    """One topic more, that is compacted (see `compacted_topic`)."""
    has_tiered_topic: bool = False
    """One topic more, whose old segments are in remote storage (see `tiered_topic`)."""
    has_tokens: bool = False
    """Delegation tokens are made and used, too (see `tokens_in_use`); passwords and ACLs change (`changed_rights`)."""
    is_secured: bool = False
    """Everybody logs in, and others try to come in without (see `secured_users`)."""
    has_outbox: bool = False
    """A pipeline's driver more, and two topics that it writes (see `outbox_users`)."""
    has_next_group: bool = False
    """A group of the consumer protocol, and two topics more (see `next_group_users`)."""
    has_credentials: bool = False
    """Everybody speaks TLS and logs in by tokens, and all of these change (see `credential_faults`)."""
    transactional_ids: int = 0
    """For each, producers with transactions, and one topic more for all of them (see `transactional_users`)."""


def password_of(user: str) -> str:
    """Of a secured cluster."""
    return f"of-{user}"


class Users:
    """All users of one run. `stop` lets them end what they are at."""

    def __init__(
        self, bootstrap_servers: tuple[str, ...], load: Load, history: History, now: Callable[[], float]
    ) -> None:
        self.load = load
        self.history = history
        self.now = now
        self.retries = 0
        """Batches that were sent again."""
        self.topics: dict[str, bool] = {}
        """Topics for a while that were surely created; True as long as their deletion was not acknowledged."""
        self.access: Callable[[Host], Access] = self._usual_access
        """How the users on a machine come in."""
        self.failures: tuple[type[Exception], ...] = (ClientError, KafkaError)
        """What users go on after, as whoever has to."""
        self._bootstrap_servers = bootstrap_servers
        self._producers = 0
        self._consumers = 0
        self._stopped = False

    def stop(self) -> None:
        """Begin nothing new."""
        self._stopped = True

    def goes_on(self) -> bool:
        """`stop` has not been called."""
        return not self._stopped

    def _usual_access(self, host: Host) -> Access:
        if not self.load.is_secured:
            return Access()
        user = ADMIN if host.name.partition("/")[0] in ADMINISTRATORS else CLIENT
        return Access(Login(MECHANISM, user, password_of(user)))

    @asynccontextmanager
    async def client(self, host: Host, api_timeout_ms: int = 60_000) -> AsyncIterator[Client]:
        """A client with time-outs that fit the length of a run."""
        access = self.access(host)
        settings = ClientSettings(
            bootstrap_servers=self._bootstrap_servers,
            request_timeout_ms=4_000,
            api_timeout_ms=api_timeout_ms,
            login=access.login,
            tls=access.tls,
            outgoing=OutgoingSettings(connect_timeout_ms=2_000, connect_timeout_ms_max=4_000),
        )
        client = await self._started(host, settings)
        try:
            yield client
        finally:
            await client.close()

    async def _started(self, host: Host, settings: ClientSettings) -> Client:
        """Tries again where a login that fails is no surprise."""
        timers = Timers(host.loop)
        while True:
            client = Client(host, settings, logging.getLogger(f"barnabas.simulated.{host.name}"))
            try:
                await client.start()
            except AuthenticationFailedError as error:
                await client.close()
                if not isinstance(error, self.failures):
                    raise
                await timers.sleep(LOGIN_PAUSE_MS)
            except (Exception, asyncio.CancelledError):
                await client.close()
                raise
            else:
                return client

    # Producing.

    async def produce(self, host: Host) -> None:
        """Producers, one after another, until `stop`."""
        async with self.client(host) as client:
            await asyncio.gather(*(self._produce_in_turn(client) for _ in range(self.load.producers)))

    async def _produce_in_turn(self, client: Client) -> None:
        random = client.host.random
        while self.goes_on():
            ends_at = self.now() + random.expovariate(1 / self.load.producer_life_seconds)
            settings = ProducerSettings(
                delivery_timeout_ms=20_000, batch_bytes=random.choice((300, 16_384)), linger_ms=random.choice((0, 20))
            )
            producer = Producer(client, settings)
            self._producers += 1
            number = self._producers
            outstanding: set[asyncio.Future[RecordMetadata]] = set()
            count = 0
            while self.goes_on() and self.now() < ends_at:
                for _ in range(random.choice((1, 1, 1, 6))):
                    if len(outstanding) < OUTSTANDING_MAX:
                        await self._send(
                            producer, RecordId(number, count), outstanding, random.randrange(self.load.partitions)
                        )
                        count += 1
                await client.timers.sleep(random.expovariate(1 / self.load.records_pause_ms))
            await producer.close()
            self.retries += producer.retries

    async def _send(
        self, producer: Producer, record: RecordId, outstanding: set[asyncio.Future[RecordMetadata]], number: int
    ) -> None:
        partition = TopicPartition(self.load.topic, number)
        self.history.sent[record] = partition
        try:
            future = await producer.send(ProducerRecord(partition.topic, record.value(), partition=number))
        except self.failures:
            self.history.never_written.add(record)
            return

        def note(done: asyncio.Future[RecordMetadata]) -> None:
            outstanding.discard(done)
            if done.cancelled():
                return
            error = done.exception()
            if error is None:
                self.history.acknowledged[record] = Acknowledged(partition, done.result().offset, self.now())
            elif isinstance(error, DeliveryTimeoutError) and not error.may_be_written:
                self.history.never_written.add(record)

        outstanding.add(future)
        future.add_done_callback(note)

    # Consuming.

    async def consume(self, host: Host) -> None:
        """Consumers of one group, each until its life ends, when another takes its place, until `stop`."""
        async with self.client(host) as client:
            await asyncio.gather(*(self._consume_in_turn(client) for _ in range(self.load.consumers)))

    async def _consume_in_turn(self, client: Client) -> None:
        random = client.host.random
        while self.goes_on():
            ends_at = self.now() + random.expovariate(1 / self.load.consumer_life_seconds)
            self._consumers += 1
            await self._consume(client, self._consumers, ends_at)

    async def _consume(self, client: Client, number: int, ends_at: float) -> None:
        settings = ConsumerSettings(
            group_id=self.load.group,
            auto_commit=False,
            offset_reset=OffsetReset.EARLIEST,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_000,
            poll_interval_ms_max=10_000,
            fetch_wait_ms=1_000,
            rack_id=self.load.racks[number % len(self.load.racks)] if self.load.racks else "",
        )
        consumer = Consumer(client, settings, on_committed=self._note_commit)
        commit_at = 0.0
        try:
            consumer.subscribe([self.load.topic])
            while self.goes_on() and self.now() < ends_at:
                try:
                    for record in await consumer.poll(1_000):
                        at = record.partition
                        identity = RecordId.of_value(record.value)
                        self.history.consumed.append(Consumed(self.now(), number, at, record.offset, identity))
                    if self.now() >= commit_at and consumer.assignment:
                        commit_at = self.now() + self.load.commit_pause_ms / 1_000
                        await consumer.commit(timeout_ms=5_000)
                except self.failures as error:
                    client.logger.info("Consumer %d: %s", number, error)
                    await client.timers.sleep(100)
        finally:
            await consumer.close(timeout_ms=5_000)

    def _note_commit(self, offsets: object) -> None:
        if not isinstance(offsets, dict):
            return
        for partition, place in offsets.items():
            if isinstance(place, OffsetAndMetadata):
                at = partition
                self.history.committed.append(Committed(self.now(), self.load.group, at, place.offset))

    async def watch_offsets(self, host: Host) -> None:
        """Asks for the group's offsets now and then, until `stop`."""
        async with self.client(host) as client:
            while self.goes_on():
                await client.timers.sleep(1_000)
                await self.read_offsets(client, timeout_ms=5_000)

    async def read_offsets(self, client: Client, timeout_ms: float) -> bool:
        """Notes what the group has committed; False when nobody could tell."""
        lane = client.connections.new_lane()
        coordinator = GroupCoordinator(client, lane, self.load.group)
        asked_at = self.now()
        try:
            offsets = await coordinator.committed(None, timeout_ms)
        except self.failures:
            return False
        finally:
            await client.connections.close_lane(lane)
        found = {partition: place.offset for partition, place in offsets.items()}
        for number in range(self.load.partitions):
            partition = TopicPartition(self.load.topic, number)
            self.history.committed_reads.append(
                CommittedRead(asked_at, self.load.group, partition, found.get(partition), coordinator.node_id)
            )
        return True

    # Administering.

    async def create_topic(self, host: Host) -> None:
        """Creates the topic that all is about."""
        async with self.client(host) as client, Admin(client) as admin:
            while not await self._create(admin, self.load.topic, self.load.partitions, self.load.topic_configs):
                pass

    async def administer(self, host: Host) -> None:
        """Creates topics and deletes them, until `stop`; deletes all that are left then."""
        async with self.client(host) as client, Admin(client) as admin:
            random = client.host.random
            count = 0
            while self.goes_on():
                await client.timers.sleep(random.expovariate(1 / self.load.topic_pause_seconds) * 1_000)
                alive = [topic for topic, is_there in self.topics.items() if is_there]
                if len(alive) < self.load.temporary_topics_max and random.random() < 0.6:
                    count += 1
                    name = f"temporary-{count}"
                    if await self._create(admin, name, random.randint(1, 2)):
                        self.topics[name] = True
                elif alive:
                    await self._delete(client, admin, random.choice(alive))
            for topic in [topic for topic, is_there in self.topics.items() if is_there]:
                await self._delete(client, admin, topic)

    async def _create(self, admin: Admin, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> bool:
        """Creates a topic; False when it may be there or not, or come later."""
        try:
            await admin.create_topics([NewTopic(name, partitions, 3, configs or {})], timeout_ms=30_000)
        except KafkaError as error:
            # An earlier attempt, whose answer was lost, has made it.
            return error.code is ErrorCode.TOPIC_ALREADY_EXISTS
        except self.failures:
            return False
        return True

    async def _delete(self, client: Client, admin: Admin, name: str) -> None:
        """Deletes a topic, until that is acknowledged.

        A controller that does not know the topic may have deleted it by an earlier attempt. It may also not have heard
        of it yet, or not of its own successor: it is believed when that is told for longer than such a term can last.
        """
        unknown_since: float | None = None
        while self.topics[name]:
            try:
                await admin.delete_topics([name], timeout_ms=30_000)
            except KafkaError as error:
                now = client.host.loop.time()
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    unknown_since = None
                elif unknown_since is None:
                    unknown_since = now
                elif now - unknown_since > UNKNOWN_FOR_SECONDS:
                    self.topics[name] = False
                await client.timers.sleep(DELETE_PAUSE_MS)
            except self.failures:
                continue
            else:
                self.topics[name] = False
