"""Keeps OpenSSL out of a process without TLS: 4.4 MiB of a broker at rest, and some 20 ms of its start.

asyncio does without the module `ssl` where Python has none. uvloop takes names from it while it is imported, and uses
them only for what is given a context. So both are imported while something else stands in the module's place.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, Final

_CLASSES: Final = ("SSLContext", "MemoryBIO")
_ERRORS: Final = ("SSLError", "SSLWantReadError", "SSLSyscallError", "SSLZeroReturnError", "CertificateError")
_NUMBERS: Final = ("SSL_ERROR_WANT_READ", "SSL_ERROR_WANT_WRITE", "SSL_ERROR_SYSCALL")
_NAME: Final = "ssl"


def import_loops_without_tls() -> None:
    """Imports asyncio, and uvloop where it is installed, so that their loops refuse TLS and OpenSSL is not loaded.

    Call this before anything else imports asyncio; where something has, nothing happens. Whoever imports `ssl`
    afterwards gets the real one.
    """
    if _NAME in sys.modules or "asyncio" in sys.modules:
        return
    try:
        sys.modules[_NAME] = None  # type: ignore[assignment]  # an import of it then fails, as where there is none
        importlib.import_module("asyncio")
        sys.modules[_NAME] = _StandIn(_NAME)
        try:
            importlib.import_module("uvloop")
        except ImportError:
            return
    finally:
        if sys.modules.get(_NAME) is None or isinstance(sys.modules[_NAME], _StandIn):
            del sys.modules[_NAME]


class _StandIn(ModuleType):
    """Has what uvloop takes; anything else, which another version of it might, comes from the real module."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        for class_name in _CLASSES:
            setattr(self, class_name, type(class_name, (), {}))
        for class_name in _ERRORS:
            setattr(self, class_name, type(class_name, (OSError,), {}))
        for number, constant in enumerate(_NUMBERS):
            setattr(self, constant, number)
        self.create_default_context = _refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import itself asks of a module
            raise AttributeError(name)
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        return getattr(importlib.import_module(_NAME), name)


def _refuse(*_arguments: object, **_named: object) -> None:
    raise RuntimeError("this process has been started without TLS")
