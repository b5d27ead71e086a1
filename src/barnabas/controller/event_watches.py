"""The watches of one term: which event each change of a znode becomes.

A watch is one-shot. The event that it becomes reads the znode anew, with the same watch, before it does anything else,
so that no change is missed. A watch that fires after the term is over does nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from barnabas.controller.term_events import (
    BrokerChange,
    BrokerModifications,
    ControllerEpochChange,
    IsrChangeNotification,
    LogDirEventNotification,
    PartitionModifications,
    PreferredElectionsRequested,
    TermEvent,
    TopicChange,
    TopicDeletion,
    ZkPartitionReassignment,
)
from barnabas.coordination.operations import Watcher
from barnabas.coordination.protocol import EventType, WatcherEvent

ANY_CHANGE = frozenset({EventType.NODE_CREATED, EventType.NODE_DATA_CHANGED, EventType.NODE_DELETED})
"""Of a znode that comes and goes."""


class EventWatches:
    """The `ControllerWatches` of one term: each watcher puts its event."""

    def __init__(self, put: Callable[[TermEvent], None]) -> None:
        self._put = put
        self._is_over = False
        self.epoch = self._watcher(ANY_CHANGE, ControllerEpochChange())
        self.brokers = self._watcher(EventType.NODE_CHILDREN_CHANGED, BrokerChange())
        self.topics = self._watcher(EventType.NODE_CHILDREN_CHANGED, TopicChange())
        self.topic_deletions = self._watcher(EventType.NODE_CHILDREN_CHANGED, TopicDeletion())
        self.isr_changes = self._watcher(EventType.NODE_CHILDREN_CHANGED, IsrChangeNotification())
        self.log_dir_events = self._watcher(EventType.NODE_CHILDREN_CHANGED, LogDirEventNotification())
        self.reassignments = self._watcher(ANY_CHANGE, ZkPartitionReassignment())
        self.preferred_elections = self._watcher(ANY_CHANGE, PreferredElectionsRequested())
        self._brokers: dict[int, Watcher] = {}
        self._topics: dict[str, Watcher] = {}

    def broker(self, broker_id: int) -> Watcher:
        """For the data of `/brokers/ids/N`."""
        if broker_id not in self._brokers:
            event = BrokerModifications(broker_id)
            self._brokers[broker_id] = self._watcher(EventType.NODE_DATA_CHANGED, event)
        return self._brokers[broker_id]

    def topic(self, topic: str) -> Watcher:
        """For the data of `/brokers/topics/T`."""
        if topic not in self._topics:
            event = PartitionModifications(topic)
            self._topics[topic] = self._watcher(EventType.NODE_DATA_CHANGED, event)
        return self._topics[topic]

    def forget_broker(self, broker_id: int) -> None:
        self._brokers.pop(broker_id, None)

    def forget_topic(self, topic: str) -> None:
        self._topics.pop(topic, None)

    def end(self) -> None:
        """The term is over."""
        self._is_over = True
        self._brokers.clear()
        self._topics.clear()

    def _watcher(self, types: EventType | frozenset[EventType], event: TermEvent) -> Watcher:
        expected = types if isinstance(types, frozenset) else frozenset({types})

        def watcher(fired: WatcherEvent) -> None:
            if fired.type in expected and not self._is_over:
                self._put(event)

        return watcher
