"""Small files that only this user may read, each written as a whole: who is killed amid one leaves none, or the one of
before.
"""

from __future__ import annotations

import os
from typing import Final

from barnabas.kernel.host import Files
from barnabas.log.directories.files import read_file, write_all

_PRIVATE: Final = 0o600
_NEW: Final = ".tmp"


class PrivateFiles:
    """Those of one machine. Every call raises OSError."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self, path: str) -> bytes | None:
        """What is in it; None where there is no such file."""
        try:
            return read_file(self._files, path)
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes | str) -> None:
        """Replaces it, durably. What is there already is not written again."""
        data = data.encode() if isinstance(data, str) else data
        if self.read(path) == data:
            return
        new = path + _NEW
        if self._files.exists(new):  # with whatever rights
            self._files.unlink(new)
        descriptor = self._files.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
        try:
            write_all(self._files, descriptor, data, 0)
            self._files.fsync(descriptor)
        finally:
            self._files.close(descriptor)
        self.rename(new, path)

    def rename(self, source: str, target: str) -> None:
        """Gives a file another name, durably."""
        self._files.rename(source, target)
        self._files.fsync_directory(os.path.dirname(target))
