"""The codecs of records, their levels, and the bound of what they may become. `compression` does the work."""

from __future__ import annotations

import enum
from typing import Final

from barnabas.kernel.facts import fact
from barnabas.wire.record_errors import DecompressedTooLargeError, UnsupportedCompressionTypeError

Buffer = bytes | bytearray | memoryview

DEFAULT_DECOMPRESSED_BYTES_MAX: Final = 128 * 1024 * 1024
"""What one batch may become where the caller sets no bound of its own. A broker decompresses what is produced on its
loop: this much keeps it for about half a second, and must stay well below the session time-out.
"""


class CompressionType(enum.IntEnum):
    """The codec in the lowest three bits of a batch's attributes; `name.lower()` is its name in `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of_attributes(cls, attributes: int) -> CompressionType:
        """Raises UnsupportedCompressionTypeError for the values that no codec has."""
        code = attributes & 0x07
        if code > 4:
            raise UnsupportedCompressionTypeError(f"compression type {code} is not known; 0 to 4 are")
        return _COMPRESSION_TYPES[code]


_COMPRESSION_TYPES: Final = tuple(CompressionType)


@fact
class LevelRange:
    """The values of `compression.<codec>.level` (KIP-390); `default` is allowed even outside of the range, as gzip's -1
    is.
    """

    lowest: int
    highest: int
    default: int

    def __contains__(self, level: int) -> bool:
        return self.lowest <= level <= self.highest or level == self.default


LEVELS: Final = {
    CompressionType.GZIP: LevelRange(1, 9, -1),
    CompressionType.LZ4: LevelRange(1, 17, 9),
    CompressionType.ZSTD: LevelRange(-131072, 22, 3),
}


@fact
class Compression:
    """A codec and its level; without a level, Kafka's default for the codec. Raises ValueError for a level that the
    codec does not have.
    """

    type: CompressionType = CompressionType.NONE
    level: int | None = None

    def __post_init__(self) -> None:
        if self.level is None:
            return
        levels = LEVELS.get(self.type)
        if levels is None:
            raise ValueError(f"compression {self.type.name.lower()} has no levels; leave the level out")
        if self.level not in levels:
            raise ValueError(
                f"compression {self.type.name.lower()} has levels {levels.lowest} to {levels.highest}"
                f" (default {levels.default}), not {self.level}"
            )

    @property
    def effective_level(self) -> int:
        """The level to compress with; 0 for codecs without levels."""
        if self.level is not None:
            return self.level
        levels = LEVELS.get(self.type)
        return 0 if levels is None else levels.default


NO_COMPRESSION: Final = Compression()


def too_large(
    compression_type: CompressionType, compressed_bytes: int, decompressed_bytes_max: int
) -> DecompressedTooLargeError:
    """The error for data that would exceed its bound."""
    return DecompressedTooLargeError(
        f"{compressed_bytes} bytes of {compression_type.name.lower()} data decompress to more than the"
        f" {decompressed_bytes_max} bytes that are allowed; send smaller batches"
    )
