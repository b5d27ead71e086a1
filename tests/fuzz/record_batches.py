"""Target `records`: batches of magic 0, 1 and 2, as a consumer reads them and as a leader takes them."""

from __future__ import annotations

import struct
import zlib
from typing import Final

from barnabas.wire.batch_formats import batch_at, read_records
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.crc import crc32c
from barnabas.wire.legacy_records import write_messages
from barnabas.wire.record_batch import BATCH_HEADER_BYTES, CHECKSUMMED_FROM, RecordBatch
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.record_conversion import recompress_batch
from barnabas.wire.record_errors import RecordsError
from barnabas.wire.record_validation import AppendRules, assign_offsets, validate_records
from barnabas.wire.records import MAGIC_V2, Record, walk_batches

DECOMPRESSED_BYTES_MAX: Final = 100_000
RULES: Final = AppendRules(decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
NOW_MS: Final = 1_600_000_000_000
_SIZE: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_MAGIC_AT: Final = 16
_OLD_CRC_AT: Final = 12
_READ, _VALIDATE, _REWRITE = range(3)


def check_records(data: bytes) -> bool:
    """A byte that says what is done, and a buffer of batches, whose sizes and checksums are put right if the byte is
    odd: no fuzzer guesses a checksum.
    """
    if not data:
        return False
    buffer = bytearray(data[1:])
    if data[0] & 1:
        _put_right(buffer)
    try:
        match (data[0] >> 1) % 3:
            case 0:
                _check_read(bytes(buffer))
            case 1:
                _check_append(buffer)
            case _:
                _check_rewrite(bytes(buffer))
    except RecordsError:
        return False
    return True


def _put_right(buffer: bytearray) -> None:
    """Makes one batch of the buffer by its size and checksum; its magic is what it was, within the three there are."""
    if len(buffer) <= BATCH_HEADER_BYTES:
        return
    buffer[_MAGIC_AT] %= 3
    _SIZE.pack_into(buffer, 8, len(buffer) - 12)
    if buffer[_MAGIC_AT] == MAGIC_V2:
        _CRC.pack_into(buffer, 17, crc32c(memoryview(buffer)[CHECKSUMMED_FROM:]))
    else:
        _CRC.pack_into(buffer, _OLD_CRC_AT, zlib.crc32(memoryview(buffer)[_MAGIC_AT:]))


def _check_read(buffer: bytes) -> None:
    for span in walk_batches(buffer).spans:
        batch = batch_at(buffer, span)
        batch.verify()
        records = list(batch.records(DECOMPRESSED_BYTES_MAX))
        entries = list(batch.entries(DECOMPRESSED_BYTES_MAX))
        if [(each.offset, each.timestamp_ms, each.key) for each in records] != [
            (each.offset, each.timestamp_ms, each.key) for each in entries
        ]:
            raise AssertionError("records and their entries are not the same")


def _check_append(buffer: bytearray) -> None:
    validated = validate_records(buffer, RULES, NOW_MS)
    log = bytearray(validated.records)
    last_offset = assign_offsets(validated._replace(records=log), 1_000, 7, NOW_MS)
    records = list(read_records(bytes(log), decompressed_bytes_max=DECOMPRESSED_BYTES_MAX))
    if not validated.header.is_control and [each.offset for each in records] != list(range(1_000, last_offset + 1)):
        raise AssertionError(f"{len(records)} records were taken for offsets from 1000 to {last_offset}")


def _check_rewrite(buffer: bytes) -> None:
    """What is read of a batch is the same in the batch that is made of it."""
    batch = RecordBatch(buffer)
    records = list(batch.records(DECOMPRESSED_BYTES_MAX))
    again = recompress_batch(buffer, Compression(CompressionType.NONE), decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    if list(RecordBatch(again).records()) != records:
        raise AssertionError("a batch that was written anew has other records")


def record_seeds() -> list[bytes]:
    """Batches of each codec and format, with each thing that is done with them."""
    seeds: list[bytes] = []
    records = [
        Record(0, NOW_MS, b"key", b"value", ((b"header", b"of it"),)),
        Record(1, NOW_MS + 1, None, b"v" * 100),
        Record(2, NOW_MS, b"", None),
    ]
    for codec in CompressionType:
        builder = RecordBatchBuilder(compression=Compression(codec))
        for record in records:
            builder.append(record.timestamp_ms, record.key, record.value, record.headers)
        batch = bytes(builder.build())
        seeds += [bytes([what * 2 + 1]) + batch for what in range(3)]
        if codec is not CompressionType.ZSTD:
            plain = [record._replace(headers=()) for record in records]
            seeds += [
                bytes([what * 2 + 1]) + bytes(write_messages(magic, plain, Compression(codec)))
                for what in range(2)
                for magic in range(2)
            ]
    return seeds
