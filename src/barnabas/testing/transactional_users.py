"""Users of transactions in a simulated cluster: producers that commit, abort, vanish, dawdle until the coordinator ends
what they have begun, and go on although another instance has taken their place; and readers of what is committed.

Each transactional id has a group of its own, whose offset is set to the number of the transaction, so that whoever asks
for the offset is told which transaction he sees. `transaction_ledger` says what must hold.
"""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Final

from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientError, ClientTimeoutError
from barnabas.client.group_coordinator import GroupCoordinator
from barnabas.client.settings import ConsumerSettings, IsolationLevel, OffsetReset
from barnabas.testing.cluster_history import RecordId
from barnabas.testing.cluster_logs import StoredLog
from barnabas.testing.single_records import make_topic
from barnabas.testing.transaction_ledger import NO_OFFSET, Transaction, TransactionLedger
from barnabas.testing.transactional_producer import AbortableError, FencedError, TransactionalProducer
from barnabas.wire.errors import KafkaError
from barnabas.wire.topics import OFFSETS_TOPIC, TRANSACTION_TOPIC, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from barnabas.client.client import Client
    from barnabas.kernel.host import Host
    from barnabas.server.broker import Broker
    from barnabas.testing.cluster_load import Users
    from barnabas.testing.simulated_host import SimulatedMachine

TOPIC: Final = "transactional"
PARTITION_COUNT: Final = 3
STATE_PARTITION_COUNT: Final = 2
TIMEOUTS_MS: Final = (2_000, 6_000, 15_000)
"""Of transactions; an instance has one of them."""
ENDING_SECONDS_MAX: Final = max(TIMEOUTS_MS) / 1_000 + 10.0
"""By then after the last request a transaction whose client is gone has ended in a cluster at rest."""
LIFE_SECONDS: Final = 12.0
READER_LIFE_SECONDS: Final = 15.0
READERS: Final = 2
PAUSE_MS: Final = 60.0
ANSWER_SECONDS: Final = 0.02
"""About what it takes to be told of a commit."""
AT_REST_SECONDS_MAX: Final = 5.0
"""So long the whole of a transaction may take in a cluster at rest, its id taken from an instance that is gone."""
DRAINING_SECONDS_MAX: Final = 30.0
PROPERTIES: Final = {
    "transaction.state.log.num.partitions": str(STATE_PARTITION_COUNT),
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "20000",
}
COVERAGE: Final = (
    "transactions: committed",
    "transactions: aborted",
    "transactions: aborted by another",
    "transactions: vanished",
    "transactions: dawdled",
    "transactions: replaced",
    "transactions: in doubt and committed",
    "transactions: in doubt and aborted",
    "transactions: next epoch",
    "transactions: told CONCURRENT_TRANSACTIONS",
    "transactions: told NOT_COORDINATOR",
    "transactions: given",
    "transactions: offsets told",
)
"""What a suite of runs must have seen."""


class Way(enum.Enum):
    """How an instance goes about one transaction."""

    COMMIT = "commit"
    ABORT = "abort"
    VANISH = "vanish"  # is never heard of again, at any step
    ANSWER_LOST = "answer lost"  # vanishes when it has asked to commit
    DAWDLE = "dawdle"  # sleeps within the transaction, perhaps longer than its time-out, and goes on
    REPLACED = "replaced"  # another instance takes its place within the transaction; it goes on all the same


_WAYS: Final = (*(Way.COMMIT,) * 12, *(Way.ABORT,) * 3, Way.VANISH, Way.ANSWER_LOST, Way.DAWDLE, Way.REPLACED)


class _VanishedError(Exception):
    """The instance is gone."""


class TransactionalUsers:
    """Producers and readers of one run."""

    def __init__(self, users: Users, brokers: Mapping[int, SimulatedMachine], directories: tuple[str, ...]) -> None:
        self.ledger = TransactionLedger(users.now)
        self._users = users
        self._brokers = brokers
        self._directories = directories
        self._ids = [f"id-{number}" for number in range(users.load.transactional_ids)]
        self._partitions = [TopicPartition(TOPIC, number) for number in range(PARTITION_COUNT)]
        self._readers = 0

    @property
    def watched(self) -> list[TopicPartition]:
        """Partitions besides those of the users' topic of which one replica in sync has to be kept."""
        state = [TopicPartition(TRANSACTION_TOPIC, number) for number in range(STATE_PARTITION_COUNT)]
        return [*self._partitions, *state] if self._ids else []

    # Producing.

    async def produce(self, host: Host) -> None:
        """Instances of every transactional id, one after another, until the users are to stop."""
        async with self._users.client(host) as client:
            await make_topic(client, TOPIC, {}, PARTITION_COUNT)
            await asyncio.gather(*(self._produce_in_turn(client, name) for name in self._ids))

    async def _produce_in_turn(self, client: Client, name: str) -> None:
        while self._users.goes_on():
            await self._live(client, name)
            # Before the time-out or behind it.
            await client.timers.sleep(client.host.random.choice((0, 100, 4_000)))

    async def _live(self, client: Client, name: str) -> None:
        random, counts = client.host.random, self.ledger.counts
        producer = TransactionalProducer(client, name, random.choice(TIMEOUTS_MS), counts)
        life = _Life(client, self, producer, self.ledger.new_instance(name))
        ends_at = self._users.now() + random.expovariate(1 / LIFE_SECONDS)
        try:
            await life.begin()
            while self._users.goes_on() and self._users.now() < ends_at:
                await life.transact(random.choice(_WAYS))
                await client.timers.sleep(random.expovariate(1 / PAUSE_MS))
        except _VanishedError:
            counts["transactions: vanished"] += 1
        except FencedError:
            counts["transactions: fenced"] += 1
        except ClientTimeoutError:
            counts["transactions: gave up"] += 1
        except KafkaError as error:
            self.ledger.find(f"a producer of {name} was told {error}")
        finally:
            await life.close()

    async def succeed(self, client: Client, name: str) -> None:
        """Another instance of the id, beside the one that there is."""
        await self._live(client, name)

    def choose_partitions(self, source: Random) -> list[TopicPartition]:
        """Some."""
        return source.sample(self._partitions, source.randint(1, len(self._partitions)))

    def group_of(self, name: str) -> tuple[str, TopicPartition]:
        """The group of a transactional id, and the partition whose offset it commits."""
        return f"group-of-{name}", self._partitions[0]

    # Reading.

    async def read(self, host: Host) -> None:
        """Readers that begin at the beginning, and askers for offsets, until the users are to stop."""
        async with self._users.client(host) as client:
            await make_topic(client, TOPIC, {}, PARTITION_COUNT)
            await asyncio.gather(*(self._read_in_turn(client) for _ in range(READERS)), self._watch_offsets(client))

    async def _read_in_turn(self, client: Client) -> None:
        users, random = self._users, client.host.random
        while users.goes_on():
            ends_at = users.now() + random.expovariate(1 / READER_LIFE_SECONDS)
            await self._read(client, ends_at, {})

    async def _read(self, client: Client, ends_at: float, ends: Mapping[TopicPartition, int]) -> bool:
        """Reads from the beginning, until it is at the `ends`, where there are any (True then), or until that time or,
        without ends, until the users are to stop.
        """
        self._readers += 1
        number = self._readers
        settings = ConsumerSettings(
            offset_reset=OffsetReset.EARLIEST,
            isolation=IsolationLevel.READ_COMMITTED,
            fetch_wait_ms=500,
            partition_bytes_max=client.host.random.choice((300, 2_000, 100_000)),
        )
        async with Consumer(client, settings) as consumer:
            consumer.assign(self._partitions)
            while self._users.now() < ends_at and (ends or self._users.goes_on()):
                try:
                    for record in await consumer.poll(500):
                        identity = RecordId.of_value(record.value)
                        self.ledger.given(number, record.partition, record.offset, identity)
                    if ends and await _is_at(consumer, ends):
                        return True
                except (ClientError, KafkaError):
                    await client.timers.sleep(100)
        return False

    async def _watch_offsets(self, client: Client) -> None:
        while self._users.goes_on():
            await client.timers.sleep(client.host.random.expovariate(1 / PAUSE_MS))
            await self._read_offset(client, client.host.random.choice(self._ids), 2_000)

    async def _read_offset(self, client: Client, name: str, timeout_ms: float, *, is_last: bool = False) -> int | None:
        """What the id's group has committed, `NO_OFFSET` for nothing; None where nobody tells, which is a finding of a
        cluster at rest.
        """
        group, partition = self.group_of(name)
        lane = client.connections.new_lane()
        try:
            told = await GroupCoordinator(client, lane, group).committed(
                [partition], timeout_ms, require_stable=is_last or client.host.random.random() < 0.3
            )
        except (ClientError, KafkaError) as error:
            if is_last:
                self.ledger.find(f"nobody tells the offset of {group}: {error}")
            return None
        finally:
            await client.connections.close_lane(lane)
        if partition not in told:
            return NO_OFFSET
        self.ledger.told_offset(name, told[partition].offset)
        return told[partition].offset

    # In the end.

    def are_ended(self, brokers: list[Broker]) -> bool:
        """Whether the leaders have no open transaction in any partition."""
        led: set[TopicPartition] = set()
        for broker in brokers:
            for partition, replica in broker.components.replica_manager.partitions.items():
                log = replica.log
                if partition.topic not in (TOPIC, OFFSETS_TOPIC) or log is None or not replica.is_leader:
                    continue
                led.add(partition)
                if log.last_stable_offset < log.log_end_offset:
                    return False
        return led.issuperset(self._partitions)

    async def finish(self, host: Host) -> None:
        """Asks a cluster at rest for everything: one more transaction of each id, and all that is committed."""
        async with self._users.client(host) as client:
            for name in self._ids:
                offset = await self._read_offset(client, name, 10_000, is_last=True)
                if offset is not None:
                    self.ledger.rests_at(name, offset)
                await self._probe(client, name)
            async with Consumer(client, ConsumerSettings(isolation=IsolationLevel.READ_COMMITTED)) as consumer:
                ends = await consumer.end_offsets(self._partitions)
            ends_at = self._users.now() + DRAINING_SECONDS_MAX
            if not await self._read(client, ends_at, ends):
                self.ledger.find(f"what is committed could not be read within {DRAINING_SECONDS_MAX:g} s")

    async def _probe(self, client: Client, name: str) -> None:
        began_at = self._users.now()
        producer = TransactionalProducer(client, name, TIMEOUTS_MS[0], self.ledger.counts)
        life = _Life(client, self, producer, self.ledger.new_instance(name))
        try:
            await life.begin()
            number = await life.transact(Way.COMMIT, is_whole=True)
            if await self._read_offset(client, name, 10_000, is_last=True) != number:
                self.ledger.find(f"the offset of transaction {number} of {name} is not seen in a cluster at rest")
        except (FencedError, ClientError, KafkaError) as error:
            self.ledger.find(f"a cluster at rest takes no transaction of {name}: {error!r}")
        finally:
            await life.close()
        if self._users.now() - began_at > AT_REST_SECONDS_MAX:
            self.ledger.find(f"a cluster at rest took {self._users.now() - began_at:.3f} s for a transaction of {name}")

    def judge(self, leaders: Mapping[TopicPartition, int]) -> None:
        """Judges all of it by the logs of the leaders, by their broker ids."""
        logs = {
            partition: StoredLog(self._brokers[leaders[partition]].disk, self._directories, partition).raw_batches()
            for partition in self._partitions
            if partition in leaders
        }
        self.ledger.judge(logs, TOPIC)


class _Life:
    """One instance of a transactional id."""

    def __init__(
        self, client: Client, users: TransactionalUsers, producer: TransactionalProducer, instance: int
    ) -> None:
        self._client = client
        self._random = client.host.random
        self._users = users
        self._ledger = users.ledger
        self._producer = producer
        self._instance = instance
        self._sent = 0
        self._added: set[TopicPartition] = set()
        self._has_asked = False
        """Whether the coordinator was asked to open a transaction."""
        self._successors: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Takes the id from whoever has it; or the next epoch, where that is this instance."""
        await self._producer.init()
        self._ledger.initialized(self._producer.transactional_id, self._instance, self._producer.identity)

    async def close(self) -> None:
        """Waits for those who took its place, too."""
        await asyncio.gather(*self._successors)
        await self._producer.close()

    async def transact(self, way: Way, *, is_whole: bool = False) -> int:
        """One transaction, whose number is returned; with offsets and records in any case where it `is_whole`. Raises
        _VanishedError where the instance is to be gone, and as the producer does.
        """
        transaction = self._ledger.begin(self._producer.transactional_id, self._producer.identity)
        self._added, self._sent, self._has_asked = set(), 0, False
        try:
            await self._write(transaction, way, is_whole=is_whole)
        except AbortableError:
            await self._abort(transaction, "given up")
            # The next epoch, since nobody knows which batches have arrived.
            await self.begin()
            self._ledger.counts["transactions: next epoch"] += 1
            return transaction.number
        except FencedError:
            self._ledger.aborted(transaction, "fenced before its end")
            raise
        if self._has_asked and way is Way.ABORT:
            await self._abort(transaction, "aborted")
        elif self._has_asked:
            await self._commit(transaction, way)
        return transaction.number

    async def _write(self, transaction: Transaction, way: Way, *, is_whole: bool) -> None:
        random = self._random
        steps = random.randint(1, 3)
        chosen = random.randrange(steps)
        with_offset = is_whole or random.random() < 0.4
        for step in range(steps):
            if with_offset and step == chosen:
                self._vanish_perhaps(way)
                self._has_asked = transaction.has_offset = True
                group, partition = self._users.group_of(self._producer.transactional_id)
                await self._producer.send_offset(group, partition, transaction.number)
            if is_whole or random.random() < 0.9:
                await self._write_records(transaction, way)
            await self._client.timers.sleep(random.expovariate(1 / PAUSE_MS))
            if step == chosen:
                await self._linger(way)

    async def _write_records(self, transaction: Transaction, way: Way) -> None:
        partitions = self._users.choose_partitions(self._random)
        new = [partition for partition in partitions if partition not in self._added]
        self._vanish_perhaps(way)
        if new:
            self._has_asked = True
            await self._producer.add_partitions(new)
            self._added.update(new)
        self._vanish_perhaps(way)
        sends = []
        for partition in partitions:
            records = [RecordId(transaction.number, self._sent + each) for each in range(self._random.randint(1, 3))]
            self._sent += len(records)
            transaction.records.update(dict.fromkeys(records, partition))
            sends.append(self._producer.send(partition, records))
        failures = [each for each in await asyncio.gather(*sends, return_exceptions=True) if each is not None]
        for failure in failures:
            raise failure

    async def _linger(self, way: Way) -> None:
        random, timers = self._random, self._client.timers
        if way is Way.VANISH:
            raise _VanishedError
        if way is Way.DAWDLE:
            self._ledger.counts["transactions: dawdled"] += 1
            await timers.sleep(self._producer.timeout_ms * random.uniform(0.3, 1.6))
        elif way is Way.REPLACED:
            self._ledger.counts["transactions: replaced"] += 1
            name = self._producer.transactional_id
            self._successors.append(
                self._client.host.loop.create_task(self._users.succeed(self._client, name), name=f"successor-{name}")
            )
            await timers.sleep(random.choice((0.0, 20.0, 1_000.0)) * random.random())

    def _vanish_perhaps(self, way: Way) -> None:
        if way is Way.VANISH and self._random.random() < 0.3:
            raise _VanishedError

    async def _commit(self, transaction: Transaction, way: Way) -> None:
        self._ledger.asks_to_commit(transaction)
        patience = self._random.uniform(0, ANSWER_SECONDS) if way is Way.ANSWER_LOST else None
        try:
            async with asyncio.timeout(patience):
                await self._producer.end(is_commit=True)
        except ClientTimeoutError:
            raise
        except TimeoutError as error:
            raise _VanishedError from error
        except (FencedError, KafkaError):
            if not self._producer.is_in_doubt:
                self._ledger.aborted(transaction, "aborted by another")
            raise
        self._ledger.committed(transaction)

    async def _abort(self, transaction: Transaction, what: str) -> None:
        await self._producer.end(is_commit=False)
        self._ledger.aborted(transaction, what)


async def _is_at(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> bool:
    for partition, end in ends.items():
        if await consumer.position(partition) < end:
            return False
    return True
