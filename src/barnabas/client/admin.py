"""What an administrator asks for: topics, configurations, groups, offsets.

Each call repeats what may be repeated, at the controller or the coordinator where it has to be, within `timeout_ms`
(`api_timeout_ms` where not given), and raises ClientTimeoutError after it. Where a call is about several things, the
first error of one of them is raised as KafkaError, with its name in the detail; the others are done all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from barnabas.client.admin_calls import broker_ms
from barnabas.client.config_admin import ConfigAdmin, ConfigOperation, ResourceType
from barnabas.client.group_admin import GroupAdmin
from barnabas.client.isolation import IsolationLevel
from barnabas.client.quota_admin import QuotaAdmin
from barnabas.client.topic_queries import TopicQueries
from barnabas.kernel.later import attributes_later
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode, KafkaError, raise_for_code
from barnabas.wire.primitives import ZERO_UUID
from barnabas.wire.topics import ElectionType, TopicPartition

if TYPE_CHECKING:
    from barnabas.client.config_entries import ConfigEntry, ConfigSynonym
    from barnabas.client.groups import GroupDescription, GroupListing, GroupMemberDescription
    from barnabas.client.new_topics import NewTopic
    from barnabas.client.quotas_of_clients import ClientQuotas
    from barnabas.client.reassignments import PartitionReassignment
    from barnabas.client.records import OffsetAndTimestamp
else:
    # What calls are given and return is loaded with the first of them: most commands make one or two kinds of calls.
    __getattr__ = attributes_later(
        {
            "barnabas.client.config_entries": ("ConfigEntry", "ConfigSynonym"),
            "barnabas.client.groups": ("GroupDescription", "GroupListing", "GroupMemberDescription"),
            "barnabas.client.new_topics": ("NewTopic",),
            "barnabas.client.quotas_of_clients": ("ClientQuotas",),
        },
        globals(),
    )

__all__ = (
    "Admin",
    "ClientQuotas",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigSynonym",
    "GroupDescription",
    "GroupListing",
    "GroupMemberDescription",
    "NewTopic",
    "ResourceType",
)


class Admin(TopicQueries, ConfigAdmin, GroupAdmin, QuotaAdmin):
    """Calls of an administrator, with those about configurations and groups; use it as a context, or `close` it."""

    # Topics.

    async def create_topics(
        self, topics: Iterable[NewTopic], timeout_ms: float | None = None, *, validate_only: bool = False
    ) -> dict[str, bytes]:
        """Creates topics; returns their ids. Those that were refused for a while, by a quota for instance, are tried
        again alone. Raises TOPIC_ALREADY_EXISTS also for one that an attempt of this very call has created, when the
        answer to that was lost.
        """
        wanted = list(topics)
        made: dict[str, bytes] = {}

        def build(broker_ms: int) -> messages.CreateTopicsRequest:
            left = [_new_topic(topic) for topic in wanted if topic.name not in made]
            return messages.CreateTopicsRequest(topics=left, timeout_ms=broker_ms, validate_only=validate_only)

        def codes(response: Any) -> list[tuple[str, int, str | None]]:
            made.update({topic.name: bytes(topic.topic_id) for topic in response.topics if not topic.error_code})
            return [(topic.name, topic.error_code, topic.error_message) for topic in response.topics]

        await self._at_controller("creating topics", build, codes, timeout_ms)
        return made

    async def delete_topics(self, names: Iterable[str], timeout_ms: float | None = None) -> None:
        """Deletes topics; returns when the controller has begun to, or has done, as its answer says."""
        wanted = list(names)
        done: set[str] = set()

        def build(broker_ms: int) -> messages.DeleteTopicsRequest:
            left = [name for name in wanted if name not in done]
            states = [messages.DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in left]
            return messages.DeleteTopicsRequest(topics=states, topic_names=left, timeout_ms=broker_ms)

        def codes(response: Any) -> list[tuple[str, int, str | None]]:
            done.update(topic.name for topic in response.responses if topic.name and not topic.error_code)
            return [(topic.name or "", topic.error_code, topic.error_message) for topic in response.responses]

        await self._at_controller("deleting topics", build, codes, timeout_ms)

    async def create_partitions(
        self, counts: Mapping[str, int], timeout_ms: float | None = None, *, validate_only: bool = False
    ) -> None:
        """Adds partitions until each topic has the given number."""
        done: set[str] = set()

        def build(broker_ms: int) -> messages.CreatePartitionsRequest:
            return messages.CreatePartitionsRequest(
                topics=[
                    messages.CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
                    for name, count in counts.items()
                    if name not in done
                ],
                timeout_ms=broker_ms,
                validate_only=validate_only,
            )

        def codes(response: Any) -> list[tuple[str, int, str | None]]:
            done.update(topic.name for topic in response.results if not topic.error_code)
            return [(topic.name, topic.error_code, topic.error_message) for topic in response.results]

        await self._at_controller("creating partitions", build, codes, timeout_ms)

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], timeout_ms: float | None = None
    ) -> None:
        """Begins to move partitions to these brokers, the preferred leader first; None ends a move. Raises
        NO_REASSIGNMENT_IN_PROGRESS also if an earlier attempt of this call has ended it and the answer was lost.
        """
        from barnabas.client.reassignments import alter_codes, alter_request

        wanted = dict(targets)
        await self._at_controller(
            "reassigning partitions", lambda broker_ms: alter_request(wanted, broker_ms), alter_codes, timeout_ms
        )

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, timeout_ms: float | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The partitions that are being moved: of those given, or of all with None."""
        from barnabas.client.reassignments import list_request, listed

        wanted = None if partitions is None else list(partitions)

        def codes(response: Any) -> list[tuple[str, int, str | None]]:
            return [("the list", response.error_code, response.error_message)]

        return listed(
            await self._at_controller(
                "listing reassignments", lambda broker_ms: list_request(wanted, broker_ms), codes, timeout_ms
            )
        )

    async def elect_leaders(
        self,
        election_type: ElectionType,
        partitions: Iterable[TopicPartition] | None = None,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elects leaders. Returns None for a partition that has another leader now, else why not, such as
        ELECTION_NOT_NEEDED. For all partitions (None) it leaves out those that had their leader before.
        """
        from barnabas.client.elections import elect_codes, elect_request, elected

        wanted = None if partitions is None else list(dict.fromkeys(partitions))

        def build(broker_ms: int) -> Any:
            return elect_request(wanted, election_type, broker_ms)

        return elected(await self._at_controller("electing leaders", build, elect_codes, timeout_ms))

    # Records and offsets.

    async def list_offsets(
        self,
        timestamps_ms: Mapping[TopicPartition, int],
        timeout_ms: float | None = None,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """For each partition the first record that is not older; -1 is the end, -2 the start, -3 the newest time. The
        end of committed records is the first one of a transaction that is open.
        """
        from barnabas.client.offset_lookup import OffsetLookup

        return await OffsetLookup(self._client, self._lane, isolation).offsets_with_retry(timestamps_ms, timeout_ms)

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """Deletes the records below each offset (-1: below the high watermark); returns the new low watermarks."""
        left = dict(offsets)
        found: dict[TopicPartition, int] = {}

        async def attempt(attempt_ms: float) -> dict[TopicPartition, int]:
            for partition in list(left):
                found[partition] = await self._delete_records_of(partition, left[partition], attempt_ms)
                del left[partition]
            return found

        return await self._at_leaders("deleting records", {each.topic for each in left}, attempt, timeout_ms)

    async def describe_log_dirs(self, node_id: int, timeout_ms: float | None = None) -> Any:
        """The log directories of a broker: the results of DescribeLogDirs as they are."""

        async def attempt(attempt_ms: float) -> Any:
            node = self._client.node(node_id)
            response = await self._client.ask(
                node, self._lane, messages.DescribeLogDirsRequest(topics=None), attempt_ms
            )
            raise_for_code(response.error_code, "DescribeLogDirs")
            return response.results

        return await self._client.repeat("describing log directories", attempt, timeout_ms)

    async def alter_replica_log_dirs(
        self, node_id: int, directories: Mapping[TopicPartition, str], timeout_ms: float | None = None
    ) -> dict[TopicPartition, KafkaError | None]:
        """Has a broker move its replicas to these log directories, given by their absolute paths; None where that has
        begun, or is done already. One that is not there yet is made in its directory when it comes: the broker says
        REPLICA_NOT_AVAILABLE, and knows it until it stops.
        """
        request = _log_dirs_request(directories)

        async def attempt(attempt_ms: float) -> dict[TopicPartition, KafkaError | None]:
            node = self._client.node(node_id)
            response = await self._client.ask(node, self._lane, request, attempt_ms)
            found: dict[TopicPartition, KafkaError | None] = {}
            for topic in response.results:
                for result in topic.partitions:
                    partition = TopicPartition(topic.topic_name, result.partition_index)
                    code = ErrorCode.for_code(result.error_code)
                    path = directories.get(partition)
                    where = f"{topic.topic_name}-{result.partition_index} to {path} on broker {node_id}"
                    found[partition] = None if code is ErrorCode.NONE else KafkaError(code, f"{where}: {code.message}")
            return found

        return await self._client.repeat("moving replicas between log directories", attempt, timeout_ms)

    # Inside.

    async def _delete_records_of(self, partition: TopicPartition, offset: int, attempt_ms: float) -> int:
        leader = self._client.cluster.leader(partition)
        if leader is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"the leader of {partition} is not known now")
        of_partition = messages.DeleteRecordsRequest.DeleteRecordsPartition(
            partition_index=partition.partition, offset=offset
        )
        topic = messages.DeleteRecordsRequest.DeleteRecordsTopic(name=partition.topic, partitions=[of_partition])
        request = messages.DeleteRecordsRequest(topics=[topic], timeout_ms=broker_ms(attempt_ms))
        response = await self._client.ask(leader[0], self._lane, request, attempt_ms)
        answer = response.topics[0].partitions[0]
        raise_for_code(answer.error_code, f"deleting records of {partition}")
        return int(answer.low_watermark)


def _new_topic(topic: NewTopic) -> messages.CreateTopicsRequest.CreatableTopic:
    assignments = [
        messages.CreateTopicsRequest.CreatableReplicaAssignment(partition_index=number, broker_ids=list(replicas))
        for number, replicas in (topic.assignment or {}).items()
    ]
    return messages.CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=assignments,
        configs=[
            messages.CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
            for name, value in topic.configs.items()
        ],
    )


def _log_dirs_request(directories: Mapping[TopicPartition, str]) -> messages.AlterReplicaLogDirsRequest:
    of_directories: dict[str, messages.AlterReplicaLogDirsRequest.AlterReplicaLogDir] = {}
    of_topics: dict[tuple[str, str], messages.AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic] = {}
    for partition, path in directories.items():
        directory = of_directories.setdefault(path, messages.AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=path))
        topic = of_topics.get((path, partition.topic))
        if topic is None:
            topic = of_topics[path, partition.topic] = messages.AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(
                name=partition.topic
            )
            directory.topics.append(topic)
        topic.partitions.append(partition.partition)
    return messages.AlterReplicaLogDirsRequest(dirs=list(of_directories.values()))
