"""The reason of an operating system error, in plain words."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from typing import Final

_WORDS: Final[Mapping[int, str]] = {
    errno.EACCES: "permission is denied",
    errno.EPERM: "permission is denied",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "no space is left on the disk",
    errno.EDQUOT: "the quota of the disk is used up",
    errno.EIO: "the disk cannot be read or written (input/output error)",
    errno.EMFILE: "too many files are open (ulimit -n)",
    errno.EEXIST: "a file of this name exists already",
    errno.ENOTDIR: "it is not a directory",
    errno.EADDRINUSE: "the port is in use by another program",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}


def reason(error: OSError) -> str:
    """The reason, with the file that it is about: `/data/.lock: permission is denied`. Without numbers of errors."""
    if isinstance(error, socket.gaierror):
        return "the name cannot be resolved"
    words = _WORDS.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {words}" if isinstance(error.filename, str) else words
