"""Runs that send one after another, and beside each other: killed at any step, idle, and over copies of one state."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import threading
from collections import Counter
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from barnabas.client.group_coordinator import GroupCoordinator
from barnabas.client.transactional_producer import TransactionalProducer
from barnabas.pipelines import outbox as outbox_module
from barnabas.pipelines.definition import Pipeline, PipelineError, RunStopped
from barnabas.pipelines.outbox_offsets import Sent
from barnabas.pipelines.outbox_sender import QuerySender
from barnabas.pipelines.outbox_thread import OutboxSenders, sending
from barnabas.pipelines.state_directory import StateDirectory
from barnabas.pipelines.topic_outboxes import opened_outboxes
from barnabas.testing.kafka_cluster import KafkaCluster
from tests.unit.pipelines.outbox_cluster import committed, forgotten, outbox_of, staged, values_of


def test_a_sender_of_a_run_that_was_killed_is_fenced_and_its_transaction_ended(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = outbox_of(pipeline, senders)
    outbox.deliver(staged(outbox, 0, pipeline, values_of(0)))
    batch = staged(outbox, 1, pipeline, values_of(1))
    reached, released = threading.Event(), threading.Event()
    transact = QuerySender._transact

    async def hanging(self: QuerySender, producer: object, *arguments: object) -> None:
        commit = producer.commit  # type: ignore[attr-defined]

        async def late() -> None:
            await producer.flush()  # type: ignore[attr-defined]
            reached.set()
            await asyncio.to_thread(released.wait)
            await commit()

        producer.commit = late  # type: ignore[attr-defined]
        await transact(self, producer, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(QuerySender, "_transact", hanging)
    errors: list[Exception] = []

    def deliver() -> None:
        try:
            outbox.deliver(batch)
        except PipelineError as error:
            errors.append(error)

    thread = threading.Thread(target=deliver)
    thread.start()
    assert reached.wait(30)
    monkeypatch.setattr(QuerySender, "_transact", transact)
    with sending(pipeline, "one", cluster.bootstrap_servers, threading.Event()) as others:
        other = outbox_of(pipeline, others, begun=1, finished=0)
        assert not other.is_sent(1)
        found = other.find(1, [(topic, True)])
        assert found is not None
        other.deliver(found)
        released.set()
        thread.join(60)
    assert len(errors) == 1
    assert "another run sends as" in str(errors[0])
    assert Counter(value for _, _, value in committed(cluster, topic)) == Counter([*values_of(0), *values_of(1)])


def test_a_sender_whose_place_was_taken_while_it_was_idle_does_not_take_it_back(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders
) -> None:
    """The refreshing of an idle run finds the copy; the next batch says so, and does not fence it."""
    outbox = outbox_of(pipeline, senders)
    outbox.deliver(staged(outbox, 0, pipeline, values_of(0)))
    with sending(pipeline, "one", cluster.bootstrap_servers, threading.Event()) as others:
        copy = outbox_of(pipeline, others, begun=0, finished=0)
        (idle,) = senders._senders
        senders.call(idle.refresh())
        with pytest.raises(PipelineError, match=r"another run sends as .* so a copy of"):
            outbox.deliver(staged(outbox, 1, pipeline, [b"key of the first run"]))
        copy.deliver(staged(copy, 1, pipeline, values_of(1)))
        assert len(committed(cluster, topic)) == 60


@pytest.mark.parametrize("is_batch", [True, False])
def test_what_a_copy_has_sent_meanwhile_is_not_taken_for_an_attempt_of_ours(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders, is_batch: bool
) -> None:
    """The abort that would tell is lost too."""
    outbox = outbox_of(pipeline, senders)
    batch = staged(outbox, 0, pipeline, [b"key of the first run"])
    (sender,) = senders._senders
    with sending(pipeline, "one", cluster.bootstrap_servers, threading.Event()) as others:
        other = dataclasses.replace(pipeline, state_directory=pipeline.state_directory / "copy")
        copy = outbox_of(other, others)
        copy.deliver(staged(copy, 0, other, values_of(0)))
        senders.call(forgotten(sender))
        with pytest.raises(PipelineError, match=r"another run sends as .* so a copy of"):
            if is_batch:
                outbox.deliver(batch)
            else:
                sender.send(None, Sent(0))
    assert Counter(value for _, _, value in committed(cluster, topic)) == Counter(values_of(0))


def test_the_offset_of_an_idle_run_is_refreshed_again_after_a_failure(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders
) -> None:
    outbox = outbox_of(pipeline, senders)
    outbox.deliver(staged(outbox, 0, pipeline, values_of(0)))
    (sender,) = senders._senders
    cluster.fail_requests("AddOffsetsToTxn", "INVALID_TXN_STATE")
    has_producer = []
    for _ in range(2):
        senders.call(sender.refresh())
        has_producer.append(sender._producer is not None)
    assert has_producer == [False, True]
    outbox.deliver(staged(outbox, 1, pipeline, values_of(1)))
    assert len(committed(cluster, topic)) == 60


def test_an_offset_that_is_committed_again_so_that_it_does_not_expire_is_in_nobodys_way(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders
) -> None:
    outbox = outbox_of(pipeline, senders)
    (sender,) = senders._senders
    for batch_id in range(3):
        outbox.deliver(staged(outbox, batch_id, pipeline, values_of(batch_id)))
        if batch_id == 1:
            cluster.fail_requests("TxnOffsetCommit", "INVALID_TXN_STATE")
        senders.call(sender.refresh())
    assert len(committed(cluster, topic)) == 90
    assert outbox_of(pipeline, senders, 2, 2).is_sent(2)


def test_records_of_a_transaction_that_nobody_ended_are_not_committed_with_the_next_one(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = outbox_of(pipeline, senders)
    send_part = QuerySender._send_part

    async def failing(self: QuerySender, producer: object, part: object) -> None:
        await send_part(self, producer, part)  # type: ignore[arg-type]
        await producer.flush()  # type: ignore[attr-defined]
        raise RuntimeError("a fault of ours")

    batch = staged(outbox, 0, pipeline, values_of(0))
    with monkeypatch.context() as patched:
        patched.setattr(QuerySender, "_send_part", failing)
        with pytest.raises(RuntimeError, match="a fault of ours"):
            outbox.deliver(batch)
    outbox.deliver(batch)
    assert Counter(value for _, _, value in committed(cluster, topic)) == Counter(values_of(0))


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["begin", "send_column", "flush", "send_offsets", "commit"])
def test_a_run_that_is_killed_at_a_step_of_the_transaction_leaves_a_batch_that_the_next_one_has_once(
    cluster: KafkaCluster,
    topic: str,
    pipeline: Pipeline,
    senders: OutboxSenders,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    is_after: bool,
) -> None:
    outbox = outbox_of(pipeline, senders)
    outbox.deliver(staged(outbox, 0, pipeline, values_of(0)))
    call = getattr(TransactionalProducer, step)

    async def killed(*arguments: object) -> None:
        if is_after:
            await call(*arguments)
        raise RuntimeError("killed")  # nobody expects that, so nobody aborts

    batch = staged(outbox, 1, pipeline, values_of(1))
    with monkeypatch.context() as patched:
        patched.setattr(TransactionalProducer, step, killed)
        with pytest.raises(RuntimeError, match="killed"):
            outbox.deliver(batch)
    with sending(pipeline, "one", cluster.bootstrap_servers, threading.Event()) as others:
        following = outbox_of(pipeline, others, begun=1, finished=0)
        assert following.is_sent(1) == (step == "commit" and is_after)
        if not following.is_sent(1):
            following.deliver(batch)
        following.deliver(staged(following, 2, pipeline, values_of(2)))
    expected = Counter(value for number in range(3) for value in values_of(number))
    assert Counter(value for _, _, value in committed(cluster, topic)) == expected


def test_a_run_that_is_told_to_stop_does_not_wait_for_brokers_that_do_not_answer(
    cluster: KafkaCluster, pipeline: Pipeline
) -> None:
    stop = threading.Event()
    with sending(pipeline, "one", "127.0.0.1:1", stop) as senders:
        threading.Timer(0.3, stop.set).start()
        with pytest.raises(RunStopped):
            outbox_of(pipeline, senders)


def test_the_group_and_the_transactional_ids_are_those_of_the_state(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, senders: OutboxSenders
) -> None:
    outbox_of(pipeline, senders)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    groups = {group.group_id for group in admin.list_consumer_groups().result().valid}
    assert f"barnabas-pipeline-{topic}-one" in groups
    note = json.loads((pipeline.state_directory / "outbox" / "sent.json").read_text())
    assert (note["state_id"], note["next_batch"]) == ("one", 0)


def test_only_an_offset_that_no_open_transaction_changes_is_believed(
    pipeline: Pipeline, senders: OutboxSenders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache Kafka's coordinators of groups take a moment after the marker of a transaction."""
    ask, asked = GroupCoordinator.committed, list[bool]()

    async def noted(*arguments: Any, require_stable: bool = False) -> Any:
        asked.append(require_stable)
        return await ask(*arguments, require_stable=require_stable)

    monkeypatch.setattr(GroupCoordinator, "committed", noted)
    outbox_of(pipeline, senders)
    assert asked == [True]


def test_a_disk_that_is_full_when_a_run_begins_is_told_in_a_sentence(
    cluster: KafkaCluster, topic: str, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(outbox_module, "write_json", full)
    state = StateDirectory(pipeline.state_directory)
    with (
        pytest.raises(PipelineError, match=r"the state directory .* cannot be used: No space left on device"),
        opened_outboxes(pipeline, state, "one", {}, cluster.bootstrap_servers, threading.Event()),
    ):
        pass
