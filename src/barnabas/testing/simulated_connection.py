"""One simulated TCP connection: two ends, and a pipe in each direction.

The model of one direction, from the writer's `write` to the reader's protocol:

1. *Held*: the bytes lie in the writer's transport **by reference**, with a checksum when the buffer is a mutable one,
   for the latency of the link. This is what `get_write_buffer_size` and the water marks count. asyncio's and uvloop's
   transports may also keep a reference until the kernel has taken the bytes, so a caller that changes the buffer
   meanwhile has a bug: `BufferReusedError` ends the run.
2. *Sent*: when their latency has passed, in order, the kernel takes the bytes (a copy), up to a bounded send buffer.
   Closing is finished for the writer when nothing is held any more.
3. *Arrived*: if the link is not cut and the other machine has power, bytes go on at once to the reader's receive
   buffer, also bounded, whether or not the process there runs, is paused, or reads. Otherwise they stall, and the
   writer gives up with ETIMEDOUT after `stall_seconds`. If only the way back is cut, they arrive but are never
   acknowledged, and the writer gives up too. After a heal they go on after a retransmission delay.
4. *Read*: in a tick of the reader's loop, one chunk at a time, sometimes split at random, never larger than what
   `get_buffer` offers.

Ends: `close` sends what is held, then end-of-file; `abort` and the death of a process drop a random part of what is
held, then send end-of-file. In each case it is a reset instead if received bytes are unread, and a reset drops what the
receiver has not read: who closes with bytes unread may so take its own last words back, as Linux does it.
Bytes that reach an end that is gone are answered with a reset. A machine that loses power sends nothing; resets come
once it is up again. What protocols are told at the end of a connection is the same here, on asyncio's loop and on
uvloop's (tests/unit/testing/test_simulated_against_real.py); uvloop's transports are no `asyncio.Transport`, though, so
nobody may ask that of a transport.
"""

from __future__ import annotations

import asyncio
import errno
import os
import zlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from barnabas.kernel.host import Buffer
from barnabas.testing.simulated_socket import SimulatedSocket
from barnabas.testing.trace import Occurrence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barnabas.testing.simulated_link import Acceptor, Link, LinkedNetwork, LinkedProcess
    from barnabas.testing.simulated_loop import SimulatedLoop

HIGH_WATER_BYTES = 64 * 1024
HEADER_BYTES = 32
PIECE_BYTES = 16 * 1024
"""What the kernel takes at once: it exceeds the bound of its send buffer by less than this."""
Spoil = Callable[["bytes | None"], "bytes | None"]
"""What becomes of bytes on their way: others, none at all, or (None) the end of the stream, of which it is told too."""


class BufferReusedError(Exception):
    """A buffer was changed after it had been given to `write` and before it was sent."""


class _Held:
    """Bytes given to `write`, or (data None) the end of the stream."""

    __slots__ = ("checksum", "data", "due")

    def __init__(self, due: float, data: bytes | memoryview | None, checksum: int | None) -> None:
        self.due = due
        self.data = data
        self.checksum = checksum


class Pipe:
    """One direction of a connection. Both ends are always there, though their processes may not be."""

    def __init__(
        self, network: LinkedNetwork, sender: SimulatedTransport, receiver: SimulatedTransport, link: Link
    ) -> None:
        draw = network.random.uniform
        self.network = network
        self.sender = sender
        self.receiver = receiver
        self.link = link
        self.held: deque[_Held] = deque()
        self.held_bytes = 0
        self.sent: deque[bytes | memoryview | None] = deque()
        self.sent_bytes = 0
        self.send_buffer_bytes = int(draw(*network.profile.send_buffer_bytes))
        self.receive_buffer_bytes = int(draw(*network.profile.receive_buffer_bytes))
        self.broken = False
        self.spoil: Spoil | None = None
        self._written_at = -1.0
        self._last_due = 0.0
        self._is_scheduled = False
        self._stalled_since: float | None = None

    def hold(self, data: bytes | memoryview | None, checksum: int | None) -> None:
        """Queues bytes, or the end of the stream."""
        now = self.network.world.now
        if self._written_at != now or not self.held:
            self._last_due = max(self._last_due, now + self.link.latency())
            self._written_at = now
        if data is not None:
            self.held_bytes += len(data)
            if self.link.bandwidth_bytes_per_second is not None:
                self._last_due += len(data) / self.link.bandwidth_bytes_per_second
        self.held.append(_Held(self._last_due, data, checksum))
        if not self._is_scheduled:
            self._is_scheduled = True
            self.network.world.schedule(self._last_due, self._due)

    def _due(self, _: object) -> None:
        self._is_scheduled = False
        self.advance()
        held = self.held
        if held and not self._is_scheduled and held[0].due > self.network.world.now:
            self._is_scheduled = True
            self.network.world.schedule(held[0].due, self._due)

    def advance(self) -> None:
        """Moves on whatever can move now."""
        if self.broken:
            return
        while True:
            self._take()
            if not self._move() or not self.held or self.held[0].due > self.network.world.now:
                break

    def _take(self) -> None:
        """The kernel takes held bytes whose time has come, while its send buffer has room."""
        now = self.network.world.now
        taken = False
        while self.held and self.held[0].due <= now and self.sent_bytes < self.send_buffer_bytes:
            held = self.held.popleft()
            taken = True
            if held.data is None and self.sender.closes_with_bytes_unread():
                self.reset()
            else:
                self._send(held)
        if taken:
            self.sender.bytes_were_taken()

    def _send(self, held: _Held) -> None:
        data = held.data
        if data is not None:
            if held.checksum is not None:
                if zlib.crc32(data) != held.checksum:
                    self._accuse(len(data))
                data = bytes(data)
            self.held_bytes -= len(data)
        if self.spoil is not None:
            data = self.spoil(None if data is None else bytes(data))
            if data == b"":
                return
        if data is not None:
            self.sent_bytes += len(data)
        self.sent.append(data)

    def _accuse(self, count: int) -> None:
        self.network.world.fail(
            BufferReusedError(
                f"{self.sender.label}: a buffer of {count} bytes given to write() was changed before it was sent; "
                "write a copy, or leave it alone until get_write_buffer_size() says that it has gone"
            )
        )

    def _move(self) -> bool:
        """Sent bytes arrive, unless something stands in the way."""
        if not self.sent:
            return False
        if not self.link.is_open():
            self._stall()
            return False
        receiver = self.receiver
        room = self.receive_buffer_bytes - receiver.arrived_bytes
        arrived = 0
        ended = False
        while self.sent and not ended:
            data = self.sent[0]
            if data is None:
                self.sent.popleft()
                ended = True
            elif len(data) <= room or receiver.gone:
                self.sent.popleft()
                self.sent_bytes -= len(data)
                room -= len(data)
                arrived += len(data)
                receiver.arrived.append(data)
            elif room > 0:
                view = memoryview(data)
                self.sent[0] = view[room:]
                self.sent_bytes -= room
                arrived += room
                receiver.arrived.append(view[:room])
                room = 0
            else:
                receiver.is_full = True
                break
        self._acknowledge(anything=bool(arrived) or ended)
        if arrived or ended:
            receiver.bytes_arrived(arrived, ended=ended)
        return arrived > 0

    def _acknowledge(self, *, anything: bool) -> None:
        if anything and not self.link.opposite.is_open():
            self._stall()
        elif self._stalled_since is not None:
            self._stalled_since = None

    def _stall(self) -> None:
        self.link.stalled[self] = None
        if self._stalled_since is None:
            now = self.network.world.now
            self._stalled_since = now
            self.network.world.schedule(
                now + self.network.random.uniform(*self.network.profile.stall_seconds), self._give_up, now
            )

    def _give_up(self, since: float) -> None:
        if self._stalled_since == since and not self.broken:
            self.sender.break_off(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def healed(self) -> None:
        """The link is open again: unacknowledged bytes are sent again a little later."""
        if self.link.opposite.is_open():
            self._stalled_since = None
        if not self.broken:
            pause = self.network.random.uniform(*self.network.profile.retransmit_seconds)
            self.network.world.schedule(self.network.world.now + pause, self._sent_again)

    def _sent_again(self, _: object) -> None:
        self.advance()
        if self.held and not self._is_scheduled and self.held[0].due > self.network.world.now:
            self._due(None)

    def receiver_has_room(self) -> None:
        """The reader took bytes while the receive buffer was full."""
        self.network.world.schedule(self.network.world.now + self.link.latency(), lambda _: self._sent_again(None))

    def shorten(self, share: float) -> None:
        """The writer is gone: the given share of what is held was sent in time, the rest is lost."""
        keep = int(self.held_bytes * share)
        while self.held:
            held = self.held.popleft()
            if held.data is None:
                continue
            part = held.data[: min(keep, len(held.data))]
            keep -= len(part)
            if part:
                self.sent.append(bytes(part))
                self.sent_bytes += len(part)
        self.held_bytes = 0

    def end(self) -> None:
        """Puts the end of the stream behind what was sent, without an owner who waits for it."""
        self.sent.append(None)
        self.network.world.schedule(self.network.world.now + self.link.latency(), lambda _: self.advance())

    def reset(self) -> None:
        """Tells the receiver, after the latency and when the link is open, that the connection is broken."""
        self.drop()
        self.network.world.schedule(self.network.world.now + self.link.latency(), self._reset_arrives)

    def _reset_arrives(self, _: object) -> None:
        if self.link.is_open():
            self.receiver.break_off(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def drop(self) -> None:
        """Forgets everything on the way."""
        self.broken = True
        self.held.clear()
        self.sent.clear()
        self.held_bytes = self.sent_bytes = 0
        self.link.stalled.pop(self, None)


class SimulatedTransport(asyncio.Transport):
    """One end of a connection, as an asyncio transport. `outward` is the pipe to the other end, `inward` the one from
    it.
    """

    outward: Pipe
    inward: Pipe

    def __init__(
        self, network: LinkedNetwork, port: LinkedProcess, own: tuple[str, int], peer: tuple[str, int]
    ) -> None:
        self._extra = {"sockname": own, "peername": peer, "socket": SimulatedSocket(own, peer)}
        self.network = network
        self.port = port
        self.label = f"{port.name} {own[1]} to {network.machine_name(peer[0])}:{peer[1]}"
        self.arrived: deque[bytes | memoryview] = deque()
        self.arrived_bytes = 0
        self.is_full = False
        self.gone = False
        """The process has let go of this end, or has lost it: nothing is delivered to it any more."""
        self.server: Acceptor | None = None
        """Who accepted the connection, at that end."""
        self._trace_label = network.world.trace.label(self.label)
        self._loop: SimulatedLoop = port.loop
        self._random = network.random
        self._protocol: asyncio.BaseProtocol | None = None
        self._buffered = False
        self._high_water, self._low_water = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._writing_is_paused = False
        self._reading = False
        self._read_is_scheduled = False
        self._end_arrived = False
        self._end_told = False
        self._end_written = False
        self._closing = False
        self._lost_is_scheduled = False
        self._is_made = False
        self._error: OSError | None = None

    # What the process does.

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """Gives the end to its protocol; calls `connection_made` in the next tick, and reads from then on."""
        self.set_protocol(protocol)
        self._loop.call_soon(self._made)
        if self._lost_is_scheduled:
            self._loop.call_soon(self._lost, self._error)

    def _made(self) -> None:
        if self._protocol is not None:
            self._is_made = True
            self._reading = not self._lost_is_scheduled
            self._protocol.connection_made(self)
            self._want_read()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)

    @property
    def protocol(self) -> asyncio.BaseProtocol | None:
        """Who has this end; None when nobody has any more."""
        return self._protocol

    @property
    def is_half_closed(self) -> bool:
        """The protocol was told that the other end is over, and this one is not."""
        return self._end_told and not self.gone

    def get_protocol(self) -> asyncio.BaseProtocol:
        if self._protocol is None:
            raise RuntimeError("the transport has no protocol: its connection is over")
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra.get(name, default)

    def is_closing(self) -> bool:
        return self._closing or self.port.cut

    def is_reading(self) -> bool:
        return self._reading and not self.is_closing()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._closing:
            self._reading = True
            self._want_read()

    def write(self, data: Buffer) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__}")
        if self._closing or self.port.cut:
            return
        if self._end_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data:
            return
        view = memoryview(data).cast("B")
        may_change = not isinstance(view.obj, bytes)
        for start in range(0, len(view), PIECE_BYTES):
            piece = view[start : start + PIECE_BYTES]
            self.outward.hold(piece, zlib.crc32(piece) if may_change else None)
        if self.outward.held_bytes > self._high_water and not self._writing_is_paused:
            self._writing_is_paused = True
            self.get_protocol().pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        for data in list_of_data:
            self.write(data)

    def write_eof(self) -> None:
        if not self._end_written and not self._closing and not self.port.cut:
            self._end_written = True
            self.outward.hold(None, None)

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self.outward.held_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_water, self._high_water

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_water, self._low_water = high, low
        self._tell_writing()

    def close(self) -> None:
        if self._closing or self.port.cut:
            return
        self._closing = True
        self._reading = False
        if not self._end_written:
            self._end_written = True
            self.outward.hold(None, None)
        if not self.outward.held:
            self._lose(None)

    def abort(self) -> None:
        if self.port.cut or self._lost_is_scheduled:
            return
        self._closing = True
        self.let_go()
        self._lose(None)

    # What the world does.

    def closes_with_bytes_unread(self) -> bool:
        """The process is through with this end and has left something in the receive buffer."""
        return self._closing and bool(self.arrived)

    def bytes_were_taken(self) -> None:
        """The kernel has taken held bytes."""
        if self.port.cut:
            return
        if self._writing_is_paused and self.outward.held_bytes <= self._low_water:
            self._loop.call_soon(self._tell_writing)
        if self._closing and not self.outward.held and not self._lost_is_scheduled:
            self._lose(None)

    def _tell_writing(self) -> None:
        if self._protocol is None or self._lost_is_scheduled:
            return
        size = self.outward.held_bytes
        if self._writing_is_paused and size <= self._low_water:
            self._writing_is_paused = False
            self._protocol.resume_writing()
        elif not self._writing_is_paused and size > self._high_water:
            self._writing_is_paused = True
            self._protocol.pause_writing()

    def bytes_arrived(self, count: int, *, ended: bool) -> None:
        """Bytes, or the end of the stream, have reached this end's machine."""
        self.network.world.trace.add(self.network.world.now, Occurrence.ARRIVED, self._trace_label, count)
        if self.gone:
            self.arrived.clear()
            if count:
                self.outward.reset()
            return
        self.arrived_bytes += count
        self._end_arrived = self._end_arrived or ended
        self._want_read()

    def _want_read(self) -> None:
        if (
            self._reading
            and not self._read_is_scheduled
            and (self.arrived or (self._end_arrived and not self._end_told))
        ):
            self._read_is_scheduled = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._read_is_scheduled = False
        if not self._reading or self._closing or self.gone or self._protocol is None:
            return
        if self.arrived:
            chunk = self._next_chunk()
            if self._buffered:
                self._fill_buffers(chunk)
            else:
                self._put_trace(len(chunk))
                self._protocol.data_received(bytes(chunk))  # type: ignore[attr-defined]
        elif self._end_arrived and not self._end_told:
            self._end_told = True
            if not self._protocol.eof_received():  # type: ignore[attr-defined]
                self.close()
            return
        self._want_read()

    def _next_chunk(self) -> memoryview | bytes:
        """Takes some of the arrived bytes: as a rule all of the first piece and a few joined ones, sometimes a random
        part.
        """
        profile = self.network.profile
        chunk = self.arrived.popleft()
        if self.arrived and len(chunk) + len(self.arrived[0]) <= profile.read_bytes_max:
            pieces = [chunk]
            size = len(chunk)
            while self.arrived and size + len(self.arrived[0]) <= profile.read_bytes_max:
                pieces.append(self.arrived.popleft())
                size += len(pieces[-1])
            chunk = b"".join(pieces)
        limit = min(len(chunk), profile.read_bytes_max)
        if limit > 1 and self._random.random() < profile.split_probability:
            # Half of the splits are where headers are.
            limit = self._random.randint(1, limit if self._random.random() < 0.5 else min(limit, HEADER_BYTES))
        return self._limited(chunk, limit)

    def _limited(self, chunk: bytes | memoryview, limit: int) -> bytes | memoryview:
        if limit < len(chunk):
            view = memoryview(chunk)
            self.arrived.appendleft(view[limit:])
            chunk = view[:limit]
        self.arrived_bytes -= len(chunk)
        if self.is_full:
            self.is_full = False
            self.inward.receiver_has_room()
        return chunk

    def _fill_buffers(self, chunk: bytes | memoryview) -> None:
        protocol: Any = self._protocol
        buffer = memoryview(protocol.get_buffer(-1)).cast("B")
        if not len(buffer):
            raise RuntimeError("get_buffer() returned an empty buffer")
        count = min(len(chunk), len(buffer))
        if count < len(chunk):
            self.arrived.appendleft(memoryview(chunk)[count:])
            self.arrived_bytes += len(chunk) - count
        buffer[:count] = chunk[:count]
        del buffer
        self._put_trace(count)
        protocol.buffer_updated(count)

    def _put_trace(self, count: int) -> None:
        self.network.world.trace.add(self.network.world.now, Occurrence.READ, self._trace_label, count)

    def break_off(self, error: OSError | None) -> None:
        """The connection is broken as this end sees it; what has not been read is lost."""
        if self.gone or self._lost_is_scheduled:
            return
        self._closing = True
        self._reading = False
        self.gone = True
        self.arrived.clear()
        self.outward.drop()
        self._lose(error)

    def _lose(self, error: OSError | None) -> None:
        if not self._lost_is_scheduled:
            self._lost_is_scheduled = True
            self._reading = False
            self._error = error
            self._loop.call_soon(self._lost, error)

    def _lost(self, error: OSError | None) -> None:
        self.gone = True
        if self.arrived and not self.outward.broken:
            self.outward.reset()
        self.arrived.clear()
        self.port.ends.pop(self, None)
        if self._protocol is not None and not self._is_made:
            return  # `attach` has put another call of this behind that of `_made`
        self.network.world.trace.add(self.network.world.now, Occurrence.LOST, self._trace_label, int(error is not None))
        protocol, self._protocol = self._protocol, None
        try:
            if protocol is not None:
                protocol.connection_lost(error)
        finally:
            if self.server is not None:
                self.server.connection_is_over(self)

    def let_go(self) -> None:
        """The process lets go of the connection at once (abort, death): part of what is held was sent, then end-of-
        file, or a reset if bytes were unread.
        """
        if self.gone:
            return
        self.gone = True
        self._reading = False
        unread = bool(self.arrived)
        self.arrived.clear()
        if unread:
            self.outward.reset()
        else:
            self.outward.shorten(self._random.random())
            self.outward.end()

    def vanish(self) -> None:
        """The machine lost power: this end is gone and says nothing."""
        self.gone = True
        self._reading = False
        self.arrived.clear()
        self.outward.drop()
