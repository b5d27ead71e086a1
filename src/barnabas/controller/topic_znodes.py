"""Reading, completing and deleting the znodes of topics, as steps of an event."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from barnabas.controller.effects import (
    CHANGES_PER_PIECE,
    ITEMS_PER_PIECE,
    Steps,
    give_way,
    in_pieces,
    operate,
    read_children,
    write_as_controller,
)
from barnabas.controller.watches import ControllerWatches
from barnabas.coordination.errors import BadVersionError, NoNodeError, NotEmptyError
from barnabas.coordination.layout.admin import DELETE_TOPICS_PATH, delete_topic_path
from barnabas.coordination.layout.configs import ConfigEntityType, config_path
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.layout.topics import TOPICS_PATH, ReplicaAssignment, TopicAssignment, topic_path
from barnabas.coordination.operations import Delete, Exists, GetChildren, GetData, SetData
from barnabas.coordination.protocol import Stat
from barnabas.kernel.ids import Uuid
from barnabas.wire.topics import TopicPartition

DELETE_ATTEMPTS_MAX = 10
"""How often the znodes of a topic are listed again because something was created below one that is to be deleted."""

WRITE_ATTEMPTS_MAX = 100
"""How often an assignment is written anew because somebody has changed it meanwhile."""


class ZnodeWriteError(Exception):
    """A znode could not be written or deleted; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class TopicZnode:
    """The assignment of a topic, and the version of the znode that it was read from, with the transaction that wrote
    it.
    """

    assignment: TopicAssignment
    version: int
    written_by: int


@dataclass(frozen=True, slots=True)
class TopicReader:
    """Reads topics, and leaves the watches of the term at them. `new_topic_id` makes ids for topics that have none, and
    is None where they get none (inter.broker.protocol.version below 2.8); `unreadable` is kept to hold those whose
    assignment cannot be read. `known` has the transactions that wrote the assignments that the controller knows.

    Invariant: whoever puts a transaction into `known` has taken notice of all partitions that it has, or has written it
    on top of one that was there. So what another client has added is never taken for the controller's own write.
    """

    watches: ControllerWatches
    new_topic_id: Callable[[], Uuid] | None
    logger: logging.Logger
    unreadable: dict[str, None] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)

    def read_names(self) -> Steps[list[str]]:
        """The names of all topics, sorted."""
        return (yield from self._children(GetChildren(TOPICS_PATH, self.watches.topics)))

    def read_deletions(self) -> Steps[list[str]]:
        """The topics whose deletion is asked for, sorted."""
        return (yield from self._children(GetChildren(DELETE_TOPICS_PATH, self.watches.topic_deletions)))

    def _children(self, read: GetChildren) -> Steps[list[str]]:
        (children,) = yield from operate([read])
        if isinstance(children, Exception):
            raise children
        return sorted(children.names)

    def is_known(self, topic: str) -> Steps[bool]:
        """Whether the controller knows the assignment as it is; leaves the watch. It costs nothing per partition: each
        step of a reassignment writes the assignment, and each write fires the watch.
        """
        (stat,) = yield from operate([Exists(topic_path(topic), self.watches.topic(topic))])
        return isinstance(stat, Stat) and stat.mzxid == self.known.get(topic)

    def read(self, topics: Iterable[str], ahead: Iterable[str] = ()) -> Steps[dict[str, TopicZnode]]:
        """The assignments of topics. One that is gone, or cannot be read, is left out; the latter is logged. `ahead`
        are the topics that are read next.
        """
        wanted = list(topics)
        outcomes = yield from operate(self._reads(wanted), self._reads(ahead))
        found: dict[str, TopicZnode] = {}
        for topic, outcome in zip(wanted, outcomes, strict=True):
            self.unreadable.pop(topic, None)
            if isinstance(outcome, NoNodeError):
                self.watches.forget_topic(topic)
                continue
            if isinstance(outcome, Exception):
                raise outcome
            try:
                assignment = yield from in_pieces(TopicAssignment.decode_in_steps(outcome.data, topic_path(topic)))
            except LayoutError as error:
                self.logger.warning("Ignoring topic %s, whose assignment cannot be read: %s", topic, error)
                self.unreadable[topic] = None
                continue
            found[topic] = TopicZnode(assignment, outcome.stat.version, outcome.stat.mzxid)
        return found

    def _reads(self, topics: Iterable[str]) -> list[GetData]:
        return [GetData(topic_path(topic), self.watches.topic(topic)) for topic in topics]

    def read_with_ids(
        self, topics: Iterable[str], epoch_version: int, ahead: Iterable[str] = ()
    ) -> Steps[dict[str, TopicZnode]]:
        """As `read`, and gives an id to each topic that has none (it is from before Kafka 2.8)."""
        found = yield from self.read(topics, ahead)
        if self.new_topic_id is None:
            return found
        without = [topic for topic, znode in found.items() if znode.assignment.topic_id is None]
        changes = {
            topic: dataclasses.replace(found[topic].assignment, topic_id=self.new_topic_id()) for topic in without
        }
        writes = [SetData(topic_path(topic), changes[topic].encode(), found[topic].version) for topic in without]
        outcomes = yield from write_as_controller(writes, epoch_version)
        for topic, outcome in zip(without, outcomes, strict=True):
            if isinstance(outcome, Exception):
                # The topic is usable without; the event that the other change causes, or the next term, tries again.
                self.logger.warning("Topic %s gets no id for now: %s", topic, outcome)
            else:
                found[topic] = TopicZnode(changes[topic], outcome.version, outcome.mzxid)
        return found


def write_assignment(topic: str, znode: TopicZnode, epoch_version: int) -> Steps[int | None]:
    """Replaces the assignment of a topic where it is still the one that `znode` was read from.

    Returns the transaction that has written it, None when it had changed or is gone. Raises `ZnodeWriteError`.
    """
    if len(znode.assignment.partitions) > CHANGES_PER_PIECE:
        yield from give_way()  # it may have been read in this turn
    encoded = yield from in_pieces(znode.assignment.encode_in_steps())
    write = SetData(topic_path(topic), encoded, znode.version)
    (outcome,) = yield from write_as_controller([write], epoch_version)
    if isinstance(outcome, BadVersionError | NoNodeError):
        return None
    if isinstance(outcome, Exception):
        raise ZnodeWriteError(f"the assignment of topic {topic} could not be written: {outcome}") from outcome
    written_by: int = outcome.mzxid
    return written_by


def replace_assignments(
    reader: TopicReader, assignments: Mapping[TopicPartition, ReplicaAssignment], epoch_version: int
) -> Steps[dict[TopicPartition, ZnodeWriteError | None]]:
    """Gives partitions other replicas in the znodes of their topics, and leaves the other partitions as they are there;
    returns why it could not be done, None where it was.
    """
    by_topic: dict[str, dict[int, ReplicaAssignment]] = {}
    for partition, assignment in assignments.items():
        by_topic.setdefault(partition.topic, {})[partition.partition] = assignment
    outcomes: dict[TopicPartition, ZnodeWriteError | None] = {}
    for topic, changes in by_topic.items():
        fault: ZnodeWriteError | None = None
        try:
            yield from _replace_of_topic(reader, topic, changes, epoch_version)
        except ZnodeWriteError as error:
            fault = error
        outcomes |= {TopicPartition(topic, number): fault for number in changes}
    return outcomes


def _replace_of_topic(
    reader: TopicReader, topic: str, changes: Mapping[int, ReplicaAssignment], epoch_version: int
) -> Steps[None]:
    for _ in range(WRITE_ATTEMPTS_MAX):
        found = yield from reader.read([topic])
        if topic not in found:
            raise ZnodeWriteError(f"the assignment of topic {topic} is gone, or cannot be read")
        before = found[topic].assignment
        unknown = [number for number in changes if number not in before.partitions]
        if unknown:
            raise ZnodeWriteError(f"topic {topic} has no partitions {unknown}")
        if all(before.partitions[number] == assignment for number, assignment in changes.items()):
            return
        after = dataclasses.replace(before, partitions={**before.partitions, **changes})
        read = found[topic]
        written_by = yield from write_assignment(topic, dataclasses.replace(read, assignment=after), epoch_version)
        if written_by is not None:
            if reader.known.get(topic) == read.written_by:
                reader.known[topic] = written_by
            return
    raise ZnodeWriteError(f"the assignment of topic {topic} changed before each of {WRITE_ATTEMPTS_MAX} writes")


def delete_topic_znodes(topic: str, epoch_version: int) -> Steps[None]:
    """Deletes all znodes of a topic: what is below `/brokers/topics`, then its config, then the request for the
    deletion, which keeps its place until all else is gone so that another controller would go on.

    Raises `ZnodeWriteError`.
    """
    yield from _delete_recursively(topic_path(topic), epoch_version)
    yield from _delete_recursively(config_path(ConfigEntityType.TOPICS, topic), epoch_version)
    yield from delete_requests([topic], epoch_version)


def delete_requests(topics: Iterable[str], epoch_version: int) -> Steps[None]:
    """Deletes the requests for the deletion of topics. Raises `ZnodeWriteError`."""
    yield from delete_znodes([delete_topic_path(topic) for topic in topics], epoch_version)


def delete_znodes(paths: Iterable[str], epoch_version: int) -> Steps[None]:
    """Deletes znodes without children; those that are gone already count as deleted. Raises `ZnodeWriteError`."""
    remaining = yield from _delete(list(paths), epoch_version)
    if remaining:
        raise ZnodeWriteError(f"{remaining[0]} could not be deleted: there are znodes below it")


def _delete(paths: Iterable[str], epoch_version: int) -> Steps[list[str]]:
    """Deletes znodes, in order and some at a time, and returns those that have children."""
    remaining: list[str] = []
    waiting = iter(paths)
    while piece := list(islice(waiting, ITEMS_PER_PIECE)):
        outcomes = yield from write_as_controller([Delete(path) for path in piece], epoch_version)
        for path, outcome in zip(piece, outcomes, strict=True):
            if isinstance(outcome, NotEmptyError):
                remaining.append(path)
            elif isinstance(outcome, Exception) and not isinstance(outcome, NoNodeError):
                raise ZnodeWriteError(f"{path} could not be deleted: {outcome}") from outcome
    return remaining


def _delete_recursively(root: str, epoch_version: int) -> Steps[None]:
    for _ in range(DELETE_ATTEMPTS_MAX):
        remaining: list[str] = []
        levels = yield from _descendants(root)
        for level in reversed(levels):
            remaining = yield from _delete(level, epoch_version)
        if not remaining:
            return
    raise ZnodeWriteError(f"{root} could not be deleted: something keeps creating znodes below it")


def _descendants(root: str) -> Steps[list[list[str]]]:
    """The znode and all below it, level by level, those that are there."""
    levels: list[list[str]] = []
    level = [root]
    while level:
        present: list[str] = []
        below: list[str] = []
        waiting = iter(level)
        while piece := list(islice(waiting, ITEMS_PER_PIECE)):
            outcomes = yield from read_children(piece)
            for path, outcome in zip(piece, outcomes, strict=True):
                if isinstance(outcome, NoNodeError):
                    continue
                if isinstance(outcome, Exception):
                    raise ZnodeWriteError(f"the children of {path} could not be read: {outcome}") from outcome
                present.append(path)
                names = iter(outcome)
                while some := [f"{path}/{name}" for name in islice(names, ITEMS_PER_PIECE)]:
                    below += some
                    if len(some) == ITEMS_PER_PIECE:
                        yield from give_way()
        if present:
            levels.append(present)
        level = below
    return levels
