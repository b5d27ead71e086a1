"""What a broker reads and writes in `__remote_log_metadata`, over a client that is played."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pytest

from barnabas.client.admin import NewTopic
from barnabas.client.cluster import PartitionInfo, TopicInfo
from barnabas.client.errors import ClientTimeoutError
from barnabas.kernel.host import Host
from barnabas.kernel.ids import Uuid
from barnabas.kernel.timers import Timers
from barnabas.testing.simulation import Simulation
from barnabas.tiered import metadata_topic
from barnabas.tiered.metadata_records import encode_metadata, metadata_partition
from barnabas.tiered.metadata_topic import MetadataTopic
from barnabas.tiered.segment_metadata import (
    RemoteLogMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
    RemotePartitionDeletion,
    TopicIdPartition,
    partition_of,
)
from barnabas.tiered.settings import TieredSettings
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import REMOTE_LOG_METADATA_TOPIC, TopicPartition
from tests.unit.tiered.test_metadata_cache import PARTITION, segment, update

COUNT = 4
FIRST_ID = Uuid(bytes([1] * 16))
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(slots=True)
class PlayedMetadata:
    partition: TopicPartition
    offset: int
    value: bytes | None


@dataclass(slots=True)
class PlayedCluster:
    """The topic, and the client that reads and writes it; it stands for all four classes of the client."""

    count: int = 0
    logs: dict[int, list[bytes | None]] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    polls: int = 0
    failing_polls: int = 0
    clients: int = 0
    is_readable: bool = True
    is_seeking: bool = False
    ends: dict[int, int] = field(default_factory=dict)
    """Of partitions that end in something that is no record."""
    created: list[NewTopic] = field(default_factory=list)
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    topic_id: Uuid = FIRST_ID
    known_id: Uuid = FIRST_ID
    """The client's, which a fetch is sent with."""

    def open(self, *_: Any) -> Self:
        return self

    def connect(self, *_: Any) -> Self:
        self.clients += 1
        self.positions.clear()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def create_topics(self, topics: list[NewTopic]) -> None:
        self.created += topics
        if self.count:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, "it is there")
        self.count = topics[0].partitions

    @property
    def metadata(self) -> Self:
        return self

    @property
    def cluster(self) -> Self:
        return self

    @property
    def topics(self) -> dict[str, TopicInfo]:
        partitions = dict.fromkeys(range(self.count), PartitionInfo(1, 0, (), (), ()))
        return {REMOTE_LOG_METADATA_TOPIC: TopicInfo(REMOTE_LOG_METADATA_TOPIC, self.known_id, True, partitions)}

    def retry(self, _what: str) -> None:
        return

    def request_update(self) -> None:
        self.known_id = self.topic_id

    async def describe_topics(self, names: list[str]) -> dict[str, TopicInfo]:
        await asyncio.sleep(0.01)
        (name,) = names
        return {name: replace(self.topics[name], topic_id=self.topic_id)}

    async def topic(self, name: str, _retry: None) -> TopicInfo:
        await self.update()
        return self.topics[name]

    async def update(self) -> None:
        await asyncio.sleep(0.01)
        self.known_id = self.topic_id

    def make_again(self, count: int = COUNT) -> None:
        """What is known of it stays as it was, until that is asked for, or a fetch says so."""
        self.logs.clear()
        self.count, self.topic_id = count, Uuid(bytes([self.topic_id[0] + 1] * 16))

    def log(self, number: int) -> list[bytes | None]:
        return self.logs.setdefault(number, [])

    def write(self, metadata: RemoteLogMetadata) -> None:
        self.log(metadata_partition(partition_of(metadata), self.count)).append(encode_metadata(metadata))

    async def send_and_wait(self, record: Any) -> PlayedMetadata:
        await asyncio.sleep(0.01)
        log = self.log(record.partition)
        log.append(record.value)
        return PlayedMetadata(TopicPartition(record.topic, record.partition), len(log) - 1, None)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self.positions = {place: self.positions.get(place, -1) for place in partitions}

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.positions[place] = offset

    async def position(self, place: TopicPartition, timeout_ms: float) -> int:
        if self.is_seeking:
            await asyncio.sleep(timeout_ms / 1000)
            raise ClientTimeoutError("its leader is not known")
        return self.positions[place]

    async def beginning_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: self.starts.get(place.partition, 0) for place in places}

    async def end_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: self.end(place.partition) for place in places}

    def end(self, number: int) -> int:
        return max(len(self.log(number)), self.ends.get(number, 0))

    async def poll(self, _timeout_ms: float, records_max: int) -> list[PlayedMetadata]:
        await asyncio.sleep(0.05)
        self.polls += 1
        if self.failing_polls and self.positions:
            self.failing_polls -= 1
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it has moved")
        found: list[PlayedMetadata] = []
        if self.known_id != self.topic_id:
            await self.update()  # UNKNOWN_TOPIC_ID
            return []
        for place, offset in self.positions.items():
            assert offset >= 0, "it was never told where to read"
            start, end = self.starts.get(place.partition, 0), self.end(place.partition)
            if not start <= offset <= end:
                self.positions[place] = offset = start  # as it resets itself
            values = self.log(place.partition)[offset : offset + records_max] if self.is_readable else []
            found += [PlayedMetadata(place, offset + number, value) for number, value in enumerate(values)]
            self.positions[place] += len(values)
            if self.is_readable and self.positions[place] >= len(self.log(place.partition)):
                self.positions[place] = end
        return found


Body = Callable[[MetadataTopic, PlayedCluster], Awaitable[None]]
Run = Callable[..., list[str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Run:
    """Runs a test in virtual time; returns what was logged."""

    def run_body(body: Body, cluster: PlayedCluster | None = None) -> list[str]:
        cluster = cluster or PlayedCluster()
        monkeypatch.setattr(metadata_topic, "Client", cluster.connect)
        for name in ("Admin", "Producer", "Consumer"):
            monkeypatch.setattr(metadata_topic, name, cluster.open)

        async def main(host: Host) -> None:
            settings = replace(TieredSettings(), metadata_partitions=COUNT)
            logger = logging.getLogger("barnabas.tests.metadata")
            topic = MetadataTopic(host, Timers(host.loop), settings, lambda: ("broker:9092",), logger)
            try:
                await body(topic, cluster)
            finally:
                await topic.close()

        with Simulation(1) as simulation:
            simulation.run_on(simulation.machine("broker"), main)
        return caplog.messages

    return run_body


def test_what_is_published_was_read_back_and_the_topic_made(run: Run) -> None:
    async def body(topic: MetadataTopic, cluster: PlayedCluster) -> None:
        one = segment(1, 0, 9)
        await topic.publish(one)
        assert topic.cache(PARTITION).segments() == [one]
        await topic.publish(update(one, FINISHED))
        assert topic.cache(PARTITION).find(0, 5) is not None
        assert [(made.name, made.partitions) for made in cluster.created] == [(REMOTE_LOG_METADATA_TOPIC, COUNT)]
        assert list(cluster.positions) == [
            TopicPartition(REMOTE_LOG_METADATA_TOPIC, metadata_partition(PARTITION, COUNT))
        ]
        assert topic.partitions() == [PARTITION]

    run(body)


def test_what_is_published_and_not_read_back_is_in_doubt(run: Run) -> None:
    async def body(topic: MetadataTopic, cluster: PlayedCluster) -> None:
        await topic.catch_up(PARTITION)
        cluster.is_readable = False
        with pytest.raises(TimeoutError):
            await topic.publish(segment(1, 0, 9))
        assert topic.cache(PARTITION).segments() == []
        cluster.is_readable = True
        assert len((await topic.catch_up(PARTITION)).segments()) == 1, "it was written"

    run(body)


def test_catching_up_takes_all_that_others_have_written_from_the_start_of_the_topic_on(run: Run) -> None:
    async def body(topic: MetadataTopic, cluster: PlayedCluster) -> None:
        number = metadata_partition(PARTITION, COUNT)
        cluster.count = COUNT
        cluster.log(number).extend([b"deleted by retention"] * 3)
        cluster.starts[number] = 3
        for each in range(500):
            cluster.write(segment(each + 1, each * 10, each * 10 + 9))
        assert len((await topic.catch_up(PARTITION)).segments()) == 500
        cluster.write(segment(501, 5000, 5009))
        assert len((await topic.catch_up(PARTITION)).segments()) == 501

    assert not run(body)


@pytest.mark.parametrize("case", ["a marker at the end", "retention"])
def test_catching_up_ends_also_where_no_record_says_so(run: Run, case: str) -> None:
    async def body(topic: MetadataTopic, cluster: PlayedCluster) -> None:
        number = metadata_partition(PARTITION, COUNT)
        for each in range(10):
            await topic.publish(segment(each + 1, each * 10, each * 10 + 9))
        if case == "retention":
            cluster.log(number).extend([b"gone before it was read"] * 5)
            cluster.starts[number] = 15
            cluster.positions = dict.fromkeys(cluster.positions, 10)
        else:
            cluster.ends[number] = 12
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        cache = await topic.catch_up(PARTITION)
        assert asyncio.get_running_loop().time() - began < 1
        assert len(cache.segments()) == 10

    run(body)


@pytest.mark.parametrize("count", [3, 10, 25])
def test_a_topic_that_was_made_again_is_read_from_its_start(run: Run, count: int) -> None:
    """With fewer records than the former one, as many, or more."""

    async def body(topic: MetadataTopic, cluster: PlayedCluster) -> None:
        for each in range(10):
            await topic.publish(segment(each + 1, each * 10, each * 10 + 9))
        cluster.make_again()
        for each in range(100, 100 + count):
            cluster.write(segment(each + 1, each * 10, each * 10 + 9))
        assert len((await topic.catch_up(PARTITION)).segments()) == 10 + count, "and what was known stays known"

    assert sum("made again" in line for line in run(body)) == 1


def test_what_is_published_in_a_topic_that_was_made_again_is_read_back_too(run: Run) -> None:
    async def body(topic: MetadataTopic, cluster: PlayedCluster) -> None:
        for each in range(10):
            await topic.publish(segment(each + 1, each * 10, each * 10 + 9))
        cluster.make_again()
        await topic.publish(segment(77, 900, 909))
        assert topic.cache(PARTITION).segment(segment(77, 900, 909).segment_id) is not None

    run(body)


def test_a_topic_that_was_made_again_with_other_partitions_is_read_where_it_has_what_is_needed(run: Run) -> None:
    async def body(topic: MetadataTopic, cluster: PlayedCluster) -> None:
        await topic.publish(segment(1, 0, 9))
        cluster.make_again(50)
        assert metadata_partition(PARTITION, 50) != metadata_partition(PARTITION, COUNT)
        cluster.write(segment(2, 10, 19))
        while len(topic.cache(PARTITION).segments()) < 2:
            await asyncio.sleep(0.1)
        cluster.write(segment(3, 20, 29))
        assert len((await topic.catch_up(PARTITION)).segments()) == 3

    run(body)


def test_nothing_counts_as_read_while_a_position_is_sought(run: Run) -> None:
    async def body(topic: MetadataTopic, cluster: PlayedCluster) -> None:
        await topic.catch_up(PARTITION)
        cluster.is_seeking = True
        cluster.write(segment(1, 0, 9))
        with pytest.raises(TimeoutError):
            await topic.catch_up(PARTITION)
        cluster.is_seeking = False
        assert len((await topic.catch_up(PARTITION)).segments()) == 1

    run(body)


def test_reading_goes_on_after_a_failure_where_it_was(run: Run) -> None:
    async def body(topic: MetadataTopic, cluster: PlayedCluster) -> None:
        await topic.publish(segment(1, 0, 9))
        cluster.failing_polls = 2
        cluster.write(update(segment(1, 0, 9), FINISHED))
        while cluster.failing_polls:
            await asyncio.sleep(0.1)
        cache = await topic.catch_up(PARTITION)
        assert cache.find(0, 5) is not None
        assert cluster.clients == 3

    assert sum("trying again" in line for line in run(body)) == 2


def test_a_partition_that_is_needed_later_is_read_beside_the_others(run: Run) -> None:
    async def body(topic: MetadataTopic, cluster: PlayedCluster) -> None:
        first = metadata_partition(PARTITION, COUNT)
        other = next(
            each
            for number in range(100)
            if metadata_partition(each := TopicIdPartition(Uuid(bytes(16)), TopicPartition("flights", number)), COUNT)
            != first
        )
        await topic.publish(segment(1, 0, 9))
        await topic.catch_up(other)
        assert {place.partition for place in cluster.positions} == {first, metadata_partition(other, COUNT)}
        await topic.publish(update(segment(1, 0, 9), FINISHED))
        assert topic.cache(PARTITION).find(0, 5) is not None

    run(body)


def test_records_that_cannot_be_read_or_not_be_true_are_passed_over(run: Run) -> None:
    async def body(topic: MetadataTopic, cluster: PlayedCluster) -> None:
        cluster.count = COUNT
        cluster.log(metadata_partition(PARTITION, COUNT)).extend([b"\xff garbage", None])
        cluster.write(segment(1, 0, 9))
        for state in (FINISHED, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, FINISHED):
            cluster.write(update(segment(1, 0, 9), state))
        cluster.write(segment(2, 10, 19))
        cache = await topic.catch_up(PARTITION)
        assert [(each.start_offset, each.state) for each in cache.segments()] == [
            (0, RemoteLogSegmentState.DELETE_SEGMENT_STARTED),
            (10, RemoteLogSegmentState.COPY_SEGMENT_STARTED),
        ]

    assert sum("is passed over" in line for line in run(body)) == 2


def test_a_partition_whose_deletion_has_ended_is_forgotten(run: Run) -> None:
    async def body(topic: MetadataTopic, _cluster: PlayedCluster) -> None:
        for state in RemotePartitionDeleteState:
            await topic.publish(RemotePartitionDeletion(PARTITION, 1, 8, state))
            assert bool(topic.partitions()) == (state is not RemotePartitionDeleteState.DELETE_PARTITION_FINISHED)

    run(body)


def test_the_topic_has_the_partitions_that_it_was_made_with(run: Run) -> None:
    async def body(topic: MetadataTopic, cluster: PlayedCluster) -> None:
        await topic.publish(segment(1, 0, 9))
        assert list(cluster.logs) == [metadata_partition(PARTITION, 50)]

    assert any("has 50 partitions, and not 4" in line for line in run(body, PlayedCluster(count=50)))
