"""Who may log in to the console, and who has: a file of names, roles and hashes, and sessions in memory.

A guess costs: each hash takes 16 MiB and some 50 ms off the loop, few are made at the same time, and one that failed
keeps its place for a while, longer while many fail. A session ends after a day of work, and with the process.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import enum
import hmac
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.kernel.host import OffloadKind

if TYPE_CHECKING:
    from barnabas.console.http import Request
    from barnabas.kernel.host import Host

USERS_MAX: Final = 1_000
SESSIONS_MAX: Final = 200
"""The oldest ends where another one begins."""
SESSION_SECONDS_MAX: Final = 12 * 3_600.0
PASSWORD_BYTES_MAX: Final = 1_024
PLACES: Final = 4
"""How many log in at the same time; others wait."""
WAITING_MAX: Final = 16
"""How many wait; further ones are told so at once, and hold no connection that others need."""
WAIT_SECONDS_MAX: Final = 10.0
FAILURE_SECONDS: Final = 1.0
"""How long a failure keeps its place, and its answer."""
FAILURE_SECONDS_MAX: Final = 8.0
_TOO_MANY: Final = "too many log in at the same time: try again in a moment"
_FAILURES_COUNTED_SECONDS: Final = 60.0
_FAILURES_COUNTED_MAX: Final = 1_000
_COST, _BLOCK, _LANES = 2**14, 8, 1
_COST_MAX: Final = 2**16
_MEMORY_MAX: Final = 256 * 1024 * 1024
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """scrypt (RFC 7914) of a password, with what it was made with."""

    cost: int
    block: int
    lanes: int
    salt: bytes
    digest: bytes

    def __str__(self) -> str:
        """As it stands in the file."""
        salt, digest = (base64.b64encode(each).decode() for each in (self.salt, self.digest))
        return f"scrypt${self.cost}${self.block}${self.lanes}${salt}${digest}"

    @classmethod
    def of(cls, password: str, salt: bytes) -> PasswordHash:
        """Of a password; `salt` is random."""
        return cls(_COST, _BLOCK, _LANES, salt, _scrypt(password, _COST, _BLOCK, _LANES, salt, _HASH_BYTES))

    @classmethod
    def read(cls, text: str) -> PasswordHash:
        """From the file. Raises ValueError, without the text in it."""
        kind, *parts = text.split("$")
        if kind != "scrypt" or len(parts) != 5 or not all(part.isascii() and part.isdigit() for part in parts[:3]):
            raise ValueError("it is not of the form scrypt$N$r$p$salt$hash")
        cost, block, lanes = map(int, parts[:3])
        try:
            salt, digest = (base64.b64decode(part, validate=True) for part in parts[3:])
        except binascii.Error:
            raise ValueError("its salt or hash is not Base64") from None
        if not (2 <= cost <= _COST_MAX and not cost & (cost - 1) and 1 <= block <= 8 and 1 <= lanes <= 4):
            raise ValueError(f"N must be a power of 2 up to {_COST_MAX}, r 1 to 8, p 1 to 4")
        if len(salt) < _SALT_BYTES or not _HASH_BYTES <= len(digest) <= 64:
            raise ValueError(f"its salt must have {_SALT_BYTES} bytes or more, its hash {_HASH_BYTES} to 64")
        return cls(cost, block, lanes, salt, digest)

    def is_of(self, password: str) -> bool:
        """Whether it is the hash of a password; takes as long for any wrong one."""
        found = _scrypt(password, self.cost, self.block, self.lanes, self.salt, len(self.digest))
        return hmac.compare_digest(found, self.digest)


class Role(enum.Enum):
    """What a user may do; the value is the word for it in the file."""

    VIEWER = "viewer"
    """Looks."""
    OPERATOR = "operator"
    """Looks, and changes what the console may change."""


class User(NamedTuple):
    """What the file says of a user."""

    password: PasswordHash
    role: Role = Role.OPERATOR


class Session(NamedTuple):
    """A login that has not ended."""

    session_id: str
    user: str
    role: Role


def read_users(text: str) -> dict[str, User]:
    """The users of a file: a line `NAME:ROLE:HASH` for each, or `NAME:HASH` for an operator; empty lines, and those
    that begin with #, say nothing. Raises ValueError, which names the line.
    """
    users: dict[str, User] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, rest = line.strip().partition(":")
        if not colon or not is_name(name):
            raise ValueError(
                f"line {number}: it must be NAME:ROLE:HASH; `barnabas console --new-login NAME` prints one"
            )
        if name in users:
            raise ValueError(f"line {number}: {name} is there twice")
        role, has_role, hashed = rest.rpartition(":")
        if has_role and role not in {each.value for each in Role}:
            raise ValueError(f"line {number}: the role of {name} must be {' or '.join(each.value for each in Role)}")
        try:
            users[name] = User(PasswordHash.read(hashed), Role(role) if has_role else Role.OPERATOR)
        except ValueError as error:
            raise ValueError(f"line {number}: the hash of {name} cannot be used: {error}") from None
    if not 1 <= len(users) <= USERS_MAX:
        raise ValueError(f"it has {len(users)} users; 1 to {USERS_MAX} there must be")
    return users


def is_name(name: str) -> bool:
    """Whether a user may be called so: 1 to 64 letters, digits, dots, dashes, underscores, or @."""
    return 1 <= len(name) <= 64 and all(each.isalnum() or each in "._-@" for each in name)


class TooManyError(Exception):
    """Too many log in at the same time."""


class Logins:
    """Takes logins, and knows the sessions that have begun."""

    def __init__(self, host: Host, users: Mapping[str, User], *, is_secure: bool = False) -> None:
        """`users` are one or more, as `read_users` has them. Where pages are `is_secure`, so are the cookies."""
        self._host = host
        self._is_secure = is_secure
        self._users = users
        # Cookies know no ports: consoles beside each other have others.
        self._cookie = f"barnabas-console-{host.entropy(4).hex()}"
        some = next(iter(users.values())).password
        self._nobody = replace(some, digest=host.entropy(len(some.digest)))
        self._places = asyncio.Semaphore(PLACES)
        self.waiting = 0
        self._failures: deque[float] = deque(maxlen=_FAILURES_COUNTED_MAX)
        self._sessions: OrderedDict[str, tuple[str, float]] = OrderedDict()

    async def log_in(self, name: str, password: str) -> str | None:
        """The id of a new session; None, after a while, where name or password are wrong. Raises TooManyError."""
        loop = self._host.loop
        if self.waiting >= WAITING_MAX:
            raise TooManyError(_TOO_MANY)
        self.waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await self._places.acquire()
        except TimeoutError:
            raise TooManyError(_TOO_MANY) from None
        finally:
            self.waiting -= 1
        kept_seconds = self._failure_seconds()
        is_right = False
        try:
            # A name that is not there takes as long as one that is.
            user = self._users.get(name)
            wanted = self._nobody if user is None else user.password
            if len(password.encode("utf-8", "surrogatepass")) <= PASSWORD_BYTES_MAX:
                is_right = await self._host.offload(OffloadKind.CPU, wanted.is_of, password) and user is not None
        finally:
            # Who hangs up makes no room for another guess.
            if is_right:
                self._places.release()
            else:
                self._failures.append(loop.time())
                loop.call_later(kept_seconds, self._places.release)
        if not is_right:
            await asyncio.sleep(kept_seconds)
            return None
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.popitem(last=False)
        session_id = self._host.entropy(32).hex()
        self._sessions[session_id] = name, loop.time() + SESSION_SECONDS_MAX
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

    # Inside.

    def _failure_seconds(self) -> float:
        now = self._host.loop.time()
        while self._failures and self._failures[0] < now - _FAILURES_COUNTED_SECONDS:
            self._failures.popleft()
        return min(FAILURE_SECONDS_MAX, FAILURE_SECONDS * (1 + len(self._failures) / 10))


def _scrypt(password: str, cost: int, block: int, lanes: int, salt: bytes, length: int) -> bytes:
    import hashlib  # loads OpenSSL, which a console without a login does without

    data = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(data, salt=salt, n=cost, r=block, p=lanes, maxmem=_MEMORY_MAX, dklen=length)
