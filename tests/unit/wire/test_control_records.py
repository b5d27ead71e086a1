"""The markers that end transactions."""

from __future__ import annotations

import pytest

from barnabas.wire.control_records import (
    ControlRecordType,
    EndTransactionMarker,
    end_transaction_batch,
    read_control_record_type,
    read_end_transaction_marker,
)
from barnabas.wire.record_batch import RecordBatch
from barnabas.wire.record_errors import InvalidRecordError
from barnabas.wire.records import Record


@pytest.mark.parametrize("kind", [ControlRecordType.ABORT, ControlRecordType.COMMIT])
def test_markers_return_as_they_were_written(kind: ControlRecordType) -> None:
    marker = EndTransactionMarker(kind, 12)
    data = end_transaction_batch(
        marker, timestamp_ms=500, producer_id=9, producer_epoch=2, base_offset=33, partition_leader_epoch=4
    )
    assert len(data) == 78
    batch = RecordBatch(data)
    batch.verify()
    header = batch.header
    assert batch.is_control
    assert batch.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (9, 2, -1, -1)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (33, 33, 4)
    (record,) = batch.records()
    assert record.key == b"\0\0\0" + bytes((kind,))
    assert record.value == b"\0\0\0\0\0\x0c"
    assert read_end_transaction_marker(record) == marker


def test_kinds_that_are_not_known_are_unknown() -> None:
    assert read_control_record_type(b"\0\0\0\x02") is ControlRecordType.LEADER_CHANGE
    assert read_control_record_type(b"\0\x05\0\x01more") is ControlRecordType.COMMIT
    assert read_control_record_type(b"\0\0\0\x63") is ControlRecordType.UNKNOWN
    assert read_control_record_type(b"\0\0\xff\xff") is ControlRecordType.UNKNOWN


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (None, b"\0\0\0\0\0\0", "0 bytes"),
        (b"\0\0\0", b"\0\0\0\0\0\0", "3 bytes"),
        (b"\xff\xff\0\0", b"\0\0\0\0\0\0", "version -1"),
        (b"\0\0\0\x02", b"\0\0\0\0\0\0", "LEADER_CHANGE"),
        (b"\0\0\0\0", None, "no coordinator epoch"),
        (b"\0\0\0\0", b"\0\0\0\0\0", "no coordinator epoch"),
        (b"\0\0\0\0", b"\x80\0\0\0\0\0", "version -32768"),
    ],
)
def test_garbage_is_refused(key: bytes | None, value: bytes | None, reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        read_end_transaction_marker(Record(5, 0, key, value))


def test_only_commit_and_abort_end_a_transaction() -> None:
    with pytest.raises(ValueError, match="LEADER_CHANGE"):
        EndTransactionMarker(ControlRecordType.LEADER_CHANGE, 0)
