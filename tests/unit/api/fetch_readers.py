"""Followers and consumers that ask a broker for what comes next, or for something odd, by a seed."""

from __future__ import annotations

import itertools
import random
import struct
from typing import Any

from barnabas.wire import codec
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import FetchRequest, FetchResponse
from barnabas.wire.topics import TopicPartition
from tests.unit.api.data_broker import DataBroker, topic_id

TOPICS = ("flights", "trains")
PARTITIONS = tuple((topic, number) for topic in TOPICS for number in range(3))
LONG_MS = 600_000


class Follower:
    """A fetcher that keeps in step with what it is answered, mostly."""

    def __init__(self, broker: DataBroker, follower_id: int, chance: random.Random, *, is_steady: bool = False) -> None:
        """A steady one follows one partition, or few, with the same settings, and does odd things rarely."""
        self.broker = broker
        self.is_steady = is_steady
        self._wait_ms = chance.choice((100, LONG_MS))
        self.follower_id = follower_id
        self.version = chance.choice((15, 16, 17))
        self._chance = chance
        self._correlation_ids = itertools.count(1)
        self.frames: list[bytes] = []
        """All that it was ever answered."""
        self.broker_epoch = 5
        self._connect()

    def _connect(self) -> None:
        self.caller = self.broker.connect(f"broker-{self.follower_id}-fetcher-0")
        self.session_id = self.epoch = 0
        followed = self._chance.sample(PARTITIONS, 4)
        if self.is_steady:
            followed = [PARTITIONS[0], *followed[: self._chance.choice((0, 0, 1))]]
        self.offsets = dict.fromkeys(followed, (0, -1))
        self.news: set[tuple[str, int]] = set()
        self.is_parked = False

    def fetch(self) -> None:
        """Asks for what is next, or for something odd."""
        chance = self._chance
        session_id, epoch = self.session_id, self.epoch
        oddity = chance.random() * (10 if self.is_steady else 1)
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
            new = chance.choice(PARTITIONS)
            self.offsets.setdefault(new, (0, -1))
            named.add(new)
        elif oddity < 0.13:
            options["rack_id"] = "rack"
        elif oddity < 0.2 and epoch > 0:
            named |= set(chance.sample(sorted(self.offsets), 1))
        request = FetchRequest(
            max_wait_ms=self._wait_ms if self.is_steady else chance.choice((0, 100, 100, LONG_MS)),
            min_bytes=1 if self.is_steady else chance.choice((1, 1, 1, 300)),
            max_bytes=10 << 20 if self.is_steady else chance.choice((1, 10_000, 10 << 20)),
            session_id=session_id,
            session_epoch=epoch,
            topics=self._topics(sorted(named)),
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic_id=topic_id(topic), partitions=[number])
                for topic, number in forgotten
            ],
            replica_state=FetchRequest.ReplicaState(
                replica_id=self.follower_id if self._is_usual(0.99) else 9, replica_epoch=self._broker_epoch(chance)
            ),
            **options,
        )
        self.news.clear()
        self._send(request)

    def _is_usual(self, probability: float) -> bool:
        """True with that probability, or nearly always."""
        return self._chance.random() < (1 - (1 - probability) / 10 if self.is_steady else probability)

    def _broker_epoch(self, chance: random.Random) -> int:
        """Mostly as before; it may have registered anew, and a request of before may come late."""
        odd = 0.5 if self.is_steady and self._is_usual(0.9) else chance.random()
        self.broker_epoch += odd < 0.03
        return self.broker_epoch - (odd > 0.99)

    def _topics(self, named: list[tuple[str, int]]) -> list[FetchRequest.FetchTopic]:
        topics = []
        for topic, group in itertools.groupby(named, lambda partition: partition[0]):
            entry = FetchRequest.FetchTopic(topic_id=topic_id(topic))
            for _, number in group:
                offset, last_epoch = self.offsets[topic, number]
                odd = 0.5 if self.is_steady and self._is_usual(0.6) else self._chance.random()
                partition = self.broker.replicas.find_partition(TopicPartition(topic, number))
                entry.partitions.append(
                    FetchRequest.FetchPartition(
                        partition=number,
                        current_leader_epoch=(partition.leader_epoch if partition else 0) + (odd < 0.03) - (odd > 0.97),
                        fetch_offset=offset + (3 if 0.03 < odd < 0.06 else 0),
                        last_fetched_epoch=last_epoch + (1 if 0.06 < odd < 0.1 else 0),
                        log_start_offset=self._chance.choice((0, 0, 0, 1)),
                        partition_max_bytes=5_000 if self.is_steady else self._chance.choice((100, 5_000, 1 << 20)),
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
        names = {topic_id(topic): topic for topic in TOPICS}
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
        self._offsets: dict[tuple[str, int], int] = dict.fromkeys(PARTITIONS, 0)
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
        named = chance.sample(PARTITIONS, chance.choice((1, 1, 2, 4)))
        if self.epoch <= 0:
            self.epoch = chance.choice((-1, -1, -1, 0))
        request = FetchRequest(
            max_wait_ms=chance.choice((0, 0, 100, LONG_MS)),
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
            names = {topic_id(topic): topic for topic in TOPICS}
            for topic in response.responses:
                for each in topic.partitions:
                    partition = topic.topic or names.get(topic.topic_id), each.partition_index
                    if partition in self._offsets and each.records and self._chance.random() < 0.7:
                        found = end_of(bytes(each.records))
                        self._offsets[partition] = found[0] if found is not None else self._offsets[partition]
