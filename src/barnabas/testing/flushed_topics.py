"""Topics with `flush.messages` in a simulated cluster whose power fails: what was acknowledged is on the disk.

Invariants: of the records that a broker has acknowledged, with acks=1 or acks=all, and still had when its power failed,
it has lost fewer than `flush.messages` afterwards in each partition: none where that is 1. And whenever a user is told
of a record, it is in that broker's file, so that the end of the process takes nothing; and fewer of those up to it are
not on that broker's disk yet: neither need come in that very moment.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from barnabas.log.partition.partition_log import PartitionLog
from barnabas.testing.cluster_history import RecordId
from barnabas.testing.cluster_logs import StoredLog
from barnabas.testing.probes import after, before
from barnabas.testing.simulated_host import SimulatedMachine
from barnabas.testing.single_records import PARTITION_COUNT, make_topic, send_one
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from barnabas.client.client import Client
    from barnabas.client.connections import Lane
    from barnabas.kernel.host import Host
    from barnabas.testing.cluster_load import Users
    from barnabas.testing.single_records import Told

SENDERS: Final = 4
"""Of one partition: so many records are appended while a sync goes on."""
PAUSE_MS: Final = 1_000.0
BURST: Final = 4
BURST_PAUSE_MS: Final = 2.0

_Kept = dict[int, RecordId | None]


class FlushedTopics:
    """Who writes to these topics, what was acknowledged by whom, and what each loss of power has left of it."""

    def __init__(self, users: Users, brokers: Mapping[int, SimulatedMachine], directories: Sequence[str]) -> None:
        self.counts: Counter[str] = Counter()
        self._users = users
        self._machines = brokers
        self._brokers = {machine.name: broker_id for broker_id, machine in brokers.items()}
        self._directories = directories
        self._flush_messages = {f"flushed-{count}": count for count in users.load.flush_messages}
        self._acknowledged: dict[tuple[int, TopicPartition], dict[int, RecordId]] = {}
        """By broker, and by offset."""
        self._sent = 0
        self._before: dict[tuple[int, TopicPartition], _Kept] = {}
        self._cut_off_at: dict[TopicPartition, float] = {}
        """When somebody's log of it lost its end, by a truncation or with the power."""

    async def produce(self, host: Host) -> None:
        """Senders that do not wait for each other, until the users are to stop."""
        async with self._users.client(host) as client:
            lane = client.connections.new_lane()
            for topic, count in self._flush_messages.items():
                await make_topic(client, topic, {"flush.messages": str(count)})
            await asyncio.gather(
                *(self._send(client, lane, partition) for partition in self._partitions() for _ in range(SENDERS))
            )

    async def _send(self, client: Client, lane: Lane, partition: TopicPartition) -> None:
        random, users = client.host.random, self._users
        while users.goes_on():
            await client.timers.sleep(random.expovariate(1 / PAUSE_MS))
            for _ in range(BURST):
                self._sent += 1
                record, acks, since = RecordId(0, self._sent), random.choice((1, -1)), users.now()
                told = await send_one(client, lane, partition, record, acks)
                if told is None:
                    break
                self.counts[f"flushed: acks {acks}"] += 1
                self._acknowledged.setdefault((told.broker_id, partition), {})[told.offset] = record
                self._is_told(told, partition, since)
                await client.timers.sleep(random.expovariate(1 / BURST_PAUSE_MS))

    def _is_told(self, told: Told, partition: TopicPartition, since: float) -> None:
        log = StoredLog(self._machines[told.broker_id].disk, self._directories, partition)
        had = {stored.offset: stored.record for stored in log.records()}
        acknowledged = self._acknowledged[told.broker_id, partition]
        if self._cut_off_at.get(partition, -1.0) < since:
            self.counts["flushed: told and in the file"] += 1
            if had.get(told.offset) != acknowledged[told.offset]:
                self._users.history.unflushed.append(
                    f"broker {told.broker_id} has acknowledged the record at {told.offset} of {partition.topic}-"
                    f"{partition.partition}, and at {self._users.now():.3f} s its file does not have it yet"
                )
        synced = log.synced_end_offset()
        self.counts["flushed: told while others were not synced"] += synced is not None
        if synced is None or told.offset < synced:
            return
        unsynced = [
            at for at in range(synced, told.offset + 1) if at in acknowledged and acknowledged[at] == had.get(at)
        ]
        if len(unsynced) >= self._flush_messages[partition.topic]:
            self._users.history.unflushed.append(
                f"broker {told.broker_id} has acknowledged the records at {unsynced} of {partition.topic}-"
                f"{partition.partition}, and at {self._users.now():.3f} s its disk does not have them yet"
            )

    @contextmanager
    def probes(self) -> Iterator[None]:
        """Looks at each loss of power, while this lasts."""
        with (
            before(PartitionLog, "truncate_to", self._cut_off),
            before(PartitionLog, "truncate_fully_and_start_at", self._cut_off),
            before(SimulatedMachine, "power_fail", self._power_fails),
            after(SimulatedMachine, "power_fail", self._power_has_failed),
        ):
            yield

    def _partitions(self) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic in self._flush_messages for number in range(PARTITION_COUNT)]

    def _cut_off(self, log: PartitionLog, *_offset: object) -> None:
        self._cut_off_at[log.partition] = self._users.now()

    def _power_fails(self, machine: SimulatedMachine) -> None:
        broker_id = self._brokers.get(machine.name)
        if broker_id is None:
            return
        for partition in self._partitions():
            self._cut_off_at[partition] = self._users.now()
            log = StoredLog(machine.disk, self._directories, partition)
            self._before[broker_id, partition] = {stored.offset: stored.record for stored in log.records()}

    def _power_has_failed(self, _result: None, machine: SimulatedMachine) -> None:
        broker_id = self._brokers.get(machine.name)
        if broker_id is None:
            return
        for partition in self._partitions():
            had = self._before.pop((broker_id, partition), {})
            acknowledged = self._acknowledged.get((broker_id, partition), {})
            survived = StoredLog(machine.disk, self._directories, partition).surviving_end_offset()
            promised = [offset for offset, record in acknowledged.items() if had.get(offset) == record]
            lost = [offset for offset in promised if offset >= survived]
            self.counts["flushed: kept when power failed"] += len(promised) - len(lost)
            self.counts["flushed: taken when power failed"] += sum(offset >= survived for offset in had)
            if len(lost) >= self._flush_messages[partition.topic]:
                self._users.history.unflushed.append(
                    f"broker {broker_id} had acknowledged the records at {sorted(lost)} of {partition.topic}-"
                    f"{partition.partition} and had them when its power failed at {self._users.now():.3f} s; its disk "
                    f"has what is below {survived}"
                )
