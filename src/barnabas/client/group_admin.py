"""What an administrator asks for about groups; part of `Admin`.

Few commands ask about groups, so what only that needs is loaded when somebody does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from barnabas.client.admin_calls import AdminCalls
from barnabas.wire import messages
from barnabas.wire.errors import raise_for_code

if TYPE_CHECKING:
    from barnabas.client.group_coordinator import GroupCoordinator
    from barnabas.client.groups import GroupDescription, GroupListing
    from barnabas.client.records import OffsetAndMetadata
    from barnabas.wire.topics import TopicPartition


class GroupAdmin(AdminCalls):
    """Calls about groups; users make an `Admin`."""

    async def list_groups(
        self, states: Iterable[str] = (), timeout_ms: float | None = None
    ) -> tuple[GroupListing, ...]:
        """All groups of all brokers, or those in certain states."""
        from barnabas.client.groups import GroupListing

        request = messages.ListGroupsRequest(states_filter=list(states))

        async def attempt(attempt_ms: float) -> tuple[GroupListing, ...]:
            found: dict[str, GroupListing] = {}
            for node in list(self._client.cluster.brokers.values()):
                response = await self._client.ask(node, self._lane, request, attempt_ms)
                raise_for_code(response.error_code, f"groups of broker {node.node_id}")
                for group in response.groups:
                    found[group.group_id] = GroupListing(
                        group.group_id, group.protocol_type, group.group_state, group.group_type, node.node_id
                    )
            return tuple(found[group_id] for group_id in sorted(found))

        return await self._client.repeat("listing groups", attempt, timeout_ms)

    async def describe_group(self, group_id: str, timeout_ms: float | None = None) -> GroupDescription:
        """A group and its members; one that does not exist is in state Dead."""
        from barnabas.client.groups import GroupDescription, GroupMemberDescription
        from barnabas.client.subscription_bytes import read_assignment

        async def ask(coordinator: GroupCoordinator, attempt_ms: float) -> GroupDescription:
            response = await coordinator.ask(messages.DescribeGroupsRequest(groups=[group_id]), attempt_ms)
            group = response.groups[0]
            coordinator.check(group.error_code, "description")
            members = tuple(
                GroupMemberDescription(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    read_assignment(member.member_assignment) if group.protocol_type == "consumer" else (),
                )
                for member in group.members
            )
            return GroupDescription(
                group.group_id,
                group.group_state,
                group.protocol_type,
                group.protocol_data,
                members,
                coordinator.node_id,
            )

        return await self._at_coordinator(group_id, "describing a group", ask, timeout_ms)

    async def delete_group(self, group_id: str, timeout_ms: float | None = None) -> None:
        """Deletes a group that has no members, and its offsets."""

        async def ask(coordinator: GroupCoordinator, attempt_ms: float) -> None:
            response = await coordinator.ask(messages.DeleteGroupsRequest(groups_names=[group_id]), attempt_ms)
            coordinator.check(response.results[0].error_code, "deletion")

        await self._at_coordinator(group_id, "deleting a group", ask, timeout_ms)

    async def list_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        timeout_ms: float | None = None,
        *,
        require_stable: bool = False,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, for these partitions or for all; with `require_stable` once no transaction that
        commits offsets of the group is open.
        """
        from barnabas.client.group_coordinator import GroupCoordinator

        coordinator = GroupCoordinator(self._client, self._lane, group_id)
        return await coordinator.committed(partitions, timeout_ms, require_stable=require_stable)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: float | None = None
    ) -> None:
        """Commits offsets for a group that has no members."""
        from barnabas.client.group_coordinator import GroupCoordinator, Membership

        await GroupCoordinator(self._client, self._lane, group_id).commit(offsets, Membership(), timeout_ms)

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> None:
        """Deletes what a group has committed for topics that it does not subscribe to."""
        from barnabas.client.subscription_bytes import by_topic

        request = messages.OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                messages.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[
                        messages.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=number)
                        for number in numbers
                    ],
                )
                for topic, numbers in by_topic(partitions).items()
            ],
        )

        async def ask(coordinator: GroupCoordinator, attempt_ms: float) -> None:
            response = await coordinator.ask(request, attempt_ms)
            coordinator.check(response.error_code, "deletion of offsets")
            for topic in response.topics:
                for answer in topic.partitions:
                    coordinator.check(answer.error_code, f"deletion of the offset of {topic.name}")

        await self._at_coordinator(group_id, "deleting offsets of a group", ask, timeout_ms)
