"""A member of a group of the consumer protocol (KIP-848) on the wire, for simulated clusters: it says and does what
Apache Kafka's consumer does, heartbeat by heartbeat. Whoever uses it may have it do what no library does: hold on to
what it was to give up, say nothing for long, vanish, or go on with what somebody else has.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.cluster import BrokerNode
from barnabas.client.errors import ClientError
from barnabas.coordinators.consumer_group.records import partitions_of
from barnabas.link.errors import RequestTimeoutError
from barnabas.testing.next_group_ledger import Holder, NextGroupLedger, Owned
from barnabas.wire.errors import ErrorCode, KafkaError, raise_for_code
from barnabas.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from barnabas.wire.sentinels import NO_BROKER, NO_EPOCH

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from barnabas.client.client import Client
    from barnabas.coordinators.consumer_group.member import Partitions
    from barnabas.kernel.ids import Uuid

_VERSION: Final = {
    ConsumerGroupDescribeRequest: 0,
    ConsumerGroupHeartbeatRequest: 1,
    FindCoordinatorRequest: 4,
    OffsetCommitRequest: 9,
    OffsetFetchRequest: 9,
}
MOVED: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
_FENCED: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND})
SAYS_AGAIN: Final = 0.3
"""How often a heartbeat says what it need not say again."""
LEFT: Final = -1
LEFT_FOR_A_WHILE: Final = -2


class GroupWire:
    """Requests to the coordinator of one group, once each. Raises KafkaError, OSError and RequestTimeoutError."""

    def __init__(self, client: Client, group: str) -> None:
        self.group = group
        self._client = client
        self._lane = client.connections.new_lane()
        self._node: BrokerNode | None = None

    @property
    def node_id(self) -> int:
        """The broker that is asked; -1 while it has to be looked for."""
        return NO_BROKER if self._node is None else self._node.node_id

    async def close(self) -> None:
        """Ends its connections, and tells nobody."""
        await self._client.connections.close_lane(self._lane)

    async def ask(self, request: Any, *, version: int | None = None, limit_ms: float | None = None) -> Any:
        """One request to the coordinator, which is looked for first where it is not known."""
        try:
            if self._node is None:
                self._node = await self._find()
            return await self._ask(self._node, request, version, limit_ms)
        except (ConnectionError, RequestTimeoutError):
            self._node = None
            raise

    def moved(self) -> None:
        """Another broker is the coordinator, perhaps."""
        self._node = None

    async def committed(self, topic: str, number: int, member_id: str | None = None, epoch: int = NO_EPOCH) -> int:
        """The committed offset of a partition, 0 for none; as a member, or as nobody."""
        topics = [OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[number])]
        group = OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=self.group, member_id=member_id, member_epoch=epoch, topics=topics
        )
        response = await self.ask(OffsetFetchRequest(groups=[group], require_stable=True))
        (answer,) = response.groups
        self._check(answer.error_code)
        (partition,) = answer.topics[0].partitions
        self._check(partition.error_code)
        return max(0, int(partition.committed_offset))

    async def commit(self, topic: str, number: int, offset: int, member_id: str, epoch: int) -> None:
        """Commits an offset as a member."""
        partition = OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=number, committed_offset=offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[partition])],
        )
        response = await self.ask(request)
        self._check(response.topics[0].partitions[0].error_code)

    async def describe(self) -> Any:
        """The group, as ConsumerGroupDescribe has it."""
        response = await self.ask(ConsumerGroupDescribeRequest(group_ids=[self.group]))
        (group,) = response.groups
        self._check(group.error_code)
        return group

    def _check(self, code: int) -> None:
        if code in MOVED:
            self.moved()
        raise_for_code(code, f"group {self.group}")

    async def _find(self) -> BrokerNode:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
        response = await self._client.ask_any(lambda node: self._ask(node, request, None))
        (answer,) = response.coordinators
        raise_for_code(answer.error_code, f"coordinator of {self.group}")
        return BrokerNode(answer.node_id, answer.host, answer.port)

    async def _ask(self, node: BrokerNode, request: Any, version: int | None, limit_ms: float | None = None) -> Any:
        limit_ms = self._client.settings.request_timeout_ms if limit_ms is None else limit_ms
        outgoing = self._client.connections.to_node(self._lane, node)
        await outgoing.ready(limit_ms)
        return await outgoing.send(request, _VERSION[type(request)] if version is None else version, limit_ms)


class NextGroupMember:
    """One member, which beats when it is told to. What it owns is in its `holder`."""

    def __init__(
        self,
        client: Client,
        ledger: NextGroupLedger,
        group: str,
        name: str,
        topics: Collection[str],
        *,
        session_seconds: float,
        rebalance_seconds: float,
        instance_id: str | None = None,
        assignor: str | None = None,
        is_coordinator: Callable[[int], bool],
        brings_id: bool = True,
    ) -> None:
        """Without an id that it brings, it speaks version 0, in which the coordinator gives it one. What a broker
        answers that `is_coordinator` does not know as such makes no session longer, since it may have been replaced and
        not have heard of that, as in Apache Kafka; what is new in it was committed before.
        """
        self.wire = GroupWire(client, group)
        self.holder = Holder(name)
        self.topics = topics
        self.instance_id = instance_id
        self.is_settled = False
        """Whether the last heartbeat was answered with no error."""
        self._client = client
        self._ledger = ledger
        self._assignor = assignor
        self._session_seconds = session_seconds
        self._rebalance_seconds = rebalance_seconds
        self._brings_id = brings_id
        self._is_coordinator = is_coordinator
        self._assigned: frozenset[Owned] = frozenset()
        self._says_all = True
        self._told: frozenset[Owned] | None = None
        """What it has said that it owns, and was answered."""
        self._first_unanswered_at: float | None = None

    @property
    def has_to_revoke(self) -> bool:
        """Whether it has what it is to give up."""
        return not self.holder.owned.keys() <= self._assigned

    @property
    def epoch(self) -> int:
        """0 while it is no member."""
        return self.holder.epoch

    async def beat(self) -> ErrorCode:
        """One heartbeat: joins, or says that it lives and what it owns. NONE, or the error, REQUEST_TIMED_OUT where
        there was no answer.
        """
        ledger, holder = self._ledger, self.holder
        if not holder.epoch:
            self._says_all = True
            if self._brings_id and not self.holder.member_id:
                self.holder.member_id = f"{holder.name}-{self._client.host.random.randrange(1 << 32):08x}"
        self.is_settled = False
        sent_at = ledger.now()
        if self._first_unanswered_at is None:
            self._first_unanswered_at = sent_at
        # It may be told to give something up, and never hear of it.
        holder.revoked_by = min(holder.revoked_by, self._first_unanswered_at + self._rebalance_seconds)
        had_to_revoke = self.has_to_revoke
        owned = frozenset(holder.owned)
        says_owned = self._says_all or owned != self._told or self._client.host.random.random() < SAYS_AGAIN
        request = self._request(holder.epoch, owned=owned if says_owned else None)
        try:
            response = await self.wire.ask(request, version=int(self._brings_id))
        except KafkaError as error:
            self.wire.moved()
            return self._failed(error.code)
        except (ClientError, OSError, RequestTimeoutError):
            self._says_all = True
            ledger.counts["next: heartbeats unanswered"] += 1
            return ErrorCode.REQUEST_TIMED_OUT
        if response.error_code != ErrorCode.NONE:
            return self._failed(ErrorCode.for_code(response.error_code))
        if not holder.epoch:
            ledger.counts["next: joined"] += 1
        self.holder.member_id = response.member_id
        asked_since, self._first_unanswered_at = self._first_unanswered_at, None
        self._told = owned
        if response.assignment is not None:
            listed = partitions_of(response.assignment.topic_partitions)
            self._assigned = frozenset(Owned(*each) for each in _each_of(listed))
        revoked_by = math.inf
        if self.has_to_revoke:
            revoked_by = holder.revoked_by if had_to_revoke else asked_since + self._rebalance_seconds
        session_ends_at = sent_at + self._session_seconds
        if not self._is_coordinator(self.wire.node_id):
            ledger.counts["next: answered by a former coordinator"] += 1
            is_new = response.member_epoch != holder.epoch or not self._assigned <= holder.owned.keys()
            session_ends_at = asked_since + self._session_seconds if is_new else holder.session_ends_at
        ledger.answered(holder, response.member_epoch, session_ends_at, revoked_by)
        for partition in sorted(self._assigned - holder.owned.keys()):
            ledger.given(holder, partition)
        self._says_all = False
        self.is_settled = True
        return ErrorCode.NONE

    def revoke(self) -> None:
        """Gives up what it is to give up; the next heartbeat says so."""
        holder = self.holder
        gone = [partition for partition in holder.owned if partition not in self._assigned]
        self._ledger.counts["next: revoked"] += len(gone)
        self._ledger.gave_up(holder, gone)

    def drop(self) -> None:
        """Gives up everything, and is no member any more by its own account."""
        self._ledger.gave_up(self.holder, list(self.holder.owned))
        self._assigned = frozenset()
        self._told = None
        self.holder.epoch = 0

    async def leave(self, epoch: int) -> None:
        """Gives up everything, and says that it leaves, once."""
        was_member = self.holder.epoch
        self.drop()
        if was_member:
            try:
                response = await self.wire.ask(self._request(epoch, owned=None), version=int(self._brings_id))
                self._ledger.counts["next: left"] += response.error_code == ErrorCode.NONE
            except (ClientError, KafkaError, OSError, RequestTimeoutError):
                self._ledger.counts["next: leaves unanswered"] += 1

    def _request(self, epoch: int, owned: Collection[Owned] | None) -> ConsumerGroupHeartbeatRequest:
        says_all = self._says_all and epoch >= 0
        listed = None
        if owned is not None:
            by_topic: dict[Any, list[int]] = {}
            for topic_id, number in owned:
                by_topic.setdefault(topic_id, []).append(number)
            listed = [
                ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in by_topic.items()
            ]
        return ConsumerGroupHeartbeatRequest(
            group_id=self.wire.group,
            member_id=self.holder.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=round(self._rebalance_seconds * 1000) if says_all else -1,
            subscribed_topic_names=sorted(self.topics) if says_all else None,
            server_assignor=self._assignor if says_all else None,
            topic_partitions=listed,
        )

    def _failed(self, code: ErrorCode) -> ErrorCode:
        self._ledger.counts[f"next: told {code.name}"] += 1
        self._says_all = True
        if code in MOVED:
            self.wire.moved()
        elif code in _FENCED:
            self.drop()
            self._first_unanswered_at = None
        return code


def _each_of(partitions: Partitions) -> Iterator[tuple[Uuid, int]]:
    return ((topic_id, number) for topic_id, numbers in partitions.items() for number in numbers)
