"""Groups, what they have committed, and how far that is from the end: two or three requests to each broker, however
many groups there are.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.groups import GroupMemberDescription
from barnabas.client.offset_lookup import OffsetLookup
from barnabas.client.subscription_bytes import read_assignment
from barnabas.console.pipelines import pipeline_of
from barnabas.link.errors import RequestTimeoutError, UnsupportedVersionError
from barnabas.wire.errors import ErrorCode, KafkaError, raise_for_code
from barnabas.wire.messages import DescribeGroupsRequest, ListGroupsRequest, OffsetFetchRequest
from barnabas.wire.primitives import ProtocolError
from barnabas.wire.sentinels import LATEST_TIMESTAMP
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.cluster import BrokerNode
    from barnabas.client.connections import Lane

GROUPS_PER_BROKER_MAX: Final = 500
"""How many groups of one broker are described: those that somebody looks at, those of pipelines, then others."""
GROUPS_LISTED_MAX: Final = 20_000
"""How many more of one broker are known by name; still more are only counted."""
PARTITIONS_MAX: Final = 20_000
"""Of how many partitions the ends are asked, those that groups read first."""
BROKER_FAILURES: Final = (ConnectionError, RequestTimeoutError, UnsupportedVersionError, KafkaError, ProtocolError)
"""What one broker may do wrong while the others answer."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group; `committed` has its offsets."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator_id: int
    members: tuple[GroupMemberDescription, ...]
    committed: Mapping[TopicPartition, int]

    def lag(self, partition: TopicPartition, ends: Mapping[TopicPartition, int]) -> int | None:
        """How many offsets the group is behind; None where the end is not known."""
        end = ends.get(partition)
        return None if end is None else max(0, end - self.committed[partition])

    def lag_of_all(self, ends: Mapping[TopicPartition, int]) -> int | None:
        """The sum over the partitions whose ends are known; None where it has committed something and none is."""
        known = [lag for partition in self.committed if (lag := self.lag(partition, ends)) is not None]
        return sum(known) if known or not self.committed else None


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """What a broker says of a group that was not described; `state` is empty where it is too old to tell."""

    group_id: str
    state: str
    protocol_type: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class GroupsAndEnds:
    """What was answered; `ends` are high watermarks."""

    groups: Mapping[str, Group]
    ends: Mapping[TopicPartition, int]
    time_ms: int
    failed: Mapping[int, str] = field(default_factory=dict)
    """Brokers that did not tell of their groups, and why."""
    took_seconds: float = 0.0
    """The longest that a broker which answered worked for it, at most."""
    others: Mapping[str, ListedGroup] = field(default_factory=dict)
    """Groups beyond the bound, by name."""
    not_listed: int = 0
    """Groups beyond the bound of those too."""

    @property
    def not_described(self) -> int:
        """How many groups there are of which no more than that is known."""
        return len(self.others) + self.not_listed


async def groups_and_ends(
    client: Client, lane: Lane, partitions: Iterable[TopicPartition], looked_at: Collection[str] = ()
) -> GroupsAndEnds:
    """Asks every broker for its groups and what they have committed, then the leaders for the ends, of these partitions
    too. Ends are asked for last, so that no lag is negative because of it. Where there are too many groups, those that
    somebody looks at go before.
    """
    groups: dict[str, Group] = {}
    others: dict[str, ListedGroup] = {}
    failed: dict[int, str] = {}
    too_many = 0
    slowest = 0.0
    loop = client.host.loop

    async def ask(node: BrokerNode) -> None:
        nonlocal too_many, slowest
        began = loop.time()
        try:
            found, rest, more = await _groups_of(client, lane, node, looked_at)
        except BROKER_FAILURES as error:
            failed[node.node_id] = str(error) or type(error).__name__
            return
        slowest = max(slowest, loop.time() - began)
        too_many += more
        groups.update(found)
        others.update(rest)

    nodes = list(client.cluster.brokers.values())
    await asyncio.gather(*map(ask, nodes))
    read = {partition for group in groups.values() for partition in group.committed}
    wanted = list(dict.fromkeys([*sorted(read), *itertools.islice(partitions, PARTITIONS_MAX)]))[:PARTITIONS_MAX]
    wanted = [partition for partition in wanted if client.cluster.leader(partition) is not None]
    began = loop.time()
    answers = await OffsetLookup(client, lane).offsets(dict.fromkeys(wanted, LATEST_TIMESTAMP))
    ends = {partition: place.offset for partition, place in answers.found.items()}
    if not answers.failed:
        slowest += loop.time() - began
    now_ms = client.host.clock.time_ms()
    return GroupsAndEnds(
        dict(sorted(groups.items())),
        ends,
        now_ms,
        dict(sorted(failed.items())),
        slowest,
        {name: group for name, group in others.items() if name not in groups},
        too_many,
    )


# Inside.


async def _groups_of(
    client: Client, lane: Lane, node: BrokerNode, looked_at: Collection[str]
) -> tuple[dict[str, Group], dict[str, ListedGroup], int]:
    """The groups that a broker coordinates, others by name, and how many more there are."""
    response = await client.ask(node, lane, ListGroupsRequest())
    raise_for_code(response.error_code, f"groups of broker {node.node_id}")
    listed = {group.group_id: group for group in response.groups}
    ordered = sorted(listed, key=lambda name: (name not in looked_at, pipeline_of(name) is None, name))
    ids = ordered[:GROUPS_PER_BROKER_MAX]
    if not ids:
        return {}, {}, 0
    described = await client.ask(node, lane, DescribeGroupsRequest(groups=ids))
    committed = await _committed(client, lane, node, ids)
    found = {
        group.group_id: Group(
            group.group_id,
            group.group_state,
            group.protocol_type or listed[group.group_id].protocol_type,
            group.protocol_data,
            node.node_id,
            tuple(_member(member, group.protocol_type) for member in group.members),
            committed.get(group.group_id, {}),
        )
        for group in described.groups
        if group.error_code == ErrorCode.NONE and group.group_id in listed
    }
    rest = {
        name: ListedGroup(name, listed[name].group_state, listed[name].protocol_type, node.node_id)
        for name in ordered[len(ids) : len(ids) + GROUPS_LISTED_MAX]
    }
    return found, rest, len(listed) - len(ids) - len(rest)


async def _committed(
    client: Client, lane: Lane, node: BrokerNode, ids: list[str]
) -> dict[str, dict[TopicPartition, int]]:
    asked = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=None) for group_id in ids]
    response = await client.ask(node, lane, OffsetFetchRequest(groups=asked))
    return {
        group.group_id: {
            TopicPartition(topic.name, answer.partition_index): answer.committed_offset
            for topic in group.topics
            for answer in topic.partitions
            if answer.error_code == ErrorCode.NONE and answer.committed_offset >= 0
        }
        for group in response.groups
        if group.error_code == ErrorCode.NONE
    }


def _member(member: Any, protocol_type: str) -> GroupMemberDescription:
    assignment: tuple[TopicPartition, ...] = ()
    if protocol_type == "consumer":
        try:
            assignment = read_assignment(member.member_assignment)
        except (ProtocolError, ValueError):
            assignment = ()  # what a member was given is its group's own business
    return GroupMemberDescription(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, assignment
    )
