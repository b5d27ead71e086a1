"""A fault in what waits for the queue of a log directory: a plan that writes off the loop has to find it (0025)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from barnabas.log.partition.log_services import LogServices
from barnabas.testing.cluster_plans import FLUSHED
from tests.simulation.mutants import Mutant

if TYPE_CHECKING:
    import pytest


def sync_before_writing(patch: pytest.MonkeyPatch) -> None:
    """A sync does not wait until what it is of is in the files."""

    async def offload(_self: LogServices, *work: Any, directory: Any, order: Any = None) -> Any:
        return await directory.offload(*work, order=order)

    patch.setattr(LogServices, "offload", offload)


QUEUE_MUTANTS = (
    Mutant("a sync before the write", dataclasses.replace(FLUSHED, writes=("offload",)), sync_before_writing),
)
