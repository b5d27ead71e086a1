"""Staged batches sent to a real broker: each once for readers of committed records, whatever the broker does."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from barnabas.client.errors import ProducerFencedError
from barnabas.pipelines import outbox_sender
from barnabas.pipelines.definition import Pipeline, PipelineError
from barnabas.pipelines.outbox_sender import QuerySender
from barnabas.pipelines.outbox_thread import OutboxSenders
from barnabas.pipelines.staged_batches import StagedRecords
from barnabas.testing.kafka_cluster import KafkaCluster
from barnabas.wire.errors import ErrorCode
from tests.support.waiting import wait_until
from tests.unit.pipelines.outbox_cluster import (
    PARTITIONS,
    VIEW,
    committed,
    forgotten,
    outbox_of,
    sink_of,
    staged,
    values_of,
)


def test_batches_come_with_their_keys_to_the_partitions_of_javas_client(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders
) -> None:
    outbox = outbox_of(pipeline, senders)
    for batch_id in range(3):
        outbox.deliver(staged(outbox, batch_id, pipeline, values_of(batch_id)))
    found = committed(cluster, topic)
    assert Counter(value for _, _, value in found) == Counter(value for n in range(3) for value in values_of(n))
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "partitioner": "murmur2"})
    other = cluster.create_topic(partitions=PARTITIONS)
    for value in values_of(0):
        producer.produce(other, value, value.split()[0])
    producer.flush()
    expected = {key: partition for partition, key, _ in committed(cluster, other)}
    assert all(expected[key] == partition for partition, key, _ in found)


def test_an_empty_value_is_a_record_without_one_in_its_place_among_those_of_its_key(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders
) -> None:
    outbox = outbox_of(pipeline, senders)
    directory = outbox.staged.being_written(0, 0)
    directory.mkdir(parents=True)
    rows = [(b"k%d" % (number % 3), b"" if number % 4 == 0 else b"v%d" % number) for number in range(24)]
    (directory / "part-0").write_bytes(b"".join(b"%s\n%s\n" % row for row in rows))
    outbox.deliver(outbox.staged.publish(0, [(topic, True)]))
    found: dict[bytes | None, list[bytes | None]] = {}
    for _, key, value in committed(cluster, topic):
        found.setdefault(key, []).append(value)
    expected = {key: [value or None for each, value in rows if each == key] for key, _ in rows}
    assert found == expected


def test_an_empty_value_that_is_no_json_is_a_value(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders
) -> None:
    """A message of Protocol Buffers whose fields have their defaults has no bytes."""
    outbox = outbox_of(pipeline, senders)
    directory = outbox.staged.being_written(0, 0)
    directory.mkdir(parents=True)
    (directory / "part-0").write_bytes(b"azE=\n\nazI=\ndg==\nazM=\n-\n")
    outbox.deliver(outbox.staged.publish(0, [(topic, True)], [topic], [topic]))
    found = {key: value for _, key, value in committed(cluster, topic)}
    assert found == {b"k1": b"", b"k2": b"v", b"k3": None}


def test_records_without_keys_and_large_ones_come_too(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders
) -> None:
    cluster_topic = cluster.create_topic(partitions=PARTITIONS, config={"max.message.bytes": 8 * 1024 * 1024})
    pipeline = dataclasses.replace(pipeline, sinks=(sink_of(cluster_topic, ()),))
    outbox = outbox_of(pipeline, senders)
    values = [b"small", b"x" * 5_000_000, b"", *[b"y" * 100_000] * 30]
    outbox.deliver(staged(outbox, 0, pipeline, values, keys=False))
    found = committed(cluster, cluster_topic)
    assert Counter(value for _, _, value in found) == Counter(values)
    assert {key for _, key, _ in found} == {None}


def count_of_sends(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """As long as the transactions that are begun from now on."""
    transact, begun = QuerySender._transact, list[object]()

    async def counted(self: QuerySender, *arguments: object) -> None:
        begun.append(arguments)
        await transact(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(QuerySender, "_transact", counted)
    return begun


def test_batches_that_are_too_large_for_the_topic_are_made_smaller_and_too_large_records_are_told(
    cluster: KafkaCluster, pipeline: Pipeline, senders: OutboxSenders, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = cluster.create_topic(partitions=PARTITIONS, config={"max.message.bytes": 3_000})
    pipeline = dataclasses.replace(pipeline, sinks=(sink_of(small),))
    outbox = outbox_of(pipeline, senders)
    values = [b"k%d " % number + b"x" * 2_000 for number in range(50)]
    outbox.deliver(staged(outbox, 0, pipeline, values))
    assert len(committed(cluster, small)) == 50
    large = staged(outbox, 1, pipeline, [*values_of(1), b"large " + b"x" * 5_000])
    sent = count_of_sends(monkeypatch)
    with pytest.raises(
        PipelineError, match=r"delays.yaml:30: a row is larger than the topic takes .*max.message.bytes"
    ):
        outbox.deliver(large)
    assert len(sent) == 1, "a record that is too large alone is not tried again"
    assert len(committed(cluster, small)) == 50, "all of a batch, or nothing"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    raised = ConfigEntry("max.message.bytes", "10000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", small, incremental_configs=[raised])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result()
    again = outbox.find(1, [(small, True)])
    assert again == large

    def is_delivered() -> bool:
        # A broker is told of a config after it has been altered.
        with contextlib.suppress(PipelineError):
            outbox.deliver(large)
            return True
        return False

    wait_until(is_delivered, "the topic takes the batch", 30.0)
    assert len(committed(cluster, small)) == 50 + 31


@pytest.mark.parametrize("api", ["EndTxn", "TxnOffsetCommit", "AddPartitionsToTxn", "AddOffsetsToTxn", "Produce"])
@pytest.mark.parametrize("fault", ["answer lost", "refused"])
def test_each_batch_is_there_once_although_requests_fail_and_answers_are_lost(
    cluster: KafkaCluster,
    topic: str,
    pipeline: Pipeline,
    senders: OutboxSenders,
    monkeypatch: pytest.MonkeyPatch,
    api: str,
    fault: str,
) -> None:
    monkeypatch.setattr(outbox_sender, "_PAUSE_SECONDS", 0.05)
    outbox = outbox_of(pipeline, senders)
    outbox.deliver(staged(outbox, 0, pipeline, values_of(0)))
    if fault == "refused":
        cluster.fail_requests(api, "UNKNOWN_SERVER_ERROR" if api == "EndTxn" else "INVALID_TXN_STATE", count=1)
    else:
        cluster.lose_answers(api, count=1)
    outbox.deliver(staged(outbox, 1, pipeline, values_of(1)))
    outbox.deliver(staged(outbox, 2, pipeline, values_of(2)))
    expected = Counter(value for number in range(3) for value in values_of(number))
    assert Counter(value for _, _, value in committed(cluster, topic)) == expected


def test_a_commit_whose_outcome_is_not_known_is_asked_for_and_not_repeated(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is done, and all answers about it are lost until the client gives it up."""
    outbox = outbox_of(pipeline, senders)
    transact, failures = QuerySender._transact, [ConnectionError("the answer is lost")]

    async def losing(self: QuerySender, *arguments: object) -> None:
        await transact(self, *arguments)  # type: ignore[arg-type]
        if failures:
            raise failures.pop()

    monkeypatch.setattr(QuerySender, "_transact", losing)
    outbox.deliver(staged(outbox, 0, pipeline, values_of(0)))
    assert not failures
    assert len(committed(cluster, topic)) == 30


def test_a_transaction_that_takes_too_long_gets_more_time_and_in_the_end_an_error(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_sender, "TRANSACTION_MS_MIN", 1_000)
    monkeypatch.setattr(outbox_sender, "_PAUSE_SECONDS", 0.05)
    outbox = outbox_of(pipeline, senders)
    (sender,) = senders._senders
    send_part, seconds = QuerySender._send_part, [1.2]

    async def slow(self: QuerySender, producer: object, part: object) -> None:
        await asyncio.sleep(seconds[0])
        await send_part(self, producer, part)  # type: ignore[arg-type]

    monkeypatch.setattr(QuerySender, "_send_part", slow)
    outbox.deliver(staged(outbox, 0, pipeline, values_of(0)))
    assert len(committed(cluster, topic)) == 30
    assert sender._producer is not None
    assert sender._producer.timeout_ms >= 2_000  # more, where the machine was busy
    seconds[0] = 600.0
    monkeypatch.setattr(outbox_sender, "TRANSACTION_MS_MAX", 2_000)
    monkeypatch.setattr(outbox_sender, "_ATTEMPTS_SECONDS", 0.5)  # what is slow is no broker that is away
    with pytest.raises(PipelineError, match=r"delays.yaml:30: .*30 records.*not written within.*max_records_per_batch"):
        outbox.deliver(staged(outbox, 1, pipeline, values_of(1)))
    assert len(committed(cluster, topic)) == 30


def test_a_batch_that_is_larger_than_those_before_has_more_time_from_the_first(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_sender, "BYTES_PER_MS_MIN", 1)
    outbox = outbox_of(pipeline, senders)
    (sender,) = senders._senders
    given = []
    for batch_id, count in enumerate((0, 10, 500, 10)):
        batch = staged(outbox, batch_id, pipeline, values_of(batch_id, count))
        outbox.deliver(batch)
        assert sender._producer is not None
        given.append(sender._producer.timeout_ms >= outbox_sender.TRANSACTION_MS_MIN + batch.size_bytes)
    assert given == [True] * 4
    assert len(committed(cluster, topic)) == 520


def test_a_slow_transaction_gets_more_time_however_long_it_has_taken(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_sender, "TRANSACTION_MS_MIN", 1_000)
    monkeypatch.setattr(outbox_sender, "_ATTEMPTS_SECONDS", 0.5)
    outbox = outbox_of(pipeline, senders)
    send_part = QuerySender._send_part

    async def slow(self: QuerySender, producer: object, part: object) -> None:
        await asyncio.sleep(1.2)
        await send_part(self, producer, part)  # type: ignore[arg-type]

    monkeypatch.setattr(QuerySender, "_send_part", slow)
    outbox.deliver(staged(outbox, 0, pipeline, values_of(0)))
    assert len(committed(cluster, topic)) == 30


def test_a_topic_that_is_gone_is_named_and_not_waited_for(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_sender, "TRANSACTION_MS_MIN", 1_000)
    monkeypatch.setattr(outbox_sender, "_ATTEMPTS_SECONDS", 0.5)
    outbox = outbox_of(pipeline, senders)
    batch = staged(outbox, 0, pipeline, values_of(0))
    cluster.delete_topic(topic)
    with pytest.raises(PipelineError, match=f"there is no topic {topic}"):
        outbox.deliver(batch)
    cluster.create_topic(topic, partitions=PARTITIONS)
    outbox.deliver(batch)
    assert len(committed(cluster, topic)) == 30


@pytest.mark.parametrize("is_at_the_end", [False, True])
def test_a_topic_that_is_made_again_in_the_middle_of_a_batch_has_all_of_it(
    cluster: KafkaCluster,
    topic: str,
    pipeline: Pipeline,
    senders: OutboxSenders,
    monkeypatch: pytest.MonkeyPatch,
    is_at_the_end: bool,
) -> None:
    """Its leaders take the second half as if nothing were before it."""
    outbox = outbox_of(pipeline, senders)
    values = [b"key-%d " % number + b"x" * 100_000 for number in range(40)]
    columns, renewed = StagedRecords.columns, list[str]()

    def renewing(self: StagedRecords) -> Iterator[tuple[Sequence[bytes] | None, Sequence[bytes | None]]]:
        chunks = list(columns(self))
        for number, chunk in enumerate([*chunks, None]):
            if number == (len(chunks) if is_at_the_end else 2) and not renewed:
                wait_until(lambda: end_of(cluster, topic) >= 10, "the first records are there")
                cluster.delete_topic(topic)
                cluster.create_topic(topic, partitions=PARTITIONS)
                renewed.append(topic)
            if chunk is not None:
                yield chunk

    monkeypatch.setattr(StagedRecords, "columns", renewing)
    outbox.deliver(staged(outbox, 0, pipeline, values))
    assert renewed
    assert Counter(value for _, _, value in committed(cluster, topic)) == Counter(values)
    assert outbox_of(pipeline, senders, 0, -1).is_sent(0)


def end_of(cluster: KafkaCluster, topic: str) -> int:
    """How many records the topic has, committed or not."""
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "none",
        "isolation.level": "read_uncommitted",
    }
    consumer = confluent_kafka.Consumer(settings)
    try:
        places = [confluent_kafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
        return sum(consumer.get_watermark_offsets(place, timeout=30)[1] for place in places)
    finally:
        consumer.close()


def test_a_transaction_that_outlasts_the_longest_that_brokers_allow_was_ended_by_them(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that slept: the producer's own time-out counts, not what the batch would have got."""
    outbox = outbox_of(pipeline, senders)
    (sender,) = senders._senders
    sender._timeout_ms, sender._timeout_ms_max = 900_000, 2_000
    transact, slept = QuerySender._transact, [True]

    async def sleeping(self: QuerySender, producer: object, *arguments: object) -> None:
        if slept:
            slept.pop()
            self._overdue_ms -= 2_001
            raise ProducerFencedError("by the coordinator", ErrorCode.INVALID_PRODUCER_EPOCH)
        await transact(self, producer, *arguments)  # type: ignore[arg-type]

    senders.call(forgotten(sender))
    monkeypatch.setattr(QuerySender, "_transact", sleeping)
    outbox.deliver(staged(outbox, 0, pipeline, values_of(0)))
    assert len(committed(cluster, topic)) == 30


def test_a_time_out_that_brokers_do_not_take_is_lowered(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_sender, "TRANSACTION_MS_MIN", 900_000)  # the cluster takes 100 s
    outbox = outbox_of(pipeline, senders)
    outbox.deliver(staged(outbox, 0, pipeline, values_of(0)))
    assert len(committed(cluster, topic)) == 30


def test_the_topics_of_a_query_have_a_batch_together(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders
) -> None:
    other = cluster.create_topic(partitions=PARTITIONS)
    pipeline = dataclasses.replace(pipeline, sinks=(*pipeline.sinks, sink_of(other)))
    outbox = outbox_of(pipeline, senders)
    outbox.deliver(staged(outbox, 0, pipeline, values_of(0)))
    cluster.delete_topic(topic)
    cluster.create_topic(topic, partitions=PARTITIONS)
    assert outbox_of(pipeline, senders, 0, -1).is_sent(0), "as long as one of the topics is there"
    assert len(committed(cluster, other)) == 30


def test_damage_of_a_staged_batch_is_never_sent(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders
) -> None:
    outbox = outbox_of(pipeline, senders)
    batch = staged(outbox, 0, pipeline, values_of(0))
    path = batch.parts[0].directory / "part-0"
    path.write_bytes(path.read_bytes().replace(b"value", b"vague", 1))
    with pytest.raises(Exception, match="is damaged"):
        outbox.deliver(batch)
    assert committed(cluster, topic) == []


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
        ("AddOffsetsToTxn", "GROUP_AUTHORIZATION_FAILED"),
        ("AddPartitionsToTxn", "TOPIC_AUTHORIZATION_FAILED"),
    ],
)
def test_what_brokers_refuse_is_told_at_once_with_what_to_do(
    cluster: KafkaCluster, pipeline: Pipeline, senders: OutboxSenders, api: str, error: str
) -> None:
    outbox = outbox_of(pipeline, senders)
    batch = staged(outbox, 0, pipeline, values_of(0))
    cluster.fail_requests(api, error, count=3)
    with pytest.raises(PipelineError, match=rf"delays.yaml:30: the brokers refuse .*{error}.*at_least_once") as raised:
        outbox_of(pipeline, senders) if api == "InitProducerId" else outbox.deliver(batch)
    assert f"barnabas-pipeline-{pipeline.name}-one-{VIEW}" in str(raised.value)


def test_a_record_that_is_larger_than_any_is_told(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = outbox_of(pipeline, senders)
    sent = count_of_sends(monkeypatch)
    with pytest.raises(PipelineError, match=r"delays.yaml:30: a row is larger .* rows up to 32 MiB"):
        outbox.deliver(staged(outbox, 0, pipeline, [b"small x", b"key " + b"x" * 34_000_000]))
    assert len(sent) == 1
    assert committed(cluster, topic) == []
