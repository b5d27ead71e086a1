"""Groups as they are listed and described."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from barnabas.coordinators.consumer_group.hosted import HostedConsumerGroup
from barnabas.coordinators.consumer_group.member import NO_PARTITIONS, ConsumerMember, Partitions
from barnabas.coordinators.consumer_group.topics import GroupTopics
from barnabas.coordinators.group.effect_runner import GroupHandle, Groups
from barnabas.coordinators.group.group import Group
from barnabas.coordinators.group.states import GroupState
from barnabas.kernel.steps import Steps, each
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import ConsumerGroupDescribeResponse, DescribeGroupsResponse, ListGroupsResponse

_LISTED_PER_STEP: Final = 2_048


def listed_groups(
    groups: Groups, states: Collection[str], types: Collection[str]
) -> Steps[list[ListGroupsResponse.ListedGroup]]:
    """Those in one of the states and of one of the types, whatever their case; all where there is none."""
    wanted_states = {name.lower().strip() for name in states}
    wanted_types = {name.lower() for name in types}
    listed: list[ListGroupsResponse.ListedGroup] = []
    for position, (group_id, handle) in enumerate(list(groups.items())):
        if position % _LISTED_PER_STEP == _LISTED_PER_STEP - 1:
            yield
        if groups.get(group_id) is not handle:
            continue
        group = handle.group.listed()
        if (not wanted_types or group.group_type.lower() in wanted_types) and (
            not wanted_states or group.group_state.lower() in wanted_states
        ):
            listed.append(group)
    return listed


def described_group(group_id: str, handle: GroupHandle | None) -> DescribeGroupsResponse.DescribedGroup:
    """As DescribeGroups tells it, to which a group of the consumer protocol is Dead, too."""
    if handle is None or not isinstance(handle.group, Group):
        return DescribeGroupsResponse.DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
    return handle.group.described()


def described_consumer_group(
    group_id: str,
    handle: GroupHandle | None,
    default_assignor: str,
    topics: GroupTopics,
    on_known: Callable[[ErrorCode], None],
) -> Steps[ConsumerGroupDescribeResponse.DescribedGroup]:
    """The group as it is now. Calls `on_known(NONE)` once, perhaps before this ends, when that is committed, and with
    COORDINATOR_NOT_AVAILABLE where it was not in time.
    """
    if handle is None or not isinstance(handle.group, HostedConsumerGroup):
        on_known(ErrorCode.NONE)
        return ConsumerGroupDescribeResponse.DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    core = handle.group.core
    targets = dict(core.targets)
    described = ConsumerGroupDescribeResponse.DescribedGroup(
        group_id=group_id,
        group_state=core.state.value,
        group_epoch=core.epoch,
        assignment_epoch=core.assignment_epoch,
        assignor_name=core.preferred_assignor() or default_assignor,
    )
    members = list(core.members.values())
    handle.group.gate.when_known(lambda error: on_known(error and ErrorCode.COORDINATOR_NOT_AVAILABLE))
    described.members = yield from each(
        lambda member: _member(member, targets.get(member.member_id, NO_PARTITIONS), topics), members
    )
    return described


def _member(member: ConsumerMember, target: Partitions, topics: GroupTopics) -> ConsumerGroupDescribeResponse.Member:
    return ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed),
        subscribed_topic_regex=member.subscribed_regex,
        assignment=_assignment(member.assigned, topics),
        target_assignment=_assignment(target, topics),
    )


def _assignment(partitions: Partitions, topics: GroupTopics) -> ConsumerGroupDescribeResponse.Assignment:
    """Topics that exist no more are left out, as in Apache Kafka."""
    return ConsumerGroupDescribeResponse.Assignment(
        topic_partitions=[
            ConsumerGroupDescribeResponse.TopicPartitions(
                topic_id=topic_id, topic_name=name, partitions=sorted(numbers)
            )
            for topic_id, numbers in sorted(partitions.items())
            if (name := topics.name(topic_id)) is not None
        ]
    )
