"""What the client must do against any cluster of the Kafka protocol: run against Apache Kafka and against Barnabas."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from barnabas.client.admin import Admin, ConfigOperation, NewTopic, ResourceType
from barnabas.client.assignors import COOPERATIVE_STICKY, RANGE, ROUND_ROBIN, Assignor
from barnabas.client.client import Client
from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientTimeoutError, NoOffsetError
from barnabas.client.partitioners import partition_of_key
from barnabas.client.producer import Producer
from barnabas.client.records import ConsumerRecord, OffsetAndMetadata, ProducerRecord
from barnabas.client.settings import ClientSettings, ConsumerSettings, OffsetReset, ProducerSettings
from barnabas.kernel.real_host import real_host
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_columns import RecordShape, ValueColumn
from barnabas.wire.topics import TopicPartition

Run = Callable[[Coroutine[Any, Any, Any]], Any]
_numbers = itertools.count()


def fresh(what: str) -> str:
    """A name that no other test of this process has."""
    return f"client-{what}-{next(_numbers)}"


@contextlib.asynccontextmanager
async def client_of(bootstrap: str) -> AsyncIterator[Client]:
    # A member that asked a broker which had not heard of a topic yet looks again at the next refresh.
    settings = ClientSettings(bootstrap_servers=(bootstrap,), metadata_max_age_ms=500)
    async with (
        real_host("client", asyncio.get_running_loop()) as host,
        Client(host, settings, logging.getLogger("client")) as client,
    ):
        yield client


async def created_topic(client: Client, what: str, partitions: int = 1, **configs: str) -> str:
    name = fresh(what)
    async with Admin(client) as admin:
        await admin.create_topics([NewTopic(name, partitions, -1, configs)])
    return name


async def poll_until(consumer: Consumer, count: int, seconds: float = 30) -> list[ConsumerRecord]:
    """Polls until so many records have come."""
    found: list[ConsumerRecord] = []
    async with asyncio.timeout(seconds):
        while len(found) < count:
            found += await consumer.poll(1_000)
    return found


async def produce(client: Client, topic: str, values: list[bytes], partition: int | None = 0) -> list[int]:
    async with Producer(client, ProducerSettings(linger_ms=5)) as producer:
        futures = [await producer.send(ProducerRecord(topic, value, partition=partition)) for value in values]
        return [(await future).offset for future in futures]


class ToldOffsets:
    """Puts the offsets of the values of a column into a dictionary, where a value is not empty."""

    def __init__(self, values: list[bytes], offsets: dict[bytes, int]) -> None:
        self.values = values
        self.offsets = offsets

    def written(self, first: int, count: int, _partition: TopicPartition, base_offset: int) -> None:
        for place, value in enumerate(self.values[first : first + count]):
            if value:
                self.offsets[value] = base_offset + place

    def failed(self, _first: int, _count: int, error: Exception) -> None:
        raise AssertionError(error)


class ClientSuite:
    """Subclasses have a fixture `bootstrap`: host:port of a broker. Topics get the brokers' default replication."""

    @pytest.mark.parametrize("codec", list(CompressionType), ids=lambda codec: codec.name.lower())
    def test_what_is_produced_with_any_codec_is_read(self, run: Run, bootstrap: str, codec: CompressionType) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic = await created_topic(client, "codec", 3)
                settings = ProducerSettings(compression=Compression(codec), linger_ms=2)
                sent = [
                    ProducerRecord(
                        topic,
                        None if number % 7 == 0 else b"value %d " % number * 20,
                        key=b"key %d" % (number % 10),
                        headers=((b"number", b"%d" % number), (b"none", None)),
                        timestamp_ms=1_700_000_000_000 + number,
                    )
                    for number in range(500)
                ]
                async with Producer(client, settings) as producer:
                    metadata = await asyncio.gather(*[await producer.send(record) for record in sent])
                partitions = [TopicPartition(topic, number) for number in range(3)]
                async with Consumer(client, ConsumerSettings(offset_reset=OffsetReset.EARLIEST)) as consumer:
                    consumer.assign(partitions)
                    read = await poll_until(consumer, len(sent))
                by_place = {(record.partition, record.offset): record for record in read}
                assert len(by_place) == len(sent)
                for record, place in zip(sent, metadata, strict=True):
                    assert place.partition.partition == partition_of_key(record.key or b"", 3)
                    got = by_place[place.partition, place.offset]
                    assert (got.key, got.value, got.headers) == (record.key, record.value, record.headers)
                    assert got.timestamp_ms == record.timestamp_ms == place.timestamp_ms
                    assert got.leader_epoch >= 0

        run(main())

    @pytest.mark.parametrize("acks", [0, 1, -1])
    def test_produces_without_idempotence(self, run: Run, bootstrap: str, acks: int) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic = await created_topic(client, "acks")
                partition = TopicPartition(topic, 0)
                async with Producer(client, ProducerSettings(acks=acks, idempotent=False)) as producer:
                    futures = [await producer.send(ProducerRecord(topic, b"%d" % number)) for number in range(100)]
                    offsets = [(await future).offset for future in futures]
                    assert offsets == ([-1] * 100 if acks == 0 else list(range(100)))
                    async with Consumer(client, ConsumerSettings(offset_reset=OffsetReset.EARLIEST)) as consumer:
                        consumer.assign([partition])
                        read = await poll_until(consumer, 100)
                assert [record.value for record in read] == [b"%d" % number for number in range(100)]

        run(main())

    def test_idempotent_batches_keep_their_order_with_five_in_flight(self, run: Run, bootstrap: str) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic = await created_topic(client, "order", 2)
                async with Producer(client, ProducerSettings(batch_bytes=200)) as producer:
                    futures = []
                    for number in range(2_000):
                        record = ProducerRecord(topic, b"%d" % number, partition=number % 2)
                        futures.append(await producer.send(record))
                    offsets = [(await future).offset for future in futures]
                assert offsets == [number // 2 for number in range(2_000)]
                assert producer.buffered_bytes == 0

        run(main())

    def test_a_batch_that_is_too_large_for_the_topic_is_split(self, run: Run, bootstrap: str) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic = await created_topic(client, "split", 1, **{"max.message.bytes": "3000"})
                values = [b"%03d" % number + bytes(500) for number in range(40)]
                async with Producer(client, ProducerSettings(batch_bytes=20_000, linger_ms=50)) as producer:
                    futures = [await producer.send(ProducerRecord(topic, value)) for value in values]
                    assert [(await future).offset for future in futures] == list(range(40))
                    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                        await producer.send_and_wait(ProducerRecord(topic, bytes(5_000)))
                    assert (await producer.send_and_wait(ProducerRecord(topic, b"after"))).offset == 40
                async with Consumer(client, ConsumerSettings(offset_reset=OffsetReset.EARLIEST)) as consumer:
                    consumer.assign([TopicPartition(topic, 0)])
                    read = await poll_until(consumer, 41)
                assert [record.value for record in read] == [*values, b"after"]

        run(main())

    @pytest.mark.parametrize(
        "codec", [CompressionType.NONE, CompressionType.ZSTD], ids=lambda codec: codec.name.lower()
    )
    def test_columns_are_written_in_order_between_other_records(
        self, run: Run, bootstrap: str, codec: CompressionType
    ) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic = await created_topic(client, "columns")
                shape = RecordShape(b"key", ((b"header", b"value"),))
                settings = ProducerSettings(batch_bytes=4_000, compression=Compression(codec))
                offsets: dict[bytes, int] = {}
                sent: list[bytes] = []
                async with Producer(client, settings) as producer:
                    for step in range(30):
                        values = [b"%d of %d" % (number, step) * (number % 9) for number in range(step * 5 + 1)]
                        await producer.send_column(topic, ValueColumn(shape, values), ToldOffsets(values, offsets), 0)
                        sent += [*values, b"alone %d" % step]
                        await producer.send(ProducerRecord(topic, b"alone %d" % step, b"key", partition=0))
                    await producer.flush()
                    assert producer.buffered_bytes == 0
                found: list[bytes | None] = []
                async with Consumer(client, ConsumerSettings(offset_reset=OffsetReset.EARLIEST)) as consumer:
                    consumer.assign([TopicPartition(topic, 0)])
                    read = await poll_until(consumer, len(sent))
                    consumer.seek_to_beginning()
                    async with asyncio.timeout(60):
                        while len(found) < len(sent):
                            for column in await consumer.poll_columns(1_000, 70):
                                assert column.keys == [b"key"] * len(column) or column.keys == (b"key",) * len(column)
                                assert column.offset == len(found)
                                found += column.values
                assert [record.value for record in read] == found == sent
                assert {record.key for record in read} == {b"key"}
                for record in read:
                    assert record.headers == (((b"header", b"value"),) if b"alone" not in (record.value or b"") else ())
                    assert offsets.get(record.value or b"x", record.offset) == record.offset

        run(main())

    def test_what_cannot_be_sent_is_refused_with_the_reason(self, run: Run, bootstrap: str) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic = await created_topic(client, "refused")
                async with Producer(client, ProducerSettings(max_block_ms=60_000)) as producer:
                    with pytest.raises(KafkaError, match="partitions 0 to 0, not 7"):
                        await producer.send(ProducerRecord(topic, b"", partition=7))
                    with pytest.raises(KafkaError, match="request_bytes_max"):
                        await producer.send(ProducerRecord(topic, bytes(2_000_000)))
                    with pytest.raises(KafkaError, match="INVALID_TOPIC"):
                        await producer.send(ProducerRecord("not allowed", b""))
                async with Producer(client, ProducerSettings(max_block_ms=500)) as hurried:
                    with pytest.raises(ClientTimeoutError, match="finding topic"):
                        await hurried.send(ProducerRecord(fresh("missing"), b""))

        run(main())

    def test_seeks_by_offset_and_by_time_and_tells_both_ends(self, run: Run, bootstrap: str) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic = await created_topic(client, "seek", 2)
                partition, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
                async with Producer(client) as producer:
                    for number in range(100):
                        await producer.send(
                            ProducerRecord(topic, b"%d" % number, partition=0, timestamp_ms=1_000_000 + number * 10)
                        )
                async with Consumer(client, ConsumerSettings(offset_reset=OffsetReset.NONE)) as consumer:
                    consumer.assign([partition, empty])
                    with pytest.raises(NoOffsetError, match="have no position"):
                        await consumer.poll(5_000)
                    assert await consumer.beginning_offsets([partition, empty]) == {partition: 0, empty: 0}
                    assert await consumer.end_offsets([partition, empty]) == {partition: 100, empty: 0}
                    found = await consumer.offsets_for_times({partition: 1_000_495, empty: 0})
                    place = found[partition]
                    assert place is not None
                    assert (place.offset, place.timestamp_ms) == (50, 1_000_500)
                    assert found[empty] is None
                    assert (await consumer.offsets_for_times({partition: 2_000_000}))[partition] is None
                    consumer.seek(partition, place.offset)
                    consumer.seek_to_end(empty)
                    read = await poll_until(consumer, 50)
                    assert [record.offset for record in read] == list(range(50, 100))
                    assert await consumer.position(partition) == 100
                    assert await consumer.position(empty) == 0
                    assert consumer.high_watermark(partition) == 100
                    consumer.seek_to_beginning(partition)
                    assert await consumer.position(partition) == 0
                    assert len(await consumer.poll(10_000, records_max=3)) == 3
                    assert await consumer.position(partition) == 3
                    consumer.pause(partition)
                    assert await consumer.poll(300) == []
                    consumer.resume(partition)
                    assert len(await poll_until(consumer, 97)) == 97
                    consumer.seek(partition, 5_000)
                    with pytest.raises(NoOffsetError, match="offset 5000 is out of range"):
                        await poll_until(consumer, 1)
                    consumer.seek(partition, 99)
                    assert [record.offset for record in await poll_until(consumer, 1)] == [99]

        run(main())

    def test_an_offset_out_of_range_is_reset(self, run: Run, bootstrap: str) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic = await created_topic(client, "range")
                partition = TopicPartition(topic, 0)
                await produce(client, topic, [b"%d" % number for number in range(10)])
                async with Admin(client) as admin:
                    assert await admin.delete_records({partition: 4}) == {partition: 4}
                async with Consumer(client, ConsumerSettings(offset_reset=OffsetReset.EARLIEST)) as consumer:
                    consumer.assign([partition])
                    consumer.seek(partition, 2)
                    assert [record.offset for record in await poll_until(consumer, 6)] == list(range(4, 10))

        run(main())

    def test_commits_are_there_for_the_next_consumer(self, run: Run, bootstrap: str) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic = await created_topic(client, "commit")
                partition = TopicPartition(topic, 0)
                await produce(client, topic, [b"%d" % number for number in range(10)])
                group_id = fresh("group")
                settings = ConsumerSettings(group_id=group_id, auto_commit=False, offset_reset=OffsetReset.EARLIEST)
                committed: list[Any] = []
                async with Consumer(client, settings, on_committed=committed.append) as consumer:
                    consumer.subscribe([topic])
                    await poll_until(consumer, 10)
                    await consumer.commit({partition: OffsetAndMetadata(4, 0, "so far")})
                    assert (await consumer.committed([partition]))[partition] == OffsetAndMetadata(4, 0, "so far")
                    assert committed == [{partition: OffsetAndMetadata(4, 0, "so far")}]
                async with Consumer(client, settings) as consumer:
                    consumer.subscribe([topic])
                    assert [record.offset for record in await poll_until(consumer, 6)] == list(range(4, 10))
                    await consumer.commit()
                async with Admin(client) as admin:
                    offsets = await admin.list_group_offsets(group_id)
                    assert offsets[partition].offset == 10
                    await admin.alter_group_offsets(group_id, {partition: OffsetAndMetadata(7)})
                    assert (await admin.list_group_offsets(group_id, [partition]))[partition].offset == 7
                    await admin.delete_group_offsets(group_id, [partition])
                    assert await admin.list_group_offsets(group_id) == {}

        run(main())

    @pytest.mark.parametrize("assignor", [RANGE, ROUND_ROBIN, COOPERATIVE_STICKY], ids=lambda one: one.name)
    def test_members_share_partitions_and_take_over_from_one_that_leaves(
        self, run: Run, bootstrap: str, assignor: Assignor
    ) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic = await created_topic(client, "share", 4)
                partitions = {TopicPartition(topic, number) for number in range(4)}
                group_id = fresh("group")
                settings = ConsumerSettings(
                    group_id=group_id,
                    assignors=(assignor,),
                    offset_reset=OffsetReset.EARLIEST,
                    heartbeat_interval_ms=200,
                    session_timeout_ms=6_000,
                )
                read: dict[tuple[TopicPartition, int], int] = {}

                async def keep_polling(consumer: Consumer) -> None:
                    while True:
                        for record in await consumer.poll(200):
                            place = (record.partition, record.offset)
                            read[place] = read.get(place, 0) + 1

                first, second = Consumer(client, settings), Consumer(client, settings)
                polling = []
                try:
                    first.subscribe([topic])
                    polling.append(asyncio.ensure_future(keep_polling(first)))
                    await _until(lambda: set(first.assignment) == partitions)
                    second.subscribe([topic])
                    polling.append(asyncio.ensure_future(keep_polling(second)))
                    await _until(lambda: len(first.assignment) == len(second.assignment) == 2)
                    assert set(first.assignment) | set(second.assignment) == partitions
                    for number in range(4):
                        await produce(client, topic, [b"x"] * 25, number)
                    await _until(lambda: len(read) == 100)
                    async with Admin(client) as admin:
                        description = await admin.describe_group(group_id)
                        assert (description.state, description.protocol) == ("Stable", assignor.name)
                        assert sorted(len(member.assignment) for member in description.members) == [2, 2]
                        listed = {group.group_id: group for group in await admin.list_groups()}
                        assert listed[group_id].state == "Stable"
                        polling.pop().cancel()
                        await second.close()
                        await _until(lambda: set(first.assignment) == partitions)
                        polling.pop().cancel()
                        await first.close()
                        assert sum(place.offset for place in (await admin.list_group_offsets(group_id)).values()) == 100
                        await admin.delete_group(group_id)
                        assert group_id not in {group.group_id for group in await admin.list_groups()}
                    assert set(read.values()) == {1}
                finally:
                    for task in polling:
                        task.cancel()
                    await first.close()
                    await second.close()

        run(main())

    def test_a_static_member_keeps_its_partitions_through_a_restart(self, run: Run, bootstrap: str) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic = await created_topic(client, "static", 2)
                settings = ConsumerSettings(group_id=fresh("group"), group_instance_id="one", session_timeout_ms=10_000)
                async with Consumer(client, settings) as consumer:
                    consumer.subscribe([topic])
                    async with asyncio.timeout(60):
                        while not consumer.assignment:
                            await consumer.poll(100)
                async with Admin(client) as admin:
                    description = await admin.describe_group(settings.group_id or "")
                    assert [member.group_instance_id for member in description.members] == ["one"]
                async with Consumer(client, settings) as consumer:
                    consumer.subscribe([topic])
                    async with asyncio.timeout(60):
                        while not consumer.assignment:
                            await consumer.poll(100)
                    assert len(consumer.assignment) == 2

        run(main())

    def test_a_pattern_finds_topics_as_they_come(self, run: Run, bootstrap: str) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                name = fresh("pattern")
                settings = ConsumerSettings(group_id=fresh("group"), heartbeat_interval_ms=200)
                async with Admin(client) as admin, Consumer(client, settings) as consumer:
                    consumer.subscribe(re.compile(re.escape(name) + "-.*"))
                    await consumer.poll(100)
                    assert consumer.assignment == ()
                    for number in range(2):
                        await admin.create_topics([NewTopic(f"{name}-{number}", 1)])
                        async with asyncio.timeout(60):
                            while len(consumer.assignment) <= number:
                                await consumer.poll(100)

        run(main())

    def test_administers_topics_and_configs(self, run: Run, bootstrap: str) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client, Admin(client) as admin:
                name = fresh("admin")
                ids = await admin.create_topics([NewTopic(name, 2, -1, {"retention.ms": "1000"})])
                with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
                    await admin.create_topics([NewTopic(name, 2)])
                with pytest.raises(KafkaError, match="INVALID_CONFIG"):
                    await admin.create_topics([NewTopic(fresh("bad"), 1, -1, {"retention.ms": "soon"})])
                info = (await admin.describe_topics([name]))[name]
                assert info.topic_id == ids[name]
                assert len(info.partitions) == 2
                assert name in await admin.list_topics()
                await admin.create_partitions({name: 3})
                await _until_true(lambda: _partition_count(admin, name, 3))
                first = TopicPartition(name, 0)
                with pytest.raises(KafkaError, match="NO_REASSIGNMENT_IN_PROGRESS"):
                    await admin.alter_partition_reassignments({first: None})
                with pytest.raises(KafkaError, match="INVALID_REPLICA_ASSIGNMENT"):
                    await admin.alter_partition_reassignments({first: [99]})
                replicas = info.partitions[0].replicas
                await admin.alter_partition_reassignments({first: replicas})
                assert await admin.list_partition_reassignments([first]) == {}
                configs = await admin.describe_configs(ResourceType.TOPIC, name)
                assert configs["retention.ms"].value == "1000"
                changes = [
                    ("retention.ms", ConfigOperation.DELETE, None),
                    ("max.message.bytes", ConfigOperation.SET, "2000"),
                ]
                await admin.alter_configs(ResourceType.TOPIC, name, changes)
                await _until_true(lambda: _config(admin, name, "max.message.bytes", "2000"))
                assert (await admin.describe_configs(ResourceType.TOPIC, name))["retention.ms"].value == "604800000"
                await admin.replace_configs(ResourceType.TOPIC, name, {"segment.ms": "100000"})
                await _until_true(lambda: _config(admin, name, "segment.ms", "100000"))
                cluster_id, controller_id, nodes = await admin.describe_cluster()
                assert cluster_id == client.cluster.cluster_id
                assert controller_id in nodes
                brokers = await admin.describe_configs(ResourceType.BROKER, str(nodes[0]))
                assert brokers["log.segment.bytes"].is_read_only is False
                assert await admin.describe_log_dirs(nodes[0])
                await admin.delete_topics([name])
                with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                    await admin.delete_topics([fresh("never")])
                await _until_true(lambda: _is_gone(admin, name))

        run(main())

    def test_records_of_a_topic_created_anew_are_read_from_its_beginning(self, run: Run, bootstrap: str) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client, Admin(client) as admin:
                topic = await created_topic(client, "anew")
                partition = TopicPartition(topic, 0)
                await produce(client, topic, [b"old"] * 5)
                async with Consumer(client, ConsumerSettings(offset_reset=OffsetReset.EARLIEST)) as consumer:
                    consumer.assign([partition])
                    await poll_until(consumer, 5)
                    await admin.delete_topics([topic])
                    await _until_true(lambda: _is_gone(admin, topic))
                    await _until_true(lambda: _is_created(admin, topic))
                    await produce(client, topic, [b"new"] * 9)
                    assert [record.value for record in await poll_until(consumer, 9)] == [b"new"] * 9

        run(main())


async def _until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def _until_true(ask: Callable[[], Coroutine[Any, Any, bool]], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not await ask():
            await asyncio.sleep(0.02)


async def _partition_count(admin: Admin, name: str, count: int) -> bool:
    return len((await admin.describe_topics([name]))[name].partitions) == count


async def _config(admin: Admin, name: str, key: str, value: str) -> bool:
    return (await admin.describe_configs(ResourceType.TOPIC, name))[key].value == value


async def _is_gone(admin: Admin, name: str) -> bool:
    try:
        await admin.describe_topics([name])
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return True
        raise
    return False


async def _is_created(admin: Admin, name: str) -> bool:
    """Creates a topic, unless one of the name is being deleted still."""
    try:
        await admin.create_topics([NewTopic(name, 1)])
    except KafkaError as error:
        if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return False
        raise
    return True
