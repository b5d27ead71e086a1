"""Sessions expire when they were silent for their time-out, and no sooner."""

from __future__ import annotations

from barnabas.coordination.embedded.sessions import SessionTable, StoredSession


def table() -> SessionTable[str]:
    return SessionTable(1_000_000)


def add(sessions: SessionTable[str], timeout_ms: int, now: float) -> int:
    stored = StoredSession(sessions.next_id(), timeout_ms, bytes(16))
    return sessions.add(stored, now).id


def expired(sessions: SessionTable[str], now: float) -> list[int]:
    found = [session.id for session in sessions.take_expired(now)]
    for session_id in found:
        sessions.remove(session_id)
    return found


def test_expires_at_its_deadline_in_order() -> None:
    sessions = table()
    late, early = add(sessions, 5000, 0.0), add(sessions, 3000, 0.0)
    assert sessions.next_due() == 3.0
    assert expired(sessions, 2.999) == []
    assert expired(sessions, 10.0) == [early, late]
    assert sessions.next_due() is None


def test_hearing_from_a_session_postpones_its_end() -> None:
    sessions = table()
    session_id = add(sessions, 3000, 0.0)
    session = sessions.get(session_id)
    assert session is not None
    session.heard_at = 2.5
    assert expired(sessions, 3.0) == []
    assert sessions.next_due() == 5.5
    assert expired(sessions, 5.5) == [session_id]


def test_a_shorter_timeout_of_a_new_connection_counts_at_once() -> None:
    sessions = table()
    session_id = add(sessions, 40_000, 0.0)
    session = sessions.get(session_id)
    assert session is not None
    sessions.attach(session, "connection", 4000, 1.0)
    assert sessions.next_due() == 5.0
    assert expired(sessions, 5.0) == [session_id]
    assert expired(sessions, 50.0) == []


def test_ids_are_above_every_known_one_even_when_the_clock_went_back() -> None:
    sessions: SessionTable[str] = SessionTable(1_000_000, highest_id=1 << 50)
    assert sessions.next_id() == (1 << 50) + 1
    sessions.add(StoredSession(1 << 52, 1000, bytes(16)), 0.0)
    assert sessions.next_id() == (1 << 52) + 1
    assert SessionTable(1_000_000_000_000_000).next_id() > 0
