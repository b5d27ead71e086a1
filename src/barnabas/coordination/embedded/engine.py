"""The coordinator's state and what requests do to it, without sockets.

The engine owns the tree, the watches and the sessions. It is told the time, hands each transaction to the group commit,
and addresses connections through the `Attachment` port.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from barnabas.coordination.embedded.commits import Commits
from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordination.embedded.log import pack_record
from barnabas.coordination.embedded.reads import Client, Reads
from barnabas.coordination.embedded.sessions import Session, SessionTable, StoredSession
from barnabas.coordination.embedded.statistics import ServerStatistics
from barnabas.coordination.embedded.stats import creations_of, modified_ms_of
from barnabas.coordination.embedded.storage import Recovered
from barnabas.coordination.embedded.transactions import SHORT_MULTI_BYTES_MAX, Requester, Transactions
from barnabas.coordination.embedded.turn_budget import PIECE_ELEMENTS, TurnBudget, Work
from barnabas.coordination.embedded.watches import Watches
from barnabas.coordination.errors import ErrorCode, KeeperError, MalformedFrameError
from barnabas.coordination.jute import Reader, pack_buffer, pack_int, pack_string
from barnabas.coordination.protocol import PASSWORD_BYTES, OpCode
from barnabas.kernel.host import Clock, Entropy

WRITES = frozenset(
    map(
        int,
        (
            OpCode.CREATE,
            OpCode.CREATE2,
            OpCode.CREATE_CONTAINER,
            OpCode.CREATE_TTL,
            OpCode.DELETE,
            OpCode.DELETE_CONTAINER,
            OpCode.SET_DATA,
            OpCode.SET_ACL,
            OpCode.CHECK,
            OpCode.MULTI,
            OpCode.RECONFIG,
        ),
    )
)
_CREATE_SESSION = int(OpCode.CREATE_SESSION)
_CLOSE_SESSION = int(OpCode.CLOSE_SESSION)
_MULTI = int(OpCode.MULTI)
_MULTI_READ = int(OpCode.MULTI_READ)
_DELETE = pack_int(OpCode.DELETE)
_EPHEMERALS_PER_TRANSACTION = 250
_NOBODY = Requester(0, ())


class Attachment(Client, Protocol):
    """A connection that has a session."""

    @property
    def requester(self) -> Requester: ...
    @property
    def is_reading(self) -> bool: ...

    def finish(self) -> None:
        """Takes no more requests, and closes when its output has left."""
        ...


class Engine:
    """Everything that a coordinator knows, and the operations on it."""

    def __init__(
        self,
        recovered: Recovered,
        commits: Commits,
        config: CoordinatorConfig,
        budget: TurnBudget,
        *,
        clock: Clock,
        now: Callable[[], float],
        entropy: Entropy,
        statistics: ServerStatistics,
        logger: logging.Logger,
        schemes: frozenset[str] = frozenset(),
    ) -> None:
        """`now` is the loop's time in seconds; the sessions of `recovered` get their full time-out from now. `schemes`
        are those of access control that logins have.
        """
        self.tree = recovered.tree
        self.watches = Watches()
        self.commits = commits
        self.closing: set[int] = set()
        """Ids of sessions that are over, of whose ephemeral znodes some are there yet."""
        self._budget = budget
        self.sessions: SessionTable[Attachment] = SessionTable(clock.time_ms(), recovered.highest_session_id)
        for stored in recovered.sessions.values():
            self.sessions.add(stored, now())
        self.statistics = statistics
        self._config = config
        self._clock = clock
        self._now = now
        self._entropy = entropy
        self._logger = logger
        self._transactions = Transactions(self.tree, extended_types=config.extended_types, schemes=schemes)
        self._reads = Reads(self.tree, self.watches, config, budget.spend)
        self.read_handlers = self._reads.handlers

    def time_ms(self) -> int:
        """The wall clock."""
        return self._clock.time_ms()

    def negotiated_timeout_ms(self, requested_ms: int) -> int:
        """The session time-out for a client that wants `requested_ms`."""
        config = self._config
        return min(max(requested_ms, config.session_timeout_ms_min), config.session_timeout_ms_max)

    def open_session(self, attachment: Attachment, timeout_ms: int) -> Session[Attachment]:
        """A new session on the connection."""
        stored = StoredSession(self.sessions.next_id(), timeout_ms, self._entropy(PASSWORD_BYTES))
        session = self.sessions.add(stored, self._now())
        self.sessions.attach(session, attachment, timeout_ms, self._now())
        self.tree.zxid += 1
        self._log(stored.id, _CREATE_SESSION, pack_int(timeout_ms) + pack_buffer(stored.password))
        return session

    def attach_session(
        self, attachment: Attachment, session_id: int, password: bytes, timeout_ms: int
    ) -> Session[Attachment] | None:
        """The session, moved to the connection; None when it is over or the password is wrong. The connection that it
        was on, if any, is closed.
        """
        session = self.sessions.get(session_id)
        if session is None or session.stored.password != password:
            return None
        previous = session.attachment
        self.sessions.attach(session, attachment, timeout_ms, self._now())
        if previous is not None:
            previous.finish()
        return session

    def detach(self, attachment: Attachment, session: Session[Attachment] | None) -> None:
        """The connection is gone; its watches go with it, its session stays until it expires."""
        self.forget_watches(attachment)
        if session is not None and session.attachment is attachment:
            session.attachment = None

    def forget_watches(self, attachment: Attachment) -> None:
        """It takes no notice of events from now on."""
        self._budget.run(self.watches.remove_watcher(attachment), lambda _none: None)

    def takes_long_to_close(self, session: Session[Attachment]) -> bool:
        """Whether its ephemeral znodes are more than one transaction deletes."""
        return len(self.tree.ephemerals.get(session.id, ())) > _EPHEMERALS_PER_TRANSACTION

    def end_session(self, session: Session[Attachment], done: Callable[[], None]) -> None:
        """`close_session` in as many turns as it takes; `done` is called at the end. The session is over at once."""
        if not self.takes_long_to_close(session):
            self.close_session(session)
            done()
            return
        self.sessions.remove(session.id)
        self.closing.add(session.id)
        self._budget.run(self._close_in_pieces(session), lambda _none: done())

    def _close_in_pieces(self, session: Session[Attachment]) -> Work[None]:
        """Many ephemeral znodes go in transactions of their own, the session with the last of them. After a crash in
        between the log has the session still, which expires with what is left: nobody was told that it is over.
        """
        tree = self.tree
        while len(owned := tree.ephemerals.get(session.id, {})) > _EPHEMERALS_PER_TRANSACTION:
            paths = list(islice(owned, _EPHEMERALS_PER_TRANSACTION))
            tree.zxid += 1
            parts = [pack_int(len(paths))]
            try:
                for path in paths:
                    tree.delete(path, tree.zxid)
                    parts += (_DELETE, pack_buffer(pack_string(path)))
            except Exception as error:
                self._fail_for_good(error)
                raise
            self._log(session.id, OpCode.MULTI, b"".join(parts))
            yield PIECE_ELEMENTS
        self.close_session(session)
        self.closing.discard(session.id)

    def close_session(self, session: Session[Attachment]) -> None:
        """Ends the session: deletes its ephemeral znodes, and notifies their watchers."""
        tree = self.tree
        tree.zxid += 1
        try:
            tree.close_session(session.id, tree.zxid)
        except Exception as error:
            self._fail_for_good(error)
            raise
        self.sessions.remove(session.id)
        self._log(session.id, _CLOSE_SESSION, b"")

    def expire_sessions(self) -> None:
        """Ends the sessions whose time is over."""
        now = self._now()
        for session in self.sessions.take_expired(now):
            if self.commits.is_full and session.attachment is not None and not session.attachment.is_reading:
                # Its pings lie unread because the disk is behind: that is not its silence.
                self.sessions.postpone(session, now)
                continue
            self._logger.info("session %#x was silent for %d ms and has expired", session.id, session.timeout_ms)
            self._expire(session)

    def expire_session(self, session_id: int) -> bool:
        """Ends a session as if its time were over; False where there is none. For tests of what its client does."""
        session = self.sessions.get(session_id)
        if session is None:
            return False
        self._logger.info("session %#x is ended, as was asked for", session_id)
        self._expire(session)
        return True

    def _expire(self, session: Session[Attachment]) -> None:
        attachment = session.attachment
        self.end_session(session, lambda: None)
        if attachment is not None:
            attachment.finish()

    def write(self, op_code: int, reader: Reader, attachment: Attachment) -> tuple[int, bytes]:
        """Carries out a write request; returns the reply's error code and body."""
        return self._perform(op_code, reader, attachment.requester)

    def is_long(self, op_code: int, reader: Reader) -> bool:
        """Whether a request that must be of one moment, or change all at once, is too much for one turn."""
        return reader.remaining > SHORT_MULTI_BYTES_MAX and op_code in {_MULTI, _MULTI_READ}

    def perform_alone(
        self, op_code: int, reader: Reader, attachment: Attachment, done: Callable[[tuple[int, bytes]], None]
    ) -> None:
        """Carries out such a request in turns of its own; `done` gets the reply's error code and body."""
        if op_code == _MULTI:
            self._budget.run_alone(self._multi_alone(reader, attachment.requester), done)
        else:
            self._budget.run_alone(_outcome_of(self._reads.multi_read(reader, attachment)), done)

    def _multi_alone(self, reader: Reader, requester: Requester) -> Work[tuple[int, bytes]]:
        time_ms = self._clock.time_ms()
        try:
            outcome = yield from self._transactions.perform_multi(reader, requester, time_ms)
        except Exception as error:
            self._fail_for_good(error)
            raise
        if outcome.op_code is not None:
            self._log(requester.session_id, outcome.op_code, outcome.body, time_ms)
        return outcome.code, outcome.reply

    def read(self, op_code: int, reader: Reader, attachment: Attachment) -> tuple[int, bytes | Work[bytes]]:
        """Answers a read request; returns the reply's error code and body, or work that must `go_on` with it."""
        try:
            return 0, self.read_handlers[op_code](reader, attachment)
        except KeeperError as error:
            return error.code, b""
        except MalformedFrameError:
            return ErrorCode.MARSHALLING_ERROR, b""

    def go_on(self, op_code: int, work: Work[bytes], done: Callable[[tuple[int, bytes]], None]) -> None:
        """Goes on with what `read` has begun in this turn; `done` gets the reply's error code and body. Where it looks
        at more than one znode, nothing else is read or written before its end.
        """
        run = self._budget.run_alone if op_code == _MULTI_READ else self._budget.run
        run(_outcome_of(work), done)

    def delete_unused_containers(self) -> None:
        """Deletes containers that have lost their last child, and childless znodes whose time to live is over."""
        tree = self.tree
        for path in list(tree.containers):
            _, stat, _, children = tree.nodes[path]
            if children is None and creations_of(stat) > 0:
                self._perform(OpCode.DELETE_CONTAINER, Reader(path.encode()), _NOBODY)
        time_ms = self._clock.time_ms()
        for path, ttl_ms in list(tree.ttls_ms.items()):
            _, stat, _, children = tree.nodes[path]
            if children is None and time_ms - modified_ms_of(stat) > ttl_ms:
                self._perform(OpCode.DELETE_CONTAINER, Reader(path.encode()), _NOBODY)

    def _perform(self, op_code: int, reader: Reader, requester: Requester) -> tuple[int, bytes]:
        time_ms = self._clock.time_ms()
        try:
            code, reply, logged, body = self._transactions.perform(op_code, reader, requester, time_ms)
        except Exception as error:
            self._fail_for_good(error)
            raise
        if logged is not None:
            self._log(requester.session_id, logged, body, time_ms)
        return code, reply

    def _fail_for_good(self, error: Exception) -> None:
        """A defect may have left the tree half changed, and a zxid without a record: only the log is true now."""
        self._logger.critical("a defect met by transaction %#x", self.tree.zxid, exc_info=error)
        self.commits.fail(error)

    def _log(self, session_id: int, op_code: int, body: bytes, time_ms: int | None = None) -> None:
        """Hands the transaction just applied to the group commit, and tells the watchers of what it changed."""
        tree = self.tree
        zxid = tree.zxid
        if time_ms is None:
            time_ms = self._clock.time_ms()
        self.commits.add(zxid, pack_record(zxid, time_ms, session_id, op_code, body))
        if tree.changes:
            self.watches.fire(tree.changes)
            tree.changes.clear()


def _outcome_of(read: Work[bytes]) -> Work[tuple[int, bytes]]:
    try:
        return 0, (yield from read)
    except KeeperError as error:
        return error.code, b""
    except MalformedFrameError:
        return ErrorCode.MARSHALLING_ERROR, b""
