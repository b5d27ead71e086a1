"""Taking groups and offsets away: by request, with their topics, and when they expire.

What is asked for is answered when its tombstones are committed; until then it is out of sight, and it is there again
where they could not be appended. What expires is not waited for: it would expire again.

It may be very many offsets, and they go in steps. Each piece is looked at, taken away and written off in one turn, so
that no commit comes between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from barnabas.coordinators.group.background import BackgroundSteps
from barnabas.coordinators.group.effect_runner import AnyGroup, GroupEffectRunner, GroupHandle, Groups
from barnabas.coordinators.group.metrics import GroupMetrics
from barnabas.coordinators.group.records import offset_key
from barnabas.coordinators.group.settings import GroupSettings
from barnabas.coordinators.shard import APPEND_ERRORS
from barnabas.kernel.steps import STEP_ELEMENTS, StepRunner, Steps
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition

Records = list[tuple[bytes, bytes | None]]
"""Key and value of each."""

_ELEMENTS_PER_APPEND: Final = 16
"""What an append costs, beside its records."""
_TOMBSTONES_BYTES_MAX: Final = 65_536
"""How much one batch has, so that a topic allows it (`max.message.bytes`); it has one tombstone at least."""
_RECORD_OVERHEAD_BYTES: Final = 21
"""A tombstone has that much beside its key, at most."""
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
"""A batch, for the topic or for its segments."""
_DELETION_ERRORS: Final = {
    **APPEND_ERRORS,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


class _TopicDeletion:
    """Partitions that exist no more, and the groups which have not been looked through for them."""

    __slots__ = ("committed_anew", "groups", "partitions")

    def __init__(self, partitions: Iterable[TopicPartition], groups: Iterable[GroupHandle]) -> None:
        self.partitions = frozenset(partitions)
        self.groups: dict[GroupHandle, None] = dict.fromkeys(groups)
        self.committed_anew: dict[GroupHandle, set[TopicPartition]] = {}
        """The partitions that were committed after the deletion: of topics made anew under the old names."""

    def includes(self, handle: GroupHandle, partition: TopicPartition) -> bool:
        """Whether what the group has of the partition is to go."""
        return (
            handle in self.groups
            and partition in self.partitions
            and partition not in self.committed_anew.get(handle, ())
        )

    def commits_anew(self, handle: GroupHandle, partitions: Iterable[TopicPartition]) -> None:
        """What comes now is of topics that were made anew."""
        self.committed_anew.setdefault(handle, set()).update(partitions)

    def has_done(self, handle: GroupHandle) -> None:
        """The group was looked through."""
        del self.groups[handle]
        self.committed_anew.pop(handle, None)


class _Appends:
    """What a request began; `on_done` is called when the last of it ends, and the request itself with it."""

    __slots__ = ("_on_done", "_under_way")

    def __init__(self, on_done: Callable[[], None]) -> None:
        self._on_done = on_done
        self._under_way = 1

    def begin(self) -> None:
        self._under_way += 1

    def end(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._on_done()


class _Pace:
    """Ends a step when so much was done in it."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = STEP_ELEMENTS

    def count(self, elements: int) -> Steps[None]:
        self._left -= elements
        if self._left <= 0:
            self._left = STEP_ELEMENTS
            yield


class GroupDeletions:
    """Removes from `groups`, the groups of all active shards, and from the shards themselves."""

    def __init__(
        self,
        groups: Groups,
        effects: GroupEffectRunner,
        settings: GroupSettings,
        metrics: GroupMetrics,
        logger: logging.Logger,
        loop: asyncio.AbstractEventLoop,
        steps: StepRunner,
        background: BackgroundSteps,
    ) -> None:
        self._loop = loop
        self._steps = steps
        self._topic_deletions: dict[_TopicDeletion, asyncio.Task[None] | None] = {}
        self._background = background
        self._deleting: Groups = {}
        """Groups that are out of sight, and of which not all tombstones are appended."""
        self._groups = groups
        self._effects = effects
        self._settings = settings
        self._metrics = metrics
        self._logger = logger

    # By request.

    def delete_groups(
        self,
        found: Mapping[str, GroupHandle | ErrorCode],
        on_done: Callable[[dict[str, ErrorCode]], None],
    ) -> None:
        """Deletes those that are empty; `found` has what is to be answered for others. In the order of `found`.

        Each group is out of sight from its turn on, the first ones now, and nobody makes one of its name before all its
        tombstones are appended (`is_being_deleted`): theirs would come behind its commits.
        """
        self._background.run(self._delete_groups(dict(found), on_done), "delete-groups")

    def is_being_deleted(self, group_id: str) -> bool:
        """Whether tombstones of a group of that name are still to come."""
        handle = self._deleting.get(group_id)
        return handle is not None and handle.shard.is_active

    def _delete_groups(
        self, found: dict[str, GroupHandle | ErrorCode], on_done: Callable[[dict[str, ErrorCode]], None]
    ) -> Steps[None]:
        outcomes = dict.fromkeys(found, ErrorCode.NONE)
        appends = _Appends(lambda: on_done(outcomes))
        pace = _Pace()
        for group_id, handle in found.items():
            yield from pace.count(1)
            if isinstance(handle, ErrorCode):
                outcomes[group_id] = handle
            elif not self._is_here(handle):
                is_active = handle.shard.is_active
                outcomes[group_id] = ErrorCode.GROUP_ID_NOT_FOUND if is_active else ErrorCode.NOT_COORDINATOR
            elif not handle.group.is_empty:
                outcomes[group_id] = ErrorCode.NON_EMPTY_GROUP
            else:
                yield from self._delete_group(handle, outcomes, appends, pace)
        appends.end()

    def _delete_group(
        self, handle: GroupHandle, outcomes: dict[str, ErrorCode], appends: _Appends, pace: _Pace
    ) -> Steps[None]:
        """The group's own tombstone is the last one: where one before it cannot be appended, the group is there again,
        with the offsets that are left.
        """
        group = handle.group
        group_id = group.group_id
        partitions = group.offsets.written_partitions
        self._take_out(handle)
        self._deleting[group_id] = handle

        def appended(some: Sequence[TopicPartition], error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                self._metrics.offset_deletions.count += len(some)
            else:
                outcomes[group_id] = _DELETION_ERRORS.get(error, error)

        try:
            left = len(partitions)
            for some in _pieces(partitions):
                left -= len(some)
                refusal = self._append_tombstones(handle, some, appends, appended, with_group=not left)[1]
                if refusal is not ErrorCode.NONE:
                    outcomes[group_id] = _DELETION_ERRORS.get(refusal, refusal)
                    self._put_back(handle)
                    return
                if some:
                    yield from pace.count(len(some) + _ELEMENTS_PER_APPEND)
        finally:
            if self._deleting.get(group_id) is handle:
                del self._deleting[group_id]
        self._logger.info("Group %s and %d offsets of it were deleted", group_id, len(partitions))

    def delete_offsets(
        self,
        handle: GroupHandle,
        partitions: Sequence[TopicPartition],
        on_done: Callable[[dict[TopicPartition, ErrorCode]], None],
    ) -> None:
        """Deletes the offsets that nobody consumes; raises KafkaError NON_EMPTY_GROUP for members that may be anything
        but consumers. Each offset goes at its turn, the first ones now.
        """
        group = handle.group
        if not group.is_empty and not group.is_consumer_group:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        self._background.run(self._delete_offsets(handle, partitions, on_done), "delete-offsets")

    def _delete_offsets(
        self,
        handle: GroupHandle,
        partitions: Sequence[TopicPartition],
        on_done: Callable[[dict[TopicPartition, ErrorCode]], None],
    ) -> Steps[None]:
        outcomes: dict[TopicPartition, ErrorCode] = {}
        may_be_unused = False
        has_failed = False
        deleted = 0

        def done() -> None:
            if deleted:
                self._logger.info("%d offsets of group %s were deleted", deleted, handle.group.group_id)
            if may_be_unused and not has_failed:
                self._remove_if_unused(handle)  # such as one that only has a leftover name, as in Kafka
            on_done(outcomes)

        def appended(some: Sequence[TopicPartition], error: ErrorCode) -> None:
            nonlocal deleted, has_failed
            if error is ErrorCode.NONE:
                deleted += len(some)
                self._metrics.offset_deletions.count += len(some)
            else:
                has_failed = True
                outcomes.update(dict.fromkeys(some, _DELETION_ERRORS.get(error, error)))

        appends = _Appends(done)
        pace = _Pace()
        for some in _pieces(partitions):
            deleting = []
            group = handle.group  # which may have made place for one of the other kind meanwhile
            for partition in some:
                if not handle.shard.is_active:
                    outcomes[partition] = ErrorCode.NOT_COORDINATOR
                elif not group.is_empty and group.is_subscribed_to(partition.topic):
                    outcomes[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                else:
                    outcomes[partition] = ErrorCode.NONE
                    may_be_unused = True
                    if group.offsets.is_written(partition) and self._is_here(handle):
                        deleting.append(partition)
            written, refusal = self._append_tombstones(handle, deleting, appends, appended)
            if refusal is not ErrorCode.NONE:
                appended(deleting[written:], refusal)
            yield from pace.count(len(some) + (_ELEMENTS_PER_APPEND if deleting else 0))
        appends.end()

    def _append_tombstones(
        self,
        handle: GroupHandle,
        partitions: Sequence[TopicPartition],
        appends: _Appends,
        on_appended: Callable[[Sequence[TopicPartition], ErrorCode], None],
        *,
        with_group: bool = False,
    ) -> tuple[int, ErrorCode]:
        """Appends the tombstones and replays those that are not refused; returns how many these are, and the refusal
        that ended it or NONE. `on_appended` takes the outcome of each batch when known.
        """

        def append(records: Records, some: Sequence[TopicPartition], replay: Callable[[int], None]) -> None:
            def done(error: ErrorCode) -> None:
                on_appended(some, error)
                appends.end()

            appends.begin()
            try:
                handle.shard.append(records, self._effects.now().time_ms, replay, done)
            except KafkaError:
                appends.end()
                raise

        written, error = _append_tombstones(handle.group, partitions, append, with_group=with_group)
        return written, ErrorCode.NONE if error is None else error.code

    # By themselves.

    async def expire_offsets(self) -> None:
        """Removes offsets past their retention, and then groups that have neither members nor offsets."""
        started_ms = self._effects.now().time_ms
        steps = self._expire()
        try:
            next(steps)
        except StopIteration as stop:
            count = stop.value
        else:
            count = await self._steps.run(steps)
        if count:
            duration_ms = self._effects.now().time_ms - started_ms
            self._logger.info("Removed %d expired offsets in %d milliseconds", count, duration_ms)

    def _expire(self) -> Steps[int]:
        count = 0
        left = STEP_ELEMENTS
        for handle in _let_go(self._groups.values()):
            for some in _pieces(list(handle.group.offsets.partitions)):
                if not self._is_here(handle):
                    break
                expired = handle.group.expired_offsets(some, self._effects.now(), self._settings.retention_ms)
                written_off = self._write_off(handle, expired)
                self._metrics.offset_expirations.count += written_off
                count += written_off
                left -= len(some) + 1 + (_ELEMENTS_PER_APPEND if expired else 0)
                if left <= 0:
                    yield
                    left = STEP_ELEMENTS
        return count

    def remove_offsets_of(self, partitions: Sequence[TopicPartition]) -> None:
        """The partitions exist no more. Groups without members and offsets go too, as in Kafka.

        From now on `is_deleted` says so of their offsets, which go in steps, the first of them now.
        """
        deletion = _TopicDeletion(partitions, self._groups.values())
        steps = self._remove_offsets(deletion)
        self._topic_deletions[deletion] = None
        try:
            next(steps)
        except StopIteration:
            return
        self._topic_deletions[deletion] = self._loop.create_task(self._steps.run(steps), name="remove-offsets")

    def is_deleted(self, handle: GroupHandle, partition: TopicPartition) -> bool:
        """Whether the topic is deleted, though the offset is still there."""
        deletions = self._topic_deletions
        return bool(deletions) and any(deletion.includes(handle, partition) for deletion in deletions)

    def before_commit(self, handle: GroupHandle, partitions: Iterable[TopicPartition]) -> None:
        """The group is about to commit these. Where a topic of that name was deleted, this one was made anew: what is
        left of the former goes now, and what comes stays. Where its tombstones cannot be written, the commit that comes
        next in the same log cannot either, and the former goes later.
        """
        offsets = handle.group.offsets
        for deletion in self._topic_deletions:
            again = [partition for partition in partitions if deletion.includes(handle, partition)]
            if again:
                written = [partition for partition in again if offsets.is_written(partition)]
                self._write_off(handle, written, may_remove_group=False)
                deletion.commits_anew(handle, (each for each in again if not offsets.is_written(each)))

    async def stop(self) -> None:
        """Waits for what goes in steps; to be called when no group is here any more, so that it ends."""
        tasks = [task for task in self._topic_deletions.values() if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _remove_offsets(self, deletion: _TopicDeletion) -> Steps[None]:
        count = 0
        left = STEP_ELEMENTS
        try:
            for handle in _let_go(deletion.groups):
                offsets = handle.group.offsets
                few = offsets.written_partitions if len(offsets) < len(deletion.partitions) else deletion.partitions
                for some in _pieces(list(few)):
                    if not self._is_here(handle):
                        break
                    gone = [
                        partition
                        for partition in some
                        if offsets.is_written(partition) and deletion.includes(handle, partition)
                    ]
                    if gone or self._is_unused(handle.group):
                        count += self._write_off(handle, gone)
                        left -= _ELEMENTS_PER_APPEND
                    left -= len(some) + 1
                    if left <= 0:
                        yield
                        left = STEP_ELEMENTS
                deletion.has_done(handle)
        finally:
            del self._topic_deletions[deletion]
        if count:
            self._logger.info("Removed %d offsets of %d deleted partitions", count, len(deletion.partitions))

    def _is_here(self, handle: GroupHandle) -> bool:
        return self._groups.get(handle.group.group_id) is handle

    def _write_off(
        self, handle: GroupHandle, partitions: Sequence[TopicPartition], *, may_remove_group: bool = True
    ) -> int:
        """Appends and replays the tombstones of offsets, each named once, and of the group where nothing else is left
        of it; returns how many committed offsets are gone.

        Invariant: whoever loads the log finds what is seen here. So pending offsets need tombstones, too.
        """
        group = handle.group
        committed_before = len(group.offsets)
        is_unused = may_remove_group and self._is_unused(group, partitions)
        written, error = _append_tombstones(
            group,
            partitions,
            lambda records, _, replay: handle.shard.append_unacknowledged(records, self._effects.now().time_ms, replay),
            with_group=is_unused,
        )
        if error is not None:
            self._logger.warning(
                "Failed to append tombstones for %d offsets of group %s, which stay until the next time: %s",
                len(partitions) - written,
                group.group_id,
                error,
            )
        elif is_unused:
            self._logger.info("Group %s with generation %d is removed", group.group_id, group.version)
            self._take_out(handle)
        return committed_before - len(group.offsets)

    def _remove_if_unused(self, handle: GroupHandle) -> None:
        if self._is_here(handle):
            self._write_off(handle, ())

    def _is_unused(self, group: AnyGroup, removing: Sequence[TopicPartition] = ()) -> bool:
        """Whether nothing is left of the group when the offsets of these partitions are removed."""
        return group.is_empty and not group.offsets.has_others(removing)

    def _take_out(self, handle: GroupHandle) -> None:
        group_id = handle.group.group_id
        self._groups.pop(group_id, None)
        handle.shard.content.pop(group_id, None)
        self._effects.stop_timers(handle)

    def _put_back(self, handle: GroupHandle) -> None:
        try:
            handle.shard.content[handle.group.group_id] = handle
        except KafkaError:
            return  # the shard has resigned, and whoever loads it finds the group
        self._groups[handle.group.group_id] = handle


def _append_tombstones(
    group: AnyGroup,
    partitions: Sequence[TopicPartition],
    append: Callable[[Records, Sequence[TopicPartition], Callable[[int], None]], None],
    *,
    with_group: bool,
) -> tuple[int, KafkaError | None]:
    """Appends the tombstones of offsets, and then of the group, as `_append_in_batches` does. `append` takes the
    records of a batch, the partitions that they are for, and their replay.

    An offset is taken away in the turn in which its tombstone comes into the log, and not before: one that is being
    appended (pending) must not be forgotten by a deletion that is refused.
    """
    records: Records = [(offset_key(group.group_id, partition), None) for partition in partitions]
    if with_group:
        records += group.tombstones()
    position = 0

    def append_batch(batch: Records) -> None:
        nonlocal position
        some = partitions[position : position + len(batch)]

        def replay(base_offset: int) -> None:
            for partition in some:
                group.offsets.replay(partition, base_offset, None)
            for key, _ in batch[len(some) :]:
                group.bury(key)

        append(batch, some, replay)
        position += len(batch)

    return _append_in_batches(records, append_batch)


def _let_go(groups: Iterable[GroupHandle]) -> Iterator[GroupHandle]:
    """Yields the groups, and keeps none longer than it is wanted: very many, freed at once, take long."""
    left = list(groups)
    left.reverse()
    while left:
        yield left.pop()


def _pieces(partitions: Sequence[TopicPartition]) -> Iterator[Sequence[TopicPartition]]:
    """So many of them for each step; one piece at least, which may be empty."""
    yield partitions[:STEP_ELEMENTS]
    for start in range(STEP_ELEMENTS, len(partitions), STEP_ELEMENTS):
        yield partitions[start : start + STEP_ELEMENTS]


def _append_in_batches(records: Records, append: Callable[[Records], None]) -> tuple[int, KafkaError | None]:
    """Appends tombstones in batches that are small, and smaller where the topic does not take that; returns how many
    were appended, and the refusal that ended it.
    """
    bytes_max = _TOMBSTONES_BYTES_MAX
    written = 0
    while written < len(records):
        batch: Records = []
        size_bytes = 0
        for record in islice(records, written, None):
            record_bytes = len(record[0]) + _RECORD_OVERHEAD_BYTES
            if batch and size_bytes + record_bytes > bytes_max:
                break
            batch.append(record)
            size_bytes += record_bytes
        try:
            append(batch)
        except KafkaError as error:
            if error.code not in _TOO_LARGE or len(batch) == 1:
                return written, error
            bytes_max = size_bytes // 2
        else:
            written += len(batch)
    return written, None
