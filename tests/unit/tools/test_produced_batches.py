"""The judgement of what idempotent producers left in a log: whose fault a repetition is."""

from __future__ import annotations

import itertools

from tests.support.produced_batches import ProducedRecord, sent_again_in_new_epochs, sequence_faults, without_copies


def records(*sent: tuple[int, int, int, str]) -> list[ProducedRecord]:
    """Records of (producer id, epoch, sequence, value), one after another."""
    return [ProducedRecord(offset, *each) for offset, each in zip(itertools.count(), sent, strict=False)]


def test_sequences_count_up_from_zero_in_every_epoch_of_every_producer() -> None:
    good = records((7, 0, 0, "a"), (8, 0, 0, "x"), (7, 0, 1, "b"), (7, 1, 0, "c"), (8, 0, 1, "y"))
    assert sequence_faults(good) == []


def test_a_batch_that_a_broker_took_twice_is_a_fault() -> None:
    twice = records((7, 0, 0, "a"), (7, 0, 1, "b"), (7, 0, 0, "a"))
    (fault,) = sequence_faults(twice)
    assert "where sequence 2 was next" in fault
    assert sent_again_in_new_epochs(twice) == set()


def test_a_gap_and_a_start_in_the_middle_are_faults() -> None:
    assert len(sequence_faults(records((7, 0, 0, "a"), (7, 0, 2, "c")))) == 1
    assert len(sequence_faults(records((7, 0, 3, "d")))) == 1


def test_what_a_client_sent_again_in_a_new_epoch_is_named() -> None:
    bumped = records((7, 0, 0, "a"), (7, 0, 1, "b"), (7, 1, 0, "b"), (7, 1, 1, "c"))
    assert sequence_faults(bumped) == []
    assert sent_again_in_new_epochs(bumped) == {"b"}


def test_copies_of_two_producers_and_of_a_lower_epoch_are_not_the_clients() -> None:
    assert sent_again_in_new_epochs(records((7, 0, 0, "a"), (8, 1, 0, "a"))) == set()
    assert sent_again_in_new_epochs(records((7, 1, 0, "a"), (7, 0, 0, "a"))) == set()
    assert sent_again_in_new_epochs(records((7, 0, 0, "a"), (7, 1, 0, "a"), (7, 1, 1, "a"))) == set()


def test_only_the_later_copies_of_what_was_sent_again_are_left_out() -> None:
    assert without_copies(["a", "b", "a", "c", "c"], {"a"}) == ["a", "b", "c", "c"]
