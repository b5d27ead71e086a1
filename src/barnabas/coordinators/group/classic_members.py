"""The requests of members of classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from barnabas.coordinators.consumer_group.classic_requests import ClassicRequests
from barnabas.coordinators.consumer_group.coordinator import MEMBER_ERRORS
from barnabas.coordinators.consumer_group.hosted import HostedConsumerGroup
from barnabas.coordinators.group import membership
from barnabas.coordinators.group.effect_runner import AnyGroup, GroupEffectRunner, GroupHandle
from barnabas.coordinators.group.effects import Reply
from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.joining import Join, join
from barnabas.coordinators.group.member import Client
from barnabas.coordinators.group.responses import join_error, sync_error
from barnabas.coordinators.group.settings import GroupSettings
from barnabas.coordinators.group.syncing import Sync, sync
from barnabas.coordinators.shard import APPEND_ERRORS
from barnabas.kernel.host import Host
from barnabas.kernel.ids import Uuid
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
)

_KNOWN_MEMBER_ID_VERSION: Final = 4
_SKIP_ASSIGNMENT_VERSION: Final = 9
PENDING_MEMBERS_MAX: Final = 10_000
"""Member ids of one group that clients were given and have not come back with; each is kept for a session time-out."""


class ClassicMembers:
    """Takes the requests to their groups; those in consumer groups to `consumer`. `find` gives a group, None where this
    broker coordinates it and there is none; `create` makes one. They raise KafkaError.
    """

    def __init__(
        self,
        settings: GroupSettings,
        *,
        host: Host,
        effects: GroupEffectRunner,
        find: Callable[[str], GroupHandle | None],
        create: Callable[[str], GroupHandle],
        consumer: ClassicRequests,
        logger: logging.Logger,
    ) -> None:
        self._settings = settings
        self._host = host
        self._effects = effects
        self._find = find
        self._create = create
        self._consumer = consumer
        self._logger = logger

    def join_group(self, request: JoinGroupRequest, client: Client, version: int, reply: Reply) -> None:
        """`reply` takes the JoinGroupResponse, now or when the next generation begins."""
        group_id, member_id = request.group_id, request.member_id
        settings = self._settings
        try:
            handle = self._find(group_id)
            if not settings.session_timeout_min_ms <= request.session_timeout_ms <= settings.session_timeout_max_ms:
                raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
            if handle is None:
                if member_id:
                    raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
                handle = self._create(group_id)
            self._join(handle, self._read_join(request, client, version), reply)
        except KafkaError as error:
            reply(join_error(member_id, MEMBER_ERRORS.get(error.code, error.code)))

    def _join(self, handle: GroupHandle, request: Join, reply: Reply) -> None:
        group = handle.group
        if isinstance(group, HostedConsumerGroup):
            if not group.is_empty:
                self._consumer.join(handle, group, request, reply)
                return
            group = self._make_classic(handle)
        if len(group.members.pending) >= PENDING_MEMBERS_MAX and not request.member_id:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        join(group, self._effects.now(), request, reply)
        self._effects.perform(handle)

    def _read_join(self, request: JoinGroupRequest, client: Client, version: int) -> Join:
        member_id, instance_id = request.member_id, request.group_instance_id
        prefix = instance_id if instance_id is not None else client.client_id
        protocols: dict[str, bytes] = {}
        for protocol in request.protocols:
            protocols.setdefault(protocol.name, protocol.metadata)
        return Join(
            member_id=member_id,
            new_member_id="" if member_id else f"{prefix}-{Uuid.generate(self._host.entropy).dashed}",
            group_instance_id=instance_id,
            client=client,
            rebalance_timeout_ms=request.session_timeout_ms if version == 0 else request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple(protocols.items()),
            requires_known_member_id=version >= _KNOWN_MEMBER_ID_VERSION and instance_id is None,
            supports_skipping_assignment=version >= _SKIP_ASSIGNMENT_VERSION,
            reason=request.reason,
        )

    def sync_group(self, request: SyncGroupRequest, reply: Reply) -> None:
        """`reply` takes the SyncGroupResponse, now or when the leader's assignment is committed."""
        said = Sync(
            generation=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
            assignments={each.member_id: each.assignment for each in request.assignments},
        )
        try:
            handle, group = self._found(request.group_id)
            if isinstance(group, HostedConsumerGroup):
                self._consumer.sync(handle, group, said, reply)
                return
        except KafkaError as error:
            # A rebalance that was on is lost; older clients do not expect to be told that the group is loading.
            is_loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            reply(sync_error(ErrorCode.REBALANCE_IN_PROGRESS if is_loading else error.code))
            return
        sync(group, self._effects.now(), said, reply)
        self._effects.perform(handle)

    def heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        """NONE, or why the member is to join again. While the group is loading it is taken at its word."""
        try:
            handle, group = self._found(request.group_id)
            if isinstance(group, HostedConsumerGroup):
                return self._consumer.heartbeat(handle, group, request)
        except KafkaError as error:
            is_loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return ErrorCode.NONE if is_loading else error.code
        error_code = membership.heartbeat(
            group,
            self._effects.now(),
            generation=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
        )
        self._effects.perform(handle)
        return error_code

    def leave_group(
        self, group_id: str, leaving: Sequence[LeaveGroupRequest.MemberIdentity]
    ) -> list[LeaveGroupResponse.MemberResponse]:
        """The outcome for each member, in order."""
        handle = self._find(group_id)
        if handle is None:
            return [
                LeaveGroupResponse.MemberResponse(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=ErrorCode.UNKNOWN_MEMBER_ID,
                )
                for identity in leaving
            ]
        if isinstance(handle.group, HostedConsumerGroup):
            return self._consumer.leave(handle, handle.group, leaving)
        members = membership.leave(handle.group, self._effects.now(), leaving)
        self._effects.perform(handle)
        return members

    def _found(self, group_id: str) -> tuple[GroupHandle, AnyGroup]:
        """Raises KafkaError UNKNOWN_MEMBER_ID where there is no such group: nobody is its member."""
        handle = self._find(group_id)
        if handle is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return handle, handle.group

    def _make_classic(self, handle: GroupHandle) -> Group:
        """An empty group of the consumer protocol makes place for a classic one with its offsets. Raises KafkaError."""
        group = handle.group
        classic = Group(group.group_id, self._settings, self._logger, self._effects.now())
        classic.offsets = group.offsets

        def replay(_base_offset: int) -> None:
            handle.group = classic

        try:
            handle.shard.append(group.tombstones(), self._effects.now().time_ms, replay, lambda _error: None)
        except KafkaError as error:
            raise KafkaError(APPEND_ERRORS.get(error.code, error.code)) from error
        self._effects.stop_timers(handle)
        return classic
