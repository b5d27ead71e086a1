"""Which batches a table has by its own account, compared with what the state knows: no Spark and no files in here.

A commit of a table says which batch of whom it is (Delta: a transaction id; Iceberg: the summary of a snapshot). The
state notes what it has seen of that, so that a table that was replaced by an older copy, or by another, is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.pipelines.definition import GROUP_PREFIX
from barnabas.pipelines.parquet_table import TableError
from barnabas.pipelines.state_directory import BatchesDone

WRITER: Final = "barnabas.writer"
"""The property of a table, and of a snapshot, that says whose it is."""
RUN: Final = "barnabas.run"
"""The property of a table that no lock keeps: the run that took it last."""


@dataclass(frozen=True, slots=True)
class TableMarks:
    """What a table says: its id, the last batch of each writer, and whether its history goes back to its beginning.

    Besides its history: the writer that `owner` names, and the run that took it last; empty where it says neither.
    `is_doubled`: the commit of a writer before the last one names the same batch.
    """

    table_id: str
    batches: Mapping[str, int]
    is_whole: bool = True
    owner: str = ""
    run: str = ""
    is_doubled: bool = False


@dataclass(frozen=True, slots=True)
class TableNote:
    """What the state has noted: the table's id, the next batch that it lacks, and the batch that it named last.

    `begin_at` was put there by a person, who has looked at what the table has.
    """

    table_id: str
    next_batch: int
    mark: int = -1
    begin_at: int | None = None


def writer_name(pipeline: str, state_id: str, view: str) -> str:
    """The writer of a table: a state's query."""
    return f"{GROUP_PREFIX}{pipeline}-{state_id}-{view}"


def refuse_other_records(told: str, known: str, batch_id: int) -> None:
    """Raises TableError where the table's batch of this number, by its fingerprint, has other records than the state's:
    then two copies of the state were used in turn. A fingerprint that is empty is not known.
    """
    if told and known and told != known:
        raise TableError(
            f"has a batch {batch_id} of other records than this state's: a copy of the state has written it, and to go "
            "on would lose rows; go on with the copy that did, or remove both to compute everything again"
        )


def settle(note: TableNote | None, marks: TableMarks, writer: str, done: BatchesDone) -> int:
    """The next batch that the table lacks. Raises TableError where nobody can tell, or where table and state are not of
    one time.
    """
    strangers = sorted(each for each in marks.batches if each != writer)
    if not strangers and not marks.batches and not marks.is_whole and marks.owner not in {"", writer}:
        # Its snapshots were expired, so that none names a batch.
        strangers = [marks.owner]
    if strangers:
        raise TableError(
            f"holds rows that another state has written ({strangers[0]}): remove it to compute everything again, or "
            "give the table another place"
        )
    if note is not None and note.table_id != marks.table_id:
        raise TableError(
            "is another table than the one that this state has written to: restore that, or remove the state too to "
            "compute everything again"
        )
    mark = marks.batches.get(writer, -1)
    if mark > done.begun:
        raise TableError(
            f"has batch {mark}, and the state knows of none after {done.begun}, as with an older copy: restore both "
            "from the same time, or remove both to compute everything again"
        )
    if note is not None and note.begin_at is not None:
        if note.begin_at > done.begun + 1:
            raise TableError(
                f"is said to lack batch {note.begin_at} next, and the state knows of none after {done.begun}: correct "
                '"begin_at" in the note'
            )
        return max(note.begin_at, mark + 1)
    if note is not None and mark < note.mark:
        return _without_history(note, marks, done)
    next_batch = max(mark + 1, 0 if note is None else note.next_batch)
    if next_batch <= done.finished:
        raise TableError(
            f"lacks batch {next_batch}, which the state says was written: restore it, or remove the state too to "
            "compute everything again"
        )
    return next_batch


def _without_history(note: TableNote, marks: TableMarks, done: BatchesDone) -> int:
    """The table does not name the batch that it named before."""
    if marks.is_whole:
        raise TableError(
            f"has no batch {note.mark} any more, as with an older copy: restore it, or remove the state too to compute "
            "everything again"
        )
    if done.begun >= note.next_batch:
        raise TableError(
            f"has lost the snapshots that name its batches (they were expired), while batch {done.begun} was cut "
            "short: see whether its rows are there, and add"
            f' "begin_at": {done.begun + 1} to the note if so, or "begin_at": {done.begun} if not'
        )
    return note.next_batch
