"""What a console that may change the cluster does, and what it refuses."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator

import confluent_kafka
import pytest

from barnabas.client.admin import Admin
from barnabas.client.client import Client
from barnabas.client.settings import ClientSettings
from barnabas.kernel.real_host import RealHost, run
from barnabas.testing import KafkaCluster
from barnabas.wire.topics import TopicPartition
from tests.support.running_console import Answer, RunningConsole
from tests.support.waiting import wait_until

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """Three brokers."""
    with KafkaCluster(brokers=3, config={"auto.leader.rebalance.enable": "false"}) as running:
        running.create_topic("flights", partitions=2, replication_factor=3)
        running.create_topic("small", partitions=1, replication_factor=1, config={"max.message.bytes": "200"})
        yield running


@pytest.fixture(scope="module")
def console(cluster: KafkaCluster) -> Iterator[RunningConsole]:
    """Its console, which may change it."""
    with RunningConsole(cluster.bootstrap_servers, may_change=True) as running:
        running.wait_for("/topics", "flights", "small")
        yield running


def field(answer: Answer, name: str) -> str:
    """A hidden field of the page."""
    found = re.search(rf'name="{name}" value="([^"]*)"', answer.text)
    assert found is not None, answer.words
    return found[1]


def post(console: RunningConsole, kind: str, **fields: str) -> Answer:
    return console.post(f"/change/{kind}", {"token": field(console.get("/write"), "token"), **fields})


def confirmed(console: RunningConsole, asked: Answer) -> Answer:
    assert asked.status == 200, asked.words
    return post(console, "do", number=field(asked, "number"))


def records(cluster: KafkaCluster, topic: str, partition: int) -> list[confluent_kafka.Message]:
    servers = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "test", "log_level": 0}
    consumer = confluent_kafka.Consumer({**servers, "enable.partition.eof": True})
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
    found = []
    while (message := consumer.poll(20)) is not None and message.error() is None:
        found.append(message)
    consumer.close()
    return found


def as_admin(cluster: KafkaCluster, body: Callable[[Admin], Awaitable[None]]) -> None:
    async def on_host(host: RealHost) -> None:
        settings = ClientSettings(bootstrap_servers=(cluster.bootstrap_servers.split(",")[0],))
        client = Client(host, settings, logging.getLogger("tests.changes"))
        await client.start(10_000)
        async with Admin(client) as admin:
            await body(admin)
        await client.close()

    run(on_host, name="test")


def test_a_record_is_written_once_and_only_after_it_was_confirmed(
    cluster: KafkaCluster, console: RunningConsole
) -> None:
    asked = post(
        console,
        "write",
        topic="flights",
        partition="1",
        key="UA",
        value=f"\r\n{EVIL}\r\né",
        headers="source=timetable=1\r\nempty=\r\n",
    )
    assert "Nothing was done yet" in asked.words
    assert "One record is written to topic flights, partition 1" in asked.words
    assert EVIL not in asked.text
    assert records(cluster, "flights", 1) == []
    done = confirmed(console, asked)
    assert (done.status, "The record is in flights-1 at offset 0" in done.words) == (200, True)
    again = post(console, "do", number=field(asked, "number"))
    assert (again.status, "The record is in flights-1 at offset 0" in again.words) == (200, True)
    assert "This form came before" in again.words
    (record,) = records(cluster, "flights", 1)
    assert (record.key(), record.value()) == (b"UA", f"\n{EVIL}\né".encode())
    assert record.headers() == [("source", b"timetable=1"), ("empty", b"")]
    assert any("Write the record" in each and "flights-1 at offset 0" in each for each in console.changes)


def test_keys_and_values_are_bytes_or_null(cluster: KafkaCluster, console: RunningConsole) -> None:
    confirmed(console, post(console, "write", topic="flights", partition="0", **{"key-as": "some"}))
    fields = {"topic": "flights", "partition": "0", "key": "00 ff", "key-as": "hex", "value-as": "null"}
    asked = post(console, "write", **fields)
    assert "null: a tombstone" in asked.words
    confirmed(console, asked)
    found = [(record.key(), record.value()) for record in records(cluster, "flights", 0)]
    assert found == [(None, b""), (b"\x00\xff", None)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "Name a topic"),
        ({"topic": "none"}, "There is no topic none"),
        ({"topic": "flights", "partition": "2"}, "flights has no partition 2"),
        ({"topic": "flights", "partition": "-1"}, "flights has no partition -1"),
        ({"topic": "flights", "key": "0g", "key-as": "hex"}, "The key is not hexadecimal"),
        ({"topic": "flights", "value": "x", "value-as": "null"}, "The value is null, and there is a text for it"),
        ({"topic": "flights", "headers": "no equals sign"}, "Each header is a line NAME=VALUE"),
        ({"topic": "flights", "headers": "a=1\n" * 101}, "There are 101 headers"),
    ],
)
def test_a_form_that_makes_no_sense_comes_back_with_what_was_written(
    console: RunningConsole, fields: dict[str, str], said: str
) -> None:
    answer = post(console, "write", **{"value": "my text", **fields})
    assert answer.status == 400
    assert said in answer.words
    assert fields.get("value", "my text") in answer.words


def test_what_the_broker_refuses_is_told_in_its_words(console: RunningConsole) -> None:
    done = confirmed(console, post(console, "write", topic="small", value="x" * 1_000))
    assert "failed" in done.words
    assert "The broker refused it: MESSAGE_TOO_LARGE" in done.words or "RECORD_TOO_LARGE" in done.words


def test_a_change_without_an_answer_may_have_been_done(cluster: KafkaCluster, console: RunningConsole) -> None:
    before = len(records(cluster, "small", 0))
    asked = post(console, "write", topic="small", value="1")
    cluster.lose_answers("Produce", count=1_000, client_id="barnabas-console")
    try:
        done = confirmed(console, asked)
    finally:
        cluster.clear_faults()
    assert "failed" in done.words
    assert "It may have been done" in done.words
    assert len(records(cluster, "small", 0)) == before + 1


def test_a_record_that_was_refused_each_time_was_surely_not_written(
    cluster: KafkaCluster, console: RunningConsole
) -> None:
    asked = post(console, "write", topic="small", value="1")
    cluster.fail_requests("Produce", "NOT_ENOUGH_REPLICAS", count=1_000, client_id="barnabas-console")
    try:
        done = confirmed(console, asked)
    finally:
        cluster.clear_faults()
    assert "It was surely not written." in done.words


def test_preferred_leaders_are_elected(cluster: KafkaCluster, console: RunningConsole) -> None:
    first = cluster.replicas("flights", 0)[0]
    cluster.stop_broker(first)
    cluster.start_broker(first)
    wait_until(lambda: len(cluster.in_sync_replicas("flights", 0)) == 3, "all are in sync", 30)
    assert cluster.leader("flights", 0) != first
    console.wait_for("/topics/flights/0", "Elect the preferred leader")
    wait_until(lambda: post(console, "elect", topic="flights", partition="0").status == 200, "the console knows", 30)
    asked = post(console, "elect", topic="flights", partition="0")
    assert f"flights-0 is led by broker {first} instead of broker" in asked.words
    assert "flights-1" not in asked.words
    assert "1 partition got the preferred leader." in confirmed(console, asked).words
    wait_until(lambda: cluster.leader("flights", 0) == first, "it leads", 30)
    console.wait_for("/topics/flights/0", without="Elect the preferred leader")
    refused = post(console, "elect", topic="flights", partition="0")
    assert (refused.status, "There is nothing to elect" in refused.words) == (400, True)


def test_a_move_is_cancelled(cluster: KafkaCluster, console: RunningConsole) -> None:
    controller = cluster.controller()
    other, target = (each for each in cluster.broker_ids if each != controller)
    moved = TopicPartition("moved", 0)
    cluster.create_topic("moved", partitions=1, replication_factor=1)

    async def home(admin: Admin) -> None:
        await admin.alter_partition_reassignments({moved: [controller]}, 10_000)
        while await admin.list_partition_reassignments([moved], 10_000):
            await asyncio.sleep(0.05)

    async def away(admin: Admin) -> None:
        await admin.alter_partition_reassignments({moved: [target]}, 10_000)

    as_admin(cluster, home)
    # Who cannot reach its leader never comes into sync.
    cluster.partition([controller, other], target)
    try:
        as_admin(cluster, away)
        # The move home may still be shown for a moment.
        row = f"moved-0 {controller} {target} {controller}"
        console.wait_for("/reassignments", "1 partition being moved", row, "Cancel all of them")
        asked = post(console, "cancel", topic="moved", partition="0")
        assert f"moved-0 stays on brokers {controller}; what brokers {target} have copied is deleted." in asked.words
        done = confirmed(console, asked).words
        # Where the answer is late, it is asked for again, and the broker finds nothing to cancel any more.
        assert "1 move cancelled." in done or "Still being moved: 0 of 1 partition." in done, done
        wait_until(lambda: cluster.replicas("moved") == (controller,), "it is as it was", 30)
        console.wait_for("/reassignments", "Nothing is being moved.", without="Cancel all")
        assert post(console, "cancel", topic="moved", partition="0").status == 400
        assert post(console, "cancel").status == 400
    finally:
        cluster.heal()


def test_a_move_that_has_ended_meanwhile_is_told_of(cluster: KafkaCluster, console: RunningConsole) -> None:
    controller = cluster.controller()
    other, target = (each for each in cluster.broker_ids if each != controller)
    ended = TopicPartition("ended", 0)
    cluster.create_topic("ended", partitions=1, replication_factor=1)

    async def move(admin: Admin, to: int | None) -> None:
        await admin.alter_partition_reassignments({ended: None if to is None else [to]}, 10_000)

    async def home(admin: Admin) -> None:
        await move(admin, controller)
        while await admin.list_partition_reassignments([ended], 10_000):
            await asyncio.sleep(0.05)

    as_admin(cluster, home)
    cluster.partition([controller, other], target)
    try:
        as_admin(cluster, lambda admin: move(admin, target))
        console.wait_for("/reassignments", f"ended-0 {controller} {target} {controller}")
        asked, another = (post(console, "cancel", topic="ended", partition="0") for _ in range(2))
        as_admin(cluster, lambda admin: move(admin, None))
        done = confirmed(console, asked)
        assert "Nothing was cancelled. 1 move had come to an end before." in done.words

        # Who has seen one move does not cancel the next.
        async def both(admin: Admin) -> None:
            await admin.alter_partition_reassignments({ended: [controller, target]}, 10_000)

        as_admin(cluster, both)
        done = confirmed(console, another)
        assert "Nothing was cancelled. 1 partition moved otherwise than was shown: left alone." in done.words
        as_admin(cluster, lambda admin: move(admin, None))
    finally:
        cluster.heal()


@pytest.mark.parametrize(
    ("headers", "token", "status"),
    [
        ({}, "", 403),
        ({}, "0" * 64, 403),
        ({"Origin": "http://evil.example"}, None, 403),
        ({"Origin": "null"}, None, 403),
        ({"Sec-Fetch-Site": "same-site"}, None, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, None, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, None, 421),
        ({"Content-Type": "text/plain"}, None, 415),
    ],
)
def test_forms_of_others_do_nothing(
    cluster: KafkaCluster, console: RunningConsole, headers: dict[str, str], token: str | None, status: int
) -> None:
    asked = post(console, "write", topic="flights", value="forged")
    right = field(asked, "token")
    fields = {"token": right if token is None else token, "number": field(asked, "number")}
    assert console.post("/change/do", fields, headers=headers).status == status
    assert console.get(f"/change/do?token={right}&number={fields['number']}").status == 404
    values = [record.value() for number in (0, 1) for record in records(cluster, "flights", number)]
    assert b"forged" not in values


def test_what_waits_to_be_confirmed_is_bounded(console: RunningConsole) -> None:
    oldest = post(console, "write", topic="flights", value="oldest")
    for _ in range(32):
        post(console, "write", topic="flights", value="newer")
    assert confirmed(console, oldest).status == 409


def test_a_console_that_only_reads_takes_no_form(cluster: KafkaCluster, console: RunningConsole) -> None:
    with RunningConsole(cluster.bootstrap_servers) as reading:
        reading.wait_for("/topics", "flights")
        assert reading.get("/write").status == 404
        assert "<form" not in reading.get("/reassignments").text
        assert "Write a record" not in reading.get("/topics/flights").text
        token = field(console.get("/write"), "token")
        assert reading.post("/change/write", {"token": token, "topic": "flights"}).status == 405
