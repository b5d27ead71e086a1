"""A group of the consumer protocol where it is coordinated: its durable state and offsets, and what goes with the
coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from barnabas.coordinators.consumer_group.committed import CommitGate, Loaded
from barnabas.coordinators.consumer_group.group import ConsumerGroup
from barnabas.coordinators.consumer_group.member import LEFT_FOR_A_WHILE_EPOCH, ConsumerMember
from barnabas.coordinators.consumer_group.records import encoded
from barnabas.coordinators.consumer_group.states import ConsumerGroupState
from barnabas.coordinators.group.effects import Now, TimerKey, TimerKind
from barnabas.coordinators.group.offsets import GroupOffsets
from barnabas.coordinators.group.records import CommittedOffset
from barnabas.coordinators.group.subscriptions import CONSUMER_PROTOCOL_TYPE
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ListGroupsResponse
from barnabas.wire.topics import TopicPartition

GROUP_TYPE: Final = "consumer"
LATEST_OFFSET_COMMIT: Final = 9
MEMBER_EPOCH_SINCE: Final = 9
"""The version of OffsetCommit that knows member epochs."""
GROUP_ID_NOT_FOUND_SINCE: Final = 9
"""The version of OffsetCommit that has this error."""
_NO_VERSION: Final = -1


class HostedConsumerGroup:
    """One group of one shard. Its methods are what a classic group has, too."""

    __slots__ = (
        "asked_at",
        "core",
        "deadlines",
        "gate",
        "is_assigning",
        "offsets",
        "revocations",
        "rung",
        "seen_topics",
        "waiting",
    )

    is_consumer_group: Final = True

    def __init__(
        self,
        group_id: str,
        offsets: GroupOffsets | None = None,
        loaded: Loaded | None = None,
        core: ConsumerGroup | None = None,
    ) -> None:
        self.core = ConsumerGroup(group_id) if core is None else core
        self.offsets = GroupOffsets() if offsets is None else offsets
        self.gate = CommitGate(loaded)
        self.deadlines: dict[str, float] = {}
        """When the sessions of members end, in seconds of the loop's clock."""
        self.revocations: dict[str, int] = {}
        """The epochs of members in which they are to give up partitions within their rebalance time-out."""
        self.rung: set[TimerKey] = set()
        """The timers of members that have rung and whose members have not been heard of since, nor been fenced."""
        self.seen_topics = _NO_VERSION
        """Which version of the broker's topics the group has looked at."""
        self.asked_at = 0.0
        """When somebody needed a target assignment last that was not there, in seconds of the loop's clock."""
        self.is_assigning = False
        """Whether a target assignment is being made."""
        self.waiting: list[tuple[int, Callable[[ErrorCode], None]]] = []
        """Who waits for the target assignment of that epoch."""

    @property
    def group_id(self) -> str:
        return self.core.group_id

    @property
    def state(self) -> ConsumerGroupState:
        return self.core.state

    @property
    def is_empty(self) -> bool:
        return not self.core.members

    @property
    def member_count(self) -> int:
        return len(self.core.members)

    @property
    def version(self) -> int:
        """What its log messages call it by."""
        return self.core.epoch

    def is_subscribed_to(self, topic: str) -> bool:
        return self.core.is_subscribed_to(topic)

    def listed(self) -> ListGroupsResponse.ListedGroup:
        return ListGroupsResponse.ListedGroup(
            group_id=self.group_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            group_state=self.state.value,
            group_type=GROUP_TYPE,
        )

    def expired_offsets(
        self, partitions: Iterable[TopicPartition], now: Now, retention_ms: int
    ) -> list[TopicPartition]:
        """Those of these partitions whose commit is older than the retention, of topics nobody is subscribed to."""

        def committed_at(committed: CommittedOffset) -> int:
            return committed.commit_timestamp_ms

        return self.offsets.expired(partitions, now.time_ms, retention_ms, committed_at, self.core.subscribed_topics)

    def tombstones(self) -> list[tuple[bytes, bytes | None]]:
        """The records that end a group without members."""
        return [encoded(self.group_id, record) for record in self.core.tombstones()]

    def bury(self, key: bytes) -> None:
        """One of the tombstones is in the log."""
        for record in self.core.tombstones():
            if encoded(self.group_id, record)[0] == key:
                self.core.replay(record)

    # Offsets.

    def accept_commit(self, epoch: int, member_id: str, *, version: int, is_transactional: bool) -> ErrorCode:
        """Whether offsets may be committed: by a member of its present epoch, or by anybody while there are none."""
        if epoch < 0 and self.is_empty:
            return ErrorCode.NONE
        member = self.core.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        uses_classic = member.classic is not None
        if not is_transactional and not uses_classic and version < MEMBER_EPOCH_SINCE:
            return ErrorCode.UNSUPPORTED_VERSION
        if epoch != member.epoch:
            return ErrorCode.ILLEGAL_GENERATION if is_transactional or uses_classic else ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def accept_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether offsets may be fetched: by a member of its present epoch, or by one who does not say who he is."""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.core.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == member.epoch:
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    # Sessions.

    def forget(self, member_id: str) -> None:
        """The member is gone."""
        self.deadlines.pop(member_id, None)
        self.revocations.pop(member_id, None)
        self.rung -= {TimerKey(TimerKind.JOIN, member_id), TimerKey(TimerKind.SYNC, member_id)}

    def awaits_revocation(self, member: ConsumerMember) -> bool:
        """Whether the time in which the member was to give up partitions is over, and it has not."""
        return member.epoch != LEFT_FOR_A_WHILE_EPOCH and self.revocations.get(member.member_id) == member.epoch
