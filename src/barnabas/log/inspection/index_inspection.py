"""Looks at the indexes of a segment and changes nothing, and holds them against the segment's batches.

Entries are read in pieces and compared in one walk over the batches, so that neither file has to fit into memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from barnabas.kernel.host import Files
from barnabas.log.directories.files import read_at
from barnabas.log.inspection.batch_inspection import BatchFacts, Damage, DamageKind, is_zero_from
from barnabas.log.segments.indexes import AbortedTransaction, OffsetIndex, OffsetPosition, TimeIndex, TimestampOffset
from barnabas.wire.control_records import ControlRecordType
from barnabas.wire.sentinels import NO_TIMESTAMP

IndexEntry = OffsetPosition | TimestampOffset | AbortedTransaction

_ENTRIES_PER_PIECE: Final = 8_192
_ABORTED_TRANSACTION: Final = struct.Struct(">hqqqq")
_TRANSACTION_INDEX_VERSION: Final = 0


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An entry that would lead a reader astray."""

    number: int
    """Of the entry, from 0."""
    entry: IndexEntry
    detail: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """The rest of an index has nothing but zeros: Apache Kafka's brokers reserve an index in full and cut off what is
    left when they roll the segment or stop in order.
    """

    position: int
    size_bytes: int


def inspect_offset_index(
    files: Files, descriptor: int, base_offset: int
) -> Iterator[OffsetPosition | Reserved | Damage]:
    """The entries of an offset index; at the end Reserved, or a Damage where offsets or positions do not increase."""
    before = OffsetPosition(base_offset - 1, -1)
    for number, fields in _entries(files, descriptor, OffsetIndex.ENTRY, zeros_are_an_entry=False):
        if isinstance(fields, Reserved | Damage):
            yield fields
            return
        entry = OffsetPosition(base_offset + fields[0], fields[1])
        if entry.offset <= before.offset or entry.position <= before.position:
            yield _disorder(number, OffsetIndex.ENTRY, entry, before)
            return
        yield entry
        before = entry


def inspect_time_index(
    files: Files, descriptor: int, base_offset: int
) -> Iterator[TimestampOffset | Reserved | Damage]:
    """The entries of a time index; at the end Reserved, or a Damage where they do not increase."""
    before = TimestampOffset(NO_TIMESTAMP, base_offset)
    for number, fields in _entries(files, descriptor, TimeIndex.ENTRY, zeros_are_an_entry=True):
        if isinstance(fields, Reserved | Damage):
            yield fields
            return
        entry = TimestampOffset(fields[0], base_offset + fields[1])
        if entry.timestamp_ms <= before.timestamp_ms or entry.offset < before.offset:
            yield _disorder(number, TimeIndex.ENTRY, entry, before)
            return
        yield entry
        before = entry


def inspect_transaction_index(files: Files, descriptor: int) -> Iterator[AbortedTransaction | Reserved | Damage]:
    """The entries of a transaction index; at the end a Damage where one cannot be read or markers do not increase."""
    before: AbortedTransaction | None = None
    for number, fields in _entries(files, descriptor, _ABORTED_TRANSACTION, zeros_are_an_entry=True):
        if isinstance(fields, Reserved | Damage):
            yield fields
            return
        version, *rest = fields
        entry = AbortedTransaction._make(rest)
        position = number * _ABORTED_TRANSACTION.size
        if version != _TRANSACTION_INDEX_VERSION:
            yield Damage(DamageKind.CORRUPT, position, f"entry {number} has version {version}; only version 0 is known")
            return
        if entry.first_offset > entry.last_offset or (before is not None and entry.last_offset <= before.last_offset):
            yield _disorder(number, _ABORTED_TRANSACTION, entry, before)
            return
        yield entry
        before = entry


def verify_offset_index(entries: Iterable[OffsetPosition], batches: Iterable[BatchFacts]) -> Iterator[Mismatch]:
    """Holds the entries against the batches of the segment, both in order.

    An entry is right where a batch begins at its position and its offset is the last one of that batch, or of one that
    was appended together with it: of those before the position of the next entry.
    """
    numbered = enumerate(entries)
    upcoming = next(numbered, None)
    pending: tuple[int, OffsetPosition] | None = None
    last_offset = -1
    for batch in batches:
        while upcoming is not None and upcoming[1].position <= batch.position:
            if pending is not None:
                yield _never_reached(pending, last_offset)
                pending = None
            if upcoming[1].position < batch.position:
                yield Mismatch(*upcoming, f"no batch begins at byte {upcoming[1].position}")
            else:
                pending = upcoming
            upcoming = next(numbered, None)
        if pending is not None and pending[1].offset <= batch.last_offset:
            if pending[1].offset != batch.last_offset:
                yield Mismatch(
                    *pending,
                    f"the batch at byte {batch.position} has offsets {batch.base_offset} to {batch.last_offset}",
                )
            pending = None
        last_offset = batch.last_offset
    if pending is not None:
        yield _never_reached(pending, last_offset)
    if upcoming is not None:
        yield Mismatch(*upcoming, "it points behind the last batch of the log")
    for number, entry in numbered:
        yield Mismatch(number, entry, "it points behind the last batch of the log")


def verify_time_index(entries: Iterable[TimestampOffset], batches: Iterable[BatchFacts]) -> Iterator[Mismatch]:
    """Holds the entries against the batches of the segment, both in order.

    An entry is right where its offset is in a batch whose largest timestamp it has, and no batch before has a larger.
    """
    numbered = enumerate(entries)
    upcoming = next(numbered, None)
    largest_ms = NO_TIMESTAMP
    for batch in batches:
        while upcoming is not None and upcoming[1].offset <= batch.last_offset:
            entry = upcoming[1]
            if entry.offset < batch.base_offset:
                yield Mismatch(*upcoming, f"no batch has offset {entry.offset}")
            elif entry.timestamp_ms != batch.max_timestamp_ms:
                yield Mismatch(
                    *upcoming, f"the batch with offset {entry.offset} has timestamps up to {batch.max_timestamp_ms}"
                )
            elif largest_ms > entry.timestamp_ms:
                yield Mismatch(*upcoming, f"timestamp {largest_ms} comes before it")
            upcoming = next(numbered, None)
        largest_ms = max(largest_ms, batch.max_timestamp_ms)
    if upcoming is not None:
        yield Mismatch(*upcoming, "its offset is behind the last batch of the log")
    for number, entry in numbered:
        yield Mismatch(number, entry, "its offset is behind the last batch of the log")


def verify_transaction_index(
    entries: Iterable[AbortedTransaction],
    batches: Iterable[BatchFacts],
    read_marker: Callable[[BatchFacts], ControlRecordType | None],
) -> Iterator[Mismatch]:
    """Holds the entries against the batches of the segment, both in order.

    An entry is right where its last offset is that of a marker with which its producer aborted. `read_marker` gives
    the type of the marker in a control batch; None where the cleaner has emptied it.
    """
    numbered = enumerate(entries)
    upcoming = next(numbered, None)
    for batch in batches:
        while upcoming is not None and upcoming[1].last_offset <= batch.last_offset:
            entry = upcoming[1]
            if entry.last_offset < batch.base_offset or not batch.is_control:
                yield Mismatch(*upcoming, f"no transaction ends at offset {entry.last_offset}")
            elif batch.producer_id != entry.producer_id:
                yield Mismatch(*upcoming, f"the marker there is that of producer {batch.producer_id}")
            elif read_marker(batch) not in (ControlRecordType.ABORT, None):
                yield Mismatch(*upcoming, "the transaction that ends there was not aborted")
            upcoming = next(numbered, None)
    if upcoming is not None:
        yield Mismatch(*upcoming, "its marker is behind the last batch of the log")
    for number, entry in numbered:
        yield Mismatch(number, entry, "its marker is behind the last batch of the log")


def _entries(
    files: Files, descriptor: int, layout: struct.Struct, *, zeros_are_an_entry: bool
) -> Iterator[tuple[int, tuple[int, ...] | Reserved | Damage]]:
    """Number and fields of each entry; at the end what the rest is where it is no entries.

    With `zeros_are_an_entry`, a single entry of zeros in an otherwise empty file is one.
    """
    number = 0
    size_bytes = files.size(descriptor)
    piece_bytes = _ENTRIES_PER_PIECE * layout.size
    position = 0
    while position < size_bytes:
        data = read_at(files, descriptor, min(piece_bytes, size_bytes - position), position)
        for at in range(0, len(data), layout.size):
            entry = data[at : at + layout.size]
            place = position + at
            is_single = zeros_are_an_entry and not number and size_bytes == layout.size
            if not any(entry) and not is_single and is_zero_from(files, descriptor, place):
                yield number, Reserved(place, size_bytes - place)
                return
            if len(entry) < layout.size:
                detail = f"the file ends after {len(entry)} bytes of entry {number}, which has {layout.size}"
                yield number, Damage(DamageKind.TORN, place, detail)
                return
            yield number, layout.unpack(entry)
            number += 1
        if not data:
            return
        position += len(data)


def _disorder(number: int, layout: struct.Struct, entry: IndexEntry, before: IndexEntry | None) -> Damage:
    return Damage(
        DamageKind.CORRUPT,
        number * layout.size,
        f"entry {number} is {entry}, which cannot follow {before or 'nothing'}",
    )


def _never_reached(entry: tuple[int, OffsetPosition], last_offset: int) -> Mismatch:
    return Mismatch(*entry, f"the batches from there up to the next entry end with offset {last_offset}")
