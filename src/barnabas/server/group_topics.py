"""The topics that groups of the consumer protocol are assigned, out of this broker's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.cluster.image import Broker, TopicMetadata
from barnabas.cluster.metadata_cache import MetadataCache
from barnabas.coordinators.consumer_group.topics import TopicFacts
from barnabas.kernel.ids import ZERO_UUID

_KEPT_MAX: Final = 100_000
"""Topics of which it is remembered what was found; more than that begin anew."""


class MetadataTopics:
    """Port `coordinators.consumer_group.topics.GroupTopics`. A topic costs in proportion to its partitions when it was
    changed, and nothing after.
    """

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self._found: dict[str, tuple[TopicMetadata, TopicFacts]] = {}
        self._brokers: Mapping[int, Broker] = {}

    def facts(self, name: str, /) -> TopicFacts | None:
        """None for a topic that does not exist, or has no id."""
        image = self._metadata.image
        if image.brokers is not self._brokers:
            self._brokers = image.brokers
            self._found.clear()
        topic = image.topics.get(name)
        if topic is None or topic.topic_id == ZERO_UUID:
            self._found.pop(name, None)
            return None
        known = self._found.get(name)
        if known is not None and known[0] is topic:
            return known[1]
        facts = TopicFacts(topic.topic_id, name, len(topic.partitions), self._racks(topic))
        if known is not None and known[1] == facts:
            facts = known[1]
        elif len(self._found) >= _KEPT_MAX:
            self._found.clear()
        self._found[name] = (topic, facts)
        return facts

    def name(self, topic_id: bytes, /) -> str | None:
        return self._metadata.image.topic_name(topic_id)

    def _racks(self, topic: TopicMetadata) -> tuple[tuple[int, tuple[str, ...]], ...]:
        racks = {broker_id: broker.rack for broker_id, broker in self._brokers.items() if broker.rack is not None}
        if not racks:
            return ()
        of_replicas: dict[tuple[int, ...], tuple[str, ...]] = {}
        """Of each list of replicas, of which there are few."""
        found = []
        for number, partition in topic.partitions.items():
            known = of_replicas.get(partition.replicas)
            if known is None:
                known = tuple(sorted({racks[each] for each in partition.replicas if each in racks}))
                of_replicas[partition.replicas] = known
            if known:
                found.append((number, known))
        return tuple(found)
