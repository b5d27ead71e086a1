"""The files of a directory with a queue are, for the loop, at any moment what they would be without one."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from barnabas.kernel.host import Files, Host
from barnabas.kernel.real_files import RealFiles
from barnabas.kernel.real_host import real_host
from barnabas.log.directories.files import read_file, write_all
from barnabas.log.directories.queued_files import FULL_BYTES, QueuedFiles
from barnabas.testing.simulation import Simulation, simulation_seeds

ROOT = "/data/logs"
STEPS = 300
NAMES = ("a", "b", "c")
DIRECTORIES = ("one", "two", "three")


class Actor:
    """Does drawn operations, as logs do them; two with one seed do the same."""

    def __init__(self, files: Files, root: str, seed: int) -> None:
        self.files = files
        self.root = root
        self.random = Random(seed)
        self.open_files: list[tuple[str, int]] = []
        files.make_directories(root)

    def path(self) -> str:
        return f"{self.root}/{self.random.choice(DIRECTORIES)}/{self.random.choice(NAMES)}"

    def file(self) -> int:
        return self.random.choice(self.open_files)[1]

    def step(self) -> object:
        operations: list[Callable[[], object]] = [self.make, self.open_existing, self.exists]
        operations += [self.rename, self.rename_directory, self.unlink, self.make_directory] * 2
        if self.open_files:
            operations += [self.write] * 6 + [self.read, self.size] * 4 + [self.truncate] * 3 + [self.close]
        operation = self.random.choice(operations)
        try:
            return operation.__name__, operation()
        except OSError as error:
            return operation.__name__, type(error).__name__

    def make(self) -> None:
        path = self.path()
        flags = os.O_RDWR | os.O_CREAT | self.random.choice((0, os.O_TRUNC))
        if not self.files.exists(os.path.dirname(path)):
            return  # whoever makes a file has made its directory
        if any(path == known for known, _ in self.open_files):
            return
        self.open_files.append((path, self.files.open(path, flags)))

    def open_existing(self) -> None:
        path = self.path()
        if not any(path == known for known, _ in self.open_files):
            self.open_files.append((path, self.files.open(path, os.O_RDWR)))

    def write(self) -> None:
        data = self.random.randbytes(self.random.choice((0, 1, 9, 700)))
        write_all(self.files, self.file(), data, self.at())

    def at(self) -> int:
        return self.random.randrange(900)

    def read(self) -> bytes:
        return read_at_most(self.files, self.file(), self.random.randrange(900), self.at())

    def size(self) -> int:
        return self.files.size(self.file())

    def truncate(self) -> None:
        self.files.truncate(self.file(), self.at())

    def close(self) -> None:
        _, descriptor = self.open_files.pop(self.random.randrange(len(self.open_files)))
        self.files.close(descriptor)

    def exists(self) -> bool:
        return self.files.exists(self.path())

    def rename(self) -> None:
        source = self.path()
        target = f"{source}.deleted{self.random.randrange(1 << 30)}"
        self.files.rename(source, target)
        self.open_files = [(target if path == source else path, each) for path, each in self.open_files]

    def rename_directory(self) -> None:
        source = f"{self.root}/{self.random.choice(DIRECTORIES)}"
        target = f"{self.root}/gone{self.random.randrange(1 << 30)}"
        if self.random.random() < 0.5:
            target = f"{self.root}/{self.random.choice(DIRECTORIES)}"
            if self.files.exists(target):
                return
        self.files.rename(source, target)
        self.open_files = [
            (target + path[len(source) :] if path.startswith(f"{source}/") else path, each)
            for path, each in self.open_files
        ]

    def unlink(self) -> None:
        path = self.path()
        if not any(path == known for known, _ in self.open_files):
            self.files.unlink(path)

    def make_directory(self) -> None:
        self.files.make_directories(f"{self.root}/{self.random.choice(DIRECTORIES)}")


def read_at_most(files: Files, descriptor: int, count: int, offset: int) -> bytes:
    """All of it that there is; files may give less at once."""
    data = b""
    while len(data) < count and (part := files.pread(descriptor, count - len(data), offset + len(data))):
        data += part
    return data


def contents(files: Files, root: str) -> dict[str, bytes]:
    """Every file by its name."""
    return {
        f"{directory}/{name}": read_file(files, f"{root}/{directory}/{name}")
        for directory in files.list_directory(root)
        for name in files.list_directory(f"{root}/{directory}")
    }


@pytest.mark.parametrize("seed", simulation_seeds(30))
def test_is_seen_as_if_there_were_no_queue(seed: int) -> None:
    done: list[int] = []

    async def main(host: Host) -> None:
        failures: list[OSError] = []
        queued = QueuedFiles(host, ROOT, failures.append, lambda _: None)
        here, beside = Actor(queued, ROOT, seed), Actor(host.files, "/beside", seed)
        pace = Random(seed)
        waited = 0
        for _ in range(STEPS):
            assert here.step() == beside.step()
            if pace.random() < 0.2:
                await asyncio.sleep(pace.choice((0, 0, 0.0003, 0.01)))
            waited += not queued.is_idle
        await queued.settle()
        assert not failures
        assert contents(host.files, ROOT) == contents(host.files, "/beside")
        done.append(waited)

    with Simulation(seed) as simulation:
        machine = simulation.machine("broker")
        machine.start(main)
        simulation.run_until(lambda: bool(done), 100)
    assert done[0] > STEPS // 3, "nothing has waited: the test does not test"


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "logs")


@pytest.mark.parametrize("seed", range(5))
def test_is_seen_as_if_there_were_no_queue_by_real_threads(run: Any, directory: str, tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        async with real_host("broker", asyncio.get_running_loop()) as host:
            failures: list[OSError] = []
            queued = QueuedFiles(host, directory, failures.append, lambda _: None)
            here, beside = Actor(queued, directory, seed), Actor(host.files, str(tmp_path / "beside"), seed)
            for number in range(3000):
                assert here.step() == beside.step()
                if not number % 7:
                    await asyncio.sleep(0)
            await queued.settle()
            assert not failures
            assert contents(host.files, directory) == contents(host.files, str(tmp_path / "beside"))
            for actor in (here, beside):
                for _, descriptor in actor.open_files:
                    actor.files.close(descriptor)

    run(main())


class Counted(RealFiles):
    """Counts writes and what is closed, and lets them fail."""

    __slots__ = ("closed", "error", "errors", "fails_at", "writes")

    def __init__(self) -> None:
        self.writes: list[int] = []
        self.closed: list[int] = []
        self.error: OSError | None = None
        self.errors: dict[str, Exception] = {}
        """Of what is done with the descriptor `fails_at`, by its name."""
        self.fails_at = -1

    def close(self, descriptor: int, /) -> None:
        """Lets it go whether it fails or not, as Linux does."""
        self.closed.append(descriptor)
        RealFiles.close(descriptor)
        self._fail("close", descriptor)

    def truncate(self, descriptor: int, size_bytes: int, /) -> None:
        self._fail("truncate", descriptor)
        RealFiles.truncate(descriptor, size_bytes)

    def _fail(self, name: str, descriptor: int) -> None:
        if descriptor == self.fails_at and name in self.errors:
            raise self.errors.pop(name)

    def pwrite(self, descriptor: int, data: Any, offset: int, /) -> int:
        self.writes.append(len(data))
        if self.error is not None:
            raise self.error
        return RealFiles.pwrite(descriptor, data, offset)


def with_files(run: Any, directory: str, scenario: Callable[[QueuedFiles, Counted, list[Any]], Any]) -> None:
    async def main() -> None:
        async with real_host("broker", asyncio.get_running_loop()) as host:
            files, told = Counted(), list[Any]()
            files.make_directories(directory)
            queued = QueuedFiles(dataclasses.replace(host, files=files), directory, told.append, told.append)
            await scenario(queued, files, told)

    run(main())


def test_what_one_file_gets_in_many_pieces_is_written_together(run: Any, directory: str) -> None:
    async def scenario(queued: QueuedFiles, files: Counted, told: list[Any]) -> None:
        first, second = (queued.open(f"{directory}/{name}", os.O_RDWR | os.O_CREAT) for name in "ab")
        await queued.settle()
        for number in range(100):
            queued.pwrite(first, b"%9d\n" % number, 10 * number)
            queued.pwrite(second, b"%9d\n" % -number, 10 * number)
        assert files.writes == []
        await queued.settle()
        assert files.writes == [1000, 1000]
        assert files.pread(second, 10, 990) == b"      -99\n"
        for descriptor in (first, second):
            queued.close(descriptor)

    with_files(run, directory, scenario)


def test_a_failure_ends_all_that_is_behind_it(run: Any, directory: str) -> None:
    async def scenario(queued: QueuedFiles, files: Counted, told: list[Any]) -> None:
        written = queued.open(f"{directory}/written", os.O_RDWR | os.O_CREAT)
        queued.pwrite(written, b"before", 0)
        await queued.settle()
        files.error = OSError(errno.ENOSPC, "full")
        queued.pwrite(written, b"fails", 6)
        behind = queued.open(f"{directory}/behind", os.O_RDWR | os.O_CREAT)
        queued.close(written)
        done = queued.when_done()
        with pytest.raises(OSError, match="full"):
            await done
        assert told == [files.error]
        assert not os.path.exists(f"{directory}/behind")
        for change in (
            lambda: queued.pwrite(behind, b"refused", 0),
            lambda: queued.truncate(behind, 0),
            lambda: queued.rename(f"{directory}/written", f"{directory}/renamed"),
            lambda: queued.open(f"{directory}/more", os.O_RDWR | os.O_CREAT),
        ):
            with pytest.raises(OSError, match="full"):
                change()
        queued.close(behind)
        for descriptor in (written, behind):
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
        assert read_file(files, f"{directory}/written") == b"before"
        with pytest.raises(OSError, match="full"):
            await queued.settle()

    with_files(run, directory, scenario)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "at the end"), ValueError("not of the disk")], ids=repr)
@pytest.mark.parametrize("comes_of", ["close", "truncate"])
def test_a_failure_of_any_kind_closes_no_descriptor_twice(
    run: Any, directory: str, comes_of: str, error: Exception
) -> None:
    """Another file may have the number by then."""

    async def scenario(queued: QueuedFiles, files: Counted, told: list[Any]) -> None:
        first, second, third, fourth = (queued.open(f"{directory}/{name}", os.O_RDWR | os.O_CREAT) for name in "abcd")
        await queued.settle()
        files.errors[comes_of] = error
        files.fails_at = second
        queued.pwrite(fourth, b"so that what is closed is closed in order", 0)
        queued.close(first)
        if comes_of == "truncate":
            queued.truncate(second, 0)
        queued.close(second)
        queued.close(third)
        with pytest.raises(OSError, match=r"at the end|not of the disk"):
            await queued.settle()
        queued.close(fourth)
        assert sorted(files.closed) == sorted((first, second, third, fourth))
        assert [str(each).count(str(error.args[-1])) for each in told] == [1]

    with_files(run, directory, scenario)


def test_says_when_too_much_waits(run: Any, directory: str) -> None:
    async def scenario(queued: QueuedFiles, files: Counted, told: list[Any]) -> None:
        written = queued.open(f"{directory}/written", os.O_RDWR | os.O_CREAT)
        piece = bytes(FULL_BYTES // 8)
        for number in range(8):
            queued.pwrite(written, piece, len(piece) * number)
        assert told == []
        queued.pwrite(written, b"one more", FULL_BYTES)
        queued.pwrite(written, b"and another", FULL_BYTES + 8)
        assert told == [True]
        assert queued.waiting_bytes > FULL_BYTES
        await queued.settle()
        assert told == [True, False]
        assert queued.waiting_bytes == 0
        queued.close(written)

    with_files(run, directory, scenario)


def test_whoever_waits_first_goes_on_first(run: Any, directory: str) -> None:
    """Work off the loop is handed over by each, and what was to be done first must not come last: somebody may ask
    between the end of the changes and the turn in which the others hear of it."""

    async def scenario(queued: QueuedFiles, files: Counted, told: list[Any]) -> None:
        written = queued.open(f"{directory}/written", os.O_RDWR | os.O_CREAT)
        went_on: list[int] = []

        async def wait(number: int) -> None:
            await queued.settle()
            went_on.append(number)

        waiting: list[asyncio.Task[None]] = []
        for _ in range(100):
            queued.pwrite(written, b"changed", 0)
            while not queued.is_idle:
                waiting.append(asyncio.ensure_future(wait(len(waiting))))
                await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert went_on == list(range(len(waiting)))
        queued.close(written)

    with_files(run, directory, scenario)
