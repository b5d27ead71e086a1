"""How far reassignments are: what is on its way, what of a file is there, and which throttles are set."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli.output import Column, Mark, Marked, print_json, print_table, say, size
from barnabas.cli.reassignment_throttles import Throttles, find_throttles
from barnabas.cli.reassignment_view import replica_sizes, size_of
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.admin import Admin
    from barnabas.client.client import Client

_COLUMNS: Final = (
    Column("Topic", "topic"),
    Column("Partition", "partition", is_number=True),
    Column("State", "state"),
    Column("On", "replicas"),
    Column("To", "adding"),
    Column("From", "removing"),
    Column("Copied", "copied", is_number=True),
    Column("Of", "total", is_number=True),
)


class State(enum.Enum):
    """Where a partition is with its move; the value is the word for programs."""

    MOVING = "moving"
    DONE = "done"
    NEITHER = "neither"
    """It is not where the file has it, and nobody is moving it."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A partition; `replicas` are those that it has now, without those that are to come."""

    partition: TopicPartition
    state: State
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    copied_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """Everything that is to be shown."""

    partitions: Sequence[Observed]
    throttles: Throttles
    is_moving: bool
    """Whether any partition is, also one that is not shown."""


async def observe(client: Client, admin: Admin, targets: Mapping[TopicPartition, Sequence[int]] | None) -> Status:
    """The state of the partitions of a file, or of all that are being moved."""
    ongoing = await admin.list_partition_reassignments()
    topics = await admin.describe_topics()
    throttles = await find_throttles(admin, client.cluster.brokers)
    involved = {node_id for each in ongoing.values() for node_id in each.replicas}
    sizes, _ = await replica_sizes(admin, sorted(involved.intersection(client.cluster.brokers)))
    found = []
    for partition in sorted(ongoing if targets is None else targets):
        moving = ongoing.get(partition)
        if moving is not None:
            stays = tuple(each for each in moving.replicas if each not in moving.adding_replicas)
            of_one = size_of(sizes, partition, -1, moving.replicas)
            copied = sum(min(of_one, sizes.get((partition, each), 0)) for each in moving.adding_replicas)
            total = of_one * len(moving.adding_replicas)
            found.append(
                Observed(
                    partition,
                    State.MOVING,
                    stays,
                    moving.adding_replicas,
                    moving.removing_replicas,
                    copied,
                    total,
                )
            )
            continue
        topic = topics.get(partition.topic)
        info = None if topic is None else topic.partitions.get(partition.partition)
        replicas = () if info is None else info.replicas
        is_there = targets is not None and replicas == tuple(targets[partition])
        found.append(Observed(partition, State.DONE if is_there else State.NEITHER, replicas))
    return Status(found, throttles, bool(ongoing))


def show(status: Status, *, as_json: bool) -> None:
    """Prints it, and says how to remove throttles that are left."""
    if as_json:
        print_json(document(status))
    elif status.partitions:
        print_table(_COLUMNS, [_row(each) for each in status.partitions])
    else:
        say("Nothing is being moved.")
    if status.throttles.is_any():
        say(f"Throttles are set: {status.throttles.named()}.")
        if not status.is_moving:
            say("They are left from a move that has ended; `barnabas reassign cancel --all` removes them.")


def document(status: Status) -> dict[str, Any]:
    """As `reassign status --json` has it."""
    return {
        "partitions": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "state": each.state.value,
                "replicas": list(each.replicas),
                "adding": list(each.adding),
                "removing": list(each.removing),
                "copied_bytes": each.copied_bytes,
                "total_bytes": each.total_bytes,
            }
            for each in status.partitions
        ],
        "throttled_brokers": list(status.throttles.brokers),
        "throttled_topics": list(status.throttles.topics),
    }


# Inside.

_MARKS: Final = {State.MOVING: Mark.WARNING, State.DONE: Mark.GOOD, State.NEITHER: Mark.BAD}


def _row(each: Observed) -> list[object]:
    state = Marked(each.state.value, _MARKS[each.state])
    copies = [size(each.copied_bytes), size(each.total_bytes)] if each.adding else [None, None]
    return [each.partition.topic, each.partition.partition, state, each.replicas, each.adding, each.removing, *copies]
