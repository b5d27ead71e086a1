"""Batches of every message format under one face: the class of each, and the records of a whole buffer."""

from __future__ import annotations

from collections.abc import Iterator

from barnabas.wire.compression_types import DEFAULT_DECOMPRESSED_BYTES_MAX, Buffer
from barnabas.wire.legacy_records import LegacyBatch
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.records import MAGIC_V2, Batch, BatchSpan, Record, walk_batches


def batch_at(buffer: Buffer, span: BatchSpan) -> Batch:
    """The batch at a span that `walk_batches` found in the same buffer. It refers to the buffer and copies nothing
    until records are read.
    """
    if span.magic == MAGIC_V2:
        return RecordBatch(buffer, span.position)
    return LegacyBatch(buffer, span.position)


def read_records(
    buffer: Buffer, *, verify: bool = True, decompressed_bytes_max: int = DEFAULT_DECOMPRESSED_BYTES_MAX
) -> Iterator[Record]:
    """All records of all whole batches in the buffer, control batches left out, as a consumer sees them."""
    for span in walk_batches(buffer).spans:
        batch = batch_at(buffer, span)
        if verify:
            batch.verify()
        if not batch.is_control:
            yield from batch.records(decompressed_bytes_max)
