"""Reading and writing the state znodes of partitions, as steps of an event.

A partition whose znode another controller has written, of a greater epoch, is left alone.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from barnabas.controller.context import ControllerContext
from barnabas.controller.effects import StateChange, Steps, each_in_pieces, read_znodes, write_as_controller
from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.usual_states import usual_states
from barnabas.coordination.errors import BadVersionError, NodeExistsError, NoNodeError
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.layout.topics import (
    partition_path,
    partition_state_path,
    partition_state_paths,
    partitions_path,
)
from barnabas.coordination.operations import Create, SetData
from barnabas.wire.sentinels import LEADER_DURING_DELETE
from barnabas.wire.topics import TopicPartition

ATTEMPTS_MAX = 100
"""How often a change is tried while the leader changes the same znode; a leader has one change in flight."""

_VERSIONS_UNHEARD_OF: Final = 16
"""How many versions of a state a broker may not have heard of."""
_VERSIONS_MAX: Final = 100_000
"""Of a znode that is made again, by as many writes."""
_WRITES_MAX: Final = 1_000
"""At a time, to make znodes again."""

NOTHING: Final[Mapping[TopicPartition, LeaderAndIsr]] = MappingProxyType({})


class StateChangeFailedError(Exception):
    """A partition or replica could not change its state; it keeps it."""


class NotMadeAgainYetError(StateChangeFailedError):
    """The znode has not as many versions yet as it must have: the next pieces of that are written later."""


class NobodyElectedError(StateChangeFailedError):
    """No replica may lead the partition, for this `reason`; `strategy` is why a leader was to be elected, in words."""

    def __init__(self, strategy: str, reason: str) -> None:
        super().__init__(f"no leader is found (strategy: {strategy}): {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of writes: what the znodes hold now, with its version; whose znode had changed, so that the change
    must be decided again; and why others failed.
    """

    leadership: Mapping[TopicPartition, LeaderAndIsr]
    conflicts: tuple[TopicPartition, ...]
    failed: Mapping[TopicPartition, Exception]

    def with_those_of(self, others: Written) -> Written:
        """The outcomes of both."""
        return Written(
            {**self.leadership, **others.leadership},
            (*self.conflicts, *others.conflicts),
            {**self.failed, **others.failed},
        )


@dataclass(frozen=True, slots=True)
class _Behind:
    """The state that a znode must hold, with the version that it must have, later than the `version` that it has; None
    where it is gone.
    """

    state: LeaderAndIsr
    version: int | None
    has_failed: bool
    """Whether the last reading could do nothing about it: others go first, so that none waits for it for ever."""

    @property
    def writes(self) -> int:
        """How many it takes."""
        return self.state.partition_epoch - (-1 if self.version is None else self.version)


NOTHING_WRITTEN: Final = Written({}, (), {})


def read_leadership(
    context: ControllerContext,
    partitions: Iterable[TopicPartition],
    written_at: dict[TopicPartition, int] | None = None,
    own: Mapping[TopicPartition, LeaderAndIsr] = NOTHING,
    paths: Sequence[str] = (),
    ahead: Sequence[str] = (),
) -> Steps[dict[TopicPartition, LeaderAndIsr | Exception | None]]:
    """What the znodes of the partitions hold; None where there never was one, or why it cannot be used. The context
    learns which of them cannot be read. `written_at` is given the transactions that wrote those that may be older than
    the registration of a member of the ISR.

    Invariant: whoever is in sync, and in which leader epoch, is what a controller has told the brokers last. Nobody but
    the controller writes states, so one of no later leader epoch than the known one that holds something else is a copy
    with which somebody has mended the znode. It is not believed: who was in sync then may have lagged since, and
    brokers refuse its epochs. What is known is put back, in a new leader epoch. `own` is what was about to be written,
    the answer to which may have been lost; `paths` are those of the znodes, where the caller has them, and `ahead`
    those that are read next. Members that were lost while the znode could not be read leave the ISR. A znode that
    somebody has deleted is made again likewise: a partition that began anew could be led by a replica that was not in
    sync, in an epoch that brokers refuse. What is given has been found in the znode, or has been written into it.

    Raises `ControllerMovedError`.
    """
    found: dict[TopicPartition, LeaderAndIsr | Exception | None] = {}
    remaining: Sequence[TopicPartition] = list(partitions)
    for _ in range(ATTEMPTS_MAX):
        remaining = yield from _read_once(context, remaining, found, written_at, own, paths, ahead)
        if not remaining:
            return found
        paths, ahead = (), ()
    for partition in remaining:
        text = f"the state in ZooKeeper changed before each of {ATTEMPTS_MAX} writes"
        found[partition] = StateChangeFailedError(text)
        context.unreadable_partitions[partition] = None
    return found


def _read_once(
    context: ControllerContext,
    wanted: Sequence[TopicPartition],
    found: dict[TopicPartition, LeaderAndIsr | Exception | None],
    written_at: dict[TopicPartition, int] | None,
    own: Mapping[TopicPartition, LeaderAndIsr],
    paths: Sequence[str],
    ahead: Sequence[str],
) -> Steps[Sequence[TopicPartition]]:
    """Adds to `found`; returns the partitions whose znode has changed before what is right could be put back."""
    paths = paths or partition_state_paths(wanted)
    outcomes = yield from read_znodes(paths, ahead)
    usual = usual_states(context, wanted, outcomes, written_at)
    put_back: dict[TopicPartition, LeaderAndIsr] = {}
    behind: dict[TopicPartition, _Behind] = {}
    lines: list[StateChange] = []
    unreadable, made_again = context.unreadable_partitions, context.made_again
    for partition, path, outcome, state in zip(wanted, paths, outcomes, usual, strict=True):
        if state is not None:
            found[partition] = state
            continue
        is_begun = has_failed = False
        if partition in unreadable:
            del unreadable[partition]
            is_begun = partition in made_again
            has_failed = not is_begun
            made_again.pop(partition, None)
        if isinstance(outcome, NoNodeError):
            found[partition] = before = _before_deletion(context, partition)
            if isinstance(before, Exception):
                unreadable[partition] = None
            elif before is not None:
                behind[partition] = _Behind(before, None, has_failed)
                if not is_begun:
                    lines.append(_line_of_deleted(partition, before))
        elif isinstance(outcome, Exception):
            found[partition] = outcome
            unreadable[partition] = None
        else:
            stored = found[partition] = _decode(context, partition, path, outcome.data, outcome.version)
            if isinstance(stored, LeaderAndIsr):
                right = _right(context, partition, stored, outcome.mzxid, own.get(partition))
                if right is not stored:
                    found[partition] = right = right.by_controller(context.epoch)
                    if not is_begun:
                        lines.append(_line(partition, stored, right))
                    if right.partition_epoch == stored.partition_epoch:
                        put_back[partition] = right
                    else:
                        behind[partition] = _Behind(right, stored.partition_epoch, has_failed)
            else:
                unreadable[partition] = None
            if written_at is not None:
                # Not of what was put back: who started anew before that is still to be found.
                written_at.setdefault(partition, outcome.mzxid)
    if not put_back and not behind:
        return ()
    yield tuple(lines)
    return (yield from _put_back(context, found, put_back, behind))


def _put_back(
    context: ControllerContext,
    found: dict[TopicPartition, LeaderAndIsr | Exception | None],
    changed: Mapping[TopicPartition, LeaderAndIsr],
    behind: Mapping[TopicPartition, _Behind],
) -> Steps[Sequence[TopicPartition]]:
    """Writes what is right into znodes that hold something else, and makes those that are gone; `found` and the context
    have it then. Returns the partitions whose znode has changed before.
    """
    written = (yield from write_leadership(context, changed)) if changed else NOTHING_WRITTEN
    if behind:
        written = written.with_those_of((yield from _make_again(context, behind)))
    for partition, known in written.leadership.items():
        found[partition] = known
        context.set_leadership(partition, known)
        context.lost_members.pop(partition, None)
    for partition, error in written.failed.items():
        found[partition] = error
        context.unreadable_partitions[partition] = None
        if isinstance(error, NotMadeAgainYetError):
            context.made_again[partition] = None
    # Also where the znode has changed: it may have been this very write, whose answer was lost.
    context.put_back_partitions.update(dict.fromkeys([*written.leadership, *written.conflicts]))
    return written.conflicts


def _decode(
    context: ControllerContext, partition: TopicPartition, path: str, data: bytes | None, version: int
) -> LeaderAndIsr | Exception:
    try:
        found = LeaderAndIsr.decode(data, path, version)
    except LayoutError as error:
        return error
    if found.controller_epoch > context.epoch:
        return StateChangeFailedError(
            f"the controller of epoch {found.controller_epoch} has written the state of "
            f"{partition.topic}-{partition.partition}; this one has epoch {context.epoch} only"
        )
    return found


def _right(
    context: ControllerContext,
    partition: TopicPartition,
    stored: LeaderAndIsr,
    written_at: int,
    own: LeaderAndIsr | None,
) -> LeaderAndIsr:
    """The state in force: `stored`, or what the znode must hold instead, with the version that it must have."""
    known = context.leadership(partition)
    later = 1
    lost: Collection[int] = context.lost_members.get(partition, ())
    if known is None:
        # Of the former controllers' terms this broker has at least heard.
        told = context.told_leadership(partition.topic)
        known = None if told is None else told(partition.partition)
        later = _VERSIONS_UNHEARD_OF
        is_believed = known is None or stored.leader_epoch >= known.leader_epoch
        if known is not None and stored.holds_the_same(known):
            is_mended = stored.partition_epoch != known.partition_epoch
        else:
            # Of this state the broker has heard nothing, so that only its transaction tells.
            is_mended = (
                is_believed
                and written_at > context.last_write_of(stored)
                and not context.writes_isrs_itself(stored.leader)
            )
        if is_mended:
            lost = {*lost, *_may_have_bounced(context, stored)}
    else:
        is_believed = (
            stored.leader_epoch > known.leader_epoch
            or stored.holds_the_same(known)
            or (
                stored.leader_epoch == known.leader_epoch
                and ((own is not None and stored.holds_the_same(own)) or context.writes_isrs_itself(known.leader))
            )
        )
    right = stored
    if known is not None and not is_believed:
        right = known.elect(known.leader, known.isr).at_version(stored.partition_epoch)
    if lost and any(member in lost for member in right.isr):
        right = right.without(lost)
    elif context.lost_members:
        context.lost_members.pop(partition, None)
    if known is not None and stored.partition_epoch < known.partition_epoch:
        # Versions never fall: somebody has deleted the znode and made it again, or a controller that did has ended
        # in the middle (`_make_again`).
        version = known.partition_epoch + later
        if version - stored.partition_epoch <= _VERSIONS_MAX and not context.is_queued_for_deletion(partition.topic):
            right = right.at_version(version)
    return right


def _before_deletion(context: ControllerContext, partition: TopicPartition) -> LeaderAndIsr | Exception | None:
    """The state in force of a partition without a znode, in a new leader epoch, with the version that its znode must
    have, or why there is none; None for one that never had a leader, or whose topic is being deleted.
    """
    if context.is_queued_for_deletion(partition.topic):
        return None
    known = context.leadership(partition)
    lost: Collection[int] = context.lost_members.get(partition, ())
    later = 1
    if known is None:
        told = context.told_leadership(partition.topic)
        known = None if told is None else told(partition.partition)
        if known is None or known.leader == LEADER_DURING_DELETE:
            return None
        lost = {*lost, *_may_have_bounced(context, known)}
        later = _VERSIONS_UNHEARD_OF
    elif context.writes_isrs_itself(known.leader):
        # It may have written others since, and relies on what it has written.
        later = _VERSIONS_UNHEARD_OF
        if known.leader not in lost:
            lost = {*lost, *known.isr} - {known.leader}
    if known.partition_epoch + later > _VERSIONS_MAX:
        return StateChangeFailedError(
            f"{partition_state_path(*partition)} is gone, and is not made again, since it had {known.partition_epoch} "
            f"versions: make it again, with leader epoch {known.leader_epoch + 1} and in sync {list(known.isr)} or "
            f"fewer, and restart the brokers {list(context.assignment(partition).replicas)}, which skip it until then"
        )
    right = known.elect(known.leader, known.isr).at_version(known.partition_epoch + later)
    if any(member in lost for member in right.isr):
        right = right.without(lost)
    return right.by_controller(context.epoch)


def _may_have_bounced(context: ControllerContext, state: LeaderAndIsr) -> list[int]:
    """Of a state that somebody has mended by writing what it held before, or that is gone: when the last controller
    wrote it, and so who has started anew since, is not to be seen any more, nor who has left the ISR since this broker
    heard of it. All but one member may have, and come back once they have fetched. That one is the leader, which has
    every record of its epoch, where it cannot have started anew since; else the member that registered first, which is
    as in sync as any other.
    """
    brokers = context.live_or_shutting_down_brokers
    registered = sorted((brokers[member].epoch, member) for member in state.isr if member in brokers)
    kept = [member for epoch, member in registered if member == state.leader and context.is_older(epoch, state)]
    kept += [member for _, member in registered]
    return [member for _, member in registered if member != kept[0]]


def _line(partition: TopicPartition, stored: LeaderAndIsr, right: LeaderAndIsr) -> StateChange:
    return StateChange(
        logging.ERROR,
        f"the state of {partition.topic}-{partition.partition} in ZooKeeper (leader {stored.leader}, leader epoch "
        f"{stored.leader_epoch}, in sync {list(stored.isr)}, version {stored.partition_epoch}) is not in force: "
        f"somebody has written a former one or made it anew, or members have been lost while it could not be read. It "
        f"is replaced by leader {right.leader}, leader epoch {right.leader_epoch}, in sync {list(right.isr)}",
    )


def _line_of_deleted(partition: TopicPartition, right: LeaderAndIsr) -> StateChange:
    return StateChange(
        logging.ERROR,
        f"somebody has deleted the state of {partition.topic}-{partition.partition} in ZooKeeper. It is made again: "
        f"leader {right.leader}, leader epoch {right.leader_epoch}, in sync {list(right.isr)}",
    )


def write_leadership(context: ControllerContext, changes: Mapping[TopicPartition, LeaderAndIsr]) -> Steps[Written]:
    """Replaces the states, each where its znode still has the version that the change was decided on; one that is gone
    counts as changed.

    Raises `ControllerMovedError`.
    """
    writes: list[SetData] = []

    def write(partition: TopicPartition) -> None:
        change = changes[partition]
        data = change.to_znode().encode()
        writes.append(SetData(partition_state_path(*partition), data, change.partition_epoch))

    yield from each_in_pieces(write, changes)
    outcomes = yield from write_as_controller(writes, context.epoch_version)
    leadership: dict[TopicPartition, LeaderAndIsr] = {}
    conflicts: list[TopicPartition] = []
    failed: dict[TopicPartition, Exception] = {}
    for (partition, change), outcome in zip(changes.items(), outcomes, strict=True):
        if isinstance(outcome, BadVersionError | NoNodeError):
            conflicts.append(partition)
        elif isinstance(outcome, Exception):
            failed[partition] = outcome
        else:
            leadership[partition] = change.at_version(outcome.version)
    return Written(leadership, tuple(conflicts), failed)


def _make_again(context: ControllerContext, znodes: Mapping[TopicPartition, _Behind]) -> Steps[Written]:
    """Makes znodes that were deleted, in the versions that the states have, with those above as far as they are gone
    too, but not that of the topic. Brokers, Kafka's too, skip what comes in an earlier version than they know; and a
    new znode has version 0, so that it is written as often as it takes, as is one that somebody else made.

    Not more often than `ControllerContext.versions_left` allows, beginning with what takes the fewest writes, and with
    what could not be written the last time at the end: the rest fails with `NotMadeAgainYetError`, and goes on from
    there when it is read the next time, by whoever is the controller then. Until that is done nobody is told of such a
    state, and its partition has no election.

    Raises `ControllerMovedError`.
    """
    leadership: dict[TopicPartition, LeaderAndIsr] = {}
    conflicts: list[TopicPartition] = []
    failed: dict[TopicPartition, Exception] = {}
    pieces: dict[TopicPartition, int] = {}
    for partition, behind in sorted(znodes.items(), key=lambda each: (each[1].has_failed, each[1].writes)):
        writes = min(behind.writes, context.versions_left)
        if writes < behind.writes:
            # Not as far as the versions that brokers have heard of: of a later one nobody sees that it is not the last.
            writes = max(0, min(writes, behind.writes - _VERSIONS_UNHEARD_OF - 1))
            error = StateChangeFailedError if behind.has_failed and not writes else NotMadeAgainYetError
            failed[partition] = error(
                f"{partition_state_path(*partition)} is written until it has version {behind.state.partition_epoch}"
            )
        pieces[partition] = writes
        context.versions_left -= writes
    above: dict[str, None] = {}
    for partition, writes in pieces.items():
        if writes and znodes[partition].version is None:
            above[partitions_path(partition.topic)] = above[partition_path(*partition)] = None
    yield from write_as_controller([Create(path, None) for path in above], context.epoch_version)
    for partition, writes in pieces.items():
        behind = znodes[partition]
        outcome = yield from _write_on(partition_state_path(*partition), behind, writes, context.epoch_version)
        if isinstance(outcome, NodeExistsError | BadVersionError) or (
            isinstance(outcome, NoNodeError) and behind.version is not None
        ):
            conflicts.append(partition)
            failed.pop(partition, None)
        elif isinstance(outcome, Exception):
            failed[partition] = outcome
        elif partition not in failed:
            leadership[partition] = behind.state
    return Written(leadership, tuple(conflicts), failed)


def _write_on(path: str, behind: _Behind, count: int, epoch_version: int) -> Steps[Exception | None]:
    """Creates a znode where it is gone, and writes it, so many times in all; why it could not."""
    data = behind.state.to_znode().encode()
    first = -1 if behind.version is None else behind.version
    writes: list[Create | SetData] = []
    for version in range(first, first + count):
        if len(writes) == _WRITES_MAX:
            fault = _first_error((yield from write_as_controller(writes, epoch_version)))
            if fault is not None:
                return fault
            writes = []
        writes.append(Create(path, data) if version < 0 else SetData(path, data, version))
    return _first_error((yield from write_as_controller(writes, epoch_version)))


def _first_error(outcomes: Iterable[object]) -> Exception | None:
    return next((outcome for outcome in outcomes if isinstance(outcome, Exception)), None)


def begin_leader_epoch(
    context: ControllerContext, partitions: Iterable[TopicPartition]
) -> Steps[dict[TopicPartition, LeaderAndIsr | Exception]]:
    """Begins a new leader epoch under the same leader, so that replicas believe what they are told of the partition
    otherwise; what is no longer assigned leaves the ISR. Returns the leadership, which the context has then too, or why
    there is none; a partition that never had a leader is left out.

    Raises `ControllerMovedError`.
    """
    begun: dict[TopicPartition, LeaderAndIsr | Exception] = {}
    remaining: Sequence[TopicPartition] = list(partitions)
    for _ in range(ATTEMPTS_MAX):
        if not remaining:
            return begun
        found = yield from read_leadership(context, remaining)
        changes: dict[TopicPartition, LeaderAndIsr] = {}
        yield from each_in_pieces(partial(_begin_epoch, context, found, changes, begun), found)
        written = yield from write_leadership(context, changes)
        begun.update(written.failed)
        yield from each_in_pieces(lambda each: context.set_leadership(*each), written.leadership.items())
        for partition in written.leadership:
            context.put_back_partitions.pop(partition, None)
        begun.update(written.leadership)
        remaining = written.conflicts
    for partition in remaining:
        begun[partition] = StateChangeFailedError(
            f"the state in ZooKeeper changed before each of {ATTEMPTS_MAX} writes"
        )
    return begun


def _begin_epoch(
    context: ControllerContext,
    found: Mapping[TopicPartition, LeaderAndIsr | Exception | None],
    changes: dict[TopicPartition, LeaderAndIsr],
    faults: dict[TopicPartition, LeaderAndIsr | Exception],
    partition: TopicPartition,
) -> None:
    known = found[partition]
    if isinstance(known, LeaderAndIsr):
        replicas = context.assignment(partition).replicas
        isr = tuple(member for member in known.isr if member in replicas) or known.isr
        changes[partition] = known.elect(known.leader, isr).by_controller(context.epoch)
    elif known is not None:
        faults[partition] = known


def create_leadership(context: ControllerContext, changes: Mapping[TopicPartition, LeaderAndIsr]) -> Steps[Written]:
    """Creates the state znodes of new partitions, with those above. There are no conflicts.

    A znode that exists counts as created when it holds what was to be written: the connection was lost behind the
    write. Raises `ControllerMovedError`.
    """
    counts = Counter(partition.topic for partition in changes)
    new = {topic: None for topic, count in counts.items() if count == context.partition_count(topic)}
    # All at once: each write that is waited for may cost a sync of the coordinator. Of a topic that gets more
    # partitions what is above them exists, and would fail what shares a multi with it.
    above = [Create(partitions_path(topic), None) for topic in counts if topic not in new]
    yield from write_as_controller(above, context.epoch_version)
    writes = [Create(partitions_path(topic), None) for topic in new]

    def create(partition: TopicPartition) -> None:
        writes.append(Create(partition_path(*partition), None))
        writes.append(Create(partition_state_path(*partition), changes[partition].to_znode().encode()))

    yield from each_in_pieces(create, changes)
    # A znode that exists fails its multi, whose writes are then done one by one.
    outcomes = (yield from write_as_controller(writes, context.epoch_version))[len(new) + 1 :: 2]
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
