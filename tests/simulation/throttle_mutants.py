"""A fault put into the throttles of replication: the plan `throttles` has to find it (KIP-73)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.follower.fetcher_partitions import FetcherPartitions
from barnabas.testing.cluster_plans import THROTTLES
from tests.simulation.mutants import Mutant

if TYPE_CHECKING:
    import pytest


def name_in_one_order(patch: pytest.MonkeyPatch) -> None:
    """Whoever got records is named first again, when all that were held back are named anew."""
    patch.setattr(FetcherPartitions, "go_last", lambda _self, _fetched: None)


THROTTLE_MUTANTS = (Mutant("throttled partitions starve", THROTTLES, name_in_one_order),)
