"""The work of `barnabas consume`: reads records, prints them, and knows when to stop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.consumed_formats import format_of
from barnabas.cli.edges import Edge
from barnabas.cli.output import counted, printable, say
from barnabas.cli.required_topics import topics_at_start
from barnabas.cli.streams import write
from barnabas.client.client import Client
from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientError
from barnabas.client.settings import ConsumerSettings, IsolationLevel, OffsetReset
from barnabas.kernel.facts import fact
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.cli.starts import Start

RECORDS_PER_POLL_MAX: Final = 10_000
POLL_MS: Final = 250.0


@fact(kw_only=True)
class Plan:
    """What the user wants; None and () mean that he did not say."""

    topics: tuple[str, ...]
    group: str | None = None
    start: Start | None = None
    partitions: tuple[int, ...] = ()
    records_max: int | None = None
    until_end: bool = False
    timeout_seconds: float | None = None
    line_format: str = "value"
    """A name of FORMATS, or a template."""
    reads_committed: bool = False

    @property
    def first(self) -> Start:
        """Where to begin, also where the user did not say."""
        if self.start is not None:
            return self.start
        return Edge.EARLIEST if self.until_end else Edge.LATEST

    @property
    def is_subscribed(self) -> bool:
        """Whether a group says what is read."""
        return self.group is not None and not self.partitions


async def consume(client: Client, plan: Plan) -> None:
    """Prints records until the plan is fulfilled. Raises CommandError for what does not exist, and where a plan with an
    end comes to its time-out before that end.
    """
    plan = _at_once(plan, client.host.clock.time_ms())
    topics = await topics_at_start(client, plan.topics)
    partitions = _partitions(plan, {name: topic.partitions for name, topic in topics.items()})
    settings = ConsumerSettings(
        group_id=plan.group,
        offset_reset=OffsetReset.LATEST if plan.first is Edge.LATEST else OffsetReset.EARLIEST,
        isolation=IsolationLevel.READ_COMMITTED if plan.reads_committed else IsolationLevel.READ_UNCOMMITTED,
        partition_bytes_max=4 * 1024 * 1024,
    )
    sys.stdout.flush()
    async with Consumer(client, settings) as consumer:
        reading = _Reading(client, consumer, plan, partitions)
        await reading.begin()
        is_done = await reading.run(sys.stdout.fileno())
    if sys.stderr.isatty():
        say(f"{counted(reading.count, 'record')} read")
    if not is_done and (plan.until_end or plan.records_max is not None):
        raise CommandError(
            f"no record came for {plan.timeout_seconds:g} s; {counted(reading.count, 'record')} read, and not all that "
            "were wanted",
            ExitStatus.UNREACHABLE,
        )


class _Reading:
    """One consumer, from its start to its end."""

    def __init__(self, client: Client, consumer: Consumer, plan: Plan, partitions: Sequence[TopicPartition]) -> None:
        self.count = 0
        self._client = client
        self._consumer = consumer
        self._plan = plan
        self._partitions = list(partitions)
        self._ends: dict[TopicPartition, int] = {}
        self._format = format_of(plan.line_format, is_terminal=sys.stdout.isatty())

    async def begin(self) -> None:
        """Assigns partitions, or subscribes to the topics."""
        if self._plan.is_subscribed:
            self._consumer.subscribe(self._plan.topics, self)
            # The first poll begins to join the group, which goes on while the ends are asked for; it takes no records.
            _, self._ends = await asyncio.gather(self._poll(0, timeout_ms=0), self._present_ends())
            return
        self._ends = await self._present_ends()
        self._consumer.assign(self._partitions)
        await self._place(self._partitions)

    async def _present_ends(self) -> dict[TopicPartition, int]:
        return await self._consumer.end_offsets(self._partitions) if self._plan.until_end else {}

    async def run(self, descriptor: int) -> bool:
        """Whether it came to the plan's end, and not to its time-out."""
        loop = self._client.host.loop
        plan = self._plan
        last_at = loop.time()
        while not await self._is_at_end():
            self._add_new_partitions()
            wanted = RECORDS_PER_POLL_MAX if plan.records_max is None else plan.records_max - self.count
            found = await self._poll(min(wanted, RECORDS_PER_POLL_MAX))
            if found:
                await self._print(descriptor, found)
                last_at = loop.time()
                if self.count == plan.records_max:
                    break
            elif plan.timeout_seconds is not None and loop.time() - last_at >= plan.timeout_seconds:
                return False
        return True

    async def _poll(self, records_max: int, timeout_ms: float = POLL_MS) -> list[Any]:
        if self._plan.timeout_seconds is not None:
            timeout_ms = min(timeout_ms, self._plan.timeout_seconds * 1_000)
        try:
            return await self._format.poll(self._consumer, timeout_ms, records_max)
        except ClientError as error:
            raise CommandError(str(error)) from error

    async def _print(self, descriptor: int, found: list[Any]) -> None:
        """What could not be written counts as not read, so that a group reads it again."""
        if self._ends:
            # What came after the ends stays for the next reader of the group. A partition that the topic got only since
            # the start had its end at 0 then.
            found, beyond = self._format.below(found, self._ends)
            for partition in beyond:
                self._consumer.seek(partition, self._ends.get(partition, 0))
                self._consumer.pause(partition)
        try:
            await write(self._client.host.loop, descriptor, self._format.lines(found))
        except BaseException:
            for partition, offset in {each.partition: each.offset for each in reversed(found)}.items():
                if partition in self._consumer.assignment:
                    self._consumer.seek(partition, offset)
            raise
        self.count += self._format.count(found)

    async def _is_at_end(self) -> bool:
        """Whether all partitions that are read here have been read up to where they ended at the start."""
        if not self._plan.until_end or (self._plan.is_subscribed and not self._consumer.is_stable):
            return False
        for partition in self._consumer.assignment:
            if await self._consumer.position(partition) < self._ends.get(partition, 0):
                return False
        return True

    def _add_new_partitions(self) -> None:
        """Reads partitions that a topic got meanwhile, from their beginning, where no group does that."""
        if self._plan.group is not None or self._plan.partitions or self._plan.until_end:
            return
        known = set(self._partitions)
        for topic in self._plan.topics:
            info = self._client.cluster.topics.get(topic)
            added = [TopicPartition(topic, number) for number in (info.partitions if info else ())]
            added = [partition for partition in added if partition not in known]
            if added:
                self._partitions += added
                self._consumer.assign(self._partitions)
                self._consumer.seek_to_beginning(*added)

    # Where to begin.

    async def _place(self, partitions: Sequence[TopicPartition]) -> None:
        """Sets the position of partitions that have no committed one; the edges are the consumer's own business."""
        first = self._plan.first
        if self._plan.group is not None and partitions:
            committed = await self._consumer.committed(partitions)
            partitions = [partition for partition in partitions if partition not in committed]
        if not partitions:
            return
        if first is Edge.EARLIEST:
            self._consumer.seek_to_beginning(*partitions)
        elif first is Edge.LATEST:
            self._consumer.seek_to_end(*partitions)
        else:
            await self._place_within(partitions, first)

    async def _place_within(self, partitions: Sequence[TopicPartition], first: Start) -> None:
        from barnabas.cli.starts import AtOffset, AtTime, BeforeEnd

        match first:
            case AtOffset(offset):
                await self._check_offset(partitions, offset)
                for partition in partitions:
                    self._consumer.seek(partition, offset)
            case AtTime(timestamp_ms):
                await self._seek_to_time(partitions, timestamp_ms)
            case BeforeEnd(count):
                await self._seek_before_end(partitions, count)

    async def _check_offset(self, partitions: Sequence[TopicPartition], offset: int) -> None:
        beginnings = await self._consumer.beginning_offsets(partitions)
        ends = await self._consumer.end_offsets(partitions)
        for partition in partitions:
            if not beginnings[partition] <= offset <= ends[partition]:
                raise CommandError(
                    f"{printable(str(partition))} has offsets {beginnings[partition]} to {ends[partition]}, and no "
                    f"{offset}; choose one of them, or a partition with --partition"
                )

    async def _seek_before_end(self, partitions: Sequence[TopicPartition], count: int) -> None:
        beginnings = await self._consumer.beginning_offsets(partitions)
        ends = await self._consumer.end_offsets(partitions)
        for partition in partitions:
            self._consumer.seek(partition, max(beginnings[partition], ends[partition] - count))

    async def _seek_to_time(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> None:
        found = await self._consumer.offsets_for_times(dict.fromkeys(partitions, timestamp_ms))
        late = [partition for partition in partitions if found[partition] is None]
        ends = await self._consumer.end_offsets(late) if late else {}
        for partition, place in found.items():
            if place is None:
                self._consumer.seek(partition, ends[partition])
            else:
                self._consumer.seek(partition, place.offset, place.leader_epoch)

    # Told by the consumer (`RebalanceListener`).

    async def on_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        """The group has given us these."""
        if not isinstance(self._plan.first, Edge):
            await self._place(partitions)
        self._consumer.end_poll()  # of these there may be nothing to read

    async def on_revoked(self, partitions: tuple[TopicPartition, ...]) -> None:
        """What was printed of these is committed already."""

    async def on_lost(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Others print what comes next."""


def _at_once(plan: Plan, now_ms: int) -> Plan:
    """The plan, which begins at a time where it began so long ago."""
    if plan.start is None or isinstance(plan.start, Edge):
        return plan
    from barnabas.cli.starts import Ago

    return replace(plan, start=plan.start.at(now_ms)) if isinstance(plan.start, Ago) else plan


def _partitions(plan: Plan, known: dict[str, Iterable[int]]) -> list[TopicPartition]:
    found = []
    for topic, numbers in known.items():
        there = sorted(numbers)
        missing = [number for number in plan.partitions if number not in there]
        if missing:
            raise CommandError(
                f"topic {printable(topic)} has no partition {missing[0]}; it has 0 to {len(there) - 1}",
                ExitStatus.MISSING,
            )
        found += [TopicPartition(topic, number) for number in (plan.partitions or there)]
    return found
