"""Faults put into the log cleaner, one at a time: the plan `compaction` has to find each (0024)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from barnabas.log.cleaner.batch_filter import filter_batch
from barnabas.log.cleaner.offset_map import OffsetMap
from barnabas.log.cleaner.plan import cleanable_range
from barnabas.testing.user_plans import COMPACTION
from tests.simulation.mutants import Mutant


def clean_what_is_not_stable(patch: pytest.MonkeyPatch) -> None:
    """Neither the high watermark nor what is durable bounds a cleaning."""

    def choose_all(*arguments: Any, stable_offset: int, **keywords: Any) -> Any:
        assert stable_offset >= 0
        return cleanable_range(*arguments, stable_offset=1 << 62, **keywords)

    patch.setattr("barnabas.log.manager.log_cleaner.cleanable_range", choose_all)


def drop_tombstones_at_once(patch: pytest.MonkeyPatch) -> None:
    """A tombstone goes with the next cleaning, whatever `delete.retention.ms` says."""

    def drop_early(batch: Any, data: Any, states: Any, rules: Any, **keywords: Any) -> Any:
        return filter_batch(batch, data, states, dataclasses.replace(rules, delete_retention_ms=0), **keywords)

    patch.setattr("barnabas.log.cleaner.compaction.filter_batch", drop_early)


def swap_what_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    """What is cleaned takes its place before it is on the disk."""
    patch.setattr("barnabas.log.cleaner.compaction.perform_sync", lambda _files, _work: None)


def keep_the_record_behind_the_last(patch: pytest.MonkeyPatch) -> None:
    """What the map says of a record is that of its neighbour."""
    last_states = OffsetMap.last_states

    def one_off(self: OffsetMap, number: int, record_count: int) -> bytes:
        states = last_states(self, number + 1, record_count)
        return states + bytes(record_count - len(states))

    patch.setattr(OffsetMap, "last_states", one_off)


COMPACTION_MUTANTS = (
    Mutant("cleans what is not stable", COMPACTION, clean_what_is_not_stable),
    Mutant("tombstones dropped too early", COMPACTION, drop_tombstones_at_once),
    Mutant("swaps what is not synced", COMPACTION, swap_what_is_not_synced),
    Mutant("the map of keys is one off", COMPACTION, keep_the_record_behind_the_last),
)
