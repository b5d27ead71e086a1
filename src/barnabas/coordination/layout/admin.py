"""`/admin`: requests to the controller that are made by writing a znode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from barnabas.coordination.layout.notifications import decode_partitions, encode_partitions
from barnabas.coordination.layout.payload import NO_EXTRA, Fields, encode_json
from barnabas.kernel.steps import Steps, at_once
from barnabas.wire.topics import TopicPartition

ADMIN_PATH = "/admin"
DELETE_TOPICS_PATH = "/admin/delete_topics"
REASSIGN_PARTITIONS_PATH = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION_PATH = "/admin/preferred_replica_election"
VERSION = 1
PARTITIONS_PER_STEP: Final = 2_048
"""Partitions of a request for reassignments that are decoded at a time."""


def delete_topic_path(topic: str) -> str:
    """The znode, without data, that asks for the topic's deletion."""
    return f"{DELETE_TOPICS_PATH}/{topic}"


@dataclass(frozen=True, slots=True)
class Reassignment:
    """Payload of `/admin/reassign_partitions`: the replicas that partitions shall have. A partition that is named
    twice gets what is said last.
    """

    partitions: Mapping[TopicPartition, tuple[int, ...]]
    extra: Mapping[str, Any] = NO_EXTRA

    def encode(self) -> bytes:
        partitions = [
            {"topic": partition.topic, "partition": partition.partition, "replicas": replicas}
            for partition, replicas in self.partitions.items()
        ]
        return encode_json({"version": VERSION, "partitions": partitions}, self.extra)

    @classmethod
    def decode(cls, data: bytes | None, path: str = REASSIGN_PARTITIONS_PATH) -> Reassignment:
        return at_once(cls.decode_in_steps(data, path))

    @classmethod
    def decode_in_steps(cls, data: bytes | None, path: str = REASSIGN_PARTITIONS_PATH) -> Steps[Reassignment]:
        """Like `decode`, for very many partitions."""
        fields = Fields.decode(data, path)
        fields.integer("version", VERSION)
        partitions: dict[TopicPartition, tuple[int, ...]] = {}
        left = PARTITIONS_PER_STEP
        for item in fields.each_object("partitions"):
            partition = TopicPartition(item.text("topic"), item.integer("partition"))
            partitions[partition] = item.broker_ids("replicas")
            left -= 1
            if not left:
                yield
                left = PARTITIONS_PER_STEP
        return cls(partitions, fields.rest())


@dataclass(frozen=True, slots=True)
class PreferredReplicaElection:
    """Payload of `/admin/preferred_replica_election`: partitions that shall be led by their preferred replica."""

    partitions: tuple[TopicPartition, ...]
    extra: Mapping[str, Any] = NO_EXTRA

    def encode(self) -> bytes:
        return encode_json({"version": VERSION, "partitions": encode_partitions(self.partitions)}, self.extra)

    @classmethod
    def decode(cls, data: bytes | None, path: str = PREFERRED_REPLICA_ELECTION_PATH) -> PreferredReplicaElection:
        fields = Fields.decode(data, path)
        fields.integer("version", VERSION)
        return cls(decode_partitions(fields, "partitions"), fields.rest())
