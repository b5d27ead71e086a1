"""Batches for tests of the log, and files that fail."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import NamedTuple

from barnabas.kernel.host import Buffer
from barnabas.kernel.real_files import RealFiles
from barnabas.wire.record_builder import RecordBatchBuilder


class Appended(NamedTuple):
    """A batch, and what is needed to append it."""

    data: bytes
    base_offset: int
    last_offset: int
    max_timestamp_ms: int


def batch(base_offset: int, timestamps_ms: list[int], value: bytes = b"value") -> Appended:
    """A batch with a record for each timestamp."""
    builder = RecordBatchBuilder(base_offset=base_offset, partition_leader_epoch=0)
    for timestamp_ms in timestamps_ms:
        builder.append(timestamp_ms, b"key", value)
    return Appended(bytes(builder.build()), base_offset, builder.last_offset, builder.max_timestamp_ms)


class TroubledFiles(RealFiles):
    """Writes at most `write_bytes_max` at once, and fails with ENOSPC when `fails()` says so."""

    __slots__ = ("fails", "write_bytes_max")

    def __init__(self) -> None:
        self.write_bytes_max = 1 << 30
        self.fails: Callable[[], bool] = lambda: False

    def pwrite(self, descriptor: int, data: Buffer, offset: int, /) -> int:  # type: ignore[override]
        if self.fails():
            raise OSError(errno.ENOSPC, "no space left")
        return RealFiles.pwrite(descriptor, memoryview(data)[: self.write_bytes_max], offset)
