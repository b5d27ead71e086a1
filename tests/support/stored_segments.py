"""Copies of segments in a remote storage, as brokers leave them, made by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from barnabas.kernel.ids import Uuid
from barnabas.log.directories.checkpoints import EpochEntry, format_epochs
from barnabas.log.producers.producer_snapshot import ProducerSnapshotEntry, format_snapshot
from barnabas.tiered.object_names import ObjectKind, object_name
from barnabas.tiered.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from barnabas.tiered.storage import RemoteStore
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.topics import TopicPartition

TOPIC_ID: Final = Uuid(bytes(range(16)))
FIRST_MS: Final = 1_700_000_000_000


def partition(topic: str = "flights", number: int = 0) -> TopicIdPartition:
    return TopicIdPartition(TOPIC_ID, TopicPartition(topic, number))


def records(start: int, end: int, epoch: int = 0, producer_id: int = -1, text: str = "value") -> bytes:
    """One batch of the records with these offsets; transactional with a producer."""
    builder = RecordBatchBuilder(
        base_offset=start,
        partition_leader_epoch=epoch,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        is_transactional=producer_id >= 0,
    )
    for offset in range(start, end):
        builder.append(FIRST_MS + offset, b"key-%d" % offset, f"{text}-{offset}".encode(), [(b"trace", b"%d" % offset)])
    return bytes(builder.build())


def abort_marker(offset: int, producer_id: int, epoch: int = 0) -> bytes:
    return bytes(
        end_transaction_batch(
            EndTransactionMarker(ControlRecordType.ABORT, 0),
            timestamp_ms=FIRST_MS,
            producer_id=producer_id,
            producer_epoch=0,
            base_offset=offset,
            partition_leader_epoch=epoch,
        )
    )


def put_copy(
    store: RemoteStore,
    copied: TopicIdPartition,
    number: int,
    start: int,
    batches: Sequence[bytes],
    *,
    epochs: Sequence[tuple[int, int]] = ((0, 0),),
    aborted: Sequence[tuple[int, int, int]] = (),
    open_at: Sequence[tuple[int, int]] = (),
    without: ObjectKind | None = None,
) -> None:
    """`number` is the copy's, `epochs` epoch and first offset, `aborted` producer, first and last offset, `open_at`
    producer and first offset of transactions that go on behind the copy's end."""
    segment_id = RemoteLogSegmentId(copied, Uuid(number.to_bytes(16, "big")))
    metadata = RemoteLogSegmentMetadata(segment_id, start, start + 1_000_000, 0, 1, 0, 100, {0: start})
    contents = {
        ObjectKind.LOG: b"".join(batches),
        ObjectKind.LEADER_EPOCHS: format_epochs([EpochEntry(*entry) for entry in epochs]),
        ObjectKind.TRANSACTION_INDEX: b"".join(struct.pack(">hqqqq", 0, *entry, entry[2] + 1) for entry in aborted),
    }
    producers = [
        ProducerSnapshotEntry(producer, 0, 0, first, 0, FIRST_MS, 0, transaction_first_offset=first)
        for producer, first in (*open_at, (99, -1))
    ]
    contents[ObjectKind.PRODUCER_SNAPSHOT] = format_snapshot(producers)
    for kind in ObjectKind:
        if kind is not without:
            store.put(object_name(metadata, kind), [contents.get(kind, b"")])
