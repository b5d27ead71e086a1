"""Who has logged in to the console: sessions in memory, by a file of names, roles and hashes.

A guess costs (`security.password_checks`). A session ends after a day of work, and with the process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.security.login_files import Role, User
from barnabas.security.password_checks import PasswordChecks

if TYPE_CHECKING:
    from barnabas.console.http import Request
    from barnabas.kernel.host import Host

SESSIONS_MAX: Final = 200
"""The oldest ends where another one begins."""
SESSION_SECONDS_MAX: Final = 12 * 3_600.0


class Session(NamedTuple):
    """A login that has not ended."""

    session_id: str
    user: str
    role: Role


class Logins:
    """Takes logins, and knows the sessions that have begun."""

    def __init__(self, host: Host, users: Mapping[str, User], *, is_secure: bool = False) -> None:
        """`users` are one or more, as `read_users` has them. Where pages are `is_secure`, so are the cookies."""
        self._host = host
        self._is_secure = is_secure
        self._users = users
        # Cookies know no ports: consoles beside each other have others.
        self._cookie = f"barnabas-console-{host.entropy(4).hex()}"
        self.checks = PasswordChecks(host, users)
        self._sessions: OrderedDict[str, tuple[str, float]] = OrderedDict()

    async def log_in(self, name: str, password: str) -> str | None:
        """The id of a new session; None, after a while, where name or password are wrong. Raises TooManyError."""
        if await self.checks.check(name, password) is None:
            return None
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.popitem(last=False)
        session_id = self._host.entropy(32).hex()
        self._sessions[session_id] = name, self._host.loop.time() + SESSION_SECONDS_MAX
        return session_id

    def session(self, request: Request) -> Session | None:
        """The session that a request belongs to; None where it belongs to none."""
        for cookie in request.headers.get("cookie", "").split(";"):
            name, _, session_id = cookie.strip().partition("=")
            found = self._sessions.get(session_id) if name == self._cookie else None
            if found is not None:
                if self._host.loop.time() <= found[1]:
                    return Session(session_id, found[0], self._users[found[0]].role)
                del self._sessions[session_id]
        return None

    def log_out(self, session_id: str) -> None:
        """Ends a session."""
        self._sessions.pop(session_id, None)

    def cookie(self, session_id: str, request: Request) -> str:
        """The header that has a browser keep a session; "" has it forget."""
        # Behind a proxy with TLS it is for TLS only too.
        is_secure = self._is_secure or request.headers.get("x-forwarded-proto", "").lower() == "https"
        secure = "; Secure" if is_secure else ""
        age = int(SESSION_SECONDS_MAX) if session_id else 0
        return f"{self._cookie}={session_id}; Path=/; HttpOnly; SameSite=Lax; Max-Age={age}{secure}"
