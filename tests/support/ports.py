"""TCP ports for servers under test."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

_LOWEST_PORT = 10_000
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOCKS = Path(tempfile.gettempdir()) / "barnabas-ports-of-tests"
"""The byte at the number of a port is locked by the process that was given it, until that ends."""
_handed_out: set[int] = set()
_choice = random.SystemRandom()
_locks: int | None = None


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on, never handed out twice by this process, nor by another one that
    runs tests: between this and the server's start nobody else takes it, nor while the server is down.

    It is taken from below the range which the system uses for outgoing connections, so that a server which is killed
    and started again finds its port free.
    """
    highest_port = int(_RANGE_FILE.read_text().split()[0]) - 1 if _RANGE_FILE.exists() else 32_767
    if highest_port <= _LOWEST_PORT:
        highest_port = 65_535
    for _ in range(1_000):
        port = _choice.randint(_LOWEST_PORT, highest_port)
        if port in _handed_out or not _is_ours(port):
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _handed_out.add(port)
        return port
    raise OSError(f"no free TCP port between {_LOWEST_PORT} and {highest_port} on 127.0.0.1")


def _is_ours(port: int) -> bool:
    """Whether no other process that runs tests has it; none will from now on."""
    global _locks
    if _locks is None:
        _locks = os.open(_LOCKS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(PermissionError):  # another user's
            _LOCKS.chmod(0o666)
    try:
        fcntl.lockf(_locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True
