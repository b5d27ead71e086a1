"""Turning plans of reads into bytes, without ever waiting for the disk on the loop."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Final

from barnabas.kernel.host import READ_CACHED_ONLY, Files, Host, OffloadKind
from barnabas.log.segments.segment import ReadPlan

_POOLED_BYTES_MIN: Final = 64 * 1024
_POOL_BYTES_MAX: Final = 32 * 1024 * 1024
_KEPT_OF_A_SIZE_MAX: Final = 16


class ReadBuffers:
    """Memory to read into, used again once nobody has a view of it.

    Fresh memory of this size costs more than reading into it: the system gives it page by page, and zeroed.

    Invariant: a buffer is given away only while it has no export, which every view of it, and whatever the loop does
    with one, is; so what was given away before cannot change under a view. A bytearray that is exported refuses to be
    resized, which is how that is found out.
    """

    __slots__ = ("_by_capacity", "_kept_bytes")

    def __init__(self) -> None:
        self._by_capacity: dict[int, list[bytearray]] = {}
        self._kept_bytes = 0

    def take(self, length_bytes: int) -> memoryview:
        """A writable view of so many bytes; what is in them is left from before."""
        if length_bytes < _POOLED_BYTES_MIN:
            return memoryview(bytearray(length_bytes))
        capacity = 1 << (length_bytes - 1).bit_length()
        buffers = self._by_capacity.setdefault(capacity, [])
        for number, buffer in enumerate(buffers):
            if _is_unused(buffer):
                # Behind those that are in use now: they become free in about the order of their use.
                buffers.append(buffers.pop(number))
                return memoryview(buffer)[:length_bytes]
        if len(buffers) >= _KEPT_OF_A_SIZE_MAX or self._kept_bytes + capacity > _POOL_BYTES_MAX:
            return memoryview(bytearray(length_bytes))
        buffer = bytearray(capacity)
        buffers.append(buffer)
        self._kept_bytes += capacity
        return memoryview(buffer)[:length_bytes]


def _is_unused(buffer: bytearray) -> bool:
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True


class LogReader:
    """Reads for the whole broker.

    What it returns is memory that nobody changes as long as there is a view of it. A plan is read in the turn of the
    loop in which it was made, or found still to be readable, or pinned here.
    """

    def __init__(self, host: Host, on_failure: Callable[[str, OSError], object]) -> None:
        """`on_failure` is told the directory of a log whose file could not be read, before that is raised."""
        self._host = host
        self._on_failure = on_failure
        self._preadv = host.files.preadv
        self._buffers = ReadBuffers()
        self.cold_reads = 0
        """Reads that went off the loop."""

    def read_cached(self, plan: ReadPlan) -> memoryview | None:
        """The bytes, where all of them are in the page cache; None otherwise, and then `read` is the way."""
        descriptor, position, length_bytes, _, _, _ = plan
        data = self._buffers.take(length_bytes)
        try:
            count = self._preadv(descriptor, [data], position, READ_CACHED_ONLY)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return None
            self._on_failure(plan.segment.directory, error)
            raise
        return data if count == length_bytes else None

    async def read(self, plan: ReadPlan) -> memoryview:
        """The bytes, read off the loop; raises OSError.

        Invariant: whole batches of what was planned. None of them where the segment was truncated since, by a leader
        that was deposed: it may lead again by now, with other batches in their place.
        """
        self.cold_reads += 1
        lane = os.path.dirname(plan.segment.directory)
        work = self._host.offload(OffloadKind.DISK, _read_plan, self._host.files, plan, lane=lane)
        plan.segment.pin()
        # The pin ends with the work and not with its caller, who may be cancelled while the work reads on.
        work.add_done_callback(lambda _: plan.segment.unpin())
        try:
            data: memoryview = await asyncio.shield(work)
        except OSError as error:
            self._on_failure(plan.segment.directory, error)
            raise
        return data[:0] if plan.is_cut else data


def _read_plan(files: Files, plan: ReadPlan) -> memoryview:
    view = memoryview(bytearray(plan.length_bytes))
    done = 0
    while done < plan.length_bytes:
        count = files.preadv(plan.descriptor, [view[done:]], plan.position + done)
        if not count:
            break
        done += count
    return view[:done]
