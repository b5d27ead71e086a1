"""A tiered topic in a simulated cluster: what was acknowledged is found where it was, by offset and by time, locally or
in remote storage, whoever falls in the middle of a copy.

Invariants, of every reader: offsets have no hole and never go back, nothing is there that was not sent, and the log
starts at 0, since no retention gives anything up. At the end each acknowledged record is at its offset, a look-up by
time finds the first record that is not older, everything but the active segments is in remote storage, and of the local
logs only their ends are left. What was not acknowledged may be there or not.

The remote storage is a directory that all brokers have, as of a mounted file system: whoever loses its power loses what
it has not synced there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientError
from barnabas.client.settings import ConsumerSettings, OffsetReset
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.testing.probes import after, before, completed
from barnabas.testing.simulated_disk import share
from barnabas.testing.single_records import PARTITION_COUNT, make_topic, send_batch
from barnabas.tiered.remote_reads import RemoteReads
from barnabas.tiered.segment_copier import SegmentCopier
from barnabas.wire.errors import KafkaError
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.topics import REMOTE_LOG_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from barnabas.client.client import Client
    from barnabas.client.records import ConsumerRecord
    from barnabas.kernel.host import Host
    from barnabas.server.broker import Broker
    from barnabas.serving.remote_fetch import RemoteRecords
    from barnabas.testing.cluster_load import Users
    from barnabas.testing.simulated_host import SimulatedMachine

TOPIC: Final = "tiered"
STORAGE: Final = "tier"
CONFIGS: Final = {
    "remote.storage.enable": "true",
    "segment.bytes": "1500",
    "local.retention.bytes": "3000",
    "retention.ms": "-1",
    "file.delete.delay.ms": "500",
}
_METADATA_PARTITIONS: Final = 2
PROPERTIES: Final = {
    "remote.log.storage.system.enable": "true",
    "barnabas.remote.storage.url": f"file:///{STORAGE}",
    "remote.log.manager.task.interval.ms": "700",
    "rlmm.config.remote.log.metadata.topic.num.partitions": str(_METADATA_PARTITIONS),
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "2000",
}
COVERAGE: Final = (
    "tiered: acknowledged",
    "tiered: copied",
    "tiered: interrupted",
    "tiered: given up locally",
    "tiered: read remotely",
)
"""What must have happened."""
_PAUSE_MS: Final = 90.0
_READER_LIFE_SECONDS: Final = 8.0
_FIRST_MS: Final = 1_700_000_000_000
_READ_SECONDS_MAX: Final = 60.0
_LOCAL_BYTES_MAX: Final = 6_000
"""What retention leaves, and what has come since."""


@dataclass(slots=True)
class _Sent:
    """A record, and at which offset it was acknowledged."""

    partition: TopicPartition
    number: int
    offset: int | None = None

    @property
    def timestamp_ms(self) -> int:
        return _FIRST_MS + self.number


class TieredTopic:
    """Who writes to the topic and reads it, and what is found of it."""

    def __init__(self, users: Users, brokers: Mapping[int, SimulatedMachine]) -> None:
        self.counts: Counter[str] = Counter()
        self._users = users
        self._is_there = users.load.has_tiered_topic
        self._partitions = [TopicPartition(TOPIC, number) for number in range(PARTITION_COUNT)]
        self._sent: list[_Sent] = []
        if self._is_there:
            share([machine.disk for machine in brokers.values()], STORAGE)

    @property
    def watched(self) -> list[TopicPartition]:
        """Partitions of which one replica in sync has to be kept."""
        if not self._is_there:
            return []
        metadata = [TopicPartition(REMOTE_LOG_METADATA_TOPIC, number) for number in range(_METADATA_PARTITIONS)]
        return [*self._partitions, *metadata]

    # What the users do.

    async def produce(self, host: Host) -> None:
        """Small batches with acks=all, one after another in each partition, until the users are to stop."""
        async with self._users.client(host) as client:
            await make_topic(client, TOPIC, CONFIGS)
            await asyncio.gather(*(self._send(client, partition) for partition in self._partitions))

    async def _send(self, client: Client, partition: TopicPartition) -> None:
        users, lane, random = self._users, client.connections.new_lane(), client.host.random
        while users.goes_on():
            await client.timers.sleep(random.expovariate(1 / _PAUSE_MS))
            builder, batch = RecordBatchBuilder(), []
            for _ in range(random.choice((1, 1, 2, 4))):
                sent = _Sent(partition, len(self._sent))
                builder.append(sent.timestamp_ms, None, b"%d" % sent.number + b"." * random.randrange(120))
                batch.append(sent)
                self._sent.append(sent)
            told = await send_batch(client, lane, partition, builder, -1)
            if told is not None:
                self.counts["tiered: acknowledged"] += len(batch)
                for offset, sent in enumerate(batch, start=told.offset):
                    sent.offset = offset

    async def consume(self, host: Host) -> None:
        """Reads from the beginning, and on, and again from the beginning, until the users are to stop."""
        users = self._users
        async with users.client(host) as client:
            while users.goes_on():
                ends_at = users.now() + client.host.random.expovariate(1 / _READER_LIFE_SECONDS)
                async with Consumer(client, _SETTINGS) as consumer:
                    consumer.assign(self._partitions)
                    last: dict[TopicPartition, int] = {}
                    while users.goes_on() and users.now() < ends_at:
                        try:
                            for record in await consumer.poll(1_000):
                                self._take(record, last)
                            await self._look_up(consumer, client)
                        except (ClientError, KafkaError):
                            await client.timers.sleep(200)

    async def _look_up(self, consumer: Consumer, client: Client) -> None:
        """By the time of a record that was acknowledged: one that was sent before it and written later may be found,
        but nothing behind it."""
        known = [sent for sent in self._sent if sent.offset is not None]
        if not known or client.host.random.random() < 0.5:
            return
        sent = client.host.random.choice(known)
        found = (await consumer.offsets_for_times({sent.partition: sent.timestamp_ms}, 5_000))[sent.partition]
        if found is None or sent.offset is None or found.offset > sent.offset or found.timestamp_ms < sent.timestamp_ms:
            self._note(f"at {self._users.now():.3f} s a look-up by the time of {sent} has found {found}")
        self.counts["tiered: looked up"] += 1

    def _take(self, record: ConsumerRecord, last: dict[TopicPartition, int]) -> None:
        partition, offset = record.partition, record.offset
        expected = last.get(partition, -1) + 1
        if offset != expected:
            self._note(f"at {self._users.now():.3f} s a reader of {partition} was given {offset}, not {expected}")
        last[partition] = offset
        sent = self._sent_as(record)
        if sent is None:
            self._note(f"at {self._users.now():.3f} s a reader of {partition} was given at {offset} what nobody sent")
        elif sent.offset not in (None, offset):
            self._note(f"at {self._users.now():.3f} s a reader was given at {offset} what was acknowledged as {sent}")

    def _sent_as(self, record: ConsumerRecord) -> _Sent | None:
        number = (record.value or b"").rstrip(b".")
        sent = self._sent[int(number)] if number.isdigit() and int(number) < len(self._sent) else None
        return sent if sent is not None and sent.partition == record.partition else None

    # In a cluster at rest.

    def is_at_rest(self, brokers: Iterable[Broker]) -> bool:
        """All that can be is in remote storage, and has gone here."""
        logs = [
            partition.log
            for broker in brokers
            for partition in broker.components.replica_manager.partitions.values()
            if partition.topic == TOPIC and partition.log is not None
        ]
        return bool(logs) and all(
            log.remote_end_offset >= log.segments.active.base_offset and log.size_bytes <= _LOCAL_BYTES_MAX
            for log in logs
        )

    async def finish(self, host: Host) -> None:
        """Reads everything, and looks records up by their times."""
        self.counts["tiered: interrupted"] = self.counts["tiered: begun"] - self.counts["tiered: copied"]
        async with self._users.client(host) as client, Consumer(client, _SETTINGS) as consumer:
            consumer.assign(self._partitions)
            ends = await consumer.end_offsets(self._partitions)
            starts = await consumer.beginning_offsets(self._partitions)
            last: dict[TopicPartition, int] = {}
            found: dict[TopicPartition, list[ConsumerRecord]] = {partition: [] for partition in self._partitions}
            ends_at = self._users.now() + _READ_SECONDS_MAX
            while any(len(found[each]) < ends[each] for each in ends) and self._users.now() < ends_at:
                for record in await consumer.poll(1_000):
                    self._take(record, last)
                    found[record.partition].append(record)
            for partition, records in found.items():
                if starts[partition]:
                    self._note(f"{partition} starts at {starts[partition]}, and nothing was given up")
                if len(records) < ends[partition]:
                    self._note(
                        f"{partition} ends at {ends[partition]}; within {_READ_SECONDS_MAX:g} s a reader got {last}"
                    )
                await self._judge(consumer, partition, records)

    async def _judge(self, consumer: Consumer, partition: TopicPartition, records: list[ConsumerRecord]) -> None:
        there = {sent.number: record for record in records if (sent := self._sent_as(record)) is not None}
        if len(there) < len(records):
            self._note(f"{partition} has records twice")
        for sent in self._sent:
            if sent.partition != partition or sent.offset is None:
                continue
            if sent.number not in there:
                self._note(f"{partition} does not have {sent}")
        for record in records[:: max(1, len(records) // 40)]:
            wanted_ms = record.timestamp_ms
            expected = next(each.offset for each in records if each.timestamp_ms >= wanted_ms)
            answer = (await consumer.offsets_for_times({partition: wanted_ms}, 10_000))[partition]
            if answer is None or answer.offset != expected:
                self._note(
                    f"{partition} has at {expected} the first record since {wanted_ms}; a look-up found {answer}"
                )

    # What is seen of it.

    @contextmanager
    def probes(self) -> Iterator[None]:
        """Counts what is to happen, while this lasts."""

        def given_up(count: int, log: PartitionLog, *_: Any) -> None:
            if log.partition.topic == TOPIC:
                self.counts["tiered: given up locally"] += count

        def count(name: str) -> Callable[..., None]:
            return lambda *_: self.counts.update([f"tiered: {name}"])

        def read(found: RemoteRecords, *_: Any) -> None:
            self.counts["tiered: read remotely"] += bool(found.data)

        def begun_behind(was_done: bool, *_: Any) -> None:
            self.counts["tiered: followers behind remote storage"] += was_done

        with (
            after(PartitionLog, "delete_first_segments", given_up),
            before(SegmentCopier, "copy", count("begun")),
            completed(SegmentCopier, "copy", count("copied")),
            completed(RemoteReads, "read", read),
            completed(PartitionLog, "begin_behind_remote", begun_behind),
        ):
            yield

    def _note(self, finding: str) -> None:
        self._users.history.lost_remotely.append(finding)


_SETTINGS: Final = ConsumerSettings(offset_reset=OffsetReset.EARLIEST, fetch_wait_ms=1_000)
