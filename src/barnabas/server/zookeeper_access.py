"""How a broker comes in at ZooKeeper: secured by `zookeeper.ssl.*`, and with a login by SASL (DIGEST-MD5).

Kafka takes that login from a file for Java's logins, `-Djava.security.auth.login.config=FILE` in `KAFKA_OPTS`, section
`Client`. Here `barnabas.zookeeper.login.config` names the file, and `barnabas broker` looks into `KAFKA_OPTS` too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.config.broker_config import BrokerConfig
from barnabas.config.derived import zookeeper_connection_timeout_ms
from barnabas.config.keys import ConfigKey, ConfigType, Importance, Password
from barnabas.coordination.digest_login import DigestUser
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.host import Files
from barnabas.kernel.real_key_files import load_chain
from barnabas.link.oauth_documents import read_file
from barnabas.sasl.errors import LoginConfigError
from barnabas.sasl.jaas import parse_login_file
from barnabas.server.errors import BrokerStartError
from barnabas.tls.contexts import client_context
from barnabas.tls.errors import TlsConfigError
from barnabas.tls.settings import TlsSettings
from barnabas.tls.stores import read_stores

if TYPE_CHECKING:
    import ssl

LOGIN_CONFIG: Final[ConfigKey[str | None]] = ConfigKey(
    name="barnabas.zookeeper.login.config",
    type=ConfigType.STRING,
    default=None,
    documentation=(
        "File for Java's logins, whose section Client has the name and password of this broker at ZooKeeper, as"
        " java.security.auth.login.config names it for Kafka."
    ),
    importance=Importance.MEDIUM,
)
DIGEST_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"
_SECTION: Final = "Client"
_FILE_BYTES_MAX: Final = 32 * 1024 * 1024
_TYPES: Final = {".pem": "PEM", ".p12": "PKCS12", ".pfx": "PKCS12"}


def login_config_of_kafka(options: str) -> str | None:
    """The file that Kafka's users name in KAFKA_OPTS, among the options of Java; None where they name none, or switch
    logins at ZooKeeper off.
    """
    named: str | None = None
    for option in options.split():
        name, _, value = option.partition("=")
        if name == "-Djava.security.auth.login.config":
            named = value.removeprefix("=").strip("\"'") or None
        elif name == "-Dzookeeper.sasl.client" and value.lower() == "false":
            return None
    return named


def coordination_settings(config: BrokerConfig) -> ClientSettings:
    """Of the sessions, without what is in files."""
    values = config.values
    session_timeout_ms = int(values["zookeeper.session.timeout.ms"])
    # One server may take a third of the time-out, so that another can still be tried before the session is over.
    connect_timeout_ms = max(1, min(zookeeper_connection_timeout_ms(values), session_timeout_ms // 3))
    return ClientSettings(values["zookeeper.connect"], session_timeout_ms, connect_timeout_ms)


def secured_settings(config: BrokerConfig, files: Files) -> ClientSettings:
    """With login and TLS. Raises BrokerStartError for what cannot be read or would not keep what it says."""
    values = config.values
    try:
        login = _login(config, files)
        context = _context(config, files) if values["zookeeper.ssl.client.enable"] else None
    except (LoginConfigError, TlsConfigError) as error:
        raise BrokerStartError(str(error)) from None
    has_key = context is not None and values["zookeeper.ssl.keystore.location"] is not None
    if values["zookeeper.set.acl"] and login is None and not has_key:
        raise BrokerStartError(
            "zookeeper.set.acl=true makes znodes this broker's own, and ZooKeeper is not shown who it is: give"
            f" {LOGIN_CONFIG.name}, or zookeeper.ssl.client.enable=true with a key store"
        )
    return replace(coordination_settings(config), login=login, tls=context)


def _login(config: BrokerConfig, files: Files) -> DigestUser | None:
    """Raises LoginConfigError, which shows no secret."""
    path = config.values[LOGIN_CONFIG.name]
    if path is None:
        return None
    try:
        text = read_file(files, path, _FILE_BYTES_MAX).decode(errors="replace")
        module = parse_login_file(text).get(_SECTION)
    except OSError as error:
        raise LoginConfigError(f"{LOGIN_CONFIG.name}: {path} cannot be read: {error.strerror or error}") from None
    except LoginConfigError as error:
        raise LoginConfigError(f"{LOGIN_CONFIG.name}: {path}: {error}") from None
    if module is None:
        return None  # as in Kafka: the file may be about the broker's listeners only
    username, password = (module.options.get(name, "") for name in ("username", "password"))
    if module.name != DIGEST_MODULE or not username or not password:
        raise LoginConfigError(
            f"{LOGIN_CONFIG.name}: section {_SECTION} of {path} must be {DIGEST_MODULE} required"
            ' username="NAME" password="PASSWORD"; (Kerberos is not there)'
        )
    return DigestUser(username, password)


def _context(config: BrokerConfig, files: Files) -> ssl.SSLContext:
    """Raises TlsConfigError."""
    values = config.values
    for key, is_wanted in (
        ("zookeeper.ssl.crl.enable", values["zookeeper.ssl.crl.enable"]),
        ("zookeeper.ssl.ocsp.enable", values["zookeeper.ssl.ocsp.enable"]),
    ):
        if is_wanted:
            raise TlsConfigError(f"{key}: certificates are not looked for in lists of revoked ones here; leave it out")
    try:
        settings = TlsSettings.of(partial(_tls_value, _tls_values(config)))
        return client_context(
            settings, read_stores(settings, lambda path: read_file(files, path, _FILE_BYTES_MAX)), load_chain
        )
    except TlsConfigError as error:
        raise TlsConfigError(f"Connections to ZooKeeper (zookeeper.ssl.*): {error}") from None


def _tls_values(config: BrokerConfig) -> dict[str, Any]:
    """By the names that listeners' keys have."""
    values = config.values
    enabled = values["zookeeper.ssl.enabled.protocols"] or (values["zookeeper.ssl.protocol"],)
    found: dict[str, Any] = {
        "ssl.keystore.location": values["zookeeper.ssl.keystore.location"],
        "ssl.keystore.password": values["zookeeper.ssl.keystore.password"],
        "ssl.keystore.type": values["zookeeper.ssl.keystore.type"],
        "ssl.truststore.location": values["zookeeper.ssl.truststore.location"],
        "ssl.truststore.password": values["zookeeper.ssl.truststore.password"],
        "ssl.truststore.type": values["zookeeper.ssl.truststore.type"],
        "ssl.protocol": max(enabled),
        "ssl.enabled.protocols": enabled,
        "ssl.cipher.suites": values["zookeeper.ssl.cipher.suites"],
        "ssl.endpoint.identification.algorithm": values["zookeeper.ssl.endpoint.identification.algorithm"].lower(),
    }
    for store in ("keystore", "truststore"):
        location = found[f"ssl.{store}.location"]
        kind = found[f"ssl.{store}.type"] or _type_of(location or "")
        found[f"ssl.{store}.type"] = kind
        if kind is not None and kind.upper() == "PEM":
            # It is the key's, which is encrypted itself; certificates have none.
            password = found.pop(f"ssl.{store}.password")
            if store == "keystore":
                found["ssl.key.password"] = password
    return found


def _tls_value(values: dict[str, Any], key: str) -> Any:
    value = values.get(key)
    return value.reveal() if isinstance(value, Password) else value


def _type_of(path: str) -> str | None:
    """By the file's ending, as ZooKeeper's client has it."""
    return next((kind for ending, kind in _TYPES.items() if path.lower().endswith(ending)), None)
