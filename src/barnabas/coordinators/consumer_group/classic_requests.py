"""The shell around members of consumer groups that use the classic protocol: JoinGroup, SyncGroup, Heartbeat and
LeaveGroup in, records and answers out.

A JoinGroup has two parts, as a heartbeat has, and is answered when all that the group has written is committed, without
waiting for any other member; so is a SyncGroup.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

from barnabas.coordinators.consumer_group.classic_joins import (
    check_protocol,
    classic_member,
    has_to_join,
    is_behind,
    leave_classic,
    protocol_of,
    register_classic,
    subscription_of,
)
from barnabas.coordinators.consumer_group.classic_protocol import written_assignment
from barnabas.coordinators.consumer_group.coordinator import MEMBER_ERRORS, ConsumerGroups
from barnabas.coordinators.consumer_group.heartbeats import Registration, changed_topics, known_member
from barnabas.coordinators.consumer_group.hosted import HostedConsumerGroup
from barnabas.coordinators.consumer_group.member import ConsumerMember, Partitions
from barnabas.coordinators.consumer_group.topics import GroupTopics
from barnabas.coordinators.group.effect_runner import GroupHandle
from barnabas.coordinators.group.effects import Reply, TimerKind
from barnabas.coordinators.group.joining import Join
from barnabas.coordinators.group.responses import NO_LEADER, join_error, sync_error
from barnabas.coordinators.group.settings import GroupSettings
from barnabas.coordinators.group.subscriptions import CONSUMER_PROTOCOL_TYPE
from barnabas.coordinators.group.syncing import Sync
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    HeartbeatRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupResponse,
)


class ClassicRequests:
    """The requests of such members, in the groups of `groups`. They raise KafkaError where nothing was answered."""

    def __init__(
        self, settings: GroupSettings, groups: ConsumerGroups, topics: GroupTopics, logger: logging.Logger
    ) -> None:
        self._settings = settings
        self._groups = groups
        self._topics = topics
        self._timeouts = groups.timeouts
        self._logger = logger

    def join(self, handle: GroupHandle, hosted: HostedConsumerGroup, request: Join, reply: Reply) -> None:
        """`reply` takes the JoinGroupResponse, now or when what it tells is committed."""
        core = hosted.core
        subscription = subscription_of(core, request, self._settings.consumer_size_max, self._topics)
        if request.requires_known_member_id and not request.member_id:
            reply(join_error(request.new_member_id, ErrorCode.MEMBER_ID_REQUIRED))
            return
        registration = register_classic(
            core, request, subscription, self._topics.facts, is_stale=self._groups.is_stale(hosted)
        )
        if registration.records:
            self._groups.append(handle, hosted, registration.records)
        member_id = registration.member.member_id
        self._logger.info(
            "[GroupId %s] Member %s joins the consumer group using the classic protocol.", core.group_id, member_id
        )
        self._groups.registered(hosted, registration)
        self._timeouts.expect_member(handle, hosted, member_id)
        finish = functools.partial(self._joined, handle, hosted, member_id, subscription.owned, reply)
        self._groups.when_assigned(handle, hosted, finish)

    def _joined(
        self,
        handle: GroupHandle,
        hosted: HostedConsumerGroup,
        member_id: str,
        owned: Partitions,
        reply: Reply,
        error: ErrorCode,
    ) -> None:
        """The second part of a JoinGroup: a step of the member towards its target, and the answer."""
        try:
            self._check_present(handle, hosted)
            if error is not ErrorCode.NONE:
                raise KafkaError(error)
            updated = self._groups.reconcile(handle, hosted, known_member(hosted.core, member_id), owned)
        except KafkaError as failure:
            reply(join_error(member_id, MEMBER_ERRORS.get(failure.code, failure.code)))
            return
        except Exception:  # which concerns this member; others are waiting, too
            self._logger.exception("[GroupId %s] Member %s cannot be served", hosted.group_id, member_id)
            reply(join_error(member_id, ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        hosted.gate.when_known(functools.partial(self._answer_join, handle, hosted, updated, reply))

    def _answer_join(
        self, handle: GroupHandle, hosted: HostedConsumerGroup, joined: ConsumerMember, reply: Reply, error: ErrorCode
    ) -> None:
        member_id = joined.member_id
        try:
            member = self._still_present(handle, hosted, joined, error)
        except KafkaError as failure:
            reply(join_error(member_id, MEMBER_ERRORS.get(failure.code, failure.code)))
            return
        self._timeouts.has_requested(handle, hosted, TimerKind.JOIN, member_id)
        self._timeouts.expect_member(handle, hosted, member_id)
        self._timeouts.has_requested(handle, hosted, TimerKind.SYNC, member_id)
        self._timeouts.expect_request(handle, hosted, TimerKind.SYNC, member)
        reply(
            JoinGroupResponse(
                generation_id=member.epoch,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=protocol_of(member),
                leader=NO_LEADER,
                member_id=member_id,
            )
        )

    def sync(self, handle: GroupHandle, hosted: HostedConsumerGroup, request: Sync, reply: Reply) -> None:
        """`reply` takes the SyncGroupResponse, now or when what it tells is committed."""
        core = hosted.core
        member = classic_member(core, request.member_id, request.group_instance_id, request.generation)
        if is_behind(core, member):  # one that joined before the group was upgraded may have been told another protocol
            self._timeouts.expect_request(handle, hosted, TimerKind.JOIN, member)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        check_protocol(member, request)
        hosted.gate.when_known(functools.partial(self._answer_sync, handle, hosted, member, request, reply))

    def _answer_sync(
        self,
        handle: GroupHandle,
        hosted: HostedConsumerGroup,
        synced: ConsumerMember,
        request: Sync,
        reply: Reply,
        error: ErrorCode,
    ) -> None:
        try:
            member = self._still_present(handle, hosted, synced, error)
        except KafkaError as failure:
            reply(sync_error(MEMBER_ERRORS.get(failure.code, failure.code)))
            return
        self._timeouts.has_requested(handle, hosted, TimerKind.SYNC, member.member_id)
        self._timeouts.expect_member(handle, hosted, member.member_id)
        metadata = b"" if member.classic is None else member.classic.protocols[0][1]
        reply(
            SyncGroupResponse(
                protocol_type=request.protocol_type,
                protocol_name=request.protocol,
                assignment=written_assignment(member.assigned, metadata, self._topics),
            )
        )

    def heartbeat(self, handle: GroupHandle, hosted: HostedConsumerGroup, request: HeartbeatRequest) -> ErrorCode:
        """NONE, or REBALANCE_IN_PROGRESS where the member is to join again, as it has to within its rebalance time-out
        from now on. Raises KafkaError.
        """
        core = hosted.core
        member = classic_member(core, request.member_id, request.group_instance_id, request.generation_id)
        self._timeouts.expect_member(handle, hosted, member.member_id)
        if self._groups.is_stale(hosted):
            self._look_at_topics(handle, hosted, member)
        if not has_to_join(core, member):
            return ErrorCode.NONE
        self._timeouts.expect_request(handle, hosted, TimerKind.JOIN, member)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def _look_at_topics(self, handle: GroupHandle, hosted: HostedConsumerGroup, member: ConsumerMember) -> None:
        """Of such members nobody leads, who would see that topics have come, grown or gone, and perhaps there are no
        others. Where the log refuses it, the next heartbeat looks again.
        """
        records = changed_topics(hosted.core, self._topics.facts)
        try:
            if records:
                self._groups.append(handle, hosted, records)
        except KafkaError as error:
            self._logger.info("[GroupId %s] Its topics have changed, which the log refused: %s", hosted.group_id, error)
        else:
            self._groups.registered(hosted, Registration(member, records, is_bumped=bool(records)))

    def leave(
        self, handle: GroupHandle, hosted: HostedConsumerGroup, leaving: Sequence[LeaveGroupRequest.MemberIdentity]
    ) -> list[LeaveGroupResponse.MemberResponse]:
        """The outcome for each member, in order. Raises KafkaError where the log refuses it: all stay then."""
        left = leave_classic(hosted.core, leaving, self._topics.facts)
        if left.records:
            try:
                self._groups.append(handle, hosted, left.records)
            except KafkaError as error:
                raise KafkaError(MEMBER_ERRORS.get(error.code, error.code)) from error
        for member in left.gone:
            self._logger.info("[GroupId %s] Member %s has left the consumer group.", hosted.group_id, member.member_id)
        return left.outcomes

    @staticmethod
    def _check_present(handle: GroupHandle, hosted: HostedConsumerGroup) -> None:
        """Raises KafkaError REBALANCE_IN_PROGRESS where the group has become a classic one, of which all who were
        members are members.
        """
        if handle.group is not hosted:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def _still_present(
        self, handle: GroupHandle, hosted: HostedConsumerGroup, before: ConsumerMember, error: ErrorCode
    ) -> ConsumerMember:
        """The member as it is now; KafkaError where it may not be told what it was to be told."""
        self._check_present(handle, hosted)
        if error is not ErrorCode.NONE:
            raise KafkaError(error)
        member = known_member(hosted.core, before.member_id)
        if member.epoch != before.epoch or member.assigned != before.assigned:  # it has joined again meanwhile
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        return member
