"""A compaction that ends the process each time is left out in the end, and tried again ever more seldom."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.pipelines.compaction_attempts import ATTEMPTS_MAX, Attempts, AttemptsNote


def test_runs_that_end_in_a_compaction_are_counted_until_one_comes_to_an_end(tmp_path: Path) -> None:
    path = tmp_path / "tables" / "t.compaction"
    assert AttemptsNote(path).read() is None
    for count in range(1, 4):
        AttemptsNote(path).begin(9)
        assert AttemptsNote(path).read() == Attempts(9, count)
    AttemptsNote(path).end()
    AttemptsNote(path).end()
    assert AttemptsNote(path).read() is None
    AttemptsNote(path).begin(19)
    assert AttemptsNote(path).read() == Attempts(19, 1)


def test_it_is_tried_again_behind_later_batches_whose_distance_doubles_and_is_bounded() -> None:
    due, tried, note = [], [], Attempts(9, 1)
    for batch_id in (each for each in range(9, 800, 10) for _ in range(6)):  # each batch comes again
        if batch_id >= note.due_at(10):
            tried.append(batch_id)
            note = Attempts(batch_id, note.count + 1)
            due.append(note.due_at(10))
    assert tried == [9, 9, 29, 69, 149, 309, 629]
    assert due[0] == 9
    assert Attempts(9, 10**6).due_at(10) == 9 + 10 * 1024
    assert ATTEMPTS_MAX == 3


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"batch": "x", "attempts": 1}', "\0"),
        *('{"batch": Infinity, "attempts": 1}', '{"batch": 9, "attempts": NaN}', "[" * 10_000),
    ],
    ids=range(8),
)
def test_a_note_that_nobody_understands_is_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.compaction"
    path.write_text(content)
    assert AttemptsNote(path).read() is None
