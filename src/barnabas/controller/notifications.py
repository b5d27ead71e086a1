"""What brokers announce in `/isr_change_notification` and `/log_dir_event_notification`, as steps of an event."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from barnabas.controller.effects import Steps, operate, read_znodes
from barnabas.controller.watches import ControllerWatches
from barnabas.coordination.errors import NoNodeError
from barnabas.coordination.layout.notifications import ISR_CHANGES_PATH, LOG_DIR_EVENTS_PATH, IsrChange, LogDirEvent
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.operations import GetChildren, Watcher
from barnabas.wire.topics import TopicPartition

Announcement = TypeVar("Announcement")


def read_isr_changes(
    watches: ControllerWatches, logger: logging.Logger
) -> Steps[tuple[list[str], list[TopicPartition]]]:
    """Reads the announcements by path, and the partitions that they name; sets the watch of the term."""
    paths, changes = yield from _read(ISR_CHANGES_PATH, watches.isr_changes, IsrChange.decode, logger)
    return paths, list(dict.fromkeys(partition for change in changes for partition in change.partitions))


def read_log_dir_events(watches: ControllerWatches, logger: logging.Logger) -> Steps[tuple[list[str], list[int]]]:
    """Reads the announcements by path, and the brokers with a failed log directory; sets the watch of the term."""
    paths, events = yield from _read(LOG_DIR_EVENTS_PATH, watches.log_dir_events, LogDirEvent.decode, logger)
    return paths, list(dict.fromkeys(event.broker_id for event in events))


def _read(
    root: str, watcher: Watcher, decode: Callable[[bytes | None, str], Announcement], logger: logging.Logger
) -> Steps[tuple[list[str], list[Announcement]]]:
    (children,) = yield from operate([GetChildren(root, watcher)])
    if isinstance(children, Exception):
        raise children
    paths = [f"{root}/{name}" for name in sorted(children.names)]
    outcomes = yield from read_znodes(paths)
    announced: list[Announcement] = []
    for path, outcome in zip(paths, outcomes, strict=True):
        if isinstance(outcome, NoNodeError):
            continue
        if isinstance(outcome, Exception):
            raise outcome
        try:
            announced.append(decode(outcome.data, path))
        except LayoutError as error:
            logger.warning("Ignoring an announcement that cannot be read: %s", error)
    return paths, announced
