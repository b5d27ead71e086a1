"""How long members of consumer groups are waited for, and what becomes of those who are not heard of."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from barnabas.coordinators.consumer_group.hosted import HostedConsumerGroup
from barnabas.coordinators.consumer_group.member import ConsumerMember
from barnabas.coordinators.consumer_group.states import MemberState
from barnabas.coordinators.group.background import BackgroundSteps
from barnabas.coordinators.group.effect_runner import GroupEffectRunner, GroupHandle
from barnabas.coordinators.group.effects import TimerKey, TimerKind
from barnabas.coordinators.group.settings import GroupSettings
from barnabas.kernel.steps import Steps
from barnabas.wire.errors import KafkaError

_MS_PER_SECOND: Final = 1000
_RETRY_MS: Final = 500
"""After which a member is removed that could not be, since the log refused it."""
_MEMBERS_PER_STEP: Final = 32
"""Each of whom has a record appended, which costs some 200 us."""
_MISSING: Final = {
    TimerKind.JOIN: "the classic member failed to join within the rebalance timeout.",
    TimerKind.SYNC: "the member failed to sync within timeout.",
}
"""Why a member is fenced that uses the classic protocol and has not sent that request."""
_KINDS: Final = (TimerKind.SESSION, TimerKind.REVOCATION, *_MISSING)


class MemberTimeouts:
    """The timers of members. `remove` has a member go; it raises KafkaError where the log refuses that."""

    def __init__(
        self,
        settings: GroupSettings,
        effects: GroupEffectRunner,
        background: BackgroundSteps,
        remove: Callable[[GroupHandle, HostedConsumerGroup, ConsumerMember], None],
        logger: logging.Logger,
    ) -> None:
        self._settings = settings
        self._effects = effects
        self._background = background
        self._remove = remove
        self._logger = logger
        self._overdue: deque[tuple[GroupHandle, TimerKey]] = deque()
        """Members who are to be fenced."""

    def forget(self, handle: GroupHandle, hosted: HostedConsumerGroup, member_id: str) -> None:
        """The member is gone."""
        hosted.forget(member_id)
        for kind in _KINDS:
            self._effects.stop_timer(handle, TimerKey(kind, member_id))

    def expect_loaded(self, handle: GroupHandle, hosted: HostedConsumerGroup) -> None:
        """The members of a group that was loaded are to be heard of within their sessions."""
        for member_id, member in hosted.core.members.items():
            if member_id not in hosted.deadlines:
                self.expect_member(handle, hosted, member_id)
            is_to_revoke = member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None
            if is_to_revoke and member_id not in hosted.revocations:
                self.expect_revocation(handle, hosted, member)

    def expect_member(self, handle: GroupHandle, hosted: HostedConsumerGroup, member_id: str) -> None:
        """The member lives now. Its timer runs on, and is started again for what is left when it rings."""
        classic = hosted.core.members[member_id].classic
        timeout_ms = self._settings.consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        deadline = self._effects.now().seconds + timeout_ms / _MS_PER_SECOND
        is_earlier = deadline < hosted.deadlines.get(member_id, 0.0)  # of a member that uses another protocol now
        hosted.deadlines[member_id] = deadline
        key = TimerKey(TimerKind.SESSION, member_id)
        if key not in handle.timers or is_earlier:
            self._effects.start_timer(handle, key, timeout_ms, self._session_rang)

    def expect_revocation(self, handle: GroupHandle, hosted: HostedConsumerGroup, member: ConsumerMember) -> None:
        """A member of the consumer protocol gives up within its rebalance time-out; others have to join in time."""
        key = TimerKey(TimerKind.REVOCATION, member.member_id)
        if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
            hosted.revocations[member.member_id] = member.epoch
            self._effects.start_timer(handle, key, member.rebalance_timeout_ms, self._fence_soon)
        elif hosted.revocations.pop(member.member_id, None) is not None:
            self._effects.stop_timer(handle, key)

    def expect_request(
        self, handle: GroupHandle, hosted: HostedConsumerGroup, kind: TimerKind, member: ConsumerMember
    ) -> None:
        """The member is to join again, or to ask for its assignment, within its rebalance time-out from the first time
        that this is said.
        """
        key = TimerKey(kind, member.member_id)
        if key not in handle.timers and key not in hosted.rung:
            self._effects.start_timer(handle, key, member.rebalance_timeout_ms, self._request_missing)

    def has_requested(self, handle: GroupHandle, hosted: HostedConsumerGroup, kind: TimerKind, member_id: str) -> None:
        """The member has done what `expect_request` waits for."""
        key = TimerKey(kind, member_id)
        self._effects.stop_timer(handle, key)
        hosted.rung.discard(key)

    def _request_missing(self, handle: GroupHandle, key: TimerKey) -> None:
        if isinstance(handle.group, HostedConsumerGroup):
            handle.group.rung.add(key)
            self._fence_soon(handle, key)

    def _session_rang(self, handle: GroupHandle, key: TimerKey) -> None:
        hosted = handle.group
        if isinstance(hosted, HostedConsumerGroup) and key.member_id in hosted.deadlines:
            remaining_ms = (hosted.deadlines[key.member_id] - self._effects.now().seconds) * _MS_PER_SECOND
            if remaining_ms > 0:
                self._effects.start_timer(handle, key, remaining_ms, self._session_rang)
            else:
                self._fence_soon(handle, key)

    def _fence_soon(self, handle: GroupHandle, key: TimerKey) -> None:
        """In the next turns: very many time-outs may come in this one."""
        self._overdue.append((handle, key))
        if len(self._overdue) == 1:
            self._background.run(self._fence_overdue(), "fence-members")

    def _fence_overdue(self) -> Steps[None]:
        yield
        left = _MEMBERS_PER_STEP
        while self._overdue:
            try:
                self._fence_if_overdue(*self._overdue[0])
            except Exception:
                self._logger.exception("A member could not be fenced")
            self._overdue.popleft()
            left -= 1
            if not left:
                yield
                left = _MEMBERS_PER_STEP

    def _fence_if_overdue(self, handle: GroupHandle, key: TimerKey) -> None:
        hosted = handle.group
        if not isinstance(hosted, HostedConsumerGroup) or not handle.shard.is_active:
            return
        member = hosted.core.members.get(key.member_id)
        if member is None:
            return
        if key.kind is TimerKind.SESSION:
            if hosted.deadlines.get(member.member_id, 0.0) <= self._effects.now().seconds:
                self._fence(handle, hosted, member, key, "the member session expired.")
            else:  # it was heard of in the last moment
                self._session_rang(handle, key)
        elif key.kind in _MISSING:
            if key in hosted.rung and member.classic is not None:
                self._fence(handle, hosted, member, key, _MISSING[key.kind])
        elif hosted.awaits_revocation(member):
            timeout_ms = member.rebalance_timeout_ms
            reason = f"it failed to transition from epoch {member.epoch} within {timeout_ms}ms."
            self._fence(handle, hosted, member, key, reason)

    def _fence(
        self, handle: GroupHandle, hosted: HostedConsumerGroup, member: ConsumerMember, key: TimerKey, reason: str
    ) -> None:
        try:
            self._remove(handle, hosted, member)
        except KafkaError as error:
            self._logger.warning(
                "[GroupId %s] Member %s is still to be fenced, which the log refused: %s",
                *(hosted.group_id, member.member_id, error),
            )
            rang = self._session_rang if key.kind is TimerKind.SESSION else self._fence_soon
            self._effects.start_timer(handle, key, _RETRY_MS, rang)
            return
        self._logger.info(
            "[GroupId %s] Member %s fenced from the group because %s", hosted.group_id, member.member_id, reason
        )
