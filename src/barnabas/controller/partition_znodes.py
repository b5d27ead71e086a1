"""Reading and writing the state znodes of partitions, as steps of an event.

A partition whose znode another controller has written, of a greater epoch, is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import Steps, read_znodes, write_as_controller
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.coordination.errors import BadVersionError, NodeExistsError, NoNodeError
from barnabas.coordination.layout import topics
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.layout.topics import (
    TopicPartition,
    partition_path,
    partition_state_path,
    partitions_path,
)
from barnabas.coordination.operations import Create, SetData

ATTEMPTS_MAX = 100
"""How often a change is tried while the leader changes the same znode; a leader has one change in flight."""


class StateChangeFailedError(Exception):
    """A partition or replica could not be moved; it keeps its state."""


@dataclass(frozen=True, slots=True)
class Written:
    """What became of writes: what the znodes hold now, with its version; whose znode had changed, so that the change
    is to be decided anew; and why others failed.
    """

    leadership: Mapping[TopicPartition, LeaderAndIsr]
    conflicts: tuple[TopicPartition, ...]
    failed: Mapping[TopicPartition, Exception]


def read_leadership(
    context: ControllerContext,
    partitions: Iterable[TopicPartition],
    written_at: dict[TopicPartition, int] | None = None,
) -> Steps[dict[TopicPartition, LeaderAndIsr | Exception | None]]:
    """What the znodes of the partitions hold; None where there is no znode, or why it cannot be used. `written_at` is
    given the transactions that wrote them. The context learns which of them cannot be read.

    What holds a former leader epoch, of a copy with which somebody has mended a znode, is not believed: whoever was in
    sync then may have lagged since, and brokers refuse its epochs. What the context knows is in force.
    """
    wanted = list(partitions)
    outcomes = yield from read_znodes([partition_state_path(*partition) for partition in wanted])
    found: dict[TopicPartition, LeaderAndIsr | Exception | None] = {}
    for partition, outcome in zip(wanted, outcomes, strict=True):
        context.unreadable_partitions.pop(partition, None)
        if isinstance(outcome, NoNodeError):
            found[partition] = None
        elif isinstance(outcome, Exception):
            found[partition] = outcome
        else:
            known = found[partition] = _decode(context, partition, outcome.data, outcome.stat.version)
            if isinstance(known, Exception):
                context.unreadable_partitions[partition] = None
            if written_at is not None:
                written_at[partition] = outcome.stat.mzxid
    return found


def _decode(
    context: ControllerContext, partition: TopicPartition, data: bytes | None, version: int
) -> LeaderAndIsr | Exception:
    try:
        state = topics.PartitionState.decode(data, partition_state_path(*partition))
    except LayoutError as error:
        return error
    if state.controller_epoch > context.epoch:
        return StateChangeFailedError(
            f"the controller of epoch {state.controller_epoch} has written the state of "
            f"{partition.topic}-{partition.partition}; this one has epoch {context.epoch} only"
        )
    present = context.leadership(partition)
    if present is not None and state.leader_epoch < present.leader_epoch:
        return present.at_version(version)
    return LeaderAndIsr.from_znode(state, version)


def write_leadership(context: ControllerContext, changes: Mapping[TopicPartition, LeaderAndIsr]) -> Steps[Written]:
    """Replaces the states, each where its znode has still the version that the change was decided on.

    Raises `ControllerMovedError`.
    """
    writes = [
        SetData(partition_state_path(*partition), change.to_znode().encode(), change.partition_epoch)
        for partition, change in changes.items()
    ]
    outcomes = yield from write_as_controller(writes, context.epoch_version)
    leadership: dict[TopicPartition, LeaderAndIsr] = {}
    conflicts: list[TopicPartition] = []
    failed: dict[TopicPartition, Exception] = {}
    for (partition, change), outcome in zip(changes.items(), outcomes, strict=True):
        if isinstance(outcome, BadVersionError):
            conflicts.append(partition)
        elif isinstance(outcome, Exception):
            failed[partition] = outcome
        else:
            leadership[partition] = change.at_version(outcome.version)
    return Written(leadership, tuple(conflicts), failed)


def create_leadership(context: ControllerContext, changes: Mapping[TopicPartition, LeaderAndIsr]) -> Steps[Written]:
    """Makes the state znodes of new partitions, with those above. There are no conflicts.

    A znode that exists counts as made when it holds what was to be written: the connection was lost behind the write.
    Raises `ControllerMovedError`.
    """
    parents = dict.fromkeys(partitions_path(partition.topic) for partition in changes)
    # Most exist already; any that is missing fails the creation of what is below it.
    yield from write_as_controller([Create(path, None) for path in parents], context.epoch_version)
    yield from write_as_controller([Create(partition_path(*key), None) for key in changes], context.epoch_version)
    writes = [
        Create(partition_state_path(*partition), change.to_znode().encode()) for partition, change in changes.items()
    ]
    outcomes = yield from write_as_controller(writes, context.epoch_version)
    by_partition = dict(zip(changes, outcomes, strict=True))
    doubtful = [partition for partition, outcome in by_partition.items() if isinstance(outcome, NodeExistsError)]
    found = yield from read_leadership(context, doubtful)
    leadership: dict[TopicPartition, LeaderAndIsr] = {}
    failed: dict[TopicPartition, Exception] = {}
    for partition, outcome in by_partition.items():
        if not isinstance(outcome, Exception) or found.get(partition) == changes[partition]:
            leadership[partition] = changes[partition]
        else:
            failed[partition] = outcome
    return Written(leadership, (), failed)
