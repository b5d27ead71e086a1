"""Faults put into tiered storage, one at a time: the plan `tiered` has to find each (0028)."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.kernel.steps import Steps
from barnabas.testing.user_plans import TIERED
from barnabas.tiered.copied_end import CopiedEnd
from barnabas.tiered.storage import FileStore
from tests.simulation.mutants import Mutant


def give_up_what_is_not_copied(patch: pytest.MonkeyPatch) -> None:
    """Local retention goes on as far as segments were ever copied, whatever they are of and whether they are whole."""

    def find(_self: CopiedEnd, log: Any, cache: Any) -> Steps[int]:
        yield
        ends: list[int] = [segment.end_offset + 1 for segment in cache.segments()]
        return max(ends, default=int(log.local_log_start_offset))

    patch.setattr(CopiedEnd, "find", find)


def say_finished_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """A copy counts when it is written, and power may fail."""

    class Unsynced:
        def __init__(self, files: Any) -> None:
            self._files = files

        def fsync(self, _descriptor: int) -> None:
            return

        def fsync_directory(self, _path: str) -> None:
            return

        def __getattr__(self, name: str) -> Any:
            return getattr(self._files, name)

    def made(self: FileStore, files: Any, root: str) -> None:
        self._files = Unsynced(files)
        self._root = root

    patch.setattr(FileStore, "__init__", made)


def begin_without_history(patch: pytest.MonkeyPatch) -> None:
    """A follower that goes on behind remote storage knows no leader epoch of what is there."""
    patch.setattr("barnabas.tiered.remote_reads.read_history", lambda *_: [])


TIERED_MUTANTS = (
    Mutant("gives up what is not copied", TIERED, give_up_what_is_not_copied),
    Mutant("a copy counts before it is durable", TIERED, say_finished_before_it_is_durable),
    Mutant("goes on without the history", TIERED, begin_without_history),
)
