"""Somebody who asks a simulated broker for so much at once that it answers in steps, between which leaders move.

A request names thousands of partitions, which are not there, and among them those that are: what is acknowledged of
these has to stay, and what is given of them has to be committed, as in every other answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from barnabas.client.errors import ClientError
from barnabas.testing.cluster_history import Acknowledged, Consumed, RecordId
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.batch_formats import read_records
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.fetch_session import FINAL_EPOCH
from barnabas.wire.messages import FetchRequest, ProduceRequest
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.sentinels import ACKS_ALL, CONSUMER_ID, NO_EPOCH
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.cluster import BrokerNode
    from barnabas.client.connections import Lane
    from barnabas.kernel.host import Host
    from barnabas.testing.cluster_load import Users

ELEMENTS: Final = 4_000
FIRST_NUMBER: Final = 1_000_000
"""The first number of producers and consumers that send one request each."""
_FETCH_BY_NAMES: Final = 12
_WAIT_MS: Final = 300
_API_MS: Final = 10_000
_BEFORE_END_MAX: Final = 5


class LargeRequests:
    """Makes large requests, and notes in the history what came of them."""

    def __init__(
        self, users: Users, highest_seen: Callable[[TopicPartition], int], happened: Callable[[], None]
    ) -> None:
        """`highest_seen` gives a partition's high watermark; `happened` is called for each request that returned
        something.
        """
        self._users = users
        self._highest_seen = highest_seen
        self._happened = happened
        self._number = FIRST_NUMBER

    async def ask(self, host: Host) -> None:
        """One Produce or one Fetch, once: what fails is not tried again."""
        self._number += 1
        number = self._number
        load = self._users.load
        partition = TopicPartition(load.topic, host.random.randrange(load.partitions))
        ask = self._produce if host.random.random() < 0.5 else self._fetch
        with contextlib.suppress(ClientError, KafkaError, OSError):
            async with self._users.client(host) as client:
                await client.metadata.topic(load.topic, client.retry("asking for many", _API_MS))
                leader = client.cluster.leader(partition)
                if leader is not None:
                    await ask(client, leader[0], client.connections.new_lane(), number)

    async def _produce(self, client: Client, node: BrokerNode, lane: Lane, number: int) -> None:
        topic, history = self._users.load.topic, self._users.history
        data: list[ProduceRequest.PartitionProduceData] = []
        records: dict[int, RecordId] = {}
        now_ms = client.host.clock.time_ms()
        nothing = _batch(b"", now_ms)
        for index in self._indexes(client):
            batch = nothing
            if index < self._users.load.partitions:
                record = records[index] = RecordId(number, index)
                history.sent[record] = TopicPartition(topic, index)
                batch = _batch(record.value(), now_ms)
            data.append(ProduceRequest.PartitionProduceData(index=index, records=batch))
        request = ProduceRequest(
            acks=ACKS_ALL,
            timeout_ms=3_000,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=data)],
        )
        response = await client.ask(node, lane, request)
        is_taken = False
        for answer in response.responses[0].partition_responses:
            if answer.error_code == ErrorCode.NONE:
                is_taken = True
                history.acknowledged[records[answer.index]] = Acknowledged(
                    TopicPartition(topic, answer.index), answer.base_offset, self._users.now()
                )
        if is_taken:
            self._happened()

    async def _fetch(self, client: Client, node: BrokerNode, lane: Lane, number: int) -> None:
        topic, history = self._users.load.topic, self._users.history
        offsets = {
            index: max(
                0, self._highest_seen(TopicPartition(topic, index)) - client.host.random.randrange(_BEFORE_END_MAX)
            )
            for index in range(self._users.load.partitions)
        }
        partitions = [
            FetchRequest.FetchPartition(
                partition=index,
                current_leader_epoch=NO_EPOCH,
                fetch_offset=offsets.get(index, 0),
                partition_max_bytes=1 << 16,
            )
            for index in self._indexes(client)
        ]
        request = FetchRequest(
            replica_id=CONSUMER_ID,
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=FINAL_EPOCH,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=partitions)],
        )
        response = await client.ask_by_version(node, lane, ApiKey.FETCH, lambda _: request, highest=_FETCH_BY_NAMES)
        is_given = False
        for answer in response.responses[0].partitions:
            if answer.error_code != ErrorCode.NONE:
                continue
            is_given = True
            at = TopicPartition(topic, answer.partition_index)
            for record in read_records(answer.records or b""):
                if record.offset >= offsets[answer.partition_index]:
                    identity = RecordId.of_value(record.value)
                    history.consumed.append(Consumed(self._users.now(), number, at, record.offset, identity))
        if is_given:
            self._happened()

    def _indexes(self, client: Client) -> Iterator[int]:
        """The existing ones at random places among the missing ones, each once."""
        count = self._users.load.partitions
        places = dict(zip(client.host.random.sample(range(ELEMENTS), count), range(count), strict=True))
        return (places.get(place, count + place) for place in range(ELEMENTS))


def _batch(value: bytes, timestamp_ms: int) -> bytearray:
    builder = RecordBatchBuilder()
    builder.append(timestamp_ms, None, value)
    return builder.build()
