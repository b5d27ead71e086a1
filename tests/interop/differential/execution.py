"""Runs steps against one server and writes down all that its sessions saw, comparable with another server's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.interop.differential.steps import SESSIONS, Batch, Drop, Reattach, Renew, Step
from tests.support import raw_zookeeper as raw
from tests.support.raw_zookeeper import ConnectionLost, RawSession, Reply, Stat, WatchEvent

Seen = Reply | WatchEvent | str


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What each session saw because of one step: replies, events, and words such as `connection lost`, in order."""

    seen: tuple[tuple[Seen, ...], ...]


class Run:
    """One run of steps against one server, below a root of its own."""

    def __init__(self, port: int, root: str) -> None:
        self._port = port
        self._root = root
        self._sessions: list[RawSession] = []
        self._last_zxid_before_drop = [0] * SESSIONS
        # Session ids are the server's own choice; what is compared is whose they are.
        self._owners: dict[int, str] = {}
        self._opened = 0

    def transcript(self, steps: Sequence[Step]) -> list[StepOutcome]:
        """Runs all steps and returns one outcome for each, with zxids replaced by their ranks and times left out."""
        try:
            self._sessions = [self._open() for _ in range(SESSIONS)]
            self._sessions[0].call(raw.create(self._root))
            self._sessions[0].take_arrivals()
            return _with_ranks([self._outcome(step) for step in steps])
        finally:
            # A session that were left to expire would take a zxid, and its znodes away, in the middle of a later run.
            for session in self._sessions:
                if session.is_connected or session.connect():
                    session.close()
                session.drop()

    def _open(self) -> RawSession:
        session = RawSession(self._port)
        if not session.connect():
            raise ConnectionLost("a new session was refused")
        self._owners[session.session_id] = f"session {self._opened}"
        self._opened += 1
        return session

    def _outcome(self, step: Step) -> StepOutcome:
        words: list[str] = []
        try:
            self._run(step, words)
        except ConnectionLost:
            self._drop(step.session)
            words.append("connection lost")
        seen = []
        for index, session in enumerate(self._sessions):
            lost = words if index == step.session else []
            if session.is_connected:
                try:
                    session.ping()
                except ConnectionLost:
                    self._drop(index)
                    lost = [*lost, "connection lost after the step"]
            arrivals: list[Seen] = [self._named(arrival) for arrival in session.take_arrivals()]
            if isinstance(step, Renew):
                # A closing session deletes its znodes in an order that ZooKeeper leaves to a hash table.
                arrivals.sort(key=repr)
            seen.append((*arrivals, *lost))
        return StepOutcome(tuple(seen))

    def _run(self, step: Step, words: list[str]) -> None:
        session = self._sessions[step.session]
        match step:
            case Batch(index, calls):
                if not session.is_connected:
                    words.append("not connected")
                    return
                zxid = self._last_zxid_before_drop[index]
                session.send(*(call.request(self._root, zxid) for call in calls))
                for _ in calls:
                    session.receive()
            case Drop():
                self._drop(step.session)
            case Reattach():
                self._drop(step.session)
                words.append("attached" if session.connect() else "expired")
            case Renew():
                if not session.is_connected:
                    session.connect()
                session.close()
                fresh = self._open()
                fresh.arrivals = session.arrivals
                self._sessions[step.session] = fresh

    def _drop(self, index: int) -> None:
        session = self._sessions[index]
        if session.is_connected:
            self._last_zxid_before_drop[index] = session.last_zxid
            session.drop()

    def _named(self, value: Any) -> Any:
        """The value with owners of ephemeral znodes named and times left out."""
        match value:
            case Stat():
                owner: Any = self._owners.get(value.ephemeral_owner, value.ephemeral_owner)
                return dataclasses.replace(value, ctime_ms=0, mtime_ms=0, ephemeral_owner=owner)
            case Reply():
                return dataclasses.replace(value, body=self._named(value.body))
            case tuple():
                return tuple(map(self._named, value))
            case _:
                return value


def _with_ranks(outcomes: list[StepOutcome]) -> list[StepOutcome]:
    """The outcomes with every zxid replaced by its rank among all that were seen."""
    zxids: set[int] = set()

    def collect(value: Any) -> None:
        match value:
            case Stat():
                zxids.update((value.czxid, value.mzxid, value.pzxid))
            case Reply():
                zxids.add(value.zxid)
                collect(value.body)
            case tuple():
                for entry in value:
                    collect(entry)

    def replace(value: Any) -> Any:
        match value:
            case Stat():
                return dataclasses.replace(
                    value, czxid=ranks[value.czxid], mzxid=ranks[value.mzxid], pzxid=ranks[value.pzxid]
                )
            case Reply():
                return dataclasses.replace(value, zxid=ranks[value.zxid], body=replace(value.body))
            case tuple():
                return tuple(map(replace, value))
            case _:
                return value

    for outcome in outcomes:
        collect(outcome.seen)
    ranks = {zxid: rank for rank, zxid in enumerate(sorted(zxids))}
    return [StepOutcome(replace(outcome.seen)) for outcome in outcomes]
