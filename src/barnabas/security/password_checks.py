"""Whether a password is right, at a price for who guesses.

Few hashes are made at the same time, and a guess that failed keeps its place for a while, longer while many fail,
whether or not somebody still waits for the answer. There is no lock-out: who guesses makes others wait for a place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from barnabas.kernel.host import OffloadKind
from barnabas.security.login_files import PASSWORD_BYTES_MAX, User

if TYPE_CHECKING:
    from barnabas.kernel.host import Host

PLACES: Final = 4
"""How many are looked at at the same time; others wait."""
WAITING_MAX: Final = 16
"""How many wait; further ones are told so at once, and hold no connection that others need."""
WAIT_SECONDS_MAX: Final = 10.0
FAILURE_SECONDS: Final = 1.0
"""How long a failure keeps its place, and its answer."""
FAILURE_SECONDS_MAX: Final = 8.0
_TOO_MANY: Final = "too many log in at the same time: try again in a moment"
_FAILURES_COUNTED_SECONDS: Final = 60.0
_FAILURES_COUNTED_MAX: Final = 1_000


class TooManyError(Exception):
    """Too many log in at the same time."""


class PasswordChecks:
    """Those of one file of people."""

    def __init__(self, host: Host, users: Mapping[str, User]) -> None:
        """`users` are one or more, as `read_users` has them."""
        self._host = host
        self.take(users)
        self._places = asyncio.Semaphore(PLACES)
        self.waiting = 0
        self.failed = 0
        """How many have failed."""
        self._failures: deque[float] = deque(maxlen=_FAILURES_COUNTED_MAX)

    def take(self, users: Mapping[str, User]) -> None:
        """These are the people from now on, one or more."""
        self._users = users
        some = next(iter(users.values())).password
        self._nobody = replace(some, digest=self._host.entropy(len(some.digest)))

    async def check(self, name: str, password: str) -> User | None:
        """The user; None, after a while, where name or password are wrong. Raises TooManyError."""
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
        user = self._users.get(name)
        try:
            # A name that is not there takes as long as one that is.
            wanted = self._nobody if user is None else user.password
            if len(password.encode("utf-8", "surrogatepass")) <= PASSWORD_BYTES_MAX:
                is_right = await self._host.offload(OffloadKind.CPU, wanted.is_of, password) and user is not None
        finally:
            # Who hangs up makes no room for another guess.
            if is_right:
                self._places.release()
            else:
                self.failed += 1
                self._failures.append(loop.time())
                loop.call_later(kept_seconds, self._places.release)
        if not is_right:
            answered: asyncio.Future[None] = loop.create_future()
            timer = loop.call_later(kept_seconds, _answer, answered)
            try:
                await answered
            finally:
                timer.cancel()
            return None
        return user

    def _failure_seconds(self) -> float:
        now = self._host.loop.time()
        while self._failures and self._failures[0] < now - _FAILURES_COUNTED_SECONDS:
            self._failures.popleft()
        return min(FAILURE_SECONDS_MAX, FAILURE_SECONDS * (1 + len(self._failures) / 10))


def _answer(answered: asyncio.Future[None]) -> None:
    if not answered.done():
        answered.set_result(None)
