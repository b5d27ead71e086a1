"""What is remembered of deleted replicas."""

from __future__ import annotations

from barnabas.kernel.ids import ZERO_UUID, Uuid
from barnabas.replicas.deletion_fence import REMEMBERED_MAX, DeletionFence
from barnabas.wire.sentinels import EPOCH_DURING_DELETE, NO_EPOCH
from barnabas.wire.topics import TopicPartition

FLIGHTS = TopicPartition("flights", 0)
FLIGHTS_ID = Uuid(b"f" * 16)
LAST_EPOCH = 2**31 - 1


def test_a_topic_that_is_deleted_never_comes_back_with_its_id() -> None:
    deleted = DeletionFence()
    deleted.add(FLIGHTS, FLIGHTS_ID, 3, EPOCH_DURING_DELETE)
    assert deleted.is_gone(FLIGHTS, FLIGHTS_ID, LAST_EPOCH)
    assert not deleted.is_gone(FLIGHTS, Uuid(b"o" * 16), 0)
    assert not deleted.is_gone(TopicPartition("flights", 1), FLIGHTS_ID, 0)


def test_a_replica_that_was_moved_away_is_gone_up_to_the_epoch_of_that() -> None:
    deleted = DeletionFence()
    deleted.add(FLIGHTS, FLIGHTS_ID, 3, 4)
    assert [deleted.is_gone(FLIGHTS, FLIGHTS_ID, epoch) for epoch in (3, 4, 5)] == [True, True, False]
    deleted.add(FLIGHTS, FLIGHTS_ID, 6, NO_EPOCH)
    assert [deleted.is_gone(FLIGHTS, FLIGHTS_ID, epoch) for epoch in (6, 7)] == [True, False]


def test_topics_without_id_are_not_remembered() -> None:
    deleted = DeletionFence()
    deleted.add(FLIGHTS, ZERO_UUID, 3, EPOCH_DURING_DELETE)
    assert not deleted.is_gone(FLIGHTS, ZERO_UUID, 0)


def test_memory_is_bounded() -> None:
    deleted = DeletionFence()
    for number in range(REMEMBERED_MAX + 1):
        deleted.add(TopicPartition("flights", number), FLIGHTS_ID, 0, EPOCH_DURING_DELETE)
    assert [deleted.is_gone(TopicPartition("flights", number), FLIGHTS_ID, 0) for number in (0, 1)] == [False, True]
