"""Producer snapshots (`%020d.snapshot`): the state of all producers of a partition up to an offset (KIP-98).

Version 1 of Kafka's format: version, CRC-32C of what follows, entries of a fixed size. A snapshot has only the last
batch of each producer; the other four of its window come back as they are read from the log.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from barnabas.wire.crc import crc32c

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hIi")
_CHECKSUMMED_FROM: Final = 6
_ENTRY: Final = struct.Struct(">qhiqiqiq")


class CorruptSnapshotError(Exception):
    """A producer snapshot that cannot be read."""


class ProducerSnapshotEntry(NamedTuple):
    """One producer; the fields in the order in which they are stored."""

    producer_id: int
    epoch: int
    last_sequence: int
    """Of its last batch; NO_SEQUENCE where that is not known, as after a transaction marker."""
    last_offset: int
    offset_delta: int
    """Last offset minus first offset of the last batch."""
    timestamp_ms: int
    coordinator_epoch: int
    """Of the transaction coordinator whose marker was written last."""
    transaction_first_offset: int
    """Where the transaction began that is under way; -1 for none."""


def format_snapshot(entries: Sequence[ProducerSnapshotEntry]) -> bytes:
    """The bytes of a snapshot file."""
    data = bytearray(_HEAD.pack(_VERSION, 0, len(entries)))
    for entry in entries:
        data += _ENTRY.pack(*entry)
    checksum = crc32c(memoryview(data)[_CHECKSUMMED_FROM:])
    _HEAD.pack_into(data, 0, _VERSION, checksum, len(entries))
    return bytes(data)


def parse_snapshot(data: bytes) -> list[ProducerSnapshotEntry]:
    """The entries of a snapshot file. Raises CorruptSnapshotError."""
    if len(data) < _HEAD.size:
        raise CorruptSnapshotError(f"a snapshot of {len(data)} bytes ends within its head")
    version, checksum, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptSnapshotError(f"snapshot has version {version}; only version 1 is known")
    computed = crc32c(memoryview(data)[_CHECKSUMMED_FROM:])
    if computed != checksum:
        raise CorruptSnapshotError(f"snapshot has checksum {checksum:#010x}; its bytes have {computed:#010x}")
    if len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptSnapshotError(f"snapshot claims {count} producers in {len(data)} bytes")
    return [ProducerSnapshotEntry._make(fields) for fields in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :])]
