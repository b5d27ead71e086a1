"""What stands for a socket on simulated transports and servers."""

from __future__ import annotations

import errno
import os


class SimulatedSocket:
    """What `get_extra_info("socket")` gives: takes options and does nothing with them."""

    def __init__(self, own: tuple[str, int], peer: tuple[str, int] | None) -> None:
        self._own = own
        self._peer = peer

    def getsockname(self) -> tuple[str, int]:
        return self._own

    def getpeername(self) -> tuple[str, int]:
        if self._peer is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self._peer

    def setsockopt(self, *_: object) -> None:
        """Takes any option."""

    def getsockopt(self, *_: object) -> int:
        return 0

    def fileno(self) -> int:
        return -1
