"""Our end of a login by SASL: said by Kafka's SaslHandshake and SaslAuthenticate, before any other request but
ApiVersions (KIP-43, KIP-152), and again before the session is over (KIP-368).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.kernel.turns import in_turns
from barnabas.link.errors import AuthenticationFailedError
from barnabas.sasl.errors import SaslError
from barnabas.sasl.mechanisms import AnyLogin
from barnabas.sasl.oauthbearer_client import OAuthBearerClient
from barnabas.sasl.oauthbearer_login import OAuthBearerLogin
from barnabas.wire import messages
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.kernel.host import Entropy, Host
    from barnabas.kernel.timers import Timers
    from barnabas.link.client import ClientConnection
    from barnabas.link.token_source import TokenSource
    from barnabas.sasl.exchange import ClientExchange

_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION_MAX: Final = 2
_AUTHENTICATE_VERSION_UNASKED: Final = 1
"""Where it is not known what the broker speaks: all since Kafka 2.2 have it."""


@dataclass(frozen=True, slots=True)
class LinkLogin:
    """Who we are on a connection."""

    login: AnyLogin
    entropy: Entropy
    """The host's."""
    tokens: TokenSource | None = None
    """Of a login by OAUTHBEARER."""

    @classmethod
    def of(cls, login: AnyLogin, host: Host, timers: Timers) -> LinkLogin:
        """For all connections by that login."""
        if not isinstance(login, OAuthBearerLogin):
            return cls(login, host.entropy)
        from barnabas.link.token_source import TokenSource  # with HTTP behind it

        return cls(login, host.entropy, TokenSource(login, host, timers))

    async def log_in(self, connection: ClientConnection, timeout_ms: float) -> int:
        """Logs in, and returns after how many milliseconds it is to be done again, or 0. No other request may be sent
        meanwhile; each message may take `timeout_ms`.

        Raises AuthenticationFailedError, which says what the broker said, and whatever requests raise.
        """
        mechanism, peer = self.login.mechanism, connection.peer
        token = "" if self.tokens is None else await self.tokens.token()
        exchange = self._exchange(token)
        handshake = messages.SaslHandshakeRequest(mechanism=mechanism)
        response = await connection.request(handshake, _HANDSHAKE_VERSION, timeout_ms)
        if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            has = ", ".join(response.mechanisms)
            raise AuthenticationFailedError(f"{peer} does not take the SASL mechanism {mechanism}; it takes {has}")
        if response.error_code:
            code = ErrorCode.for_code(response.error_code)
            raise AuthenticationFailedError(f"{peer} takes no login: {code.message} ({code.name})")
        spoken = connection.api_versions.get(ApiKey.SASL_AUTHENTICATE)
        version = _AUTHENTICATE_VERSION_UNASKED if spoken is None else min(spoken[1], _AUTHENTICATE_VERSION_MAX)
        message: bytes | None = exchange.begin()
        lifetime_ms = 0
        while message is not None:
            request = messages.SaslAuthenticateRequest(auth_bytes=message)
            response = await connection.request(request, version, timeout_ms)
            if response.error_code:
                if self.tokens is not None:
                    self.tokens.refused(token)
                code = ErrorCode.for_code(response.error_code)
                said = response.error_message or code.message
                raise AuthenticationFailedError(f"{peer} refuses the login: {said} ({code.name})")
            lifetime_ms = response.session_lifetime_ms
            try:
                message = await in_turns(exchange.answer(bytes(response.auth_bytes)))
            except SaslError as error:
                raise AuthenticationFailedError(f"the login at {peer} by {mechanism} has failed: {error}") from None
        return lifetime_ms

    def _exchange(self, token: str) -> ClientExchange:
        if not isinstance(self.login, OAuthBearerLogin):
            return self.login.exchange(self.entropy)
        if self.tokens is None:
            raise RuntimeError("a login by OAUTHBEARER without a source of tokens")
        return OAuthBearerClient(token, self.login.extensions)
