"""How much of one thing is done in one turn of the loop, counted in calls, so that no clock says whether it is too
much.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.coordinators.group.records import CommittedOffset, offset_key, offset_value
from barnabas.coordinators.shard import batch_in_steps
from barnabas.kernel.steps import STEP_ELEMENTS, at_once
from barnabas.wire.compression_types import NO_COMPRESSION
from barnabas.wire.topics import TopicPartition
from tests.unit.coordinators.group.group_world import GroupWorld
from tests.unit.kernel.virtual_loop import VirtualLoop

ALLOWED_PER_TURN = 2 * STEP_ELEMENTS
"""The step in which something begins may end another."""
RECORDS_PER_BATCH = 7


class TurnCount:
    """Calls of one function, by the turn of the loop in which they were made."""

    def __init__(self, loop: VirtualLoop, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.by_turn: Counter[int] = Counter()
        function: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(function)
        def counted(*arguments: Any, **named: Any) -> Any:
            self.by_turn[loop.turns] += 1
            return function(*arguments, **named)

        patch.setattr(owner, name, counted)

    @property
    def total(self) -> int:
        return self.by_turn.total()

    @property
    def most_in_a_turn(self) -> int:
        return max(self.by_turn.values(), default=0)


def group_name(number: int) -> str:
    return f"group-{number}"


def partition_number(number: int) -> TopicPartition:
    """Of ten partitions in each topic."""
    return TopicPartition(f"topic-{number // 10}", number % 10)


def write_offsets(
    world: GroupWorld, groups: int, offsets: int, *, times: int = 1, batch_records: int = RECORDS_PER_BATCH
) -> None:
    """Writes so many offsets of each group into partition 0 of `__consumer_offsets`, which has all groups from now on;
    `times` over, the last ones with the offset `times`.
    """
    world.coordinator.place(1)
    partition = world.partition_of(group_name(0))
    now_ms = world.clock.time_ms()
    records: list[tuple[bytes, bytes | None]] = []
    for offset in range(1, times + 1):
        for group in range(groups):
            for number in range(offsets):
                key = offset_key(group_name(group), partition_number(number))
                records.append((key, offset_value(CommittedOffset(offset, 1, "", now_ms), 3)))
    for start in range(0, len(records), batch_records):
        some = records[start : start + batch_records]
        world.log.write(partition, at_once(batch_in_steps(some, now_ms, NO_COMPRESSION)))


def load(world: GroupWorld, groups: int, offsets: int) -> None:
    """As `write_offsets`, and has them loaded."""
    write_offsets(world, groups, offsets)
    elect(world, 1)


def elect(world: GroupWorld, epoch: int) -> None:
    """Makes the broker lead partition 0, and waits until it is loaded."""
    world.log.leaders[world.partition_of(group_name(0))] = epoch
    world.coordinator.on_elected(0, epoch)
    world.pass_ms(10)


def run_turns(world: GroupWorld, count: int) -> None:
    for _ in range(count):
        world.loop.call_soon(world.loop.stop)
        world.loop.run_forever()


def seen(world: GroupWorld, groups: int, offsets: int) -> dict[tuple[int, int], int]:
    """What clients see, by group and number of the partition."""
    found = {}
    for group in range(groups):
        for number in range(offsets):
            offset = world.offset(group_name(group), partition_number(number))
            if offset is not None:
                found[group, number] = offset
    return found
