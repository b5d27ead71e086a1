"""`/isr_change_notification`: ISR changes that leaders wrote themselves, as steps of an event."""

from __future__ import annotations

import logging

from barnabas.controller.effects import Steps, operate, read_znodes
from barnabas.controller.watches import ControllerWatches
from barnabas.coordination.errors import NoNodeError
from barnabas.coordination.layout.notifications import ISR_CHANGES_PATH, IsrChange
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.layout.topics import TopicPartition
from barnabas.coordination.operations import GetChildren


def read_isr_changes(
    watches: ControllerWatches, logger: logging.Logger
) -> Steps[tuple[list[str], list[TopicPartition]]]:
    """The announcements that there are, by path, and the partitions that they name; leaves the watch of the term."""
    (children,) = yield from operate([GetChildren(ISR_CHANGES_PATH, watches.isr_changes)])
    if isinstance(children, Exception):
        raise children
    paths = [f"{ISR_CHANGES_PATH}/{name}" for name in sorted(children.names)]
    outcomes = yield from read_znodes(paths)
    announced: dict[TopicPartition, None] = {}
    for path, outcome in zip(paths, outcomes, strict=True):
        if isinstance(outcome, NoNodeError):
            continue
        if isinstance(outcome, Exception):
            raise outcome
        try:
            announced.update(dict.fromkeys(IsrChange.decode(outcome.data, path).partitions))
        except LayoutError as error:
            logger.warning("Ignoring an announcement of ISR changes: %s", error)
    return paths, list(announced)
