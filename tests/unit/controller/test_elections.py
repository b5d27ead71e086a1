"""Elections: examples of each kind, and what holds for all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.elections import (
    Elected,
    Election,
    NotElected,
    elect_for_controlled_shutdown,
    elect_for_reassignment,
    elect_offline,
    elect_preferred,
)
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.wire.topics import LeaderRecoveryState

BROKERS = range(1, 7)
assignments = st.lists(st.sampled_from(BROKERS), min_size=1, max_size=6, unique=True).map(tuple)
brokers = st.frozensets(st.sampled_from(BROKERS))


@st.composite
def partitions(draw: st.DrawFn) -> tuple[LeaderAndIsr, tuple[int, ...]]:
    """A leadership that can be, and its assignment: the ISR is within the assignment, the leader within the ISR."""
    assignment = draw(assignments)
    isr = tuple(draw(st.permutations(assignment))[: draw(st.integers(1, len(assignment)))])
    leader = draw(st.sampled_from([*isr, -1]))
    recovery = draw(st.sampled_from(LeaderRecoveryState))
    return LeaderAndIsr(leader, draw(st.integers(0, 2**31 - 2)), isr, 3, recovery, draw(st.integers(0, 9))), assignment


def leading(leader: int, isr: tuple[int, ...]) -> LeaderAndIsr:
    return LeaderAndIsr(leader, 7, isr, 3, partition_epoch=4)


def elected(election: Election) -> Elected:
    assert isinstance(election, Elected)
    return election


class TestOffline:
    def test_takes_the_first_live_replica_in_sync_in_the_order_of_the_assignment(self) -> None:
        result = elected(elect_offline(leading(1, (3, 2, 1)), (1, 2, 3), {2, 3}, unclean_allowed=False))
        assert result == Elected(LeaderAndIsr(2, 8, (3, 2), 3, partition_epoch=4), (2, 3))

    @pytest.mark.parametrize("unclean_allowed", [False, True])
    def test_prefers_a_replica_in_sync_to_an_earlier_one(self, unclean_allowed: bool) -> None:
        result = elected(elect_offline(leading(1, (1, 3)), (1, 2, 3), {2, 3}, unclean_allowed=unclean_allowed))
        assert (result.leader_and_isr.leader, result.leader_and_isr.isr, result.unclean) == (3, (3,), False)
        assert result.recipients == (2, 3)

    def test_fails_rather_than_lose_records(self) -> None:
        result = elect_offline(leading(1, (1,)), (1, 2, 3), {2, 3}, unclean_allowed=False)
        assert isinstance(result, NotElected)
        assert "unclean elections are not allowed" in result.reason

    @pytest.mark.parametrize(
        ("supported", "state"), [(True, LeaderRecoveryState.RECOVERING), (False, LeaderRecoveryState.RECOVERED)]
    )
    def test_takes_any_live_replica_when_told_to(self, supported: bool, state: LeaderRecoveryState) -> None:
        result = elected(
            elect_offline(leading(1, (1,)), (1, 2, 3), {2, 3}, unclean_allowed=True, recovery_supported=supported)
        )
        assert result == Elected(LeaderAndIsr(2, 8, (2,), 3, state, 4), (2, 3), unclean=True)

    def test_keeps_the_mark_of_a_leader_that_has_not_recovered(self) -> None:
        current = LeaderAndIsr(-1, 7, (1,), 3, LeaderRecoveryState.RECOVERING)
        result = elected(elect_offline(current, (1, 2), {1, 2}, unclean_allowed=False))
        assert result.leader_and_isr.leader_recovery_state is LeaderRecoveryState.RECOVERING

    def test_fails_when_nobody_lives(self) -> None:
        result = elect_offline(leading(1, (1, 2)), (1, 2), {3}, unclean_allowed=True)
        assert result == NotElected("none of the replicas [1, 2] is alive")

    @given(partitions(), brokers)
    def test_clean_election_stays_within_the_isr(
        self, partition: tuple[LeaderAndIsr, tuple[int, ...]], live: frozenset[int]
    ) -> None:
        current, assignment = partition
        result = elect_offline(current, assignment, live, unclean_allowed=False)
        assert isinstance(result, Elected) == bool(live & set(current.isr))
        if isinstance(result, Elected):
            assert set(result.leader_and_isr.isr) == set(current.isr) & live
            assert not result.unclean

    @given(partitions(), brokers)
    def test_unclean_election_finds_a_leader_whenever_a_replica_lives(
        self, partition: tuple[LeaderAndIsr, tuple[int, ...]], live: frozenset[int]
    ) -> None:
        current, assignment = partition
        result = elect_offline(current, assignment, live, unclean_allowed=True)
        assert isinstance(result, Elected) == bool(live & set(assignment))
        if isinstance(result, Elected):
            assert result.unclean == (not live & set(current.isr))


def test_reassignment_elects_within_the_target_and_keeps_the_isr() -> None:
    result = elected(elect_for_reassignment(leading(1, (1, 2, 5, 6)), (4, 5, 6), {1, 2, 4, 6}))
    assert result == Elected(LeaderAndIsr(6, 8, (1, 2, 5, 6), 3, partition_epoch=4), (4, 5, 6))
    assert isinstance(elect_for_reassignment(leading(1, (1,)), (4, 5), {1, 4, 5}), NotElected)


def test_preferred_election_takes_the_first_replica_or_none() -> None:
    result = elected(elect_preferred(leading(2, (2, 1)), (1, 2, 3), {1, 2}))
    assert result == Elected(LeaderAndIsr(1, 8, (2, 1), 3, partition_epoch=4), (1, 2, 3))
    for current, live in ((leading(2, (2,)), {1, 2}), (leading(2, (2, 1)), {2})):
        assert elect_preferred(current, (1, 2), live) == NotElected(
            "the preferred replica 1 is not both alive and in sync"
        )
    assert isinstance(elect_preferred(leading(2, (2,)), (), {2}), NotElected)


def test_controlled_shutdown_moves_the_leadership_and_shrinks_the_isr() -> None:
    result = elected(elect_for_controlled_shutdown(leading(1, (1, 3, 2)), (1, 2, 3), {1, 2, 3}, {1, 2}))
    assert result == Elected(LeaderAndIsr(3, 8, (3,), 3, partition_epoch=4), (1, 2, 3))
    assert isinstance(elect_for_controlled_shutdown(leading(1, (1,)), (1, 2), {1, 2}, {1}), NotElected)
    assert isinstance(elect_for_controlled_shutdown(leading(1, (1, 2)), (1, 2), {1}, {1}), NotElected)


@given(partitions(), brokers, brokers)
def test_what_holds_for_every_election(
    partition: tuple[LeaderAndIsr, tuple[int, ...]], live: frozenset[int], shutting_down: frozenset[int]
) -> None:
    current, assignment = partition
    elections = {
        "clean": elect_offline(current, assignment, live, unclean_allowed=False),
        "unclean": elect_offline(current, assignment, live, unclean_allowed=True),
        "reassign": elect_for_reassignment(current, assignment, live),
        "preferred": elect_preferred(current, assignment, live),
        "shutdown": elect_for_controlled_shutdown(current, assignment, live | shutting_down, shutting_down),
    }
    for name, election in elections.items():
        if isinstance(election, NotElected):
            continue
        after = election.leader_and_isr
        assert after.leader in after.isr
        assert after.leader in live | shutting_down
        assert set(after.isr) <= set(assignment)
        assert len(set(after.isr)) == len(after.isr)
        assert after.leader_epoch == current.leader_epoch + 1
        assert (after.controller_epoch, after.partition_epoch) == (current.controller_epoch, current.partition_epoch)
        assert after.leader in election.recipients
        assert set(election.recipients) <= set(assignment)
        if not election.unclean:
            assert after.leader in current.isr
            assert after.leader_recovery_state is current.leader_recovery_state
        if name in {"reassign", "preferred"}:
            assert after.isr == current.isr
        if name == "shutdown":
            assert not set(after.isr) & shutting_down
