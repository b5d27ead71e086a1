"""CRC-32C (Castagnoli), the checksum of record batches since magic 2.

`crc.crc32c(buffer, value=0)` takes anything with the buffer protocol (a memoryview of a part of a frame is not copied),
uses the processor's CRC instruction where there is one, and releases the GIL from 32 KiB on. Call it as an attribute of
this module: the library behind it takes tens of milliseconds to import, because it pulls in `importlib.metadata`, so it
is loaded by the first use and costs nothing afterwards.

Magic 0 and 1 use the older CRC-32, which is `zlib.crc32`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined, unused-ignore]

    def crc32c(buffer: Buffer, value: int = 0, /) -> int:
        """The CRC-32C of the buffer's bytes, as an unsigned 32-bit integer; `value` is the CRC of what came before
        them.
        """

    hardware_based: bool


def __getattr__(name: str) -> Any:
    if name not in ("crc32c", "hardware_based"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import crc32c as library

    globals()["crc32c"] = library.crc32c
    globals()["hardware_based"] = library.hardware_based
    return globals()[name]
