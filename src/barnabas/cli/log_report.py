"""What `barnabas log dump` prints: each fact of a file as a line for people or as one JSON document."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from barnabas.cli.output import counted, printable
from barnabas.cli.record_formats import add_bytes, header_documents, shown_bytes, shown_time
from barnabas.cli.record_json import json_line
from barnabas.log.inspection.batch_inspection import DamageKind
from barnabas.wire.control_records import read_control_record_type, read_end_transaction_marker
from barnabas.wire.record_errors import InvalidRecordError
from barnabas.wire.records import TimestampType
from barnabas.wire.sentinels import NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from barnabas.wire.topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    from barnabas.log.inspection.batch_inspection import BatchFacts, Damage
    from barnabas.log.inspection.index_inspection import IndexEntry, Mismatch, Reserved
    from barnabas.log.producers.producer_snapshot import ProducerSnapshotEntry
    from barnabas.wire.records import Record

_BATCH_HEADINGS: Final = (
    f"{'position':>12} {'bytes':>9} {'offsets':<25} {'records':>7} {'epoch':>5} {'producer':<24} {'codec':<6} "
    f"{'newest record':<24} also"
)
_WHAT_FOLLOWS: Final = {
    DamageKind.TORN: "a broker cuts this off when it recovers the log",
    DamageKind.ZEROS: "reserved and not used (log.preallocate), or lost with the power; a recovery cuts it off",
    DamageKind.CORRUPT: "a broker cuts off everything from here on when it recovers the log",
}


@dataclass(slots=True)
class BatchTotals:
    """What was seen of a segment."""

    batches: int = 0
    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    faulty_position: int | None = None
    """The position of the first batch that a recovery would refuse."""

    def add(self, facts: BatchFacts) -> None:
        self.batches += 1
        self.records += facts.record_count or 0
        if self.first_offset is None:
            self.first_offset = facts.base_offset
        self.last_offset = facts.last_offset
        if facts.fault is not None and self.faulty_position is None:
            self.faulty_position = facts.position


class LogReport:
    """Prints facts as they come; `is_damaged` says whether anything was wrong in any file."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.is_damaged = False

    def file(self, path: str, kind: str, size_bytes: int, **more: Any) -> None:
        """Begins a file; everything up to the next is about it."""
        details = "".join(f", {name.replace('_', ' ')} {value}" for name, value in more.items() if value is not None)
        self._print(
            {"type": "file", "path": path, "kind": kind, "size_bytes": size_bytes, **more},
            f"{printable(path)}: {kind.replace('_', ' ')}{details}, {counted(size_bytes, 'byte')}",
        )

    # Batches and records.

    def batch_headings(self) -> None:
        if not self._as_json:
            _print_line(_BATCH_HEADINGS)

    def batch(self, facts: BatchFacts) -> None:
        if self._as_json:
            _print_line(json_line(_batch_document(facts)))
        else:
            _print_line(_batch_line(facts))
        self.is_damaged = self.is_damaged or facts.fault is not None

    def record(self, record: Record, topic: str | None, *, is_control: bool) -> None:
        """A record of the batch before; `topic` tells how to decode those of internal topics."""
        decoded = _decode_control(record) if is_control else None
        if decoded is None and topic in INTERNAL_TOPICS:
            from barnabas.cli.internal_records import decode_internal  # it loads all messages of the protocol

            decoded = decode_internal(topic, record.key, record.value)
        if self._as_json:
            _print_line(json_line(_record_document(record, decoded)))
        else:
            _print_line(_record_line(record, decoded))

    def unreadable(self, position: int, detail: str) -> None:
        """Records of a batch that could not be read."""
        self.is_damaged = True
        self._print(
            {"type": "unreadable_records", "position": position, "detail": detail},
            f"! the records of the batch at byte {position} cannot be read: {printable(detail)}",
        )

    def totals(self, totals: BatchTotals) -> None:
        offsets = "" if totals.first_offset is None else f", offsets {totals.first_offset} to {totals.last_offset}"
        self._print(
            {
                "type": "totals",
                "batches": totals.batches,
                "records": totals.records,
                "first_offset": totals.first_offset,
                "last_offset": totals.last_offset,
                "faulty_position": totals.faulty_position,
            },
            f"{counted(totals.batches, 'batch', 'batches')} with {counted(totals.records, 'record')}{offsets}",
        )
        if totals.faulty_position is not None and not self._as_json:
            _print_line(f"! a broker that recovers this log cuts it off at byte {totals.faulty_position}")

    # Everything else.

    def index_entry(self, number: int, entry: IndexEntry) -> None:
        self._print({"type": "entry", "number": number, **entry._asdict()}, f"{number:>12} {_shown_entry(entry)}")

    def producer(self, entry: ProducerSnapshotEntry) -> None:
        self._print(
            {"type": "producer", **entry._asdict()},
            f"  producer {entry.producer_id}, epoch {entry.epoch}, last sequence {entry.last_sequence}, last offset "
            f"{entry.last_offset}, offset delta {entry.offset_delta}, at {shown_time(entry.timestamp_ms)}, coordinator "
            f"epoch {entry.coordinator_epoch}, transaction from {_or_none(entry.transaction_first_offset)}",
        )

    def entry(self, **fields: Any) -> None:
        """Any other entry of a file."""
        shown = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in fields.items() if value is not None)
        self._print({"type": "entry", **fields}, f"  {printable(shown)}")

    def reserved(self, reserved: Reserved) -> None:
        self._print(
            {"type": "reserved", "position": reserved.position, "size_bytes": reserved.size_bytes},
            f"  then {counted(reserved.size_bytes, 'byte')} of zeros, reserved by the broker that writes it",
        )

    def damage(self, damage: Damage, *, is_index: bool = False) -> None:
        """Where what can be read ends; an index loses nothing by it that the log does not have."""
        self.is_damaged = True
        meaning = "a broker that recovers the log rebuilds the index" if is_index else _WHAT_FOLLOWS[damage.kind]
        self._print(
            {"type": "damage", "kind": damage.kind.value, "position": damage.position, "detail": damage.detail},
            f"! {damage.kind.value} from byte {damage.position} on: {printable(damage.detail)}; {meaning}",
        )

    def unreadable_file(self, detail: str) -> None:
        """A small file that makes no sense as a whole."""
        self.is_damaged = True
        self._print({"type": "damage", "kind": "corrupt", "position": 0, "detail": detail}, f"! {printable(detail)}")

    def mismatch(self, mismatch: Mismatch) -> None:
        self.is_damaged = True
        self._print(
            {"type": "mismatch", "number": mismatch.number, **mismatch.entry._asdict(), "detail": mismatch.detail},
            f"! entry {mismatch.number} does not fit the log: {_shown_entry(mismatch.entry)}: {mismatch.detail}",
        )

    def verified(self, entries: int, mismatches: int) -> None:
        """The end of a comparison of an index with its log."""
        self._print(
            {"type": "verified", "entries": entries, "mismatches": mismatches},
            f"{counted(entries, 'entry', 'entries')} checked against the log, "
            f"{counted(mismatches, 'mismatch', 'mismatches')}",
        )

    def partitions(self, rows: Sequence[dict[str, Any]]) -> None:
        """The partition directories of a log directory."""
        if self._as_json:
            for row in rows:
                _print_line(json_line({"type": "partition", **row}))
            return
        _print_line(f"{counted(len(rows), 'partition directory', 'partition directories')}")
        for row in rows:
            _print_line(
                f"  {printable(row['directory'])}: {counted(row['segments'], 'segment')}, "
                f"{counted(row['size_bytes'], 'byte')}"
                + (f", topic id {row['topic_id']}" if row["topic_id"] is not None else "")
            )

    def _print(self, document: dict[str, Any], line: str) -> None:
        _print_line(json_line(document) if self._as_json else line)


def _print_line(line: str) -> None:
    """Buffered where nobody looks on: there may be millions."""
    sys.stdout.write(f"{line}\n")


def _batch_document(facts: BatchFacts) -> dict[str, Any]:
    return {
        "type": "batch",
        "position": facts.position,
        "size_bytes": facts.size_bytes,
        "magic": facts.magic,
        "base_offset": facts.base_offset,
        "last_offset": facts.last_offset,
        "records": facts.record_count,
        "partition_leader_epoch": facts.partition_leader_epoch,
        "producer_id": facts.producer_id,
        "producer_epoch": facts.producer_epoch,
        "base_sequence": facts.base_sequence,
        "last_sequence": facts.last_sequence,
        "is_transactional": facts.is_transactional,
        "is_control": facts.is_control,
        "codec": _codec_name(facts),
        "timestamp_type": _TIMESTAMP_TYPES[facts.timestamp_type],
        "max_timestamp_ms": facts.max_timestamp_ms,
        "delete_horizon_ms": facts.delete_horizon_ms,
        "crc": facts.crc,
        "is_crc_valid": facts.is_crc_valid,
        "fault": facts.fault,
    }


def _batch_line(facts: BatchFacts) -> str:
    offsets = f"{facts.base_offset}..{facts.last_offset}"
    producer = "-"
    if facts.producer_id != NO_PRODUCER_ID:
        producer = f"{facts.producer_id}/{facts.producer_epoch}"
        if facts.base_sequence != NO_SEQUENCE:
            producer += f" {facts.base_sequence}..{facts.last_sequence}"
    also = [] if facts.timestamp_type is TimestampType.CREATE_TIME else [_TIMESTAMP_TYPES[facts.timestamp_type] or ""]
    if facts.magic != _MAGIC_NOW:
        also.append(f"magic {facts.magic}")
    if facts.is_transactional:
        also.append("transactional")
    if facts.is_control:
        also.append("control")
    if facts.delete_horizon_ms is not None:
        also.append(f"markers may go from {shown_time(facts.delete_horizon_ms)} on")
    if facts.fault is not None:
        also.append(f"! {facts.fault}")
    count = "?" if facts.record_count is None else facts.record_count
    return (
        f"{facts.position:>12} {facts.size_bytes:>9} {offsets:<25} {count:>7} {facts.partition_leader_epoch:>5} "
        f"{producer:<24} {_codec_name(facts) or '?':<6} {_shown_stamp(facts.max_timestamp_ms):<24} {', '.join(also)}"
    ).rstrip()


def _record_document(record: Record, decoded: dict[str, Any] | None) -> dict[str, Any]:
    document: dict[str, Any] = {"type": "record", "offset": record.offset, "timestamp_ms": record.timestamp_ms}
    add_bytes(document, "key", record.key)
    add_bytes(document, "value", record.value)
    document["headers"] = header_documents(record.headers)
    if decoded is not None:
        document["decoded"] = decoded
    return document


def _record_line(record: Record, decoded: dict[str, Any] | None) -> str:
    start = f"{'':>12}   offset {record.offset} {_shown_stamp(record.timestamp_ms)}"
    if decoded is not None:
        return f"{start} {json_line(decoded)}"
    headers = "".join(f" {shown_bytes(key)}={shown_bytes(value)}" for key, value in record.headers)
    return (
        f"{start} key {shown_bytes(record.key)} value {shown_bytes(record.value)}"
        + (" headers" if headers else "")
        + headers
    )


def _decode_control(record: Record) -> dict[str, Any] | None:
    try:
        kind = read_control_record_type(record.key)
        decoded: dict[str, Any] = {"type": "marker", "marker": kind.name.lower()}
        decoded["coordinator_epoch"] = read_end_transaction_marker(record).coordinator_epoch
    except InvalidRecordError as error:
        return {"type": "marker", "error": str(error)}
    return decoded


def _shown_entry(entry: IndexEntry) -> str:
    return ", ".join(
        f"{name.replace('_', ' ').removesuffix(' ms')} {shown_time(value) if name == 'timestamp_ms' else value}"
        for name, value in entry._asdict().items()
    )


def _codec_name(facts: BatchFacts) -> str | None:
    return None if facts.compression_type is None else facts.compression_type.name.lower()


def _shown_stamp(timestamp_ms: int) -> str:
    return "-" if timestamp_ms == NO_TIMESTAMP else shown_time(timestamp_ms)


def _or_none(offset: int) -> str:
    return "none" if offset < 0 else str(offset)


_MAGIC_NOW: Final = 2
_TIMESTAMP_TYPES: Final = {
    TimestampType.NO_TIMESTAMP_TYPE: None,
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}
