"""Faults put into the consumer, one at a time, and the tests that have to find them: those that a simulation of readers
(`tests/simulation/reader_mutants`) does not find alone, since each is only one of two locks on a door.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.client.consumer import Consumer
from barnabas.client.group_member import GroupMember
from barnabas.client.positions import PartitionState, PositionState
from barnabas.wire.messages import SyncGroupRequest
from barnabas.wire.topics import TopicPartition
from tests.unit.client import test_group_errors, test_processed, test_seek

Plant = Callable[[pytest.MonkeyPatch], None]


def keep_nothing_back(patch: pytest.MonkeyPatch) -> None:
    """Records are given while a join is due."""
    patch.setattr(GroupMember, "keeps_records_back", property(lambda _self: False))


def take_any_turn(patch: pytest.MonkeyPatch) -> None:
    """A rebalance goes on whenever a poll has begun, also when it is over."""

    async def users_turn(self: GroupMember) -> None:
        await self.turn.wait()

    patch.setattr(GroupMember, "users_turn", users_turn)


def revoke_what_was_read(patch: pytest.MonkeyPatch) -> None:
    """Giving partitions up commits how far they were read."""
    revoked = Consumer.revoked

    async def revoke(self: Consumer, partitions: tuple[TopicPartition, ...]) -> None:
        vars(self)["_processed"] = self._read_positions
        try:
            await revoked(self, partitions)
        finally:
            del vars(self)["_processed"]

    patch.setattr(Consumer, "revoked", revoke)


def seek_quietly(patch: pytest.MonkeyPatch) -> None:
    """Seeking voids nothing that was fetched before."""
    seek = PartitionState.seek

    def sought(self: PartitionState, position: object) -> None:
        generation = self.generation
        seek(self, position)  # type: ignore[arg-type]
        self.generation = generation

    patch.setattr(PartitionState, "seek", sought)


def commit_no_position_in_doubt(patch: pytest.MonkeyPatch) -> None:
    """A position that is being validated is not committed."""
    patch.setattr(PartitionState, "has_position", property(lambda self: self.state is PositionState.FETCHING))


def repeat_the_automatic_commit(patch: pytest.MonkeyPatch) -> None:
    """An automatic commit goes on beside one by hand."""

    async def end_nothing(_self: Consumer) -> None: ...

    patch.setattr(Consumer, "_end_automatic_commit", end_nothing)


def join_although_fenced(patch: pytest.MonkeyPatch) -> None:
    """Being fenced is an error like others."""
    patch.setattr(GroupMember, "check_not_fenced", lambda _self: None)


FOUND_BY: tuple[tuple[Plant, Callable[[], None]], ...] = (
    (keep_nothing_back, test_processed.test_no_records_are_given_while_a_join_is_due),
    (take_any_turn, test_processed.test_a_turn_that_is_over_is_no_turn),
    (
        revoke_what_was_read,
        test_processed.test_giving_partitions_up_commits_what_is_processed_when_its_turn_has_come,
    ),
    (seek_quietly, lambda: test_seek.test_seeking_gives_nothing_of_what_was_buffered(50)),
    (commit_no_position_in_doubt, test_seek.test_a_position_that_is_being_validated_is_committed),
    (repeat_the_automatic_commit, test_processed.test_an_older_automatic_commit_does_not_undo_one_by_hand),
    (
        join_although_fenced,
        lambda: test_group_errors.test_a_member_that_is_fenced_while_it_joins_never_joins_again(SyncGroupRequest),
    ),
)


@pytest.mark.parametrize(("plant", "test"), FOUND_BY, ids=lambda each: each.__name__)
def test_a_fault_that_is_put_in_alone_is_found(
    plant: Plant, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    test()
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test()
