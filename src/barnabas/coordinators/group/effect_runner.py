"""A group in its shard, and the shell around its state machine: does what the group asks for, and brings it the
outcomes.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Final

from barnabas.coordinators.consumer_group.hosted import HostedConsumerGroup
from barnabas.coordinators.group import membership, rebalance, syncing
from barnabas.coordinators.group.background import BackgroundSteps
from barnabas.coordinators.group.effects import (
    Now,
    Respond,
    StartTimer,
    StopTimer,
    Stored,
    StoreGroup,
    TimerKey,
    TimerKind,
)
from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.records import ValueVersions, group_key, group_value
from barnabas.coordinators.shard import APPEND_ERRORS, Shard
from barnabas.kernel.host import Host
from barnabas.kernel.steps import STEP_ELEMENTS, Steps
from barnabas.kernel.timers import Timer, Timers
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.primitives import EncodeError

AnyGroup = Group | HostedConsumerGroup
Groups = dict[str, "GroupHandle"]
"""The content of a shard."""

_OF_MEMBERS: Final = frozenset({TimerKind.SESSION, TimerKind.PENDING})
_STORE_ERRORS: Final = {
    **APPEND_ERRORS,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What members are told when the record of their group could not be appended; other errors as they are."""


class GroupHandle:
    """A group, where its records go, and the timers that run for it."""

    __slots__ = ("group", "shard", "timers")

    def __init__(self, group: AnyGroup, shard: Shard[Groups]) -> None:
        self.group = group
        """One may make place for one of the other kind, with the same offsets."""
        self.shard = shard
        self.timers: dict[TimerKey, Timer] = {}


class GroupEffectRunner:
    """Performs the effects of groups, in their order."""

    def __init__(
        self,
        host: Host,
        timers: Timers,
        versions: ValueVersions,
        logger: logging.Logger,
        on_stored: Callable[[Stored], None],
        background: BackgroundSteps,
    ) -> None:
        """`on_stored` is told of every record of a group that is committed."""
        self._loop = host.loop
        self._clock = host.clock
        self._timers = timers
        self._versions = versions
        self._logger = logger
        self._on_stored = on_stored
        self._background = background
        self.heartbeats_awaited = 0
        """Timers of members that run, in all groups."""
        self.rebalances_awaited = 0
        """Timers of groups that run."""

    def now(self) -> Now:
        return Now(self._loop.time(), self._clock.time_ms())

    def perform(self, handle: GroupHandle) -> None:
        """Does what the last input of the group asks for. Very many answers leave a piece at a time, as they were made:
        to a member that gets one of a generation which is over it is as if the network had taken long.
        """
        group = handle.group
        if isinstance(group, Group) and group.effects:
            self._perform(handle, group)

    def retire(self, handle: GroupHandle, group: Group) -> None:
        """The classic group has made place for a consumer group, of which its members are to be members: what is parked
        in it is told to join again. Its timers are stopped already.
        """
        membership.unload(group, self.now(), ErrorCode.REBALANCE_IN_PROGRESS)
        self._perform(handle, group)

    def _perform(self, handle: GroupHandle, group: Group) -> None:
        effects = group.take_effects()
        answers: list[Respond] = []
        has_many = len(effects) > STEP_ELEMENTS
        for effect in effects:
            if isinstance(effect, Respond):
                if has_many:
                    answers.append(effect)
                else:
                    effect.reply(effect.response)
            elif isinstance(effect, StartTimer):
                self.start_timer(handle, effect.key, effect.delay_ms, self._rang)
            elif isinstance(effect, StopTimer):
                self.stop_timer(handle, effect.key)
            else:
                self._store(handle, group, effect)
        if answers:
            self._background.run(_answered(answers), "answer-members")

    def unload(self, handle: GroupHandle) -> None:
        """The group goes: answers what is parked, stops its timers."""
        if isinstance(handle.group, Group):
            membership.unload(handle.group, self.now())
            self.perform(handle)
        self.stop_timers(handle)

    def stop_timers(self, handle: GroupHandle) -> None:
        for key, timer in handle.timers.items():
            timer.cancel()
            self._count_timer(key, -1)
        handle.timers.clear()

    def start_timer(
        self, handle: GroupHandle, key: TimerKey, delay_ms: float, rang: Callable[[GroupHandle, TimerKey], None]
    ) -> None:
        """Instead of one with that key; `rang(handle, key)` is called unless the shard has resigned then."""
        self.stop_timer(handle, key)
        handle.timers[key] = self._timers.call_after(delay_ms, self._ring, handle, key, rang)
        self._count_timer(key, 1)

    def _ring(self, handle: GroupHandle, key: TimerKey, rang: Callable[[GroupHandle, TimerKey], None]) -> None:
        self.stop_timer(handle, key)
        if handle.shard.is_active:  # otherwise members are sent to another broker, and must not be told of this one's
            rang(handle, key)

    def stop_timer(self, handle: GroupHandle, key: TimerKey) -> None:
        timer = handle.timers.pop(key, None)
        if timer is not None:
            timer.cancel()
            self._count_timer(key, -1)

    def _count_timer(self, key: TimerKey, step: int) -> None:
        if key.kind in _OF_MEMBERS:
            self.heartbeats_awaited += step
        else:
            self.rebalances_awaited += step

    def _rang(self, handle: GroupHandle, key: TimerKey) -> None:
        now, group = self.now(), handle.group
        if not isinstance(group, Group):
            return
        if key.kind is TimerKind.SESSION:
            membership.session_timer_expired(group, now, key.member_id)
        elif key.kind is TimerKind.PENDING:
            membership.pending_timer_expired(group, now, key.member_id)
        elif key.kind is TimerKind.JOIN:
            rebalance.join_timer_expired(group, now)
        else:
            rebalance.sync_timer_expired(group, now)
        self.perform(handle)

    def _store(self, handle: GroupHandle, group: Group, effect: StoreGroup) -> None:
        stored = effect.stored

        def replay(_base_offset: int) -> None:
            group.replay(effect.value)
            syncing.replayed(group, self.now(), stored)

        try:
            record = (group_key(group.group_id), group_value(effect.value, self._versions.group))
            handle.shard.append(
                [record], self._clock.time_ms(), replay, functools.partial(self._stored, handle, group, stored)
            )
        except EncodeError as error:  # texts that a request may have and a record may not
            self._logger.warning("The record of group %s cannot be written: %s", group.group_id, error)
            syncing.refused(group, self.now(), stored, ErrorCode.UNKNOWN_SERVER_ERROR)
        except KafkaError as error:
            self._logger.info("The record of group %s was not committed: %s", group.group_id, error.code.name)
            syncing.refused(group, self.now(), stored, _STORE_ERRORS.get(error.code, error.code))
        self.perform(handle)

    def _stored(self, handle: GroupHandle, group: Group, stored: Stored, error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            self._on_stored(stored)
        else:
            self._logger.info("The record of group %s was not committed: %s", group.group_id, error.name)
        syncing.stored(group, self.now(), stored, _STORE_ERRORS.get(error, error))
        self.perform(handle)


def _answered(answers: list[Respond]) -> Steps[None]:
    """Calls every reply, the first one first; what is answered is given back."""
    answers.reverse()
    while answers:
        for _ in range(min(len(answers), STEP_ELEMENTS)):
            answer = answers.pop()
            answer.reply(answer.response)
        if answers:
            yield
