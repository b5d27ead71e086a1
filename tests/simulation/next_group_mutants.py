"""Faults put into groups of the consumer protocol, one at a time: the plan `next-groups` has to find each."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from barnabas.coordinators.consumer_group import conversion
from barnabas.coordinators.consumer_group.classic_requests import ClassicRequests
from barnabas.coordinators.consumer_group.committed import CommitGate, OnKnown
from barnabas.coordinators.consumer_group.group import ConsumerGroup
from barnabas.coordinators.consumer_group.hosted import HostedConsumerGroup
from barnabas.coordinators.consumer_group.timeouts import MemberTimeouts
from barnabas.testing.user_plans import NEXT_GROUPS
from barnabas.wire.errors import ErrorCode
from tests.simulation.mutants import Mutant


def give_what_others_own(patch: pytest.MonkeyPatch) -> None:
    """A member is given its target whoever has not given it up."""

    def own_too(self: ConsumerGroup, _before: Any, after: Any) -> None:
        for partitions in (after.assigned, after.revoking):
            for topic_id, numbers in partitions.items():
                self._owners.setdefault(topic_id, {}).update(dict.fromkeys(numbers, after.member_id))

    patch.setattr(ConsumerGroup, "is_owned", lambda _self, _topic_id, _number: False)
    patch.setattr(ConsumerGroup, "_own", own_too)


def answer_before_replication(patch: pytest.MonkeyPatch) -> None:
    """A member is answered as soon as the coordinator's own log has what it is told."""

    def when_known(_self: CommitGate, on_known: OnKnown) -> None:
        on_known(ErrorCode.NONE)

    patch.setattr(CommitGate, "when_known", when_known)


def take_commits_of_any_epoch(patch: pytest.MonkeyPatch) -> None:
    """Offsets are taken from whoever says that he is or was a member."""
    patch.setattr(HostedConsumerGroup, "accept_commit", lambda _self, *_said, **_how: ErrorCode.NONE)


def expect_no_loaded_members(patch: pytest.MonkeyPatch) -> None:
    """A new coordinator waits for ever for members that vanished under the one before."""
    patch.setattr(MemberTimeouts, "expect_loaded", lambda _self, _handle, _hosted: None)


def forget_owners_in_an_upgrade(patch: pytest.MonkeyPatch) -> None:
    """The members of a classic group own nothing when it has become a consumer group."""
    patch.setattr(conversion, "_owned", lambda group, *_: {member.member_id: {} for member in group.members})


def tell_classic_members_their_target(patch: pytest.MonkeyPatch) -> None:
    """A SyncGroup in a consumer group is told what the member is to own, whoever has not given it up."""
    still_present = ClassicRequests._still_present

    def to_own(self: ClassicRequests, handle: Any, hosted: HostedConsumerGroup, before: Any, error: Any) -> Any:
        member = still_present(self, handle, hosted, before, error)
        return dataclasses.replace(member, assigned=hosted.core.target(member.member_id))

    patch.setattr(ClassicRequests, "_still_present", to_own)


NEXT_GROUP_MUTANTS = (
    Mutant("partitions of others given", NEXT_GROUPS, give_what_others_own),
    Mutant("members told before replication", NEXT_GROUPS, answer_before_replication),
    Mutant("loaded members not expected", NEXT_GROUPS, expect_no_loaded_members),
    Mutant("commits of any epoch", NEXT_GROUPS, take_commits_of_any_epoch),
    Mutant("owners forgotten in an upgrade", NEXT_GROUPS, forget_owners_in_an_upgrade),
    Mutant("classic members told their target", NEXT_GROUPS, tell_classic_members_their_target),
)
