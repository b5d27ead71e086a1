"""Producers and a consumer group that run while a cluster is hurt, and the count of what became of every record.

Values are `producer:sequence`, sequences count up per producer and partition, so that a loss, a repetition and a wrong
order each show. The clients are confluent-kafka's: idempotent, acks=all. What such a client may repeat by itself, and
what a broker must not, `produced_batches` tells apart.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.support.produced_batches import (
    produced_records,
    sent_again_in_new_epochs,
    sequence_faults,
    without_copies,
)

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.005
FLUSH_SECONDS = 90.0
READ_SECONDS = 90.0
QUIET_SECONDS = 60.0
COMMIT_EVERY = 200


@dataclass(slots=True)
class Acknowledged:
    """What one producer was told: the last sequence it sent to each partition, and all that were acknowledged."""

    sent: Counter[int] = field(default_factory=Counter)
    sequences: dict[int, set[int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class Workload:
    """`producers` threads that send to all partitions in turn, and `members` of `group` that read and commit."""

    def __init__(
        self, bootstrap_servers: str, topic: str, partitions: int, *, producers: int = 2, members: int = 2
    ) -> None:
        self.topic = topic
        self.group = f"group-of-{topic}"
        self._bootstrap_servers = bootstrap_servers
        self._partitions = partitions
        self._acknowledged = {f"p{number}": Acknowledged() for number in range(producers)}
        self._consumed: list[set[tuple[int, str]]] = [set() for _ in range(members)]
        self._committed: list[dict[int, int]] = [{} for _ in range(members)]
        self._group_failures: list[str] = []
        self._stopping = threading.Event()
        self._group_stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce, args=(name,), name=name, daemon=True) for name in self._acknowledged
        ]
        self._group_threads = [
            threading.Thread(target=self._consume, args=(number,), name=f"m{number}", daemon=True)
            for number in range(members)
        ]

    def start(self) -> None:
        for thread in (*self._threads, *self._group_threads):
            thread.start()

    @property
    def acknowledged_count(self) -> int:
        """How many records were acknowledged so far."""
        return sum(len(found) for each in self._acknowledged.values() for found in list(each.sequences.values()))

    @property
    def failures(self) -> list[str]:
        """Records that were refused for good, or given up."""
        return [failure for each in self._acknowledged.values() for failure in list(each.failures)]

    @property
    def consumed_count(self) -> int:
        """How many records the group has seen so far."""
        return sum(map(len, self._consumed))

    def finish(self) -> None:
        """Stops the producers, waits for their last acknowledgements, and holds everything against the log.

        AssertionError with the first records that were lost, repeated, reordered, or that the group did not see.
        """
        self._stopping.set()
        for thread in self._threads:
            thread.join(FLUSH_SECONDS + 30)
            assert not thread.is_alive(), f"{thread.name} did not end"
        assert not self.failures, f"{len(self.failures)} records failed: {self.failures[:3]}"
        found = self._read_everything()
        self._wait_for_group({(partition, value) for partition, values in found.items() for value in values})
        self._check_committed()
        sent_again = {partition: self._check_sequences(partition) for partition in found}
        for name, told in self._acknowledged.items():
            self._check(name, told, found, sent_again)

    def abandon(self) -> None:
        """Stops everything without a look at it."""
        self._stopping.set()
        self._group_stopping.set()

    def _check_sequences(self, partition: int) -> set[str]:
        """Holds what the brokers owe an idempotent producer; returns the values that it has sent again by itself."""
        produced = produced_records(self._bootstrap_servers, self.topic, partition)
        faults = sequence_faults(produced)
        assert not faults, f"{self.topic}-{partition}: {len(faults)} faulty sequences, such as {faults[:3]}"
        sent_again = sent_again_in_new_epochs(produced)
        if sent_again:
            logger.warning(
                "%s-%d: a client raised its epoch and sent %d records again", self.topic, partition, len(sent_again)
            )
        return sent_again

    def _check(
        self, name: str, told: Acknowledged, found: dict[int, list[str]], sent_again: dict[int, set[str]]
    ) -> None:
        for partition in range(self._partitions):
            values = without_copies(found[partition], sent_again[partition])
            mine = [int(value.split(":")[1]) for value in values if value.startswith(f"{name}:")]
            lost = sorted(told.sequences.get(partition, set()) - set(mine))
            repeated = [sequence for sequence, count in Counter(mine).items() if count > 1]
            where = f"{self.topic}-{partition}, producer {name}, {told.sent[partition]} records"
            assert not lost, f"{where}: {len(lost)} acknowledged records are lost, such as {lost[:5]}"
            assert not repeated, f"{where}: {len(repeated)} records are there more than once, such as {repeated[:5]}"
            assert mine == sorted(mine), f"{where}: records are out of order"

    def _produce(self, name: str) -> None:
        told = self._acknowledged[name]
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "socket.timeout.ms": 10_000,
                "retry.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.fast.interval.ms": 100,
            }
        )
        while not self._stopping.is_set():
            for partition in range(self._partitions):
                sequence = told.sent[partition]
                told.sent[partition] += 1

                def delivered(
                    error: KafkaError | None, _message: Any, partition: int = partition, sequence: int = sequence
                ) -> None:
                    if error is None:
                        told.sequences.setdefault(partition, set()).add(sequence)
                    else:
                        told.failures.append(f"{partition}/{sequence}: {error}")

                while True:
                    try:
                        producer.produce(self.topic, f"{name}:{sequence}", partition=partition, on_delivery=delivered)
                        break
                    except BufferError:
                        producer.poll(0.1)
                    except KafkaException as error:
                        told.failures.append(f"{partition}/{sequence} was not even taken: {error}")
                        return
            producer.poll(0)
            self._stopping.wait(PAUSE_SECONDS)
        left = producer.flush(FLUSH_SECONDS)
        if left:
            told.failures.append(f"{left} records were not answered")

    def _consume(self, number: int) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6_000,
                "socket.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 500,
            }
        )
        consumer.subscribe([self.topic])
        consumed, since_commit = self._consumed[number], 0
        try:
            while not self._group_stopping.is_set():
                message = consumer.poll(0.2)
                if message is None or message.error() is not None:
                    continue
                consumed.add((message.partition(), message.value().decode()))
                since_commit += 1
                if since_commit >= COMMIT_EVERY:
                    since_commit = 0
                    self._commit(consumer, self._committed[number])
        finally:
            consumer.close()

    def _commit(self, consumer: Consumer, told: dict[int, int]) -> None:
        """Commits, and holds what the group then says against what it said before: offsets never go back."""
        try:
            for committed in consumer.commit(asynchronous=False):
                if committed.offset < 0 or committed.error is not None:
                    # Nothing was read of this partition since it was assigned, or nothing was committed.
                    continue
                before = told.get(committed.partition, 0)
                if committed.offset < before:
                    self._group_failures.append(f"{committed.partition}: {committed.offset} after {before}")
                told[committed.partition] = max(before, committed.offset)
        except KafkaException as error:
            # The coordinator is gone or rebalances: what was not committed is read again.
            if not _is_passing(error.args[0]):
                self._group_failures.append(str(error))

    def _wait_for_group(self, everything: set[tuple[int, str]]) -> None:
        deadline = time.monotonic() + READ_SECONDS
        while not everything <= self._consumed_by_all() and time.monotonic() < deadline:
            time.sleep(0.1)
        self._group_stopping.set()
        for thread in self._group_threads:
            thread.join(QUIET_SECONDS)
            assert not thread.is_alive(), f"member {thread.name} did not end"
        missing = sorted(everything - self._consumed_by_all())
        assert not missing, f"the group did not see {len(missing)} of {len(everything)} records, such as {missing[:5]}"
        assert not self._group_failures, self._group_failures[:5]

    def _consumed_by_all(self) -> set[tuple[int, str]]:
        # Copies, as the members go on.
        return set().union(*(each.copy() for each in self._consumed))

    def _check_committed(self) -> None:
        """What the group was told to be committed still is, or more."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap_servers, "group.id": self.group})
        try:
            partitions = [TopicPartition(self.topic, partition) for partition in range(self._partitions)]
            kept = {found.partition: found.offset for found in consumer.committed(partitions, timeout=READ_SECONDS)}
        finally:
            consumer.close()
        for told in self._committed:
            lost = {partition: offset for partition, offset in told.items() if kept[partition] < offset}
            assert not lost, f"the group has lost commits: told {lost}, kept {kept}"

    def _read_everything(self) -> dict[int, list[str]]:
        """The values of every partition, in order."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        found: dict[int, list[str]] = {partition: [] for partition in range(self._partitions)}
        ended: set[int] = set()
        deadline = time.monotonic() + READ_SECONDS
        try:
            consumer.assign([TopicPartition(self.topic, partition, OFFSET_BEGINNING) for partition in found])
            while len(ended) < self._partitions:
                assert time.monotonic() < deadline, f"only {len(ended)} partitions were read to their end"
                for message in consumer.consume(5_000, timeout=0.5):
                    error = message.error()
                    if error is None:
                        found[message.partition()].append(message.value().decode())
                    elif error.code() == KafkaError._PARTITION_EOF:
                        ended.add(message.partition())
        finally:
            consumer.close()
        return found


def _is_passing(error: KafkaError) -> bool:
    return error.retriable() or error.code() in {
        KafkaError._NO_OFFSET,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.REQUEST_TIMED_OUT,
    }
