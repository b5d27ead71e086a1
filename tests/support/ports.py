"""TCP ports for servers under test."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST_PORT = 10_000
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_handed_out: set[int] = set()
_choice = random.SystemRandom()


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on, never handed out twice by this process.

    It is taken from below the range which the system uses for outgoing connections, so that a server which is killed
    and started again finds its port free.
    """
    highest_port = int(_RANGE_FILE.read_text().split()[0]) - 1 if _RANGE_FILE.exists() else 32_767
    if highest_port <= _LOWEST_PORT:
        highest_port = 65_535
    for _ in range(1_000):
        port = _choice.randint(_LOWEST_PORT, highest_port)
        if port in _handed_out:
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
