"""What a service manager is told of a process: that it is ready, what it is at, that it stops, that its loop turns.

The protocol is systemd's (sd_notify(3)), which others speak too: datagrams to the socket that NOTIFY_SOCKET names.
Without that variable everything here does nothing. A message that cannot be sent is dropped: what manages a process
must not stop it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import MutableMapping
from typing import Final

NOTIFY_SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG_PERIOD: Final = "WATCHDOG_USEC"
WATCHDOG_PROCESS: Final = "WATCHDOG_PID"
STATUS_CHARACTERS_MAX: Final = 500
STEP_SECONDS_MAX: Final = 90
"""How long a start may take until it has got further; said again whenever it has."""


class ServiceManager:
    """The manager that has started this process, or none."""

    def __init__(self, loop: asyncio.AbstractEventLoop, environment: MutableMapping[str, str] | None = None) -> None:
        """Takes the variables out of `environment` (that of the process), so that no child speaks in its name."""
        environment = os.environ if environment is None else environment
        self._loop = loop
        address = environment.pop(NOTIFY_SOCKET, "")
        # An address that begins with @ is in Linux's abstract namespace, others are paths.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if self._address.startswith(("\0", "/")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        period, process = environment.pop(WATCHDOG_PERIOD, ""), environment.pop(WATCHDOG_PROCESS, "")
        is_ours = not process or process == str(os.getpid())
        self._period_seconds = int(period) / 2_000_000 if is_ours and period.isdecimal() else 0.0
        self._timer: asyncio.TimerHandle | None = None
        if self._socket is not None and self._period_seconds:
            self._turn()

    @property
    def is_there(self) -> bool:
        return self._socket is not None

    def starting(self, status: str) -> None:
        """The start has got further; the next step may take `STEP_SECONDS_MAX` again."""
        self._send(f"EXTEND_TIMEOUT_USEC={STEP_SECONDS_MAX * 1_000_000}", _status(status))

    def ready(self, status: str) -> None:
        """What waited for this service can start."""
        self._send("READY=1", _status(status))

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", _status(status))

    def close(self) -> None:
        """The end: the watchdog is told no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # Inside.

    def _turn(self) -> None:
        """Every half period: a loop that hangs does not come here, and the manager ends the process."""
        self._send("WATCHDOG=1")
        self._timer = self._loop.call_later(self._period_seconds, self._turn)

    def _send(self, *lines: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(), self._address)


def _status(text: str) -> str:
    return "STATUS=" + " ".join(text.split())[:STATUS_CHARACTERS_MAX]
