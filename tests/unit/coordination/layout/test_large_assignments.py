"""Assignments of topics with very many partitions: in steps, with the same bytes; and what they take at least."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.coordination.layout import topics
from barnabas.coordination.layout.payload import Fields, LayoutError
from barnabas.coordination.layout.topics import (
    MOVING_PER_STEP,
    PARTITIONS_PER_STEP,
    ReplicaAssignment,
    TopicAssignment,
    decode_topic_id,
    least_assignment_bytes,
)
from barnabas.kernel.ids import Uuid

PATH = "/brokers/topics/t"
TOPIC_ID = Uuid(bytes(range(16)))
Result = TypeVar("Result")


def counted(steps: Generator[None, None, Result]) -> tuple[int, Result]:
    """How often it gave way, and the result."""
    gave_way = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return gave_way, stop.value
        gave_way += 1


def assignment(count: int) -> TopicAssignment:
    partitions = {number: ReplicaAssignment((1 + number % 3, 4)) for number in range(count)}
    partitions[count - 1] = ReplicaAssignment((1, 4, 5), (5,), (1,))
    return TopicAssignment(partitions, TOPIC_ID, extra={"x": 1, "partitions": "no"})


@pytest.mark.parametrize("count", [1, PARTITIONS_PER_STEP, 2 * PARTITIONS_PER_STEP + 5])
def test_in_steps_it_is_what_it_is_at_once(count: int) -> None:
    wanted = assignment(count)
    gave_way, encoded = counted(wanted.encode_in_steps())
    assert gave_way == (count - 1) // PARTITIONS_PER_STEP
    whole: dict[str, Any] = {
        "partitions": {str(number): list(each.replicas) for number, each in wanted.partitions.items()},
        "topic_id": str(TOPIC_ID),
        "adding_replicas": {str(count - 1): [5]},
        "removing_replicas": {str(count - 1): [1]},
        "version": 3,
        "x": 1,
    }
    assert encoded == json.dumps(whole, separators=(",", ":")).encode()
    gave_way, decoded = counted(TopicAssignment.decode_in_steps(encoded, PATH))
    # Reading the JSON of more than a step's is a step; since one of them moves, each is looked at by itself.
    assert gave_way == (count - 1) // MOVING_PER_STEP + (count > MOVING_PER_STEP)
    assert (decoded.partitions, decoded.topic_id, decoded.extra) == (wanted.partitions, TOPIC_ID, {"x": 1})
    assert decode_topic_id(encoded, PATH) == TOPIC_ID


def test_no_partitions_are_none() -> None:
    empty = TopicAssignment({}, TOPIC_ID)
    assert TopicAssignment.decode(empty.encode(), PATH) == empty


@pytest.mark.parametrize("replicas", ["[true]", "[1.0]", '["1"]', "[[1]]", "1", "[3000000000]"])
def test_what_equals_the_replicas_of_another_partition_is_looked_at_all_the_same(replicas: str) -> None:
    data = f'{{"version":3,"partitions":{{"0":[1],"1":{replicas}}}}}'
    with pytest.raises(LayoutError, match=r"partitions\.1"):
        TopicAssignment.decode(data.encode(), PATH)


ANYTHING: st.SearchStrategy[Any] = st.one_of(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.lists(st.sampled_from([0, -1, True, 1.0, None, "1", 2**31 - 1, 2**31, [1]]), max_size=2),
    st.sampled_from([None, 1, {}]),
)
NUMBERS = st.integers(0, 12).map(str) | st.sampled_from(["", "-1", "1 ", "x", "2147483647", "2147483648", "\u0661"])


@given(st.dictionaries(NUMBERS, ANYTHING, max_size=4))
def test_what_is_looked_at_all_at_once_is_right_in_each(assigned: dict[str, Any]) -> None:
    try:
        topics._check_assignments(Fields({}, PATH), assigned, {}, {})
    except LayoutError:
        assert not topics._are_plain(assigned)


def test_usual_assignments_are_looked_at_all_at_once() -> None:
    assert topics._are_plain({"0": [1, 2], "12": [2147483647]})


@given(first=st.integers(0, 1_200), count=st.integers(1, 300), factor=st.integers(1, 4))
def test_the_least_that_it_takes_is_what_it_takes_with_the_shortest_broker_ids(
    first: int, count: int, factor: int
) -> None:
    partitions = {number: ReplicaAssignment(tuple(range(1, factor + 1))) for number in range(first, first + count)}
    encoded = TopicAssignment(partitions).encode()
    inside = encoded.removeprefix(b'{"partitions":{').partition(b"}")[0]
    assert least_assignment_bytes(first, count, 2 * factor - 1) == len(inside) + 1
