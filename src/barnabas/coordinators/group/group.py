"""A classic consumer group: its state, and the questions and moves that its requests share.

A plain state machine. `joining`, `syncing`, `rebalance` and `membership` are its inputs: functions that take the group
and `now`, change the group, and leave what is to be done about it in `effects`. Durable are what the last record in the
log says (`recorded`) and the offsets, which change by replay only; everything else (members, the generation that is
coming, timers, parked requests) is rebuilt by the members joining again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from barnabas.coordinators.group.effects import (
    Effect,
    Now,
    Reply,
    Respond,
    StartTimer,
    StopTimer,
    Stored,
    StoreGroup,
    TimerKey,
    TimerKind,
)
from barnabas.coordinators.group.member import Client, Member
from barnabas.coordinators.group.members import Members
from barnabas.coordinators.group.offsets import GroupOffsets
from barnabas.coordinators.group.records import NO_STATE_TIMESTAMP, CommittedOffset, group_key
from barnabas.coordinators.group.settings import GroupSettings
from barnabas.coordinators.group.states import GROUP, GroupState
from barnabas.coordinators.group.subscriptions import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from barnabas.wire.messages import (
    DescribeGroupsResponse,
    GroupMetadataValue,
    JoinGroupResponse,
    ListGroupsResponse,
)
from barnabas.wire.topics import TopicPartition

_GROUP_TYPE = "classic"
_MS_PER_SECOND = 1000


class Group:
    """One group of one shard. A new group is Empty, of generation 0, and without a protocol type."""

    __slots__ = (
        "effects",
        "generation",
        "group_id",
        "initial_delay_remaining_ms",
        "logger",
        "members",
        "new_member_added",
        "offsets",
        "protocol",
        "protocol_type",
        "recorded",
        "settings",
        "state",
        "state_timestamp_ms",
        "storing_generation",
        "subscribed_topics",
    )

    def __init__(self, group_id: str, settings: GroupSettings, logger: logging.Logger, now: Now) -> None:
        self.group_id = group_id
        self.settings = settings
        self.logger = logger
        self.state = GroupState.EMPTY
        self.state_timestamp_ms = now.time_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.subscribed_topics: frozenset[str] | None = None
        """The topics of all members, as of the last rebalance; None where they are not known."""
        self.members = Members()
        self.recorded: GroupMetadataValue | None = None
        """What the last record of the group in the log says; None where there is none, or a tombstone. Only `replay`
        changes it; the value itself is not modified."""
        self.offsets = GroupOffsets()
        self.new_member_added = False
        """Whether a member came during the delay of the first rebalance, which then is prolonged."""
        self.initial_delay_remaining_ms: int | None = None
        """By how much the delay of a first rebalance may yet be prolonged; None while none runs."""
        self.storing_generation: int | None = None
        """The generation whose assignment is being stored."""
        self.effects: list[Effect] = []

    def take_effects(self) -> list[Effect]:
        """What the last input asks for, in order."""
        effects = self.effects
        self.effects = []
        return effects

    # What it is.

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def version(self) -> int:
        """What its log messages call it by."""
        return self.generation

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def can_rebalance(self) -> bool:
        return GROUP.allows(self.state, GroupState.PREPARING_REBALANCE)

    def supports_protocols(self, protocol_type: str, protocols: list[str]) -> bool:
        """Whether a member that offers these can be in the group."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        return protocol_type == self.protocol_type and self.members.all_support_one_of(protocols)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member consumes the topic; True, to be safe, where that is not known."""
        return self.subscribed_topics is None or topic in self.subscribed_topics

    def member_list(self) -> list[JoinGroupResponse.JoinGroupResponseMember]:
        """What the leader is told: every member, with what it says for the chosen protocol."""
        if self.protocol is None:
            raise ValueError(f"group {self.group_id} has chosen no protocol in state {self.state.value}")
        return [
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(self.protocol),
            )
            for member in self.members
        ]

    def described(self) -> DescribeGroupsResponse.DescribedGroup:
        """As DescribeGroups shows it: subscriptions and assignments only while it is stable."""
        protocol = self.protocol if self.state is GroupState.STABLE else None
        return DescribeGroupsResponse.DescribedGroup(
            group_id=self.group_id,
            group_state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_data=protocol or "",
            members=[member.described(protocol) for member in self.members],
        )

    def listed(self) -> ListGroupsResponse.ListedGroup:
        return ListGroupsResponse.ListedGroup(
            group_id=self.group_id,
            protocol_type=self.protocol_type or "",
            group_state=self.state.value,
            group_type=_GROUP_TYPE,
        )

    # Its record.

    def record(self, assignment: dict[str, bytes]) -> GroupMetadataValue:
        """The group's record with what each member is assigned."""
        assigned = [(member, assignment[member.member_id]) for member in self.members]
        return self._record(assigned, self.members.leader_id)

    def record_with(self, replacing: Member, replaced: Member) -> GroupMetadataValue:
        """The group's record in which one member stands for another, with its assignment, and the leadership if it
        leads. The other members keep what they are assigned.
        """
        assigned = [(member, member.assignment) for member in self.members if member is not replaced]
        assigned.append((replacing, replaced.assignment))
        leader_id = self.members.leader_id
        return self._record(assigned, replacing.member_id if leader_id == replaced.member_id else leader_id)

    def _record(self, assigned: list[tuple[Member, bytes]], leader_id: str | None) -> GroupMetadataValue:
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=leader_id,
            current_state_timestamp=self.state_timestamp_ms,
            members=[member.recorded(self.protocol, assignment) for member, assignment in assigned],
        )

    def replay(self, value: GroupMetadataValue | None) -> None:
        """The record is in the log; None is a tombstone."""
        self.recorded = value

    def tombstones(self) -> list[tuple[bytes, bytes | None]]:
        """The records that end the group."""
        return [] if self.recorded is None else [(group_key(self.group_id), None)]

    def bury(self, _key: bytes) -> None:
        """The tombstone is in the log."""
        self.replay(None)

    def restore(self, value: GroupMetadataValue) -> None:
        """Makes of a new group what its record says. Raises ValueError where its members cannot be."""
        self.replay(value)
        if not value.members:
            self.state = GroupState.EMPTY
        elif value.leader is None:  # it was a consumer group: nobody has assigned this generation
            self.state = GroupState.PREPARING_REBALANCE
        else:
            self.state = GroupState.STABLE
        self.state_timestamp_ms = value.current_state_timestamp
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol
        for recorded in value.members:
            self.members.add(
                Member(
                    member_id=recorded.member_id,
                    group_instance_id=recorded.group_instance_id,
                    client=Client(recorded.client_id, recorded.client_host),
                    rebalance_timeout_ms=recorded.rebalance_timeout,
                    session_timeout_ms=recorded.session_timeout,
                    protocols=((value.protocol or "", recorded.subscription),),
                    assignment=recorded.assignment,
                )
            )
        if value.leader is not None and value.leader in self.members:
            self.members.leader_id = value.leader
        self.subscribed_topics = self._subscribed_topics()

    # What its inputs do.

    def advance(self, state: GroupState, now: Now) -> None:
        """Moves to a state; raises `IllegalTransitionError`."""
        self.state = GROUP.advance(self.group_id, self.state, state)
        self.state_timestamp_ms = now.time_ms

    def begin_generation(self, now: Now) -> None:
        """Counts up the generation, with the members that are there."""
        self.generation += 1
        if self.members:
            self.protocol = self.members.choose_protocol()
            self.advance(GroupState.COMPLETING_REBALANCE, now)
        else:
            self.protocol = None
            self.advance(GroupState.EMPTY, now)
        self.subscribed_topics = self._subscribed_topics()
        self.members.pending_sync.clear()

    def respond(self, reply: Reply | None, response: Any) -> None:
        """Answers a request that is parked; nothing for None."""
        if reply is not None:
            self.effects.append(Respond(reply, response))

    def store(self, value: GroupMetadataValue, stored: Stored) -> None:
        self.effects.append(StoreGroup(value, stored))

    def start_timer(self, kind: TimerKind, delay_ms: float, member_id: str = "") -> None:
        self.effects.append(StartTimer(TimerKey(kind, member_id), delay_ms))

    def stop_timer(self, kind: TimerKind, member_id: str = "") -> None:
        self.effects.append(StopTimer(TimerKey(kind, member_id)))

    def expect_member(self, member: Member, now: Now, timeout_ms: int | None = None) -> None:
        """The member lives now, and is to be heard of again within its session time-out, or `timeout_ms`.

        The timer runs on where it rings early enough: when it does, it is started again for what is left. So a
        heartbeat costs no timer.
        """
        delay_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        deadline = now.seconds + delay_ms / _MS_PER_SECOND
        member.deadline = deadline
        if member.timer_deadline is None or member.timer_deadline > deadline:
            member.timer_deadline = deadline
            self.start_timer(TimerKind.SESSION, delay_ms, member.member_id)

    def expired_offsets(
        self, partitions: Iterable[TopicPartition], now: Now, retention_ms: int
    ) -> list[TopicPartition]:
        """Those of these partitions of which no one needs the offset (KIP-211).

        Of an Empty group: when the retention has passed since it became empty, or since the commit where its record
        does not know when. Of a stable consumer group: topics no longer subscribed, since the commit. Of a group that
        never had members: since the commit.
        """

        def committed_at(committed: CommittedOffset) -> int:
            return committed.commit_timestamp_ms

        def emptied_at(_committed: CommittedOffset) -> int:
            return self.state_timestamp_ms

        if self.protocol_type is None:
            return self.offsets.expired(partitions, now.time_ms, retention_ms, committed_at)
        if self.state is GroupState.EMPTY:
            is_known = self.state_timestamp_ms != NO_STATE_TIMESTAMP
            base = emptied_at if is_known else committed_at
            return self.offsets.expired(partitions, now.time_ms, retention_ms, base)
        if self.state is GroupState.STABLE and self.is_consumer_group and self.subscribed_topics is not None:
            return self.offsets.expired(partitions, now.time_ms, retention_ms, committed_at, self.subscribed_topics)
        return []

    def _subscribed_topics(self) -> frozenset[str] | None:
        if not self.is_consumer_group:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        topics = subscribed_topics(member.metadata(self.protocol) for member in self.members)
        if topics is None:
            self.logger.warning(
                "The members of group %s say something else than consumers do for protocol %s; "
                "which topics it is subscribed to is not known",
                self.group_id,
                self.protocol,
            )
        return topics
