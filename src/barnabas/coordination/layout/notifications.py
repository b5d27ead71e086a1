"""`/isr_change_notification` and `/log_dir_event_notification`: what brokers tell the controller through sequential
znodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from barnabas.coordination.layout.payload import NO_EXTRA, Fields, encode_json
from barnabas.wire.topics import TopicPartition

ISR_CHANGES_PATH = "/isr_change_notification"
ISR_CHANGE_PREFIX = "isr_change_"
LOG_DIR_EVENTS_PATH = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX = "log_dir_event_"
VERSION = 1
LOG_DIR_FAILURE = 1


def isr_change_path(sequence_number: str = "") -> str:
    """One announcement; without a number, the path to create a sequential one at."""
    return f"{ISR_CHANGES_PATH}/{ISR_CHANGE_PREFIX}{sequence_number}"


def log_dir_event_path(sequence_number: str = "") -> str:
    """One announcement; without a number, the path to create a sequential one at."""
    return f"{LOG_DIR_EVENTS_PATH}/{LOG_DIR_EVENT_PREFIX}{sequence_number}"


def encode_partitions(partitions: tuple[TopicPartition, ...]) -> list[dict[str, Any]]:
    """A list of partitions as Kafka writes it in several payloads."""
    return [{"topic": partition.topic, "partition": partition.partition} for partition in partitions]


def decode_partitions(fields: Fields, name: str) -> tuple[TopicPartition, ...]:
    return tuple([TopicPartition(item.text("topic"), item.integer("partition")) for item in fields.objects(name)])


@dataclass(frozen=True, slots=True)
class IsrChange:
    """Payload of `/isr_change_notification/isr_change_*`: partitions whose state a leader has changed
    (inter.broker.protocol.version below 2.7).
    """

    partitions: tuple[TopicPartition, ...]
    extra: Mapping[str, Any] = NO_EXTRA

    def encode(self) -> bytes:
        return encode_json({"version": VERSION, "partitions": encode_partitions(self.partitions)}, self.extra)

    @classmethod
    def decode(cls, data: bytes | None, path: str) -> IsrChange:
        fields = Fields.decode(data, path)
        fields.integer("version", VERSION)
        return cls(decode_partitions(fields, "partitions"), fields.rest())


@dataclass(frozen=True, slots=True)
class LogDirEvent:
    """Payload of `/log_dir_event_notification/log_dir_event_*`: a log directory of the broker has failed."""

    broker_id: int
    event: int = LOG_DIR_FAILURE
    extra: Mapping[str, Any] = NO_EXTRA

    def encode(self) -> bytes:
        return encode_json({"version": VERSION, "broker": self.broker_id, "event": self.event}, self.extra)

    @classmethod
    def decode(cls, data: bytes | None, path: str) -> LogDirEvent:
        fields = Fields.decode(data, path)
        fields.integer("version", VERSION)
        return cls(fields.integer("broker"), fields.integer("event", LOG_DIR_FAILURE), fields.rest())
