"""Where replicas go: Kafka's own examples of its spread, and what holds for all."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.topic_assignment import (
    BrokerRack,
    assign_replicas,
    check_manual_assignment,
    check_topic_name,
    rack_alternated,
)
from barnabas.wire.errors import ErrorCode, KafkaError

SOURCE = random.Random(1)


def test_the_spread_without_racks() -> None:
    brokers = [BrokerRack(broker) for broker in range(5)]
    assert assign_replicas(brokers, 10, 3, SOURCE, start_index=0) == {
        0: (0, 1, 2),
        1: (1, 2, 3),
        2: (2, 3, 4),
        3: (3, 4, 0),
        4: (4, 0, 1),
        5: (0, 2, 3),
        6: (1, 3, 4),
        7: (2, 4, 0),
        8: (3, 0, 1),
        9: (4, 1, 2),
    }


def test_the_spread_over_racks() -> None:
    racks = {0: "r1", 1: "r3", 2: "r3", 3: "r2", 4: "r2", 5: "r1"}
    assert rack_alternated(racks) == [0, 3, 1, 5, 4, 2]
    brokers = [BrokerRack(broker, rack) for broker, rack in racks.items()]
    assert assign_replicas(brokers, 7, 3, SOURCE, start_index=0) == {
        0: (0, 3, 1),
        1: (3, 1, 5),
        2: (1, 5, 4),
        3: (5, 4, 2),
        4: (4, 2, 0),
        5: (2, 0, 3),
        6: (0, 4, 2),
    }


def test_racks_of_unequal_size_take_their_turns() -> None:
    assert rack_alternated({5: "b", 1: "a", 3: "a", 2: "a"}) == [1, 5, 2, 3]


def test_added_partitions_go_on_from_where_the_topic_is() -> None:
    brokers = [BrokerRack(broker) for broker in range(4)]
    whole = assign_replicas(brokers, 4, 2, SOURCE, start_index=2)
    rest = assign_replicas(brokers, 2, 2, SOURCE, start_index=2, first_partition=2)
    assert rest == {partition: whole[partition] for partition in (2, 3)}


@given(
    st.integers(1, 7).flatmap(lambda brokers: st.tuples(st.just(brokers), st.integers(1, brokers))),
    st.integers(1, 20),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_what_holds_for_every_spread(
    sizes: tuple[int, int], partitions: int, rack_count: int, with_racks: bool, seed: int
) -> None:
    broker_count, factor = sizes
    rack_of = {broker: f"r{broker % rack_count}" for broker in range(broker_count)}
    brokers = [BrokerRack(broker, rack_of[broker] if with_racks else None) for broker in range(broker_count)]
    assigned = assign_replicas(brokers, partitions, factor, random.Random(seed))
    assert assigned == assign_replicas(brokers, partitions, factor, random.Random(seed))
    assert list(assigned) == list(range(partitions))
    check_manual_assignment(assigned)
    leaders = Counter(replicas[0] for replicas in assigned.values())
    assert max(leaders.values()) <= -(-partitions // broker_count)
    for replicas in assigned.values():
        assert len(replicas) == factor
        if with_racks:
            assert len({rack_of[broker] for broker in replicas}) == min(factor, len(set(rack_of.values())))


@pytest.mark.parametrize(
    ("brokers", "partitions", "factor", "code"),
    [
        ([BrokerRack(1)], 0, 1, ErrorCode.INVALID_PARTITIONS),
        ([BrokerRack(1)], 1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        ([BrokerRack(1)], 1, 2, ErrorCode.INVALID_REPLICATION_FACTOR),
        ([BrokerRack(1, "a"), BrokerRack(2)], 1, 1, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_what_cannot_be_assigned(brokers: list[BrokerRack], partitions: int, factor: int, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        assign_replicas(brokers, partitions, factor, SOURCE)
    assert refused.value.code is code


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ({}, "no partitions"),
        ({0: [1], 2: [1]}, "a consecutive 0-based integer sequence"),
        ({0: [1, 2], 1: [1]}, "same number"),
        ({0: []}, "no replicas"),
        ({0: [1, 1]}, "Duplicate replica assignment"),
        ({0: [1, -1]}, "negative"),
    ],
)
def test_what_a_client_may_not_ask_for(assignment: dict[int, list[int]], complaint: str) -> None:
    with pytest.raises(KafkaError, match=complaint) as refused:
        check_manual_assignment(assignment)
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_partitions_can_be_added_by_hand() -> None:
    check_manual_assignment({3: [1, 2], 2: [2, 1]}, first_partition=2)


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "ä", "a/b", "a\n"])
def test_names_that_no_topic_may_have(name: str) -> None:
    with pytest.raises(KafkaError) as refused:
        check_topic_name(name)
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a" * 249, "...", "A.b_c-9", "__consumer_offsets"])
def test_names_that_topics_may_have(name: str) -> None:
    check_topic_name(name)
