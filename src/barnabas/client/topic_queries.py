"""What there is in a cluster, as some broker knows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from barnabas.client.admin_calls import AdminCalls
from barnabas.client.cluster import Cluster
from barnabas.kernel.turns import in_turns
from barnabas.wire import messages
from barnabas.wire.errors import raise_for_code

if TYPE_CHECKING:
    from barnabas.client.cluster import BrokerNode, TopicInfo


class TopicQueries(AdminCalls):
    """Calls about topics that change nothing; use it as a context, or `close` it."""

    async def describe_topics(
        self, names: Iterable[str] | None = None, timeout_ms: float | None = None
    ) -> dict[str, TopicInfo]:
        """What some broker knows of topics, or of all with None; UNKNOWN_TOPIC_OR_PARTITION for a missing one."""
        wanted = None if names is None else list(names)

        async def ask(node: BrokerNode, attempt_ms: float) -> dict[str, TopicInfo]:
            topics = (
                None
                if wanted is None
                else [messages.MetadataRequest.MetadataRequestTopic(name=name) for name in wanted]
            )
            request = messages.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            response = await self._client.ask(node, self._lane, request, attempt_ms)
            for topic in response.topics:
                raise_for_code(topic.error_code, f"topic {topic.name}")
            return dict((await in_turns(Cluster().updated(response))).topics)

        return await self._somewhere("describing topics", ask, timeout_ms)

    async def list_topics(self, timeout_ms: float | None = None) -> tuple[str, ...]:
        """The names of all topics."""
        return tuple(sorted(await self.describe_topics(None, timeout_ms)))

    async def describe_cluster(self, timeout_ms: float | None = None) -> tuple[str, int, tuple[int, ...]]:
        """The cluster's id, the controller's id (-1: none now), and the ids of the brokers that are alive."""

        async def ask(node: BrokerNode, attempt_ms: float) -> tuple[str, int, tuple[int, ...]]:
            response = await self._client.ask(node, self._lane, messages.DescribeClusterRequest(), attempt_ms)
            raise_for_code(response.error_code, response.error_message)
            ids = tuple(sorted(broker.broker_id for broker in response.brokers))
            return response.cluster_id, response.controller_id, ids

        return await self._somewhere("describing the cluster", ask, timeout_ms)
