"""Producers without idempotence in a simulated cluster, and what they may still promise.

A record that is sent again may be written twice, and one that was given up may come late. But every acknowledged record
is where its acknowledgement says, and of those the order in which they are first in the log is that of sending.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from barnabas.client.admin import Admin, NewTopic
from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientError
from barnabas.client.producer import Producer
from barnabas.client.records import ProducerRecord
from barnabas.client.settings import ConsumerSettings, OffsetReset, ProducerSettings
from barnabas.testing.cluster_history import RecordId
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.records import RecordMetadata
    from barnabas.kernel.host import Host
    from barnabas.testing.cluster_load import Users

TOPIC: Final = "plain"
PARTITIONS: Final = 2
OUTSTANDING_MAX: Final = 100
LIFE_SECONDS: Final = 10.0
PAUSE_MS: Final = 40.0


class PlainProducers:
    """Producers, one after another, and what they were told."""

    def __init__(self, users: Users) -> None:
        self.findings: list[str] = []
        self.counts: Counter[str] = Counter()
        self._users = users
        self._acknowledged: dict[tuple[TopicPartition, RecordId], int] = {}
        """The offset of each record, -1 where it was not told."""

    async def produce(self, host: Host) -> None:
        """Produces until the users are to stop."""
        users, random = self._users, host.random
        async with users.client(host) as client:
            await self._create(Admin(client))
            life = 0
            while users.goes_on():
                life += 1
                settings = ProducerSettings(
                    idempotent=False, delivery_timeout_ms=20_000, batch_bytes=random.choice((200, 16_384))
                )
                producer = Producer(client, settings)
                ends_at = users.now() + random.expovariate(1 / LIFE_SECONDS)
                outstanding: set[asyncio.Future[RecordMetadata]] = set()
                number = 0
                while users.goes_on() and users.now() < ends_at:
                    for _ in range(random.choice((1, 3, 12))):
                        if len(outstanding) < OUTSTANDING_MAX:
                            partition = TopicPartition(TOPIC, random.randrange(PARTITIONS))
                            await self._send(producer, partition, RecordId(life, number), outstanding)
                            number += 1
                    await client.timers.sleep(random.expovariate(1 / PAUSE_MS))
                await producer.close()
                self.counts["plain: sent again"] += producer.retries

    async def check(self, host: Host) -> None:
        """Reads all there is in a cluster at rest, and compares it with what was acknowledged."""
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        first: dict[tuple[TopicPartition, RecordId], int] = {}
        places: set[tuple[TopicPartition, RecordId, int]] = set()
        async with self._users.client(host) as client:
            settings = ConsumerSettings(offset_reset=OffsetReset.EARLIEST)
            async with Consumer(client, settings) as consumer:
                consumer.assign(partitions)
                ends = await consumer.end_offsets(partitions)
                for partition, end in ends.items():
                    while await consumer.position(partition) < end:
                        for record in await consumer.poll(1_000):
                            identity = RecordId.of_value(record.value)
                            if identity is None:
                                continue
                            at = record.partition
                            places.add((at, identity, record.offset))
                            if first.setdefault((at, identity), record.offset) != record.offset:
                                self.counts["plain: written twice"] += 1
        self._judge(first, places)

    def _judge(
        self, first: dict[tuple[TopicPartition, RecordId], int], places: set[tuple[TopicPartition, RecordId, int]]
    ) -> None:
        last: dict[tuple[TopicPartition, int], int] = {}
        self.counts["plain: acknowledged"] += len(self._acknowledged)
        for (partition, record), offset in sorted(self._acknowledged.items()):
            found = first.get((partition, record))
            if found is None or (offset >= 0 and (partition, record, offset) not in places):
                self.findings.append(f"{record} was acknowledged at offset {offset} of {partition}, and is not there")
                continue
            sender = (partition, record.producer)
            if found < last.get(sender, -1):
                self.findings.append(
                    f"{record} is first at offset {found} of {partition}, ahead of what was sent before it"
                )
            last[sender] = found

    async def _create(self, admin: Admin) -> None:
        while True:
            try:
                await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)], timeout_ms=30_000)
            except KafkaError as error:
                if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                    return
            except ClientError:
                continue
            else:
                return

    async def _send(
        self,
        producer: Producer,
        partition: TopicPartition,
        record: RecordId,
        outstanding: set[asyncio.Future[RecordMetadata]],
    ) -> None:
        try:
            future = await producer.send(ProducerRecord(partition.topic, record.value(), partition=partition.partition))
        except (ClientError, KafkaError):
            return

        def note(done: asyncio.Future[RecordMetadata]) -> None:
            outstanding.discard(done)
            if not done.cancelled() and done.exception() is None:
                self._acknowledged[partition, record] = done.result().offset

        outstanding.add(future)
        future.add_done_callback(note)
