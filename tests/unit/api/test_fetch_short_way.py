"""`barnabas.api.fetch_short_way`: two brokers are asked the same, of which one has only the general way."""

from __future__ import annotations

import asyncio
import itertools
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from barnabas.api.fetch_short_way import FetchWay
from barnabas.coordination.layout.topics import TopicPartition
from barnabas.kernel.host import Host
from barnabas.kernel.metrics import Histogram, Meter
from barnabas.replication.fetch_sessions import FetchSessionCache
from barnabas.testing.simulation import Simulation, simulation_seeds
from barnabas.wire import codec
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import FetchRequest, FetchResponse
from tests.unit.api.data_broker import DataBroker, batch, data_broker, produce_request, topic_id
from tests.unit.api.fetching import Run, Session, asked, fetch_request, only, scenario, settled, values

_TOPICS = ("flights", "trains")
_PARTITIONS = tuple((topic, number) for topic in _TOPICS for number in range(3))
_FOLLOWERS = (2, 3)
_STEPS = 300
_LONG_MS = 600_000
_SETTLED_SECONDS = 0.2
"""Of virtual time: whatever is on its way has come then."""
_REPLICAS = (1, 2, 3)


class Taken:
    """Counts what the short way takes, or keeps it from taking anything."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_short: bool) -> None:
        self.count = 0
        take = FetchWay.take

        def counted(way: FetchWay, *arguments: Any) -> bool:
            taken = is_short and take(way, *arguments)
            self.count += taken
            return taken

        monkeypatch.setattr(FetchWay, "take", counted)


class Follower:
    """A fetcher that keeps in step with what it is answered, mostly."""

    def __init__(self, broker: DataBroker, follower_id: int, chance: random.Random) -> None:
        self.broker = broker
        self.follower_id = follower_id
        self.version = chance.choice((15, 16, 17))
        self._chance = chance
        self._correlation_ids = itertools.count(1)
        self.frames: list[bytes] = []
        """All that it was ever answered."""
        self._connect()

    def _connect(self) -> None:
        self.caller = self.broker.connect(f"broker-{self.follower_id}-fetcher-0")
        self.session_id = self.epoch = 0
        self.offsets = dict.fromkeys(self._chance.sample(_PARTITIONS, 4), (0, -1))
        self.news: set[tuple[str, int]] = set()
        self.is_parked = False

    def fetch(self) -> None:
        """Asks for what is next, or for something odd."""
        chance = self._chance
        session_id, epoch = self.session_id, self.epoch
        oddity = chance.random()
        named = set(self.offsets) if not epoch else set(self.news)
        forgotten: list[tuple[str, int]] = []
        options: dict[str, Any] = {}
        if oddity < 0.01:
            epoch += 1
        elif oddity < 0.02:
            session_id += 1
        elif oddity < 0.03:
            epoch = -1
        elif oddity < 0.04:
            epoch, named = 0, set(self.offsets)
        elif oddity < 0.08 and len(self.offsets) > 1 and epoch > 0:
            gone = chance.choice(sorted(self.offsets))
            del self.offsets[gone]
            named.discard(gone)
            forgotten = [gone]
        elif oddity < 0.12 and epoch > 0:
            new = chance.choice(_PARTITIONS)
            self.offsets.setdefault(new, (0, -1))
            named.add(new)
        elif oddity < 0.13:
            options["rack_id"] = "rack"
        elif oddity < 0.2 and epoch > 0:
            named |= set(chance.sample(sorted(self.offsets), 1))
        request = FetchRequest(
            max_wait_ms=chance.choice((0, 100, 100, _LONG_MS)),
            min_bytes=chance.choice((1, 1, 1, 300)),
            max_bytes=chance.choice((1, 10_000, 10 << 20)),
            session_id=session_id,
            session_epoch=epoch,
            topics=self._topics(sorted(named)),
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic_id=topic_id(topic), partitions=[number])
                for topic, number in forgotten
            ],
            replica_state=FetchRequest.ReplicaState(
                replica_id=self.follower_id if chance.random() < 0.99 else 9, replica_epoch=1
            ),
            **options,
        )
        self.news.clear()
        self._send(request)

    def _topics(self, named: list[tuple[str, int]]) -> list[FetchRequest.FetchTopic]:
        topics = []
        for topic, group in itertools.groupby(named, lambda partition: partition[0]):
            entry = FetchRequest.FetchTopic(topic_id=topic_id(topic))
            for _, number in group:
                offset, last_epoch = self.offsets[topic, number]
                odd = self._chance.random()
                partition = self.broker.replicas.find_partition(TopicPartition(topic, number))
                entry.partitions.append(
                    FetchRequest.FetchPartition(
                        partition=number,
                        current_leader_epoch=(partition.leader_epoch if partition else 0) + (odd < 0.03) - (odd > 0.97),
                        fetch_offset=offset + (3 if 0.03 < odd < 0.06 else 0),
                        last_fetched_epoch=last_epoch + (1 if 0.06 < odd < 0.1 else 0),
                        log_start_offset=self._chance.choice((0, 0, 0, 1)),
                        partition_max_bytes=self._chance.choice((100, 5_000, 1 << 20)),
                    )
                )
            topics.append(entry)
        return topics

    def _send(self, request: FetchRequest) -> None:
        number = next(self._correlation_ids)
        encode = codec.request_encoder(ApiKey.FETCH, self.version, f"broker-{self.follower_id}-fetcher-0")
        frame = b"".join(encode(number, request))
        cut = self._chance.randrange(len(frame)) if self._chance.random() < 0.1 else 0
        for part in (frame[:cut], frame[cut:]):
            if part:
                self.caller.send_bytes(part)
        self.is_parked = True

    def take(self) -> None:
        """Looks at what has come."""
        written = self.caller.transport.written
        data = bytes(written)
        written.clear()
        while data:
            size = int.from_bytes(data[:4], "big")
            frame, data = data[4 : 4 + size], data[4 + size :]
            self.frames.append(frame)
            response, _ = codec.response_decoder(ApiKey.FETCH, self.version)(frame, 0, len(frame))
            self._understand(response)
        if self.caller.transport.closed:
            self.frames.append(b"closed")
            self._connect()

    def _understand(self, response: FetchResponse) -> None:
        self.is_parked = False
        if response.error_code or not response.session_id:
            self.session_id = self.epoch = 0
            return
        self.session_id = response.session_id
        self.epoch += 1
        names = {topic_id(topic): topic for topic in _TOPICS}
        for topic in response.responses:
            for data in topic.partitions:
                partition = names[topic.topic_id], data.partition_index
                if partition not in self.offsets:
                    continue
                if data.diverging_epoch is not None and data.diverging_epoch.end_offset >= 0:
                    self.offsets[partition] = data.diverging_epoch.end_offset, data.diverging_epoch.epoch
                elif data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    log = self.broker.replicas.get_partition(TopicPartition(*partition)).log
                    self.offsets[partition] = (log.log_start_offset if log is not None else 0), -1
                elif data.records and self._chance.random() < 0.9:
                    self.offsets[partition] = end_of(bytes(data.records)) or self.offsets[partition]
                self.news.add(partition)


def end_of(records: bytes) -> tuple[int, int] | None:
    """The offset behind the last whole batch, and its leader epoch."""
    found = None
    position = 0
    while position + 61 <= len(records):
        base_offset, size, epoch = struct.unpack_from(">qii", records, position)
        if position + 12 + size <= len(records):
            found = base_offset + struct.unpack_from(">i", records, position + 23)[0] + 1, epoch
        position += 12 + size
    return found


class Client:
    """A consumer, with a session or without, that asks for the next, or for something odd. It may have asked for more
    when its first answer comes."""

    def __init__(self, broker: DataBroker, version: int, chance: random.Random) -> None:
        self.broker = broker
        self.version = version
        self._chance = chance
        self._correlation_ids = itertools.count(1)
        self._offsets: dict[tuple[str, int], int] = dict.fromkeys(_PARTITIONS, 0)
        self.frames: list[bytes] = []
        self._client_id = f"consumer-{version}"
        self.caller = broker.connect(self._client_id)
        self.session_id = 0
        self.epoch = -1
        self.waiting = 0
        """Requests without an answer."""

    def fetch(self) -> None:
        chance = self._chance
        oddity = chance.random()
        named = chance.sample(_PARTITIONS, chance.choice((1, 1, 2, 4)))
        if self.epoch <= 0:
            self.epoch = chance.choice((-1, -1, -1, 0))
        request = FetchRequest(
            max_wait_ms=chance.choice((0, 0, 100, _LONG_MS)),
            min_bytes=chance.choice((1, 1, 1, 300)),
            max_bytes=chance.choice((1, 10_000, 10 << 20)),
            isolation_level=chance.choice((0, 1)),
            session_id=self.session_id + (1 if oddity < 0.02 else 0),
            session_epoch=self.epoch + (1 if 0.02 < oddity < 0.04 else 0),
            topics=self._topics([*named, named[0]] if 0.04 < oddity < 0.08 else sorted(named)),
            rack_id="rack" if 0.08 < oddity < 0.1 else "",
        )
        encode = codec.request_encoder(ApiKey.FETCH, self.version, self._client_id)
        self.waiting += 1
        self.caller.send_bytes(b"".join(encode(next(self._correlation_ids), request)))

    def _topics(self, named: list[tuple[str, int]]) -> list[FetchRequest.FetchTopic]:
        topics = []
        for topic, group in itertools.groupby(named, lambda partition: partition[0]):
            odd = self._chance.random()
            entry = FetchRequest.FetchTopic()
            if self.version >= 13:
                entry.topic_id = topic_id("nobody" if odd < 0.02 else topic)
            else:
                entry.topic = "nobody" if odd < 0.02 else topic
            for _, number in group:
                odd = self._chance.random()
                partition = self.broker.replicas.find_partition(TopicPartition(topic, number))
                epoch = partition.leader_epoch if partition and odd < 0.3 else -1
                entry.partitions.append(
                    FetchRequest.FetchPartition(
                        partition=number + (7 if odd > 0.99 else 0),
                        current_leader_epoch=epoch + (1 if 0.97 < odd < 0.99 else 0),
                        fetch_offset=self._offsets[topic, number] + (3 if 0.94 < odd < 0.97 else 0),
                        partition_max_bytes=self._chance.choice((100, 5_000, 1 << 20)),
                    )
                )
            topics.append(entry)
        return topics

    def take(self) -> None:
        """Looks at what has come."""
        data = bytes(self.caller.transport.written)
        self.caller.transport.written.clear()
        while data:
            size = int.from_bytes(data[:4], "big")
            frame, data = data[4 : 4 + size], data[4 + size :]
            self.frames.append(frame)
            response, _ = codec.response_decoder(ApiKey.FETCH, self.version)(frame, 0, len(frame))
            self.waiting -= 1
            self.session_id = response.session_id
            self.epoch = self.epoch + 1 if response.session_id and not response.error_code else -1
            names = {topic_id(topic): topic for topic in _TOPICS}
            for topic in response.responses:
                for each in topic.partitions:
                    partition = topic.topic or names.get(topic.topic_id), each.partition_index
                    if partition in self._offsets and each.records and self._chance.random() < 0.7:
                        found = end_of(bytes(each.records))
                        self._offsets[partition] = found[0] if found is not None else self._offsets[partition]


class Story:
    """What happens to a broker, all of it by one seed and by what it answers."""

    def __init__(self, broker: DataBroker, seed: int) -> None:
        self.broker = broker
        self.chance = random.Random(seed)
        self.followers = [Follower(broker, follower_id, self.chance) for follower_id in _FOLLOWERS]
        self.clients = [Client(broker, version, self.chance) for version in (11, 15, 17)]
        self.producers = {acks: broker.connect(f"producer-{acks}") for acks in (1, -1)}
        self.told: list[object] = []
        """All that is seen of it, step by step."""

    async def happen(self) -> None:
        for topic, number in _PARTITIONS[:-1]:
            self.broker.lead(topic, number, isr=_REPLICAS, replicas=_REPLICAS)
        await asyncio.sleep(_SETTLED_SECONDS)
        for _ in range(_STEPS):
            self._step()
            await asyncio.sleep(_SETTLED_SECONDS)
            readers: list[Follower | Client] = [*self.followers, *self.clients]
            for reader in readers:
                reader.take()
                self.told.append(list(reader.frames))
                reader.frames.clear()
            for producer in self.producers.values():
                self.told.append(bytes(producer.transport.written))
                producer.transport.written.clear()
            self.told.append(self._state())

    def _step(self) -> None:
        chance = self.chance
        topic, number = chance.choice(_PARTITIONS)
        what = chance.random()
        if what < 0.3:
            self._produce(topic, number)
        elif what < 0.5:
            client = chance.choice(self.clients)
            if not client.waiting or chance.random() < 0.1:
                client.fetch()
        elif what < 0.95:  # one alone: of those that come in one poll, the short way takes its own first
            follower = chance.choice(self.followers)
            if not follower.is_parked or chance.random() < 0.05:
                follower.fetch()
        elif what < 0.98:
            partition = self.broker.replicas.find_partition(TopicPartition(topic, number))
            epoch = partition.leader_epoch + 1 if partition is not None else 0
            leader = chance.choice((1, 1, 1, 2))
            self.broker.lead(topic, number, leader=leader, leader_epoch=epoch, isr=_REPLICAS, replicas=_REPLICAS)
        else:
            try:
                self.broker.replicas.get_partition(TopicPartition(topic, number)).delete_records(-1)
            except KafkaError as error:
                self.told.append(error.code)

    def _produce(self, topic: str, number: int) -> None:
        values = [bytes(self.chance.choice((10, 2_000))) for _ in range(self.chance.choice((1, 1, 3)))]
        acks = self.chance.choice((1, -1))
        self.producers[acks].send(produce_request(topic, batch(*values), number, acks, _LONG_MS), 9)

    def _state(self) -> list[object]:
        replicas = self.broker.replicas
        return [
            [
                (
                    name,
                    partition.leader_epoch,
                    log.high_watermark,
                    log.log_end_offset,
                    log.log_start_offset,
                    log.last_stable_offset,
                )
                for name, partition in replicas.partitions.items()
                if (log := partition.log) is not None
            ],
            [
                (
                    each.broker_id,
                    each.log_end_offset,
                    each.log_start_offset,
                    each.fetch_leader_end_offset,
                    each.clock is None,
                )
                for partition in replicas.partitions.values()
                for each in partition.followers
            ],
            [
                (
                    session.session_id,
                    session.epoch,
                    session.follower_id,
                    len(session),
                    len(session.parked),
                    [
                        (
                            item.topic_partition,
                            item.fetch_offset,
                            item.max_bytes,
                            item.leader_epoch,
                            item.last_fetched_epoch,
                            item.log_start_offset,
                            item.sent_high_watermark,
                            item.sent_log_start_offset,
                        )
                        for item in session.candidates
                    ],
                )
                for session in self.broker.sessions.sessions.values()
            ],
            (replicas.fetch_purgatory.delayed, replicas.produce_purgatory.delayed),
        ]

    def counted(self) -> dict[object, int]:
        """What was counted of requests, replication and topics."""
        return {
            name: metric.count if isinstance(metric, Meter) else metric.snapshot().count
            for name, metric in self.broker.calls.metrics
            if name.group in ("kafka.network", "kafka.server") and isinstance(metric, Meter | Histogram)
        }


def tell(seed: int) -> list[object]:
    """What is seen of a broker to which the story of the seed happens."""

    async def main(host: Host) -> list[object]:
        async with data_broker(host, "/logs") as broker:
            story = Story(broker, seed)
            await story.happen()
            story.told.append(story.counted())
            return story.told

    with Simulation(seed) as simulation:
        told: list[object] = simulation.run_on(simulation.machine("broker"), main, limit_seconds=600)
    return told


@pytest.mark.parametrize("seed", simulation_seeds(8))
def test_does_what_the_general_way_does(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    told = []
    for is_short in (False, True):
        with monkeypatch.context() as patch:
            session_ids = itertools.count(1_000)
            patch.setattr(FetchSessionCache, "_new_id", lambda _, numbers=session_ids: next(numbers))
            taken = Taken(patch, is_short=is_short)
            told.append(tell(seed))
            assert is_short or not taken.count
    for general, short in zip(*told, strict=True):
        assert short == general


@pytest.fixture(name="taken")
def _taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    return Taken(monkeypatch, is_short=True)


async def in_session(broker: DataBroker) -> Session:
    """A follower in step, whose next request is as usual."""
    broker.lead("flights", isr=(1, 2), replicas=(1, 2))
    await settled()
    follower = Session(broker.connect(), 17, replica_id=2)
    await follower.fetch(asked(log_start_offset=0))
    assert await follower.fetch() == {}
    return follower


def test_takes_what_is_as_usual(run: Run, tmp_path: Path, taken: Taken) -> None:
    async def body(broker: DataBroker) -> None:
        follower = await in_session(broker)
        before = taken.count
        for number in range(5):
            follower.caller.send(follower.request(asked(0, number, log_start_offset=0), max_wait_ms=600_000), 17)
            while not broker.replicas.fetch_purgatory.delayed:
                await asyncio.sleep(0)
            await broker.produce("flights", b"one")
            (response,) = await follower.caller.responses(1)
            assert {number: values(data) for number, data in follower.take(response).items()} == {0: [b"one"]}
        await follower.fetch(asked(0, 4, log_start_offset=0))
        assert taken.count - before == 6
        assert broker.replicas.get_partition(TopicPartition("flights", 0)).high_watermark == 4

    scenario(run, tmp_path, body)


def test_leaves_to_the_general_way_what_comes_while_another_waits(run: Run, tmp_path: Path, taken: Taken) -> None:
    async def body(broker: DataBroker) -> None:
        follower = await in_session(broker)
        follower.caller.send(follower.request(max_wait_ms=600_000), 17)
        while not broker.replicas.fetch_purgatory.delayed:
            await asyncio.sleep(0)
        before = taken.count
        follower.epoch += 1
        follower.caller.send(follower.request(), 17)
        await broker.produce("flights", b"one")
        first, second = await follower.caller.responses(2)
        assert taken.count == before
        assert (first.error_code, second.error_code) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("version", [11, 17])
def test_a_client_that_asks_for_much_at_once_gets_it_bit_by_bit(
    run: Run, tmp_path: Path, taken: Taken, version: int
) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        await broker.produce("flights", bytes(900_000))
        caller = broker.connect()
        await caller.call(fetch_request(version, "flights", asked()), version)
        at_once: list[int] = []
        caller.transport.writelines = lambda buffers: at_once.append(sum(map(len, buffers)))  # type: ignore[method-assign]
        with caller.kept_back() as kept:
            for _ in range(40):
                caller.send(fetch_request(version, "flights", asked(), max_bytes=1 << 20, session_epoch=-1), version)
        caller.send_bytes(bytes(kept))
        while sum(at_once) < 40 * 900_000:
            await asyncio.sleep(0)
        assert len(at_once) >= 40 / 3
        assert max(at_once) < 3 << 20
        assert taken.count >= len(at_once) // 2

    scenario(run, tmp_path, body)


def test_a_connection_that_produces_keeps_the_way_for_that(run: Run, tmp_path: Path, taken: Taken) -> None:
    async def body(broker: DataBroker) -> None:
        broker.lead("flights")
        caller = broker.connect()
        for number in range(3):
            await caller.call(produce_request("flights", batch(b"one")), 9)
            way = caller.connection.short_way
            assert way is not None
            response = await caller.call(fetch_request(17, "flights", asked(0, number)), 17)
            assert values(only(response)) == [b"one"]
            assert type(caller.connection.short_way) is type(way)
        assert not taken.count

    scenario(run, tmp_path, body)


@pytest.mark.parametrize("waits", [False, True])
def test_records_that_are_not_cached_are_brought(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: Taken, waits: bool
) -> None:
    async def body(broker: DataBroker) -> None:
        follower = await in_session(broker)
        before = taken.count
        monkeypatch.setattr(broker.log_manager.reader, "read_cached", lambda _: None)
        if waits:
            follower.caller.send(follower.request(max_wait_ms=600_000), 17)
            while not broker.replicas.fetch_purgatory.delayed:
                await asyncio.sleep(0)
        await broker.produce("flights", b"one")
        if not waits:
            follower.caller.send(follower.request(), 17)
        (response,) = await follower.caller.responses(1)
        assert values(follower.take(response)[0]) == [b"one"]
        assert (taken.count - before, broker.log_manager.reader.cold_reads) == (1, 1)
        assert broker.calls.queue.queued == 0

    scenario(run, tmp_path, body)


def test_a_failure_while_it_waits_is_answered(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: Taken
) -> None:
    async def body(broker: DataBroker) -> None:
        follower = await in_session(broker)
        before = taken.count
        follower.caller.send(follower.request(max_wait_ms=600_000), 17)
        while not broker.replicas.fetch_purgatory.delayed:
            await asyncio.sleep(0)

        def fail(_: object) -> None:
            raise RuntimeError("on purpose")

        monkeypatch.setattr(broker.log_manager.reader, "read_cached", fail)
        await broker.produce("flights", b"one")
        (response,) = await follower.caller.responses(1)
        assert (taken.count - before, response.error_code) == (1, ErrorCode.UNKNOWN_SERVER_ERROR)
        assert any("has waited failed" in line for line in broker.calls.lines.lines)

    scenario(run, tmp_path, body)


def test_a_failure_at_once_ends_the_connection(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: Taken
) -> None:
    async def body(broker: DataBroker) -> None:
        follower = await in_session(broker)

        def fail(*_: object) -> None:
            raise RuntimeError("on purpose")

        monkeypatch.setattr(broker.fetches, "fetch", fail)
        with pytest.raises(RuntimeError, match="on purpose"):
            follower.caller.send(follower.request(), 17)
        assert follower.caller.transport.closed

    scenario(run, tmp_path, body)


def test_a_lost_connection_gives_up_what_waits(run: Run, tmp_path: Path, taken: Taken) -> None:
    async def body(broker: DataBroker) -> None:
        follower = await in_session(broker)
        before = taken.count
        follower.caller.send(follower.request(max_wait_ms=600_000), 17)
        while not broker.replicas.fetch_purgatory.delayed:
            await asyncio.sleep(0)
        follower.caller.transport.abort()
        assert (taken.count - before, broker.replicas.fetch_purgatory.delayed) == (1, 0)
        assert not broker.sessions.sessions[follower.session_id].parked

    scenario(run, tmp_path, body)
