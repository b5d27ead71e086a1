"""What is fetched for OAUTHBEARER, tokens and the keys that sign them: from a file or a server, and off the loop.

What hangs or fails there holds up nobody but who waits for it: it has threads of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from barnabas.kernel.host import Files, Host, OffloadKind
from barnabas.kernel.real_http import HttpAnswer, HttpError, HttpRequest, request_http

if TYPE_CHECKING:
    import ssl

Result = TypeVar("Result")
_LANE: Final = "oauth"
_TLS: Final = "ssl."
_STORE_BYTES_MAX: Final = 32 * 1024 * 1024


async def read_document(host: Host, path: str, bytes_max: int, then: Callable[[bytes], Result]) -> Result:
    """What `then` makes of a file, off the loop. Raises OSError, and what `then` does."""
    return await host.offload(OffloadKind.REMOTE, lambda: then(read_file(host.files, path, bytes_max)), lane=_LANE)


async def request_document(
    host: Host, request: HttpRequest, options: Mapping[str, str], then: Callable[[HttpAnswer], Result]
) -> Result:
    """What `then` makes of the answer to a request, off the loop. TLS is as the `ssl.*` among a login module's
    `options` say, as Kafka has it. Raises HttpError, TlsConfigError, and what `then` does.
    """

    def do() -> Result:
        context = endpoint_context(options, host.files) if request.address.lower().startswith("https:") else None
        return then(request_http(replace(request, tls=context)))

    return await host.offload(OffloadKind.REMOTE, do, lane=_LANE)


def endpoint_context(options: Mapping[str, str], files: Files) -> ssl.SSLContext | None:
    """None where the options name no store: the system's authorities count. Raises TlsConfigError."""
    if not any(name.startswith(_TLS) for name in options):
        return None
    from barnabas.kernel.real_key_files import load_chain
    from barnabas.tls.contexts import client_context
    from barnabas.tls.settings import OF_CLIENTS, tls_settings
    from barnabas.tls.stores import read_stores

    settings = tls_settings(options, OF_CLIENTS)
    stores = read_stores(settings, lambda path: read_file(files, path, _STORE_BYTES_MAX))
    return client_context(settings, stores, load_chain)


def read_file(files: Files, path: str, bytes_max: int) -> bytes:
    """Raises OSError."""
    descriptor = files.open(path, os.O_RDONLY)
    try:
        found = bytearray()
        while data := files.read(descriptor, 1 << 16):
            found += data
            if len(found) > bytes_max:
                raise HttpError(f"{path} has more than {bytes_max} bytes")
        return bytes(found)
    finally:
        files.close(descriptor)
