"""Compactions that were begun behind batches and have not come to an end: so one that kills its process each time, as
for want of memory, does not do that for ever.

A batch comes again whose compaction ended the run, and it was due behind that batch. After some runs it is left out
there, and tried again behind a later batch: the distance doubles with each time that this ends a run too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from barnabas.pipelines.durable_files import sync_directory, write_json

ATTEMPTS_MAX: Final = 3
"""How many runs may end in the compaction behind one batch."""
_DOUBLINGS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Attempts:
    """The batch of the last compaction that was begun, and how many in a row have not come to an end, that included."""

    batch_id: int
    count: int

    def due_at(self, every: int) -> int:
        """The first batch behind which it is to be tried again, where it is due behind each `every`-th one."""
        if self.count < ATTEMPTS_MAX:
            return self.batch_id
        return self.batch_id + (every << min(self.count - ATTEMPTS_MAX + 1, _DOUBLINGS_MAX))


class AttemptsNote:
    """Attempts as a state keeps them, in a file that is there from the beginning of one to its end."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Attempts | None:
        """None where the last one came to an end; also of a file that nobody understands, since nothing hangs on it."""
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            return Attempts(int(content["batch"]), int(content["attempts"]))
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None

    def begin(self, batch_id: int) -> None:
        """Before one is begun; on the disk when this returns."""
        before = self.read()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, {"batch": batch_id, "attempts": 1 + (0 if before is None else before.count)})

    def end(self) -> None:
        """It has ended, and the process is there: whether the table was compacted is nothing to this."""
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)
