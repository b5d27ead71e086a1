"""Remote storage as the rest sees it: objects by name, written whole and read in parts. Everything here blocks, and
belongs off the loop or into a child process.

`file://` is a directory that all brokers of the cluster share, such as a mounted file system; every write is durable
there when it returns. Any other URL is one of fsspec's (`s3://bucket/prefix`, `gs://...`), which is installed by
`pip install barnabas[tiered]`, with the package that fsspec needs for the scheme.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import posixpath
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, Protocol

from barnabas.kernel.host import Files
from barnabas.log.directories.files import read_at, write_all

_CHUNK_BYTES: Final = 4 * 1024 * 1024
_FILE_SCHEME: Final = "file://"
_PARTIAL_SUFFIX: Final = ".partial"
"""Of a file that is being written; a name that nobody reads."""


class StorageConfigError(ValueError):
    """A storage that cannot be used as it is configured; the text says what to do."""


class RemoteStore(Protocol):
    """Objects by name, with slashes between the parts of names. Errors are OSErrors."""

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        """Writes an object, in place of one that is there; nobody sees a part of it, and it is durable."""
        ...

    def read(self, name: str, position: int, size_bytes: int) -> bytes:
        """Some of an object: fewer bytes only where it ends. Raises FileNotFoundError."""
        ...

    def read_all(self, name: str) -> bytes:
        """A small object. Raises FileNotFoundError."""
        ...

    def size(self, name: str) -> int:
        """Of an object, in bytes. Raises FileNotFoundError."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects; those that are not there are no error."""
        ...

    def names(self, prefix: str) -> list[str]:
        """What is below a prefix, which is a whole part of names; sorted."""
        ...


class FileStore:
    """A directory."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._root = root.rstrip("/")

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        files, path = self._files, self._path(name)
        directory = posixpath.dirname(path)
        self._make_directory(directory)
        partial = path + _PARTIAL_SUFFIX
        descriptor = files.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            position = 0
            for chunk in chunks:
                write_all(files, descriptor, chunk, position)
                position += len(chunk)
            files.fsync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(partial, path)
        files.fsync_directory(directory)

    def read(self, name: str, position: int, size_bytes: int) -> bytes:
        descriptor = self._files.open(self._path(name), os.O_RDONLY)
        try:
            return read_at(self._files, descriptor, size_bytes, position)
        finally:
            self._files.close(descriptor)

    def read_all(self, name: str) -> bytes:
        return read_local(self._files, self._path(name))

    def size(self, name: str) -> int:
        return self._files.status(self._path(name)).size_bytes

    def delete(self, names: Iterable[str]) -> None:
        directories: dict[str, None] = {}
        for name in names:
            for path in (self._path(name), self._path(name) + _PARTIAL_SUFFIX):
                try:
                    self._files.unlink(path)
                except FileNotFoundError:
                    continue
                directories[posixpath.dirname(path)] = None
        for directory in directories:
            self._files.fsync_directory(directory)
            try:
                self._files.remove_directory(directory)
            except OSError:
                continue  # others are there: very many, perhaps, which nobody needs to list

    def names(self, prefix: str) -> list[str]:
        try:
            found = self._files.list_directory(self._path(prefix))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [f"{prefix}/{name}" if prefix else name for name in found if not name.endswith(_PARTIAL_SUFFIX)]

    def _make_directory(self, directory: str) -> None:
        missing: list[str] = []
        while not self._files.exists(directory):
            missing.append(directory)
            directory = posixpath.dirname(directory)
        if missing:
            self._files.make_directories(missing[0])
        for each in missing:
            self._files.fsync_directory(posixpath.dirname(each))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


class FsspecStore:
    """A file system of fsspec."""

    def __init__(self, file_system: Any, root: str) -> None:
        self._file_system = file_system
        self._root = root.rstrip("/")

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        path = self._path(name)
        with _errors_of_storage():
            self._file_system.makedirs(posixpath.dirname(path), exist_ok=True)
            file = self._file_system.open(path, "wb")
            try:
                for chunk in chunks:
                    file.write(chunk)
            except BaseException:
                _abandon(file)
                raise
            file.close()

    def read(self, name: str, position: int, size_bytes: int) -> bytes:
        with _errors_of_storage():
            data: bytes = self._file_system.cat_file(self._path(name), start=position, end=position + size_bytes)
        return data

    def read_all(self, name: str) -> bytes:
        with _errors_of_storage():
            data: bytes = self._file_system.cat_file(self._path(name))
        return data

    def size(self, name: str) -> int:
        with _errors_of_storage():
            return int(self._file_system.size(self._path(name)))

    def delete(self, names: Iterable[str]) -> None:
        with _errors_of_storage():
            for name in names:
                try:
                    self._file_system.rm_file(self._path(name))
                except FileNotFoundError:
                    continue

    def names(self, prefix: str) -> list[str]:
        with _errors_of_storage():
            try:
                found = self._file_system.ls(self._path(prefix), detail=False, refresh=True)
            except FileNotFoundError:
                return []
        return sorted(posixpath.join(prefix, posixpath.basename(str(path).rstrip("/"))) for path in found)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


@contextmanager
def _errors_of_storage() -> Iterator[None]:
    """Makes OSErrors of what a package for a storage raises of its own, such as botocore's when nobody answers."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _abandon(file: Any) -> None:
    """Gives up a file that is written, so that no object comes of it: its end, also as a context manager or as garbage,
    would complete the object with what there is."""
    with suppress(Exception):
        file.discard()
    with suppress(Exception):
        file.closed = True


def is_of_fsspec(url: str) -> bool:
    """Whether a URL is one that fsspec, and a package for its scheme, is needed for."""
    return not url.startswith(_FILE_SCHEME)


def open_store(files: Files, url: str, options: str = "{}") -> RemoteStore:
    """The storage at a URL; `options` is a JSON object that fsspec gives to the file system.

    Raises StorageConfigError.
    """
    if url.startswith(_FILE_SCHEME):
        root = url.removeprefix(_FILE_SCHEME)
        if not root.startswith("/"):
            raise StorageConfigError(f"{url} must name an absolute path, as file:///path")
        return FileStore(files, root)
    return _fsspec_store(url, options)


@functools.lru_cache(maxsize=8)
def _fsspec_store(url: str, options: str) -> RemoteStore:
    try:
        core = importlib.import_module("fsspec.core")
    except ImportError:
        raise StorageConfigError(
            f"{url} needs fsspec, which is not installed: pip install barnabas[tiered], or use file:///path"
        ) from None
    try:
        parsed = json.loads(options)
    except ValueError as error:
        raise StorageConfigError(f"the options of {url} are not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise StorageConfigError(f"the options of {url} must be a JSON object, not {options}")
    try:
        file_system, root = core.url_to_fs(url, **parsed)
    except (ImportError, ValueError) as error:
        raise StorageConfigError(f"{url} cannot be used by fsspec: {error}") from None
    return FsspecStore(file_system, root)


def file_chunks(files: Files, path: str, size_bytes: int | None = None) -> Generator[bytes, None, None]:
    """A local file in pieces, up to `size_bytes` of it. Raises OSError."""
    descriptor = files.open(path, os.O_RDONLY)
    try:
        position = 0
        left = files.size(descriptor) if size_bytes is None else size_bytes
        while left > 0:
            chunk = read_at(files, descriptor, min(_CHUNK_BYTES, left), position)
            if not chunk:
                raise OSError(f"{path} ends after {position} bytes, {left} before its end")
            yield chunk
            position += len(chunk)
            left -= len(chunk)
    finally:
        files.close(descriptor)


def put_file(store: RemoteStore, name: str, files: Files, path: str, size_bytes: int | None = None) -> None:
    """Writes a local file as an object, up to `size_bytes` of it. Raises OSError."""
    with closing(file_chunks(files, path, size_bytes)) as chunks:
        store.put(name, chunks)


def read_local(files: Files, path: str) -> bytes:
    """A small local file. Raises OSError."""
    with closing(file_chunks(files, path)) as chunks:
        return b"".join(chunks)
