"""Who may log in at `barnabas coordinator`, and how its port is secured: from the files that its options name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import logging
    import ssl
    from collections.abc import Callable

    from barnabas.kernel.host import Host

_SECTION: Final = "Server"
_DEFAULTS: Final = {"ssl.client.auth": "required"}
"""As ZooKeeper has it."""
_SHOWN_MAX: Final = 10
LOOKED_EVERY_SECONDS: Final = 60.0
_LANE: Final = "keys"
"""A thread of its own: files may be on a mount that hangs."""


def passwords_of(path: str) -> dict[str, str]:
    """By user, of the section that ZooKeeper's server reads too. Raises ValueError, which shows no secret."""
    from barnabas.sasl.errors import LoginConfigError
    from barnabas.sasl.jaas import parse_login_file
    from barnabas.server.zookeeper_access import DIGEST_MODULE

    try:
        module = parse_login_file(Path(path).read_text()).get(_SECTION)
    except (LoginConfigError, OSError, UnicodeError) as error:
        raise ValueError(f"--login-file {path}: {error}") from None
    if module is None or module.name != DIGEST_MODULE or not module.passwords:
        raise ValueError(
            f'--login-file {path}: it needs a section {_SECTION} {{ {DIGEST_MODULE} required user_NAME="PASSWORD"; }};'
        )
    return module.passwords


class SecuredBy(NamedTuple):
    """How a port is secured, and by what."""

    basis: object
    """Equal where a context would be the same again."""
    context: ssl.SSLContext


def secured_by(path: str, before: SecuredBy | None = None) -> SecuredBy:
    """What a file of properties with Kafka's names says; `before` itself where that is the same, since making a context
    holds other threads up. Raises ValueError, which shows no secret.
    """
    from barnabas.config.properties import PropertiesError, parse
    from barnabas.kernel.real_key_files import load_chain
    from barnabas.tls.contexts import server_context
    from barnabas.tls.errors import TlsConfigError
    from barnabas.tls.settings import KEYS, tls_settings
    from barnabas.tls.stores import read_stores

    try:
        values = {entry.key: entry.value for entry in parse(Path(path).read_bytes(), path)}
        if unknown := sorted(set(values) - set(KEYS)):
            raise TlsConfigError(
                f"{', '.join(unknown[:_SHOWN_MAX])} would have no effect; the keys that have one are {', '.join(KEYS)}"
            )
        settings = tls_settings(values, _DEFAULTS)
        stores = read_stores(settings, lambda file: Path(file).read_bytes())
        basis = settings, stores
        if before is not None and basis == before.basis:
            return before
        return SecuredBy(basis, server_context(settings, stores, load_chain))
    except (PropertiesError, TlsConfigError, OSError) as error:
        raise ValueError(f"--tls-config {path}: {error}") from None


async def follow_files(
    host: Host, path: str, before: SecuredBy, exchange: Callable[[ssl.SSLContext], object], logger: logging.Logger
) -> None:
    """Looks every minute whether these files were replaced, until it is cancelled; `exchange` is given what they say
    then. What cannot be used is logged once, and what was before stays.
    """
    import asyncio

    from barnabas.kernel.host import HostClosedError, OffloadFullError, OffloadKind

    refused = ""
    while True:
        await asyncio.sleep(LOOKED_EVERY_SECONDS)
        try:
            found = await host.offload(OffloadKind.DISK, secured_by, path, before, order=_LANE, lane=_LANE)
        except OffloadFullError:
            continue
        except HostClosedError:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, files that come later are to be taken
            if str(error) != refused:
                refused = str(error)
                logger.warning("The keys of before are kept: %s", error)
            continue
        refused = ""
        if found is not before:
            before = found
            exchange(found.context)
            logger.warning("New connections have the keys and certificates that %s names now", path)
