"""A Parquet table on disk: who it belongs to, which batches it has, and whether they are there whole.

TABLE/_barnabas.json           the state and the pipeline that it belongs to
      _barnabas_batches.jsonl  a line for each batch, in order: its rows, files, and the offsets that it ends at
      .barnabas.lock           held by the run under way
      batch_id=N/              the rows of a batch; none where it has no rows

Readers of Parquet skip names that begin with a point or an underscore. Invariant, also after a loss of power: every
batch that Spark has noted as finished is in the list, and its files are there as the list has them; a batch whose
directory or line is there was begun by the owner's checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from barnabas.pipelines.durable_files import sync_directory, sync_tree, write_json
from barnabas.pipelines.state_directory import BatchesDone

MARKER: Final = "_barnabas.json"
"""Says which state of a pipeline the table belongs to."""
MANIFEST: Final = "_barnabas_batches.jsonl"
"""Says which batches the table has."""
LOCK: Final = ".barnabas.lock"
"""Is held while a run writes the table."""

BATCH_COLUMN: Final = "batch_id"
"""The column that a table gets from its directories: which batch a row came with."""
BATCH_PREFIX: Final = f"{BATCH_COLUMN}="
_BATCHES_NAMED_MAX: Final = 5


class TableError(Exception):
    """What is wrong with a table: the end of a sentence that begins with its directory, and what to do."""


@dataclass(frozen=True, slots=True)
class TableBatch:
    """A batch as the list has it: `files` are names and bytes; `offsets`, by topic and partition, are its end."""

    batch_id: int
    rows: int
    files: Mapping[str, int] = field(default_factory=dict)
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


class ParquetTable:
    """The table in one directory, which need not be there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def owner(self) -> Mapping[str, Any] | None:
        """`state_id` and `pipeline`; None where no pipeline has taken it."""
        try:
            content = json.loads((self.directory / MARKER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def take(self, pipeline: str, state_id: str) -> None:
        """Makes the directory, notes the owner, and removes what a killed run was writing. `check` comes before."""
        self.directory.mkdir(parents=True, exist_ok=True)
        owner = self.owner() or {}
        # Written only where it differs: a run that is killed leaves it alone.
        if (owner.get("pipeline"), owner.get("state_id")) != (pipeline, state_id):
            write_json(self.directory / MARKER, {"pipeline": pipeline, "state_id": state_id})
        for entry in self.directory.iterdir():
            if entry.name.startswith(f".{BATCH_PREFIX}"):
                shutil.rmtree(entry, ignore_errors=True)
        self._cut_torn_line()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other runs from the table for as long as the block lasts. Raises TableError when one has it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / LOCK).open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                owner = self.owner() or {}
                raise TableError(
                    f"is being written by a run of pipeline {owner.get('pipeline', 'unknown')}: stop that run, or give "
                    "the table another directory"
                ) from None
            yield

    def batches(self) -> dict[int, TableBatch]:
        """The list, by batch, the newest line of each. Raises TableError for a line that no run has written."""
        try:
            content = (self.directory / MANIFEST).read_bytes()
        except FileNotFoundError:
            return {}
        *lines, _torn = content.split(b"\n")
        found: dict[int, TableBatch] = {}
        for number, line in enumerate(lines, 1):
            try:
                batch = _batch_of(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError):
                raise TableError(
                    f"has a list of batches that is damaged ({MANIFEST}, line {number}): restore it"
                ) from None
            found[batch.batch_id] = batch
        return found

    def refuse_other_columns(self, columns: Mapping[str, str]) -> None:
        """Raises TableError when batches were written with other columns (names and Spark's types, in any order).

        Readers take the columns of one file for those of all: pandas and Spark fail over a type that was changed, and
        show a column that was added or not, by chance.
        """
        noted = (self.owner() or {}).get("columns")
        if not isinstance(noted, dict) or noted == dict(columns) or not self.batches():
            return
        differ = [name for name in {**noted, **columns} if noted.get(name) != columns.get(name)]
        told = "; ".join(f"{each} was {noted.get(each, 'absent')}, is {columns.get(each, 'absent')}" for each in differ)
        raise TableError(
            f"was written with other columns ({told}), which readers cannot follow: undo that, or give the pipeline "
            "another table and another `state`, or remove both to compute everything again"
        )

    def note_columns(self, columns: Mapping[str, str]) -> None:
        """Notes the columns of the batches that are published from now on. `refuse_other_columns` comes before."""
        owner = self.owner() or {}
        if owner.get("columns") != dict(columns):
            write_json(self.directory / MARKER, {**owner, "columns": dict(columns)})

    def publish(self, being_written: Path, batch_id: int, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Has what was written take its place in the table by one rename, so that no reader sees a part of a batch.

        A batch without rows gets a line and no place. It is on the disk when this returns.
        """
        rows = _rows_of(being_written)
        sync_tree(being_written)
        target = self.directory / f"{BATCH_PREFIX}{batch_id}"
        replaced = self.directory / f".{BATCH_PREFIX}{batch_id}.replaced"
        if target.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            target.rename(replaced)
        if rows > 0:
            being_written.rename(target)
        else:
            shutil.rmtree(being_written)
        sync_directory(self.directory)
        self._add(TableBatch(batch_id, rows, _files_of(target), offsets))
        shutil.rmtree(replaced, ignore_errors=True)

    def check(self, pipeline: str, state_id: str | None, done: BatchesDone) -> None:
        """Sees that the table is what batches of this state have made, and changes nothing. Raises TableError."""
        names = {entry.name for entry in self.directory.iterdir()} if self.directory.exists() else set()
        content = {name for name in names if not name.startswith((".", "_"))}
        strange = sorted(name for name in content if not name.removeprefix(BATCH_PREFIX).isdecimal())
        owner = self.owner()
        if content and (owner is None or strange):
            told = min(strange or content)
            raise TableError(f"holds files that no pipeline has written ({told}): give the table its own directory")
        listed = self.batches()
        is_of_others = owner is not None and (owner.get("state_id") != state_id or done.begun < 0)
        if owner is not None and is_of_others and (content or listed):
            whose = f"pipeline {owner.get('pipeline')}" if owner.get("pipeline") != pipeline else "an earlier state"
            raise TableError(
                f"holds a table written from {whose}, and this run "
                f"{'begins anew' if done.begun < 0 else 'goes on from another'}: remove {self.directory}, or give the "
                "table another directory"
            )
        there = {int(name.removeprefix(BATCH_PREFIX)) for name in content}
        newest = max(there | set(listed), default=-1)
        if newest > done.begun:
            raise TableError(
                f"has batch {newest}, and the state knows of none after {done.begun}, as with an older copy: restore "
                "both from the same time, or remove both to compute everything again"
            )
        self._check_finished(listed, there, done.finished)

    def _check_finished(self, listed: Mapping[int, TableBatch], there: set[int], finished: int) -> None:
        """The batches up to `finished` are all there, and as they were written; what was cut short may be anything."""
        wrong = [
            batch_id
            for batch_id in sorted({*range(finished + 1), *(each for each in there if each <= finished)})
            if batch_id not in listed
            or _files_of(self.directory / f"{BATCH_PREFIX}{batch_id}") != dict(listed[batch_id].files)
        ]
        if wrong:
            more = f" and {len(wrong) - _BATCHES_NAMED_MAX} more" if len(wrong) > _BATCHES_NAMED_MAX else ""
            named = ", ".join(map(str, wrong[:_BATCHES_NAMED_MAX]))
            raise TableError(
                f"lacks batches that the state says were written, or has them from another time ({named}{more}): "
                "restore it, or remove the state too to compute everything again"
            )

    def _add(self, batch: TableBatch) -> None:
        path = self.directory / MANIFEST
        is_new = not path.exists()
        with path.open("ab") as manifest:
            manifest.write(json.dumps(asdict(batch), separators=(",", ":")).encode() + b"\n")
            manifest.flush()
            os.fsync(manifest.fileno())
        if is_new:
            sync_directory(self.directory)

    def _cut_torn_line(self) -> None:
        """Removes the line that a kill has cut short, so that the next one is not added to it."""
        path = self.directory / MANIFEST
        if path.exists():
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(path, whole)


def _batch_of(line: Mapping[str, Any]) -> TableBatch:
    offsets = {
        topic: {int(partition): int(offset) for partition, offset in partitions.items()}
        for topic, partitions in line["offsets"].items()
    }
    return TableBatch(int(line["batch_id"]), int(line["rows"]), dict(line["files"]), offsets)


def _files_of(batch: Path) -> dict[str, int]:
    """Names and bytes of the files of a batch; of one that is not there none. Spark's checksums are not among them."""
    if not batch.is_dir():
        return {}
    entries = (entry for entry in batch.iterdir() if not entry.name.startswith("."))
    return {entry.name: entry.stat().st_size for entry in sorted(entries)}


def _rows_of(batch: Path) -> int:
    from pyarrow import parquet

    return sum(parquet.read_metadata(part).num_rows for part in batch.glob("*.parquet"))
