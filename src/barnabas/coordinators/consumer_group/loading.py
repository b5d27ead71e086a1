"""Groups of the consumer protocol from the last records of their log."""

from __future__ import annotations

import logging
from typing import Final

from barnabas.coordinators.consumer_group.committed import Loaded
from barnabas.coordinators.consumer_group.group import ConsumerGroup
from barnabas.coordinators.consumer_group.hosted import HostedConsumerGroup
from barnabas.coordinators.consumer_group.records import (
    ConsumerGroupKey,
    ConsumerGroupRecord,
    Current,
    MemberSaid,
    RecordKind,
)
from barnabas.coordinators.group.offsets import GroupOffsets
from barnabas.kernel.steps import STEP_ELEMENTS, Steps

_ORDER: Final = (
    RecordKind.GROUP,
    RecordKind.MEMBER,
    RecordKind.TOPICS,
    RecordKind.TARGET_EPOCH,
    RecordKind.TARGET,
    RecordKind.CURRENT,
)
"""In which the records of a group are replayed, each the last of its key: members come before what is theirs."""

_NAMES_PER_ELEMENT: Final = 64

LastRecords = dict[RecordKind, dict[str, ConsumerGroupRecord]]
"""By kind and member id, without tombstones."""


def keep(records: dict[str, LastRecords], key: ConsumerGroupKey, record: ConsumerGroupRecord) -> None:
    """Keeps a record of a group."""
    records.setdefault(key.group_id, {}).setdefault(key.kind, {})[key.member_id] = record


def restored(
    group_id: str, records: LastRecords, offsets: GroupOffsets | None, loaded: Loaded, logger: logging.Logger
) -> Steps[HostedConsumerGroup | None]:
    """The group of the records; None where none of them is the group's own, without which the others are leftovers."""
    if RecordKind.GROUP not in records:
        logger.warning("Records of group %s without its epoch are ignored", group_id)
        return None
    hosted = HostedConsumerGroup(group_id, offsets, loaded)
    left = STEP_ELEMENTS
    for kind in _ORDER:
        for member_id, record in records.get(kind, {}).items():
            left -= _weight(record)
            if left <= 0:
                yield
                left = STEP_ELEMENTS
            _replay(hosted.core, kind, member_id, record, logger)
    return hosted


def _weight(record: ConsumerGroupRecord) -> int:
    """How many elements its replay counts as."""
    if isinstance(record, MemberSaid):
        return 1 + len(record.member.subscribed) // _NAMES_PER_ELEMENT
    if isinstance(record, Current):
        return 1 + len(record.member.assigned)
    return 1


def _replay(
    group: ConsumerGroup, kind: RecordKind, member_id: str, record: ConsumerGroupRecord, logger: logging.Logger
) -> None:
    if kind is RecordKind.TARGET and member_id not in group.members:
        return  # of a member that left while the assignment was made
    try:
        group.replay(record)
    except ValueError as error:
        # A member without what it owns is fenced by its epoch, and joins again.
        logger.warning("A record of group %s is left out: %s", group.group_id, error)
