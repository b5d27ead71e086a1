"""One connection of a client to one server: frames, the hand-shake, requests in a pipeline and their answers in order.

All requests of one turn of the loop leave in one write. Sessions, watches and the choice of a server are the client's.

Of what comes, a bounded part is handled in each turn: a controller that takes over is sent megabytes as fast as it
reads. The rest waits, and nothing more is read meanwhile. Invariant: all is handled in the order of the wire, and what
still waits when the connection ends never is: the operations fail as those fail that were not answered, and `last_zxid`
is of what was handled, so that watches that fired behind it fire when they are taken over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from barnabas.coordination.errors import (
    ConnectionLossError,
    ErrorCode,
    MalformedFrameError,
    MultiFailedError,
    ReplyTooLargeError,
    UnimplementedError,
    error_for,
)
from barnabas.coordination.jute import Reader
from barnabas.coordination.operations import Exists, Multi, MultiRead, Operation, WatchableRead
from barnabas.coordination.protocol import (
    FRAMED_REQUEST_HEADER,
    LENGTH,
    REPLY_HEADER,
    XID_AUTH,
    XID_NOTIFICATION,
    XID_PING,
    XID_SASL,
    XID_SET_WATCHES,
    ConnectRequest,
    ConnectResponse,
    WatcherEvent,
    frame,
)
from barnabas.kernel.steps import Steps

TURN_BYTES: Final = 128 * 1024
"""How much is handled in one turn, up to the end of an answer: some 20,000 names of children, or 800 states of
partitions; an answer that has more is read in steps, if that takes long.
"""
_ANSWER_BYTES: Final = 64
"""What an answer counts for beside its own."""
_XID_MAX = 0x7FFFFFFF
_LENGTH_BYTES = LENGTH.size
_HEADER_BYTES = REPLY_HEADER.size


class Batch:
    """Operations that are awaited together: their outcomes, in order, become the result of `future`."""

    __slots__ = ("_missing", "future", "outcomes")

    def __init__(self, future: asyncio.Future[list[Any]], count: int) -> None:
        self.future = future
        self.outcomes: list[Any] = [None] * count
        self._missing = count

    def deliver(self, index: int, outcome: Any) -> None:
        """Notes the outcome, an answer or an error, of one operation."""
        self.outcomes[index] = outcome
        self._missing -= 1
        if not self._missing and not self.future.done():
            self.future.set_result(self.outcomes)


@dataclass(frozen=True, slots=True)
class _LongRead:
    """An answer that is read in steps, and whose it is."""

    steps: Steps[Any]
    reader: Reader
    operation: Operation[Any]
    batch: Batch
    index: int


class ConnectionOwner(Protocol):
    """What a connection tells its client, always on the loop and in the order of the wire."""

    def established(self, response: ConnectResponse) -> None:
        """The server's answer to the hand-shake, which may say that the session has expired."""
        ...

    def read_watched(self, read: WatchableRead[Any], code: int) -> None:
        """A read with a watcher was answered with this error code."""
        ...

    def notified(self, event: WatcherEvent) -> None:
        """A watch fired; the path is still the server's."""
        ...

    def credentials_answered(self, code: int) -> None:
        """The oldest unanswered AUTH request of this connection was answered."""
        ...

    def login_answered(self, code: int, token: bytes | None) -> None:
        """The message of a login by SASL was answered."""
        ...

    def answered(self, count: int, latency_ms: float) -> None:
        """So many operations were answered, each so long after it was sent."""
        ...

    def progressed(self) -> None:
        """Answers came in, so there may be room for more requests."""
        ...

    def lost(self, reason: str) -> None:
        """The connection is over, and every operation under way has its `ConnectionLossError`."""
        ...


class Connection(asyncio.Protocol):
    """The protocol of one connection. Use: `create_connection` with it, wait for `handshake`, then send; `ended` is
    done at the end.
    """

    def __init__(
        self,
        owner: ConnectionOwner,
        loop: asyncio.AbstractEventLoop,
        request: ConnectRequest,
        *,
        chroot: str,
        reply_bytes_max: int,
    ) -> None:
        self.handshake: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.last_zxid = request.last_zxid_seen
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.heard_at = self.sent_at = loop.time()
        self._owner = owner
        self._loop = loop
        self._request = request
        self._chroot = chroot
        self._reply_bytes_max = reply_bytes_max
        self._transport: asyncio.Transport | None = None
        self._established = False
        self._over = False
        self._xid = 0
        self._pending: deque[tuple[int, Operation[Any], Batch, int, int]] = deque()
        self._queued_count = self._measured_count = 0
        self._flushes: deque[tuple[int, float]] = deque()
        """Until which operation was sent, and when."""
        self._outgoing: list[bytes] = []
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._wanted_bytes = _LENGTH_BYTES
        self._handled_bytes = 0
        """In this turn."""
        self._turn_is_due = self._is_held = self._is_paused = False
        """Held: what is in `_pieces` waits for the next turn."""
        self._long_read: _LongRead | None = None
        """Under way; everything behind it is held."""

    # Sending.

    def send(self, operation: Operation[Any], body: bytes, batch: Batch, index: int) -> None:
        """Queues a request, which leaves at the end of this turn of the loop; `batch` gets its outcome."""
        self._xid = self._xid % _XID_MAX + 1
        size_bytes = len(body)
        weight = operation.weight
        self.in_flight += weight
        self.in_flight_bytes += size_bytes
        self._queued_count += 1
        self._pending.append((self._xid, operation, batch, index, size_bytes))
        self._queue(self._xid, operation.op_code, body)

    def send_control(self, xid: int, op_code: int, body: bytes) -> None:
        """Queues a request of the session's own: a ping, credentials, watches to take over."""
        self._queue(xid, op_code, body)

    def _queue(self, xid: int, op_code: int, body: bytes) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(FRAMED_REQUEST_HEADER.pack(8 + len(body), xid, op_code))
        self._outgoing.append(body)

    def _flush(self) -> None:
        if self._transport is None or self._over:
            return
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        self.sent_at = self._loop.time()
        if self._pending and (not self._flushes or self._flushes[-1][0] < self._queued_count):
            self._flushes.append((self._queued_count, self.sent_at))
        self._transport.write(data)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports are not asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        if self._over:
            self._transport.abort()
            return
        self._transport.write(frame(self._request.pack()))

    def connection_lost(self, exc: Exception | None) -> None:
        self.end("the server closed the connection" if exc is None else f"the connection broke: {exc}")

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self.heard_at = self._loop.time()
        if self._is_held:
            # It was on its way already, as with TLS.
            self._pieces.append(data)
            return
        if self._pieces:
            self._pieces.append(data)
            self._pieces_bytes += len(data)
            if self._pieces_bytes < self._wanted_bytes:
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
        self._take(data)

    def _take(self, data: bytes) -> None:
        """Handles what is whole, as far as the turn goes, and keeps the rest."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._next_turn)
        try:
            rest = self._cut(data)
        except (MalformedFrameError, ReplyTooLargeError) as error:
            self.end(f"the server's answer cannot be read: {error}")
            return
        if self.ended.done():
            return
        if rest < len(data):
            self._pieces.append(data[rest:])
            self._pieces_bytes = len(data) - rest
        self._read_or_pause()
        self._measure()
        self._owner.progressed()

    def _next_turn(self) -> None:
        """The turn after one in which something was handled: goes on with what is held."""
        self._turn_is_due = False
        self._handled_bytes = 0
        if not self._is_held or self._over:
            return
        self.heard_at = self._loop.time()
        try:
            is_read = self._long_read is None or self._read_on(self._long_read)
        except MalformedFrameError as error:
            self.end(f"the server's answer cannot be read: {error}")
            return
        if not is_read:
            self._turn_is_due = True
            self._loop.call_soon(self._next_turn)
        elif not self._over:
            self._is_held = False
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._take(data)

    def _read_or_pause(self) -> None:
        transport = self._transport
        if transport is None or self._is_held is self._is_paused or transport.is_closing():
            return
        self._is_paused = self._is_held
        if self._is_paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def end(self, reason: str) -> None:
        """Gives the connection up at once: operations under way fail with `ConnectionLossError`, and the owner is
        told. Later calls do nothing.
        """
        if self._over:
            return
        self._over = True
        if self._transport is not None:
            self._transport.abort()
        self._outgoing.clear()
        self._pieces.clear()
        if self._long_read is not None:
            reading, self._long_read = self._long_read, None
            reading.steps.close()
            reading.batch.deliver(reading.index, ConnectionLossError(reading.operation.path))
        while self._pending:
            _, operation, batch, index, _ = self._pending.popleft()
            batch.deliver(index, ConnectionLossError(operation.path))
        self.in_flight = self.in_flight_bytes = 0
        if not self.handshake.done():
            self.handshake.set_result(None)
        self.ended.set_result(None)
        self._owner.lost(reason)

    # Receiving.

    def _cut(self, data: bytes) -> int:
        """Handles every whole frame until the turn is over; returns where the first one begins that was not, and notes
        how many bytes it needs where it is incomplete.
        """
        position, end = 0, len(data)
        unpack = LENGTH.unpack_from
        while end - position >= _LENGTH_BYTES:
            length = unpack(data, position)[0]
            start = position + _LENGTH_BYTES
            stop = start + length
            if length < 0:
                raise MalformedFrameError(f"a frame of {length} bytes")
            if length > self._reply_bytes_max:
                raise self._too_large(length)
            if stop > end:
                self._wanted_bytes = _LENGTH_BYTES + length
                return position
            if self._handled_bytes >= TURN_BYTES or self._long_read is not None:
                self._is_held = True
                return position
            self._handled_bytes += length + _ANSWER_BYTES
            if self._established:
                self._handle(data, start, stop)
            else:
                self._shake_hands(data, start, stop)
            if self._over:
                return end
            position = stop
        self._wanted_bytes = _LENGTH_BYTES
        return position

    def _too_large(self, length: int) -> ReplyTooLargeError:
        error = ReplyTooLargeError(f"a reply of {length} bytes is above the bound of {self._reply_bytes_max}")
        if self._pending:
            # Replies come in order, so it is the oldest request's.
            _, operation, batch, index, size_bytes = self._pending.popleft()
            self.in_flight -= operation.weight
            self.in_flight_bytes -= size_bytes
            batch.deliver(index, ReplyTooLargeError(f"{operation.path}: {error}"))
        return error

    def _shake_hands(self, data: bytes, start: int, stop: int) -> None:
        response = ConnectResponse.read(Reader(data, start, stop))
        self._established = True
        if not self.handshake.done():
            self.handshake.set_result(None)
        self._owner.established(response)

    def _handle(self, data: bytes, start: int, stop: int) -> None:
        if stop - start < _HEADER_BYTES:
            raise MalformedFrameError(f"a reply of {stop - start} bytes has no header")
        xid, zxid, code = REPLY_HEADER.unpack_from(data, start)
        body = start + _HEADER_BYTES
        if xid == XID_PING:
            return
        if xid == XID_NOTIFICATION:
            self._owner.notified(WatcherEvent.read(Reader(data, body, stop)))
            return
        if xid == XID_AUTH:
            self._owner.credentials_answered(code)
            return
        if xid == XID_SASL:
            reader = Reader(data, body, stop)
            self._owner.login_answered(code, reader.buffer() if reader.remaining else None)
            return
        if zxid > 0:
            self.last_zxid = zxid
        if xid == XID_SET_WATCHES:
            if code:
                raise MalformedFrameError(f"watches were not taken over: {error_for(code)}")
            return
        if not self._pending or self._pending[0][0] != xid:
            raise MalformedFrameError(f"a reply to request {xid}, which is not the oldest")
        _, operation, batch, index, size_bytes = self._pending.popleft()
        self.in_flight -= operation.weight
        self.in_flight_bytes -= size_bytes
        reader = Reader(data, body, stop)
        if stop - body > TURN_BYTES and not code:
            steps = operation.read_in_steps(reader, self._chroot)
            if steps is not None:
                self._long_read = _LongRead(steps, reader, operation, batch, index)
                self._is_held = True
                return
        try:
            outcome = self._outcome(operation, code, reader)
        except Exception as error:
            raise self._unreadable(error, operation, batch, index) from error
        self._deliver(operation, code, batch, index, outcome)

    def _read_on(self, reading: _LongRead) -> bool:
        """Reads the next piece of a long answer; whether that was the last."""
        try:
            next(reading.steps)
        except StopIteration as stop:
            outcome = stop.value
        except Exception as error:
            self._long_read = None
            raise self._unreadable(error, reading.operation, reading.batch, reading.index) from error
        else:
            return False
        self._long_read = None
        try:
            reading.reader.finish()
        except MalformedFrameError as error:
            raise self._unreadable(error, reading.operation, reading.batch, reading.index) from error
        self._deliver(reading.operation, ErrorCode.OK, reading.batch, reading.index, outcome)
        return True

    def _unreadable(self, error: Exception, operation: Operation[Any], batch: Batch, index: int) -> MalformedFrameError:
        """Whatever it is, who waits must hear of it."""
        malformed = MalformedFrameError(f"{operation.path}: the answer cannot be read: {error}")
        batch.deliver(index, malformed)
        return malformed

    def _deliver(self, operation: Operation[Any], code: int, batch: Batch, index: int, outcome: Any) -> None:
        if isinstance(operation, WatchableRead) and operation.watcher is not None:
            self._owner.read_watched(operation, code)
        batch.deliver(index, outcome)

    def _measure(self) -> None:
        """Tells how long the answers of one turn took: those that were sent together came after the same time."""
        answered = self._queued_count - len(self._pending)
        while self._measured_count < answered:
            until, sent_at = self._flushes[0]
            measured = min(until, answered)
            if measured > self._measured_count:
                self._owner.answered(measured - self._measured_count, (self.heard_at - sent_at) * 1000)
                self._measured_count = measured
            if measured == until:
                self._flushes.popleft()

    def _outcome(self, operation: Operation[Any], code: int, reader: Reader) -> Any:
        """The answer of an operation, or the error as a value."""
        if code and not (type(operation) is Multi and reader.remaining):
            if code == ErrorCode.NO_NODE and type(operation) is Exists:
                return None
            return error_for(code, operation.path)
        if isinstance(operation, MultiRead) and not reader.remaining:
            # Servers older than 3.6 answer an operation that they do not know with an empty success.
            return UnimplementedError(operation.path, "multiRead needs ZooKeeper 3.6")
        try:
            outcome = operation.read(reader, self._chroot)
            reader.finish()
        except MultiFailedError as error:
            return error
        return outcome
