"""The simulated host beside the real one: the same calls must give the same answers.

Files: random operations, the same on a simulated disk and in a directory, compared call by call. Connections: one
scenario on simulated loops, on asyncio's and on uvloop's, compared by what the protocols were told.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from barnabas.kernel.host import Files, Host
from barnabas.kernel.real_files import RealFiles
from barnabas.testing.profile import DiskProfile, Profile
from barnabas.testing.simulated_files import SimulatedFiles
from barnabas.testing.simulation import Simulation
from tests.support.ports import free_port

Runner = Callable[[Coroutine[Any, Any, Any]], Any]

STEADY = Profile(disk=DiskProfile(short_write_probability=0.0, short_read_probability=0.0, uncached_probability=0.0))
NAMES = ("a", "b", "c", "d")
FLAGS = (
    os.O_RDONLY,
    os.O_RDWR | os.O_CREAT,
    os.O_RDWR | os.O_CREAT | os.O_EXCL,
    os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    os.O_RDWR | os.O_APPEND | os.O_CREAT,
)
# Where POSIX leaves a choice.
EQUIVALENT = {errno.EPERM: errno.EISDIR, errno.EEXIST: errno.ENOTEMPTY}


class Actor:
    """Does drawn operations on some files; two actors with one seed do the same."""

    def __init__(self, files: Files, root: str, seed: int) -> None:
        self.files = files
        self.root = root
        self.random = Random(seed)
        self.descriptors: list[int] = []

    def path(self) -> str:
        depth = self.random.randint(1, 3)
        return "/".join([self.root, *(self.random.choice(NAMES) for _ in range(depth))])

    def step(self) -> object:
        operations = (
            [self.open, self.open_as] * 3
            + [self.write, self.writev, self.pwrite, self.read, self.pread, self.preadv] * 3
            + [self.truncate, self.size, self.fsync, self.close]
            + [self.make, self.listing, self.rename, self.unlink, self.remove, self.status, self.lock] * 2
        )
        operation = self.random.choice(operations)
        try:
            return operation.__name__, operation()
        except OSError as error:
            return operation.__name__, type(error).__name__, EQUIVALENT.get(error.errno or 0, error.errno)

    def data(self) -> bytes:
        return self.random.randbytes(self.random.choice((0, 1, 10, 5_000)))

    def descriptor(self) -> int:
        return self.random.choice(self.descriptors) if self.descriptors else 99_999

    def open(self) -> str:
        path, flags = self.path(), self.random.choice(FLAGS)
        descriptor = self.files.open(path, flags)
        if self.files.status(path).is_directory:
            self.files.close(descriptor)
            return "directory"
        self.descriptors.append(descriptor)
        return "file"

    def open_as(self) -> str:
        path, flags = self.path(), self.random.choice(FLAGS)
        descriptor = self.files.reserve()
        assert (self.files.size(descriptor), self.files.pread(descriptor, 10, 0)) == (0, b"")
        try:
            self.files.open_as(descriptor, path, flags)
        except OSError:
            self.files.close(descriptor)
            raise
        if self.files.status(path).is_directory:
            self.files.close(descriptor)
            return "directory"
        self.descriptors.append(descriptor)
        return "file"

    def write(self) -> int:
        return self.files.write(self.descriptor(), self.data())

    def writev(self) -> int:
        return self.files.writev(self.descriptor(), [self.data(), bytearray(self.data()), memoryview(self.data())])

    def pwrite(self) -> int:
        return self.files.pwrite(self.descriptor(), self.data(), self.random.randrange(10_000))

    def read(self) -> bytes:
        return self.files.read(self.descriptor(), self.random.randrange(8_000))

    def pread(self) -> bytes:
        return self.files.pread(self.descriptor(), self.random.randrange(8_000), self.random.randrange(8_000))

    def preadv(self) -> tuple[int, bytes]:
        buffers = [bytearray(self.random.randrange(1, 500)) for _ in range(3)]
        count = self.files.preadv(self.descriptor(), buffers, self.random.randrange(8_000))
        return count, b"".join(buffers)

    def truncate(self) -> None:
        self.files.truncate(self.descriptor(), self.random.randrange(8_000))

    def size(self) -> int:
        return self.files.size(self.descriptor())

    def fsync(self) -> None:
        self.files.fsync(self.descriptor())

    def close(self) -> None:
        descriptor = self.descriptor()
        if descriptor in self.descriptors:
            self.descriptors.remove(descriptor)
        self.files.close(descriptor)

    def make(self) -> None:
        self.files.make_directories(self.path())

    def listing(self) -> list[str]:
        return self.files.list_directory(self.path())

    def rename(self) -> None:
        self.files.rename(self.path(), self.path())

    def unlink(self) -> None:
        self.files.unlink(self.path())

    def remove(self) -> None:
        self.files.remove_directory(self.path())

    def status(self) -> tuple[bool, bool, int]:
        path = self.path()
        exists = self.files.exists(path)
        found = self.files.status(path)
        return exists, found.is_directory, 0 if found.is_directory else found.size_bytes

    def lock(self) -> bool:
        return self.files.lock(self.descriptor())


@pytest.mark.parametrize("seed", range(12))
def test_files_behave_as_real_ones(seed: int, tmp_path: Path) -> None:
    with Simulation(seed, profile=STEADY) as simulation:
        simulated_files = SimulatedFiles(simulation.machine("a").disk, "files", lambda _: None)
        simulated_files.make_directories("/root")
        real, simulated = Actor(RealFiles(), str(tmp_path), seed), Actor(simulated_files, "/root", seed)
        kinds = set()
        for number in range(600):
            expected, found = real.step(), simulated.step()
            assert found == expected, f"operation {number}"
            kinds.add(str(expected)[:30])
        for descriptor in real.descriptors:
            os.close(descriptor)
    assert len(kinds) > 25


class Recorder(asyncio.Protocol):
    """Writes down what it is told, runs of data joined."""

    def __init__(self, keep_open: bool) -> None:
        self.told: list[object] = []
        self.keep_open = keep_open
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are not of that class
        self.told.append("made")

    def data_received(self, data: bytes) -> None:
        if isinstance(self.told[-1], bytes):
            data = self.told.pop() + data  # type: ignore[operator]
        self.told.append(data)

    def eof_received(self) -> bool:
        self.told.append("end")
        return self.keep_open

    def connection_lost(self, exc: BaseException | None) -> None:
        self.told.append(("lost", type(exc).__name__))
        self.over.set_result(None)


async def _conversation(loop: asyncio.AbstractEventLoop, address: str, ending: str, port: int = 0) -> list[object]:
    """One connection that ends in one way; what both sides were told."""
    accepted: asyncio.Future[Recorder] = loop.create_future()

    def accept() -> Recorder:
        recorder = Recorder(keep_open=ending == "half-close")
        accepted.set_result(recorder)
        return recorder

    server = await loop.create_server(accept, address, port)
    port = server.sockets[0].getsockname()[1]
    _, near = await loop.create_connection(lambda: Recorder(keep_open=False), address, port)
    far = await accepted
    near.transport.write(b"question")
    near.transport.writelines([b" and", bytearray(b" more"), memoryview(b"!")])
    while far.told != ["made", b"question and more!"]:
        await asyncio.sleep(0.001)
    far.transport.write(b"answer")
    while near.told != ["made", b"answer"]:
        await asyncio.sleep(0.001)
    if ending == "close":
        near.transport.write(b"last words")
        near.transport.close()
    elif ending == "abort":
        near.transport.abort()
    elif ending == "half-close":
        near.transport.write_eof()
        while far.told[-1] != "end":
            await asyncio.sleep(0.001)
        far.transport.write(b" after the end")
        far.transport.close()
    elif ending == "unread":
        near.transport.pause_reading()
        far.transport.write(b"never read")
        await asyncio.sleep(0.01)
        near.transport.write(b"may be lost")
        near.transport.close()
        await far.over
        far.told = [far.told[0], far.told[-1]]
    else:
        near.transport.pause_reading()
        far.transport.write(b"never read")
        far.transport.close()
        await asyncio.sleep(0.01)
        near.transport.resume_reading()
    await near.over
    await far.over
    server.close()
    await server.wait_closed()
    try:
        await loop.create_connection(asyncio.Protocol, address, port)
    except OSError as error:
        return [near.told, far.told, type(error).__name__, near.transport.is_closing()]
    raise AssertionError("a closed server accepted a connection")


@pytest.mark.parametrize("ending", ["close", "abort", "half-close", "paused", "unread"])
def test_connections_behave_as_real_ones(run: Runner, ending: str) -> None:
    async def real() -> list[object]:
        async with asyncio.timeout(60):
            # Nobody else's afterwards, when there is to be no server.
            return await _conversation(asyncio.get_running_loop(), "127.0.0.1", ending, free_port())

    async def simulated(host: Host) -> list[object]:
        return await _conversation(host.loop, "127.0.0.1", ending)

    expected = run(real())
    for seed in range(5):
        with Simulation(seed) as simulation:
            assert simulation.run_on(simulation.machine("a"), simulated) == expected
