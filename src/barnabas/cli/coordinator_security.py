"""Who may log in at `barnabas coordinator`, and how its port is secured: from the files that its options name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ssl

_SECTION: Final = "Server"
_DEFAULTS: Final = {"ssl.client.auth": "required"}
"""As ZooKeeper has it."""
_SHOWN_MAX: Final = 10


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


def context_of(path: str) -> ssl.SSLContext:
    """That of a file of properties with Kafka's names. Raises ValueError, which shows no secret."""
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
        return server_context(settings, read_stores(settings, lambda file: Path(file).read_bytes()), load_chain)
    except (PropertiesError, TlsConfigError, OSError) as error:
        raise ValueError(f"--tls-config {path}: {error}") from None
