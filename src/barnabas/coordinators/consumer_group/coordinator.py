"""The shell around groups of the consumer protocol: heartbeats in, records and answers out, time-outs.

A heartbeat is answered when all that the group has written so far is committed: what a member is told, any later
coordinator knows, and a partition that it is given nobody else was.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from barnabas.coordinators.consumer_group.heartbeats import (
    ConsumerHeartbeat,
    Records,
    check_epoch,
    check_request,
    known_member,
    leave,
    reconcile,
    register,
    remove,
)
from barnabas.coordinators.consumer_group.hosted import HostedConsumerGroup
from barnabas.coordinators.consumer_group.member import ConsumerMember, Partitions
from barnabas.coordinators.consumer_group.records import (
    ConsumerGroupRecord,
    Current,
    RecordKind,
    Target,
    TargetEpoch,
    Tombstone,
    encoded,
)
from barnabas.coordinators.consumer_group.states import MemberState
from barnabas.coordinators.consumer_group.targets import ASSIGNORS, NewTarget, assigned_anew
from barnabas.coordinators.consumer_group.topics import GroupTopics
from barnabas.coordinators.group.background import BackgroundSteps
from barnabas.coordinators.group.effect_runner import GroupEffectRunner, GroupHandle
from barnabas.coordinators.group.effects import Reply, TimerKey, TimerKind
from barnabas.coordinators.group.settings import GroupSettings
from barnabas.coordinators.shard import APPEND_ERRORS, batch_in_steps
from barnabas.kernel.host import Host
from barnabas.kernel.ids import Uuid
from barnabas.kernel.steps import Steps, each
from barnabas.wire.compression_types import Compression
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ConsumerGroupHeartbeatResponse
from barnabas.wire.primitives import EncodeError

_MS_PER_SECOND: Final = 1000
_RETRY_MS: Final = 500
"""After which a member is removed that could not be, since the log refused it."""
_MEMBERS_PER_STEP: Final = 32
"""Each of whom has a record appended, which costs some 200 us."""
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_HEARTBEAT_ERRORS: Final = {
    **APPEND_ERRORS,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What a member is told when records could not be appended; other errors as they are."""


def heartbeat_error(error: ErrorCode, message: str | None = None) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=message)


class ConsumerGroups:
    """The consumer groups of one broker. `find` gives a group, None where this broker coordinates it and there is none;
    `create` puts a new one into its shard. Both raise KafkaError.
    """

    def __init__(
        self,
        settings: GroupSettings,
        *,
        host: Host,
        topics: GroupTopics,
        effects: GroupEffectRunner,
        background: BackgroundSteps,
        find: Callable[[str], GroupHandle | None],
        create: Callable[[HostedConsumerGroup], GroupHandle],
        discard: Callable[[GroupHandle], None],
        on_rebalance: Callable[[], None],
        logger: logging.Logger,
    ) -> None:
        """`discard` takes a group out again of which nothing was written; `on_rebalance` counts a bump of an epoch."""
        self._settings = settings
        self._host = host
        self._topics = topics
        self._effects = effects
        self._background = background
        self._find = find
        self._create = create
        self._discard = discard
        self._on_rebalance = on_rebalance
        self._logger = logger
        self._assignors = settings.assignors
        self._topics_version = 0
        self._overdue: deque[tuple[GroupHandle, TimerKey]] = deque()
        """Members who are to be fenced."""

    @property
    def default_assignor(self) -> str:
        return self._assignors[0]

    def topics_changed(self) -> None:
        """Each group looks at its topics with the next heartbeat."""
        self._topics_version += 1

    # Heartbeats.

    def heartbeat(self, request: ConsumerHeartbeat, reply: Reply) -> None:
        """`reply` takes the response, now or when what it tells is committed."""
        try:
            check_request(request, self._assignors)
            handle = self._find(request.group_id)
            if request.leaves:
                self._leave(handle, request, reply)
            else:
                self._beat(handle, request, reply)
        except KafkaError as error:
            reply(heartbeat_error(_HEARTBEAT_ERRORS.get(error.code, error.code), error.message))

    def _beat(self, handle: GroupHandle | None, request: ConsumerHeartbeat, reply: Reply) -> None:
        hosted, before = self._hosted(handle, request)
        core = hosted.core
        registration = register(
            core,
            request,
            "" if request.member_id else Uuid.generate(self._host.entropy).dashed,
            self._topics.facts,
            size_max=self._settings.consumer_size_max,
            is_stale=hosted.seen_topics != self._topics_version,
        )
        member_id = registration.member.member_id
        created = None
        if handle is None:
            created = handle = self._create(hosted)
        try:
            if registration.records:
                self._append(handle, hosted, before, registration.records)
        except BaseException:
            if created is not None:
                self._discard(created)
            raise
        hosted.seen_topics = self._topics_version
        if request.joins:
            self._logger.info(
                "[GroupId %s] Member %s joins the consumer group using the consumer protocol.", core.group_id, member_id
            )
        if registration.is_bumped:
            self._on_rebalance()
            self._logger.info("[GroupId %s] Bumped group epoch to %d.", core.group_id, core.epoch)
        self.expect_member(handle, hosted, member_id)
        finish = functools.partial(self._answer, handle, hosted, request, registration.member, reply)
        if core.needs_assignment:
            hosted.waiting.append((core.epoch, finish))
            self._assign(handle, hosted)
        else:
            finish(ErrorCode.NONE)

    def _hosted(
        self, handle: GroupHandle | None, request: ConsumerHeartbeat
    ) -> tuple[HostedConsumerGroup, list[tuple[bytes, bytes | None]]]:
        """The group, and what is to be written ahead of its records: an empty classic group makes place for it.

        Raises KafkaError GROUP_ID_NOT_FOUND.
        """
        if handle is None:
            if request.joins:
                return HostedConsumerGroup(request.group_id), []
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")
        group = handle.group
        if isinstance(group, HostedConsumerGroup):
            return group, []
        if request.joins and group.is_empty:
            return HostedConsumerGroup(request.group_id, group.offsets), group.tombstones()
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a consumer group.")

    def _answer(
        self,
        handle: GroupHandle,
        hosted: HostedConsumerGroup,
        request: ConsumerHeartbeat,
        registered: ConsumerMember,
        reply: Reply,
        error: ErrorCode,
    ) -> None:
        """The second part of a heartbeat: a step of the member towards its target, and the answer."""
        member_id = registered.member_id
        try:
            if error is not ErrorCode.NONE:
                raise KafkaError(error)
            member = known_member(hosted.core, member_id)
            if member.epoch != registered.epoch:  # another request of the member was served while this one waited
                check_epoch(member, request.epoch, request.owned)
            updated = self._reconcile(handle, hosted, member, request.owned)
        except KafkaError as failure:
            reply(heartbeat_error(_HEARTBEAT_ERRORS.get(failure.code, failure.code), failure.message))
            return
        except Exception:  # which concerns this member; others are waiting, too
            self._logger.exception("[GroupId %s] Member %s cannot be served", hosted.group_id, member_id)
            reply(heartbeat_error(ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        tells_assignment = request.is_full or updated.assigned != member.assigned
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=updated.epoch,
            heartbeat_interval_ms=self._settings.consumer_heartbeat_interval_ms,
            assignment=_assignment(updated.assigned) if tells_assignment else None,
        )
        self._reply_when_committed(hosted, response, reply)

    def _reconcile(
        self, handle: GroupHandle, hosted: HostedConsumerGroup, member: ConsumerMember, owned: Partitions | None
    ) -> ConsumerMember:
        updated = reconcile(hosted.core, member, owned)
        if updated is member or updated == member:
            return member
        self._append(handle, hosted, [], [Current(updated)])
        self._logger.info(
            "[GroupId %s] Member %s is %s at epoch %d, with %d partitions and %d to give up.",
            *(hosted.group_id, member.member_id, updated.state.name, updated.epoch),
            *(sum(map(len, updated.assigned.values())), sum(map(len, updated.revoking.values()))),
        )
        self._expect_revocation(handle, hosted, updated)
        return updated

    def _reply_when_committed(
        self, hosted: HostedConsumerGroup, response: ConsumerGroupHeartbeatResponse, reply: Reply
    ) -> None:
        def known(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                reply(response)
            else:
                reply(heartbeat_error(_HEARTBEAT_ERRORS.get(error, error)))

        hosted.gate.when_known(known)

    def _leave(self, handle: GroupHandle | None, request: ConsumerHeartbeat, reply: Reply) -> None:
        if handle is None or not isinstance(handle.group, HostedConsumerGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a consumer group.")
        hosted = handle.group
        member, records = leave(hosted.core, request, self._topics.facts)
        self._append(handle, hosted, [], records)
        self._logger.info("[GroupId %s] Member %s left the consumer group.", hosted.group_id, member.member_id)
        response = ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.epoch)
        self._reply_when_committed(hosted, response, reply)

    # Records.

    def _append(
        self,
        handle: GroupHandle,
        hosted: HostedConsumerGroup,
        before: Sequence[tuple[bytes, bytes | None]],
        records: Records,
    ) -> None:
        """Appends in one batch, and replays. Raises KafkaError where the log refuses it: nothing has changed then."""
        try:
            batch = [*before, *(encoded(hosted.group_id, record) for record in records)]
        except EncodeError as error:  # texts that a request may have and a record may not
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The request cannot be recorded: {error}") from error
        replay, done = self._replay_and_done(handle, hosted, records)
        handle.shard.append(batch, self._effects.now().time_ms, replay, done)
        self._forget_gone(handle, hosted, records)

    def _replay_and_done(
        self, handle: GroupHandle, hosted: HostedConsumerGroup, records: Sequence[ConsumerGroupRecord]
    ) -> tuple[Callable[[int], None], Callable[[ErrorCode], None]]:
        replayed_at = -1

        def replay(base_offset: int) -> None:
            nonlocal replayed_at
            replayed_at = base_offset
            handle.group = hosted  # an empty classic group has made place
            for record in records:
                hosted.core.replay(record)
            hosted.gate.began(base_offset)

        def done(error: ErrorCode) -> None:
            hosted.gate.ended(replayed_at, error)
            if error is ErrorCode.REQUEST_TIMED_OUT:
                handle.shard.await_commit(hosted.gate, replayed_at, hosted.gate.committed)

        return replay, done

    def _forget_gone(
        self, handle: GroupHandle, hosted: HostedConsumerGroup, records: Sequence[ConsumerGroupRecord]
    ) -> None:
        for record in records:
            if isinstance(record, Tombstone) and record.kind is RecordKind.MEMBER:
                member_id = record.member_id
                if member_id not in hosted.core.members:
                    hosted.forget(member_id)
                    for kind in (TimerKind.SESSION, TimerKind.REVOCATION):
                        self._effects.stop_timer(handle, TimerKey(kind, member_id))

    # The target assignment.

    def _assign(self, handle: GroupHandle, hosted: HostedConsumerGroup) -> None:
        """Makes the target assignment, unless that is under way. It begins in the next turn, so that all who come in
        this one share it.
        """
        if not hosted.is_assigning:
            hosted.is_assigning = True
            self._background.run(self._assign_in_steps(handle, hosted), f"assign-{hosted.group_id}")

    def _assign_in_steps(self, handle: GroupHandle, hosted: HostedConsumerGroup) -> Steps[None]:
        yield
        try:
            error = yield from self._assign_until_done(handle, hosted)
        except Exception:
            self._logger.exception("[GroupId %s] The target assignment could not be computed", hosted.group_id)
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        hosted.is_assigning = False
        yield from self._resume(hosted, None, error)

    def _assign_until_done(self, handle: GroupHandle, hosted: HostedConsumerGroup) -> Steps[ErrorCode]:
        """Until the assignment is of the group's epoch, which may go up meanwhile; NONE, or why it could not be."""
        core = hosted.core
        while core.needs_assignment:
            wished = core.preferred_assignor()
            name = wished if wished is not None and wished in self._assignors else self.default_assignor
            target = yield from assigned_anew(core, ASSIGNORS[name])
            if core.epoch == target.epoch and not core.members.keys() <= target.members:
                continue  # a static member has come back under another id
            yield  # a member may have thousands of topics, each of which is in several records
            error = yield from self._write_target(handle, hosted, target)
            if error is not ErrorCode.NONE:
                return error
            self._logger.info(
                "[GroupId %s] Computed a new target assignment for epoch %d with '%s' assignor: %d changed.",
                *(core.group_id, target.epoch, name, len(target.changed)),
            )
            yield
            yield from self._resume(hosted, core.assignment_epoch, ErrorCode.NONE)
        return ErrorCode.NONE

    def _resume(self, hosted: HostedConsumerGroup, up_to: int | None, error: ErrorCode) -> Steps[None]:
        """Goes on with those who waited for the target assignment of the epoch, or of any."""
        ready = [finish for epoch, finish in hosted.waiting if up_to is None or epoch <= up_to]
        hosted.waiting = [] if up_to is None else [each for each in hosted.waiting if each[0] > up_to]
        yield from each(lambda finish: finish(error), ready, _MEMBERS_PER_STEP)

    def _write_target(self, handle: GroupHandle, hosted: HostedConsumerGroup, target: NewTarget) -> Steps[ErrorCode]:
        """Appends the targets that change and then the epoch, in one batch or in as few as the topic takes."""
        pieces: list[list[ConsumerGroupRecord]] = [[*target.changed, TargetEpoch(target.epoch)]]
        compression = Compression(self._settings.compression)
        while pieces:
            piece = pieces.pop()
            batch = yield from batch_in_steps(
                (encoded(hosted.group_id, record) for record in piece), self._effects.now().time_ms, compression
            )
            if handle.group is not hosted or not hosted.core.is_recorded:
                return ErrorCode.UNKNOWN_MEMBER_ID  # it was deleted, and so empty
            try:
                handle.shard.append_batch(batch, *self._replay_and_done(handle, hosted, piece))
            except KafkaError as error:
                if error.code not in _TOO_LARGE or len(piece) == 1:
                    return error.code
                middle = len(piece) // 2
                pieces += (piece[middle:], piece[:middle])
            else:
                self._bury_strays(handle, hosted, piece)
        return ErrorCode.NONE

    def _bury_strays(
        self, handle: GroupHandle, hosted: HostedConsumerGroup, piece: Sequence[ConsumerGroupRecord]
    ) -> None:
        """Targets of members that have left while it was made."""
        named = (record.member_id for record in piece if isinstance(record, Target))
        strays = [member_id for member_id in named if member_id not in hosted.core.members]
        if strays:
            try:
                self._append(handle, hosted, [], [Tombstone(RecordKind.TARGET, member_id) for member_id in strays])
            except KafkaError as error:
                self._logger.warning("[GroupId %s] Targets of former members stay: %s", hosted.group_id, error)

    # Time-outs.

    def expect_loaded(self, handle: GroupHandle, hosted: HostedConsumerGroup) -> None:
        """The members of a group that was loaded are to be heard of within their sessions."""
        for member_id, member in hosted.core.members.items():
            if member_id not in hosted.deadlines:
                self.expect_member(handle, hosted, member_id)
            if member.state is MemberState.UNREVOKED_PARTITIONS and member_id not in hosted.revocations:
                self._expect_revocation(handle, hosted, member)

    def expect_member(self, handle: GroupHandle, hosted: HostedConsumerGroup, member_id: str) -> None:
        """The member lives now. Its timer runs on, and is started again for what is left when it rings."""
        timeout_ms = self._settings.consumer_session_timeout_ms
        hosted.deadlines[member_id] = self._effects.now().seconds + timeout_ms / _MS_PER_SECOND
        key = TimerKey(TimerKind.SESSION, member_id)
        if key not in handle.timers:
            self._effects.start_timer(handle, key, timeout_ms, self._session_rang)

    def _expect_revocation(self, handle: GroupHandle, hosted: HostedConsumerGroup, member: ConsumerMember) -> None:
        key = TimerKey(TimerKind.REVOCATION, member.member_id)
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            hosted.revocations[member.member_id] = member.epoch
            self._effects.start_timer(handle, key, member.rebalance_timeout_ms, self._revocation_rang)
        elif hosted.revocations.pop(member.member_id, None) is not None:
            self._effects.stop_timer(handle, key)

    def _session_rang(self, handle: GroupHandle, key: TimerKey) -> None:
        hosted = handle.group
        if isinstance(hosted, HostedConsumerGroup) and key.member_id in hosted.deadlines:
            remaining_ms = (hosted.deadlines[key.member_id] - self._effects.now().seconds) * _MS_PER_SECOND
            if remaining_ms > 0:
                self._effects.start_timer(handle, key, remaining_ms, self._session_rang)
            else:
                self._fence_soon(handle, key)

    def _revocation_rang(self, handle: GroupHandle, key: TimerKey) -> None:
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
        elif hosted.awaits_revocation(member):
            timeout_ms = member.rebalance_timeout_ms
            reason = f"it failed to transition from epoch {member.epoch} within {timeout_ms}ms."
            self._fence(handle, hosted, member, key, reason)

    def _fence(
        self, handle: GroupHandle, hosted: HostedConsumerGroup, member: ConsumerMember, key: TimerKey, reason: str
    ) -> None:
        try:
            self._append(handle, hosted, [], remove(hosted.core, member, self._topics.facts))
        except KafkaError as error:
            self._logger.warning(
                "[GroupId %s] Member %s is still to be fenced, which the log refused: %s",
                *(hosted.group_id, member.member_id, error),
            )
            rang = self._session_rang if key.kind is TimerKind.SESSION else self._revocation_rang
            self._effects.start_timer(handle, key, _RETRY_MS, rang)
            return
        self._logger.info(
            "[GroupId %s] Member %s fenced from the group because %s", hosted.group_id, member.member_id, reason
        )


def _assignment(partitions: Partitions) -> ConsumerGroupHeartbeatResponse.Assignment:
    return ConsumerGroupHeartbeatResponse.Assignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in sorted(partitions.items())
        ]
    )
