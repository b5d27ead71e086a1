"""The shell around groups of the consumer protocol: heartbeats in, records and answers out, time-outs.

A heartbeat is answered when all that the group has written so far is committed: what a member is told, any later
coordinator knows, and a partition that it is given nobody else was.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Final

from barnabas.coordinators.consumer_group.conversion import ConversionError, downgraded, upgraded
from barnabas.coordinators.consumer_group.group import ConsumerGroup
from barnabas.coordinators.consumer_group.heartbeats import (
    ConsumerHeartbeat,
    Records,
    Registration,
    check_epoch,
    check_request,
    known_member,
    leave,
    reconcile,
    register,
    remove,
)
from barnabas.coordinators.consumer_group.hosted import HostedConsumerGroup
from barnabas.coordinators.consumer_group.member import LEFT_EPOCH, ConsumerMember, Partitions
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
from barnabas.coordinators.consumer_group.timeouts import MemberTimeouts
from barnabas.coordinators.consumer_group.topics import GroupTopics
from barnabas.coordinators.group.background import BackgroundSteps
from barnabas.coordinators.group.effect_runner import GroupEffectRunner, GroupHandle
from barnabas.coordinators.group.effects import Reply
from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.membership import expect_loaded_members
from barnabas.coordinators.group.rebalance import resume_rebalance
from barnabas.coordinators.group.records import group_key, group_value
from barnabas.coordinators.group.settings import GroupSettings
from barnabas.coordinators.shard import APPEND_ERRORS, batch_in_steps
from barnabas.kernel.host import Host
from barnabas.kernel.ids import Uuid
from barnabas.kernel.steps import Steps, each
from barnabas.wire.compression_types import Compression
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import ConsumerGroupHeartbeatResponse, GroupMetadataValue
from barnabas.wire.primitives import EncodeError

_MEMBERS_PER_STEP: Final = 32
"""Each of whom has a record appended, which costs some 200 us."""
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
MEMBER_ERRORS: Final = {
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
        self.timeouts = MemberTimeouts(settings, effects, background, self._fence, logger)

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
            reply(heartbeat_error(MEMBER_ERRORS.get(error.code, error.code), error.message))

    def _beat(self, handle: GroupHandle | None, request: ConsumerHeartbeat, reply: Reply) -> None:
        hosted, before = self._hosted(handle, request)
        core = hosted.core
        former = None if handle is None else handle.group
        registration = register(
            core,
            request,
            "" if request.member_id else Uuid.generate(self._host.entropy).dashed,
            self._topics.facts,
            size_max=self._settings.consumer_size_max,
            is_stale=self.is_stale(hosted),
        )
        member_id = registration.member.member_id
        created = None
        if handle is None:
            created = handle = self._create(hosted)
        try:
            if registration.records:
                self.append(handle, hosted, registration.records, before=before, replaces=True)
        except BaseException:
            if created is not None:
                self._discard(created)
            raise
        if isinstance(former, Group):
            self._effects.retire(handle, former)
            self.timeouts.expect_loaded(handle, hosted)
        if request.joins:
            self._logger.info(
                "[GroupId %s] Member %s joins the consumer group using the consumer protocol.", core.group_id, member_id
            )
        self.registered(hosted, registration)
        self.timeouts.expect_member(handle, hosted, member_id)
        finish = functools.partial(self._answer, handle, hosted, request, registration.member, reply)
        self.when_assigned(handle, hosted, finish)

    def registered(self, hosted: HostedConsumerGroup, registration: Registration) -> None:
        """What a member has said is in the log, and it was looked at the topics of the group."""
        hosted.seen_topics = self._topics_version
        if registration.is_bumped:
            self._on_rebalance()
            self._logger.info("[GroupId %s] Bumped group epoch to %d.", hosted.group_id, hosted.core.epoch)

    def is_stale(self, hosted: HostedConsumerGroup) -> bool:
        """Whether the topics of the group are to be looked at again."""
        return hosted.seen_topics != self._topics_version

    def when_assigned(
        self, handle: GroupHandle, hosted: HostedConsumerGroup, finish: Callable[[ErrorCode], None]
    ) -> None:
        """Calls when there is a target assignment of the group's present epoch, perhaps before this returns, or with
        the error where there is none.
        """
        core = hosted.core
        if core.needs_assignment:
            hosted.waiting.append((core.epoch, finish))
            self._assign(handle, hosted)
        else:
            finish(ErrorCode.NONE)

    def _hosted(
        self, handle: GroupHandle | None, request: ConsumerHeartbeat
    ) -> tuple[HostedConsumerGroup, list[tuple[bytes, bytes | None]]]:
        """The group, and what is to be written ahead of its records: a classic group makes place for it, with its
        members if it has any. Raises KafkaError GROUP_ID_NOT_FOUND.
        """
        if handle is None:
            if request.joins:
                return HostedConsumerGroup(request.group_id), []
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")
        group = handle.group
        if isinstance(group, HostedConsumerGroup):
            return group, []
        if request.joins:
            if group.is_empty:
                return HostedConsumerGroup(request.group_id, group.offsets), group.tombstones()
            return self._upgraded(group)
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a consumer group.")

    def _upgraded(self, group: Group) -> tuple[HostedConsumerGroup, list[tuple[bytes, bytes | None]]]:
        """As `_hosted`, of a classic group that has members."""
        group_id = group.group_id
        try:
            if not self._settings.upgrades_groups:
                raise ConversionError("the online upgrade is disabled")
            if not group.is_consumer_group:
                raise ConversionError("it does not use the consumer embedded protocol")
            if group.member_count > self._settings.consumer_size_max:
                raise ConversionError("its size exceeds the maximum size of consumer groups")
            core, records = upgraded(group, self._topics)
            before = [*group.tombstones(), *(encoded(group_id, record) for record in records)]
        except (ConversionError, EncodeError) as error:
            self._logger.info("Cannot upgrade classic group %s to consumer group: %s.", group_id, error)
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Group {group_id} is not a consumer group, and cannot be upgraded to one: {error}.",
            ) from error
        self._logger.info("Upgrading classic group %s with %d members.", group_id, group.member_count)
        return HostedConsumerGroup(group_id, group.offsets, core=core), before

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
            updated = self.reconcile(handle, hosted, member, request.owned)
        except KafkaError as failure:
            reply(heartbeat_error(MEMBER_ERRORS.get(failure.code, failure.code), failure.message))
            return
        except Exception:  # which concerns this member; others are waiting, too
            self._logger.exception("[GroupId %s] Member %s cannot be served", hosted.group_id, member_id)
            reply(heartbeat_error(ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        tells_assignment = request.is_full or updated.assigned != member.assigned
        settings, is_waiting = self._settings, updated.state is MemberState.UNRELEASED_PARTITIONS
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=updated.epoch,
            heartbeat_interval_ms=(
                settings.waiting_heartbeat_interval_ms if is_waiting else settings.consumer_heartbeat_interval_ms
            ),
            assignment=_assignment(updated.assigned) if tells_assignment else None,
        )
        self._reply_when_committed(hosted, response, reply)

    def reconcile(
        self, handle: GroupHandle, hosted: HostedConsumerGroup, member: ConsumerMember, owned: Partitions | None
    ) -> ConsumerMember:
        """The member after its next step, which is in the log. Raises KafkaError."""
        updated = reconcile(hosted.core, member, owned)
        if updated is member or updated == member:
            return member
        self.append(handle, hosted, [Current(updated)])
        self._logger.info(
            "[GroupId %s] Member %s is %s at epoch %d, with %d partitions and %d to give up.",
            *(hosted.group_id, member.member_id, updated.state.name, updated.epoch),
            *(sum(map(len, updated.assigned.values())), sum(map(len, updated.revoking.values()))),
        )
        self.timeouts.expect_revocation(handle, hosted, updated)
        return updated

    def _reply_when_committed(
        self, hosted: HostedConsumerGroup, response: ConsumerGroupHeartbeatResponse, reply: Reply
    ) -> None:
        def known(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                reply(response)
            else:
                reply(heartbeat_error(MEMBER_ERRORS.get(error, error)))

        hosted.gate.when_known(known)

    def _leave(self, handle: GroupHandle | None, request: ConsumerHeartbeat, reply: Reply) -> None:
        if handle is None or not isinstance(handle.group, HostedConsumerGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a consumer group.")
        hosted = handle.group
        member, records = leave(hosted.core, request, self._topics.facts)
        if request.epoch == LEFT_EPOCH:
            self._remove(handle, hosted, member, records)
        else:
            self.append(handle, hosted, records)
        self._logger.info("[GroupId %s] Member %s left the consumer group.", hosted.group_id, member.member_id)
        response = ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.epoch)
        self._reply_when_committed(hosted, response, reply)

    # Members that go.

    def _remove(
        self, handle: GroupHandle, hosted: HostedConsumerGroup, member: ConsumerMember, records: Records
    ) -> None:
        """The member goes, by these records; or the group becomes a classic one without it. Raises KafkaError."""
        value = self._downgraded(hosted.core, member)
        if value is not None:
            try:
                self._make_classic(handle, hosted, value)
            except KafkaError as error:
                if error.code not in _TOO_LARGE:
                    raise
                self._logger.info("Cannot downgrade consumer group %s: its record is too large.", hosted.group_id)
            else:
                return
        self.append(handle, hosted, records)

    def _fence(self, handle: GroupHandle, hosted: HostedConsumerGroup, member: ConsumerMember) -> None:
        self._remove(handle, hosted, member, remove(hosted.core, member, self._topics.facts))

    def _downgraded(self, core: ConsumerGroup, leaving: ConsumerMember) -> GroupMetadataValue | None:
        """The record of the classic group that is left; None where it stays what it is."""
        if not core.is_all_classic_but(leaving):
            return None
        try:
            if not self._settings.downgrades_groups:
                raise ConversionError("the online downgrade is disabled")
            if len(core.members) - 1 > self._settings.size_max:
                raise ConversionError("its size exceeds the maximum size of classic groups")
            return downgraded(core, leaving, self._topics, self._effects.now().time_ms)
        except (ConversionError, EncodeError) as error:
            self._logger.info("Cannot downgrade consumer group %s to classic group: %s.", core.group_id, error)
            return None

    def _make_classic(self, handle: GroupHandle, hosted: HostedConsumerGroup, value: GroupMetadataValue) -> None:
        """The group becomes a classic one, whose members are all to join again. Raises KafkaError."""
        group_id, now = hosted.group_id, self._effects.now()
        classic = Group(group_id, self._settings, self._logger, now)
        classic.offsets = hosted.offsets
        classic.restore(value)
        for member in classic.members:  # the record has the chosen protocol alone, which others may not offer
            said = hosted.core.members[member.member_id].classic
            if said is not None:
                classic.members.update(member, said.protocols, member.rebalance_timeout_ms, said.session_timeout_ms)
        tombstones = hosted.core.tombstones()
        replay_tombstones, done = self._replay_and_done(handle, hosted, tombstones)

        def replay(base_offset: int) -> None:
            replay_tombstones(base_offset)
            self._effects.stop_timers(handle)
            handle.group = classic

        records = [encoded(group_id, record) for record in tombstones]
        records.append((group_key(group_id), group_value(value, self._settings.value_versions.group)))
        handle.shard.append(records, now.time_ms, replay, done)
        self._logger.info("Downgraded group %s from consumer to classic: %d members.", group_id, len(value.members))
        expect_loaded_members(classic, now)
        resume_rebalance(classic, now)
        self._effects.perform(handle)

    # Records.

    def append(
        self,
        handle: GroupHandle,
        hosted: HostedConsumerGroup,
        records: Records,
        *,
        before: Sequence[tuple[bytes, bytes | None]] = (),
        replaces: bool = False,
    ) -> None:
        """Appends in one batch, and replays; `before` is ahead of the records where the group `replaces` another one.
        Raises KafkaError where the log refuses it, or the group is there no more: nothing has changed then.
        """
        if handle.group is not hosted and not replaces:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
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
            if handle.group is not hosted:  # a classic group has made place
                self._effects.stop_timers(handle)
                handle.group = hosted
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
                    self.timeouts.forget(handle, hosted, member_id)

    # The target assignment.

    def _assign(self, handle: GroupHandle, hosted: HostedConsumerGroup) -> None:
        """Makes the target assignment, unless that is under way. It begins in the next turn, so that all who come in
        this one share it.
        """
        now = self._host.loop.time()
        hosted.asked_at = now
        if not hosted.is_assigning:
            hosted.is_assigning = True
            quiet_ms = 0 if hosted.core.targets else self._settings.quiet_before_first_assignment_ms
            if quiet_ms:
                self._host.loop.call_later(quiet_ms / 1000, self._assign_when_quiet, handle, hosted, now)
            else:
                self._begin_assigning(handle, hosted)

    def _assign_when_quiet(self, handle: GroupHandle, hosted: HostedConsumerGroup, began_at: float) -> None:
        """Begins the first assignment of a group once nobody has joined for a moment, or it was waited for long enough:
        whoever is given all, since he came first, hears only with his next heartbeat that he is to give most of it up.
        """
        settings, now = self._settings, self._host.loop.time()
        ends_at = min(
            hosted.asked_at + settings.quiet_before_first_assignment_ms / 1000,
            began_at + settings.first_assignment_wait_ms_max / 1000,
        )
        if now < ends_at and handle.shard.is_active:
            self._host.loop.call_later(ends_at - now, self._assign_when_quiet, handle, hosted, began_at)
        else:
            self._begin_assigning(handle, hosted)

    def _begin_assigning(self, handle: GroupHandle, hosted: HostedConsumerGroup) -> None:
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
                self.append(handle, hosted, [Tombstone(RecordKind.TARGET, member_id) for member_id in strays])
            except KafkaError as error:
                self._logger.warning("[GroupId %s] Targets of former members stay: %s", hosted.group_id, error)


def _assignment(partitions: Partitions) -> ConsumerGroupHeartbeatResponse.Assignment:
    return ConsumerGroupHeartbeatResponse.Assignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in sorted(partitions.items())
        ]
    )
