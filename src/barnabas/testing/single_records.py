"""Single records in a simulated cluster: one Produce request each, to one broker, never sent again. So whoever sends
knows which broker has acknowledged what, and no late copy of a record that was acknowledged is on its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.client.admin import Admin, NewTopic
from barnabas.client.errors import ClientError
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ProduceRequest
from barnabas.wire.record_builder import RecordBatchBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barnabas.client.client import Client
    from barnabas.client.connections import Lane
    from barnabas.testing.cluster_history import RecordId
    from barnabas.wire.topics import TopicPartition

PRODUCE_TIMEOUT_MS: Final = 3_000
METADATA_MS: Final = 5_000
CREATE_MS: Final = 30_000
PARTITION_COUNT: Final = 2


class Told(NamedTuple):
    """An acknowledgement."""

    broker_id: int
    offset: int


async def make_topic(client: Client, name: str, configs: Mapping[str, str], partitions: int = PARTITION_COUNT) -> None:
    """Creates the topic; returns when it is there."""
    admin = Admin(client)
    while True:
        try:
            await admin.create_topics([NewTopic(name, partitions, 3, configs)], timeout_ms=CREATE_MS)
        except KafkaError as error:
            if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                return
            await client.timers.sleep(200)
        except ClientError:
            continue
        else:
            return


async def send_one(client: Client, lane: Lane, partition: TopicPartition, record: RecordId, acks: int) -> Told | None:
    """Sends one record to the leader that is known, once; None if it was not acknowledged."""
    builder = RecordBatchBuilder()
    builder.append(client.host.clock.time_ms(), None, record.value())
    return await send_batch(client, lane, partition, builder, acks)


async def send_batch(
    client: Client, lane: Lane, partition: TopicPartition, builder: RecordBatchBuilder, acks: int
) -> Told | None:
    """As `send_one`, a batch; what is told is the offset of its first record."""
    try:
        await client.metadata.topic(partition.topic, client.retry("sending one record", METADATA_MS))
        leader = client.cluster.leader(partition)
        if leader is not None:
            data = ProduceRequest.PartitionProduceData(index=partition.partition, records=builder.build())
            topic = ProduceRequest.TopicProduceData(name=partition.topic, partition_data=[data])
            request = ProduceRequest(acks=acks, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=[topic])
            response = await client.ask(leader[0], lane, request)
            answer = response.responses[0].partition_responses[0]
            if answer.error_code == ErrorCode.NONE:
                return Told(leader[0].node_id, answer.base_offset)
    except (ClientError, KafkaError, OSError):
        pass
    client.metadata.request_update()
    return None
