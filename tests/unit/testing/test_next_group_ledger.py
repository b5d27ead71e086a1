"""The ledger of a group of the consumer protocol finds what must not be, and nothing else."""

from __future__ import annotations

import pytest

from barnabas.kernel.ids import Uuid
from barnabas.testing.next_group_ledger import Holder, NextGroupLedger, Owned

TOPIC = Uuid(bytes(range(16)))
ONE = Owned(TOPIC, 1)
NEVER = float("inf")


class Run:
    """Two members, of whom the first owns a partition in epoch 3 until its session ends at 10 s."""

    def __init__(self) -> None:
        self.time = 0.0
        self.ledger = NextGroupLedger(lambda: self.time)
        self.first, self.second = Holder("first"), Holder("second")
        self.ledger.answered(self.first, 3, 10.0, NEVER)
        self.ledger.given(self.first, ONE)

    def give_to_the_second(self) -> None:
        self.ledger.answered(self.second, 4, self.time + 10.0, NEVER)
        self.ledger.given(self.second, ONE)


@pytest.fixture
def run() -> Run:
    return Run()


def test_two_owners_are_found(run: Run) -> None:
    run.time = 9.9
    run.give_to_the_second()
    assert len(run.ledger.findings) == 1
    assert "owned by second" in run.ledger.findings[0]


@pytest.mark.parametrize("how", ["gives up", "session ends", "holds on too long"])
def test_who_owns_it_no_more_owns_it_no_more(run: Run, how: str) -> None:
    if how == "gives up":
        run.ledger.gave_up(run.first, [ONE])
    elif how == "session ends":
        run.time = 10.0
    else:
        run.ledger.answered(run.first, 3, 10.0, 4.0)
        run.time = 4.0
    run.give_to_the_second()
    assert not run.ledger.findings


def test_who_is_taken_for_a_member_again_owns_what_it_has(run: Run) -> None:
    run.time = 10.0
    run.give_to_the_second()
    run.ledger.answered(run.first, 3, 20.0, NEVER)
    assert len(run.ledger.findings) == 1


def test_an_epoch_that_goes_down_is_found(run: Run) -> None:
    run.ledger.answered(run.first, 2, 20.0, NEVER)
    assert len(run.ledger.findings) == 1


def test_an_offset_that_goes_back_is_found(run: Run) -> None:
    run.ledger.committed(0, 5, asked_at=0.0)
    run.time = 1.0
    run.ledger.committed(0, 6, asked_at=0.5)
    run.ledger.fetched(0, 5, asked_at=0.9)
    run.ledger.fetched(1, 0, asked_at=0.9)
    assert not run.ledger.findings
    run.ledger.fetched(0, 5, asked_at=1.0)
    run.ledger.committed(0, 5, asked_at=1.0)
    assert len(run.ledger.findings) == 2


def test_a_commit_in_doubt_may_take_effect_late(run: Run) -> None:
    run.ledger.unanswered(0, 4)
    run.ledger.committed(0, 5, asked_at=0.0)
    run.ledger.fetched(0, 4, asked_at=0.0)
    run.ledger.fetched(0, 3, asked_at=0.0)
    assert len(run.ledger.findings) == 1


@pytest.mark.parametrize(
    ("owned", "epoch", "findings"),
    [((0, 1), 3, 0), ((0,), 3, 1), ((0, 1, 2), 3, 1), ((0, 1), 4, 1)],
)
def test_in_the_end_everything_is_owned_at_the_epoch_of_the_group(
    run: Run, owned: tuple[int, ...], epoch: int, findings: int
) -> None:
    run.ledger.gave_up(run.first, [ONE])
    for number in owned:
        run.ledger.given(run.first, Owned(TOPIC, number))
    run.ledger.judge_rest([run.first], {TOPIC: 2}, epoch)
    assert len(run.ledger.findings) == findings


def test_in_the_end_nothing_has_two_owners(run: Run) -> None:
    run.time = 10.0
    run.give_to_the_second()
    run.first.epoch = 4
    run.ledger.judge_rest([run.first, run.second], {TOPIC: 2}, 4)
    assert len(run.ledger.findings) == 2  # and nobody owns the other one
