from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barnabas.leader.remote_replica import NEVER, FetchClock, RemoteReplica

LAG_MAX = 30.0


def follower() -> RemoteReplica:
    made = RemoteReplica(2)
    made.reset(0.0, 0, is_new_leader=True, is_in_sync=False)
    return made


def test_is_caught_up_when_it_fetches_from_the_end() -> None:
    replica = follower()
    replica.fetched(10, 0, 10, 5.0, None)
    assert replica.caught_up_time == 5.0
    assert replica.is_caught_up(11, 35.0, LAG_MAX)
    assert not replica.is_caught_up(11, 35.1, LAG_MAX)
    assert replica.is_caught_up(10, 1000.0, LAG_MAX)  # it has everything, however long ago that was


def test_is_caught_up_at_the_last_fetch_when_it_has_what_was_there_then() -> None:
    replica = follower()
    replica.fetched(0, 0, 10, 5.0, None)
    assert replica.caught_up_time == NEVER
    replica.fetched(10, 0, 20, 6.0, None)
    assert replica.caught_up_time == 5.0
    replica.fetched(15, 0, 30, 7.0, None)
    assert replica.caught_up_time == 5.0


def test_a_new_leader_gives_members_of_the_isr_time_and_nobody_else() -> None:
    replica = RemoteReplica(2)
    replica.reset(100.0, 7, is_new_leader=True, is_in_sync=True)
    assert (replica.caught_up_time, replica.fetch_time, replica.log_end_offset) == (100.0, NEVER, -1)
    replica.reset(200.0, 7, is_new_leader=True, is_in_sync=False)
    assert replica.caught_up_time == NEVER


def test_a_leader_that_stays_leader_knows_its_followers_still() -> None:
    replica = RemoteReplica(2)
    replica.fetched(7, 1, 7, 50.0, FetchClock(50.0))
    replica.reset(100.0, 9, is_new_leader=False, is_in_sync=True)
    assert (replica.log_end_offset, replica.log_start_offset, replica.fetch_leader_end_offset) == (7, 1, 9)
    assert (replica.fetch_time, replica.clock) == (100.0, None)


def test_a_session_that_fetches_keeps_an_idle_partition_caught_up() -> None:
    replica, clock = follower(), FetchClock(5.0)
    replica.fetched(10, 0, 10, 5.0, clock)
    clock.time = 1000.0  # very many requests that do not name the partition
    replica.observe(10)
    assert replica.caught_up_time == 1000.0


@pytest.mark.parametrize("clock_time", [5.0, 4.0])
def test_a_clock_that_stands_changes_nothing(clock_time: float) -> None:
    replica = follower()
    replica.fetched(10, 0, 10, 5.0, FetchClock(clock_time))
    replica.observe(10)
    assert (replica.fetch_time, replica.caught_up_time) == (5.0, 5.0)


def test_a_follower_that_has_started_anew_is_caught_up_by_its_own_fetches_only() -> None:
    replica = RemoteReplica(2)
    replica.fetched(10, 0, 10, 5.0, None, 7)
    assert replica.is_caught_up(20, 6.0, 30.0)
    replica.fetched(4, 0, 20, 6.0, None, 8)
    assert (replica.broker_epoch, replica.log_end_offset, replica.caught_up_time) == (8, 4, NEVER)
    assert not replica.is_caught_up(20, 6.0, 30.0)
    replica.fetched(20, 0, 30, 7.0, None, 8)
    assert replica.caught_up_time == 6.0


def test_a_member_of_the_isr_keeps_its_time_when_its_broker_registers_anew() -> None:
    replica = RemoteReplica(2)
    replica.in_maximal_isr = True
    replica.fetched(10, 0, 10, 5.0, None, 7)
    replica.fetched(10, 0, 20, 6.0, None, 8)
    assert (replica.broker_epoch, replica.caught_up_time) == (8, 5.0)


@pytest.mark.parametrize(("epoch", "is_former"), [(6, True), (7, False), (8, False), (-1, False)])
def test_knows_a_fetch_of_a_former_life(epoch: int, *, is_former: bool) -> None:
    replica = RemoteReplica(2)
    assert not replica.is_of_former_life(epoch)
    replica.fetched(10, 0, 10, 5.0, None, 7)
    assert replica.is_of_former_life(epoch) is is_former
    replica.reset(9.0, 10, is_new_leader=True, is_in_sync=True)
    assert not replica.is_of_former_life(epoch), "a new leader knows nothing of it"


Event = tuple[str, int]


@example([("append", 1), ("append", 1), ("append", 1), ("fetch", 2), ("append", 1), ("idle fetch", 1), ("fetch", 1)])
@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "fetch", "idle fetch", "look", "register"]), st.integers(1, 5)),
        max_size=40,
    )
)
def test_the_clock_of_a_session_gives_what_naming_every_partition_gives(events: list[Event]) -> None:
    """Invariant: with the clock a follower's state is what it would be if each fetch named the partition; but that it
    may remember an earlier end of the log, and so know of a later time at which the follower was caught up.
    """
    named, implied, clock = follower(), follower(), FetchClock()
    fetches: list[tuple[float, int]] = []
    caught_up = NEVER
    leader_end = offset = broker_epoch = 0
    now = 0.0
    for event, number in events:
        now += number
        if event == "append":
            implied.observe(leader_end)
            leader_end += number
        elif event == "fetch":
            offset = min(leader_end, offset + number)
            clock.time, clock.broker_epoch = now, broker_epoch
            for replica in (named, implied):
                replica.fetched(offset, 0, leader_end, now, clock, broker_epoch)
        elif event == "register":
            broker_epoch += 1  # the process goes on, and so does its session: its next fetch says so
        elif event == "idle fetch":
            clock.time, clock.broker_epoch = now, broker_epoch
            if named.clock is not None:
                named.fetched(offset, 0, leader_end, now, clock, broker_epoch)
        if "fetch" in event and named.clock is not None:
            fetches.append((now, leader_end))
            caught_up = max((time for time, end in fetches if end <= offset), default=caught_up)
        implied.observe(leader_end) if event == "look" else None
    implied.observe(leader_end)
    for field in ("broker_epoch", "log_end_offset", "fetch_time", "fetch_leader_end_offset"):
        assert getattr(implied, field) == getattr(named, field), field
    assert named.caught_up_time <= implied.caught_up_time <= caught_up
