"""Which log directories a plan has replicas come into."""

from __future__ import annotations

from barnabas.cli.reassignment_directories import Located, Map
from barnabas.cli.reassignment_planner import Move
from barnabas.cli.reassignment_spread import spread
from barnabas.client.log_directories import LogDirectory, ReplicaLog
from barnabas.wire.topics import TopicPartition

A, B, C, D, HERE = (TopicPartition("flights", number) for number in range(5))


def directory(path: str, size_bytes: int, usable_bytes: int | None = None, error: str | None = None) -> LogDirectory:
    return LogDirectory(path, error, (ReplicaLog(HERE, size_bytes, 0, False),), None, usable_bytes)


def move(partition: TopicPartition, size_bytes: int) -> Move:
    """From broker 1 to broker 2."""
    return Move(partition, (1,), (2,), size_bytes)


def test_the_largest_comes_first_and_each_goes_where_least_is() -> None:
    where = Map({}, {2: (directory("/a", 30), directory("/b", 0))})
    moves = [move(A, 5), move(B, 20), move(C, 40), move(D, 5)]
    # /b has 40 then; /a gets 20 and has 50; /b 45 and then, before /a, 50.
    assert spread(moves, where) == {(C, 2): "/b", (B, 2): "/a", (A, 2): "/b", (D, 2): "/b"}
    assert spread(moves[::-1], where) == spread(moves, where)


def test_what_leaves_a_directory_is_not_counted() -> None:
    located = {(D, 2): Located("/a", None, 30)}
    where = Map(located, {2: (directory("/a", 30), directory("/b", 10))})
    assert spread([move(A, 1)], where) == {(A, 2): "/b"}
    assert spread([move(A, 1), Move(D, (2,), (1,), 30)], where) == {(A, 2): "/a"}


def test_a_directory_without_room_is_taken_only_where_none_has_any() -> None:
    full = directory("/a", 0, usable_bytes=15)
    where = Map({}, {2: (full, directory("/b", 90, usable_bytes=500))})
    assert spread([move(A, 10), move(B, 10)], where) == {(A, 2): "/a", (B, 2): "/b"}
    assert spread([move(A, 900)], where) == {(A, 2): "/a"}


def test_brokers_choose_where_there_is_no_choice_or_nothing_is_told() -> None:
    assert spread([move(A, 10)], Map({}, {})) == {}
    assert spread([move(A, 10)], Map({}, {2: (directory("/a", 0),)})) == {}
    failed = directory("/b", 0, error="KAFKA_STORAGE_ERROR")
    assert spread([move(A, 10)], Map({}, {2: (directory("/a", 9), failed)})) == {}
    # Only the order changes: nothing comes.
    there = Map({}, {2: (directory("/a", 0), directory("/b", 0))})
    assert spread([Move(A, (1, 2), (2, 1), 10)], there) == {}
