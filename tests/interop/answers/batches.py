"""Records for Produce by seed: good ones of every format, and ones that a broker is to refuse."""

from __future__ import annotations

import random
from typing import Final

from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.legacy_records import write_message
from barnabas.wire.record_batch import set_producer
from barnabas.wire.record_builder import RecordBatchBuilder

EPOCH_MS: Final = 1_700_000_000_000
_COMPRESSIONS: Final = (CompressionType.NONE, CompressionType.GZIP, CompressionType.LZ4, CompressionType.ZSTD)
_PRODUCERS: Final = (
    *((70, 0, 0), (70, 0, 1), (70, 0, 5), (70, 1, 0), (71, 3, 0)),
    *((-2, 0, 0), (-2, -1, -1), (72, -1, 0), (72, 0, -1)),
)
"""Ids, epochs and sequences: some in order, some not, some that no producer has."""


def random_records(generator: random.Random, *, version: int = 8, is_plain: bool = False) -> bytes:
    """The records of one partition in a Produce request of a version."""
    if is_plain:
        return _batch(generator, CompressionType.NONE)
    kind = generator.choices(
        ("good", "compressed", "idempotent", "legacy", "two", "corrupt", "cut", "empty", "transactional"),
        (10, 4, 8, 3, 1, 1, 1, 1, 1),
    )[0]
    match kind:
        case "compressed":
            return _batch(generator, generator.choice(_COMPRESSIONS))
        case "idempotent":
            batch = bytearray(_batch(generator, CompressionType.NONE))
            set_producer(batch, *generator.choice(_PRODUCERS))
            return bytes(batch)
        case "legacy":
            magic = generator.choice((0, 1))
            return b"".join(write_message(magic, number, EPOCH_MS + number, b"k", b"v") for number in range(2))
        case "two":
            return _batch(generator, CompressionType.NONE) * 2
        case "corrupt":
            batch = bytearray(_batch(generator, CompressionType.NONE))
            batch[-1] ^= 1
            return bytes(batch)
        case "cut" if version >= 3:  # before, Kafka passes over what is not whole and says that it has appended it
            return _batch(generator, CompressionType.NONE)[:-3]
        case "empty" if version >= 3:
            return b""
        case "transactional":
            builder = RecordBatchBuilder(producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
            builder.append(EPOCH_MS, None, b"v")
            return bytes(builder.build())
        case _:
            return _batch(generator, CompressionType.NONE)


def _batch(generator: random.Random, compression: CompressionType) -> bytes:
    builder = RecordBatchBuilder(compression=Compression(compression))
    for number in range(generator.choice((1, 1, 2, 3))):
        builder.append(EPOCH_MS + number, generator.choice((None, b"k")), b"v%d" % generator.randrange(100))
    return bytes(builder.build())
