"""The certificate that the console shows to browsers: from files that may be renewed while it runs."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from typing import Final

from barnabas.cli.connection import CommandError

_LOOKED_EVERY_SECONDS: Final = 10.0
_Stamps = tuple[tuple[int, int, int] | None, ...]


class OwnCertificate:
    """That of the files; where they have changed, that of the new ones, for connections from then on."""

    def __init__(self, certificate: str, key: str | None, tell: Callable[[str], object]) -> None:
        """`key` is in the same file where it is None; `tell` is told of another certificate. Raises CommandError."""
        self._certificate = certificate
        self._key = key
        self._tell = tell
        self._stamps = self._look()
        self._looked_at = time.monotonic()
        self._context = read_context(certificate, key)

    def context(self) -> ssl.SSLContext:
        """For one more connection. Files that do not belong together, as while they are being replaced, leave it as it
        is: they are told of once, and looked at again when they have changed again.
        """
        now = time.monotonic()
        if now - self._looked_at >= _LOOKED_EVERY_SECONDS:
            self._looked_at = now
            stamps = self._look()
            if stamps != self._stamps:
                self._stamps = stamps
                try:
                    self._context = read_context(self._certificate, self._key)
                except CommandError as error:
                    self._tell(f"the certificate stays as it was: {error}")
                else:
                    self._tell(f"the certificate is that of {self._certificate} as it is now")
        return self._context

    def _look(self) -> _Stamps:
        return tuple(map(_stamp, (self._certificate, self._key or self._certificate)))


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def read_context(certificate: str, key: str | None) -> ssl.SSLContext:
    """How pages are served, by files in PEM. Raises CommandError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # each would cost as much as a connection
    context.num_tickets = 0  # a connection has one request, and none is taken up again
    named = certificate if key is None else f"{certificate} and {key}"

    def refuse() -> str:  # it would ask at the terminal
        raise CommandError(
            f"the key in {key or certificate} is encrypted: give one that is not, which only you may read"
        )

    try:
        context.load_cert_chain(certificate, key, password=refuse)
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise CommandError(f"{named}: no certificate and key in PEM that belong together: {reason}") from error
    except OSError as error:
        raise CommandError(f"{named}: {error.strerror or error}") from error
    return context
