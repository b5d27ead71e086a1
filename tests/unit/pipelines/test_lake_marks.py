"""Which batches a table has: told by the table and by the state, and refused where the two are not of one time."""

from __future__ import annotations

import pytest

from barnabas.pipelines.lake_marks import TableMarks, TableNote, settle, writer_name
from barnabas.pipelines.parquet_table import TableError
from barnabas.pipelines.state_directory import BatchesDone

US = writer_name("delays", "0123", "by_day")
OTHER = writer_name("delays", "4567", "by_day")


def marks(batch: int | None, *, table: str = "t", is_whole: bool = True) -> TableMarks:
    return TableMarks(table, {} if batch is None else {US: batch}, is_whole)


def note(next_batch: int, mark: int | None = None, begin_at: int | None = None) -> TableNote:
    return TableNote("t", next_batch, next_batch - 1 if mark is None else mark, begin_at)


@pytest.mark.parametrize(
    ("noted", "said", "done", "expected"),
    [
        (None, marks(None), BatchesDone(-1, -1), 0),
        # Begun, and the table has nothing of it.
        (note(0), marks(None), BatchesDone(0, -1), 0),
        # Committed, with neither the note nor Spark knowing.
        (note(0), marks(0), BatchesDone(0, -1), 1),
        (note(2), marks(2), BatchesDone(2, 1), 3),
        (note(3), marks(2), BatchesDone(2, 2), 3),
        (note(3), marks(2), BatchesDone(3, 2), 3),
        # A batch that needed no commit is known by the note alone.
        (note(4, mark=2), marks(2), BatchesDone(3, 3), 4),
        # The note is lost, and the table knows enough.
        (None, marks(5), BatchesDone(5, 4), 6),
        # Snapshots were expired, and no batch was cut short.
        (note(3), marks(None, is_whole=False), BatchesDone(2, 2), 3),
        # A person has looked.
        (note(3, begin_at=4), marks(None, is_whole=False), BatchesDone(3, 2), 4),
        (note(3, begin_at=3), marks(3), BatchesDone(3, 2), 4),
    ],
)
def test_the_next_batch_is_the_one_that_the_table_lacks(
    noted: TableNote | None, said: TableMarks, done: BatchesDone, expected: int
) -> None:
    assert settle(noted, said, US, done) == expected


@pytest.mark.parametrize(
    ("noted", "said", "done", "message"),
    [
        (None, TableMarks("t", {OTHER: 3}), BatchesDone(-1, -1), f"another state has written \\({OTHER}\\): remove it"),
        (note(3), TableMarks("t", {OTHER: 3, US: 2}), BatchesDone(2, 2), "another state has written"),
        (note(3), marks(2, table="u"), BatchesDone(2, 2), "is another table than the one"),
        (note(3), marks(4), BatchesDone(3, 2), "has batch 4, and the state knows of none after 3"),
        (note(3), marks(1), BatchesDone(3, 2), "has no batch 2 any more, as with an older copy"),
        (note(3), marks(None), BatchesDone(2, 2), "has no batch 2 any more"),
        (note(3, begin_at=5), marks(2), BatchesDone(3, 2), 'lack batch 5 next, .* none after 3: correct "begin_at"'),
        (None, marks(1), BatchesDone(3, 2), "lacks batch 2, which the state says was written"),
        (None, marks(None), BatchesDone(0, 0), "lacks batch 0"),
        (note(3), marks(None, is_whole=False), BatchesDone(3, 2), '"begin_at": 4 to the note if so, or "begin_at": 3'),
    ],
)
def test_a_table_that_is_not_of_the_states_time_is_refused(
    noted: TableNote | None, said: TableMarks, done: BatchesDone, message: str
) -> None:
    with pytest.raises(TableError, match=message):
        settle(noted, said, US, done)
