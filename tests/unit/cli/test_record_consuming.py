"""What `barnabas consume` reads, prints and gives back; the consumer is scripted, and records go to a pipe."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.cli.connection import CommandError
from barnabas.cli.edges import Edge
from barnabas.cli.record_consuming import Plan, _Reading
from barnabas.cli.starts import AtOffset, AtTime
from barnabas.client.connections import Lane
from barnabas.client.consumer import Consumer
from barnabas.client.records import ConsumerRecord, OffsetAndTimestamp, RecordColumn
from barnabas.kernel.host import Host
from barnabas.kernel.turns import yield_to_loop
from barnabas.wire.messages import JoinGroupRequest, ListOffsetsRequest
from barnabas.wire.records import TimestampType
from barnabas.wire.topics import TopicPartition
from tests.unit.client.scripted_client import ScriptedClient, simulated
from tests.unit.client.scripted_group import PARTITION, SETTINGS, Broker

Run = Callable[[Coroutine[Any, Any, Any]], Any]
ZERO, ONE = TopicPartition("flights", 0), TopicPartition("flights", 1)


def record(partition: TopicPartition, offset: int) -> ConsumerRecord:
    return ConsumerRecord(
        partition, offset, 0, None, b"%d/%d" % (partition.partition, offset), (), 0, TimestampType.CREATE_TIME
    )


class ScriptedConsumer:
    """Has records 0 to 9 of each partition, and gives them in what `polls` says; remembers what is done to it."""

    def __init__(self, polls: list[list[ConsumerRecord]], committed: dict[TopicPartition, int] | None = None) -> None:
        self.polls = polls
        self.positions: dict[TopicPartition, int] = {}
        self.done: list[tuple[Any, ...]] = []
        self._committed = committed or {}

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        return tuple(self.positions)

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.positions = {each: self.positions.get(each, 0) for each in partitions}

    def seek(self, partition: TopicPartition, offset: int, _leader_epoch: int = -1) -> None:
        self.positions[partition] = offset
        self.done.append(("seek", partition, offset))

    def pause(self, partition: TopicPartition) -> None:
        self.done.append(("pause", partition))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        self.done.append(("beginning", *partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        self.done.append(("end", *partitions))

    async def position(self, partition: TopicPartition) -> int:
        return self.positions[partition]

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 10)

    async def offsets_for_times(
        self, timestamps_ms: dict[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return {each: OffsetAndTimestamp(4, 0, 2) if each == ZERO else None for each in timestamps_ms}

    async def committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self._committed[each] for each in partitions if each in self._committed}

    async def poll(self, _timeout_ms: float, records_max: int) -> list[ConsumerRecord]:
        await asyncio.sleep(0)
        records = self.polls.pop(0) if self.polls else []
        assert len(records) <= records_max
        for each in records:
            self.positions[each.partition] = each.offset + 1
        return records

    async def poll_columns(self, timeout_ms: float, records_max: int) -> list[RecordColumn]:
        records = await self.poll(timeout_ms, records_max)
        runs = itertools.groupby(records, key=lambda each: each.partition)
        return [
            RecordColumn(partition, [each.offset for each in run], None, [each.value for each in run])
            for partition, run in ((partition, list(run)) for partition, run in runs)
        ]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def reading_of(consumer: ScriptedConsumer, plan: Plan, partition_count: int = 2) -> _Reading:
    cluster = SimpleNamespace(topics={"flights": SimpleNamespace(partitions=dict.fromkeys(range(partition_count)))})
    client: Any = SimpleNamespace(host=SimpleNamespace(loop=asyncio.get_running_loop()), cluster=cluster)
    scripted: Any = consumer
    return _Reading(client, scripted, plan, [ZERO, ONE])


def read(run: Run, consumer: ScriptedConsumer, plan: Plan, pipe: tuple[int, int]) -> tuple[bool, bytes]:
    async def main() -> bool:
        reading = reading_of(consumer, plan)
        await reading.begin()
        return await reading.run(pipe[1])

    is_done = run(main())
    os.close(pipe[1])
    return is_done, os.read(pipe[0], 65_536)


def test_stops_at_the_ends_and_leaves_what_came_later(run: Run, pipe: tuple[int, int]) -> None:
    consumer = ScriptedConsumer([[record(ZERO, 8), record(ZERO, 9), record(ZERO, 10), record(ONE, 9)]])
    plan = Plan(topics=("flights",), until_end=True, start=AtOffset(8))
    assert read(run, consumer, plan, pipe) == (True, b"0/8\n0/9\n1/9\n")
    assert consumer.positions == {ZERO: 10, ONE: 10}
    assert consumer.done[-2:] == [("seek", ZERO, 10), ("pause", ZERO)]


class UntilJoining(Broker):
    """Tells offsets to who has asked to join the group; there are no records."""

    async def answer(self, request: Any, lane: Lane) -> Any:
        if isinstance(request, ListOffsetsRequest):
            while not self.of(JoinGroupRequest):
                await yield_to_loop()
        return await super().answer(request, lane)


def test_joins_the_group_while_the_ends_are_asked_for_and_ends_when_it_has_partitions_without_records() -> None:
    async def main(host: Host) -> float:
        broker = UntilJoining()
        broker.held = asyncio.Event()
        client = ScriptedClient(host, broker.answer, {"events": 1})
        plan = Plan(topics=("events",), group="readers", until_end=True)
        began = host.loop.time()
        async with Consumer(client, SETTINGS) as consumer:
            reading = _Reading(client, consumer, plan, [PARTITION])
            await reading.begin()
            assert await reading.run(-1)
            took = host.loop.time() - began
            assert consumer.is_stable
        await client.close()
        return took

    # Nothing takes a while there but the first poll, a tick of the timers.
    assert simulated(main) < 0.01


def test_leaves_a_partition_that_the_group_gave_since_the_start(run: Run, pipe: tuple[int, int]) -> None:
    two = TopicPartition("flights", 2)
    consumer = ScriptedConsumer([[record(two, 0), record(ZERO, 9)], [record(ONE, 9)]])
    plan = Plan(topics=("flights",), until_end=True)
    assert read(run, consumer, plan, pipe) == (True, b"0/9\n1/9\n")
    assert ("seek", two, 0) in consumer.done
    assert ("pause", two) in consumer.done


def test_stops_after_so_many_records(run: Run, pipe: tuple[int, int]) -> None:
    consumer = ScriptedConsumer([[record(ZERO, 0)], [], [record(ONE, 0), record(ONE, 1)], [record(ONE, 2)]])
    assert read(run, consumer, Plan(topics=("flights",), records_max=3), pipe) == (True, b"0/0\n1/0\n1/1\n")
    assert consumer.polls == [[record(ONE, 2)]]


def test_says_that_nothing_came_in_time(run: Run, pipe: tuple[int, int]) -> None:
    consumer = ScriptedConsumer([[record(ZERO, 0)]])
    assert read(run, consumer, Plan(topics=("flights",), timeout_seconds=0.01), pipe) == (False, b"0/0\n")


def test_what_could_not_be_printed_counts_as_not_read(run: Run, pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    consumer = ScriptedConsumer([[record(ZERO, 3), record(ONE, 6), record(ZERO, 4)]])

    async def main() -> None:
        reading = reading_of(consumer, Plan(topics=("flights",)))
        await reading.begin()
        with pytest.raises(BrokenPipeError):
            await reading.run(pipe[1])

    run(main())
    assert consumer.positions == {ZERO: 3, ONE: 6}


def test_partitions_that_a_topic_got_meanwhile_are_read_from_their_beginning(run: Run, pipe: tuple[int, int]) -> None:
    two = TopicPartition("flights", 2)
    consumer = ScriptedConsumer([[record(two, 0)]])

    async def main() -> bool:
        reading = reading_of(consumer, Plan(topics=("flights",), records_max=1), partition_count=3)
        await reading.begin()
        return await reading.run(pipe[1])

    assert run(main())
    assert consumer.assignment == (ZERO, ONE, two)
    assert consumer.done[-1] == ("beginning", two)


@pytest.mark.parametrize(
    ("start", "done"),
    [
        (None, [("end", ZERO, ONE)]),
        (Edge.LATEST, [("end", ZERO, ONE)]),
        (Edge.EARLIEST, [("beginning", ZERO, ONE)]),
        (AtOffset(7), [("seek", ZERO, 7), ("seek", ONE, 7)]),
        (AtTime(1_000), [("seek", ZERO, 4), ("seek", ONE, 10)]),
    ],
)
def test_begins_where_it_is_told(run: Run, start: Any, done: list[tuple[Any, ...]]) -> None:
    consumer = ScriptedConsumer([])

    async def main() -> None:
        await reading_of(consumer, Plan(topics=("flights",), start=start)).begin()

    run(main())
    assert consumer.done == done


def test_a_group_goes_on_at_its_committed_offsets(run: Run) -> None:
    consumer = ScriptedConsumer([], committed={ZERO: 5})

    async def main() -> None:
        plan = Plan(topics=("flights",), group="g", partitions=(0, 1), start=AtOffset(2))
        await reading_of(consumer, plan).begin()

    run(main())
    assert consumer.done == [("seek", ONE, 2)]


def test_an_offset_that_is_not_there_is_refused(run: Run) -> None:
    async def main() -> None:
        await reading_of(ScriptedConsumer([]), Plan(topics=("flights",), start=AtOffset(11))).begin()

    with pytest.raises(CommandError, match="flights-0 has offsets 0 to 10, and no 11"):
        run(main())
