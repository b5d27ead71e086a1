"""Which segment has an offset, after whatever records; against a model that looks at all of them."""

from __future__ import annotations

import random

import pytest

from barnabas.kernel.ids import Uuid
from barnabas.kernel.transitions import IllegalTransitionError
from barnabas.tiered.metadata_cache import RemoteLogMetadataCache
from barnabas.tiered.segment_metadata import (
    SEGMENT,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    RemotePartitionDeleteState,
    RemotePartitionDeletion,
    TopicIdPartition,
)
from barnabas.wire.topics import TopicPartition

PARTITION = TopicIdPartition(Uuid(bytes(16)), TopicPartition("flights", 0))
State = RemoteLogSegmentState


def segment(number: int, start: int, end: int, epochs: dict[int, int] | None = None) -> RemoteLogSegmentMetadata:
    segment_id = RemoteLogSegmentId(PARTITION, Uuid(number.to_bytes(16, "big")))
    return RemoteLogSegmentMetadata(segment_id, start, end, 5, 1, 7, 100, epochs or {0: start})


def update(of: RemoteLogSegmentMetadata, state: State) -> RemoteLogSegmentUpdate:
    return RemoteLogSegmentUpdate(of.segment_id, 1, 8, state)


def cache_of(*finished: RemoteLogSegmentMetadata) -> RemoteLogMetadataCache:
    cache = RemoteLogMetadataCache()
    for each in finished:
        cache.apply(each)
        cache.apply(update(each, State.COPY_SEGMENT_FINISHED))
    return cache


def found(cache: RemoteLogMetadataCache, epoch: int, offset: int) -> int | None:
    segment = cache.find(epoch, offset)
    return None if segment is None else int.from_bytes(segment.segment_id.id, "big")


def test_a_segment_is_found_only_while_it_is_whole() -> None:
    cache, one = RemoteLogMetadataCache(), segment(1, 10, 19)
    cache.apply(one)
    assert cache.find(0, 15) is None
    cache.apply(update(one, State.COPY_SEGMENT_FINISHED))
    assert [found(cache, 0, offset) for offset in (9, 10, 19, 20)] == [None, 1, 1, None]
    assert found(cache, 1, 15) is None
    cache.apply(update(one, State.DELETE_SEGMENT_STARTED))
    assert cache.find(0, 15) is None
    assert list(cache.segments_of(0)) == cache.segments() != []
    cache.apply(update(one, State.DELETE_SEGMENT_FINISHED))
    assert list(cache.segments_of(0)) == cache.segments() == []
    assert cache.highest_offset(0) == 19


def test_an_offset_is_found_in_the_epoch_in_which_it_was_written() -> None:
    cache = cache_of(segment(1, 0, 9, {0: 0, 2: 5}), segment(2, 10, 19, {2: 10, 3: 15}))
    assert [found(cache, epoch, 5) for epoch in (0, 1, 2)] == [None, None, 1]
    assert [found(cache, 2, offset) for offset in (9, 10, 14, 15)] == [1, 2, 2, None]
    assert cache.epochs() == [0, 2, 3]
    assert [cache.start_behind(2, offset) for offset in (0, 5, 9, 10)] == [5, 10, 10, None]
    assert cache.start_behind(1, 0) is None


def test_of_two_copies_the_one_is_found_that_reaches_further_and_then_the_other() -> None:
    small, large = segment(1, 10, 14), segment(2, 5, 20)
    cache = cache_of(small, large)
    assert [found(cache, 0, offset) for offset in (5, 12, 20)] == [2, 2, 2]
    assert len(list(cache.segments_of(0))) == 2
    cache.apply(update(large, State.DELETE_SEGMENT_STARTED))
    assert [found(cache, 0, offset) for offset in (5, 12, 20)] == [None, 1, None], "the other is still whole"


@pytest.mark.parametrize("small", [(5, 14), (10, 14), (10, 20)])
def test_a_copy_within_another_hides_nothing_of_it(small: tuple[int, int]) -> None:
    large = segment(1, 5, 20)
    cache = cache_of(large, segment(2, *small))
    assert [found(cache, 0, offset) for offset in (5, 12, 15, 20)] == [1, 1, 1, 1]
    cache.apply(update(large, State.DELETE_SEGMENT_STARTED))
    assert [found(cache, 0, offset) for offset in small] == [2, 2]


def test_a_copy_that_nobody_heard_of_does_not_take_the_place_of_another_for_good() -> None:
    ours, theirs = segment(1, 10, 19), segment(2, 10, 19)
    cache = cache_of(ours)
    cache.apply(theirs)
    cache.apply(update(theirs, State.COPY_SEGMENT_FINISHED))
    cache.apply(update(theirs, State.DELETE_SEGMENT_STARTED))
    assert found(cache, 0, 15) == 1
    cache.apply(update(theirs, State.DELETE_SEGMENT_FINISHED))
    assert found(cache, 0, 15) == 1


@pytest.mark.parametrize("state", [None, *State])
@pytest.mark.parametrize("event", list(State))
def test_every_state_by_every_record(state: State | None, event: State) -> None:
    cache, one = RemoteLogMetadataCache(), segment(1, 0, 9)
    for each in list(State)[: 0 if state is None else state + 1]:
        cache.apply(one if each is State.COPY_SEGMENT_STARTED else update(one, each))
    record = one if event is State.COPY_SEGMENT_STARTED else update(one, event)
    is_known = state is not None and state is not State.DELETE_SEGMENT_FINISHED
    before = cache.segments()
    if is_known and not SEGMENT.allows(state or State.COPY_SEGMENT_STARTED, event):
        with pytest.raises(IllegalTransitionError):
            cache.apply(record)
        assert cache.segments() == before
        return
    cache.apply(record)
    if not is_known and event is not State.COPY_SEGMENT_STARTED:
        assert not cache.segments(), "what it tells of was never heard of"
    elif event is State.DELETE_SEGMENT_FINISHED:
        assert not cache.segments()
    else:
        (known,) = cache.segments()
        assert known.state is event
        assert (cache.find(0, 5) is not None) == (event is State.COPY_SEGMENT_FINISHED)


def test_the_deletion_of_a_partition() -> None:
    cache = RemoteLogMetadataCache()
    states = list(RemotePartitionDeleteState)
    cache.apply(RemotePartitionDeletion(PARTITION, 1, 1, states[1]))
    assert cache.deletion is None, "its mark has outlived its retention"
    for state in states:
        cache.apply(RemotePartitionDeletion(PARTITION, 1, 1, state))
        assert cache.deletion is state
    with pytest.raises(IllegalTransitionError):
        cache.apply(RemotePartitionDeletion(PARTITION, 1, 1, states[0]))


@pytest.mark.parametrize("seed", range(60))
def test_what_is_found_is_whole_and_has_the_offset(seed: int) -> None:
    """And whatever is in a whole segment is found, in whatever order they came and went."""
    choose = random.Random(seed)
    cache = RemoteLogMetadataCache()
    known: dict[int, RemoteLogSegmentMetadata] = {}
    for step in range(120):
        if not known or choose.random() < 0.4:
            start = choose.randrange(60)
            end = start + choose.randrange(1, 20)
            middle = choose.randrange(start, end + 1)
            epochs = {0: start, 1: middle} if start < middle else {1: start}
            known[step] = segment(step, start, end, epochs)
            cache.apply(known[step])
        else:
            number = choose.choice(list(known))
            current = cache.segment(known[number].segment_id)
            state = choose.choice(list(State)[1:])
            if current is not None and not SEGMENT.allows(current.state, state):
                continue
            cache.apply(update(known[number], state))
        whole = [each for each in cache.segments() if each.state is State.COPY_SEGMENT_FINISHED]
        for epoch in (0, 1):
            for offset in range(0, 80, 3):
                having = [
                    each
                    for each in whole
                    if epoch in each.leader_epochs and each.leader_epochs[epoch] <= offset <= each.end_offset_in(epoch)
                ]
                answer = cache.find(epoch, offset)
                assert (answer in having) if having else answer is None, (epoch, offset)
