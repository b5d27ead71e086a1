"""Turning plans of reads into bytes, without ever waiting for the disk on the loop."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence

from barnabas.kernel.host import READ_CACHED_ONLY, Files, Host, OffloadKind
from barnabas.log.segment import ReadPlan


class LogReader:
    """Reads for the whole broker.

    What it returns is memory of its own, which nobody changes afterwards. A plan is read in the turn of the loop in
    which it was made, or pinned here.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._preadv = host.files.preadv
        self.cold_reads = 0
        """Reads that went off the loop."""

    def read_cached(self, plan: ReadPlan) -> memoryview | None:
        """The bytes, where all of them are in the page cache; None otherwise, and then `read` is the way."""
        descriptor, position, length_bytes, _, _ = plan
        data = bytearray(length_bytes)
        try:
            count = self._preadv(descriptor, [data], position, READ_CACHED_ONLY)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return None
            raise
        return memoryview(data) if count == length_bytes else None

    async def read(self, plan: ReadPlan) -> memoryview:
        """The bytes, read off the loop. Fewer than planned where the log was cut off meanwhile; raises OSError."""
        self.cold_reads += 1
        work = self._host.offload(OffloadKind.DISK, _read_plan, self._host.files, plan)
        plan.segment.pin()
        # The pin ends with the work and not with its caller, who may be cancelled while the work reads on.
        work.add_done_callback(lambda _: plan.segment.unpin())
        return await asyncio.shield(work)

    async def read_all(self, plans: Sequence[ReadPlan]) -> list[memoryview]:
        """The bytes of every plan: cached ones at once, all others together off the loop."""
        found = [self.read_cached(plan) for plan in plans]
        missing = [number for number, data in enumerate(found) if data is None]
        read = await asyncio.gather(*(self.read(plans[number]) for number in missing))
        for number, data in zip(missing, read, strict=True):
            found[number] = data
        return [data for data in found if data is not None]


def _read_plan(files: Files, plan: ReadPlan) -> memoryview:
    view = memoryview(bytearray(plan.length_bytes))
    done = 0
    while done < plan.length_bytes:
        count = files.preadv(plan.descriptor, [view[done:]], plan.position + done)
        if not count:
            break
        done += count
    return view[:done]
