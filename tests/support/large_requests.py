"""Requests with as many elements as asked for, of each API that takes arrays, and a good client beside them.

The client asks for the versions again and again over a connection of its own; its longest wait is what a request cost
everybody else.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.codec import request_encoder
from barnabas.wire.messages import (
    AlterConfigsRequest,
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    FetchRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    SyncGroupRequest,
)

_GROUP: Final = "large-requests"


@dataclass(frozen=True)
class LargeRequest:
    """One kind; `make(count, topic)` is the request, of which `topic` exists with one partition."""

    key: ApiKey
    version: int
    count: int
    """So many elements take the broker a few seconds at most."""
    make: Callable[[int, str], Any]


def names(count: int) -> list[str]:
    """Names of topics or groups that nobody has, and of which many collide as names of metrics do."""
    return [f"large_{number // 2}{'._'[number % 2]}x" for number in range(count)]


def _create_topics(count: int, _: str) -> CreateTopicsRequest:
    topics = [
        CreateTopicsRequest.CreatableTopic(name=f"large.{number}_x", num_partitions=1, replication_factor=1)
        for number in range(count)
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=60_000, validate_only=True)


def _metadata(count: int, _: str) -> MetadataRequest:
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names(count)]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def _list_offsets(timestamp: int) -> Callable[[int, str], ListOffsetsRequest]:
    def make(count: int, topic: str) -> ListOffsetsRequest:
        partitions = [
            ListOffsetsRequest.ListOffsetsPartition(
                partition_index=number, timestamp=timestamp, current_leader_epoch=-1
            )
            for number in range(count)
        ]
        return ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=partitions)]
        )

    return make


def _fetch(count: int, topic: str, *, session_epoch: int = -1, wait_ms: int = 0) -> FetchRequest:
    partitions = [
        FetchRequest.FetchPartition(partition=number, current_leader_epoch=-1, partition_max_bytes=1024)
        for number in range(count)
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=session_epoch,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=partitions)],
    )


def _fetch_of_topics(count: int, _: str) -> FetchRequest:
    partition = FetchRequest.FetchPartition(partition=0, current_leader_epoch=-1, partition_max_bytes=1024)
    topics = [FetchRequest.FetchTopic(topic=name, partitions=[partition]) for name in names(count)]
    return FetchRequest(replica_id=-1, max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=topics)


def _produce(count: int, topic: str) -> ProduceRequest:
    data = [ProduceRequest.PartitionProduceData(index=number, records=bytes(70)) for number in range(count)]
    return ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=data)]
    )


def _offset_commit(of_one: bool) -> Callable[[int, str], OffsetCommitRequest]:
    def make(count: int, topic: str) -> OffsetCommitRequest:
        partition = OffsetCommitRequest.OffsetCommitRequestPartition
        if of_one:
            partitions = [partition(committed_offset=number) for number in range(count)]
        else:
            partitions = [partition(partition_index=number, committed_offset=1) for number in range(count)]
        return OffsetCommitRequest(
            group_id=_GROUP,
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)],
        )

    return make


def _offset_fetch(count: int, topic: str) -> OffsetFetchRequest:
    topics = [OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=list(range(count)))]
    return OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=_GROUP, topics=topics)])


def _offset_fetch_groups(count: int, _: str) -> OffsetFetchRequest:
    return OffsetFetchRequest(
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=[]) for name in names(count)]
    )


def _offset_delete(count: int, topic: str) -> OffsetDeleteRequest:
    partition = OffsetDeleteRequest.OffsetDeleteRequestPartition
    partitions = [partition(partition_index=number) for number in range(count)]
    return OffsetDeleteRequest(
        group_id=_GROUP, topics=[OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=partitions)]
    )


def _leader_epochs(count: int, topic: str) -> OffsetForLeaderEpochRequest:
    partition = OffsetForLeaderEpochRequest.OffsetForLeaderPartition
    partitions = [partition(partition=number, leader_epoch=0) for number in range(count)]
    return OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=partitions)]
    )


def _delete_records(count: int, topic: str) -> DeleteRecordsRequest:
    partition = DeleteRecordsRequest.DeleteRecordsPartition
    partitions = [partition(partition_index=number, offset=0) for number in range(count)]
    return DeleteRecordsRequest(
        timeout_ms=100, topics=[DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=partitions)]
    )


def _describe_producers(count: int, topic: str) -> DescribeProducersRequest:
    asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=list(range(count)))
    return DescribeProducersRequest(topics=[asked])


def _describe_log_dirs(count: int, topic: str) -> DescribeLogDirsRequest:
    asked = DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=list(range(count)))
    return DescribeLogDirsRequest(topics=[asked])


def _describe_configs(count: int, _: str) -> DescribeConfigsRequest:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=[resource(resource_type=2, resource_name=name, configuration_keys=None) for name in names(count)]
    )


def describe_broker(count: int, _: str, broker_id: str = "1") -> DescribeConfigsRequest:
    """All configs of the broker that is asked, so many times."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=4, resource_name=broker_id, configuration_keys=None
    )
    return DescribeConfigsRequest(resources=[resource] * count, include_synonyms=True, include_documentation=True)


def _alter_configs(count: int, _: str) -> AlterConfigsRequest:
    resource = AlterConfigsRequest.AlterConfigsResource
    resources = [resource(resource_type=2, resource_name=name, configs=[]) for name in names(count)]
    return AlterConfigsRequest(resources=resources, validate_only=True)


def _incremental(count: int, _: str) -> IncrementalAlterConfigsRequest:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    resources = [resource(resource_type=2, resource_name=name, configs=[]) for name in names(count)]
    return IncrementalAlterConfigsRequest(resources=resources, validate_only=True)


def _configs_of_one(count: int, topic: str) -> AlterConfigsRequest:
    config = AlterConfigsRequest.AlterableConfig
    configs = [config(name=name, value=None) for name in names(count)]
    resource = AlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name=topic, configs=configs)
    return AlterConfigsRequest(resources=[resource], validate_only=True)


def _create_partitions(count: int, _: str) -> CreatePartitionsRequest:
    topic = CreatePartitionsRequest.CreatePartitionsTopic
    topics = [topic(name=name, count=2, assignments=None) for name in names(count)]
    return CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=True)


def _join_group(count: int, _: str) -> JoinGroupRequest:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol
    return JoinGroupRequest(
        group_id=_GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[protocol(name=name, metadata=b"x") for name in names(count)],
    )


def _sync_group(count: int, _: str) -> SyncGroupRequest:
    assignment = SyncGroupRequest.SyncGroupRequestAssignment
    return SyncGroupRequest(
        group_id=_GROUP,
        generation_id=1,
        member_id="m",
        protocol_type="consumer",
        protocol_name="range",
        assignments=[assignment(member_id=name, assignment=b"x") for name in names(count)],
    )


def _leave_group(count: int, _: str) -> LeaveGroupRequest:
    members = [LeaveGroupRequest.MemberIdentity(member_id=name) for name in names(count)]
    return LeaveGroupRequest(group_id=_GROUP, members=members)


LARGE_REQUESTS: Final[Mapping[str, LargeRequest]] = {
    "create topics": LargeRequest(ApiKey.CREATE_TOPICS, 7, 30_000, _create_topics),
    "delete topics": LargeRequest(
        ApiKey.DELETE_TOPICS, 5, 100_000, lambda count, _: DeleteTopicsRequest(topic_names=names(count))
    ),
    "create partitions": LargeRequest(ApiKey.CREATE_PARTITIONS, 3, 5_000, _create_partitions),
    "metadata": LargeRequest(ApiKey.METADATA, 9, 100_000, _metadata),
    "list offsets: latest": LargeRequest(ApiKey.LIST_OFFSETS, 6, 200_000, _list_offsets(-1)),
    "list offsets: earliest": LargeRequest(ApiKey.LIST_OFFSETS, 6, 100_000, _list_offsets(-2)),
    "fetch": LargeRequest(ApiKey.FETCH, 11, 200_000, _fetch),
    "fetch that may wait": LargeRequest(
        ApiKey.FETCH, 11, 200_000, lambda count, topic: _fetch(count, topic, wait_ms=500)
    ),
    "fetch with a session": LargeRequest(
        ApiKey.FETCH, 11, 100_000, lambda count, topic: _fetch(count, topic, session_epoch=0)
    ),
    "fetch of topics": LargeRequest(ApiKey.FETCH, 11, 100_000, _fetch_of_topics),
    "produce": LargeRequest(ApiKey.PRODUCE, 9, 50_000, _produce),
    "offset commit": LargeRequest(ApiKey.OFFSET_COMMIT, 8, 100_000, _offset_commit(of_one=False)),
    "offset commit of one partition": LargeRequest(ApiKey.OFFSET_COMMIT, 8, 100_000, _offset_commit(of_one=True)),
    "offset fetch": LargeRequest(ApiKey.OFFSET_FETCH, 8, 200_000, _offset_fetch),
    "offset fetch of groups": LargeRequest(ApiKey.OFFSET_FETCH, 8, 100_000, _offset_fetch_groups),
    "offset delete": LargeRequest(ApiKey.OFFSET_DELETE, 0, 100_000, _offset_delete),
    "leader epochs": LargeRequest(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, 100_000, _leader_epochs),
    "delete records": LargeRequest(ApiKey.DELETE_RECORDS, 2, 100_000, _delete_records),
    "describe producers": LargeRequest(ApiKey.DESCRIBE_PRODUCERS, 0, 200_000, _describe_producers),
    "describe log directories": LargeRequest(ApiKey.DESCRIBE_LOG_DIRS, 4, 500_000, _describe_log_dirs),
    "describe configs of topics": LargeRequest(ApiKey.DESCRIBE_CONFIGS, 4, 100_000, _describe_configs),
    "describe configs of the broker": LargeRequest(ApiKey.DESCRIBE_CONFIGS, 4, 500, describe_broker),
    "alter configs": LargeRequest(ApiKey.ALTER_CONFIGS, 2, 100_000, _alter_configs),
    "incremental alter configs": LargeRequest(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, 100_000, _incremental),
    "configs of one topic": LargeRequest(ApiKey.ALTER_CONFIGS, 2, 100_000, _configs_of_one),
    "find coordinator": LargeRequest(
        ApiKey.FIND_COORDINATOR,
        4,
        100_000,
        lambda count, _: FindCoordinatorRequest(key_type=0, coordinator_keys=names(count)),
    ),
    "describe groups": LargeRequest(
        ApiKey.DESCRIBE_GROUPS, 5, 100_000, lambda count, _: DescribeGroupsRequest(groups=names(count))
    ),
    "delete groups": LargeRequest(
        ApiKey.DELETE_GROUPS, 2, 100_000, lambda count, _: DeleteGroupsRequest(groups_names=names(count))
    ),
    "join group": LargeRequest(ApiKey.JOIN_GROUP, 5, 100_000, _join_group),
    "sync group": LargeRequest(ApiKey.SYNC_GROUP, 5, 100_000, _sync_group),
    "leave group": LargeRequest(ApiKey.LEAVE_GROUP, 5, 100_000, _leave_group),
}


def frame_of(request: LargeRequest, count: int, topic: str) -> bytes:
    """The whole frame, made once and before anything is measured."""
    return b"".join(
        bytes(part) for part in request_encoder(request.key, request.version, "large")(1, request.make(count, topic))
    )


def tagged_fields_frame(count: int) -> bytes:
    """ApiVersions with so many tagged fields that nobody knows."""
    body = bytearray(b"\x02k\x04" + b"1.0" + _varint(count))
    for tag in range(count):
        body += _varint(tag) + b"\x00"
    header = struct.pack(">hhih", ApiKey.API_VERSIONS, 3, 1, 5) + b"large\x00"
    return struct.pack(">i", len(header) + len(body)) + header + bytes(body)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def exchange(port: int, frame: bytes, timeout_seconds: float = 60.0) -> int:
    """Sends a frame over a connection of its own; returns the size of the answer, -1 when the connection is ended."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_seconds) as connection:
        try:
            connection.sendall(frame)
            size = _receive_size(connection)
            left = size
            while left:
                received = len(connection.recv(min(left, 1 << 20)))
                if not received:
                    return -1
                left -= received
        except ConnectionError:
            return -1
        return size


def _receive_size(connection: socket.socket) -> int:
    head = b""
    while len(head) < 4:
        received = connection.recv(4 - len(head))
        if not received:
            raise ConnectionResetError("closed without an answer")
        head += received
    return int.from_bytes(head, "big")


class GoodClient:
    """Asks for the versions and notes how long it has to wait, from another thread."""

    def __init__(self, port: int) -> None:
        self.longest_ms = 0.0
        self.asked = 0
        self._port = port
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        while not self.asked:
            time.sleep(0.001)
        self.longest_ms = 0.0

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        frame = b"".join(request_encoder(ApiKey.API_VERSIONS, 0, "good")(1, ApiVersionsRequest()))
        with socket.create_connection(("127.0.0.1", self._port), timeout=300) as connection:
            while not self._stopped.is_set():
                before = time.perf_counter()
                connection.sendall(frame)
                left = _receive_size(connection)
                while left:
                    left -= len(connection.recv(left))
                self.longest_ms = max(self.longest_ms, (time.perf_counter() - before) * 1000)
                self.asked += 1
                self._stopped.wait(0.001)


@contextlib.contextmanager
def good_client(port: int) -> Iterator[GoodClient]:
    """A client beside what is done in the block."""
    client = GoodClient(port)
    client.start()
    try:
        yield client
    finally:
        client.stop()
