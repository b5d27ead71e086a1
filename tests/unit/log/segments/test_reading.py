"""Bytes of a log, with the page cache and without."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from barnabas.kernel.host import READ_CACHED_ONLY
from barnabas.kernel.real_files import RealFiles
from barnabas.log.partition.read_plans import ReadIsolation
from barnabas.log.segments.reading import LogReader, ReadBuffers
from barnabas.log.segments.segment import ReadPlan
from tests.unit.log.log_broker import LogBroker, records

WithBroker = Callable[..., Any]


class ColdFiles(RealFiles):
    """Nothing is cached, as far as `error` says; reads are short."""

    __slots__ = ("error",)

    def __init__(self, error: OSError) -> None:
        self.error = error

    def preadv(self, descriptor: int, buffers: Any, offset: int, flags: int = 0, /) -> int:
        if flags == READ_CACHED_ONLY and flags:
            raise self.error
        return RealFiles.preadv(descriptor, [memoryview(buffers[0])[:7]], offset)


def unexpected(path: str, error: OSError) -> None:
    raise AssertionError(f"{path} could not be read: {error}")


async def until_closed(plan: ReadPlan) -> None:
    """Lets go of the segment, and returns when nobody has pinned it any more."""
    plan.segment.let_go()
    with contextlib.suppress(OSError):
        while os.fstat(plan.descriptor):
            await asyncio.sleep(0)


async def plan_of(broker: LogBroker) -> ReadPlan:
    """Everything that is in a log of some batches."""
    log = broker.log()
    for number in range(5):
        log.append_as_leader(records(b"%d" % number * 30), 0)
    await broker.written(log)
    plan = log.read(0, 10_000, ReadIsolation.LOG_END, has_minimum=True).plan
    assert plan is not None
    return plan


def test_reads_what_is_cached_at_once(with_broker: WithBroker) -> None:
    async def main(broker: LogBroker) -> None:
        plan = await plan_of(broker)
        reader = LogReader(broker.host, unexpected)
        data = reader.read_cached(plan)
        assert data is None or data == RealFiles.pread(plan.descriptor, plan.length_bytes, 0)
        assert await reader.read(plan) == RealFiles.pread(plan.descriptor, plan.length_bytes, 0)

    with_broker(main)


@pytest.mark.parametrize("error", [BlockingIOError(), OSError(errno.EOPNOTSUPP, "not supported")])
def test_reads_off_the_loop_what_is_not_cached(with_broker: WithBroker, error: OSError) -> None:
    async def main(broker: LogBroker) -> None:
        plan = await plan_of(broker)
        expected = RealFiles.pread(plan.descriptor, plan.length_bytes, 0)
        reader = LogReader(replace(broker.host, files=ColdFiles(error)), unexpected)
        assert reader.read_cached(plan) is None
        assert await reader.read(plan) == expected
        assert reader.cold_reads == 1
        await until_closed(plan)

    with_broker(main)


def test_a_segment_stays_open_while_somebody_reads_it(with_broker: WithBroker) -> None:
    """Even when the reader is cancelled and the log deleted: its descriptor's number must not become another file's."""

    async def main(broker: LogBroker) -> None:
        plan = await plan_of(broker)
        expected = RealFiles.pread(plan.descriptor, plan.length_bytes, 0)
        reader = LogReader(broker.host, unexpected)
        reading = asyncio.ensure_future(reader.read(plan))
        cancelled = asyncio.ensure_future(reader.read(plan))
        await asyncio.sleep(0)
        cancelled.cancel()
        plan.segment.let_go()
        os.fstat(plan.descriptor)
        assert await reading == expected
        await until_closed(plan)

    with_broker(main)


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_disk_that_cannot_be_read_takes_its_directory_offline(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch, is_cached: bool
) -> None:
    def broken(_files: RealFiles, *arguments: Any) -> int:
        if not is_cached and arguments[-1] == READ_CACHED_ONLY:
            raise BlockingIOError
        raise OSError(errno.EIO, "the disk is broken")

    async def main(broker: LogBroker) -> None:
        plan = await plan_of(broker)
        log = broker.log()
        monkeypatch.setattr(RealFiles, "preadv", broken)
        reader = LogReader(broker.host, broker.manager.reader._on_failure)
        with pytest.raises(OSError, match="the disk is broken"):
            if reader.read_cached(plan) is None:
                await reader.read(plan)
        assert log.is_offline
        assert log.log_directory.is_offline
        assert broker.manager.get_log(log.partition) is None

    with_broker(main)


def test_gives_nothing_where_the_log_was_cut_off(with_broker: WithBroker) -> None:
    """Where it goes on, there may be other batches in the place of what was planned."""

    async def main(broker: LogBroker) -> None:
        plan = await plan_of(broker)
        reader = LogReader(broker.host, unexpected)
        was_readable = plan.is_readable
        log = broker.log()
        await log.truncate_to(2)
        assert (was_readable, plan.is_readable) == (True, False)
        assert reader.read_cached(plan) is None
        for _ in range(5):
            log.append_as_leader(records(b"another" * 30), 2)
        assert bytes(await reader.read(plan)) == b""

    with_broker(main)

    with_broker(main)


def test_memory_is_used_again_only_when_nobody_has_a_view_of_it() -> None:
    buffers = ReadBuffers()
    first = buffers.take(100_000)
    first[:] = b"1" * 100_000
    part = first[10:20]
    memory = first.obj
    del first
    assert buffers.take(100_000).obj is not memory
    assert part == b"1" * 10
    part.release()
    again = buffers.take(70_000)
    assert (again.obj is memory, len(again)) == (True, 70_000)


def test_memory_that_is_kept_for_reads_is_bounded() -> None:
    buffers = ReadBuffers()
    views = [buffers.take(1_000_000) for _ in range(40)]
    taken = {id(view.obj) for view in views}
    assert len(taken) == 40
    views.clear()
    kept = [buffers.take(1_000_000) for _ in range(40)]
    assert len({id(view.obj) for view in kept if memoryview(view.obj).nbytes > 1_000_000}) == 16
    assert [memoryview(buffers.take(size).obj).nbytes for size in (0, 1, 65_535)] == [0, 1, 65_535]
