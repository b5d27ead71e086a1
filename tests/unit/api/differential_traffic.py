"""What clients and followers send in the differential test: by a seed, most of it as real clients do, some odd."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Sequence
from typing import Any, Final

from barnabas.wire import codec
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.messages import FetchRequest, ProduceRequest
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.record_conversion import down_convert
from barnabas.wire.topics import TopicPartition
from tests.unit.api.calling import Caller
from tests.unit.api.differential_world import World

LONG_MS: Final = 600_000
_TOPIC_IDS_SINCE: Final = 13
_SESSIONS_SINCE: Final = 7
_REPLICA_STATE_SINCE: Final = 15
_FLEXIBLE_FETCH_SINCE: Final = 12
_NOW_MS: Final = 1_700_000_000_000
_CODECS: Final = (CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD)


class Connected:
    """One client, on one connection at a time."""

    principal = ""

    def __init__(self, world: World, client_id: str | None, chance: random.Random) -> None:
        self.world = world
        self.client_id = client_id
        self.chance = chance
        if not self.principal:
            self.principal = f"User:{client_id}"
        self._numbers = itertools.count(1)
        self.caller: Caller
        self.connect()

    def connect(self) -> None:
        """Anew, with nothing left of the former connection."""
        self.caller = self.world.broker.connect(self.client_id)
        self.caller.connection.principal = self.principal

    def encode(self, key: ApiKey, version: int, request: Any) -> bytes:
        return b"".join(codec.request_encoder(key, version, self.client_id)(next(self._numbers), request))

    def take(self) -> bytes:
        """What has come since, and whether the connection is over; then there is another."""
        found = bytes(self.caller.transport.written)
        self.caller.transport.written.clear()
        if self.caller.transport.closed:
            found += b" and closed"
            self.connect()
        return found


class Producer(Connected):
    """Sends what a producer sends, idempotent or not, and what none should."""

    def __init__(self, world: World, client_id: str | None, chance: random.Random, number: int) -> None:
        # One client id may be of several principals.
        self.principal = f"User:producer-{number}"
        super().__init__(world, client_id, chance)
        self.version = chance.choice((3, 7, 8, 9, 10, 11, 11, 11))
        self._producer_id = 100 + number
        self._producer_epoch = 0
        self._sequences: dict[TopicPartition, int] = {}
        self._sent: dict[TopicPartition, bytes] = {}

    @property
    def is_limited(self) -> bool:
        """It has a quota, of which the fast path counts all requests of one poll together: it sends one in each."""
        return self.principal.removeprefix("User:") in self.world.limited

    def usual(self, topic_partition: TopicPartition, acks: int, size_bytes: int, version: int) -> bytes:
        """A request of one record, like others of the same arguments but for its value."""
        value = b"%08x" % self.chance.getrandbits(32)
        return self._request(topic_partition, built([value.ljust(size_bytes, b".")]), acks, LONG_MS, version)

    def frames(self, partitions: Sequence[TopicPartition], count: int, *, only_small: bool = False) -> list[bytes]:
        """So many, one behind the other. One without an answer is the only one, or is good: one that fails ends the
        connection, and then answers to those before it may have left or not, and those behind it be appended or not.
        """
        chance = self.chance
        count = 1 if self.is_limited else count
        found = [self.frame(partitions, may_be_silent=count == 1, only_small=only_small) for _ in range(count)]
        world = self.world
        led = [each for each in partitions if world.is_led(each) and world.may_write(self.principal, each)]
        if count > 1 and led and not only_small and chance.random() < 0.3:
            found.insert(chance.randint(0, count), self.usual(chance.choice(led), 0, 16, self.version))
        return found

    def frame(
        self, partitions: Sequence[TopicPartition], *, may_be_silent: bool = False, only_small: bool = False
    ) -> bytes:
        """For one of the partitions, or several of them."""
        chance = self.chance
        topic_partition = chance.choice(partitions)
        acks = chance.choice((1, 1, 1, -1, -1, 0 if may_be_silent else 1))
        timeout_ms = chance.choice((80, LONG_MS, LONG_MS))
        oddity = 1.0 if only_small else chance.random()
        if oddity < 0.08:
            return self._old(topic_partition, acks, timeout_ms)
        if oddity < 0.2:
            return self._to_several(partitions, acks, timeout_ms)
        if oddity < 0.24:
            return self._nowhere(acks, timeout_ms)
        if oddity < 0.27:
            return self._request(topic_partition, self._records(topic_partition), 2, timeout_ms)
        if oddity < 0.32:
            records = built([b"in a transaction"], producer_id=77, base_sequence=0, is_transactional=True)
            transactional_id = chance.choice((None, "transaction"))
            return self._request(topic_partition, records, acks, timeout_ms, transactional_id=transactional_id)
        if oddity < 0.42:
            return self._request(topic_partition, self._malformed(topic_partition), acks or 1, timeout_ms)
        records = self._records(topic_partition, only_small=only_small)
        return self._request(topic_partition, records, acks, timeout_ms)

    def _records(self, topic_partition: TopicPartition, *, only_small: bool = False) -> bytes:
        chance = self.chance
        kind = chance.random()
        if kind < 0.35:
            return self._idempotent(topic_partition)
        size_bytes = chance.choice((10, 10, 100, 1500) if only_small else (10, 10, 100, 3000, 20_000))
        values = [chance.randbytes(8).ljust(size_bytes, b"v") for _ in range(chance.choice((1, 1, 1, 3)))]
        compression = chance.choice(_CODECS) if kind > 0.8 and not only_small else CompressionType.NONE
        return built(values, compression=compression)

    def _idempotent(self, topic_partition: TopicPartition) -> bytes:
        """Next in sequence mostly; the same again, with a gap, or of another epoch."""
        chance = self.chance
        kind = chance.random()
        if kind < 0.1 and topic_partition in self._sent:
            return self._sent[topic_partition]
        if kind < 0.15:
            self._producer_epoch += 1
            self._sequences.clear()
        sequence = self._sequences.get(topic_partition, 0)
        count = chance.choice((1, 1, 2))
        if kind > 0.95:
            sequence += 5
        else:
            self._sequences[topic_partition] = sequence + count
        values = [b"%010d" % (sequence + number) for number in range(count)]
        epoch = self._producer_epoch - (0.9 < kind < 0.93 and self._producer_epoch > 0)
        records = built(values, producer_id=self._producer_id, producer_epoch=epoch, base_sequence=sequence)
        self._sent[topic_partition] = records
        return records

    def _malformed(self, topic_partition: TopicPartition) -> bytes | None:
        chance = self.chance
        records = bytearray(self._records(topic_partition))
        match chance.randrange(11):
            case 0:
                records[-1] ^= 1
            case 1:
                records[16] = chance.choice((0, 1, 3))  # magic
            case 2:
                records += self._records(topic_partition)
            case 3:
                del records[chance.randrange(len(records)) :]
            case 4:
                records[22] ^= 0x20  # says that it is a control batch
            case 5:
                records[8:12] = struct.pack(">i", chance.choice((0, 13, len(records), 1 << 30)))
            case 6:
                return built([b"x"], timestamp_ms=1 << 50)
            case 7:
                return built([bytes(40_000)])
            case 8:
                records[57:61] = struct.pack(">i", 7)  # count of records
            case 9:
                return built([b"x"], producer_id=self._producer_id, producer_epoch=0, base_sequence=0)[:-3]
            case _:
                return chance.choice((b"", None))
        return bytes(records)

    def _old(self, topic_partition: TopicPartition, acks: int, timeout_ms: int) -> bytes:
        """In a version of before there were batches."""
        version = self.chance.choice((0, 1, 2))
        values = [self.chance.randbytes(5) for _ in range(self.chance.choice((1, 2)))]
        records = bytes(down_convert(built(values), min(version, 1)).data)
        return self._request(topic_partition, records, acks, timeout_ms, version)

    def _to_several(self, partitions: Sequence[TopicPartition], acks: int, timeout_ms: int) -> bytes:
        """Partitions of several topics, perhaps one of them twice."""
        chance = self.chance
        named = chance.choices(partitions, k=chance.choice((2, 2, 3, 5)))
        request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[])
        for name, group in itertools.groupby(named, lambda each: each.topic):
            data = [
                ProduceRequest.PartitionProduceData(index=each.partition, records=self._some(each)) for each in group
            ]
            request.topic_data.append(ProduceRequest.TopicProduceData(name=name, partition_data=data))
        return self.encode(ApiKey.PRODUCE, self.version, request)

    def _some(self, topic_partition: TopicPartition) -> bytes | None:
        return self._malformed(topic_partition) if self.chance.random() < 0.1 else self._records(topic_partition)

    def _nowhere(self, acks: int, timeout_ms: int) -> bytes:
        name, number = self.chance.choice((("nowhere", 0), ("flights", 9), ("flights", -1), ("", 0)))
        return self._request(TopicPartition(name, number), built([b"x"]), acks, timeout_ms)

    def _request(
        self,
        topic_partition: TopicPartition,
        records: bytes | None,
        acks: int,
        timeout_ms: int,
        version: int | None = None,
        transactional_id: str | None = None,
    ) -> bytes:
        data = ProduceRequest.PartitionProduceData(index=topic_partition.partition, records=records)
        topic = ProduceRequest.TopicProduceData(name=topic_partition.topic, partition_data=[data])
        if version is None:
            version = self.chance.randint(3, 11) if self.chance.random() < 0.15 else self.version
        request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic])
        if version >= 3:
            request.transactional_id = transactional_id
        return self.encode(ApiKey.PRODUCE, version, request)


class Fetcher(Connected):
    """A consumer, or a follower, in a session or without one."""

    def __init__(self, world: World, chance: random.Random, follower_id: int = -1) -> None:
        self.follower_id = follower_id
        self.is_follower = follower_id >= 0
        usual = (15, 16, 17) if self.is_follower else (11, 11, 12, 14, 17, 17)
        self.version = chance.choice((*usual, *usual, chance.randrange(18)))
        self.broker_epoch = 5
        self._forget()
        self.principal = "User:broker" if self.is_follower else "User:consumer"
        name = f"broker-{follower_id}-fetcher-0" if self.is_follower else f"consumer-{self.version}"
        super().__init__(world, name, chance)

    def _forget(self) -> None:
        self.session_id = 0
        self.epoch = -1
        self._named: dict[TopicPartition, None] = {}
        self.unanswered = 0

    def connect(self) -> None:
        super().connect()
        self._forget()

    def take(self) -> bytes:
        """As it is, and learns of its session."""
        found = super().take()
        position = 0
        while position + 4 <= len(found) and not found.startswith(b" and closed", position):
            self._understand(found, position)
            position += 4 + int.from_bytes(found[position : position + 4], "big")
        return found

    def _understand(self, found: bytes, position: int) -> None:
        self.unanswered -= 1
        if self.version < _SESSIONS_SINCE:
            return
        start = position + 8 + (self.version >= _FLEXIBLE_FETCH_SINCE) + 4
        code, session_id = struct.unpack_from(">hi", found, start)
        if code or not session_id:
            self.session_id, self.epoch = 0, -1
        else:
            self.session_id = session_id
            self.epoch += 1

    def frame(self, partitions: Sequence[TopicPartition], *, is_in_session: bool = True) -> bytes:
        """Asks for some of the partitions; where it has a session, also for those that this has."""
        chance = self.chance
        oddity = chance.random()
        if not is_in_session:
            self.session_id, self.epoch = 0, -1
        elif self.epoch <= 0:
            self.epoch = chance.choice((-1, 0) if not self.is_follower else (0, 0, 0, -1))
        named = chance.sample(list(partitions), min(len(partitions), chance.choice((1, 1, 2, 4))))
        if self.epoch > 0 and chance.random() < 0.4:
            named = []
        if self.is_follower and self.epoch <= 0:
            named = list(partitions)
        if oddity < 0.04 and named:
            named.append(named[0])
        request = FetchRequest(
            max_wait_ms=chance.choice((0, 0, 100, LONG_MS)),
            min_bytes=chance.choice((1, 1, 1, 0, 300)),
            topics=self._topics(named),
        )
        if self.version >= 3:
            request.max_bytes = chance.choice((1, 700, 10_000, 10 << 20))
        if self.version >= 4:
            request.isolation_level = chance.choice((0, 1, 1, 2 if oddity > 0.98 else 0))
        if self.version >= _SESSIONS_SINCE:
            request.session_id = self.session_id + (is_in_session and 0.1 < oddity < 0.12)
            request.session_epoch = self.epoch + (is_in_session and 0.12 < oddity < 0.14)
            if 0.14 < oddity < 0.2 and self._named and self.epoch > 0:
                request.forgotten_topics_data = [self._forgotten(chance.choice(list(self._named)))]
        if self.version >= 11 and 0.2 < oddity < 0.23:
            request.rack_id = "rack"
        self._add_replica(request)
        self.unanswered += 1
        self._named.update(dict.fromkeys(named))
        return self.encode(ApiKey.FETCH, self.version, request)

    def begin_session(self) -> None:
        """The next request begins one in place of that which it has, if it has any."""
        self.epoch = 0
        self._named.clear()

    def keep_up(self, partitions: Sequence[TopicPartition], max_wait_ms: int) -> bytes:
        """As a follower asks that has caught up, with the same limits each time: for what it has not asked for yet, or
        of which something has come since.
        """
        request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=10_000)
        request.topics = self._topics(partitions, limit_bytes=5_000)
        request.session_id, request.session_epoch = self.session_id, self.epoch
        request.replica_state = FetchRequest.ReplicaState(replica_id=self.follower_id, replica_epoch=self.broker_epoch)
        self.unanswered += 1
        self._named.update(dict.fromkeys(partitions))
        return self.encode(ApiKey.FETCH, self.version, request)

    def _add_replica(self, request: FetchRequest) -> None:
        odd = self.chance.random()
        self.broker_epoch += self.is_follower and odd < 0.03
        follower_id = 9 if self.is_follower and odd > 0.98 else self.follower_id
        if self.version >= _REPLICA_STATE_SINCE:
            epoch = self.broker_epoch - (0.96 < odd < 0.98) if self.is_follower else -1
            request.replica_state = FetchRequest.ReplicaState(replica_id=follower_id, replica_epoch=epoch)
        else:
            request.replica_id = follower_id

    def _forgotten(self, topic_partition: TopicPartition) -> FetchRequest.ForgottenTopic:
        name, number = topic_partition
        if self.version >= _TOPIC_IDS_SINCE:
            return FetchRequest.ForgottenTopic(topic_id=self.world.topic_id(name), partitions=[number])
        return FetchRequest.ForgottenTopic(topic=name, partitions=[number])

    def _topics(self, named: Sequence[TopicPartition], limit_bytes: int | None = None) -> list[FetchRequest.FetchTopic]:
        found = []
        for name, group in itertools.groupby(named, lambda each: each.topic):
            topic_name = "nobody" if limit_bytes is None and self.chance.random() < 0.02 else name
            topic = FetchRequest.FetchTopic(partitions=[self._partition(each, limit_bytes) for each in group])
            if self.version >= _TOPIC_IDS_SINCE:
                topic.topic_id = self.world.topic_id(topic_name)
            else:
                topic.topic = topic_name
            found.append(topic)
        return found

    def _partition(
        self, topic_partition: TopicPartition, limit_bytes: int | None = None
    ) -> FetchRequest.FetchPartition:
        """From where there is something, mostly; a follower says by that how far it is."""
        chance = self.chance
        odd = 0.5 if limit_bytes is not None and chance.random() < 0.9 else chance.random()
        partition = self.world.broker.replicas.find_partition(topic_partition)
        start = high_watermark = end = 0
        leader_epoch, last_epoch = 0, -1
        if partition is not None and partition.log is not None:
            log = partition.log
            start, high_watermark, end = log.log_start_offset, log.high_watermark, log.log_end_offset
            leader_epoch = partition.leader_epoch
            last_epoch = leader_epoch if log.latest_epoch is None else log.latest_epoch
        offsets: tuple[int, ...] = (
            (end, end, end, high_watermark) if self.is_follower else (start, high_watermark, end, end)
        )
        if topic_partition in self.world.aborted and not self.is_follower:
            offsets = (start, start, start, high_watermark)
        if limit_bytes is not None:
            offsets = (end,) * 30
        offset = chance.choice((*offsets, chance.randint(min(start, end), end))) + (3 if odd < 0.03 else 0)
        asked = FetchRequest.FetchPartition(
            partition=topic_partition.partition + (7 if odd > 0.99 else 0),
            fetch_offset=offset,
            partition_max_bytes=limit_bytes or chance.choice((100, 5_000, 1 << 20)),
        )
        if self.version >= 5 and self.is_follower:
            asked.log_start_offset = 0 if limit_bytes is not None else chance.choice((0, 0, 0, 1))
        if self.version >= 9 and (self.is_follower or odd < 0.5):
            asked.current_leader_epoch = leader_epoch + (0.03 < odd < 0.06) - (0.06 < odd < 0.09)
        if self.version >= 12 and (self.is_follower or odd < 0.3):
            asked.last_fetched_epoch = last_epoch + (0.09 < odd < 0.12) - (0.12 < odd < 0.15)
        return asked


def built(
    values: Sequence[bytes],
    *,
    timestamp_ms: int = _NOW_MS,
    compression: CompressionType = CompressionType.NONE,
    producer_epoch: int = 0,
    **fields: Any,
) -> bytes:
    """One batch."""
    if "producer_id" in fields:
        fields["producer_epoch"] = producer_epoch
    builder = RecordBatchBuilder(compression=Compression(compression), **fields)
    for value in values:
        builder.append(timestamp_ms, None, value)
    return bytes(builder.build())
