"""How a client, or a broker towards others, comes to the tokens it logs in with: as Apache Kafka's properties say it.

    sasl.mechanism=OAUTHBEARER
    sasl.oauthbearer.token.endpoint.url=https://idp.example.com/token
    sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \\
        clientId="..." clientSecret="..." scope="...";

The address may be one of a file that has a token (`file:///...`). Without an address the token is unsecured
(`unsecured_tokens`), which is Kafka's default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.sasl.errors import LoginConfigError
from barnabas.sasl.jaas import OAUTHBEARER_MODULE, LoginModule
from barnabas.sasl.oauthbearer_messages import OAUTHBEARER, check_extensions
from barnabas.sasl.unsecured_tokens import EXTENSION_PREFIX, make_unsecured

_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
LOGIN_HANDLERS: Final = (
    f"{_PACKAGE}.OAuthBearerLoginCallbackHandler",
    f"{_PACKAGE}.secured.OAuthBearerLoginCallbackHandler",
)
UNSECURED_LOGIN_HANDLER: Final = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
VALIDATOR_HANDLERS: Final = (
    f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler",
    f"{_PACKAGE}.secured.OAuthBearerValidatorCallbackHandler",
)
UNSECURED_VALIDATOR_HANDLER: Final = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
TOKEN_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - a key
LOGIN_HANDLER: Final = "sasl.login.callback.handler.class"
_EXTENSION: Final = "extension_"
_TIMEOUT_MS: Final = 10_000
_FACTOR: Final = 0.8
_JITTER: Final = 0.05
ValueOf = Callable[[str], Any]
"""The value of a key of Kafka's, or None."""


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """Where tokens come from; times in ms, under the names of Kafka's `sasl.login.*`."""

    address: str = field(repr=False)
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    connect_timeout_ms: int = _TIMEOUT_MS
    read_timeout_ms: int = _TIMEOUT_MS
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    """A request is repeated for so long."""
    encodes_credentials: bool = False
    """`sasl.oauthbearer.header.urlencode`: both as in forms, as RFC 6749 has them, and Kafka not by default."""

    @property
    def path(self) -> str | None:
        """The file that has the token; None where it comes from a server."""
        return path_of(self.address)


@dataclass(frozen=True, slots=True)
class OAuthBearerLogin:
    """Who logs in by OAUTHBEARER."""

    options: Mapping[str, str] = field(repr=False)
    """Of the login module."""
    endpoint: TokenEndpoint | None
    """None for unsecured tokens."""
    refresh_factor: float = _FACTOR
    refresh_jitter: float = _JITTER
    """A token is asked for anew after these shares of its life: the first, and up to the second at random."""

    mechanism = OAUTHBEARER

    @classmethod
    def of(cls, module: LoginModule, value_of: ValueOf) -> OAuthBearerLogin:
        """By a login module and the keys of Kafka's beside it. Raises LoginConfigError."""
        if module.name != OAUTHBEARER_MODULE:
            raise LoginConfigError(f"the login module of {OAUTHBEARER} is {OAUTHBEARER_MODULE}; another is named")
        handler = value_of("sasl.login.callback.handler.class")
        address = (value_of("sasl.oauthbearer.token.endpoint.url") or "").strip()
        if handler not in (None, *LOGIN_HANDLERS, UNSECURED_LOGIN_HANDLER):
            raise LoginConfigError(f"{LOGIN_HANDLER} must be {LOGIN_HANDLERS[0]}: other Java classes cannot be loaded")
        if handler in LOGIN_HANDLERS and not address:
            raise LoginConfigError(f"{LOGIN_HANDLER} needs {TOKEN_ENDPOINT}")
        if handler == UNSECURED_LOGIN_HANDLER:
            address = ""
        endpoint = _endpoint(address, module.options, value_of) if address else None
        if endpoint is None:
            make_unsecured(module.options, 0)
        found = cls(
            module.options,
            endpoint,
            _number(value_of("sasl.login.refresh.window.factor"), _FACTOR),
            _number(value_of("sasl.login.refresh.window.jitter"), _JITTER),
        )
        check_extensions(found.extensions)
        return found

    @property
    def extensions(self) -> dict[str, str]:
        """SASL extensions (KIP-342), which the module's options name."""
        prefix = EXTENSION_PREFIX if self.endpoint is None else _EXTENSION
        return {name.removeprefix(prefix): value for name, value in self.options.items() if name.startswith(prefix)}


def check_address(key: str, address: str) -> None:
    """Raises LoginConfigError for what is no address of tokens or keys; the path of a file must be absolute."""
    from urllib.parse import urlsplit  # for logins by tokens only

    try:
        parts = urlsplit(address)
        is_fine = (parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0) or (
            path_of(address) or ""
        ).startswith("/")
    except ValueError:
        is_fine = False
    if not is_fine:
        raise LoginConfigError(f"{key} must be an address of http, https, or of a file (file:///path)")


def path_of(address: str) -> str | None:
    """The path of a file's address; None for others."""
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(address)
    return unquote(parts.path) if parts.scheme == "file" else None


def shown_address(address: str) -> str:
    """An address of tokens or keys for people: without what may be secret in it, a user and password ahead of the host
    and a query.
    """
    from urllib.parse import urlsplit

    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _endpoint(address: str, options: Mapping[str, str], value_of: ValueOf) -> TokenEndpoint:
    check_address(TOKEN_ENDPOINT, address)
    client_id, client_secret, scope = (options.get(name, "").strip() for name in ("clientId", "clientSecret", "scope"))
    if path_of(address) is None and not (client_id and client_secret):
        raise LoginConfigError("a login by OAUTHBEARER needs clientId and clientSecret in sasl.jaas.config")
    return TokenEndpoint(
        address,
        client_id,
        client_secret,
        scope,
        _number(value_of("sasl.login.connect.timeout.ms"), _TIMEOUT_MS) or _TIMEOUT_MS,
        _number(value_of("sasl.login.read.timeout.ms"), _TIMEOUT_MS) or _TIMEOUT_MS,
        _number(value_of("sasl.login.retry.backoff.ms"), 100),
        _number(value_of("sasl.login.retry.backoff.max.ms"), 10_000),
        str(value_of("sasl.oauthbearer.header.urlencode")).lower() == "true",
    )


def _number(value: Any, default: Any) -> Any:
    """Of a key, which may be a text; as its default is. Raises LoginConfigError."""
    if value is None:
        return default
    try:
        found = type(default)(value)
    except ValueError:
        raise LoginConfigError("a key of sasl.login. is no number") from None
    if not 0 <= found < 2**31:
        raise LoginConfigError("a key of sasl.login. is out of range")
    return found
