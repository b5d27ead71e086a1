"""What single brokers say: which APIs each answers, whether each knows a topic, and what the controller does.

Everything else that is asked of a cluster, any broker may answer; here it matters who does.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.client.own_lane import OwnLane
from barnabas.link.errors import RequestTimeoutError, UnsupportedVersionError
from barnabas.wire import messages
from barnabas.wire.api_keys import OWN_APIS
from barnabas.wire.errors import ErrorCode, KafkaError, raise_for_code

if TYPE_CHECKING:
    from barnabas.client.cluster import BrokerNode
    from barnabas.wire.messages import (
        DescribeControllerResponse,
        DescribeLeadershipChangesResponse,
        MetadataResponse,
    )

_ANSWER_TIMEOUT_MS: Final = 3_000
"""How long one broker is waited for where the others say enough without it."""


class Software(enum.Enum):
    """The software of a broker, as far as the protocol tells: ours have an API for it, others do not say."""

    BARNABAS = "barnabas"
    OTHER = "other"


class BrokerViews(OwnLane):
    """Questions to each broker; use it as a context, or `close` it."""

    async def api_versions(self, node: BrokerNode) -> Mapping[int, tuple[int, int]]:
        """Lowest and highest version of each API that a broker answers. Raises ConnectionError, RequestTimeoutError."""
        outgoing = self._client.connections.to_node(self._lane, node)
        await outgoing.ready(_ANSWER_TIMEOUT_MS)
        return outgoing.api_versions

    async def describe_controller(
        self, transitions_max: int, timeout_ms: float | None = None
    ) -> tuple[BrokerNode, DescribeControllerResponse | None]:
        """Who the controller is and what it tells, with at most so many of its last transitions; None from one that is
        no broker of Barnabas. Raises ClientTimeoutError.
        """
        request = messages.DescribeControllerRequest(transitions_max=transitions_max)

        async def attempt(attempt_ms: float) -> tuple[BrokerNode, DescribeControllerResponse | None]:
            node = self._client.node(self._client.cluster.controller_id)
            try:
                response = await self._client.ask(node, self._lane, request, attempt_ms)
            except UnsupportedVersionError:
                return node, None
            raise_for_code(response.error_code, response.error_message)
            return node, response

        return await self._client.repeat("describing the controller", attempt, timeout_ms)

    async def leadership_changes(
        self, node: BrokerNode, after: int, changes_max: int
    ) -> DescribeLeadershipChangesResponse:
        """Changes of leaders and ISRs behind number `after` that a broker was told of, as it remembers them.

        Raises ConnectionError, KafkaError, RequestTimeoutError, and UnsupportedVersionError from one that is no broker
        of Barnabas.
        """
        request = messages.DescribeLeadershipChangesRequest(after=after, changes_max=changes_max)
        response: DescribeLeadershipChangesResponse = await self._client.ask(
            node, self._lane, request, _ANSWER_TIMEOUT_MS
        )
        raise_for_code(response.error_code, response.error_message)
        return response

    async def wait_until_led(self, topics: Collection[str], timeout_ms: float | None = None) -> None:
        """Returns when every broker that answers knows a leader of each partition, so that any of them may be asked.

        Raises ClientTimeoutError.
        """

        def check(node: BrokerNode, response: MetadataResponse) -> None:
            for topic in response.topics:
                raise_for_code(topic.error_code, f"topic {topic.name} at broker {node.node_id}")
                for partition in topic.partitions:
                    if partition.leader_id < 0:
                        where = f"{topic.name}-{partition.partition_index} at broker {node.node_id}"
                        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{where} has no known leader")

        await self._wait("waiting for the leaders of new topics", topics, check, timeout_ms)

    async def wait_until_grown(self, added: Mapping[str, Collection[int]], timeout_ms: float | None = None) -> None:
        """Returns when every broker that answers knows a leader of each partition that topics have got, whatever
        their other ones do. Raises ClientTimeoutError.
        """

        def check(node: BrokerNode, response: MetadataResponse) -> None:
            for topic in response.topics:
                raise_for_code(topic.error_code, f"topic {topic.name} at broker {node.node_id}")
                led = {partition.partition_index for partition in topic.partitions if partition.leader_id >= 0}
                late = sorted({*added[topic.name or ""]} - led)
                if late:
                    where = f"{topic.name}-{late[0]} at broker {node.node_id}"
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{where} has no known leader")

        await self._wait("waiting for the leaders of new partitions", added, check, timeout_ms)

    async def wait_until_gone(self, topics: Collection[str], timeout_ms: float | None = None) -> None:
        """Returns when no broker that answers knows the topics any more. Raises ClientTimeoutError."""

        def check(node: BrokerNode, response: MetadataResponse) -> None:
            for topic in response.topics:
                if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    where = f"topic {topic.name} is still there at broker {node.node_id}"
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, where)

        await self._wait("waiting for topics to be deleted", topics, check, timeout_ms)

    async def _wait(
        self,
        what: str,
        topics: Collection[str],
        check: Callable[[BrokerNode, MetadataResponse], None],
        timeout_ms: float | None,
    ) -> None:
        """Asks all brokers until `check` raises for none of them; it raises errors that can be retried."""
        request = messages.MetadataRequest(
            topics=[messages.MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
        )

        async def look(node: BrokerNode) -> None:
            try:
                response = await self._client.ask(node, self._lane, request, _ANSWER_TIMEOUT_MS)
            except (ConnectionError, RequestTimeoutError):
                # A broker that does not answer is not asked next either.
                return
            check(node, response)

        async def attempt(_attempt_ms: float) -> None:
            await asyncio.gather(*map(look, self._client.cluster.brokers.values()))

        await self._client.repeat(what, attempt, timeout_ms)


async def software_at(views: BrokerViews, node: BrokerNode) -> Software | None:
    """What the broker is, by the APIs that it answers; None where it does not answer."""
    try:
        api_versions = await views.api_versions(node)
    except (ConnectionError, RequestTimeoutError):
        return None
    return Software.BARNABAS if any(key in api_versions for key in OWN_APIS) else Software.OTHER
