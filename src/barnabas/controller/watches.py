"""The watches of one term, as the term asks for them; which event each becomes is in `event_watches.py`."""

from __future__ import annotations

from typing import Protocol

from barnabas.coordination.operations import Watcher


class ControllerWatches(Protocol):
    """Watchers for the znodes that the controller reads. The same znode has the same watcher each time, which the
    client calls once.
    """

    epoch: Watcher
    """For the existence of `/controller_epoch`."""
    brokers: Watcher
    """For the children of `/brokers/ids`."""
    topics: Watcher
    """For the children of `/brokers/topics`."""
    topic_deletions: Watcher
    """For the children of `/admin/delete_topics`."""
    isr_changes: Watcher
    """For the children of `/isr_change_notification`."""
    log_dir_events: Watcher
    """For the children of `/log_dir_event_notification`."""
    reassignments: Watcher
    """For `/admin/reassign_partitions`, which comes and goes."""
    preferred_elections: Watcher
    """For the existence and the data of `/admin/preferred_replica_election`."""

    def broker(self, broker_id: int) -> Watcher:
        """For the data of `/brokers/ids/N`."""
        ...

    def topic(self, topic: str) -> Watcher:
        """For the data of `/brokers/topics/T`."""
        ...

    def forget_broker(self, broker_id: int) -> None: ...

    def forget_topic(self, topic: str) -> None: ...
