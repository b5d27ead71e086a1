"""Standard input and output without blocking the loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.cli.streams import LineTooLongError, read_lines, write

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


async def lines_of(descriptor: int) -> list[bytes]:
    return [line async for some in read_lines(asyncio.get_running_loop(), descriptor) for line in some]


@pytest.mark.parametrize(
    ("data", "lines"),
    [(b"", []), (b"a", [b"a"]), (b"a\n", [b"a"]), (b"a\n\nb", [b"a", b"", b"b"]), (b"\n", [b""]), (b"a\r\n", [b"a\r"])],
)
def test_lines_of_a_file(run: Run, tmp_path: Path, data: bytes, lines: list[bytes]) -> None:
    (tmp_path / "lines").write_bytes(data)
    descriptor = os.open(tmp_path / "lines", os.O_RDONLY)
    assert run(lines_of(descriptor)) == lines
    os.close(descriptor)


def test_lines_of_a_large_file_are_whole(run: Run, tmp_path: Path) -> None:
    lines = [b"%d" % number * (number % 50) for number in range(50_000)]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    descriptor = os.open(tmp_path / "lines", os.O_RDONLY)
    assert run(lines_of(descriptor)) == lines
    os.close(descriptor)


def test_nothing_can_be_read_of_the_null_device(run: Run) -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    assert run(lines_of(descriptor)) == []
    os.close(descriptor)


def test_the_loop_goes_on_while_a_pipe_is_empty(run: Run, pipe: tuple[int, int]) -> None:
    async def main() -> list[bytes]:
        reading = asyncio.ensure_future(lines_of(pipe[0]))
        for part in (b"a\nb", b"c\n", b"d"):
            await asyncio.sleep(0)
            assert not reading.done()
            os.write(pipe[1], part)
        os.close(pipe[1])
        return await reading

    assert run(main()) == [b"a", b"bc", b"d"]


def test_a_long_line_is_put_together_of_what_comes(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = [b"a", b"b" * 3_000_000, b"", b"c" * 700_000, b"d"]
    path.write_bytes(b"\n".join(lines))
    with path.open("rb") as file:
        assert run(lines_of(file.fileno())) == lines


@pytest.mark.parametrize("after", [b"", b"\nd\ne\n"], ids=["without an end", "with others behind it"])
def test_a_line_that_is_too_long_is_refused_after_those_before_it(
    run: Run, pipe: tuple[int, int], after: bytes
) -> None:
    os.write(pipe[1], b"a\nb\n" + b"c" * 11 + after)
    os.close(pipe[1])
    read: list[bytes] = []

    async def main() -> None:
        async for some in read_lines(asyncio.get_running_loop(), pipe[0], 10):
            read.extend(some)

    with pytest.raises(LineTooLongError) as caught:
        run(main())
    assert caught.value.lines_before == 2
    assert read == [b"a", b"b"]


def test_writing_to_a_full_pipe_waits_for_the_reader_and_not_the_loop(run: Run, pipe: tuple[int, int]) -> None:
    data = bytes(range(250)) * 4_000
    os.set_blocking(pipe[0], False)

    async def main() -> bytes:
        writing = asyncio.ensure_future(write(asyncio.get_running_loop(), pipe[1], data))
        received = b""
        while len(received) < len(data):
            await asyncio.sleep(0)
            if len(received) + 65_536 < len(data):
                assert not writing.done()
            with contextlib.suppress(BlockingIOError):
                received += os.read(pipe[0], 65_536)
        await writing
        return received

    assert run(main()) == data


def test_nobody_reads_any_more(run: Run, pipe: tuple[int, int]) -> None:
    os.close(pipe[0])

    async def main() -> None:
        await write(asyncio.get_running_loop(), pipe[1], b"a" * 100_000)

    with pytest.raises(BrokenPipeError):
        run(main())


def test_writes_to_a_file(run: Run, tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)

    async def main() -> None:
        await write(asyncio.get_running_loop(), descriptor, b"a" * 100_000)

    run(main())
    os.close(descriptor)
    assert (tmp_path / "out").read_bytes() == b"a" * 100_000
