"""What a cluster in this process takes from the machine beside files: free ports, and a directory that goes with it."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import weakref


class KeptPort:
    """Keeps a port from being given to anybody else, while who had it is down; nobody can connect to it."""

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, port))

    def close(self) -> None:
        """Lets go of it."""
        self._socket.close()


class OwnDirectory:
    """An empty directory, which is removed with all that is in it by `remove`, or else with this object; not by a child
    that this process has forked, whose objects are copies.
    """

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="barnabas-")
        self._remove = weakref.finalize(self, _remove, self.path, os.getpid())

    def remove(self) -> None:
        self._remove()


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
