"""Sessions: who is connected, and who has been silent for too long.

Deadlines are exact: a session ends `timeout_ms` after the last bytes that came from it. They are kept in a heap whose
entries are corrected only when they come up, so that hearing from a session costs one assignment.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from barnabas.coordination.protocol import PASSWORD_BYTES

Attachment = TypeVar("Attachment")
# The top byte is the server's number in an ensemble, and 0 here; the sign bit must never be set, as the value with that
# bit alone means a container.
_SESSION_ID_MASK = 0x00FFFFFFFFFFFFFF


class StoredSession(NamedTuple):
    """What is durable of a session."""

    id: int
    timeout_ms: int
    password: bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id:#x}, timeout_ms={self.timeout_ms})"


@dataclass(slots=True, eq=False)
class Session(Generic[Attachment]):
    """A session; `attachment` is the connection that it is on, or None.

    `timeout_ms` is what the last connection negotiated; a restarted server goes back to `stored`.
    """

    stored: StoredSession
    timeout_ms: int
    heard_at: float
    due_at: float = 0.0  # the time of its entry in the heap
    attachment: Attachment | None = None

    @property
    def id(self) -> int:
        return self.stored.id

    @property
    def deadline(self) -> float:
        return self.heard_at + self.timeout_ms / 1000


class SessionTable(Generic[Attachment]):
    """The living sessions. Times are seconds of the host's loop."""

    def __init__(self, time_ms: int, highest_id: int = 0) -> None:
        """`highest_id` is the highest session id ever given; new ones are above it, whatever the clock says."""
        self._sessions: dict[int, Session[Attachment]] = {}
        self._heap: list[tuple[float, int]] = []
        self.highest_id = max((time_ms << 16) & _SESSION_ID_MASK, highest_id)

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session[Attachment]]:
        return iter(self._sessions.values())

    def get(self, session_id: int) -> Session[Attachment] | None:
        return self._sessions.get(session_id)

    def next_id(self) -> int:
        self.highest_id += 1
        return self.highest_id

    def add(self, stored: StoredSession, now: float) -> Session[Attachment]:
        """A new session, or one that a restarted server knows from its log, with its full time-out to come."""
        if len(stored.password) != PASSWORD_BYTES:
            raise ValueError(f"a session's password has {PASSWORD_BYTES} bytes")
        session: Session[Attachment] = Session(stored, stored.timeout_ms, now)
        self._sessions[stored.id] = session
        self.highest_id = max(self.highest_id, stored.id)
        self._enter(session)
        return session

    def attach(self, session: Session[Attachment], attachment: Attachment, timeout_ms: int, now: float) -> None:
        """Puts the session on a connection, with a time-out of its own."""
        session.attachment = attachment
        session.timeout_ms = timeout_ms
        session.heard_at = now
        if session.deadline < session.due_at:
            self._enter(session)

    def remove(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def next_due(self) -> float | None:
        """When to call `take_expired` next."""
        return self._heap[0][0] if self._heap else None

    def take_expired(self, now: float) -> list[Session[Attachment]]:
        """The sessions whose time is over, in order of their deadlines; the caller removes them."""
        expired: list[Session[Attachment]] = []
        while self._heap and self._heap[0][0] <= now:
            due_at, session_id = heapq.heappop(self._heap)
            session = self._sessions.get(session_id)
            if session is None or session.due_at != due_at:
                continue
            if session.deadline <= now:
                session.due_at = math.inf  # should the heap have it twice, it expires once
                expired.append(session)
            else:
                self._enter(session)
        return expired

    def postpone(self, session: Session[Attachment], now: float) -> None:
        """Gives a session that was taken as expired its full time-out again."""
        session.heard_at = now
        self._enter(session)

    def stored(self) -> list[StoredSession]:
        return [session.stored for session in self]

    def _enter(self, session: Session[Attachment]) -> None:
        session.due_at = session.deadline
        heapq.heappush(self._heap, (session.due_at, session.id))
