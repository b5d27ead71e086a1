"""Reassignments and the events that their own writes cause: these are looked at once, what others write always."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from barnabas.coordination.layout.admin import REASSIGN_PARTITIONS_PATH, Reassignment
from barnabas.coordination.layout.topics import ReplicaAssignment, TopicAssignment, topic_path
from barnabas.coordination.operations import GetData, Multi, SetData
from barnabas.wire.errors import ErrorCode
from barnabas.wire.topics import TopicPartition
from tests.unit.controller.term_harness import Terms
from tests.unit.controller.test_reassignment import T0, ask_by_znode, with_topic

PATH = topic_path("t")
T1 = TopicPartition("t", 1)


def add_partition(terms: Terms, number: int) -> None:
    """As `kafka-topics --alter` of old versions does: by the znode."""
    before = TopicAssignment.decode(terms.store.znodes[PATH][0], "t")
    partitions = {**before.partitions, number: ReplicaAssignment((1, 2))}
    terms.store.put_data(PATH, dataclasses.replace(before, partitions=partitions).encode())


def ask_for_more(terms: Terms, partition: TopicPartition, *target: int) -> None:
    present = Reassignment.decode(terms.store.znodes[REASSIGN_PARTITIONS_PATH][0])
    wanted = Reassignment({**present.partitions, partition: target})
    terms.store.put_data(REASSIGN_PARTITIONS_PATH, wanted.encode())


def once(terms: Terms, is_time: Callable[[], bool], act: Callable[[], None]) -> Callable[[], bool]:
    """Has `act` happen once before the first batch of operations at which it is time; returns whether it has."""
    has_acted = False

    def before_batch() -> None:
        nonlocal has_acted
        if not has_acted and is_time():
            has_acted = True
            act()

    terms.store.before_batch = before_batch
    return lambda: has_acted


def reads_of(terms: Terms, path: str) -> int:
    return sum(isinstance(each, GetData) and each.path == path for each in terms.store.performed)


def test_what_the_controller_has_written_itself_is_not_read_again() -> None:
    terms = with_topic((1, 2, 3), (1, 2, 3), (1, 2, 3))
    ask_by_znode(terms, t0=(4, 5, 6), t1=(4, 5), t2=(1, 4))
    terms.store.performed.clear()
    assert terms.propose(T0, 1, 2, 3, 4, 5, 6) is ErrorCode.NONE
    # To be replaced; and to have its request removed.
    before_events = reads_of(terms, PATH), reads_of(terms, REASSIGN_PARTITIONS_PATH)
    assert before_events == (1, 1)
    assert len(terms.events) == 2
    terms.settle()
    assert (reads_of(terms, PATH), reads_of(terms, REASSIGN_PARTITIONS_PATH)) == before_events


@pytest.mark.parametrize("is_before_write", [True, False])
def test_partitions_that_somebody_adds_meanwhile_are_seen(is_before_write: bool) -> None:
    terms = with_topic()
    terms.reassign(T0, 1, 2, 4)
    terms.settle()
    if is_before_write:
        # Between the last read of the assignment and its write.
        def is_written_next() -> bool:
            reads = [each for each in terms.store.performed if isinstance(each, GetData) and each.path == PATH]
            return bool(reads)

        terms.store.performed.clear()
        has_acted = once(terms, is_written_next, lambda: add_partition(terms, 1))
        terms.propose(T0, 1, 2, 3, 4)
        assert has_acted()
    else:
        terms.propose(T0, 1, 2, 3, 4)
        add_partition(terms, 1)
    terms.settle()
    assert terms.assignment("t") == ReplicaAssignment((1, 2, 4))
    assert terms.assignment("t", 1) == ReplicaAssignment((1, 2))
    assert terms.state("t", 1) is not None
    assert terms.refusals() == []


@pytest.mark.parametrize("is_before_write", [True, False])
def test_reassignments_that_somebody_asks_for_meanwhile_are_seen(is_before_write: bool) -> None:
    terms = with_topic((1, 2, 3), (1, 2, 3), (1, 2, 3))
    ask_by_znode(terms, t0=(1, 2, 4), t2=(1, 4))
    terms.store.performed.clear()
    if is_before_write:
        has_acted = once(
            terms,
            # The assignment is in its place, and the request has been or is about to be read.
            lambda: terms.assignment("t") == ReplicaAssignment((1, 2, 4)),
            lambda: ask_for_more(terms, T1, 5, 6),
        )
        terms.propose(T0, 1, 2, 3, 4)
        assert has_acted()
    else:
        terms.propose(T0, 1, 2, 3, 4)
        ask_for_more(terms, T1, 5, 6)
    terms.settle()
    assert terms.assignment("t", 1).target_replicas == (5, 6)
    left = Reassignment.decode(terms.store.znodes[REASSIGN_PARTITIONS_PATH][0])
    assert set(left.partitions) == {T1, TopicPartition("t", 2)}


def test_a_topic_that_is_made_anew_is_not_taken_for_the_former_one() -> None:
    terms = with_topic()
    terms.delete("t")
    terms.settle()
    assert terms.term.context.known_assignments == {}
    terms.create("t", (1, 2))
    terms.settle()
    add_partition(terms, 1)
    terms.settle()
    assert terms.state("t", 1) is not None


def test_a_write_that_changes_nothing_is_known_from_then_on() -> None:
    terms = with_topic()
    data = terms.store.znodes[PATH][0]
    terms.store.put_data(PATH, data)
    terms.settle()
    terms.store.performed.clear()
    terms.reassign(T0, 3, 2, 1)
    terms.settle()
    # Read once to mark it, and once to end it, when it is there already; not for the event of the write.
    assert (reads_of(terms, PATH), len(writes_of(terms, PATH))) == (2, 1)


def writes_of(terms: Terms, path: str) -> list[SetData]:
    return [
        part
        for each in terms.store.performed
        if isinstance(each, Multi)
        for part in each.operations
        if isinstance(part, SetData) and part.path == path
    ]
