"""How far reassignments are: what is on its way, what of a file is there, and which throttles are set."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from barnabas.cli.output import Column, Mark, Marked, print_json, print_table, say, size
from barnabas.cli.reassignment_directories import Map, locate
from barnabas.cli.reassignment_files import Reassignment
from barnabas.cli.reassignment_throttles import Throttles, find_throttles
from barnabas.cli.reassignment_view import State, size_of
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
_DIRECTORY_COLUMNS: Final = (
    Column("Topic", "topic"),
    Column("Partition", "partition", is_number=True),
    Column("Broker", "broker", is_number=True),
    Column("State", "state"),
    Column("In", "directory"),
    Column("To", "target"),
    Column("Copied", "copied", is_number=True),
    Column("Of", "total", is_number=True),
)


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
class ObservedDirectory:
    """A replica that goes to another log directory of its broker, or that a file has in one."""

    partition: TopicPartition
    node_id: int
    state: State
    directory: str | None
    """Where its log is; None where its broker does not tell, or does not have it."""
    target: str
    copied_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Status:
    """Everything that is to be shown."""

    partitions: Sequence[Observed]
    directories: Sequence[ObservedDirectory]
    throttles: Throttles
    is_moving: bool
    """Whether any partition is, also one that is not shown."""

    def lost(self) -> list[TopicPartition]:
        """Partitions that are neither where a file has them nor on their way, in brokers or directories."""
        found = {each.partition for each in self.partitions if each.state is State.NEITHER}
        return sorted(found.union(each.partition for each in self.directories if each.state is State.NEITHER))


async def observe(client: Client, admin: Admin, wanted: Reassignment | None) -> Status:
    """The state of the partitions of a file, or of all that are being moved."""
    targets = None if wanted is None else wanted.replicas
    ongoing = await admin.list_partition_reassignments()
    topics = await admin.describe_topics()
    throttles = await find_throttles(admin, client.cluster.brokers)
    involved = {node_id for each in ongoing.values() for node_id in each.replicas}
    asked = client.cluster.brokers if wanted is None else involved.union(node_id for _, node_id in wanted.directories)
    where = await locate(admin, {*asked}.intersection(client.cluster.brokers))
    sizes = where.sizes()
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
    adding = {(partition, node_id) for partition, each in ongoing.items() for node_id in each.adding_replicas}
    return Status(found, _directories(where, wanted, adding), throttles, bool(ongoing or where.futures()))


def show(status: Status, *, as_json: bool) -> None:
    """Prints it, and says how to remove throttles that are left."""
    if as_json:
        print_json(document(status))
    elif status.partitions:
        print_table(_COLUMNS, [_row(each) for each in status.partitions])
    elif not status.directories:
        say("Nothing is being moved.")
    if status.directories and not as_json:
        if status.partitions:
            click.echo()
        print_table(_DIRECTORY_COLUMNS, [_directory_row(each) for each in status.directories])
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
        "directories": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "broker": each.node_id,
                "state": each.state.value,
                "directory": each.directory,
                "target": each.target,
                "copied_bytes": each.copied_bytes,
                "total_bytes": each.total_bytes,
            }
            for each in status.directories
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


def _directories(
    where: Map, wanted: Reassignment | None, adding: Collection[tuple[TopicPartition, int]]
) -> list[ObservedDirectory]:
    """Of the replicas for which a file names directories, or of all that go from one to another."""
    targets = (
        {replica: located.future for replica, located in where.replicas.items() if located.future is not None}
        if wanted is None
        else wanted.directories
    )
    found = []
    for (partition, node_id), target in sorted(targets.items()):
        located = where.at((partition, node_id))
        state = located.state(target)
        if state is State.NEITHER and located.current is None and (partition, node_id) in adding:
            state = State.MOVING
        copied = located.size_bytes if state is State.DONE else min(located.size_bytes, located.copied_bytes)
        found.append(ObservedDirectory(partition, node_id, state, located.current, target, copied, located.size_bytes))
    return found


def _directory_row(each: ObservedDirectory) -> list[object]:
    state = Marked(each.state.value, _MARKS[each.state])
    copies = [size(each.copied_bytes), size(each.total_bytes)] if each.state is State.MOVING else [None, None]
    return [each.partition.topic, each.partition.partition, each.node_id, state, each.directory, each.target, *copies]
