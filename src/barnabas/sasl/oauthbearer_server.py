"""OAUTHBEARER, the server's end (RFC 7628).

A token that is not taken is answered with a reason in JSON; the client confirms that, and then the exchange fails.
Kafka lets a client send another token in place of the confirmation; here that is the end, or tokens could be tried
fast.
"""

from __future__ import annotations

import enum
from typing import Final

from barnabas.kernel.transitions import TransitionTable
from barnabas.sasl.bearer_tokens import BearerToken, TokenRefusedError, ValidateToken
from barnabas.sasl.errors import SaslAuthenticationError, SaslError
from barnabas.sasl.oauthbearer_messages import CONFIRMATION, ClientFirst, refusal


class OAuthBearerServerState(enum.Enum):
    """How far the server is."""

    EXPECTS_TOKEN = "expects token"  # noqa: S105 - no secret
    EXPECTS_CONFIRMATION = "expects confirmation"
    COMPLETE = "complete"
    FAILED = "failed"


class OAuthBearerServerEvent(enum.Enum):
    """What moves the server on."""

    TOKEN_TAKEN = "token taken"  # noqa: S105 - no secret
    TOKEN_REFUSED = "token refused"  # noqa: S105 - no secret
    REFUSED = "refused"


OAUTHBEARER_SERVER: Final = TransitionTable(
    "OAUTHBEARER server",
    start=OAuthBearerServerState.EXPECTS_TOKEN,
    transitions={
        (OAuthBearerServerState.EXPECTS_TOKEN, OAuthBearerServerEvent.TOKEN_TAKEN): OAuthBearerServerState.COMPLETE,
        (
            OAuthBearerServerState.EXPECTS_TOKEN,
            OAuthBearerServerEvent.TOKEN_REFUSED,
        ): OAuthBearerServerState.EXPECTS_CONFIRMATION,
        (OAuthBearerServerState.EXPECTS_TOKEN, OAuthBearerServerEvent.REFUSED): OAuthBearerServerState.FAILED,
        (OAuthBearerServerState.EXPECTS_CONFIRMATION, OAuthBearerServerEvent.REFUSED): OAuthBearerServerState.FAILED,
        # A message too many.
        (OAuthBearerServerState.COMPLETE, OAuthBearerServerEvent.REFUSED): OAuthBearerServerState.FAILED,
    },
    final=(OAuthBearerServerState.FAILED,),
)


class OAuthBearerServer:
    """One exchange."""

    __slots__ = ("_refusal", "_token", "_validate", "is_by_delegation_token", "state")

    def __init__(self, validate: ValidateToken) -> None:
        self._validate = validate
        self._refusal: SaslAuthenticationError | None = None
        self._token: BearerToken | None = None
        self.is_by_delegation_token = False
        self.state = OAuthBearerServerState.EXPECTS_TOKEN

    @property
    def username(self) -> str | None:
        return self._token.principal if self._is_complete and self._token is not None else None

    @property
    def token_expiry_ms(self) -> int | None:
        return self._token.expiry_ms if self._is_complete and self._token is not None else None

    @property
    def _is_complete(self) -> bool:
        return self.state is OAuthBearerServerState.COMPLETE

    def respond(self, token: bytes) -> bytes:
        try:
            if self.state is OAuthBearerServerState.EXPECTS_TOKEN:
                return self._take(token)
            if self._refusal is not None and token == CONFIRMATION:
                raise self._refusal
            raise SaslError("a message after the end of the exchange")
        except SaslError:
            if self.state is not OAuthBearerServerState.FAILED:
                self._move(OAuthBearerServerEvent.REFUSED)
            raise

    def _take(self, message: bytes) -> bytes:
        first = ClientFirst.decode(message)
        try:
            token = self._validate(first.token)
        except TokenRefusedError as error:
            told = refusal(error.status, error.scope)
            self._refusal = SaslAuthenticationError(told, f"{told}: {error}")
            self._move(OAuthBearerServerEvent.TOKEN_REFUSED)
            return told.encode()
        if first.authorization_id not in ("", token.principal):
            raise SaslAuthenticationError(
                "Authentication failed: Client requested an authorization id"
                f" ({first.authorization_id:.1000}) that is different from the token's principal name"
                f" ({token.principal})"
            )
        self._token = token
        self._move(OAuthBearerServerEvent.TOKEN_TAKEN)
        return b""

    def _move(self, event: OAuthBearerServerEvent) -> None:
        self.state = OAUTHBEARER_SERVER.advance("of a client", self.state, event)
