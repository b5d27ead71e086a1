"""A simulated cluster whose users are our own client in all its ways: members that process, fail, go back, pause, give
up polls, leave by an error, are cancelled, closed by others, too slow, killed, and come again; producers with
idempotence and without. `reader_ledger` counts exactly what was given, processed and committed, while brokers and the
network fail as in any plan of `cluster_simulation`.

    report, counts = simulate_readers(seed=7, plan=reading(EXPIRY))
    assert not report.findings
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.assignors import COOPERATIVE_STICKY, RANGE, Assignor
from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientClosedError, ClientError
from barnabas.client.group_coordinator import GroupCoordinator
from barnabas.client.records import ConsumerRecord, OffsetAndMetadata
from barnabas.client.settings import ConsumerSettings, OffsetReset
from barnabas.testing.cluster_load import Users
from barnabas.testing.cluster_plan import Plan
from barnabas.testing.cluster_plans import KEEPING
from barnabas.testing.cluster_simulation import ClusterSimulation, Report
from barnabas.testing.faults import FaultKind
from barnabas.testing.plain_producers import PlainProducers
from barnabas.testing.reader_ledger import GroupLedger, MemberLedger
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import OffsetCommitRequest
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from barnabas.client.client import Client
    from barnabas.kernel.host import Host
    from barnabas.testing.simulated_host import SimulatedMachine, SimulatedProcess

CAREFUL: Final = "careful"
HASTY: Final = "hasty"
MEMBERS: Final = 2
LIFE_SECONDS: Final = 8.0
"""How long a member lives on average, if nothing happens to it."""
KILL_SECONDS: Final = 5.0
"""The average time between two kills of a member's process."""
GOING_BACK_MAX: Final = 30
DRAINING_SECONDS_MAX: Final = 40.0
FAULTS_SECONDS: Final = 30.0
COVERAGE: Final = (
    "processed",
    "processed again",
    "processed again without offsets",
    "passed over what was deleted",
    "given and never processed",
    "assigned",
    "revoked",
    "lost",
    "sought",
    "sought in haste",
    "paused",
    "resumed",
    "went back to what failed",
    "left by an error",
    "left in order",
    "left by being cancelled",
    "cancelled, and closed then",
    "closed by another",
    "gave up a poll",
    "killed",
    "too slow",
    "committed by hand",
    "commits sent",
    "static member",
    "plain: acknowledged",
    "plain: sent again",
    "plain: written twice",
)
"""What a suite of runs must have seen."""


class ProcessingError(Exception):
    """What a user's own code raises."""


class Leaving(enum.Enum):
    """How a member ends where nothing else ends it."""

    BY_ITSELF = "by itself"  # leaves the `async with`
    CANCELLED = "cancelled"  # its task is cancelled within the `async with`, wherever it is
    CANCELLED_AND_CLOSED = "cancelled and closed"  # the same without `async with`; who has cancelled it calls `close`
    CLOSED = "closed"  # somebody else calls `close` while it polls or processes


def reading(plan: Plan) -> Plan:
    """A plan for readers: as many records as they can process, none of transactions, and no topic without readers."""
    load = dataclasses.replace(
        plan.load,
        partitions=3,
        records_pause_ms=60,
        producers=2,
        transactional_ids=0,
        has_compacted_topic=False,
        has_tiered_topic=False,
        has_outbox=False,
    )
    return dataclasses.replace(plan, faults_seconds=FAULTS_SECONDS, load=load)


READING: Final = reading(KEEPING)


class Readers(Users):
    """The users of one run: producers as ever, and members of two groups."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.groups = {
            name: GroupLedger(name, self.history, is_careful=name == CAREFUL, now=self.now) for name in (CAREFUL, HASTY)
        }
        self.assignors: dict[str, Assignor] = dict.fromkeys(self.groups, RANGE)
        self._lives = 0

    async def read(self, group: str, host: Host) -> None:
        """Runs one member after another, until `stop`."""
        while self.goes_on():
            async with self.client(host) as client:
                await self._live(client, self.groups[group])

    async def _live(self, client: Client, group: GroupLedger) -> None:
        random = client.host.random
        leaving = random.choice([*Leaving, Leaving.BY_ITSELF, Leaving.BY_ITSELF])
        life_seconds = random.expovariate(1 / LIFE_SECONDS)
        ends_at = self.now() + life_seconds
        consumer, reader = self._begin(client, group)
        if leaving is Leaving.BY_ITSELF:
            await self._end(self._read_in_context(consumer, reader, ends_at), group, "left in order")
            return
        is_in_context = leaving is Leaving.CANCELLED
        work = self._read_in_context(consumer, reader) if is_in_context else self._read(reader)
        worker = client.host.loop.create_task(work, name="worker")
        while self.goes_on() and self.now() < ends_at and not worker.done():
            await client.timers.sleep(random.uniform(1, 300))
        if leaving is Leaving.CLOSED:
            await consumer.close()
            await self._end(worker, group, "closed by another")
        elif is_in_context:
            worker.cancel()
            await self._end(worker, group, "left by being cancelled")
        else:
            worker.cancel()
            await self._end(worker, group, "cancelled, and closed then")
            await consumer.close()

    async def _end(self, work: Awaitable[None], group: GroupLedger, what: str) -> None:
        """Waits for the end of a worker, which counts as `what` unless it is an error of the worker's own."""
        try:
            await work
        except ProcessingError:
            group.counts["left by an error"] += 1
        except asyncio.CancelledError:
            group.counts[what] += 1
        else:
            group.counts[what] += 1

    def _begin(self, client: Client, group: GroupLedger) -> tuple[Consumer, Reader]:
        self._lives += 1
        consumer = Consumer(client, self._settings(group, client.host))
        member = MemberLedger(group, self._lives)
        _watch(consumer, member)
        consumer.subscribe([self.load.topic], member)
        return consumer, Reader(client, consumer, member)

    async def _read_in_context(self, consumer: Consumer, reader: Reader, ends_at: float = math.inf) -> None:
        async with consumer:
            await self._read(reader, ends_at)

    async def _read(self, reader: Reader, ends_at: float = math.inf) -> None:
        while self.goes_on() and self.now() < ends_at and await reader.turn():
            pass

    def _settings(self, group: GroupLedger, host: Host) -> ConsumerSettings:
        random = host.random
        is_static = random.random() < 0.3
        group.counts["static member"] += is_static
        return ConsumerSettings(
            group_id=group.name,
            group_instance_id=host.name if is_static else None,
            assignors=(self.assignors[group.name],),
            auto_commit=group.is_careful and random.random() < 0.6,
            auto_commit_interval_ms=random.choice((100, 500, 2_000)),
            offset_reset=OffsetReset.EARLIEST,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=300,
            poll_interval_ms_max=4_000,
            fetch_wait_ms=300,
            partition_bytes_max=random.choice((300, 100_000)),
        )

    async def drain(self, host: Host) -> None:
        """Has the last members read everything that is left in a cluster at rest, and checks all of it."""
        async with self.client(host) as client:
            partitions = [TopicPartition(self.load.topic, number) for number in range(self.load.partitions)]
            for group in self.groups.values():
                # Large fetches, so that all that is left is read in the time that there is.
                settings = dataclasses.replace(
                    self._settings(group, host), auto_commit=False, partition_bytes_max=100_000
                )
                async with Consumer(client, settings) as consumer:
                    self._lives += 1
                    member = MemberLedger(group, self._lives)
                    reader = Reader(client, consumer, member, is_calm=True)
                    _watch(consumer, member)
                    consumer.subscribe([self.load.topic], member)
                    ends = await consumer.end_offsets(partitions)
                    for partition, start in (await consumer.beginning_offsets(partitions)).items():
                        if start > group.may_be_committed(partition):
                            group.begins_at(partition, start)
                    ends_at = self.now() + DRAINING_SECONDS_MAX
                    while self.now() < ends_at and any(
                        group.may_be_committed(partition) < end for partition, end in ends.items()
                    ):
                        await reader.turn()
                    group.finish(ends)


class Reader:
    """What one member does with its consumer."""

    def __init__(self, client: Client, consumer: Consumer, member: MemberLedger, *, is_calm: bool = False) -> None:
        self._client = client
        self._consumer = consumer
        self._member = member
        self._is_calm = is_calm
        self._random = client.host.random

    async def turn(self) -> bool:
        """Polls once, and processes what that gives; False when the consumer was closed. Raises ProcessingError, as a
        user's own code may.
        """
        member = self._member
        member.is_polling = True
        try:
            records = await self._poll()
        except ClientClosedError:
            return False
        except (ClientError, KafkaError) as error:
            self._client.logger.info("A reader: %s", error)
            await self._client.timers.sleep(50)
            return True
        finally:
            member.is_polling = False
        member.returned(records)
        if member.group.is_careful:
            await self._process_carefully(records)
        else:
            await self._process_hastily(records)
        if not self._is_calm:
            self._change_something()
        return True

    async def _poll(self) -> list[ConsumerRecord]:
        random = self._random
        timeout_ms, count = random.choice((0, 20, 300, 1_000)), random.choice((1, 5, 20, 500))
        if self._is_calm or random.random() < 0.9:
            return await self._consumer.poll(timeout_ms, count)
        try:
            async with asyncio.timeout(random.uniform(0, timeout_ms / 1_000)):
                return await self._consumer.poll(timeout_ms, count)
        except TimeoutError:
            self._member.group.counts["gave up a poll"] += 1
            return []

    async def _process_carefully(self, records: list[ConsumerRecord]) -> None:
        """Processes, and commits by hand now and then what is processed."""
        done: dict[TopicPartition, OffsetAndMetadata] = {}
        for number, record in enumerate(records):
            await self._take_time()
            if not self._is_calm and self._random.random() < 0.003:
                if self._random.random() < 0.5:
                    raise ProcessingError
                self._go_back_to(records[number:])
                return
            self._member.group.process(record.partition, record.offset)
            done[record.partition] = OffsetAndMetadata(record.offset + 1, record.leader_epoch)
            if self._random.random() < 0.02:
                await self._commit(done)
        if records and self._random.random() < 0.2:
            await self._commit(None)

    async def _process_hastily(self, records: list[ConsumerRecord]) -> None:
        """Commits, and processes what is surely committed; goes back to the rest at times."""
        if not records:
            return
        if not await self._commit(None):
            if self._random.random() < 0.5:
                self._member.group.counts["sought in haste"] += 1
                self._go_back_to([each for each in records if each.partition in self._consumer.assignment])
            return
        committed_at = self._member.group.now()
        for record in records:
            await self._take_time()
            if not self._is_calm and self._random.random() < 0.003:
                raise ProcessingError
            self._member.group.process(record.partition, record.offset, committed_at)

    async def _commit(self, offsets: dict[TopicPartition, OffsetAndMetadata] | None) -> bool:
        told = offsets
        if told is None:
            told = {
                partition: OffsetAndMetadata(offset)
                for partition, offset in self._member.expected.items()
                if partition in self._consumer.assignment
            }
        self._member.commits_by_hand(told)
        try:
            await self._consumer.commit(offsets, timeout_ms=3_000)
        except (ClientError, KafkaError) as error:
            self._client.logger.info("A reader: %s", error)
            return False
        return True

    async def _take_time(self) -> None:
        chance = 1.0 if self._is_calm else self._random.random()
        if chance < 0.0005:
            self._member.group.counts["too slow"] += 1
            await self._client.timers.sleep(6_000)
        elif chance < 0.05:
            await self._client.timers.sleep(self._random.uniform(0, 400))

    def _go_back_to(self, unprocessed: list[ConsumerRecord]) -> None:
        """Goes back to what failed, to read it again."""
        self._member.group.counts["went back to what failed"] += 1
        first = {record.partition: record.offset for record in reversed(unprocessed)}
        for partition, offset in first.items():
            self._consumer.seek(partition, offset)
            self._member.sought(partition, offset)

    def _change_something(self) -> None:
        """Goes back, with or without having been elsewhere first, and pauses and resumes partitions."""
        random, consumer, member = self._random, self._consumer, self._member
        begun = [partition for partition in consumer.assignment if partition in member.expected]
        if not begun:
            return
        partition = random.choice(begun)
        if random.random() < 0.08:
            offset = member.expected[partition]
            if member.group.is_careful:
                offset = random.randint(max(0, offset - GOING_BACK_MAX), offset)
            else:
                member.group.counts["sought in haste"] += 1  # what was processed must not come again
            if random.random() < 0.3:
                consumer.seek(partition, offset + GOING_BACK_MAX)
            consumer.seek(partition, offset)
            member.sought(partition, offset)
        if random.random() < 0.05:
            consumer.pause(partition)
            member.paused.add(partition)
            member.group.counts["paused"] += 1
        elif member.paused and random.random() < 0.3:
            partition = random.choice(sorted(member.paused))
            consumer.resume(partition)
            member.paused.discard(partition)
            member.group.counts["resumed"] += 1


def _watch(consumer: Consumer, member: MemberLedger) -> None:
    """Tells the ledger of each commit before the consumer sends it."""
    coordinator: Any = consumer._coordinator  # noqa: SLF001 - what leaves a consumer can be seen nowhere else
    ask = GroupCoordinator.ask

    async def told(message: Any, *arguments: Any) -> Any:
        if isinstance(message, OffsetCommitRequest):
            member.sends_commit(
                {
                    TopicPartition(topic.name, each.partition_index): each.committed_offset
                    for topic in message.topics
                    for each in topic.partitions
                }
            )
        return await ask(coordinator, message, *arguments)

    coordinator.ask = told


class ReaderSimulation(ClusterSimulation):
    """One run. `run` it once; `ledgers` has what the groups have come to."""

    def __init__(self, seed: int, plan: Plan = READING, **options: Any) -> None:
        super().__init__(seed, plan, **options)
        before = self.users
        self.readers = Readers(before._bootstrap_servers, plan.load, self.history, before.now)  # noqa: SLF001
        self.users = self.readers
        self._random = self.simulation.world.random("readers")
        for name in self.readers.groups:
            self.readers.assignors[name] = self._random.choice((RANGE, COOPERATIVE_STICKY))
        self.plain = PlainProducers(self.readers)
        self._machines: list[tuple[str, SimulatedMachine]] = []

    @property
    def ledgers(self) -> dict[str, GroupLedger]:
        """The ledger of each group, by its name."""
        return self.readers.groups

    def _let_users_begin(self) -> list[SimulatedProcess]:
        simulation, readers = self.simulation, self.readers
        simulation.run_on(simulation.machine("administrator"), readers.create_topic)
        for group in readers.groups:
            for number in range(MEMBERS):
                machine = simulation.machine(f"{group}{number}")
                self._machines.append((group, machine))
                machine.start(functools.partial(readers.read, group))
        self._plan_kill()
        return [
            simulation.machine("producers").start(readers.produce),
            simulation.machine("plain producers").start(self.plain.produce),
        ]

    def _plan_kill(self) -> None:
        self.simulation.after(self._random.expovariate(1 / KILL_SECONDS), self._kill)

    def _kill(self) -> None:
        """Ends the process of a member as kill -9 does; another takes its place soon."""
        if not self.readers.goes_on():
            return
        group, machine = self._random.choice(self._machines)
        if machine.running:
            self.readers.groups[group].counts["killed"] += 1
            machine.crash()
            self.simulation.after(self._random.uniform(0.1, 3.0), machine.restart)
        self._plan_kill()

    def _settle(self, users: list[SimulatedProcess]) -> None:
        self.readers.stop()
        self.simulation.run_for(3.0)  # the last that was killed is back, and ends
        self._wait("the readers end what they are at", lambda: not any(each.running for _, each in self._machines))
        super()._settle(users)
        if not self.history.unsettled:
            drainer = self.simulation.machine("drainer")
            self.simulation.run_on(drainer, self.readers.drain, limit_seconds=120.0)
            self.simulation.run_on(drainer, self.plain.check, limit_seconds=60.0)

    def _report(self) -> Report:
        report = super()._report()
        findings = [finding for ledger in self.ledgers.values() for finding in ledger.findings]
        # Of the plain producers' topic nobody observes what power takes.
        has_lost_power = report.strikes[FaultKind.POWER] or report.strikes[FaultKind.OUTAGE]
        if self.plan.keeps_one_in_sync or not has_lost_power:
            findings += self.plain.findings
        return dataclasses.replace(report, findings=(*report.findings, *findings))


def simulate_readers(seed: int, plan: Plan = READING) -> tuple[Report, Counter[str]]:
    """One run, and what its members have met. Raises SimulationFailedError where production code fails."""
    simulation = ReaderSimulation(seed, plan)
    report = simulation.run()
    counts: Counter[str] = Counter()
    for ledger in simulation.ledgers.values():
        counts += ledger.counts
    counts += simulation.plain.counts
    return report, counts
