"""What an administrator asks for: topics, configurations, groups, offsets.

Each call repeats what may be repeated, at the controller or the coordinator where it has to be, within `timeout_ms`
(`api_timeout_ms` where not given), and raises ClientTimeoutError after it. Where a call is about several things, the
first error of one of them is raised as KafkaError, with its name in the detail; the others are done all the same.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from barnabas.client.cluster import Cluster
from barnabas.client.group_coordinator import GroupCoordinator, Membership
from barnabas.client.offset_lookup import OffsetLookup
from barnabas.client.reassignments import PartitionReassignment, alter_codes, alter_request, list_request, listed
from barnabas.client.records import OffsetAndMetadata, OffsetAndTimestamp
from barnabas.client.subscription_bytes import by_topic, read_assignment
from barnabas.wire.errors import ErrorCode, KafkaError, raise_for_code
from barnabas.wire.messages import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeLogDirsRequest,
    IncrementalAlterConfigsRequest,
    ListGroupsRequest,
    MetadataRequest,
    OffsetDeleteRequest,
)
from barnabas.wire.primitives import ZERO_UUID
from barnabas.wire.topics import TopicPartition

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.cluster import BrokerNode, TopicInfo

Result = TypeVar("Result")

_MISSING: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""What an administrator wants to hear at once, though a broker may only be late to know."""


class ResourceType(enum.IntEnum):
    """What has configurations; the value is that of the protocol."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class ConfigOperation(enum.IntEnum):
    """How a configuration changes (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created; -1 is the brokers' default. `assignment` has the replicas of each partition instead."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignment: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A place and a name that could set a configuration; `value` is None where it is secret or unset."""

    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One configuration of a resource; `source` is the protocol's number, `value` None where it is secret or unset."""

    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...] = ()
    """All places that could set it, the strongest first; only where it was asked for."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group that some broker coordinates."""

    group_id: str
    protocol_type: str
    state: str
    type: str
    """`classic`, or `consumer` (KIP-848); empty where brokers tell none."""
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class GroupMemberDescription:
    """A member and what it is assigned."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMemberDescription, ...]
    coordinator_id: int


class Admin:
    """Calls of an administrator; use it as a context, or `close` it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lane = client.connections.new_lane()
        self._lookup = OffsetLookup(client, self._lane)

    async def close(self) -> None:
        """Ends the connections."""
        await self._client.connections.close_lane(self._lane)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Topics.

    async def create_topics(
        self, topics: Iterable[NewTopic], timeout_ms: float | None = None, *, validate_only: bool = False
    ) -> dict[str, bytes]:
        """Creates topics; returns their ids. Raises TOPIC_ALREADY_EXISTS also for one that an attempt of this very call
        has created, when the answer to that was lost.
        """
        wanted = list(topics)

        def build(broker_ms: int) -> CreateTopicsRequest:
            return CreateTopicsRequest(
                topics=[_new_topic(topic) for topic in wanted], timeout_ms=broker_ms, validate_only=validate_only
            )

        response = await self._at_controller("creating topics", build, _topic_codes, timeout_ms)
        return {topic.name: bytes(topic.topic_id) for topic in response.topics}

    async def delete_topics(self, names: Iterable[str], timeout_ms: float | None = None) -> None:
        """Deletes topics; returns when the controller has begun to, or has done, as its answer says."""
        wanted = list(names)

        def build(broker_ms: int) -> DeleteTopicsRequest:
            states = [DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in wanted]
            return DeleteTopicsRequest(topics=states, topic_names=wanted, timeout_ms=broker_ms)

        def codes(response: Any) -> list[tuple[str, int, str | None]]:
            return [(topic.name or "", topic.error_code, topic.error_message) for topic in response.responses]

        await self._at_controller("deleting topics", build, codes, timeout_ms)

    async def create_partitions(
        self, counts: Mapping[str, int], timeout_ms: float | None = None, *, validate_only: bool = False
    ) -> None:
        """Adds partitions, so that each topic has so many."""

        def build(broker_ms: int) -> CreatePartitionsRequest:
            return CreatePartitionsRequest(
                topics=[
                    CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
                    for name, count in counts.items()
                ],
                timeout_ms=broker_ms,
                validate_only=validate_only,
            )

        def codes(response: Any) -> list[tuple[str, int, str | None]]:
            return [(topic.name, topic.error_code, topic.error_message) for topic in response.results]

        await self._at_controller("creating partitions", build, codes, timeout_ms)

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], timeout_ms: float | None = None
    ) -> None:
        """Begins to move partitions to these brokers, the preferred leader first, or with None ends that. Raises
        NO_REASSIGNMENT_IN_PROGRESS also where an attempt of this very call has ended it and the answer was lost.
        """
        wanted = dict(targets)
        await self._at_controller(
            "reassigning partitions", lambda broker_ms: alter_request(wanted, broker_ms), alter_codes, timeout_ms
        )

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, timeout_ms: float | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """Those of the partitions, or of all, that are being moved."""
        wanted = None if partitions is None else list(partitions)

        def codes(response: Any) -> list[tuple[str, int, str | None]]:
            return [("the list", response.error_code, response.error_message)]

        return listed(
            await self._at_controller(
                "listing reassignments", lambda broker_ms: list_request(wanted, broker_ms), codes, timeout_ms
            )
        )

    async def describe_topics(
        self, names: Iterable[str] | None = None, timeout_ms: float | None = None
    ) -> dict[str, TopicInfo]:
        """What some broker knows of topics, or of all with None; UNKNOWN_TOPIC_OR_PARTITION for a missing one."""
        wanted = None if names is None else list(names)

        async def ask(node: BrokerNode, attempt_ms: float) -> dict[str, TopicInfo]:
            topics = None if wanted is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in wanted]
            request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            response = await self._client.ask(node, self._lane, request, attempt_ms)
            for topic in response.topics:
                raise_for_code(topic.error_code, f"topic {topic.name}")
            return dict(Cluster().updated(response).topics)

        return await self._somewhere("describing topics", ask, timeout_ms)

    async def list_topics(self, timeout_ms: float | None = None) -> tuple[str, ...]:
        """The names of all topics."""
        return tuple(sorted(await self.describe_topics(None, timeout_ms)))

    async def describe_cluster(self, timeout_ms: float | None = None) -> tuple[str, int, tuple[int, ...]]:
        """The cluster's id, the controller's id (-1: none now), and the ids of the brokers that are alive."""

        async def ask(node: BrokerNode, attempt_ms: float) -> tuple[str, int, tuple[int, ...]]:
            response = await self._client.ask(node, self._lane, DescribeClusterRequest(), attempt_ms)
            raise_for_code(response.error_code, response.error_message)
            ids = tuple(sorted(broker.broker_id for broker in response.brokers))
            return response.cluster_id, response.controller_id, ids

        return await self._somewhere("describing the cluster", ask, timeout_ms)

    # Configurations.

    async def describe_configs(
        self,
        resource_type: ResourceType,
        name: str,
        timeout_ms: float | None = None,
        *,
        with_synonyms: bool = False,
    ) -> dict[str, ConfigEntry]:
        """All configurations of a topic or a broker, by name; "" as broker is what is set for all of them."""
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=int(resource_type), resource_name=name, configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=with_synonyms)

        async def ask(node: BrokerNode, attempt_ms: float) -> dict[str, ConfigEntry]:
            response = await self._client.ask(node, self._lane, request, attempt_ms)
            result = response.results[0]
            raise_for_code(result.error_code, _told(resource_type, name, result))
            return {
                entry.name: ConfigEntry(
                    entry.name,
                    entry.value,
                    entry.config_source,
                    entry.read_only,
                    entry.is_sensitive,
                    tuple(ConfigSynonym(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms),
                )
                for entry in result.configs
            }

        return await self._at_resource(resource_type, name, "describing configs", ask, timeout_ms)

    async def alter_configs(
        self,
        resource_type: ResourceType,
        name: str,
        changes: Iterable[tuple[str, ConfigOperation, str | None]],
        timeout_ms: float | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Changes single configurations (key, operation, value) of a topic or a broker; "" as broker is all of them."""
        configs = [
            IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=int(operation), value=value)
            for key, operation, value in changes
        ]
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=int(resource_type), resource_name=name, configs=configs
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        alter = self._alter_with(request, resource_type, name)
        await self._at_resource(resource_type, name, "altering configs", alter, timeout_ms, is_change=True)

    async def replace_configs(
        self, resource_type: ResourceType, name: str, configs: Mapping[str, str], timeout_ms: float | None = None
    ) -> None:
        """Gives a topic or a broker exactly these configurations of its own (the older AlterConfigs)."""
        resource = AlterConfigsRequest.AlterConfigsResource(
            resource_type=int(resource_type),
            resource_name=name,
            configs=[AlterConfigsRequest.AlterableConfig(name=key, value=value) for key, value in configs.items()],
        )
        request = AlterConfigsRequest(resources=[resource], validate_only=False)
        alter = self._alter_with(request, resource_type, name)
        await self._at_resource(resource_type, name, "replacing configs", alter, timeout_ms, is_change=True)

    # Records and offsets.

    async def list_offsets(
        self, timestamps_ms: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """For each partition the first record that is not older; -1 is the end, -2 the start, -3 the newest time."""
        return await self._lookup.offsets_surely(timestamps_ms, timeout_ms)

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """Deletes the records below each offset (-1: below the high watermark); returns the new low watermarks."""
        self._client.metadata.use(*{partition.topic for partition in offsets})
        left = dict(offsets)
        found: dict[TopicPartition, int] = {}

        async def attempt(attempt_ms: float) -> dict[TopicPartition, int]:
            for partition in list(left):
                found[partition] = await self._delete_records_of(partition, left[partition], attempt_ms)
                del left[partition]
            return found

        return await self._client.repeat("deleting records", attempt, timeout_ms)

    async def describe_log_dirs(self, node_id: int, timeout_ms: float | None = None) -> Any:
        """The log directories of a broker: the results of DescribeLogDirs as they are."""

        async def attempt(attempt_ms: float) -> Any:
            node = self._client.node(node_id)
            response = await self._client.ask(node, self._lane, DescribeLogDirsRequest(topics=None), attempt_ms)
            raise_for_code(response.error_code, "DescribeLogDirs")
            return response.results

        return await self._client.repeat("describing log directories", attempt, timeout_ms)

    # Groups.

    async def list_groups(
        self, states: Iterable[str] = (), timeout_ms: float | None = None
    ) -> tuple[GroupListing, ...]:
        """All groups of all brokers, or those in certain states."""
        request = ListGroupsRequest(states_filter=list(states))

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

        async def ask(coordinator: GroupCoordinator, attempt_ms: float) -> GroupDescription:
            response = await coordinator.ask(DescribeGroupsRequest(groups=[group_id]), attempt_ms)
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
            response = await coordinator.ask(DeleteGroupsRequest(groups_names=[group_id]), attempt_ms)
            coordinator.check(response.results[0].error_code, "deletion")

        await self._at_coordinator(group_id, "deleting a group", ask, timeout_ms)

    async def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, for these partitions or for all."""
        return await GroupCoordinator(self._client, self._lane, group_id).committed(partitions, timeout_ms)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: float | None = None
    ) -> None:
        """Commits offsets for a group that has no members."""
        await GroupCoordinator(self._client, self._lane, group_id).commit(offsets, Membership(), timeout_ms)

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> None:
        """Deletes what a group has committed for topics that it does not subscribe to."""
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=number) for number in numbers
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

    # Inside: where to ask, and how often.

    async def _somewhere(
        self,
        what: str,
        ask: Callable[[BrokerNode, float], Coroutine[Any, Any, Result]],
        timeout_ms: float | None,
        *,
        is_change: bool = False,
    ) -> Result:
        """Asks any broker, and soon another beside one that is silent; changes go to one at a time, since a broker that
        was stopped would make them again when it goes on.
        """

        async def attempt(attempt_ms: float) -> Result:
            if is_change:
                return await ask(self._client.any_nodes()[0], attempt_ms)
            return await self._client.ask_any(lambda node: ask(node, attempt_ms))

        return await self._client.repeat(what, attempt, timeout_ms, final=_MISSING)

    async def _at_controller(
        self,
        what: str,
        build: Callable[[int], Any],
        codes: Callable[[Any], list[tuple[str, int, str | None]]],
        timeout_ms: float | None,
    ) -> Any:
        async def attempt(attempt_ms: float) -> Any:
            node = self._client.node(self._client.cluster.controller_id)
            response = await self._client.ask(node, self._lane, build(_broker_ms(attempt_ms)), attempt_ms)
            for name, code, message in codes(response):
                raise_for_code(code, f"{name}: {message or ErrorCode.for_code(code).message}")
            return response

        return await self._client.repeat(what, attempt, timeout_ms, final=_MISSING)

    async def _at_coordinator(
        self,
        group_id: str,
        what: str,
        ask: Callable[[GroupCoordinator, float], Awaitable[Result]],
        timeout_ms: float | None,
    ) -> Result:
        coordinator = GroupCoordinator(self._client, self._lane, group_id)
        return await self._client.repeat(what, lambda attempt_ms: ask(coordinator, attempt_ms), timeout_ms)

    async def _at_resource(
        self,
        resource_type: ResourceType,
        name: str,
        what: str,
        ask: Callable[[BrokerNode, float], Coroutine[Any, Any, Result]],
        timeout_ms: float | None,
        *,
        is_change: bool = False,
    ) -> Result:
        """Configurations of one broker are its own to tell and change; all others any broker's."""
        if resource_type is ResourceType.TOPIC or not name:
            return await self._somewhere(what, ask, timeout_ms, is_change=is_change)
        if not name.isdecimal():
            raise ValueError(f"{name!r} is not a broker id: give a number")
        return await self._client.repeat(
            what, lambda attempt_ms: ask(self._client.node(int(name)), attempt_ms), timeout_ms
        )

    def _alter_with(
        self, request: Any, resource_type: ResourceType, name: str
    ) -> Callable[[BrokerNode, float], Coroutine[Any, Any, None]]:
        async def ask(node: BrokerNode, attempt_ms: float) -> None:
            response = await self._client.ask(node, self._lane, request, attempt_ms)
            for result in response.responses:
                raise_for_code(result.error_code, _told(resource_type, name, result))

        return ask

    async def _delete_records_of(self, partition: TopicPartition, offset: int, attempt_ms: float) -> int:
        leader = self._client.cluster.leader(partition)
        if leader is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"the leader of {partition} is not known now")
        of_partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
        topic = DeleteRecordsRequest.DeleteRecordsTopic(name=partition.topic, partitions=[of_partition])
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=_broker_ms(attempt_ms))
        response = await self._client.ask(leader[0], self._lane, request, attempt_ms)
        answer = response.topics[0].partitions[0]
        raise_for_code(answer.error_code, f"deleting records of {partition}")
        return int(answer.low_watermark)


def _told(resource_type: ResourceType, name: str, result: Any) -> str:
    """What a broker says of a resource in words, or only which it is."""
    match resource_type:
        case ResourceType.BROKER:
            subject = f"broker {name}" if name else "all brokers"
        case ResourceType.BROKER_LOGGER:
            subject = f"loggers of broker {name}"
        case _:
            subject = name
    return f"{subject}: {result.error_message}" if result.error_message else subject


def _broker_ms(attempt_ms: float) -> int:
    """How long a broker may work at what is given up after `attempt_ms`: it answers before."""
    return max(1, int(attempt_ms * 0.9))


def _new_topic(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    assignments = [
        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=number, broker_ids=list(replicas))
        for number, replicas in (topic.assignment or {}).items()
    ]
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=assignments,
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
        ],
    )


def _topic_codes(response: Any) -> list[tuple[str, int, str | None]]:
    return [(topic.name, topic.error_code, topic.error_message) for topic in response.topics]
