"""How a session of a client behaves, and what takes one over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barnabas.coordination.digest_login import DigestUser
from barnabas.coordination.protocol import PASSWORD_BYTES, REQUEST_BYTES_MAX

if TYPE_CHECKING:
    import ssl

_INT_MAX = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class SessionTicket:
    """What takes a session over on another connection."""

    id: int
    password: bytes = field(repr=False)


NO_SESSION = SessionTicket(0, bytes(PASSWORD_BYTES))


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How a client behaves; times are in milliseconds.

    `connect` is Kafka's `zookeeper.connect`. The servers may answer `session_timeout_ms` with another one.
    `connect_timeout_ms` is for one server and covers TCP and the hand-shake; None is a third of the session's
    time-out, divided by the number of servers. Between rounds through all servers the client waits, from
    `backoff_ms_min`, doubled each time, to `backoff_ms_max`, half of it at random. `in_flight_max` and
    `in_flight_bytes_max` bound operations and bytes of requests that are not answered; who submits more waits.
    `request_bytes_max` is the servers' `jute.maxbuffer`. `credentials` are pairs of scheme and credential,
    `("digest", b"user:password")`. `ticket` takes over a session that exists. `login` logs in by SASL on each
    connection, before anything else; `tls` secures it.
    """

    connect: str
    session_timeout_ms: int = 18_000
    connect_timeout_ms: int | None = None
    backoff_ms_min: int = 50
    backoff_ms_max: int = 1_000
    in_flight_max: int = 2_000
    in_flight_bytes_max: int = 4 * 1024 * 1024
    request_bytes_max: int = REQUEST_BYTES_MAX
    reply_bytes_max: int = 64 * 1024 * 1024
    credentials: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    ticket: SessionTicket = NO_SESSION
    login: DigestUser | None = None
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        """Raises `ValueError` for settings that cannot work."""
        least = {
            "session_timeout_ms": 1,
            "backoff_ms_min": 1,
            "backoff_ms_max": self.backoff_ms_min,
            "in_flight_max": 1,
            "in_flight_bytes_max": 1,
            "request_bytes_max": 1,
            "reply_bytes_max": 1,
        }
        for name, minimum in least.items():
            if not minimum <= getattr(self, name) <= _INT_MAX:
                raise ValueError(f"{name} must be from {minimum} to {_INT_MAX}, not {getattr(self, name)}")
        if self.connect_timeout_ms is not None and self.connect_timeout_ms < 1:
            raise ValueError(f"connect_timeout_ms must be at least 1, or None, not {self.connect_timeout_ms}")
