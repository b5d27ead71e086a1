"""Taking groups and offsets away: by request, with their topics, and when they expire.

What is asked for is answered when its tombstones are committed; until then it is out of sight, and it is put back where
they could not be appended. What expires is not waited for: it would expire again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from barnabas.coordination.layout.topics import TopicPartition
from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.hosting import GroupHosting, Groups, HostedGroup
from barnabas.coordinators.group.metrics import GroupMetrics
from barnabas.coordinators.group.offsets import StoredOffset
from barnabas.coordinators.group.records import group_key, offset_key
from barnabas.coordinators.group.settings import GroupSettings
from barnabas.coordinators.group.states import GroupState
from barnabas.kernel.turns import next_turn
from barnabas.wire.errors import ErrorCode, KafkaError

_GROUPS_PER_TURN: Final = 200
_DELETION_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


class GroupDeletions:
    """Removes from `groups`, the groups of all active shards, and from the shards themselves."""

    def __init__(
        self,
        groups: Groups,
        hosting: GroupHosting,
        settings: GroupSettings,
        metrics: GroupMetrics,
        logger: logging.Logger,
    ) -> None:
        self._groups = groups
        self._hosting = hosting
        self._settings = settings
        self._metrics = metrics
        self._logger = logger

    # By request.

    def delete_groups(
        self,
        found: Mapping[str, HostedGroup | ErrorCode],
        on_done: Callable[[dict[str, ErrorCode]], None],
    ) -> None:
        """Deletes those that are empty; `found` has what is to be answered for others. In the order of `found`."""
        outcomes: dict[str, ErrorCode] = dict.fromkeys(found, ErrorCode.NONE)
        deleting: dict[str, HostedGroup] = {}
        for group_id, hosted in found.items():
            if isinstance(hosted, ErrorCode):
                outcomes[group_id] = hosted
            elif hosted.group.state is not GroupState.EMPTY:
                outcomes[group_id] = ErrorCode.NON_EMPTY_GROUP
            else:
                deleting[group_id] = hosted
        unknown = len(deleting)
        if not unknown:
            on_done(outcomes)
            return

        def deleted(group_id: str, error: ErrorCode) -> None:
            nonlocal unknown
            outcomes[group_id] = error
            unknown -= 1
            if not unknown:
                on_done(outcomes)

        for hosted in deleting.values():
            self._delete_group(hosted, deleted)

    def _delete_group(self, hosted: HostedGroup, on_done: Callable[[str, ErrorCode], None]) -> None:
        group = hosted.group
        partitions = group.offsets.written_partitions
        self._take_out(hosted)

        def appended(base_offset: int, error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                self._logger.info("Group %s and %d offsets of it were deleted", group.group_id, len(partitions))
                self._metrics.offset_deletions.count += len(partitions)
            elif base_offset < 0 and group.group_id not in self._groups:
                self._put_back(hosted)
            on_done(group.group_id, _DELETION_ERRORS.get(error, error))

        records = _tombstones(group, partitions, with_group=True)
        if records:
            hosted.shard.append(records, self._hosting.now().time_ms, appended)
        else:
            on_done(group.group_id, ErrorCode.NONE)

    def delete_offsets(
        self,
        hosted: HostedGroup,
        partitions: Sequence[TopicPartition],
        on_done: Callable[[dict[TopicPartition, ErrorCode]], None],
    ) -> None:
        """Deletes the offsets that nobody consumes; raises KafkaError NON_EMPTY_GROUP for members that may be anything
        but consumers.
        """
        group = hosted.group
        if group.state is not GroupState.EMPTY and not group.is_consumer_group:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        outcomes = {
            partition: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if group.state is not GroupState.EMPTY and group.is_subscribed_to(partition.topic)
            else ErrorCode.NONE
            for partition in partitions
        }
        deleting = [partition for partition, error in outcomes.items() if error is ErrorCode.NONE]
        written = set(group.offsets.written_partitions)
        records = _tombstones(group, [partition for partition in deleting if partition in written], with_group=False)
        if not records:
            if deleting:
                self._remove_if_unused(hosted)  # such as one that only has a leftover name, as in Kafka
            on_done(outcomes)
            return
        removed = group.offsets.remove(deleting)

        def appended(base_offset: int, error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                self._logger.info("%d offsets of group %s were deleted", len(removed), group.group_id)
                self._metrics.offset_deletions.count += len(removed)
                self._remove_if_unused(hosted)
            elif base_offset < 0:
                group.offsets.put_back(removed)
            code = _DELETION_ERRORS.get(error, error)
            outcomes.update(dict.fromkeys(deleting, code))
            on_done(outcomes)

        hosted.shard.append(records, self._hosting.now().time_ms, appended)

    # By themselves.

    async def expire_offsets(self) -> None:
        """Removes offsets past their retention, and then groups that have neither members nor offsets."""
        started_ms = self._hosting.now().time_ms
        count = 0
        for position, hosted in enumerate(list(self._groups.values())):
            if position % _GROUPS_PER_TURN == _GROUPS_PER_TURN - 1:
                await next_turn()
            if self._groups.get(hosted.group.group_id) is not hosted:
                continue
            removed = hosted.group.remove_expired_offsets(self._hosting.now(), self._settings.retention_ms)
            count += self._write_off(hosted, removed)
        self._metrics.offset_expirations.count += count
        if count:
            duration_ms = self._hosting.now().time_ms - started_ms
            self._logger.info("Removed %d expired offsets in %d milliseconds", count, duration_ms)

    def remove_offsets_of(self, partitions: Sequence[TopicPartition]) -> None:
        """The partitions exist no more. Groups without members and offsets go too, as in Kafka."""
        count = 0
        deleted = frozenset(partitions)
        for hosted in list(self._groups.values()):
            gone = [partition for partition in hosted.group.offsets.written_partitions if partition in deleted]
            if gone or self._is_unused(hosted.group):
                count += self._write_off(hosted, hosted.group.offsets.remove(gone))
        if count:
            self._logger.info("Removed %d offsets of %d deleted partitions", count, len(partitions))

    def _write_off(self, hosted: HostedGroup, removed: Mapping[TopicPartition, StoredOffset]) -> int:
        """Appends the tombstones of removed offsets, and of the group where nothing is left of it; returns how many
        offsets are gone.
        """
        group = hosted.group
        is_unused = self._is_unused(group)
        records = _tombstones(group, removed, with_group=is_unused)
        if records:
            try:
                hosted.shard.append_unacknowledged(records, self._hosting.now().time_ms)
            except KafkaError as error:
                self._logger.warning(
                    "Failed to append %d tombstones for offsets of group %s, which stay until the next time: %s",
                    len(records),
                    group.group_id,
                    error,
                )
                group.offsets.put_back(removed)
                return 0
        if is_unused:
            self._logger.info("Group %s with generation %d is removed", group.group_id, group.generation)
            self._take_out(hosted)
        return len(removed)

    def _remove_if_unused(self, hosted: HostedGroup) -> None:
        if self._groups.get(hosted.group.group_id) is hosted:
            self._write_off(hosted, {})

    def _is_unused(self, group: Group) -> bool:
        return group.state is GroupState.EMPTY and not group.offsets.has_any

    def _take_out(self, hosted: HostedGroup) -> None:
        group_id = hosted.group.group_id
        self._groups.pop(group_id, None)
        hosted.shard.content.pop(group_id, None)
        self._hosting.stop_timers(hosted)

    def _put_back(self, hosted: HostedGroup) -> None:
        try:
            hosted.shard.content[hosted.group.group_id] = hosted
        except KafkaError:
            return  # the shard has resigned, and whoever loads it finds the group
        self._groups[hosted.group.group_id] = hosted


def _tombstones(
    group: Group, partitions: Iterable[TopicPartition], *, with_group: bool
) -> list[tuple[bytes, bytes | None]]:
    """A group of generation 0 has no record: nobody was ever its member."""
    records: list[tuple[bytes, bytes | None]] = [
        (offset_key(group.group_id, partition), None) for partition in partitions
    ]
    if with_group and group.generation > 0:
        records.append((group_key(group.group_id), None))
    return records
