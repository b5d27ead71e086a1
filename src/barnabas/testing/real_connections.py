"""Which connections the processes of one cluster have made, in memory that they share.

A broker that is to fail the requests of clients looks here whether a connection is of its own cluster. Who connects
writes that down before it sends anything; nobody waits for anybody, and nothing is asked.
"""

from __future__ import annotations

import mmap
import os
from typing import Final

_LOCAL_PORTS: Final = 65_536
_PLACES: Final = 4
"""Listeners to which one process may be connected from the same port of its own, at the same time."""
_OWNER_BYTES: Final = _LOCAL_PORTS * _PLACES * 2


class ConnectionTable:
    """Of each owner, and each of its own ports, the ports of the listeners that it is connected to; 0 is none.

    An owner is a process, by a number below `owners`, and the only one that writes what is its own; the test may
    forget it when the process is gone. Pages that nobody has written to take no memory.
    """

    def __init__(self, path: str, owners: int, *, is_new: bool = False) -> None:
        """Raises OSError. `path` is a file that all of them can reach; with `is_new` nothing of an older one stays."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if is_new else 0), 0o600)
        try:
            size = owners * _OWNER_BYTES
            if is_new:
                os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._owners = owners
        self._ports = memoryview(self._map).cast("H")

    def add(self, owner: int, local_port: int, port: int) -> None:
        """The owner has connected to the listener on `port`."""
        places = range(self._place(owner, local_port), self._place(owner, local_port) + _PLACES)
        self._ports[next((place for place in places if not self._ports[place]), places[-1])] = port

    def remove(self, owner: int, local_port: int, port: int) -> None:
        """That connection is over."""
        first = self._place(owner, local_port)
        for place in range(first, first + _PLACES):
            if self._ports[place] == port:
                self._ports[place] = 0
                return

    def forget(self, owner: int) -> None:
        """All connections of an owner are over: its process is gone."""
        first = self._place(owner, 0)
        for place in range(first, first + _LOCAL_PORTS * _PLACES):
            if self._ports[place]:
                self._ports[place] = 0

    def has(self, local_port: int, port: int) -> bool:
        """Whether one of the cluster has connected to the listener on `port` from that port of its own."""
        firsts = (self._place(owner, local_port) for owner in range(self._owners))
        return any(port in self._ports[first : first + _PLACES] for first in firsts)

    def close(self) -> None:
        self._ports.release()
        self._map.close()

    # Inside.

    def _place(self, owner: int, local_port: int) -> int:
        return (owner * _LOCAL_PORTS + local_port) * _PLACES
