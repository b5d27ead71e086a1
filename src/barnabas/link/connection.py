"""The common part of both sides of a connection: receiving in turns, sending once per tick, and bounds."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Sequence
from typing import Final, cast

from barnabas.kernel.facts import fact
from barnabas.kernel.tick import Tick
from barnabas.kernel.timers import Timers
from barnabas.link.buffers import BufferPool
from barnabas.link.departures import Departures
from barnabas.link.errors import FrameSizeError
from barnabas.link.frames import FrameReceiver
from barnabas.link.idle import IdleWatch
from barnabas.link.limits import LinkLimits
from barnabas.wire.primitives import Buffer, ProtocolError

# Buffers up to this size are joined before they are sent; larger ones are sent as they are.
JOINED_BYTES_MAX: Final = 1024


class Phase(enum.Enum):
    """The life of a connection; it only goes forward."""

    CONNECTING = "connecting"
    OPEN = "open"
    CLOSING = "closing"  # takes no more frames; what is to be sent still leaves
    CLOSED = "closed"


class Pause(enum.IntFlag):
    """Why a connection's frames are not handled."""

    MUTED = 1  # somebody asked for it
    UNREAD_OUTPUT = 2  # the peer does not read
    UNANSWERED = 4  # too many requests wait for their responses
    WORKING = 8  # a long request is being worked on, and the next is not to overtake it
    MEMORY = 16  # there is no room yet for the rest of a large frame
    THROTTLED = 32  # it has taken more than its quota


_OPEN: Final = Phase.OPEN
_UNREAD_OUTPUT: Final = int(Pause.UNREAD_OUTPUT)


@fact
class LinkContext:
    """What the connections of one host share."""

    loop: asyncio.AbstractEventLoop
    timers: Timers
    tick: Tick
    pool: BufferPool
    idle: IdleWatch
    departures: Departures
    limits: LinkLimits
    logger: logging.Logger

    @classmethod
    def of(
        cls,
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        limits: LinkLimits,
        logger: logging.Logger,
        *,
        tick: Tick | None = None,
        pool: BufferPool | None = None,
    ) -> LinkContext:
        """A context with an idle watch of its own; `tick` and `pool` should be shared by all contexts of a loop."""
        idle = IdleWatch(timers, limits.idle_ms_max)
        departures = Departures(loop)
        return cls(loop, timers, tick or Tick(loop), pool or BufferPool(), idle, departures, limits, logger)


class Connection(asyncio.BufferedProtocol):
    """One connection. A subclass implements `_take` for frames, `_opened` and `_lost`."""

    __slots__ = (
        "_closes_when_sent",
        "_context",
        "_gathers",
        "_idle",
        "_output",
        "_output_bytes",
        "_pauses",
        "_reading",
        "_receiver",
        "_tick",
        "_transport",
        "_turn_is_due",
        "active_step",
        "is_control",
        "peer",
        "phase",
    )

    def __init__(self, context: LinkContext) -> None:
        self._context = context
        self._tick = context.tick
        self._idle = context.idle
        self._receiver = FrameReceiver(context.pool, context.limits.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._output: list[Buffer] | None = None
        self._output_bytes = 0  # of the larger buffers only
        self._pauses = 0
        self._reading = True
        self._turn_is_due = False
        self._gathers = False
        self._closes_when_sent = False
        self.active_step = 0
        self.phase = Phase.CONNECTING
        self.peer = ""
        """Address and port of the other end."""
        self.is_control = False
        """True: frames are handled ahead of those of data connections. Set once the peer is known to be the controller.
        """

    @property
    def is_open(self) -> bool:
        return self.phase is _OPEN

    # For subclasses.

    def _opened(self) -> None:
        """The connection is made."""

    def _lost(self, _error: Exception | None) -> None:
        """The connection is over; called once, if `_opened` was."""

    def _take(self, buffer: bytearray | memoryview, start: int, end: int) -> bool:
        """Handles a frame; returns `not self._stopped`. Raises ProtocolError to close the connection."""
        raise NotImplementedError

    @property
    def _busy(self) -> bool:
        """A request is under way: the connection is not idle."""
        return False

    # What others ask for.

    def send(self, buffers: list[Buffer]) -> None:
        """Sends the buffers at the end of the tick, behind the buffers given before.

        The list is the connection's from now on, and the buffers must not change any more; those above
        `JOINED_BYTES_MAX` bytes are not copied. Nothing happens unless the connection is open.
        """
        if self._output is None:
            if self.phase is _OPEN:
                self._output = buffers
                self._tick.will_send(self)
        else:
            self._output += buffers

    def mute(self) -> None:
        """Stops reading and handling frames, until `unmute`."""
        self._pause(Pause.MUTED)

    def unmute(self) -> None:
        """Ends `mute`; frames that have arrived are handled in the next tick."""
        self._go_on(Pause.MUTED)

    def close(self) -> None:
        """Takes no more frames, and closes when everything given to `send` has left."""
        if self.phase is _OPEN:
            self.phase = Phase.CLOSING
            self._receiver.release()
            self._set_reading(wanted=False)
            self._closes_when_sent = True
            self._tick.will_send(self)

    def abort(self) -> None:
        """Closes at once; unsent bytes are lost."""
        if self.phase is not Phase.CLOSED and self._transport is not None:
            self.phase = Phase.CLOSING
            self._output = None
            self._receiver.release()
            self._transport.abort()

    def fail(self, reason: str) -> None:
        """Ends the connection at once, with one line in the log that says why."""
        if self.phase is _OPEN or self.phase is Phase.CLOSING:
            self._context.logger.warning("Closed the connection with %s: %s", self.peer, reason)
            self.abort()

    def close_idle(self) -> None:
        """For the idle watch."""
        if not self._busy:
            self._context.logger.info("Closed the connection with %s: it was idle", self.peer)
            self.abort()

    @property
    def is_sending_much(self) -> bool:
        """No more responses should be made before those of this tick have been sent: only then does the transport tell
        whether the peer reads."""
        return self._output_bytes > self._context.limits.output_bytes_high

    # The transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        limits = self._context.limits
        self._transport.set_write_buffer_limits(high=limits.output_bytes_high, low=limits.output_bytes_high // 4)
        # The base class joins, and so copies; then large buffers are better written one by one.
        self._gathers = type(transport).writelines is not asyncio.WriteTransport.writelines  # type: ignore[attr-defined]
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "an unknown address"
        self.phase = Phase.OPEN
        self._idle.add(self)
        self._opened()
        if not self._reading:
            self._context.loop.call_soon(self._pause_again)

    def connection_lost(self, error: Exception | None) -> None:
        self.phase = Phase.CLOSED
        self._transport = None
        self._output = None
        self._receiver.release()
        self._idle.remove(self)
        self._lost(error)

    def eof_received(self) -> bool:
        transport = self._transport
        return transport is not None and not self._context.departures.close_now(transport)

    def get_buffer(self, _size_hint: int) -> memoryview:
        return self._receiver.target()

    def buffer_updated(self, count: int) -> None:
        if self.phase is _OPEN:
            self._receive(count, is_sole_ready=not self.is_control and self._tick.is_sole_ready(self))

    def _receive(self, count: int, *, is_sole_ready: bool) -> None:
        """Handles `count` received bytes, alone in the tick or among those of other connections."""
        self.active_step = self._idle.step
        receiver = self._receiver
        if receiver.received(count):
            if self.is_control:
                self.deliver()
                return
            if is_sole_ready:
                self._tick.begin()
                try:
                    self.deliver()
                finally:
                    self._tick.finish()
                if not receiver.is_full:
                    return
            elif not self._turn_is_due:
                self._turn_is_due = True
                self._tick.wait_turn(self)
            # One poll may bring the bytes of very many connections before the first of them has its turn.
            if self._tick.held or self._context.pool.is_scarce:
                receiver.compact()
            if self._tick.held or receiver.is_full:
                self._set_reading(wanted=False)

    def pause_writing(self) -> None:
        self._pause(Pause.UNREAD_OUTPUT)

    def resume_writing(self) -> None:
        self.active_step = self._idle.step
        self._go_on(Pause.UNREAD_OUTPUT)

    # The tick's calls.

    def deliver(self) -> int:
        """Handles the received frames, unless something holds them; returns the bytes handled."""
        self._turn_is_due = False
        if not self._may_handle():
            return 0
        receiver = self._receiver
        before = receiver.pending_bytes
        try:
            receiver.deliver(self._take)
        except (FrameSizeError, ProtocolError) as error:
            self.fail(str(error))
            return before
        except Exception:  # whatever a handler raises harms its own connection only
            self._context.logger.exception("Handling a frame from %s failed; closing its connection", self.peer)
            self.abort()
            return before
        if not self._may_handle():
            return before
        if receiver.has_frame:
            # Stopped by the tick, which goes on later.
            self._turn_is_due = True
            self._tick.wait_turn(self)
        elif not self._reading:
            self._set_reading(wanted=True)
        return before

    def flush(self) -> None:
        """Writes the buffers given to `send` since the last tick."""
        output = self._output
        self._output = None
        self._output_bytes = 0
        transport = self._transport
        if transport is None:
            return
        if output:
            if len(output) == 1:
                response = output[0]
                # Of all but bytes uvloop makes two views, which cost more than to copy so few.
                is_copied = type(response) is bytearray and len(response) <= JOINED_BYTES_MAX
                transport.write(bytes(response) if is_copied else response)
            else:
                self._write(transport, gathered(output))
            if self._pauses & _UNREAD_OUTPUT:
                self._check_unread(0)
        if self._closes_when_sent and self.phase is Phase.CLOSING:
            transport.close()

    # Inside.

    def _may_handle(self) -> bool:
        return not self._pauses and self.phase is _OPEN

    @property
    def _stopped(self) -> bool:
        """The rest of the frames must wait."""
        return self._pauses != 0 or self.phase is not _OPEN or (self._tick.held and not self.is_control)

    def _note_output(self, response: Sequence[Buffer]) -> bool:
        """Counts a response that was given to `send`, and returns `is_sending_much`."""
        size_bytes = sum(map(len, response))
        self._output_bytes += size_bytes
        self._tick.spent += size_bytes
        return self.is_sending_much

    def _write(self, transport: asyncio.Transport, buffers: list[Buffer]) -> None:
        if len(buffers) == 1:
            transport.write(buffers[0])
        elif self._gathers:
            transport.writelines(buffers)
        else:
            for buffer in buffers:
                transport.write(buffer)

    def _check_unread(self, held_back_bytes: int) -> None:
        """Drops a peer for which too many bytes wait, in the transport or held back by the subclass."""
        if self._transport is not None:
            unread = self._transport.get_write_buffer_size() + held_back_bytes
            if unread > self._context.limits.output_bytes_max:
                self.fail(
                    f"{unread} bytes wait for it to read them; at most {self._context.limits.output_bytes_max} may"
                )

    def _pause(self, reason: Pause) -> None:
        self._pauses |= reason.value
        self._set_reading(wanted=False)

    def _go_on(self, reason: Pause) -> None:
        if not self._pauses & reason.value:
            return
        self._pauses &= ~reason.value
        if self._pauses or self.phase is not _OPEN:
            return
        if self._receiver.has_frame:
            if not self._turn_is_due:
                self._turn_is_due = True
                self._tick.wait_turn(self)
        else:
            self._set_reading(wanted=True)

    def _pause_again(self) -> None:
        """uvloop begins to read when `connection_made` is over, whatever that has asked for."""
        transport = self._transport
        if transport is not None and not self._reading and not transport.is_closing():
            transport.pause_reading()

    def _set_reading(self, *, wanted: bool) -> None:
        transport = self._transport
        if transport is None or wanted is self._reading or transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()


def gathered(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes in fewer buffers: neighbours of up to `JOINED_BYTES_MAX` are joined, larger ones are left."""
    if max(map(len, buffers)) <= JOINED_BYTES_MAX:
        return [b"".join(buffers)]
    found: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) <= JOINED_BYTES_MAX:
            small.append(buffer)
            continue
        if small:
            found.append(small[0] if len(small) == 1 else b"".join(small))
            small = []
        found.append(buffer)
    if small:
        found.append(b"".join(small))
    return found
