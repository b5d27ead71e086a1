"""Which cluster, and which topics of it, a pipeline reads and writes: offsets mean nothing in any other."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from barnabas.client.admin import Admin
from barnabas.client.client import Client
from barnabas.client.errors import ClientError
from barnabas.kernel.real_host import RealHost, run
from barnabas.pipelines.cluster_access import client_settings
from barnabas.pipelines.definition import Pipeline, PipelineUnreachableError, ReadMode, TopicSink
from barnabas.wire.errors import KafkaError
from barnabas.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from barnabas.client.cluster import TopicInfo

_TIMEOUT_MS = 30_000
_LOGGER = logging.getLogger("barnabas.pipelines.cluster_identity")
_LOGGER.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The cluster's id, and topics' ids by their names; both as Kafka's tools print them.

    A topic whose id its brokers do not tell (before Kafka 2.8) has none here.
    """

    cluster_id: str | None
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As `definition.json` has it."""
        return {"cluster_id": self.cluster_id, "topic_ids": dict(sorted(self.topic_ids.items()))}


class IdentityCatalogue(Protocol):
    """What is asked of a cluster; `client.admin.Admin` answers it."""

    async def describe_topics(
        self, names: Iterable[str] | None = None, timeout_ms: float | None = None
    ) -> Mapping[str, TopicInfo]:
        """The named topics."""
        ...


async def identity_of(pipeline: Pipeline, cluster_id: str | None, catalogue: IdentityCatalogue) -> ClusterIdentity:
    """The identity of the cluster and of all topics of the pipeline, which must be there."""
    names = {source.topic for source in pipeline.sources}
    names |= {sink.topic for sink in pipeline.sinks if isinstance(sink, TopicSink)}
    topics = await catalogue.describe_topics(sorted(names), _TIMEOUT_MS)
    ids = {name: _printed(topic.topic_id) for name, topic in topics.items() if topic.topic_id != ZERO_UUID}
    return ClusterIdentity(cluster_id, ids)


def read_identity(pipeline: Pipeline, bootstrap_servers: str) -> ClusterIdentity:
    """Asks the cluster, within half a minute. Raises PipelineUnreachableError when no answer comes."""
    settings = client_settings(pipeline, bootstrap_servers)

    async def ask(host: RealHost) -> ClusterIdentity:
        client = Client(host, settings, _LOGGER)
        try:
            await client.start(_TIMEOUT_MS)
            async with Admin(client) as admin:
                return await identity_of(pipeline, client.cluster.cluster_id, admin)
        finally:
            await client.close()

    try:
        return run(ask, name="cluster-identity")
    except (ClientError, KafkaError, OSError) as error:
        message = f"the cluster at {bootstrap_servers} does not tell the ids of topics: {error}"
        raise PipelineUnreachableError(f"{message}; run it again when it does") from error


def foreign_identity(pipeline: Pipeline, before: Mapping[str, Any], now: ClusterIdentity) -> tuple[str, int] | None:
    """Why offsets of `before` (`ClusterIdentity.to_json`) are none of the cluster of now, and the line of the file.

    Other brokers of one cluster are the same cluster, whatever their addresses. A topic that is read as a table is read
    whole by each run, so that it may have been made again.
    """
    was = before.get("cluster_id")
    if _is_other(was, now.cluster_id):
        return f"the brokers are those of cluster {now.cluster_id}, not of {was} that was read before", pipeline.line
    for source in pipeline.sources:
        old, new = before.get("topic_ids", {}).get(source.topic), now.topic_ids.get(source.topic)
        if source.read is ReadMode.STREAM and _is_other(old, new):
            message = f'the topic "{source.topic}" was deleted and made again (its id is {new}, and was {old})'
            return message, source.topic_line
    return None


def renewed_sinks(pipeline: Pipeline, before: Mapping[str, Any], now: ClusterIdentity) -> tuple[str, ...]:
    """A warning for each topic that is written and was made again: it lacks what was written to the one before."""
    known = before.get("topic_ids", {})
    return tuple(
        f'the topic "{sink.topic}" was deleted and made again: it has what this run writes, and nothing from before'
        for sink in pipeline.sinks
        if isinstance(sink, TopicSink) and _is_other(known.get(sink.topic), now.topic_ids.get(sink.topic))
    )


def _is_other(before: str | None, now: str | None) -> bool:
    """Whether both are known and differ."""
    return before is not None and now is not None and before != now


def _printed(topic_id: bytes) -> str:
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
