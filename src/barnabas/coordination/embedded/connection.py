"""One connection of a client: frames in, frames out, and the bounds on both.

A chunk of bytes is processed to its end before anything is written, so that pipelined requests share one write. A
connection stops reading, and stops within a chunk, while too much of its output waits for the disk or for the client;
one whose output exceeds the last bound, which only watch events can achieve, is dropped. Malformed frames end their
connection and no other.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import struct
from collections import deque
from typing import TYPE_CHECKING, Protocol, cast

from barnabas.coordination.embedded import access
from barnabas.coordination.embedded.engine import WRITES, Attachment, Engine
from barnabas.coordination.embedded.logins import Logins, proved_by
from barnabas.coordination.embedded.statistics import ConnectionStatistics
from barnabas.coordination.embedded.transactions import Requester
from barnabas.coordination.embedded.turn_budget import TurnBudget, Work
from barnabas.coordination.errors import ErrorCode, MalformedFrameError
from barnabas.coordination.jute import INT, NULL, Reader, pack_string
from barnabas.coordination.protocol import (
    FRAMED_REPLY_HEADER,
    PASSWORD_BYTES,
    REPLY_HEADER,
    XID_NOTIFICATION,
    XID_PING,
    AuthPacket,
    ConnectRequest,
    ConnectResponse,
    EventType,
    Id,
    KeeperState,
    OpCode,
    Permission,
    frame,
)

if TYPE_CHECKING:
    from barnabas.coordination.embedded.commits import Batch
    from barnabas.coordination.embedded.config import CoordinatorConfig
    from barnabas.coordination.embedded.sessions import Session

# How long a connection that is to close may take to take its last answers.
LINGER_SECONDS = 10.0
# What one client may prove to be; every check of a guarded znode goes through all of it.
IDENTITIES_MAX = 256
# Output that may wait before no further request of the connection is answered.
QUEUED_BYTES_MAX = 1 << 20
_WRITE_BUFFER_LOW_BYTES = 1 << 18
# What requests take of a turn's budget, beside their answers.
_REQUEST_ELEMENTS = 24
_WRITE_ELEMENTS = 40
_FRAME_HEADER = struct.Struct("!iii")  # length, xid, op code
_FRAME_HEADER_BYTES = 8  # what of it the length counts
_PING = int(OpCode.PING)
_MULTI = int(OpCode.MULTI)
_AUTH = int(OpCode.AUTH)
_SASL = int(OpCode.SASL)
_CLOSE_SESSION = int(OpCode.CLOSE_SESSION)
_READ = int(Permission.READ)
_EVENT = struct.Struct("!ii")
_SYNC_CONNECTED = int(KeeperState.SYNC_CONNECTED)
_COMMAND_BYTES = 4


class Phase(enum.Enum):
    CONNECTING = "connecting"  # the session request has not come
    OPEN = "open"
    FINISHING = "finishing"  # takes no more requests, closes when its output has left
    CLOSED = "closed"


class Owner(Protocol):
    """The server that a connection belongs to."""

    engine: Engine
    config: CoordinatorConfig
    logger: logging.Logger
    loop: asyncio.AbstractEventLoop

    def admit(self, connection: Connection) -> bool:
        """Counts the connection; False when there are too many."""
        ...

    def forget(self, connection: Connection) -> None:
        """The connection takes part no more."""
        ...

    def transport_closed(self, connection: Connection) -> None:
        """Nothing is left of the connection."""
        ...

    budget: TurnBudget
    logins: Logins

    def command(self, word: bytes) -> Work[bytes] | None:
        """Makes the answer to a four-letter word; None when it is none."""
        ...

    def session_deadlines_changed(self) -> None:
        """A session began or moved: it may be the next to expire."""
        ...


class Connection(asyncio.Protocol):
    """The server's end of a client's connection."""

    def __init__(self, owner: Owner) -> None:
        self.phase = Phase.CONNECTING
        self.peer: tuple[str, int] = ("", 0)
        self.session: Session[Attachment] | None = None
        self.requester = Requester(0, ())
        self.statistics = ConnectionStatistics(0)
        self.held = 0  # batches that hold output of this connection
        self._owner = owner
        self._login = owner.logins.of_connection()
        self._engine = owner.engine
        self._commits = owner.engine.commits
        self._budget = owner.budget
        self._request_bytes_max = owner.config.request_bytes_max
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        # Input: bytes that were not processed, and how many are missing of a frame that has begun.
        self._rest: list[bytes] = []
        self._missing = 0
        self._stalled = False
        self._processing = False
        self._is_busy = False
        """An answer is being made that takes several turns; events wait in `_later` until it is sent."""
        self._later: list[bytes] = []
        self._cost = 0
        """The cost of the requests in hand, in elements of the turn's budget."""
        # Output: being made, and ready to be written. `_queued` counts both and what batches hold.
        self._out: list[bytes] = []
        self._ready: list[bytes] = []
        self._queued = 0
        self._writing_paused = False
        self._arrived_at = 0.0
        self._unanswered = 0
        self._waiting: deque[tuple[float, int]] = deque()

    @property
    def session_id(self) -> int:
        return self.requester.session_id

    @property
    def identities(self) -> tuple[Id, ...]:
        return self.requester.identities

    @property
    def queued_requests(self) -> int:
        """Requests whose replies wait for the disk."""
        return sum(count for _, count in self._waiting)

    @property
    def is_reading(self) -> bool:
        return not self._stalled

    # The transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer = (str(name[0]), int(name[1]))
        self.requester = Requester(0, (Id("ip", self.peer[0]),))
        self.statistics = ConnectionStatistics(self._owner.engine.time_ms())
        if not self._owner.admit(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=QUEUED_BYTES_MAX, low=_WRITE_BUFFER_LOW_BYTES)
        self._timer = self._owner.loop.call_later(
            self._owner.config.connect_timeout_ms / 1000, self._drop, "sent no session request"
        )

    def connection_lost(self, _error: Exception | None) -> None:
        self._close()
        self._owner.transport_closed(self)

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self.session is not None:
            # Who takes answers is alive, also while what it sends is not read.
            self.session.heard_at = self._owner.loop.time()
        self.resume()

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        if self.phase is Phase.FINISHING or self.phase is Phase.CLOSED:
            return
        now = self._owner.loop.time()
        if self.session is not None:
            self.session.heard_at = now
        if self._stalled:
            self._rest.append(data)
            return
        self._arrived_at = now
        if self._rest:
            self._rest.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._rest)
            self._rest = []
        self._process(data)

    # Output.

    def notify(self, event_type: EventType, path: str, acl: bytes | None) -> None:
        """Sends a watch event, unless `acl` does not let the client read."""
        if self.phase is Phase.CLOSED or self.phase is Phase.FINISHING:
            return
        if acl is not None and acl is not access.OPEN and not access.allowed(acl, _READ, self.identities):
            return
        body = _EVENT.pack(event_type, _SYNC_CONNECTED) + pack_string(path)
        self._send(FRAMED_REPLY_HEADER.pack(REPLY_HEADER.size + len(body), XID_NOTIFICATION, -1, 0) + body)
        if not self._processing:
            self.settle()
        self._drop_if_unread()

    def finish(self) -> None:
        """Takes no more requests, watches nothing, and closes when its output has left, or when that takes too long."""
        if self.phase is Phase.OPEN or self.phase is Phase.CONNECTING:
            self.phase = Phase.FINISHING
            self._rest = []
            self._out += self._later
            self._later = []
            self._engine.forget_watches(self)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._owner.loop.call_later(LINGER_SECONDS, self._drop, "did not take its last answers")
        if not self._processing:
            self.settle()
            self._flush()

    def settle(self) -> None:
        """Files what was sent under the batch that it must wait for, or makes it ready to be written."""
        output = self._out
        if not output:
            return
        self._out = []
        batch: Batch | None = self._commits.barrier()
        if batch is None and not self.held:
            self._ready += output
            self._answered(self._arrived_at, self._unanswered)
        elif batch is None:
            # All is durable, but what was held has not all left.
            self._commits.release_behind(self, output)
            self.held += 1
            self._waiting.append((self._arrived_at, self._unanswered))
        else:
            held = batch.outputs.get(self)
            if held is None:
                batch.outputs[self] = output
                self.held += 1
                self._waiting.append((self._arrived_at, self._unanswered))
            else:
                held += output
                arrived_at, count = self._waiting[-1]
                self._waiting[-1] = (arrived_at, count + self._unanswered)
        self._unanswered = 0

    def release(self, output: list[bytes]) -> None:
        """A batch that held output is durable."""
        self.held -= 1
        arrived_at, count = self._waiting.popleft()
        if self.phase is Phase.CLOSED:
            return
        self._answered(arrived_at, count)
        self._ready += output
        self._flush()
        self.resume()

    def resume(self) -> None:
        """Goes on with requests when the reason for stopping is gone."""
        if not self._stalled or self._is_busy or self._takes_nothing:
            return
        if not self._has_room():
            if self._commits.is_full:
                # What it waited for has come, but meanwhile others have filled the batch: nobody else wakes it.
                self._commits.wait_for_room(self)
            return
        self._stalled = False
        data = b"".join(self._rest)
        self._rest = []
        self._arrived_at = self._owner.loop.time()
        if data:
            self._process(data)
        self._read_again()

    @property
    def _takes_nothing(self) -> bool:
        return self.phase is Phase.FINISHING or self.phase is Phase.CLOSED

    def _read_again(self) -> None:
        if not self._stalled and not self._takes_nothing and self._transport is not None:
            self._transport.resume_reading()

    def _send(self, data: bytes) -> None:
        (self._later if self._is_busy else self._out).append(data)
        self._queued += len(data)

    def _reply(self, xid: int, zxid: int, code: int, body: bytes = b"") -> None:
        self._cost += _REQUEST_ELEMENTS + (len(body) >> 4)
        self._send(FRAMED_REPLY_HEADER.pack(REPLY_HEADER.size + len(body), xid, zxid, code) + body)

    def _flush(self) -> None:
        transport = self._transport
        if transport is None:
            return
        if self._ready:
            data = b"".join(self._ready)
            self._ready = []
            self._queued -= len(data)
            if not transport.is_closing():
                transport.write(data)
        if self.phase is Phase.FINISHING and not self.held and not self._out:
            transport.close()

    def _answered(self, arrived_at: float, count: int) -> None:
        if not count:
            return
        latency_ms = (self._owner.loop.time() - arrived_at) * 1000
        own = self.statistics
        own.sent += count
        own.latencies.add(latency_ms, count)
        own.last_latency_ms = int(latency_ms)
        own.last_answer_ms = int(self._owner.loop.time() * 1000)
        whole = self._engine.statistics
        whole.sent += count
        whole.latencies.add(latency_ms, count)

    # Input.

    def _process(self, data: bytes) -> None:
        """Answers the requests in the data, until its end or until there is no more room for output."""
        self._processing = True
        self._commits.active = self
        requests = 0
        try:
            position, requests = self._process_frames(data)
        except (MalformedFrameError, struct.error) as error:
            self._drop(str(error))
            return
        except Exception:
            # Others must not suffer: this may run while their output is released.
            self._owner.logger.exception("a defect met by %s:%d", *self.peer)
            self._drop("its request met a defect")
            return
        finally:
            self._processing = False
            self._commits.active = None
            self.statistics.received += requests
            self._engine.statistics.received += requests
        self._keep(data, position)
        self.settle()
        self._flush()

    def _keep(self, data: bytes, position: int) -> None:
        """Keeps what was not processed, and notes how much of its first frame is missing."""
        rest = data[position:] if position else data
        if not rest or self.phase is Phase.FINISHING:
            return
        self._rest.append(rest)
        known = len(rest)
        self._missing = (INT.unpack_from(rest)[0] + 4 if known >= 4 else 4) - known

    def _process_frames(self, data: bytes) -> tuple[int, int]:
        """Where the processed frames end, and how many they were."""
        position = 0
        requests = 0
        end = len(data)
        unpack = _FRAME_HEADER.unpack_from
        budget = self._budget
        self._cost = 0
        while end - position >= 4:
            if self._cost:
                budget.spend(self._cost)
                self._cost = 0
            if self._is_busy:
                self._stall()
                break
            if budget.is_over:
                self._stall()
                budget.wait(self.resume)
                break
            if self.phase is not Phase.OPEN:
                if self.phase is not Phase.CONNECTING:
                    return end, requests
                after = self._connect(data, position)
                if after is None:
                    break
                position = after
                requests += 1
                continue
            length = INT.unpack_from(data, position)[0]
            if not _FRAME_HEADER_BYTES <= length <= self._request_bytes_max:
                raise MalformedFrameError(f"a frame of {length} bytes")
            after = position + 4 + length
            if after > end:
                break
            _, xid, op_code = unpack(data, position)
            self._request(xid, op_code, Reader(data, position + 12, after))
            requests += 1
            position = after
            if self._queued > QUEUED_BYTES_MAX or self._commits.is_full:
                self.settle()
                self._flush()
                if not self._has_room():
                    self._stall()
                    break
        return position, requests

    def _request(self, xid: int, op_code: int, reader: Reader) -> None:
        engine = self._engine
        statistics = self.statistics
        self._unanswered += 1
        if engine.is_long(op_code, reader):
            self._is_busy = True
            engine.perform_alone(op_code, reader, self, lambda answer: self._answer_alone(xid, answer))
        elif op_code in WRITES:
            self._cost += _WRITE_ELEMENTS + 2 * reader.remaining if op_code == _MULTI else _WRITE_ELEMENTS
            code, body = engine.write(op_code, reader, self)
            self._reply(xid, engine.tree.zxid, code, body)
        elif op_code in engine.read_handlers:
            code, found = engine.read(op_code, reader, self)
            zxid = engine.tree.zxid
            if isinstance(found, bytes):
                self._reply(xid, zxid, code, found)
            else:
                self._is_busy = True
                engine.go_on(op_code, found, lambda answer: self._answer(xid, zxid, *answer))
        elif op_code == _PING:
            self._reply(XID_PING, engine.tree.zxid, 0)
        else:
            self._other_request(xid, op_code, reader)
        statistics.last_op_code = op_code
        statistics.last_zxid = engine.tree.zxid
        if xid >= 0:
            statistics.last_xid = xid

    def _answer(self, xid: int, zxid: int, code: int, body: bytes) -> None:
        """Replies to a request that took several turns, perhaps, and goes on with those behind it."""
        self._is_busy = False
        if self.phase is Phase.CLOSED:
            return
        self._reply(xid, zxid, code, body)
        self._out += self._later
        self._later = []
        if not self._processing:
            self.settle()
            self._flush()
            self._budget.wait(self.resume)

    def _answer_alone(self, xid: int, answer: tuple[int, bytes]) -> None:
        self._out += self._later  # events of what was done come before the reply
        self._later = []
        self._answer(xid, self._engine.tree.zxid, *answer)

    def _other_request(self, xid: int, op_code: int, reader: Reader) -> None:
        engine = self._engine
        if op_code == _CLOSE_SESSION:
            if self.session is not None and engine.takes_long_to_close(self.session):
                self._is_busy = True
                engine.end_session(self.session, lambda: self._session_closed(xid))
                return
            if self.session is not None:
                engine.close_session(self.session)  # it hears of its own znodes before the reply
            self._session_closed(xid)
        elif op_code == _AUTH:
            shown = proved_by(AuthPacket.read(reader), self.peer[0])
            self._logged_in(xid, ErrorCode.AUTH_FAILED if shown is None else 0, b"", shown)
        elif op_code == _SASL:
            self._logged_in(xid, *self._login.answer_sasl(reader.buffer() or b""))
        else:
            self._reply(xid, -1, ErrorCode.UNIMPLEMENTED)
            self.finish()

    def _session_closed(self, xid: int) -> None:
        self._answer_alone(xid, (0, b""))  # clients read nothing behind this reply
        self.finish()

    def _logged_in(self, xid: int, code: int, body: bytes, shown: Id | None) -> None:
        if not code and (shown is None or self.prove(shown)):
            self._reply(xid, 0, 0, body)
            return
        self._engine.statistics.auth_failed += 1
        self._reply(xid, 0, ErrorCode.AUTH_FAILED, NULL if body else b"")
        self.finish()

    def prove(self, identity: Id) -> bool:
        """The client has shown that it is this too; False when it is too many already."""
        known = self.requester.identities
        if len(known) < IDENTITIES_MAX:
            self.requester = Requester(self.requester.session_id, tuple(dict.fromkeys((*known, identity))))
            return True
        return False

    def _connect(self, data: bytes, position: int) -> int | None:
        """Answers the first frame, or a four-letter word; where it ends, or None when it is not complete."""
        if position == 0 and (answer := self._owner.command(data[:_COMMAND_BYTES])) is not None:
            self._is_busy = True
            self._stall()
            self._budget.run(answer, self._inspected)
            return len(data)
        length: int = INT.unpack_from(data, position)[0]
        if not 0 <= length <= self._request_bytes_max:
            raise MalformedFrameError(f"a first frame of {length} bytes is not a session request")
        after = position + 4 + length
        if after > len(data):
            return None
        request = ConnectRequest.read(Reader(data, position + 4, after))
        engine = self._engine
        if request.last_zxid_seen > engine.tree.zxid:
            raise MalformedFrameError(
                f"the client has seen transaction {request.last_zxid_seen:#x}, and the last here is"
                f" {engine.tree.zxid:#x}: it belongs to another coordinator or to lost data"
            )
        if request.session_id in engine.closing:
            # It is told that its session has expired when nothing is left of that.
            raise MalformedFrameError(f"session {request.session_id:#x} is being closed")
        timeout_ms = engine.negotiated_timeout_ms(request.timeout_ms)
        session: Session[Attachment] | None
        if request.session_id == 0:
            session = engine.open_session(self, timeout_ms)
        else:
            session = engine.attach_session(self, request.session_id, request.password, timeout_ms)
        self._unanswered += 1
        read_only = None if request.read_only is None else False
        if session is None:
            self._send(frame(ConnectResponse(0, 0, bytes(PASSWORD_BYTES), read_only).pack()))
            self.finish()
            return after
        self._send(frame(ConnectResponse(timeout_ms, session.id, session.stored.password, read_only).pack()))
        self.session = session
        self.requester = Requester(session.id, self.requester.identities)
        self.phase = Phase.OPEN
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._owner.session_deadlines_changed()
        return after

    def _inspected(self, answer: bytes) -> None:
        self._is_busy = False
        if self.phase is not Phase.CLOSED:
            self._send(answer)
            self.finish()

    # Bounds, and the end.

    def _has_room(self) -> bool:
        return self._queued <= QUEUED_BYTES_MAX and not self._writing_paused and not self._commits.is_full

    def _stall(self) -> None:
        self._stalled = True
        if self._transport is not None:
            self._transport.pause_reading()
        if self._commits.is_full:
            self._commits.wait_for_room(self)

    def _drop_if_unread(self) -> None:
        if self._transport is None:
            return
        unread = self._queued + self._transport.get_write_buffer_size()
        if unread > self._owner.config.unread_bytes_max:
            self._drop(f"does not read: {unread} bytes wait for it")

    def _drop(self, reason: str) -> None:
        self._owner.logger.info("dropping the connection of %s:%d: %s", *self.peer, reason)
        self.abort()

    def abort(self) -> None:
        """Closes at once, whatever output there is."""
        if self._transport is not None:
            self._transport.abort()
        self._close()

    def _close(self) -> None:
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.CLOSED
        if self._timer is not None:
            self._timer.cancel()
        self._engine.detach(self, self.session)
        self._owner.forget(self)
        self._rest = []
        self._out = []
        self._later = []
        self._ready = []
