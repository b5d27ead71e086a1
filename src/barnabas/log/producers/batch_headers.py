"""What a batch in the log says of its leader epoch, its producer and the end of a transaction."""

from __future__ import annotations

from barnabas.wire.control_records import EndTransactionMarker, read_end_transaction_marker
from barnabas.wire.record_batch import BatchHeader, RecordBatch
from barnabas.wire.record_errors import InvalidRecordError
from barnabas.wire.records import Batch


def header_of(batch: Batch) -> BatchHeader | None:
    """The header of a batch of magic 2; older messages know neither producers nor epochs."""
    return batch.header if isinstance(batch, RecordBatch) else None


def marker_in(batch: RecordBatch) -> EndTransactionMarker | None:
    """The marker in a control batch; None in a data batch, in an empty one, and for kinds that end no transaction."""
    if not batch.header.is_control:
        return None
    for record in batch.records():
        try:
            return read_end_transaction_marker(record)
        except InvalidRecordError:
            return None
    return None
