"""The broker that coordinates a group: finding it, and the offsets that it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.coordinator import Coordinator, KeyType
from barnabas.client.errors import CommitFailedError
from barnabas.client.records import OffsetAndMetadata
from barnabas.client.subscription_bytes import by_topic
from barnabas.kernel.facts import fact
from barnabas.link.errors import RequestTimeoutError
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.connections import Lane

NO_GENERATION: Final = -1
_MEMBERSHIP_LOST: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})


@fact
class Membership:
    """The identity in requests to a group; the defaults are for a client that is not a member."""

    generation: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str | None = None


class GroupCoordinator(Coordinator):
    """Requests to whichever broker coordinates one group now."""

    def __init__(self, client: Client, lane: Lane, group_id: str) -> None:
        super().__init__(client, lane, group_id, KeyType.GROUP)
        self.group_id = group_id

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
        request = messages.OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=membership.generation,
            member_id=membership.member_id,
            group_instance_id=membership.group_instance_id,
            topics=[
                messages.OffsetCommitRequest.OffsetCommitRequestTopic(
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
                messages.OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=numbers)
                for topic, numbers in by_topic(partitions).items()
            ]
        group = messages.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=self.group_id, topics=topics)
        request = messages.OffsetFetchRequest(groups=[group], require_stable=require_stable)

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


def _offset_to_commit(
    number: int, offset: OffsetAndMetadata
) -> messages.OffsetCommitRequest.OffsetCommitRequestPartition:
    return messages.OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=number,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )
