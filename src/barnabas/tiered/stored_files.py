"""Remote storage as files to look at: what `barnabas log dump` of a URL reads. Nothing can be changed through it."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from barnabas.kernel.host import Files, FileStatus
from barnabas.tiered.object_names import parse_object_name
from barnabas.tiered.storage import RemoteStore, open_store


@dataclass(slots=True)
class _Opened:
    name: str
    size_bytes: int
    position: int = 0


class StoredFiles:
    """The part of `kernel.host.Files` that reads. Paths are URLs; what is not named like an object is a directory."""

    def __init__(self, store: RemoteStore, url: str) -> None:
        """`url` is that of the store."""
        self._store = store
        self._url = url
        self._opened: dict[int, _Opened] = {}
        self._descriptors = 0

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:  # noqa: ARG002 - it is for reading only
        """Raises FileNotFoundError."""
        name = self._name(path)
        opened = _Opened(name, self._store.size(name))
        self._descriptors += 1
        self._opened[self._descriptors] = opened
        return self._descriptors

    def close(self, descriptor: int) -> None:
        del self._opened[descriptor]

    def read(self, descriptor: int, count: int) -> bytes:
        opened = self._opened[descriptor]
        data = self.pread(descriptor, count, opened.position)
        opened.position += len(data)
        return data

    def pread(self, descriptor: int, count: int, offset: int) -> bytes:
        opened = self._opened[descriptor]
        count = min(count, opened.size_bytes - offset)
        return self._store.read(opened.name, offset, count) if count > 0 else b""

    def size(self, descriptor: int) -> int:
        return self._opened[descriptor].size_bytes

    def status(self, path: str) -> FileStatus:
        """Raises FileNotFoundError."""
        name = self._name(path)
        if parse_object_name(posixpath.basename(path)) is None:
            if not self._store.names(name):
                raise FileNotFoundError(path)
            return FileStatus(0, 0, is_directory=True)
        return FileStatus(self._store.size(name), 0, is_directory=False)

    def exists(self, path: str) -> bool:
        try:
            self.status(path)
        except FileNotFoundError:
            return False
        return True

    def list_directory(self, path: str) -> list[str]:
        return [posixpath.basename(name) for name in self._store.names(self._name(path))]

    def _name(self, path: str) -> str:
        return path.removeprefix(self._url).strip("/")


def open_url(files: Files, url: str, options: str) -> StoredFiles:
    """What lies at a URL of an object or of a directory. Raises StorageConfigError."""
    root = posixpath.dirname(url) if parse_object_name(posixpath.basename(url)) is not None else url
    return StoredFiles(open_store(files, root, options), root)
