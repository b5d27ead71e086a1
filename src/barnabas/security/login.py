"""How far the client of a connection is with its login, without I/O: what may come next, and who it is at the end.

As Kafka's `SaslServerAuthenticator`: ApiVersions once, the choice of a mechanism, the mechanism's messages; whoever is
in may log in again as the same principal by the same mechanism (KIP-368). Invariant: `principal` is set only by an
exchange that has shown a user, and a refusal is final.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.kernel.transitions import TransitionTable
from barnabas.sasl.errors import SaslAuthenticationError, SaslError
from barnabas.sasl.exchange import ServerExchange

PRINCIPAL_TYPE: Final = "User"


class LoginState(enum.Enum):
    """Where a client stands."""

    FRESH = "fresh"
    VERSIONS_TOLD = "versions told"  # only the choice of a mechanism may follow
    AUTHENTICATING = "authenticating"
    AUTHENTICATED = "authenticated"
    REAUTHENTICATING = "reauthenticating"
    FAILED = "failed"


class LoginEvent(enum.Enum):
    """What can happen to it."""

    VERSIONS_TOLD = "versions told"
    MECHANISM_CHOSEN = "mechanism chosen"
    CHALLENGED = "challenged"  # the mechanism has more to ask
    PROVEN = "proven"
    REFUSED = "refused"


LOGIN = TransitionTable(
    "login",
    start=LoginState.FRESH,
    transitions={
        (LoginState.FRESH, LoginEvent.VERSIONS_TOLD): LoginState.VERSIONS_TOLD,
        (LoginState.FRESH, LoginEvent.MECHANISM_CHOSEN): LoginState.AUTHENTICATING,
        (LoginState.FRESH, LoginEvent.REFUSED): LoginState.FAILED,
        (LoginState.VERSIONS_TOLD, LoginEvent.MECHANISM_CHOSEN): LoginState.AUTHENTICATING,
        (LoginState.VERSIONS_TOLD, LoginEvent.REFUSED): LoginState.FAILED,
        (LoginState.AUTHENTICATING, LoginEvent.CHALLENGED): LoginState.AUTHENTICATING,
        (LoginState.AUTHENTICATING, LoginEvent.PROVEN): LoginState.AUTHENTICATED,
        (LoginState.AUTHENTICATING, LoginEvent.REFUSED): LoginState.FAILED,
        (LoginState.AUTHENTICATED, LoginEvent.MECHANISM_CHOSEN): LoginState.REAUTHENTICATING,
        (LoginState.AUTHENTICATED, LoginEvent.REFUSED): LoginState.FAILED,
        (LoginState.REAUTHENTICATING, LoginEvent.CHALLENGED): LoginState.REAUTHENTICATING,
        (LoginState.REAUTHENTICATING, LoginEvent.PROVEN): LoginState.AUTHENTICATED,
        (LoginState.REAUTHENTICATING, LoginEvent.REFUSED): LoginState.FAILED,
    },
    final=(LoginState.FAILED,),
)


class LoginRefusedError(Exception):
    """The login has failed. The text is for the log, and has no secret; `told` is for the client, or None."""

    def __init__(self, reason: str, told: str | None = None) -> None:
        super().__init__(reason)
        self.told = told


class UnsupportedMechanismError(LoginRefusedError):
    """The client has chosen a mechanism that the listener does not have."""


@dataclass(frozen=True, slots=True)
class ListenerLogins:
    """How clients of one listener log in."""

    exchanges: Mapping[str, Callable[[], ServerExchange]] = field(repr=False)
    """By mechanism, in the order in which clients are told of them (`sasl.enabled.mechanisms`)."""
    lifetimes_ms: Mapping[str, int]
    """By mechanism: after how long a client must log in again, or 0 (`connections.max.reauth.ms`)."""
    request_bytes_max: int
    """The largest request before the login (`sasl.server.max.receive.size`)."""


class Login:
    """That of one connection."""

    __slots__ = (
        "_exchange",
        "_logins",
        "_wrong_mechanism",
        "is_by_delegation_token",
        "mechanism",
        "principal",
        "state",
        "token_expiry_ms",
    )

    def __init__(self, logins: ListenerLogins) -> None:
        self._logins = logins
        self._exchange: ServerExchange | None = None
        self._wrong_mechanism = ""
        self.mechanism = ""
        self.principal: str | None = None
        """Who the client is, as `User:NAME`; None until that is shown."""
        self.token_expiry_ms: int | None = None
        """Until when a token shows it, in ms since 1970; None where it was shown otherwise."""
        self.is_by_delegation_token = False
        self.state = LoginState.FRESH

    @property
    def expects_token(self) -> bool:
        """Only the mechanism's messages may come."""
        return self.state in {LoginState.AUTHENTICATING, LoginState.REAUTHENTICATING}

    @property
    def may_ask_versions(self) -> bool:
        return LOGIN.allows(self.state, LoginEvent.VERSIONS_TOLD)

    def lifetime_ms(self, now_ms: int) -> int | None:
        """After how long the client must log in again: 0 if its token has expired already, None for never.
        `now_ms` is since 1970.
        """
        bound_ms = self._logins.lifetimes_ms[self.mechanism]
        if self.token_expiry_ms is None:
            return bound_ms if bound_ms > 0 else None
        left_ms = max(0, self.token_expiry_ms - now_ms)
        return min(left_ms, bound_ms) if bound_ms > 0 else left_ms

    def versions_told(self) -> None:
        """ApiVersions was answered."""
        self._move(LoginEvent.VERSIONS_TOLD)

    def choose(self, mechanism: str) -> None:
        """The client wants to log in by that mechanism. Raises UnsupportedMechanismError.

        Another mechanism than before is taken, and refused with the client's next message, as in Kafka.
        """
        if mechanism not in self._logins.exchanges:
            self.refuse()
            raise UnsupportedMechanismError(f"the listener has no SASL mechanism {mechanism!r:.40}")
        is_again = self.state is LoginState.AUTHENTICATED
        self._move(LoginEvent.MECHANISM_CHOSEN)
        if is_again and mechanism != self.mechanism:
            self._wrong_mechanism = mechanism
            return
        self.mechanism = mechanism
        self._exchange = self._logins.exchanges[mechanism]()

    def take(self, token: bytes) -> bytes:
        """The answer to a message of the mechanism. Raises LoginRefusedError."""
        exchange = self._exchange
        what = "re-authentication" if self.state is LoginState.REAUTHENTICATING else "authentication"
        try:
            if self._wrong_mechanism or exchange is None:
                raise LoginRefusedError(
                    f"SASL mechanism '{self._wrong_mechanism}' requested by client is not supported for "
                    f"re-authentication of mechanism '{self.mechanism}'"
                )
            try:
                answer = exchange.respond(token)
            except SaslAuthenticationError as error:
                raise LoginRefusedError(error.reason, str(error)) from None
            except SaslError as error:
                why = f"due to invalid credentials with SASL mechanism {self.mechanism}"
                told = f"Authentication failed during {what} {why}"
                raise LoginRefusedError(f"{told}: {error}", told) from None
            principal = None if exchange.username is None else f"{PRINCIPAL_TYPE}:{exchange.username}"
            if principal is not None and self.principal not in (None, principal):
                told = "Cannot change principals during re-authentication from {}: {}".format(
                    *(each.replace(":", ".", 1) for each in (self.principal or "", principal))
                )
                raise LoginRefusedError(told, told)
        except LoginRefusedError:
            self.refuse()
            raise
        if principal is None:
            self._move(LoginEvent.CHALLENGED)
        else:
            self.principal, self.token_expiry_ms, self._exchange = principal, exchange.token_expiry_ms, None
            self.is_by_delegation_token = exchange.is_by_delegation_token
            self._move(LoginEvent.PROVEN)
        return answer

    def refuse(self) -> None:
        """What came may not come now, or has no sense."""
        self._exchange = None
        self._move(LoginEvent.REFUSED)

    def _move(self, event: LoginEvent) -> None:
        self.state = LOGIN.advance("of a client", self.state, event)
