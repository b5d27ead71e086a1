"""The records of `__remote_log_metadata`: their bytes, and in which partition of the topic they are.

A value begins with three unsigned varints: the version of the frame (1), the type of the record, and its version;
records have no key. It is Apache Kafka 3.9's RemoteLogMetadataSerde.
"""

from __future__ import annotations

from typing import Final

from barnabas.client.partitioners import murmur2
from barnabas.kernel.ids import Uuid
from barnabas.tiered.segment_metadata import (
    RemoteLogMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    RemotePartitionDeleteState,
    RemotePartitionDeletion,
    TopicIdPartition,
)
from barnabas.wire.classes import Message
from barnabas.wire.codec import decode, encode
from barnabas.wire.messages import (
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
)
from barnabas.wire.primitives import ProtocolError, read_unsigned_varint, unsigned_varint
from barnabas.wire.topics import TopicPartition

_FRAME_VERSION: Final = 1
_VERSION: Final = 0
_SEGMENT: Final = 0
_SEGMENT_UPDATE: Final = 1
_PARTITION_DELETE: Final = 2
_INT32: Final = 1 << 32
_JAVA_HASH_FACTOR: Final = 31


def metadata_partition(partition: TopicIdPartition, partition_count: int) -> int:
    """The partition of `__remote_log_metadata` that has what is said of a partition."""
    most, least = (int.from_bytes(partition.topic_id[at : at + 8], "big") for at in (0, 8))
    hashed = 1
    for part in (least ^ least >> 32, most ^ most >> 32, partition.topic_partition.partition):
        hashed = (_JAVA_HASH_FACTOR * hashed + part) % _INT32
    return (murmur2(hashed.to_bytes(4, "big")) & 0x7FFFFFFF) % partition_count


def encode_metadata(metadata: RemoteLogMetadata) -> bytes:
    """The value of a record."""
    match metadata:
        case RemoteLogSegmentMetadata():
            return _framed(_SEGMENT, _segment_record(metadata))
        case RemoteLogSegmentUpdate():
            return _framed(_SEGMENT_UPDATE, _update_record(metadata))
        case RemotePartitionDeletion():
            return _framed(_PARTITION_DELETE, _deletion_record(metadata))


def decode_metadata(value: bytes) -> RemoteLogMetadata:
    """What the value of a record says. Raises ProtocolError for one that is none, or of a type that nobody writes."""
    frame_version, position = read_unsigned_varint(value, 0, len(value))
    kind, position = read_unsigned_varint(value, position, len(value))
    version, position = read_unsigned_varint(value, position, len(value))
    if frame_version != _FRAME_VERSION:
        raise ProtocolError(
            f"remote log metadata in a frame of version {frame_version}: only {_FRAME_VERSION} is known"
        )
    body = value[position:]
    try:
        match kind:
            case 0:
                return _segment_of(decode(RemoteLogSegmentMetadataRecord, version, body))
            case 1:
                return _update_of(decode(RemoteLogSegmentMetadataUpdateRecord, version, body))
            case 2:
                return _deletion_of(decode(RemotePartitionDeleteMetadataRecord, version, body))
    except ValueError as error:
        raise ProtocolError(f"remote log metadata of type {kind} cannot be: {error}") from error
    raise ProtocolError(f"remote log metadata of type {kind}: only types 0 to 2 are known")


def _framed(kind: int, message: Message) -> bytes:
    head = unsigned_varint(_FRAME_VERSION) + unsigned_varint(kind) + unsigned_varint(_VERSION)
    return b"".join([head, *encode(message, _VERSION)])


def _segment_record(metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadataRecord:
    record = RemoteLogSegmentMetadataRecord
    partition = metadata.segment_id.partition
    return record(
        remote_log_segment_id=record.RemoteLogSegmentIdEntry(
            topic_id_partition=record.TopicIdPartitionEntry(
                name=partition.topic_partition.topic,
                id=partition.topic_id,
                partition=partition.topic_partition.partition,
            ),
            id=metadata.segment_id.id,
        ),
        start_offset=metadata.start_offset,
        end_offset=metadata.end_offset,
        broker_id=metadata.broker_id,
        max_timestamp_ms=metadata.max_timestamp_ms,
        event_timestamp_ms=metadata.event_timestamp_ms,
        segment_leader_epochs=[
            record.SegmentLeaderEpochEntry(leader_epoch=epoch, offset=offset)
            for epoch, offset in metadata.leader_epochs.items()
        ],
        segment_size_in_bytes=metadata.size_bytes,
        custom_metadata=metadata.custom_metadata,
        remote_log_segment_state=metadata.state,
    )


def _segment_of(read: RemoteLogSegmentMetadataRecord) -> RemoteLogSegmentMetadata:
    where = read.remote_log_segment_id
    return RemoteLogSegmentMetadata(
        segment_id=_segment_id(where.topic_id_partition, where.id),
        start_offset=read.start_offset,
        end_offset=read.end_offset,
        max_timestamp_ms=read.max_timestamp_ms,
        broker_id=read.broker_id,
        event_timestamp_ms=read.event_timestamp_ms,
        size_bytes=read.segment_size_in_bytes,
        leader_epochs={
            entry.leader_epoch: entry.offset
            for entry in sorted(read.segment_leader_epochs, key=lambda entry: entry.leader_epoch)
        },
        state=RemoteLogSegmentState(read.remote_log_segment_state),
        custom_metadata=read.custom_metadata,
    )


def _update_record(update: RemoteLogSegmentUpdate) -> RemoteLogSegmentMetadataUpdateRecord:
    record = RemoteLogSegmentMetadataUpdateRecord
    partition = update.segment_id.partition
    return record(
        remote_log_segment_id=record.RemoteLogSegmentIdEntry(
            topic_id_partition=record.TopicIdPartitionEntry(
                name=partition.topic_partition.topic,
                id=partition.topic_id,
                partition=partition.topic_partition.partition,
            ),
            id=update.segment_id.id,
        ),
        broker_id=update.broker_id,
        event_timestamp_ms=update.event_timestamp_ms,
        custom_metadata=update.custom_metadata,
        remote_log_segment_state=update.state,
    )


def _update_of(read: RemoteLogSegmentMetadataUpdateRecord) -> RemoteLogSegmentUpdate:
    where = read.remote_log_segment_id
    return RemoteLogSegmentUpdate(
        _segment_id(where.topic_id_partition, where.id),
        read.broker_id,
        read.event_timestamp_ms,
        RemoteLogSegmentState(read.remote_log_segment_state),
        read.custom_metadata,
    )


def _deletion_record(deletion: RemotePartitionDeletion) -> RemotePartitionDeleteMetadataRecord:
    record = RemotePartitionDeleteMetadataRecord
    return record(
        topic_id_partition=record.TopicIdPartitionEntry(
            name=deletion.partition.topic_partition.topic,
            id=deletion.partition.topic_id,
            partition=deletion.partition.topic_partition.partition,
        ),
        broker_id=deletion.broker_id,
        event_timestamp_ms=deletion.event_timestamp_ms,
        remote_partition_delete_state=deletion.state,
    )


def _deletion_of(read: RemotePartitionDeleteMetadataRecord) -> RemotePartitionDeletion:
    where = read.topic_id_partition
    return RemotePartitionDeletion(
        TopicIdPartition(Uuid(where.id), TopicPartition(where.name, where.partition)),
        read.broker_id,
        read.event_timestamp_ms,
        RemotePartitionDeleteState(read.remote_partition_delete_state),
    )


def _segment_id(
    partition: RemoteLogSegmentMetadataRecord.TopicIdPartitionEntry
    | RemoteLogSegmentMetadataUpdateRecord.TopicIdPartitionEntry,
    segment_id: bytes,
) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(
        TopicIdPartition(Uuid(partition.id), TopicPartition(partition.name, partition.partition)), Uuid(segment_id)
    )
