"""What a test asks of a whole cluster: topics, leaders, and that it is ready; through our own client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from barnabas.client.admin import Admin, NewTopic
from barnabas.client.client import Client
from barnabas.client.cluster import PartitionInfo
from barnabas.client.errors import ClientError
from barnabas.client.settings import ClientSettings
from barnabas.kernel.host import Host
from barnabas.server.cluster_probe import ClusterProbe
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import MetadataRequest
from barnabas.wire.topics import ElectionType, TopicPartition

_POLL_MS: Final = 5.0
_GROUPS_SECONDS_MAX: Final = 30.0
_REQUEST_MS: Final = 5_000
_LOGGER_NAME: Final = "barnabas.testing"


class ClusterAdmin:
    """Used on the loop of its host; `close` it at the end."""

    def __init__(self, host: Host, addresses: Sequence[str]) -> None:
        logger = logging.getLogger(_LOGGER_NAME)
        settings = ClientSettings(
            bootstrap_servers=tuple(addresses), client_id=_LOGGER_NAME, request_timeout_ms=_REQUEST_MS
        )
        self._host = host
        self._addresses = tuple(addresses)
        self._client = Client(host, settings, logger)
        self._admin = Admin(self._client)
        self._lane = self._client.connections.new_lane()
        self._is_started = False

    async def close(self) -> None:
        await self._client.close()

    async def until_usable(self) -> bool:
        """Returns when every broker knows all others, a topic can be made, and a group can form; False where that last
        takes too long.
        """
        probe = ClusterProbe(self._host, self._addresses)
        await probe.until_formed()
        return await probe.until_groups_can_form(_GROUPS_SECONDS_MAX)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns when the condition holds, at which it looks again and again."""
        while not condition():
            await self._client.timers.sleep(_POLL_MS)

    async def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str], known_to: Iterable[int]
    ) -> None:
        """Returns when these brokers know leaders of all partitions. Raises KafkaError."""
        await self._start()
        await self._admin.create_topics([NewTopic(name, partitions, replication_factor, config)])
        for broker_id in known_to:
            while not await self._is_known(name, partitions, broker_id):
                await self._client.timers.sleep(_POLL_MS)

    async def delete_topic(self, name: str) -> None:
        """Returns when it is gone, and another may have its name."""
        await self._start()
        await self._admin.delete_topics([name])
        while not await self._is_free(name):
            await self._client.timers.sleep(_POLL_MS)

    async def controller(self) -> int:
        """The id of the controller; -1 where there is none."""
        await self._start()
        _, controller_id, _ = await self._admin.describe_cluster()
        return controller_id

    async def partition(self, topic: str, partition: int) -> PartitionInfo:
        """Raises KafkaError for one that there is not."""
        await self._start()
        found = (await self._partitions(topic)).get(partition)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic}-{partition}")
        return found

    async def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Makes `to` the preferred leader, moving the partition there where it has no replica, and has it elected."""
        place = TopicPartition(topic, partition)
        replicas = (await self.partition(topic, partition)).replicas
        others = [replica for replica in replicas if replica != to]
        wanted = (to, *(others if to in replicas else others[1:]))
        if wanted != replicas:
            await self._admin.alter_partition_reassignments({place: wanted})
            while await self._admin.list_partition_reassignments([place]):
                await self._client.timers.sleep(_POLL_MS)
        while (await self.partition(topic, partition)).leader_id != to:
            outcome = (await self._admin.elect_leaders(ElectionType.PREFERRED, [place])).get(place)
            if outcome is not None and outcome.code not in {
                ErrorCode.ELECTION_NOT_NEEDED,
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            }:
                raise outcome
            await self._client.timers.sleep(_POLL_MS)

    async def until_leader(self, topic: str, partition: int, other_than: int) -> int:
        """Waits until another broker leads the partition; its id."""
        while True:
            leader = (await self.partition(topic, partition)).leader_id
            if leader not in {-1, other_than}:
                return leader
            await self._client.timers.sleep(_POLL_MS)

    async def _is_known(self, name: str, partitions: int, broker_id: int) -> bool:
        """Whether a broker knows the topic, with leaders."""
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        )
        try:
            response = await self._client.ask(self._client.node(broker_id), self._lane, request)
        except (ClientError, OSError):
            return False
        (topic,) = response.topics
        led = [each for each in topic.partitions if each.error_code == ErrorCode.NONE]
        return topic.error_code == ErrorCode.NONE and len(led) == partitions

    async def _is_free(self, name: str) -> bool:
        try:
            await self._admin.create_topics([NewTopic(name)], validate_only=True)
        except KafkaError as error:
            if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                return False
            raise
        return not await self._partitions(name)

    async def _partitions(self, topic: str) -> Mapping[int, PartitionInfo]:
        try:
            found = (await self._admin.describe_topics([topic])).get(topic)
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return {}
            raise
        return {} if found is None else found.partitions

    async def _start(self) -> None:
        if not self._is_started:
            await self._client.start()
            self._is_started = True
