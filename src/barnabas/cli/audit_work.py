"""The work of `barnabas audit`: partitions, each in one piece, in this process or in several.

What is read is bounded by the disks; what is computed, by a core for each process. Workers only read: who is killed
leaves nothing behind, and they end when this process does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, Final

from barnabas.cli.audit_places import Audited, look_again
from barnabas.cli.connection import CommandError
from barnabas.cli.output import counted, say, size
from barnabas.log.inspection.replica_comparison import PartitionAudit, audit_partition

_BYTES_PER_PROCESS: Final = 64 * 1024 * 1024
"""Less is read in the time that a process takes to start."""
_SHOWN_EVERY_SECONDS: Final = 5.0
_LOOKED_EVERY_SECONDS: Final = 0.5
_WAITING_PER_PROCESS: Final = 4
_LOOKS_MAX: Final = 5
"""How often a partition is read that brokers change all the time."""


class _StoppedError(Exception):
    """Nobody wants the result any more."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was found of a partition."""

    audited: Audited
    audit: PartitionAudit


class Progress:
    """How much was read, shown now and then where a person looks on."""

    def __init__(self, partitions: int, size_bytes: int) -> None:
        self._partitions = partitions
        self._size_bytes = size_bytes
        self._began = self._shown_at = time.monotonic()
        self.read_bytes = 0
        self.done = 0

    def show(self) -> None:
        now = time.monotonic()
        if now - self._shown_at < _SHOWN_EVERY_SECONDS or not sys.stderr.isatty():
            return
        self._shown_at = now
        rate = size(int(self.read_bytes / (now - self._began)))
        say(
            f"{self.done:,} of {counted(self._partitions, 'partition')}, {size(self.read_bytes)} of "
            f"{size(self._size_bytes)}, {rate} in a second"
        )


def audit_all(partitions: Sequence[Audited], processes: int | None, *, compares: bool) -> Iterator[Result]:
    """The partitions, in any order, as they are done. `processes` of None is as many as are worth it.

    Raises CommandError.
    """
    size_bytes = sum(each.size_bytes for each in partitions)
    progress = Progress(len(partitions), size_bytes)
    wanted = min(os.cpu_count() or 1, 1 + size_bytes // _BYTES_PER_PROCESS) if processes is None else processes
    count = min(wanted, len(partitions))
    # The largest first, so that none of them is begun when all else is done.
    ordered = sorted(partitions, key=lambda each: -each.size_bytes)
    if count > 1:
        yield from _in_processes(ordered, count, progress, compares=compares)
        return

    def passed(read_bytes: int) -> None:
        progress.read_bytes += read_bytes
        progress.show()

    for each in ordered:
        yield Result(each, audit_one(each, passed, compares=compares))
        progress.done += 1


def audit_one(audited: Audited, passed: Callable[[int], None], *, compares: bool) -> PartitionAudit:
    """A partition, in this process. What seems wrong while brokers are at work, as cleaners are, is read again, until
    it is sound, or was read without their changing it; some times at most.

    Raises CommandError.
    """
    audit = audit_partition([each.opened() for each in audited.replicas], passed, compares=compares)
    for _ in range(_LOOKS_MAX - 1):
        now = _changed(audited) if audit.findings.faults else None
        if now is None:
            return audit
        audited = now
        audit = audit_partition([each.opened() for each in audited.replicas], lambda _bytes: None, compares=compares)
    return audit


def _changed(audited: Audited) -> Audited | None:
    """What is there now; None where it is what was read, or there is another number of replicas."""
    try:
        now = look_again(audited)
    except OSError:
        return None
    return now if now != audited and len(now.replicas) == len(audited.replicas) else None


def _in_processes(ordered: Sequence[Audited], count: int, progress: Progress, *, compares: bool) -> Iterator[Result]:
    context = multiprocessing.get_context("spawn")
    read_bytes = context.Value("Q")
    stopped = context.Event()
    left = iter(ordered)
    waiting: dict[Future[PartitionAudit], Audited] = {}
    with ProcessPoolExecutor(count, context, _begin_worker, (read_bytes, stopped)) as pool:
        try:
            while True:
                while len(waiting) < count * _WAITING_PER_PROCESS and (each := next(left, None)) is not None:
                    waiting[pool.submit(_in_worker, each, compares)] = each
                if not waiting:
                    return
                done, _ = wait(waiting, _LOOKED_EVERY_SECONDS, FIRST_COMPLETED)
                progress.read_bytes = read_bytes.value
                progress.show()
                for future in done:
                    progress.done += 1
                    yield Result(waiting.pop(future), future.result())
        except BrokenProcessPool:
            raise CommandError(
                "a process of the audit was killed, by the machine if memory was short: try --processes 1"
            ) from None
        finally:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)


_worker: dict[str, Any] = {}
"""Of a worker process: what it shares with the one that started it."""


def _begin_worker(read_bytes: Any, stopped: Any) -> None:
    """Ctrl-C is for the process that started this one; when that is gone, nobody needs this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker.update(read_bytes=read_bytes, stopped=stopped)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _in_worker(audited: Audited, compares: bool) -> PartitionAudit:
    return audit_one(audited, _passed_in_worker, compares=compares)


def _passed_in_worker(read_bytes: int) -> None:
    with _worker["read_bytes"].get_lock():
        _worker["read_bytes"].value += read_bytes
    if _worker["stopped"].is_set():
        raise _StoppedError
