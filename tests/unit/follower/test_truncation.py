from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from barnabas.follower.truncation import Truncation, truncation
from barnabas.log.partition.leader_epochs import UNDEFINED_END, EpochEnd, LeaderEpochCache


def follower_log(epochs: list[int]) -> LeaderEpochCache:
    """The epochs of a log, of which each entry is the epoch of one record."""
    cache = LeaderEpochCache()
    for offset, epoch in enumerate(epochs):
        cache.assign(epoch, offset)
    return cache


def decide(leader_end: EpochEnd, epochs: list[int], fallback: int = 0) -> Truncation:
    cache = follower_log(epochs)
    return truncation(
        leader_end,
        log_end_offset=len(epochs),
        fallback_offset=fallback,
        local_end=lambda epoch: cache.end_offset_for(epoch, len(epochs)),
    )


def test_a_leader_that_cannot_tell_leaves_the_high_watermark() -> None:
    assert decide(UNDEFINED_END, [0, 0, 0], fallback=2) == Truncation(2, is_complete=True)


def test_a_leader_without_epochs_gives_an_offset() -> None:
    assert decide(EpochEnd(-1, 2), [0, 0, 0]) == Truncation(2, is_complete=True)
    assert decide(EpochEnd(-1, 9), [0, 0, 0]) == Truncation(3, is_complete=True)


def test_the_shorter_end_of_an_epoch_that_both_have() -> None:
    assert decide(EpochEnd(1, 2), [1, 1, 1, 2]) == Truncation(2, is_complete=True)
    assert decide(EpochEnd(1, 9), [1, 1, 1, 2]) == Truncation(3, is_complete=True)


def test_an_epoch_that_only_the_leader_has_is_asked_for_again() -> None:
    assert decide(EpochEnd(2, 9), [1, 1, 3]) == Truncation(2, is_complete=False)


def test_a_log_that_begins_later_than_the_leaders_answer() -> None:
    assert decide(EpochEnd(1, 0), [4, 4]) == Truncation(0, is_complete=True)


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """The epochs of a leader's log and of a follower's: the same up to somewhere, then of different epochs, since an
    epoch has one leader."""
    shared = sorted(draw(st.lists(st.integers(0, 3), max_size=6)))
    later = st.integers(4, 12)
    leader = sorted(draw(st.lists(later.filter(lambda epoch: epoch % 2 == 0), max_size=5)))
    follower = sorted(draw(st.lists(later.filter(lambda epoch: epoch % 2 == 1), max_size=5)))
    return shared + leader, shared + follower


@given(logs())
def test_repeated_truncation_ends_with_logs_that_agree(pair: tuple[list[int], list[int]]) -> None:
    """Invariant: below the complete truncation the logs agree, and nothing that agrees was cut off."""
    leader, follower = pair
    leader_epochs = follower_log(leader)
    agreed = 0
    while agreed < min(len(leader), len(follower)) and leader[agreed] == follower[agreed]:
        agreed += 1
    for _ in range(20):
        if not follower:
            break
        answer = leader_epochs.end_offset_for(follower[-1], len(leader))
        found = decide(answer, follower)
        follower = follower[: found.offset]
        if found.is_complete:
            break
    else:
        raise AssertionError("no end")
    assert follower == leader[: len(follower)]
    is_leader_ahead_in_epochs = not leader or not pair[1] or pair[1][-1] <= leader[-1]
    if is_leader_ahead_in_epochs:
        assert len(follower) == agreed
