"""Work on records in steps, some of which is on bytes alone.

Reading records one by one needs the interpreter, so it is done on the event loop, some at a time. Codecs do not: they
let go of it, so that a thread can run them while the loop goes on. What is written as `WorkSteps` says at each point
which of the two comes next, and knows neither threads nor loops itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Final, TypeVar

from barnabas.kernel.steps import Steps
from barnabas.wire.compression import compress, decompress
from barnabas.wire.compression_types import Buffer, Compression, CompressionType
from barnabas.wire.record_errors import DecompressedTooLargeError

Result = TypeVar("Result")
ByteWork = Callable[[], Any]
"""May run on any thread; what it reads must not change meanwhile."""
WorkSteps = Generator[ByteWork | None, Any, Result]
"""Yields None between steps, and work on bytes, whose result or error it is given then; returns the result."""

AT_ONCE_BYTES_MAX: Final = 64 * 1024
"""So much is compressed without asking for a thread."""
INFLATED_AT_ONCE_BYTES_MAX: Final = 256 * 1024
"""So much may come of compressed data whatever its size: zstd says of a small frame that it is at most half of that."""
DECOMPRESSED_AT_ONCE_MAX: Final = 128 * 1024
"""Compressed data of more bytes is decompressed by a thread."""
_TIMES_AT_ONCE: Final = 16
"""What may come of compressed data in one turn, in its own size: so the work of a turn is bounded by what was received.
"""


class TakesLongError(Exception):
    """What was to be done in one step takes more; nothing has changed."""


def run_at_once(steps: WorkSteps[Result]) -> Result:
    """The result, without giving way."""
    try:
        work = next(steps)
        while True:
            if work is None:
                work = next(steps)
                continue
            try:
                outcome = work()
            except Exception as error:  # noqa: BLE001 - whose work it is knows
                work = steps.throw(error)
            else:
                work = steps.send(outcome)
    except StopIteration as stop:
        result: Result = stop.value
        return result


def run_first_step(steps: WorkSteps[Result]) -> Result:
    """The result of what has one step only. Raises TakesLongError."""
    try:
        next(steps)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    steps.close()
    raise TakesLongError


async def run_in_steps(
    steps: WorkSteps[Result],
    in_steps: Callable[[Steps[tuple[ByteWork | None, Any]]], Awaitable[tuple[ByteWork | None, Any]]],
    offload: Callable[[ByteWork], Awaitable[Any]],
) -> Result:
    """The result: steps are done by `in_steps`, which gives way between two, and work on bytes by `offload`."""
    resume: Callable[[], ByteWork | None] = partial(next, steps)
    try:
        while True:
            work, result = await in_steps(_until_work(steps, resume))
            if work is None:
                found: Result = result
                return found
            try:
                outcome = await offload(work)
            except Exception as error:  # noqa: BLE001 - whose work it is knows
                resume = partial(steps.throw, error)
            else:
                resume = partial(steps.send, outcome)
                del outcome  # up to 128 MiB, which nobody is to keep longer than the steps do
    finally:
        steps.close()


def _until_work(
    steps: WorkSteps[Result], resume: Callable[[], ByteWork | None]
) -> Steps[tuple[ByteWork | None, Result | None]]:
    """The steps up to the next work on bytes, or to the result."""
    try:
        work = resume()
        del resume
        while work is None:
            yield
            work = next(steps)
    except StopIteration as stop:
        return None, stop.value
    return work, None


def at_once_max(data: Buffer, decompressed_bytes_max: int) -> int:
    """How many bytes may come of compressed data in one turn; 0 where not even that many as it has itself."""
    if len(data) > DECOMPRESSED_AT_ONCE_MAX:
        return 0
    return min(decompressed_bytes_max, max(INFLATED_AT_ONCE_BYTES_MAX, len(data) * _TIMES_AT_ONCE))


def decompress_in_steps(
    data: Buffer,
    compression_type: CompressionType,
    decompressed_bytes_max: int,
    *,
    ignore_lz4_checksum: bool = False,
) -> WorkSteps[Buffer]:
    """`compression.decompress`; in this step if it is little."""
    bytes_max = at_once_max(data, decompressed_bytes_max)
    if not compression_type or bytes_max:
        try:
            return decompress(data, compression_type, bytes_max, ignore_lz4_checksum=ignore_lz4_checksum)
        except DecompressedTooLargeError:
            if bytes_max == decompressed_bytes_max:
                raise
    found: Buffer = yield partial(
        decompress, data, compression_type, decompressed_bytes_max, ignore_lz4_checksum=ignore_lz4_checksum
    )
    return found


def compress_in_steps(data: Buffer, compression: Compression) -> WorkSteps[Buffer]:
    """`compression.compress`; in this step if it is little."""
    if not compression.type or len(data) <= AT_ONCE_BYTES_MAX:
        return compress(data, compression)
    found: Buffer = yield partial(compress, data, compression)
    return found
