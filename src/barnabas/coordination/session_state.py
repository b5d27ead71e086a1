"""The states of a client's session and what moves it from one to another."""

from __future__ import annotations

import enum

from barnabas.kernel.transitions import TransitionTable


class SessionState(enum.Enum):
    """Where a client's session stands. The last three are final: a new client must be made."""

    CONNECTING = "connecting"  # no server has taken the client in yet
    CONNECTED = "connected"
    SUSPENDED = "suspended"  # the connection is lost; whether the session lives is only known once a server answers
    EXPIRED = "expired"  # a server said that the session is over: ephemeral znodes and watches are gone
    AUTH_FAILED = "auth failed"  # a server refused the credentials
    CLOSED = "closed"  # by its user

    @property
    def is_final(self) -> bool:
        return self in SESSION.final


class SessionEvent(enum.Enum):
    """What can happen to a session."""

    ESTABLISHED = "established"  # a server has taken the session
    CONNECTION_LOST = "connection lost"
    DECLARED_EXPIRED = "declared expired"  # by a server
    CREDENTIALS_REFUSED = "credentials refused"
    CLOSED = "closed"


SESSION = TransitionTable(
    "session",
    start=SessionState.CONNECTING,
    transitions={
        (SessionState.CONNECTING, SessionEvent.ESTABLISHED): SessionState.CONNECTED,
        (SessionState.CONNECTING, SessionEvent.DECLARED_EXPIRED): SessionState.EXPIRED,
        (SessionState.CONNECTING, SessionEvent.CREDENTIALS_REFUSED): SessionState.AUTH_FAILED,
        (SessionState.CONNECTING, SessionEvent.CLOSED): SessionState.CLOSED,
        (SessionState.CONNECTED, SessionEvent.CONNECTION_LOST): SessionState.SUSPENDED,
        (SessionState.CONNECTED, SessionEvent.CREDENTIALS_REFUSED): SessionState.AUTH_FAILED,
        (SessionState.CONNECTED, SessionEvent.CLOSED): SessionState.CLOSED,
        (SessionState.SUSPENDED, SessionEvent.ESTABLISHED): SessionState.CONNECTED,
        (SessionState.SUSPENDED, SessionEvent.DECLARED_EXPIRED): SessionState.EXPIRED,
        (SessionState.SUSPENDED, SessionEvent.CREDENTIALS_REFUSED): SessionState.AUTH_FAILED,
        (SessionState.SUSPENDED, SessionEvent.CLOSED): SessionState.CLOSED,
    },
    final=(SessionState.EXPIRED, SessionState.AUTH_FAILED, SessionState.CLOSED),
)
