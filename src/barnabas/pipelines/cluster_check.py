"""Whether a cluster has the topics of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from barnabas.client.cluster import TopicInfo
from barnabas.pipelines.definition import Pipeline, PipelineMissingError, TopicSink
from barnabas.pipelines.yaml_positions import nearest


class TopicCatalogue(Protocol):
    """What is asked of a cluster; `client.admin.Admin` answers it."""

    async def list_topics(self, timeout_ms: float | None = None) -> tuple[str, ...]:
        """The names of all topics."""
        ...

    async def describe_topics(
        self, names: Iterable[str] | None = None, timeout_ms: float | None = None
    ) -> Mapping[str, TopicInfo]:
        """The named topics."""
        ...


async def check_cluster(pipeline: Pipeline, catalogue: TopicCatalogue, bootstrap_option: str = "") -> None:
    """Raises PipelineMissingError for the first topic that is not there, and what the catalogue raises.

    `bootstrap_option` is what a command needs to reach this cluster, such as `--bootstrap-server host:9092`.
    """
    topics = await catalogue.list_topics()
    for source in pipeline.sources:
        if source.topic not in topics:
            hint = nearest(source.topic, topics) or "; `barnabas topic list` shows which there are"
            message = f'the topic "{source.topic}" of source "{source.name}" does not exist{hint}'
            raise PipelineMissingError(message, path=pipeline.path, line=source.topic_line)
    for sink in pipeline.sinks:
        if isinstance(sink, TopicSink) and sink.topic not in topics:
            partitions = await _partitions_of_sources(pipeline, catalogue)
            command = f"barnabas topic create {sink.topic} --partitions {partitions} {bootstrap_option}".rstrip()
            message = f'the topic "{sink.topic}" does not exist; create it with `{command}`'
            raise PipelineMissingError(message, path=pipeline.path, line=sink.line)


async def _partitions_of_sources(pipeline: Pipeline, catalogue: TopicCatalogue) -> int:
    """As many partitions as the largest topic that is read: what is written comes at the same pace, or slower."""
    described = await catalogue.describe_topics(sorted({source.topic for source in pipeline.sources}))
    return max((len(topic.partitions) for topic in described.values()), default=1)
