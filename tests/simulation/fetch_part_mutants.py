"""Faults in what is left of a Fetch for the next one: a plan with one partition in a turn has to find each (0016)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from barnabas.follower.fetcher_partitions import FetcherPartitions
from barnabas.serving.fetch_reads import FetchReader
from barnabas.testing.cluster_plans import KEEPING
from tests.simulation.mutants import Mutant

if TYPE_CHECKING:
    import pytest


def forget_what_is_not_named(patch: pytest.MonkeyPatch) -> None:
    """A follower takes what one request has no room for as named."""
    changed = FetcherPartitions.changed

    def one_part(self: FetcherPartitions, *bounds: Any) -> Iterator[Any]:
        yield from changed(self, *bounds)
        self.forget_changed()

    patch.setattr(FetcherPartitions, "changed", one_part)


def forget_what_is_not_told(patch: pytest.MonkeyPatch) -> None:
    """A leader takes what one response does not tell of for quiet."""
    read_in_steps = FetchReader.read_in_steps

    def one_part(self: FetchReader, parameters: Any, scope: Any, **options: Any) -> Any:
        reads = yield from read_in_steps(self, parameters, scope, **options)
        if scope.session is not None:
            scope.session._candidates = {item: None for item, _ in reads}
        return reads

    patch.setattr(FetchReader, "read_in_steps", one_part)


_ONE_AT_A_TIME = dataclasses.replace(KEEPING, few_partitions=(1,))
FETCH_PART_MUTANTS = (
    Mutant("forgotten if not named", _ONE_AT_A_TIME, forget_what_is_not_named),
    Mutant("forgotten if not told", _ONE_AT_A_TIME, forget_what_is_not_told),
)
