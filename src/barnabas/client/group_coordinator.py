"""The broker that coordinates a group: finding it, and the offsets that it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.cluster import BrokerNode
from barnabas.client.errors import CommitFailedError
from barnabas.client.records import OffsetAndMetadata
from barnabas.client.subscription_bytes import by_topic
from barnabas.link.errors import RequestTimeoutError
from barnabas.wire.errors import ErrorCode, KafkaError, raise_for_code
from barnabas.wire.messages import FindCoordinatorRequest, OffsetCommitRequest, OffsetFetchRequest
from barnabas.wire.sentinels import NO_BROKER
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.connections import Lane

NO_GENERATION: Final = -1
_GROUP: Final = 0
_COORDINATOR_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_MEMBERSHIP_LOST: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})


@dataclass(frozen=True, slots=True)
class Membership:
    """The identity in requests to a group; the defaults are for a client that is not a member."""

    generation: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str | None = None


class GroupCoordinator:
    """Requests to whichever broker coordinates one group now."""

    def __init__(self, client: Client, lane: Lane, group_id: str) -> None:
        self.group_id = group_id
        self._client = client
        self._lane = lane
        self._node: BrokerNode | None = None

    @property
    def node_id(self) -> int:
        """The broker that coordinates the group, as far as is known; -1 when it has to be looked for."""
        return NO_BROKER if self._node is None else self._node.node_id

    async def ask(self, message: Any, timeout_ms: float | None = None, lane: Lane | None = None) -> Any:
        """One request to the coordinator, which is looked for first where it is not known. A `lane` of its own is for a
        request that may wait long.

        Raises as `Client.ask` does, and KafkaError when nobody coordinates the group now. After a lost connection, and
        after `moved`, the coordinator is looked for again.
        """
        client = self._client
        limit_ms = client.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        ends_at = client.host.loop.time() + limit_ms / 1_000
        node = self._node
        if node is None:
            node = self._node = await self._find(min(limit_ms, client.settings.request_timeout_ms))
        left_ms = max(1.0, (ends_at - client.host.loop.time()) * 1_000)
        try:
            return await client.ask(node, self._lane if lane is None else lane, message, left_ms)
        except (ConnectionError, RequestTimeoutError):
            self.moved()
            raise

    def moved(self) -> None:
        """The coordinator is another broker now, or cannot be reached."""
        self._node = None

    def check(self, code: int, what: str) -> None:
        """Raises KafkaError for a code of an answer, and looks for the coordinator again where the code says so."""
        if code in _COORDINATOR_MOVED:
            self.moved()
        raise_for_code(code, f"{what} of group {self.group_id}")

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        membership: Membership,
        timeout_ms: float | None = None,
    ) -> None:
        """Stores offsets. Raises CommitFailedError where this is no member any more, KafkaError, ClientTimeoutError.

        REBALANCE_IN_PROGRESS comes as KafkaError: the member has to join again before it can commit. So does
        FENCED_INSTANCE_ID, which is final: another member has taken the `group_instance_id`.
        """
        if not offsets:
            return
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=membership.generation,
            member_id=membership.member_id,
            group_instance_id=membership.group_instance_id,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        _offset_to_commit(number, offsets[TopicPartition(topic, number)]) for number in numbers
                    ],
                )
                for topic, numbers in by_topic(offsets).items()
            ],
        )
        retry = self._client.retry(f"committing offsets of group {self.group_id}", timeout_ms)
        while True:
            try:
                response = await self.ask(request, retry.attempt_ms)
                for topic in response.topics:
                    for answer in topic.partitions:
                        self._check_commit(TopicPartition(topic.name, answer.partition_index), answer.error_code)
            except KafkaError as error:
                if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                    raise
                await retry.again(error)
            except (ConnectionError, RequestTimeoutError) as error:
                await retry.again(error)
            else:
                return

    async def committed(
        self,
        partitions: Iterable[TopicPartition] | None,
        timeout_ms: float | None = None,
        *,
        require_stable: bool = False,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets stored for these partitions, or for all with None; those without one are left out.

        With `require_stable`, waits for open transactions that commit offsets. Raises KafkaError, ClientTimeoutError.
        """
        topics = None
        if partitions is not None:
            topics = [
                OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=numbers)
                for topic, numbers in by_topic(partitions).items()
            ]
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=self.group_id, topics=topics)
        request = OffsetFetchRequest(groups=[group], require_stable=require_stable)

        async def attempt(attempt_ms: float) -> dict[TopicPartition, OffsetAndMetadata]:
            return self._read_committed(await self.ask(request, attempt_ms))

        return await self._client.repeat(f"fetching offsets of group {self.group_id}", attempt, timeout_ms)

    # Inside.

    def _read_committed(self, response: Any) -> dict[TopicPartition, OffsetAndMetadata]:
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for group in response.groups:
            self.check(group.error_code, "offsets")
            for topic in group.topics:
                for answer in topic.partitions:
                    partition = TopicPartition(topic.name, answer.partition_index)
                    self.check(answer.error_code, f"offset of {partition}")
                    if answer.committed_offset >= 0:
                        found[partition] = OffsetAndMetadata(
                            answer.committed_offset, answer.committed_leader_epoch, answer.metadata or ""
                        )
        return found

    def _check_commit(self, partition: TopicPartition, code: int) -> None:
        if code in _MEMBERSHIP_LOST:
            raise CommitFailedError(
                f"group {self.group_id} no longer takes offsets from this member "
                f"({ErrorCode.for_code(code).name}): its partitions belong to others; poll more often, or process less "
                "between two polls",
                ErrorCode.for_code(code),
            )
        self.check(code, f"commit of {partition}")

    async def _find(self, timeout_ms: float) -> BrokerNode:
        request = FindCoordinatorRequest(key_type=_GROUP, coordinator_keys=[self.group_id])
        response = await self._client.ask_any(lambda node: self._client.ask(node, self._lane, request, timeout_ms))
        for answer in response.coordinators:
            if answer.key == self.group_id:
                raise_for_code(answer.error_code, f"coordinator of group {self.group_id}")
                return BrokerNode(answer.node_id, answer.host, answer.port)
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no broker answers for group {self.group_id}")


def _offset_to_commit(number: int, offset: OffsetAndMetadata) -> OffsetCommitRequest.OffsetCommitRequestPartition:
    return OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=number,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )
