"""What single brokers say: which APIs each answers, whether each knows a topic, and what the controller does.

Everything else that is asked of a cluster, any broker may answer; here it matters who does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from barnabas.link.errors import RequestTimeoutError
from barnabas.wire.errors import ErrorCode, KafkaError, raise_for_code
from barnabas.wire.messages import DescribeControllerRequest, MetadataRequest

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.cluster import BrokerNode
    from barnabas.wire.messages import DescribeControllerResponse, MetadataResponse

_ANSWER_TIMEOUT_MS: Final = 3_000
"""How long one broker is waited for where the others say enough without it."""


class BrokerViews:
    """Questions to each broker; use it as a context, or `close` it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lane = client.connections.new_lane()

    async def close(self) -> None:
        """Ends the connections."""
        await self._client.connections.close_lane(self._lane)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def api_versions(self, node: BrokerNode) -> Mapping[int, tuple[int, int]]:
        """Lowest and highest version of each API that a broker answers. Raises ConnectionError, RequestTimeoutError."""
        outgoing = self._client.connections.to_node(self._lane, node)
        await outgoing.ready(_ANSWER_TIMEOUT_MS)
        return outgoing.api_versions

    async def describe_controller(
        self, moves_max: int, timeout_ms: float | None = None
    ) -> tuple[BrokerNode, DescribeControllerResponse]:
        """Who the controller is and what it tells, with at most so many of its last moves.

        Raises UnsupportedVersionError where the controller is no broker of Barnabas, and ClientTimeoutError.
        """
        retry = self._client.retry("describing the controller", timeout_ms)
        while True:
            try:
                node = self._client.node(self._client.cluster.controller_id)
                request = DescribeControllerRequest(moves_max=moves_max)
                response = await self._client.ask(node, self._lane, request, retry.left_ms)
                raise_for_code(response.error_code, response.error_message)
            except Exception as error:  # noqa: BLE001 - `again` raises what cannot be repeated
                self._client.metadata.request_update()
                await retry.again(error)
            else:
                return node, response

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
                        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"no leader is known of {where}")

        await self._wait("waiting for the leaders of new topics", topics, check, timeout_ms)

    async def wait_until_gone(self, topics: Collection[str], timeout_ms: float | None = None) -> None:
        """Returns when no broker that answers knows the topics any more. Raises ClientTimeoutError."""

        def check(node: BrokerNode, response: MetadataResponse) -> None:
            for topic in response.topics:
                if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    where = f"topic {topic.name} is still there at broker {node.node_id}"
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, where)

        await self._wait("waiting for topics to be gone", topics, check, timeout_ms)

    async def _wait(
        self,
        what: str,
        topics: Collection[str],
        check: Callable[[BrokerNode, MetadataResponse], None],
        timeout_ms: float | None,
    ) -> None:
        """Asks all brokers until `check` raises for none of them; it raises errors that can be retried."""
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics], allow_auto_topic_creation=False
        )

        async def look(node: BrokerNode) -> None:
            try:
                response = await self._client.ask(node, self._lane, request, _ANSWER_TIMEOUT_MS)
            except (ConnectionError, RequestTimeoutError):
                # Whoever does not answer is not asked next either.
                return
            check(node, response)

        retry = self._client.retry(what, timeout_ms)
        while True:
            try:
                await asyncio.gather(*map(look, self._client.cluster.brokers.values()))
            except KafkaError as error:
                await retry.again(error)
            else:
                return
