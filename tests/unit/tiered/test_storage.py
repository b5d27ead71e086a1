"""Objects in a directory, and through fsspec's interface."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any, Self

import pytest

from barnabas.kernel.real_files import RealFiles
from barnabas.tiered.storage import FsspecStore, RemoteStore, StorageConfigError, open_store, put_file


class MemoryFiles:
    """What is used of a file system of fsspec."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def makedirs(self, path: str, exist_ok: bool) -> None:
        assert exist_ok

    def open(self, path: str, mode: str) -> Any:
        assert mode == "wb"
        files = self

        class Writer:
            """As fsspec's: its end completes the object, also where the block that wrote it has failed."""

            def __init__(self) -> None:
                self.data = b""
                self.closed = False

            def __enter__(self) -> Self:
                return self

            def write(self, chunk: bytes) -> None:
                self.data += chunk

            def discard(self) -> None:
                self.data = b""

            def close(self) -> None:
                if not self.closed:
                    files.objects[path] = self.data
                self.closed = True

            def __exit__(self, *_: object) -> None:
                self.close()

            def __del__(self) -> None:
                self.close()

        return Writer()

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path][start:end]

    def size(self, path: str) -> int:
        return len(self.cat_file(path))

    def rm_file(self, path: str) -> None:
        if self.objects.pop(path, None) is None:
            raise FileNotFoundError(path)

    def ls(self, path: str, detail: bool, refresh: bool) -> list[str]:
        assert refresh
        assert not detail
        found = sorted(
            {
                f"{path}/{name[len(path) + 1 :].partition('/')[0]}"
                for name in self.objects
                if name.startswith(f"{path}/")
            }
        )
        if not found:
            raise FileNotFoundError(path)
        return found


@pytest.fixture(params=["file", "fsspec"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RemoteStore:
    if request.param == "fsspec":
        return FsspecStore(MemoryFiles(), "bucket/prefix/")
    return open_store(RealFiles(), f"file://{tmp_path}/tier")


def test_objects_are_written_whole_read_in_parts_and_deleted(store: RemoteStore) -> None:
    store.put("flights-0/a.log", [b"abc", b"", b"def"])
    assert store.read("flights-0/a.log", 2, 3) == b"cde"
    assert store.read("flights-0/a.log", 4, 100) == b"ef"
    assert store.read_all("flights-0/a.log") == b"abcdef"
    assert store.size("flights-0/a.log") == 6
    store.put("flights-0/a.log", [b"new"])
    store.put("flights-0/b.log", [b""])
    assert store.read_all("flights-0/a.log") == b"new"
    assert store.names("flights-0") == ["flights-0/a.log", "flights-0/b.log"]
    assert store.names("other") == []
    store.delete(["flights-0/a.log", "flights-0/missing.log", "flights-0/b.log"])
    with pytest.raises(FileNotFoundError):
        store.read("flights-0/a.log", 0, 1)
    with pytest.raises(FileNotFoundError):
        store.size("flights-0/a.log")
    assert store.names("flights-0") == []


def test_a_write_that_fails_is_not_there(store: RemoteStore) -> None:
    def chunks() -> Any:
        yield b"abc"
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        store.put("flights-0/a.log", chunks())
    with pytest.raises(FileNotFoundError):
        store.read_all("flights-0/a.log")
    assert store.names("flights-0") == []
    store.delete(["flights-0/a.log"])


def test_errors_of_a_package_for_a_storage_are_those_of_a_disk() -> None:
    class NobodyAnswers(Exception):
        pass

    class DeadFiles:
        def __getattr__(self, name: str) -> Any:
            def fail(*_: object, **__: object) -> None:
                raise NobodyAnswers("could not connect")

            return fail

    store = FsspecStore(DeadFiles(), "bucket")
    for call in (
        lambda: store.put("a/b", [b"1"]),
        lambda: store.read("a/b", 0, 1),
        lambda: store.read_all("a/b"),
        lambda: store.size("a/b"),
        lambda: store.delete(["a/b"]),
        lambda: store.names("a"),
    ):
        with pytest.raises(OSError, match="NobodyAnswers: could not connect"):
            call()


def test_a_file_that_is_shorter_than_it_should_be_is_not_copied(store: RemoteStore, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"abc")
    put_file(store, "x/whole", RealFiles(), f"{tmp_path}/local", 2)
    assert store.read_all("x/whole") == b"ab"
    with pytest.raises(OSError, match="ends after 3 bytes, 1 before its end"):
        put_file(store, "x/short", RealFiles(), f"{tmp_path}/local", 4)


def test_what_cannot_be_used_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageConfigError, match="must name an absolute path, as file:///path"):
        open_store(RealFiles(), "file://tier")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(StorageConfigError, match=r"pip install barnabas\[tiered\], or use file:///path"):
        open_store(RealFiles(), "s3://bucket/missing")


def test_fsspec_is_given_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def url_to_fs(url: str, **options: object) -> tuple[MemoryFiles, str]:
        given.append((url, options))
        if url.startswith("x:"):
            raise ValueError("Protocol not known: x")
        return MemoryFiles(), "bucket"

    core = types.ModuleType("fsspec.core")
    core.url_to_fs = url_to_fs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fsspec.core", core)
    store = open_store(RealFiles(), "s3://bucket/given", '{"anon": true}')
    store.put("a/b", [b"1"])
    assert store.read_all("a/b") == b"1"
    assert given == [("s3://bucket/given", {"anon": True})]
    for url, options, says in (
        ("s3://bucket/1", "{", "are not JSON"),
        ("s3://bucket/2", "[]", "must be a JSON object"),
        ("x://y", "{}", "Protocol not known"),
    ):
        with pytest.raises(StorageConfigError, match=says):
            open_store(RealFiles(), url, options)
