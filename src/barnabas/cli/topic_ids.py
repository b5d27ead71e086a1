"""The ids of topics, as commands show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.client.cluster import TopicInfo


def topic_id(topic: TopicInfo) -> str | None:
    """The id as Kafka writes it; None where brokers tell none."""
    from barnabas.kernel.ids import ZERO_UUID, Uuid

    return None if topic.topic_id == ZERO_UUID else str(Uuid(topic.topic_id))
