"""Control records: the markers that end a transaction in a partition (KIP-98).

A control batch holds one record. Its key is a version and a type, both int16; the value of an end-of-transaction marker
is a version (int16) and the epoch of the coordinator that wrote it (int32). Newer versions may add fields after these.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

from barnabas.kernel.facts import fact
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.record_errors import InvalidRecordError
from barnabas.wire.records import Record
from barnabas.wire.sentinels import NO_EPOCH

_KEY: Final = struct.Struct(">hh")
_END_TRANSACTION_VALUE: Final = struct.Struct(">hi")


class ControlRecordType(enum.IntEnum):
    """The kinds of control records. All but the first two belong to KRaft and are passed over here; a kind that is not
    known is UNKNOWN.
    """

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@fact
class EndTransactionMarker:
    """The decision on a producer's transaction."""

    type: ControlRecordType
    coordinator_epoch: int

    def __post_init__(self) -> None:
        if self.type not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
            raise ValueError(f"a transaction ends with ABORT or COMMIT, not {self.type.name}")


def read_control_record_type(key: bytes | None) -> ControlRecordType:
    """The kind of a control record by its key. Raises InvalidRecordError for a key that is none."""
    if key is None or len(key) < _KEY.size:
        raise InvalidRecordError(
            f"key of a control record has {0 if key is None else len(key)} bytes; it needs {_KEY.size}"
        )
    version, code = _KEY.unpack_from(key)
    if version < 0:
        raise InvalidRecordError(f"key of a control record has version {version}")
    return ControlRecordType(code) if 0 <= code <= ControlRecordType.KRAFT_VOTERS else ControlRecordType.UNKNOWN


def read_end_transaction_marker(record: Record) -> EndTransactionMarker:
    """The marker in a record of a control batch. Raises InvalidRecordError for other control records and garbage."""
    control_type = read_control_record_type(record.key)
    if control_type not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        raise InvalidRecordError(
            f"control record at offset {record.offset} is {control_type.name}, not the end of a transaction"
        )
    if record.value is None or len(record.value) < _END_TRANSACTION_VALUE.size:
        raise InvalidRecordError(f"marker at offset {record.offset} has no coordinator epoch")
    version, coordinator_epoch = _END_TRANSACTION_VALUE.unpack_from(record.value)
    if version < 0:
        raise InvalidRecordError(f"marker at offset {record.offset} has version {version}")
    return EndTransactionMarker(control_type, coordinator_epoch)


def end_transaction_batch(
    marker: EndTransactionMarker,
    *,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_EPOCH,
) -> bytearray:
    """The control batch with which a leader ends a transaction in its partition (WriteTxnMarkers)."""
    builder = RecordBatchBuilder(
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
        partition_leader_epoch=partition_leader_epoch,
    )
    builder.append(timestamp_ms, _KEY.pack(0, marker.type), _END_TRANSACTION_VALUE.pack(0, marker.coordinator_epoch))
    return builder.build()
