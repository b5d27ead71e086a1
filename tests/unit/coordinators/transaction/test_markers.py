"""`barnabas.coordinators.transaction.markers`: whatever brokers do, each partition is told, in bounded requests."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.coordinators.transaction.markers import PARTITIONS_PER_REQUEST, Ending
from barnabas.coordinators.transaction.transactions import Producer
from barnabas.wire.errors import ErrorCode
from barnabas.wire.topics import TopicPartition
from tests.unit.coordinators.transaction.transaction_world import TransactionWorld

ME = Producer(5, 3)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def send(
    world: TransactionWorld, *partitions: TopicPartition, is_wanted: bool = True, producer: Producer = ME
) -> list[str]:
    """A list that gets "written" when all have the marker."""
    written: list[str] = []
    world.sender.send(
        Ending(
            "x",
            producer,
            9,
            partitions,
            is_commit=True,
            is_wanted=lambda: is_wanted,
            on_written=lambda: written.append("written"),
        )
    )
    return written


@pytest.mark.parametrize("fate", ["down", "leaderless", "refuses", "answers in vain", "leaves out"])
def test_a_broker_is_told_again_until_it_has_the_marker(world: TransactionWorld, fate: str) -> None:
    world.brokers.fates[0] = fate
    written = send(world, T0, T1)
    world.pass_ms(30_000)
    assert written == []
    assert world.brokers.markers[T1] == [(ME, True, 9)]
    assert len(world.brokers.requests) < 60
    world.brokers.fates.clear()
    world.pass_ms(1_100)
    assert written == ["written"]
    assert set(world.brokers.markers[T0]) == {(ME, True, 9)}


@pytest.mark.parametrize("code", [ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_errors_that_nobody_expects_are_told_and_tried_again(world: TransactionWorld, code: ErrorCode) -> None:
    world.brokers.codes[T0] = code
    written = send(world, T0)
    world.pass_ms(200)
    assert any(code.name in line for line in world.lines)
    world.brokers.codes.clear()
    world.pass_ms(1_100)
    assert written == ["written"]


@pytest.mark.parametrize("code", [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION])
def test_a_partition_that_can_have_no_transaction_needs_no_marker(world: TransactionWorld, code: ErrorCode) -> None:
    world.brokers.codes[T0] = code
    written = send(world, T0)
    world.pass_ms(20)
    assert written == ["written"]


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
def test_who_is_fenced_sends_nothing_more(world: TransactionWorld, code: ErrorCode) -> None:
    world.brokers.codes[T0] = code
    world.brokers.fates[1] = "down"
    written = send(world, T0, T1)
    world.pass_ms(5_000)
    asked = len(world.brokers.requests)
    world.brokers.fates.clear()
    world.pass_ms(5_000)
    assert (written, len(world.brokers.requests)) == ([], asked)


def test_a_partition_counts_as_deleted_when_it_is_unknown_for_long(world: TransactionWorld) -> None:
    world.brokers.deleted |= {T0, T1}
    written = send(world, T0, T1)
    world.pass_ms(4_000)
    assert written == []
    world.brokers.deleted.discard(T1)  # it was new
    world.pass_ms(3_000)
    assert written == ["written"]
    assert world.brokers.markers == {T1: [(ME, True, 9)]}


def test_one_without_partitions_is_written_at_once(world: TransactionWorld) -> None:
    written = send(world)
    world.pass_ms(1)
    assert (written, world.brokers.requests) == (["written"], [])


def test_what_nobody_wants_is_not_sent(world: TransactionWorld) -> None:
    written = send(world, T0, is_wanted=False)
    world.pass_ms(100)
    assert (written, world.brokers.requests) == ([], [])


def test_a_broker_has_one_request_of_bounded_size_and_what_comes_meanwhile_goes_with_the_next(
    world: TransactionWorld,
) -> None:
    world.brokers.hold = asyncio.Event()
    many = [TopicPartition("t", 3 * number) for number in range(2 * PARTITIONS_PER_REQUEST + 1)]
    first = send(world, *many)
    world.pass_ms(50)
    others = [send(world, TopicPartition("u", 0), producer=Producer(100 + n, 0)) for n in range(50)]
    world.pass_ms(50)
    assert len(world.brokers.requests) == 1
    world.brokers.hold.set()
    world.pass_ms(100)
    assert [first, *others] == [["written"]] * 51
    sizes = [
        sum(len(topic.partition_indexes) for marker in request.markers for topic in marker.topics)
        for _, request in world.brokers.requests
    ]
    assert len(sizes) == 3
    assert max(sizes) == PARTITIONS_PER_REQUEST
    assert sum(sizes) == len(many) + 50
    assert {len(told) for partition, told in world.brokers.markers.items() if partition.topic == "t"} == {1}


def test_very_many_partitions_are_sent_in_turns(world: TransactionWorld) -> None:
    written = send(world, *(TopicPartition("t", number) for number in range(20_000)))
    before = world.loop.turns
    world.pass_ms(1_000)
    assert written == ["written"]
    assert world.loop.turns - before > 3 * 20_000 // 256


def test_a_stopped_sender_calls_nobody(world: TransactionWorld) -> None:
    world.brokers.fates[0] = "down"
    written = send(world, T0, T1)
    world.pass_ms(1)
    world.stop_broker()
    world.brokers.fates.clear()
    world.pass_ms(5_000)
    assert written == []


def test_partitions_are_named_in_one_order_whatever_their_hashes_are(world: TransactionWorld) -> None:
    partitions = {TopicPartition(topic, number) for topic in ("a", "b", "c") for number in range(0, 60, 3)}
    send(world, *partitions)
    world.pass_ms(20)
    ((_, request),) = world.brokers.requests
    (marker,) = request.markers
    assert [
        TopicPartition(topic.name, number) for topic in marker.topics for number in topic.partition_indexes
    ] == sorted(partitions)
