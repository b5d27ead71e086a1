"""`barnabas coordinator`: what it says where it cannot begin."""

from __future__ import annotations

import errno
import socket

import pytest

from barnabas.cli.coordinator import words_of
from barnabas.coordination.embedded.config import CoordinatorConfig

CONFIG = CoordinatorConfig("/data", host="coordinator.example", port=81)
AT = "cannot listen on coordinator.example:81: "


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EADDRINUSE, "x"), f"{AT}the port is in use by another program. Choose another port (--port;"),
        (PermissionError(errno.EACCES, "x"), f"{AT}permission is denied. Choose another port (--port; barnabas up: "),
        (OSError(errno.EADDRNOTAVAIL, "x"), f"{AT}this machine has no such address. Choose another one (--host)"),
        (socket.gaierror(socket.EAI_NONAME, "x"), f"{AT}the name cannot be resolved. Choose another one (--host)"),
        (PermissionError(errno.EACCES, "x", "/data/a"), "the data directory /data cannot be used: /data/a: permission"),
        (OSError(errno.ENOSPC, "x"), "the data directory /data cannot be used: no space is left on the disk"),
        (ValueError("what else"), "what else"),
    ],
)
def test_says_what_to_choose_instead(error: Exception, expected: str) -> None:
    assert words_of(CONFIG, error).startswith(expected)
