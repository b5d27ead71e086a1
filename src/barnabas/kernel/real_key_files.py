"""Gives OpenSSL a private key that is in memory: Python's `ssl` takes keys by the names of files only."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


def load_chain(context: ssl.SSLContext, text: str, password: str | None) -> None:
    """A key and its certificate chain, PEM; it reaches no disk where the system has files in memory (Linux).

    Raises ssl.SSLError. OpenSSL never asks the terminal for a password.
    """
    data = text.encode("latin-1")
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, data)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=lambda: password or "")
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:  # of this user alone
        file.write(data)
        file.flush()
        context.load_cert_chain(file.name, password=lambda: password or "")
