"""What administration needs of the rest of the broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from barnabas.wire.classes import Message
from barnabas.wire.errors import ErrorCode


class ControllerStatus(Protocol):
    """Whether this broker is the controller, and what it is about to do."""

    @property
    def is_active(self) -> bool: ...

    def is_topic_queued_for_deletion(self, topic: str) -> bool:
        """False when this broker is not the controller."""
        ...


class ControllerChannel(Protocol):
    """The way to the present controller, wherever it is."""

    async def send(self, message: Message, version: int, timeout_ms: float | None = None) -> Message:
        """Sends until the controller has answered. Raises OSError, such as TimeoutError after `timeout_ms`."""
        ...


class TopicCreation(Protocol):
    """Makes topics that clients or coordinators ask for and that do not exist."""

    async def create_topics(self, names: Iterable[str]) -> dict[str, ErrorCode]:
        """Begins to make the topics, and returns for each what to tell the client now; never NONE."""
        ...
