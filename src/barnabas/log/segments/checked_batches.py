"""Going through a log file and checking every batch, in memory that does not depend on the size of one; off the loop.

The file is read once, into one buffer, and the pieces of a large batch are checked as they come. What two threads
recover side by side runs on two cores, as long as each of them seldom waits for the other's Python: the buffer is
large, and still small enough that what the kernel has put there is in the processor's cache when it is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from barnabas.kernel.host import Files
from barnabas.log.directories.files import read_at
from barnabas.log.segments.batch_scan import scan_batches
from barnabas.wire import crc
from barnabas.wire.record_batch import (
    BATCH_HEADER_BYTES,
    CHECKSUMMED_FROM,
    HEADER,
    MAGIC_AT,
    BatchHeader,
    RecordBatch,
)
from barnabas.wire.record_errors import CorruptRecordError
from barnabas.wire.records import LOG_OVERHEAD_BYTES, MAGIC_V2, Batch

_BUFFER_BYTES: Final = 1024 * 1024
_BUFFER_FROM: Final = 2048
"""Half a page. Where the target of a copy lies up to 31 bytes behind its source within a page, as the beginning of a
large `bytearray` does when a file is read from its beginning, some processors (Zen 3) are four times slower."""
_PREFIX_BYTES: Final = 17  # offset, size, leader epoch or CRC-32, magic


class CheckedBatch(NamedTuple):
    """A batch whose checksum is that of its bytes."""

    position: int
    size_bytes: int
    last_offset: int
    max_timestamp_ms: int
    header: BatchHeader | None
    """None for the messages of magic 0 and 1."""


def checked_batches(files: Files, descriptor: int, end: int) -> Iterator[CheckedBatch]:
    """The batches of a file up to position `end`; ends silently at one that is not all there.

    Raises CorruptRecordError where the next batch cannot be found or has another checksum.
    """
    view = memoryview(bytearray(_BUFFER_FROM + min(_BUFFER_BYTES, max(end, BATCH_HEADER_BYTES))))[_BUFFER_FROM:]
    unpack_from, make_header, crc32c = HEADER.unpack_from, BatchHeader._make, crc.crc32c
    position = at = filled = 0  # of the buffer's first byte in the file; of the next batch in the buffer; bytes there
    while True:
        if filled - at < BATCH_HEADER_BYTES:
            position += at
            at = 0
            filled = _fill(files, descriptor, view, position, end)
            if filled < _PREFIX_BYTES:
                return
        if view[at + MAGIC_AT] != MAGIC_V2:
            old_from = position + at
            position, at, filled = old_from, 0, 0
            for batch_position, batch in scan_batches(files, descriptor, old_from, end):
                if batch.magic == MAGIC_V2:
                    break
                position = batch_position + batch.size_bytes
                yield _checked_old(batch_position, batch)
            if position == old_from:
                return
            continue
        if filled - at < BATCH_HEADER_BYTES:
            return
        header = make_header(unpack_from(view, at))
        size_bytes = header[1] + LOG_OVERHEAD_BYTES
        if size_bytes < BATCH_HEADER_BYTES:
            raise CorruptRecordError(f"batch at byte {position + at} has {size_bytes} bytes, fewer than its header")
        batch_position = position + at
        if size_bytes > end - batch_position:
            return
        batch_end = at + size_bytes
        if batch_end <= filled:
            computed = crc32c(view[at + CHECKSUMMED_FROM : batch_end])
        else:
            computed = crc32c(view[at + CHECKSUMMED_FROM : filled])
            while batch_end > filled:
                position += filled
                batch_end -= filled
                filled = _fill(files, descriptor, view, position, end)
                if not filled:
                    return  # the file is shorter than it was
                computed = crc32c(view[: min(batch_end, filled)], computed)
        if computed != header.crc:
            raise CorruptRecordError(
                f"batch at byte {batch_position} has checksum {header.crc:#010x}; its bytes have {computed:#010x}"
            )
        at = batch_end
        yield CheckedBatch(batch_position, size_bytes, header[0] + header[6], header[8], header)


def read_batch(files: Files, descriptor: int, checked: CheckedBatch) -> RecordBatch:
    """The batch itself, of magic 2, for what the header does not say."""
    return RecordBatch(read_at(files, descriptor, checked.size_bytes, checked.position))


def _checked_old(position: int, batch: Batch) -> CheckedBatch:
    batch.verify()
    return CheckedBatch(position, batch.size_bytes, batch.last_offset, batch.max_timestamp_ms, None)


def _fill(files: Files, descriptor: int, view: memoryview, position: int, end: int) -> int:
    """Reads from `position` on, up to `end`; returns the count of bytes, fewer than fit only where the file ends."""
    wanted = min(len(view), end - position)
    filled = 0
    while filled < wanted:
        count = files.preadv(descriptor, [view[filled:wanted]], position + filled)
        if not count:
            break
        filled += count
    return filled
