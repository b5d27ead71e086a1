"""Batches that several senders send to a real broker, side by side (0057): each record once for readers of committed
records, whatever fails, and whoever is killed or fenced between any two of their commits.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from barnabas.client.errors import ProducerFencedError
from barnabas.client.transactional_producer import TransactionalProducer
from barnabas.pipelines import outbox_sender, staged_batches
from barnabas.pipelines.definition import Pipeline, PipelineError
from barnabas.pipelines.outbox import Outbox
from barnabas.pipelines.outbox_thread import OutboxSenders, sending
from barnabas.pipelines.side_by_side import FirstSender, SideSender
from barnabas.pipelines.staged_batches import StagedBatch
from barnabas.testing.kafka_cluster import KafkaCluster
from tests.unit.pipelines.outbox_cluster import committed, forgotten, outbox_of, staged, values_of

SENDERS = 3


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_batches, "BYTES_PER_SENDER", 1)
    monkeypatch.setattr(outbox_sender, "_PAUSE_SECONDS", 0.05)


@pytest.fixture
def outbox(pipeline: Pipeline, senders: OutboxSenders) -> Outbox:
    return outbox_of(pipeline, senders, count=SENDERS)


@pytest.fixture
def others(cluster: KafkaCluster, pipeline: Pipeline) -> Iterator[OutboxSenders]:
    """Of another run."""
    with sending(pipeline, "one", cluster.bootstrap_servers, threading.Event()) as running:
        yield running


def shared(outbox: Outbox, pipeline: Pipeline, batch_id: int) -> StagedBatch:
    """A batch of which all have a share."""
    batch = staged(outbox, batch_id, pipeline, values_of(batch_id), count=SENDERS)
    assert batch.senders == (1, 2, 3)
    return batch


def check(cluster: KafkaCluster, topic: str, batches: int) -> None:
    found = Counter(value for _, _, value in committed(cluster, topic))
    assert found == Counter(value for number in range(batches) for value in values_of(number))


def offsets_of(cluster: KafkaCluster, topic: str) -> list[int]:
    """Of the senders' groups."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    name = f"barnabas-pipeline-{topic}-one"
    found = []
    for group in (name, *(f"{name}-sender-{number}" for number in range(2, SENDERS + 1))):
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
        (answer,) = admin.list_consumer_group_offsets([asked]).values()
        found.append(answer.result().topic_partitions[0].offset)
    return found


def test_all_records_come_in_the_order_of_their_keys_and_each_sender_has_an_offset(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, outbox: Outbox
) -> None:
    values = [b"key-%d number %d" % (number % 7, number) for number in range(700)]
    outbox.deliver(staged(outbox, 0, pipeline, values, count=SENDERS))
    found: dict[bytes | None, list[bytes | None]] = {}
    for _, key, value in committed(cluster, topic):
        found.setdefault(key, []).append(value)
    assert found == {b"key-%d" % key: values[key::7] for key in range(7)}
    assert offsets_of(cluster, topic) == [1, 1, 1]
    outbox.deliver(staged(outbox, 1, pipeline, [b"one key", b"one value"], count=SENDERS))
    assert sorted(offsets_of(cluster, topic)) in ([1, 1, 2], [1, 2, 2]), "who has no share is left alone"


def nth_call(step: str, number: int, *, is_after: bool) -> Any:
    """A step of the transactional producer that ends the run when it is done for the time of that number."""
    call, calls = getattr(TransactionalProducer, step), itertools.count(1)

    async def killed(*arguments: object) -> None:
        is_now = next(calls) == number
        if is_now and not is_after:
            raise RuntimeError("killed")  # nobody expects that, so nobody aborts
        await call(*arguments)
        if is_now:
            raise RuntimeError("killed")

    return killed


@pytest.mark.parametrize("count", [1, SENDERS], ids="then {}".format)
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("step", "number"),
    [("commit", 1), ("commit", 2), ("commit", 3), ("begin", 2), ("send_column", 2), ("flush", 2), ("send_offsets", 2)],
)
def test_a_run_that_is_killed_between_the_commits_of_its_senders_leaves_a_batch_that_the_next_one_ends(
    cluster: KafkaCluster,
    topic: str,
    pipeline: Pipeline,
    outbox: Outbox,
    others: OutboxSenders,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    number: int,
    is_after: bool,
    count: int,
) -> None:
    outbox.deliver(shared(outbox, pipeline, 0))
    batch = shared(outbox, pipeline, 1)
    with monkeypatch.context() as patched:
        patched.setattr(TransactionalProducer, step, nth_call(step, number, is_after=is_after))
        with pytest.raises(RuntimeError, match="killed"):
            outbox.deliver(batch)
    following = outbox_of(pipeline, others, begun=1, finished=0, count=count)
    assert following.is_sent(1) == (step == "commit" and number == SENDERS and is_after)
    if not following.is_sent(1):
        assert following.find(1, [(topic, True)]) == batch
        following.deliver(batch)
    following.deliver(staged(following, 2, pipeline, values_of(2), count=count))
    check(cluster, topic, 3)


@pytest.mark.parametrize("api", ["EndTxn", "TxnOffsetCommit", "AddPartitionsToTxn", "AddOffsetsToTxn", "Produce"])
@pytest.mark.parametrize("fault", ["answer lost", "refused"])
def test_each_record_is_there_once_although_requests_fail_and_answers_are_lost(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, outbox: Outbox, api: str, fault: str
) -> None:
    outbox.deliver(shared(outbox, pipeline, 0))
    if fault == "refused":
        cluster.fail_requests(api, "UNKNOWN_SERVER_ERROR" if api == "EndTxn" else "INVALID_TXN_STATE", count=1)
    else:
        cluster.lose_answers(api, count=1)
    outbox.deliver(shared(outbox, pipeline, 1))
    outbox.deliver(shared(outbox, pipeline, 2))
    check(cluster, topic, 3)
    assert offsets_of(cluster, topic) == [3, 3, 3]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_commit_of_a_share_whose_outcome_is_not_known_is_asked_for_and_not_repeated(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, outbox: Outbox, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    commit, calls = TransactionalProducer.commit, itertools.count(1)

    async def losing(producer: TransactionalProducer) -> None:
        await commit(producer)
        if next(calls) == lost:
            raise ConnectionError("the answer is lost")

    batch = shared(outbox, pipeline, 0)
    monkeypatch.setattr(TransactionalProducer, "commit", losing)
    outbox.deliver(batch)
    check(cluster, topic, 1)


def test_nothing_of_a_batch_counts_where_a_record_of_one_share_is_too_large(
    cluster: KafkaCluster, pipeline: Pipeline, senders: OutboxSenders
) -> None:
    small = cluster.create_topic(partitions=3, config={"max.message.bytes": 3_000})
    (sink,) = pipeline.sinks
    pipeline = dataclasses.replace(pipeline, sinks=(dataclasses.replace(sink, topic=small),))  # type: ignore[arg-type]
    outbox = outbox_of(pipeline, senders, count=SENDERS)
    outbox.deliver(shared(outbox, pipeline, 0))
    large = [*values_of(1), b"large " + b"x" * 5_000]
    with pytest.raises(PipelineError, match="a row is larger than the topic takes"):
        outbox.deliver(staged(outbox, 1, pipeline, large, count=SENDERS))
    check(cluster, small, 1)


def test_a_sender_that_had_no_share_yet_makes_batches_as_small_as_the_others_have_learnt(
    cluster: KafkaCluster, pipeline: Pipeline, senders: OutboxSenders
) -> None:
    """Or its first large batch would be refused, and all would send each record by itself from then on."""
    small = cluster.create_topic(partitions=1, config={"max.message.bytes": 20_000})
    (sink,) = pipeline.sinks
    pipeline = dataclasses.replace(pipeline, sinks=(dataclasses.replace(sink, topic=small),))  # type: ignore[arg-type]
    outbox = outbox_of(pipeline, senders, count=SENDERS)
    keys = {zlib.crc32(key) % SENDERS + 1: key for key in (b"key-0", b"key-4", b"key-1")}
    # Of the second batch there is none for the third sender, and then more than fits into one batch of the topic.
    for number, counts in enumerate(({1: 18, 2: 18, 3: 18}, {1: 25, 2: 1}, {1: 1, 3: 25})):
        values = [b"%s %d " % (keys[each], number) + b"x" * 900 for each, count in counts.items() for _ in range(count)]
        batch = staged(outbox, number, pipeline, values, count=SENDERS)
        assert batch.senders == tuple(counts)
        outbox.deliver(batch)
    (first,) = senders._senders
    assert first._batch_bytes == outbox_sender._SMALL_BATCH_BYTES
    assert first.sides[3]._batch_bytes == outbox_sender._SMALL_BATCH_BYTES


def test_nothing_of_a_batch_counts_where_one_share_is_damaged(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, outbox: Outbox
) -> None:
    batch = shared(outbox, pipeline, 0)
    path = batch.parts[0].directory / "sender=2" / "part-0"
    path.write_bytes(path.read_bytes().replace(b"value", b"vague", 1))
    with pytest.raises(Exception, match="is damaged"):
        outbox.deliver(batch)
    assert committed(cluster, topic) == []


@pytest.mark.parametrize("count", [1, SENDERS])
def test_shares_of_a_run_that_was_fenced_are_not_committed_late(
    cluster: KafkaCluster,
    topic: str,
    pipeline: Pipeline,
    outbox: Outbox,
    others: OutboxSenders,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
) -> None:
    """One share of the zombie is there, one is about to be committed, and the first sender's comes behind it."""
    batch = shared(outbox, pipeline, 0)
    commit, reached, released = SideSender.commit_share, threading.Event(), threading.Event()

    async def late(sender: SideSender, *arguments: Any) -> None:
        if sender._number == SENDERS:
            client = await sender._senders.client()
            reached.set()
            while not released.is_set():
                await client.timers.sleep(20)
        await commit(sender, *arguments)

    errors: list[Exception] = []

    def deliver() -> None:
        try:
            outbox.deliver(batch)
        except PipelineError as error:
            errors.append(error)

    with monkeypatch.context() as patched:
        patched.setattr(SideSender, "commit_share", late)
        thread = threading.Thread(target=deliver)
        thread.start()
        assert reached.wait(30)
    following = outbox_of(pipeline, others, begun=0, count=count)
    found = following.find(0, [(topic, True)])
    assert found == batch
    following.deliver(found)
    released.set()
    thread.join(60)
    assert "another run sends as" in str(errors[0])
    check(cluster, topic, 1)
    following.deliver(staged(following, 1, pipeline, values_of(1), count=count))
    check(cluster, topic, 2)


def test_a_share_is_not_sent_by_who_has_not_the_id_of_the_first_sender_any_more(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders, outbox: Outbox, others: OutboxSenders
) -> None:
    """A failure has it open a side again, which fences that of the copy: it must not send under it."""
    batch = shared(outbox, pipeline, 0)
    copy = dataclasses.replace(pipeline, state_directory=pipeline.state_directory / "copy")
    following = outbox_of(copy, others, count=SENDERS)
    (first,) = senders._senders
    senders.call(forgotten(first.sides[2]))
    with pytest.raises(PipelineError, match="another run sends as"):
        outbox.deliver(batch)
    assert committed(cluster, topic) == []
    with pytest.raises(PipelineError, match="another run sends as"):
        following.deliver(shared(following, copy, 0))
    assert committed(cluster, topic) == []


def test_offsets_of_all_senders_are_committed_again_in_time(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders, outbox: Outbox
) -> None:
    outbox.deliver(shared(outbox, pipeline, 0))
    (first,) = senders._senders
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    group = f"barnabas-pipeline-{topic}-one-sender-3"
    admin.delete_consumer_groups([group])[group].result()
    assert offsets_of(cluster, topic) == [1, 1, -1001]
    senders.call(first.refresh())
    assert offsets_of(cluster, topic) == [1, 1, 1]
    outbox.deliver(shared(outbox, pipeline, 1))
    check(cluster, topic, 2)


def test_senders_that_are_not_needed_any_more_are_fenced_and_end(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders, outbox: Outbox, others: OutboxSenders
) -> None:
    outbox.deliver(shared(outbox, pipeline, 0))
    (first,) = senders._senders
    producer = first.sides[3]._producer
    assert producer is not None
    following = outbox_of(pipeline, others, 0, 0, count=2)
    (other,) = others._senders
    assert isinstance(other, FirstSender)
    assert list(other.sides) == [2]

    async def send_late() -> None:
        await producer.begin()
        await producer.send_offsets("any", {})

    with pytest.raises(ProducerFencedError):
        senders.call(send_late())
    following.deliver(staged(following, 1, pipeline, values_of(1), count=2))
    check(cluster, topic, 2)


def test_records_of_several_topics_are_shared_too(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders
) -> None:
    other = cluster.create_topic(partitions=3)
    (sink,) = pipeline.sinks
    sinks = (sink, dataclasses.replace(sink, topic=other))  # type: ignore[arg-type]
    pipeline = dataclasses.replace(pipeline, sinks=sinks)
    outbox = outbox_of(pipeline, senders, count=SENDERS)
    outbox.deliver(shared(outbox, pipeline, 0))
    check(cluster, topic, 1)
    check(cluster, other, 1)
