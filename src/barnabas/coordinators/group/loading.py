"""Groups from the records of their shard: what a new coordinator does before it answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.coordinators.consumer_group.committed import Loaded
from barnabas.coordinators.consumer_group.loading import LastRecords, keep, restored
from barnabas.coordinators.consumer_group.records import ConsumerGroupKey
from barnabas.coordinators.consumer_group.records import read_value as read_consumer_value
from barnabas.coordinators.group.effect_runner import AnyGroup, GroupHandle, Groups
from barnabas.coordinators.group.effects import Now
from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.offsets import GroupOffsets, emptied_mapping
from barnabas.coordinators.group.records import (
    GroupKey,
    OffsetKey,
    read_group_value,
    read_key,
    read_offset_value,
)
from barnabas.coordinators.group.settings import GroupSettings
from barnabas.kernel.steps import STEP_ELEMENTS, Steps
from barnabas.wire.control_records import ControlRecordType, read_control_record_type
from barnabas.wire.messages import GroupMetadataValue
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.records import Batch

_BYTES_PER_ELEMENT: Final = 64
"""Of a value, so many count as one element more; those of consumer groups may have thousands of topics."""


class _Latest(NamedTuple):
    base_offset: int
    value: bytes | None


class GroupLoader:
    """Replays batches in the order of the log, and then builds the groups that they leave.

    While it replays it keeps the last value of each key, as the cleaner would, and looks into none: a log that was
    never cleaned costs little more than one that was. A record that cannot be read is reported and left out.

    Batches, records, keys, groups and members count alike towards a step, whatever they come in.
    """

    def __init__(
        self, settings: GroupSettings, logger: logging.Logger, now: Now, host_group: Callable[[AnyGroup], GroupHandle]
    ) -> None:
        """`host_group` puts a group into the shard."""
        self.groups: Groups = {}
        """What `build` made, by group id."""
        self._settings = settings
        self._logger = logger
        self._now = now
        self._host_group = host_group
        self._values: dict[str, GroupMetadataValue] = {}
        """The records of groups that are being built; `_offsets` has their offsets."""
        self._consumer_records: dict[str, LastRecords] = {}
        self._loaded = Loaded()
        self._offsets: dict[str, GroupOffsets] = {}
        self._left = STEP_ELEMENTS
        """What the step that is under way may yet take."""
        self._latest: dict[bytes, _Latest] = {}
        self._transactional: dict[int, dict[bytes, _Latest]] = {}

    def replay(self, batch: Batch) -> Steps[None]:
        """Raises `RecordsError` for a batch that is broken."""
        yield from self._count()
        if batch.is_control:
            yield from self._replay_control(batch)
            return
        latest = self._latest
        if batch.is_transactional:
            latest = self._transactional.setdefault(batch.producer_id, {})
        base_offset: int | None = None
        for record in batch.records():
            yield from self._count()
            if base_offset is None:
                base_offset = record.offset
            if record.key is None:
                self._logger.warning("The record at offset %d has no key and is left out", record.offset)
                continue
            latest.pop(record.key, None)  # the order of the keys is that of their last records
            latest[record.key] = _Latest(base_offset, record.value)

    def _count(self, elements: int = 1) -> Steps[None]:
        """Ends the step where it has had enough."""
        self._left -= elements
        if self._left <= 0:
            self._left = STEP_ELEMENTS
            yield

    def _replay_control(self, batch: Batch) -> Steps[None]:
        for record in batch.records():
            decision = read_control_record_type(record.key)
            if decision not in (ControlRecordType.COMMIT, ControlRecordType.ABORT):
                continue
            decided = self._transactional.pop(batch.producer_id, {})
            if decision is ControlRecordType.COMMIT:
                for key, written in decided.items():
                    yield from self._count()
                    before = self._latest.get(key)
                    if before is None or before.value is None or before.base_offset < written.base_offset:
                        self._latest.pop(key, None)
                        self._latest[key] = written

    def build(self) -> Steps[None]:
        """Makes `groups` anew of all that was replayed."""
        yield from self._without_groups()
        groups, offsets = self._values, self._offsets
        for key, latest in self._latest.items():
            yield from self._count(1 + len(latest.value or b"") // _BYTES_PER_ELEMENT)
            self._apply(key, latest, groups, offsets)
        for producer_id, undecided in self._transactional.items():
            for key, latest in undecided.items():
                yield from self._count()
                self._apply_transactional(producer_id, key, latest, offsets)
        while self._consumer_records:
            group_id, records = self._consumer_records.popitem()
            hosted = yield from restored(group_id, records, offsets.get(group_id), self._loaded, self._logger)
            yield from self._count()
            if hosted is not None:
                if groups.pop(group_id, None) is not None:
                    self._logger.warning("Group %s has records of both kinds; it is a consumer group", group_id)
                offsets.pop(group_id, None)
                self.groups[group_id] = self._host_group(hosted)
        while groups:
            group_id, value = groups.popitem()
            group = self._restored(group_id, value)
            group.offsets = offsets.pop(group_id, group.offsets)
            self.groups[group_id] = self._host_group(group)
            yield from self._count(1 + len(group.members))
        while offsets:
            group_id, kept = offsets.popitem()
            yield from self._count()
            if kept.has_any:
                group = Group(group_id, self._settings, self._logger, self._now)
                group.offsets = kept
                self.groups[group_id] = self._host_group(group)

    def take(self) -> Groups:
        """What `build` made, which is the caller's now."""
        groups, self.groups = self.groups, {}
        return groups

    def emptied(self) -> Steps[None]:
        """Gives back what was replayed, and what was built and not taken."""
        for replayed in (self._latest, *self._transactional.values()):
            yield from emptied_mapping(replayed)
        yield from self._without_groups()

    def _without_groups(self) -> Steps[None]:
        yield from emptied_mapping(self._values)
        yield from emptied_mapping(self._consumer_records)
        while self._offsets:
            _, offsets = self._offsets.popitem()
            yield from self._count()
            yield from offsets.emptied()
        while self.groups:
            _, handle = self.groups.popitem()
            yield from self._count()
            yield from handle.group.offsets.emptied()

    def _apply(
        self, key: bytes, latest: _Latest, groups: dict[str, GroupMetadataValue], offsets: dict[str, GroupOffsets]
    ) -> None:
        base_offset, value = latest
        try:
            read = read_key(key)
            if read is None:
                self._logger.warning("A record near offset %d is of no known kind and is ignored", base_offset)
            elif isinstance(read, ConsumerGroupKey):
                if value is not None:
                    keep(self._consumer_records, read, read_consumer_value(read, value))
            elif isinstance(read, GroupKey):
                groups.pop(read.group_id, None)
                if value is not None:
                    groups[read.group_id] = read_group_value(value)
            else:
                committed = None if value is None else read_offset_value(value)
                offsets.setdefault(read.group_id, GroupOffsets()).replay(read.partition, base_offset, committed)
        except ProtocolError as error:
            self._logger.warning("A record near offset %d cannot be read and is left out: %s", base_offset, error)

    def _apply_transactional(
        self, producer_id: int, key: bytes, latest: _Latest, offsets: dict[str, GroupOffsets]
    ) -> None:
        base_offset, value = latest
        try:
            read = read_key(key)
            if isinstance(read, OffsetKey):
                committed = None if value is None else read_offset_value(value)
                kept = offsets.setdefault(read.group_id, GroupOffsets())
                kept.replay_transactional(producer_id, read.partition, base_offset, committed)
        except ProtocolError as error:
            self._logger.warning("A record near offset %d cannot be read and is left out: %s", base_offset, error)

    def _restored(self, group_id: str, value: GroupMetadataValue) -> Group:
        group = Group(group_id, self._settings, self._logger, self._now)
        try:
            group.restore(value)
        except ValueError as error:
            self._logger.warning("The members of group %s cannot be restored: %s", group_id, error)
            group = Group(group_id, self._settings, self._logger, self._now)
            group.replay(value)  # it is in the log, and needs a tombstone when the group goes
        return group
