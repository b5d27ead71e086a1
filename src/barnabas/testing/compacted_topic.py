"""A compacted topic in a simulated cluster: what a key was given last is what everybody finds, whoever falls meanwhile.

Invariants, of every replica at the end and of every reader: offsets never change, order is kept, nothing is there that
was not sent; for each key the log has the last acknowledged record, or a later one. A tombstone may be gone, with
everything before it, but not before `delete.retention.ms` is over. What was not acknowledged may be there or not.

Each record carries its number in a header, so that a tombstone is known, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientError
from barnabas.client.settings import ConsumerSettings, OffsetReset
from barnabas.log.directories.names import CLEANED_SUFFIX, SWAP_SUFFIX
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.testing.cluster_logs import StoredLog
from barnabas.testing.probes import after
from barnabas.testing.single_records import PARTITION_COUNT, make_topic, send_batch
from barnabas.wire.errors import KafkaError
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from barnabas.client.client import Client
    from barnabas.kernel.host import Host
    from barnabas.testing.cluster_load import Users
    from barnabas.testing.simulated_host import SimulatedMachine
    from barnabas.wire.records import Header

TOPIC: Final = "compacted"
KEYS: Final = tuple(b"key-%d" % number for number in range(12))
RETENTION_MS: Final = 8_000
CONFIGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": "2048",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(RETENTION_MS),
    "file.delete.delay.ms": "1000",
}
PROPERTIES: Final = {
    "log.cleaner.backoff.ms": "300",
    "log.cleaner.min.cleanable.ratio": "0.05",
    "log.cleaner.threads": "2",
    "offsets.topic.segment.bytes": "4096",
    "transaction.state.log.segment.bytes": "4096",
    "log.flush.offset.checkpoint.interval.ms": "5000",
}
PAUSE_MS: Final = 70.0
READER_LIFE_SECONDS: Final = 10.0
_NUMBER: Final = "number"
_CLOCKS_DIFFER_SECONDS: Final = 0.5


@dataclass(slots=True)
class _Sent:
    """A record, and at which offset it was acknowledged."""

    partition: TopicPartition
    key: bytes
    value: bytes | None
    sent_at: float
    offset: int | None = None


class CompactedTopic:
    """Who writes to the topic and reads it, and what is left of it."""

    def __init__(self, users: Users, brokers: Mapping[int, SimulatedMachine], directories: Sequence[str]) -> None:
        self.counts: Counter[str] = Counter()
        self._users = users
        self._brokers = brokers
        self._directories = directories
        self._partitions = [TopicPartition(TOPIC, number) for number in range(PARTITION_COUNT)]
        self._sent: list[_Sent] = []

    @property
    def watched(self) -> list[TopicPartition]:
        """Partitions of which one replica in sync has to be kept."""
        return self._partitions if self._users.load.has_compacted_topic else []

    # What the users do.

    async def produce(self, host: Host) -> None:
        """Small batches with acks=all, one after another in each partition, until the users are to stop."""
        async with self._users.client(host) as client:
            await make_topic(client, TOPIC, CONFIGS)
            await asyncio.gather(*(self._send(client, partition) for partition in self._partitions))

    async def _send(self, client: Client, partition: TopicPartition) -> None:
        users, lane, random = self._users, client.connections.new_lane(), client.host.random
        while users.goes_on():
            await client.timers.sleep(random.expovariate(1 / PAUSE_MS))
            builder, batch = RecordBatchBuilder(), []
            for _ in range(random.choice((1, 1, 2, 4))):
                key, number = random.choice(KEYS), len(self._sent)
                value = None if random.random() < 0.15 else b"%d" % number
                headers: list[Header] = [(_NUMBER.encode(), b"%d" % number)]
                builder.append(client.host.clock.time_ms(), key, value, headers)
                batch.append(_Sent(partition, key, value, users.now()))
                self._sent.append(batch[-1])
            told = await send_batch(client, lane, partition, builder, -1)
            if told is not None:
                self.counts["compacted: acknowledged"] += len(batch)
                for offset, sent in enumerate(batch, start=told.offset):
                    sent.offset = offset

    async def consume(self, host: Host) -> None:
        """Reads from the beginning, and on, and again from the beginning, until the users are to stop."""
        users = self._users
        async with users.client(host) as client:
            while users.goes_on():
                ends_at = users.now() + client.host.random.expovariate(1 / READER_LIFE_SECONDS)
                settings = ConsumerSettings(offset_reset=OffsetReset.EARLIEST, fetch_wait_ms=1_000)
                async with Consumer(client, settings) as consumer:
                    consumer.assign(self._partitions)
                    last: dict[TopicPartition, int] = {}
                    while users.goes_on() and users.now() < ends_at:
                        try:
                            records = await consumer.poll(1_000)
                        except (ClientError, KafkaError):
                            await client.timers.sleep(200)
                            continue
                        for record in records:
                            self.counts["compacted: read"] += 1
                            found = (record.offset, record.key, record.value, tuple(record.headers))
                            where = f"at {users.now():.3f} s a reader was given"
                            self._note(self._misplaced(where, record.partition, found, last.get(record.partition, -1)))
                            last[record.partition] = record.offset

    # What is seen of it.

    @contextmanager
    def probes(self) -> Iterator[None]:
        """Counts cleanings, while this lasts."""

        def compacted(_result: None, log: PartitionLog, offset: int) -> None:
            if offset > 0:
                self.counts[f"compacted: {log.partition.topic}"] += 1

        with after(PartitionLog, "compacted_to", compacted):
            yield

    def is_at_rest(self) -> bool:
        """No log of the topic is in the middle of a replacement, on any disk."""
        paths = [
            f"{directory}/{each.topic}-{each.partition}" for directory in self._directories for each in self._partitions
        ]
        nodes = [machine.disk.find(path) for machine in self._brokers.values() for path in paths]
        return not any(
            name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for node in nodes if node for name in node.entries or ()
        )

    def judge(self) -> None:
        """Notes what is wrong with the topic; call it when the cluster is at rest, and no log is being replaced."""
        for partition in self._partitions:
            ends: dict[int, dict[bytes, bytes]] = {}
            for broker_id, machine in self._brokers.items():
                log = StoredLog(machine.disk, self._directories, partition)
                if log.exists:
                    ends[broker_id] = self._judge(broker_id, partition, log)
            if not ends:
                self._note([f"no broker has {partition}"])
                continue
            first_id, first = next(iter(ends.items()))
            for broker_id, found in ends.items():
                if found != first:
                    self._note([f"brokers {first_id} and {broker_id} disagree on {partition}: {first} and {found}"])

    def _judge(self, broker_id: int, partition: TopicPartition, log: StoredLog) -> dict[bytes, bytes]:
        """The values of one replica in the end."""
        at = -1
        last: dict[bytes, int] = {}
        values: dict[bytes, bytes] = {}
        for record in log.keyed_records():
            found = (record.offset, record.key, record.value, record.headers)
            self._note(self._misplaced(f"broker {broker_id} has", partition, found, at))
            at = record.offset
            if record.key is None:
                continue
            last[record.key] = record.offset
            values.pop(record.key, None)
            if record.value is not None:
                values[record.key] = record.value
        for key in KEYS:
            sent = [each for each in self._sent if each.partition == partition and each.key == key]
            promised = max((each for each in sent if each.offset is not None), key=_offset_of, default=None)
            if promised is None or last.get(key, -1) >= _offset_of(promised):
                continue
            if key in last or not self._may_be_gone(promised, sent):
                finding = (
                    f"broker {broker_id} has {key!r} of {partition} at {last.get(key)}; it was acknowledged at "
                    f"{promised.offset} as {promised.value!r}, sent at {promised.sent_at:.3f} s"
                )
                self._note([finding])
        return values

    def _may_be_gone(self, promised: _Sent, sent: Iterable[_Sent]) -> bool:
        """Whether a tombstone has taken the key's last record with it: the last that was acknowledged, or one behind it
        of which nobody was told."""
        until = self._users.now() - RETENTION_MS / 1_000 + _CLOCKS_DIFFER_SECONDS
        return any(
            each.value is None and each.sent_at <= until
            for each in sent
            if each is promised or (each.offset is None and each.sent_at >= promised.sent_at)
        )

    def _misplaced(
        self,
        where: str,
        partition: TopicPartition,
        found: tuple[int, bytes | None, bytes | None, tuple[Header, ...]],
        before: int,
    ) -> Iterator[str]:
        offset, key, value, headers = found
        number = int(headers[0][1] or b"-1") if headers else -1
        sent = self._sent[number] if 0 <= number < len(self._sent) else None
        if sent is None or (sent.partition, sent.key, sent.value) != (partition, key, value):
            yield f"{where} {key!r} with {value!r} at {offset} of {partition}, which nobody sent"
        elif sent.offset not in (None, offset):
            yield f"{where} at {offset} of {partition} what was acknowledged at {sent.offset}"
        if offset <= before:
            yield f"{where} offset {offset} of {partition} behind {before}"

    def _note(self, findings: Iterable[str]) -> None:
        self._users.history.badly_compacted += findings


def _offset_of(sent: _Sent) -> int:
    return -1 if sent.offset is None else sent.offset
