"""A cluster that commands talk to in the tests of what they print; there is no broker behind it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.cli import connection
from barnabas.client import admin, broker_views
from barnabas.client.admin import ConfigEntry, ConfigOperation, GroupDescription, GroupListing, NewTopic, ResourceType
from barnabas.client.cluster import BrokerNode, Cluster, PartitionInfo, TopicInfo
from barnabas.client.quotas_of_clients import ClientQuotas
from barnabas.client.reassignments import PartitionReassignment
from barnabas.client.records import OffsetAndMetadata, OffsetAndTimestamp
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeControllerResponse, DescribeLogDirsResponse
from barnabas.wire.primitives import ZERO_UUID
from barnabas.wire.sentinels import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from barnabas.wire.topics import ElectionType, TopicPartition

PARTITIONS_MAX = 1_000
NOW_MS = 1_700_000_100_000
BROKERS = {number: BrokerNode(number, f"host-{number}", 9_090 + number, "rack-a") for number in (1, 2, 3)}


def partition(
    leader: int, replicas: Sequence[int] = (1, 2, 3), isr: Sequence[int] | None = None, epoch: int = 0
) -> PartitionInfo:
    in_sync = tuple(replicas if isr is None else isr)
    return PartitionInfo(leader, epoch, tuple(replicas), in_sync, tuple(sorted({*replicas} - {*in_sync})))


def topic(name: str, *partitions: PartitionInfo, topic_id: bytes = ZERO_UUID, is_internal: bool = False) -> TopicInfo:
    return TopicInfo(name, topic_id, is_internal, dict(enumerate(partitions)))


@dataclass
class FakeCluster:
    """What the commands see; tests fill it, and look at what it was asked to do."""

    topics: dict[str, TopicInfo] = field(default_factory=dict)
    configs: dict[str, list[ConfigEntry]] = field(default_factory=dict)
    groups: dict[str, GroupDescription] = field(default_factory=dict)
    listings: list[GroupListing] = field(default_factory=list)
    committed: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    at_times: dict[TopicPartition, int] = field(default_factory=dict)
    times_asked_for_ms: list[int] = field(default_factory=list)
    commit_error: Exception | None = None
    cut: dict[TopicPartition, int] = field(default_factory=dict)
    refusing: set[str] = field(default_factory=set)
    """Topics of which records are not deleted, and which are not altered but in a dry run."""
    delete_error: Exception | None = None
    log_directories: dict[int, Any] = field(default_factory=dict)
    log_moves: list[tuple[int, dict[TopicPartition, str]]] = field(default_factory=list)
    """What brokers were told of log directories."""
    reassignments: dict[TopicPartition, PartitionReassignment] = field(default_factory=dict)
    reassignments_error: Exception | None = None
    api_versions: dict[int, Mapping[int, tuple[int, int]] | Exception] = field(default_factory=dict)
    controller: tuple[BrokerNode, DescribeControllerResponse | None] | Exception | None = None
    cluster: Cluster = field(default_factory=lambda: Cluster("cluster-1", 2, BROKERS))
    error: BaseException | None = None
    """Raised by every call."""
    created: list[NewTopic] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    waited_for: list[tuple[str, ...]] = field(default_factory=list)
    grown: dict[str, int] = field(default_factory=dict)
    altered: list[Any] = field(default_factory=list)
    described: list[tuple[str, tuple[str, ...] | None]] = field(default_factory=list)
    """Of what configs were asked for, and for which; None is all."""
    quotas: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = field(default_factory=dict)
    elections: list[tuple[ElectionType, list[TopicPartition]]] = field(default_factory=list)
    election_errors: dict[TopicPartition, KafkaError] = field(default_factory=dict)
    is_slow: bool = False
    """Brokers do not show what was changed, and copies between log directories do not end."""
    seconds: float = 0.0
    """What the loop's clock says; only sleeping moves it."""

    def add(self, *topics: TopicInfo) -> None:
        self.topics |= {each.name: each for each in topics}
        self.cluster = replace(self.cluster, topics=self.topics)

    def check(self) -> None:
        if self.error is not None:
            raise self.error


class _Context:
    def __init__(self, client: Any) -> None:
        self.fake: FakeCluster = client.fake

    async def __aenter__(self) -> Any:
        self.fake.check()
        return self

    async def __aexit__(self, *_error: object) -> None: ...


class FakeAdmin(_Context):
    async def create_topics(self, topics: Iterable[NewTopic]) -> None:
        for each in topics:
            if each.name in self.fake.topics:
                raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"{each.name}: it is there.")
            if each.replication_factor > len(BROKERS):
                raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, f"{each.name}: too few brokers.")
            self.fake.created.append(each)
            self.fake.add(topic(each.name, *[partition(1)] * max(1, each.partitions)))

    async def create_partitions(self, counts: Mapping[str, int], *, validate_only: bool = False) -> None:
        for name, count in counts.items():
            if count > PARTITIONS_MAX or (name in self.fake.refusing and not validate_only):
                raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"{name}: too many.")
            if not validate_only:
                self.fake.grown[name] = count

    async def delete_topics(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.fake.topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name}: unknown")
            if self.fake.topics[name].is_internal:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name}: it is internal.")
            self.fake.deleted.append(name)

    async def describe_client_quotas(self, entity: Mapping[str, str | None]) -> list[ClientQuotas]:
        return [
            ClientQuotas(dict(key), values)
            for key, values in self.fake.quotas.items()
            if values and entity.items() <= dict(key).items()
        ]

    async def alter_client_quotas(self, entity: Mapping[str, str | None], changes: Mapping[str, float | None]) -> None:
        self.fake.check()
        values = self.fake.quotas.setdefault(tuple(entity.items()), {})
        for key, value in changes.items():
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value

    async def elect_leaders(
        self, election_type: ElectionType, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, KafkaError | None]:
        """The first replica leads where it did not, unless `election_errors` has a reason against it."""
        asked = list(partitions)
        self.fake.elections.append((election_type, asked))
        found: dict[TopicPartition, KafkaError | None] = {}
        for place in asked:
            known = self.fake.topics[place.topic].partitions[place.partition]
            found[place] = self.fake.election_errors.get(place)
            if known.leader_id == known.replicas[0]:
                found[place] = KafkaError(ErrorCode.ELECTION_NOT_NEEDED)
            elif found[place] is None:
                partitions_now = {
                    **self.fake.topics[place.topic].partitions,
                    place.partition: replace(known, leader_id=known.replicas[0]),
                }
                self.fake.add(replace(self.fake.topics[place.topic], partitions=partitions_now))
        return found

    async def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicInfo]:
        if names is None:
            return dict(self.fake.topics)
        for name in names:
            if name not in self.fake.topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")
        return {name: self.fake.topics[name] for name in names}

    async def list_topics(self, _timeout_ms: float = 0) -> tuple[str, ...]:
        return tuple(self.fake.topics)

    async def describe_topic_configs(
        self, names: Iterable[str], keys: Iterable[str] | None = None
    ) -> dict[str, dict[str, ConfigEntry]]:
        wanted = None if keys is None else set(keys)
        return {
            name: {each.name: each for each in self.fake.configs.get(name, ()) if wanted is None or each.name in wanted}
            for name in names
            if name in self.fake.topics
        }

    async def describe_configs(
        self,
        resource_type: ResourceType,
        name: str,
        _timeout_ms: float | None = None,
        *,
        with_synonyms: bool = False,
        keys: Iterable[str] | None = None,
    ) -> dict[str, ConfigEntry]:
        self.fake.described.append((name, None if keys is None else tuple(keys)))
        if resource_type is ResourceType.TOPIC and name not in self.fake.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
        key = f"logger:{name}" if resource_type is ResourceType.BROKER_LOGGER else name
        return {
            entry.name: entry if with_synonyms else replace(entry, synonyms=())
            for entry in self.fake.configs.get(key, ())
            if keys is None or entry.name in keys
        }

    async def alter_configs(
        self,
        resource_type: ResourceType,
        name: str,
        changes: Iterable[tuple[str, ConfigOperation, str | None]],
        _timeout_ms: float | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Sets and unsets what `fake.configs` has; it does not add names."""
        wanted = list(changes)
        if any(value == "refused" for _, _, value in wanted) or (name in self.fake.refusing and not validate_only):
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}: it is refused.")
        self.fake.altered.append((resource_type, name, wanted, validate_only))
        if validate_only or self.fake.is_slow:
            return
        own = {ResourceType.TOPIC: 1, ResourceType.BROKER: 2 if name else 3, ResourceType.BROKER_LOGGER: 6}
        by_name = {key: value for key, operation, value in wanted if operation is ConfigOperation.SET}
        gone = {key for key, operation, _ in wanted if operation is ConfigOperation.DELETE}
        entries = []
        for entry in self.fake.configs[name]:
            if entry.name in by_name:
                entries.append(replace(entry, value=by_name[entry.name], source=own[resource_type]))
            elif entry.name in gone and len(entry.synonyms) > 1:
                weaker = entry.synonyms[1]
                entries.append(replace(entry, value=weaker.value, source=weaker.source))
            else:
                entries.append(entry)
        self.fake.configs[name] = entries

    async def list_groups(
        self, states: Iterable[str] = (), timeout_ms: float | None = None
    ) -> tuple[GroupListing, ...]:
        wanted = set(states)
        return tuple(listing for listing in self.fake.listings if not wanted or listing.state in wanted)

    async def describe_group(self, group_id: str) -> GroupDescription:
        return self.fake.groups.get(group_id) or GroupDescription(group_id, "Dead", "", "", (), 1)

    async def list_group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        return {place: OffsetAndMetadata(offset) for place, offset in self.fake.committed.get(group_id, {}).items()}

    async def alter_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if self.fake.commit_error is not None:
            raise self.fake.commit_error
        self.fake.committed.setdefault(group_id, {}).update({place: each.offset for place, each in offsets.items()})

    async def delete_records(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self.fake.delete_error is not None:
            raise self.fake.delete_error
        for place in offsets:
            if str(place) in self.fake.refusing:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"deleting records of {place}")
        self.fake.cut.update(offsets)

    async def delete_group(self, group_id: str) -> None:
        if group_id == "undeletable":
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"deletion of group {group_id}")
        self.fake.deleted.append(group_id)

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        if self.fake.groups[group_id].members:
            raise KafkaError(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, f"deletion of group {group_id}")
        for place in partitions:
            del self.fake.committed[group_id][place]

    async def list_offsets(
        self, timestamps_ms: Mapping[TopicPartition, int], _timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Of `ends` and `starts`; what was asked for by time is at `at_times`, or at no offset."""
        found = {}
        for place, timestamp_ms in timestamps_ms.items():
            if timestamp_ms == LATEST_TIMESTAMP:
                offset = self.fake.ends[place]
            elif timestamp_ms == EARLIEST_TIMESTAMP:
                offset = self.fake.starts.get(place, 0)
            else:
                self.fake.times_asked_for_ms.append(timestamp_ms)
                offset = self.fake.at_times.get(place, -1)
            found[place] = OffsetAndTimestamp(offset, timestamp_ms if offset >= 0 > -timestamp_ms else -1, -1)
        return found

    async def describe_log_dirs(self, node_id: int, _timeout_ms: float) -> Any:
        found = self.fake.log_directories.get(node_id, [])
        if isinstance(found, Exception):
            raise found
        if not self.fake.is_slow:
            described = copy.deepcopy(found)
            self._end_log_moves(found)
            return described
        return found

    def _end_log_moves(self, directories: list[Any]) -> None:
        """Copies that have been described take the place of the current logs."""
        for directory in directories:
            for topic_of in directory.topics:
                for log in [each for each in topic_of.partitions if each.is_future_key]:
                    for former, entries, each in self._logs(directories, topic_of.name, log.partition_index):
                        if former is not directory:
                            entries.remove(each)
                            log.partition_size = each.partition_size
                    log.is_future_key = False

    def _logs(self, directories: list[Any], name: str, number: int) -> list[tuple[Any, list[Any], Any]]:
        """Directory, its logs of the topic, and the log, of each log of a partition."""
        return [
            (directory, topic_of.partitions, log)
            for directory in directories
            for topic_of in directory.topics
            for log in topic_of.partitions
            if (topic_of.name, log.partition_index) == (name, number)
        ]

    async def alter_replica_log_dirs(
        self, node_id: int, directories: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, KafkaError | None]:
        """A copy is made with half of the log, and ends when it has been described."""
        if not directories:
            return {}
        self.fake.log_moves.append((node_id, dict(directories)))
        there: list[Any] = self.fake.log_directories[node_id]
        found: dict[TopicPartition, KafkaError | None] = {}
        for place, path in directories.items():
            found[place] = None
            logs = self._logs(there, place.topic, place.partition)
            if not logs:
                found[place] = KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, str(place))
                continue
            (current,) = [log for _, _, log in logs if not log.is_future_key]
            for _, entries, log in logs:
                if log.is_future_key:
                    entries.remove(log)
            (target,) = [each for each in there if each.log_dir == path]
            if all(log is not current for topic_of in target.topics for log in topic_of.partitions):
                copied = replace(current, partition_size=current.partition_size // 2, is_future_key=True)
                result = DescribeLogDirsResponse.DescribeLogDirsTopic(name=place.topic, partitions=[copied])
                target.topics.append(result)
        return found

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, _timeout_ms: float | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        if self.fake.reassignments_error is not None:
            raise self.fake.reassignments_error
        wanted = None if partitions is None else {*partitions}
        return {each: found for each, found in self.fake.reassignments.items() if wanted is None or each in wanted}

    async def alter_partition_reassignments(self, targets: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        """Done at once; the new replicas are in the directories that their brokers were told, or in their first."""
        for place, replicas in targets.items():
            self.fake.reassignments.pop(place, None)
            if replicas is None:
                continue
            former = self.fake.topics[place.topic].partitions[place.partition]
            for node_id in {*replicas} - {*former.replicas}:
                there: list[Any] = self.fake.log_directories[node_id]
                told = [
                    wanted[place] for told_id, wanted in self.fake.log_moves if told_id == node_id and place in wanted
                ]
                (directory,) = [each for each in there if each.log_dir == (told or [there[0].log_dir])[-1]]
                log = DescribeLogDirsResponse.DescribeLogDirsPartition(partition_index=place.partition)
                result = DescribeLogDirsResponse.DescribeLogDirsTopic(name=place.topic, partitions=[log])
                directory.topics.append(result)
            known = self.fake.topics[place.topic]
            partitions = {**known.partitions, place.partition: replace(former, replicas=tuple(replicas))}
            self.fake.add(replace(known, partitions=partitions))

    async def describe_cluster(self) -> tuple[str, int, tuple[int, ...]]:
        return "cluster-1", 2, tuple(self.fake.cluster.brokers)


class FakeViews(_Context):
    async def wait_until_led(self, topics: Iterable[str]) -> None:
        self.fake.waited_for.append(tuple(topics))

    async def wait_until_grown(self, added: Mapping[str, range]) -> None:
        self.fake.waited_for.append(tuple(f"{name}-{number}" for name in added for number in added[name]))

    async def wait_until_gone(self, topics: Iterable[str]) -> None:
        self.fake.waited_for.append(tuple(topics))

    async def api_versions(self, node: BrokerNode) -> Mapping[int, tuple[int, int]]:
        found = self.fake.api_versions.get(node.node_id, {})
        if isinstance(found, Exception):
            raise found
        return found

    async def describe_controller(self, _transitions_max: int, _timeout_ms: float) -> Any:
        if isinstance(self.fake.controller, Exception):
            raise self.fake.controller
        return self.fake.controller


class _Metadata:
    def use(self, *_topics: str) -> None: ...

    async def update(self) -> None: ...

    async def asked_for(self, _topics: Iterable[str], _retry: object) -> None: ...


@contextlib.contextmanager
def fake_cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has every command of this process talk to it."""
    fake = FakeCluster()

    @contextlib.asynccontextmanager
    async def client(*_arguments: object) -> AsyncIterator[Any]:
        async def sleep(delay_ms: float) -> None:
            fake.seconds += delay_ms / 1_000

        clock = SimpleNamespace(time_ms=lambda: NOW_MS)
        yield SimpleNamespace(
            fake=fake,
            cluster=fake.cluster,
            metadata=_Metadata(),
            retry=lambda *_: SimpleNamespace(left_ms=1_000.0),
            host=SimpleNamespace(clock=clock, loop=SimpleNamespace(time=lambda: fake.seconds)),
            timers=SimpleNamespace(sleep=sleep),
        )

    monkeypatch.setattr(connection, "_client", client)
    monkeypatch.setattr(admin, "Admin", FakeAdmin)
    monkeypatch.setattr(broker_views, "BrokerViews", FakeViews)
    yield fake
