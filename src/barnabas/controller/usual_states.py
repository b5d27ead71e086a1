"""States of partitions in which there is nothing to decide: nearly all that a controller reads when it takes over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from barnabas.controller.context import ControllerContext
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import WrittenData
from barnabas.wire.topics import TopicPartition

# What data in one version mean: the state, and what its writer and members say of that.
_Judged = tuple[LeaderAndIsr, float, int]
_Writer = tuple[int, int, tuple[int, ...]]
# Written in a transaction after the first they are not from who they say; before the second, a member of the ISR has
# registered since.
_Bounds = tuple[float, int]


def usual_states(
    context: ControllerContext,
    partitions: Sequence[TopicPartition],
    outcomes: Sequence[Any],
    written_at: dict[TopicPartition, int] | None,
) -> list[LeaderAndIsr | None]:
    """What `read_leadership` makes of those znodes of which nothing is known here yet, and which hold what the broker
    was told last, or of which it was told nothing; None for all others, which are to be looked at more closely.

    Equal data of one version are judged once, and so is what all with one writer and one ISR have in common, so that
    one state takes a fraction of that.
    """
    known, unreadable, lost = context.leaderships, context.unreadable_partitions, context.lost_members
    judged: dict[tuple[bytes | None, int], _Judged] = {}
    bounds: dict[_Writer, _Bounds] = {}
    usual: list[LeaderAndIsr | None] = []
    name = told = None
    for partition, outcome in zip(partitions, outcomes, strict=True):
        usual.append(None)
        if type(outcome) is not WrittenData or partition in known or partition in unreadable or partition in lost:
            continue
        data, version, written = outcome
        key = data, version
        found = judged.get(key)
        if found is None:
            found = _judge(context, data, version, bounds)
            if found is None:
                continue
            judged[key] = found
        state, last, first = found
        if partition.topic is not name:
            name = partition.topic
            told = context.told_leadership(name)
        heard = None if told is None else told(partition.partition)
        if written > last if heard is None else _is_other(heard, state):
            continue
        usual[-1] = state
        if written < first and written_at is not None:
            written_at.setdefault(partition, written)
    return usual


def _judge(
    context: ControllerContext, data: bytes | None, version: int, bounds: dict[_Writer, _Bounds]
) -> _Judged | None:
    try:
        state = LeaderAndIsr.decode(data, "", version)
    except LayoutError:
        return None
    if state.controller_epoch > context.epoch:
        return None
    writer = (state.controller_epoch, state.leader, state.isr)
    found = bounds.get(writer)
    if found is None:
        last = float("inf") if context.writes_isrs_itself(state.leader) else context.last_write_of(state)
        brokers = context.live_or_shutting_down_brokers
        first = max((brokers[member].epoch for member in state.isr if member in brokers), default=-1)
        found = bounds[writer] = (last, first)
    return state, *found


def _is_other(heard: LeaderAndIsr, state: LeaderAndIsr) -> bool:
    return heard.partition_epoch != state.partition_epoch or not heard.holds_the_same(state)
