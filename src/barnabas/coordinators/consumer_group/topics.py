"""What a group knows of the topics that it is subscribed to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from barnabas.kernel.ids import Uuid


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic, as the partition metadata of a group's log have it."""

    topic_id: Uuid
    name: str
    partition_count: int
    racks: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """The racks in which there are replicas, by partition, where brokers have racks."""


class GroupTopics(Protocol):
    """The topics of this broker's metadata."""

    def facts(self, name: str, /) -> TopicFacts | None:
        """The topic; None for one that does not exist, or has no id. The same object while nothing of it changes."""
        ...

    def name(self, topic_id: bytes, /) -> str | None:
        """The name of a topic that exists."""
        ...


class _NoTopics:
    def facts(self, _name: str) -> TopicFacts | None:
        return None

    def name(self, _topic_id: bytes) -> str | None:
        return None


NO_TOPICS: Final[GroupTopics] = _NoTopics()
