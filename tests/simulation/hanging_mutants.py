"""A fault put into the watch of log directories: the plan `hanging` has to find it (0025)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barnabas.log.directories.directory_watch import DirectoryWatch
from barnabas.testing.cluster_plans import HANGING
from tests.simulation.mutants import Mutant

if TYPE_CHECKING:
    import pytest


def stay_held(patch: pytest.MonkeyPatch) -> None:
    """The logs of a directory that answers again go on refusing appends."""
    answered = DirectoryWatch._answered

    def answered_in_vain(self: DirectoryWatch, work: Any) -> None:
        on_changed, self._on_changed = self._on_changed, lambda _: None
        answered(self, work)
        self._on_changed = on_changed

    patch.setattr(DirectoryWatch, "_answered", answered_in_vain)


HANGING_MUTANTS = (Mutant("a directory stays held", HANGING, stay_held),)
