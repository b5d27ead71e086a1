"""Single requests over a plain socket, so that no client library is part of what is tried or measured."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any, Self

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.codec import request_encoder, response_decoder
from barnabas.wire.messages import CreateTopicsRequest, DeleteTopicsRequest, MetadataRequest

CLIENT_ID = "benchmark"
_TIMEOUT_SECONDS = 120.0
METADATA_SECONDS = 15.0
_METADATA_VERSION = 8
_CREATE_TOPICS_VERSION = 5
_DELETE_TOPICS_VERSION = 4


class Connection:
    """One connection to 127.0.0.1 with one request in flight; a context manager. OSError when no answer comes."""

    def __init__(self, port: int, timeout_seconds: float = _TIMEOUT_SECONDS, *, source: str | None = None) -> None:
        """`source` is the address that it comes from, where that matters."""
        self._socket = socket.create_connection(
            ("127.0.0.1", port), timeout=timeout_seconds, source_address=None if source is None else (source, 0)
        )
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, key: ApiKey, version: int, message: Any, *, client_id: str = CLIENT_ID) -> Any:
        """Sends a request and returns the response."""
        self._socket.sendall(b"".join(request_encoder(key, version, client_id)(1, message)))
        size = struct.unpack(">i", _receive(self._socket, 4))[0]
        answer = _receive(self._socket, size)
        return response_decoder(key, version)(answer, 0, len(answer))[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def call(port: int, key: ApiKey, version: int, message: Any, timeout_seconds: float = _TIMEOUT_SECONDS) -> Any:
    """Sends one request to 127.0.0.1 on a connection of its own and returns the response. OSError when none comes."""
    with Connection(port, timeout_seconds) as connection:
        return connection.call(key, version, message)


def metadata(port: int, topics: list[str] | None = None) -> Any:
    """The Metadata answer; of no topic where none is named. Nothing is created."""
    asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics or []]
    request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
    return call(port, ApiKey.METADATA, _METADATA_VERSION, request, METADATA_SECONDS)


def brokers_known_at(port: int) -> list[int]:
    """The ids of the live brokers as this broker knows them."""
    return [broker.node_id for broker in metadata(port).brokers]


def controller_port(port: int) -> int:
    """Where the controller listens. OSError while there is none."""
    answer = metadata(port)
    for broker in answer.brokers:
        if broker.node_id == answer.controller_id:
            return int(broker.port)
    raise ConnectionError("no controller is known")


def create_topic(port: int, name: str, partitions: int, replication_factor: int, **configs: str) -> None:
    """Creates a topic by the controller; RuntimeError with what it answered otherwise."""
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    _create(port, topic)


def create_assigned_topic(port: int, name: str, replicas: Sequence[Sequence[int]]) -> None:
    """As `create_topic`, with the replicas of each partition."""
    assignments = [
        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=number, broker_ids=list(each))
        for number, each in enumerate(replicas)
    ]
    _create(
        port,
        CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=-1, replication_factor=-1, assignments=assignments
        ),
    )


def _create(port: int, topic: CreateTopicsRequest.CreatableTopic) -> None:
    request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
    (result,) = call(controller_port(port), ApiKey.CREATE_TOPICS, _CREATE_TOPICS_VERSION, request).topics
    if result.error_code:
        raise RuntimeError(f"topic {topic.name} was not created: {result.error_code} {result.error_message}")


def delete_topic(port: int, name: str) -> None:
    """Deletes a topic by the controller; RuntimeError with what it answered otherwise."""
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=60_000)
    (result,) = call(controller_port(port), ApiKey.DELETE_TOPICS, _DELETE_TOPICS_VERSION, request).responses
    if result.error_code:
        raise RuntimeError(f"topic {name} was not deleted: {result.error_code}")


def leaders(port: int, topic: str) -> dict[int, int]:
    """The leader of each partition that has one."""
    (found,) = metadata(port, [topic]).topics
    return {
        partition.partition_index: partition.leader_id
        for partition in found.partitions
        if partition.error_code == 0 and partition.leader_id >= 0
    }


def leader_port(port: int, topic: str, partition: int = 0) -> int:
    """Where the partition's leader listens. OSError while there is none."""
    leader = leaders(port, topic).get(partition)
    for broker in metadata(port).brokers:
        if broker.node_id == leader:
            return int(broker.port)
    raise ConnectionError(f"{topic}-{partition} has no leader")


def _receive(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        chunk = connection.recv(count - len(received))
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        received += chunk
    return bytes(received)
