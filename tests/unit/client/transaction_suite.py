"""What a transactional producer must do against any cluster: run against Apache Kafka and against Barnabas."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.client import producer_sender
from barnabas.client.client import Client
from barnabas.client.consumer import Consumer
from barnabas.client.errors import ProducerFencedError, TransactionFailedError, TransactionInDoubtError
from barnabas.client.group_coordinator import GroupCoordinator
from barnabas.client.records import OffsetAndMetadata, ProducerRecord
from barnabas.client.settings import ConsumerSettings, IsolationLevel, OffsetReset, ProducerSettings
from barnabas.client.transactional_producer import TransactionalProducer
from barnabas.link.errors import UnsupportedVersionError
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.record_columns import RecordShape, ValueColumn
from barnabas.wire.topics import TopicPartition
from tests.unit.client.client_suite import Run, client_of, created_topic, fresh, poll_until

PARTITIONS = 3


class Fate:
    """Counts what was acknowledged, and keeps why the rest was not."""

    def __init__(self) -> None:
        self.count = 0
        self.errors: list[Exception] = []

    def written(self, _first: int, count: int, _partition: TopicPartition, _base_offset: int) -> None:
        self.count += count

    def failed(self, _first: int, _count: int, error: Exception) -> None:
        self.errors.append(error)


async def committed_values(client: Client, topic: str, count: int) -> list[bytes | None]:
    """The values that a reader of committed records is given: so many, and no other within a moment."""
    settings = ConsumerSettings(offset_reset=OffsetReset.EARLIEST, isolation=IsolationLevel.READ_COMMITTED)
    async with Consumer(client, settings) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        read = await poll_until(consumer, count) if count else []
        read += await consumer.poll(700)
    return sorted((record.value for record in read), key=lambda value: value or b"")


async def stored(client: Client, group: str, partition: TopicPartition) -> int | None:
    """The stable offset of a group."""
    coordinator = GroupCoordinator(client, client.connections.new_lane(), group)
    found = await coordinator.committed([partition], require_stable=True)
    return found[partition].offset if partition in found else None


class TransactionSuite:
    """Subclasses have a fixture `bootstrap`: host:port of a broker."""

    def test_records_and_offsets_count_together_or_not_at_all(self, run: Run, bootstrap: str) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic, group = await created_topic(client, "together", PARTITIONS), fresh("group")
                place = TopicPartition(topic, 0)
                async with TransactionalProducer(client, fresh("id")) as producer:
                    for step, is_commit in enumerate((True, False, True, True)):
                        await producer.begin()
                        values = [b"%d %d" % (step, number) for number in range(20)]
                        for number, value in enumerate(values):
                            await producer.send(ProducerRecord(topic, value, partition=number % PARTITIONS))
                        fate, keys = Fate(), [b"%d" % number for number in range(20)]
                        numbers = await producer.partitions_of(topic, keys)
                        column = ValueColumn(RecordShape(), values, keys)
                        for partition in range(PARTITIONS):
                            places = [at for at, number in enumerate(numbers) if number == partition]
                            if places:
                                await producer.send_column(topic, column.of(places), fate, partition)
                        await producer.send_offsets(group, {place: OffsetAndMetadata(step + 1)})
                        if is_commit:
                            await producer.commit()
                            assert fate.count == 20
                        else:
                            await producer.abort()
                        assert await stored(client, group, place) == (step + 1 if is_commit else step)
                expected = sorted(b"%d %d" % (step, number) for step in (0, 2, 3) for number in range(20) for _ in "12")
                assert await committed_values(client, topic, len(expected)) == expected

        run(main())

    def test_another_instance_ends_what_the_one_before_had_begun(self, run: Run, bootstrap: str) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic, name, group = await created_topic(client, "fence", PARTITIONS), fresh("id"), fresh("group")
                place = TopicPartition(topic, 0)
                async with TransactionalProducer(client, name) as old, TransactionalProducer(client, name) as new:
                    await old.begin()
                    await old.send(ProducerRecord(topic, b"old"))
                    await old.send_offsets(group, {place: OffsetAndMetadata(1)})
                    await old.flush()
                    await new.begin()
                    assert await stored(client, group, place) is None
                    with pytest.raises(ProducerFencedError):
                        await old.commit()
                    with pytest.raises(TransactionInDoubtError):
                        await old.abort()
                    await new.send(ProducerRecord(topic, b"new"))
                    await new.commit()
                assert await committed_values(client, topic, 1) == [b"new"]

        run(main())

    def test_an_instance_that_was_replaced_leaves_the_new_one_alone(self, run: Run, bootstrap: str) -> None:
        """Asked for the next epoch of a former one, a coordinator ends the transaction that is open, and refuses."""

        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic, name = await created_topic(client, "leave", PARTITIONS), fresh("id")
                async with TransactionalProducer(client, name) as old, TransactionalProducer(client, name) as new:
                    await old.begin()
                    await new.begin()
                    await new.send(ProducerRecord(topic, b"new"))
                    await new.flush()
                    await old.abort()
                    await old.send(ProducerRecord(topic, b"old"))
                    with pytest.raises(ProducerFencedError):
                        await old.commit()
                    for again in (old.begin, old.abort, old.commit):
                        with pytest.raises(ProducerFencedError):
                            await again()
                    await new.commit()
                assert await committed_values(client, topic, 1) == [b"new"]

        run(main())

    def test_records_that_no_broker_takes_fail_the_transaction(
        self, run: Run, bootstrap: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody waits for them any more when the transaction is to be committed."""
        monkeypatch.setattr(producer_sender, "VERSIONS", {ApiKey.PRODUCE: (98, 99)})

        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic = await created_topic(client, "untaken", PARTITIONS)
                async with TransactionalProducer(client, fresh("id")) as producer:
                    await producer.begin()
                    sent = await producer.send(ProducerRecord(topic, b"one"))
                    await asyncio.wait([sent])
                    with pytest.raises(TransactionFailedError) as raised:
                        await producer.commit()
                    assert isinstance(raised.value.__cause__, UnsupportedVersionError)
                    await producer.abort()
                assert await committed_values(client, topic, 0) == []

        run(main())

    def test_what_the_coordinator_has_heard_nothing_of_can_be_aborted(self, run: Run, bootstrap: str) -> None:
        """The request that was to open the transaction was lost on its way."""

        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic = await created_topic(client, "unheard", PARTITIONS)
                async with TransactionalProducer(client, fresh("id")) as producer:
                    await producer.begin()
                    producer._may_be_open = True
                    await producer.abort()
                    await producer.send(ProducerRecord(topic, b"after"))
                    await producer.commit()
                assert await committed_values(client, topic, 1) == [b"after"]

        run(main())

    def test_a_record_that_is_too_large_fails_the_whole_transaction(self, run: Run, bootstrap: str) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic = await created_topic(client, "large", PARTITIONS, **{"max.message.bytes": "3000"})
                settings = ProducerSettings(batch_bytes=1)
                async with TransactionalProducer(client, fresh("id"), settings) as producer:
                    await producer.begin()
                    await producer.send(ProducerRecord(topic, b"before", partition=0))
                    await producer.send(ProducerRecord(topic, bytes(5_000), partition=1))
                    with pytest.raises(TransactionFailedError, match="MESSAGE_TOO_LARGE") as raised:
                        await producer.commit()
                    assert isinstance(raised.value.__cause__, KafkaError)
                    assert raised.value.__cause__.code is ErrorCode.MESSAGE_TOO_LARGE
                    with pytest.raises(TransactionFailedError, match="abort"):
                        await producer.begin()
                    before = producer.identity
                    await producer.abort()
                    assert before is not None
                    assert producer.identity is not None
                    assert producer.identity.epoch > before.epoch
                    await producer.send(ProducerRecord(topic, b"after", partition=0))
                    await producer.commit()
                assert await committed_values(client, topic, 1) == [b"after"]

        run(main())

    def test_an_empty_transaction_is_none(self, run: Run, bootstrap: str) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic = await created_topic(client, "empty", PARTITIONS)
                async with TransactionalProducer(client, fresh("id")) as producer:
                    await producer.begin()
                    await producer.commit()
                    await producer.abort()
                    await producer.send(ProducerRecord(topic, b"one"))
                    await producer.commit()
                assert await committed_values(client, topic, 1) == [b"one"]

        run(main())

    def test_a_transaction_that_takes_too_long_is_ended_by_its_coordinator(self, run: Run, bootstrap: str) -> None:
        async def main() -> None:
            async with client_of(bootstrap) as client:
                topic, name = await created_topic(client, "late", PARTITIONS), fresh("id")
                async with TransactionalProducer(client, name, timeout_ms=500) as producer:
                    with pytest.raises((ProducerFencedError, TransactionFailedError)):
                        try:
                            await producer.begin()
                            await producer.send(ProducerRecord(topic, b"late"))
                            await producer.flush()  # on a busy machine the time may be over by now
                        finally:
                            assert await until_ended(client, topic)
                        await producer.commit()
                async with TransactionalProducer(client, name) as producer:
                    await producer.begin()
                    await producer.send(ProducerRecord(topic, b"again"))
                    await producer.commit()
                assert await committed_values(client, topic, 4) == [b"again", *[b"behind"] * PARTITIONS]

        run(main())


async def until_ended(client: Client, topic: str) -> bool:
    """Returns when a record behind an open transaction is given to readers of committed records."""
    from barnabas.client.producer import Producer

    async with Producer(client) as producer:
        for number in range(PARTITIONS):
            await producer.send_and_wait(ProducerRecord(topic, b"behind", partition=number))
    settings = ConsumerSettings(offset_reset=OffsetReset.EARLIEST, isolation=IsolationLevel.READ_COMMITTED)
    async with Consumer(client, settings) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        read: list[Any] = await poll_until(consumer, PARTITIONS, 60)
    return len(read) == PARTITIONS
