"""Groups from the records of their shard: what a new coordinator does before it answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, NamedTuple

from barnabas.coordinators.group.effects import Now
from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.offsets import GroupOffsets
from barnabas.coordinators.group.records import GroupKey, read_group_value, read_key, read_offset_value
from barnabas.coordinators.group.settings import GroupSettings
from barnabas.wire.control_records import ControlRecordType, read_control_record_type
from barnabas.wire.messages import GroupMetadataValue
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.records import Batch

_KEYS_PER_STEP: Final = 256


class _Latest(NamedTuple):
    base_offset: int
    value: bytes | None


class GroupLoader:
    """Replays batches in the order of the log, and then builds the groups that they leave.

    While it replays it keeps the last value of each key, as the cleaner would, and looks into none: a log that was
    never cleaned costs little more than one that was. A record that cannot be read is reported and left out.
    """

    def __init__(self, settings: GroupSettings, logger: logging.Logger, now: Now) -> None:
        self.groups: dict[str, Group] = {}
        """What `build` made, by group id."""
        self._settings = settings
        self._logger = logger
        self._now = now
        self._latest: dict[bytes, _Latest] = {}
        self._transactional: dict[int, dict[bytes, _Latest]] = {}

    def replay(self, batch: Batch) -> None:
        """Raises `RecordsError` for a batch that is broken."""
        if batch.is_control:
            self._replay_control(batch)
            return
        latest = self._latest
        if batch.is_transactional:
            latest = self._transactional.setdefault(batch.producer_id, {})
        base_offset: int | None = None
        for record in batch.records():
            if base_offset is None:
                base_offset = record.offset
            if record.key is None:
                self._logger.warning("The record at offset %d has no key and is left out", record.offset)
                continue
            latest.pop(record.key, None)  # the order of the keys is that of their last records
            latest[record.key] = _Latest(base_offset, record.value)

    def _replay_control(self, batch: Batch) -> None:
        for record in batch.records():
            decision = read_control_record_type(record.key)
            if decision not in (ControlRecordType.COMMIT, ControlRecordType.ABORT):
                continue
            decided = self._transactional.pop(batch.producer_id, {})
            if decision is ControlRecordType.COMMIT:
                for key, written in decided.items():
                    before = self._latest.get(key)
                    if before is None or before.value is None or before.base_offset < written.base_offset:
                        self._latest.pop(key, None)
                        self._latest[key] = written

    def build(self) -> Iterator[None]:
        """Makes `groups` anew of all that was replayed; yields now and then, so that others may have a turn."""
        groups: dict[str, GroupMetadataValue] = {}
        offsets: dict[str, GroupOffsets] = {}
        for count, (key, latest) in enumerate(self._latest.items()):
            self._apply(key, latest, groups, offsets)
            if count % _KEYS_PER_STEP == 0:
                yield
        for producer_id, undecided in self._transactional.items():
            for key, latest in undecided.items():
                self._apply_transactional(producer_id, key, latest, offsets)
            yield
        self.groups = {}
        for group_id in dict.fromkeys((*groups, *(name for name, kept in offsets.items() if kept.has_any))):
            group = self._restored(group_id, groups.get(group_id))
            if group_id in offsets:
                group.offsets = offsets[group_id]
            self.groups[group_id] = group
            yield

    def _apply(
        self, key: bytes, latest: _Latest, groups: dict[str, GroupMetadataValue], offsets: dict[str, GroupOffsets]
    ) -> None:
        base_offset, value = latest
        try:
            read = read_key(key)
            if read is None:
                self._logger.warning("A record near offset %d is no classic group's and is ignored", base_offset)
            elif isinstance(read, GroupKey):
                groups.pop(read.group_id, None)
                if value is not None:
                    groups[read.group_id] = read_group_value(value)
            else:
                kept = offsets.setdefault(read.group_id, GroupOffsets())
                if value is None:
                    kept.remove((read.partition,))
                else:
                    kept.replay(read.partition, base_offset, read_offset_value(value))
        except ProtocolError as error:
            self._logger.warning("A record near offset %d cannot be read and is left out: %s", base_offset, error)

    def _apply_transactional(
        self, producer_id: int, key: bytes, latest: _Latest, offsets: dict[str, GroupOffsets]
    ) -> None:
        base_offset, value = latest
        try:
            read = read_key(key)
            if read is not None and not isinstance(read, GroupKey):
                committed = None if value is None else read_offset_value(value)
                kept = offsets.setdefault(read.group_id, GroupOffsets())
                kept.replay_transactional(producer_id, read.partition, base_offset, committed)
        except ProtocolError as error:
            self._logger.warning("A record near offset %d cannot be read and is left out: %s", base_offset, error)

    def _restored(self, group_id: str, value: GroupMetadataValue | None) -> Group:
        if value is not None:
            group = Group(group_id, self._settings, self._logger, self._now)
            try:
                group.restore(value)
            except ValueError as error:
                self._logger.warning("The members of group %s cannot be restored: %s", group_id, error)
            else:
                return group
        return Group(group_id, self._settings, self._logger, self._now)
