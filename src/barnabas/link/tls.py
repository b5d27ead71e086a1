"""TLS between a connection and its transport: a connection takes it for its transport, the transport for its protocol.

Plain connections have nothing of it. The loop's own TLS would do handshakes in its turns, encrypt an answer of 50 MB in
one of them, and hold 256 KiB for each connection. Here a handshake is done off the loop (`handshakes`), an answer
is encrypted as the peer reads it, a piece in each turn, and all connections receive into one buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl  # so this module is imported only where TLS is used
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from barnabas.kernel.host import HostClosedError
from barnabas.link.connection import Connection, Phase
from barnabas.link.errors import AuthenticationFailedError
from barnabas.link.handshakes import HANDSHAKE_MS, PATIENCE, one_step
from barnabas.link.tls_backlog import Backlog
from barnabas.link.tls_errors import PLAIN_HTTP, as_words
from barnabas.link.tls_records import Records

if TYPE_CHECKING:
    from barnabas.kernel.timers import Timer
    from barnabas.link.connection import LinkContext
    from barnabas.link.tls_end import TlsEnd
    from barnabas.wire.primitives import Buffer

PIECE_BYTES: Final = 64 * 1024
"""What is encrypted between two writes; OpenSSL keeps as much memory for each connection."""
TURN_BYTES: Final = 256 * 1024
"""What one connection encrypts in one turn."""
_UNSENT_BYTES_HIGH: Final = 64 * 1024
_AT_ONCE_BYTES_MAX: Final = 4 * 1024
"""What is encrypted in the turn in which it comes, where nothing waits: less than a record has."""
_UNSENT_OF_PROTOCOL_MAX: Final = 1024 * 1024
"""What OpenSSL itself may have to say to a peer that does not read: more is an attack."""
RECORDS_PER_TURN: Final = 64
"""What one connection has decrypted in one turn, however small; fewer where many have small ones."""
_RECORDS_PER_STEP: Final = 64
"""In a handshake; what follows it is not for the threads, but may be there when it is over."""
_HANDSHAKE_BYTES_MAX: Final = 256 * 1024
_OPEN: Final = Phase.OPEN


class TlsConnection(asyncio.BufferedProtocol):
    """One connection's TLS; `link` is who sends and receives in clear."""

    __slots__ = (
        "_backlog",
        "_context",
        "_end",
        "_error",
        "_handshake_bytes",
        "_has_place",
        "_high",
        "_incoming",
        "_is_complete",
        "_is_full",
        "_is_raw_full",
        "_is_reading",
        "_later",
        "_link",
        "_low",
        "_outgoing",
        "_phase",
        "_pump_is_due",
        "_raw",
        "_read_is_due",
        "_records",
        "_server_name",
        "_ssl",
        "_step_runs",
        "_target",
        "_timer",
        "_turns",
        "_waited_seconds",
        "_waits_since",
        "_wants_reading",
        "address",
        "goes_first",
        "quiet_since",
        "secured",
    )

    def __init__(self, context: LinkContext, link: Connection, end: TlsEnd, server_name: str | None = None) -> None:
        """`server_name` is the host that we connect to, which its certificate must name."""
        self._context = context
        self._link = link
        self._end = end
        self._turns = end.handshakes.turns
        self._raw: asyncio.Transport | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._records = Records()
        self._later = b""
        """What has come and is not OpenSSL's yet."""
        self._ssl: ssl.SSLObject | None = None
        self._server_name = server_name
        self._phase = Phase.CONNECTING
        self._timer: Timer | None = None
        self._error: Exception | None = None
        self._target = end.handshakes.received_first
        """Where to receive to."""
        self._step_runs = self._has_place = self._is_complete = False
        self._handshake_bytes = 0
        self._waited_seconds = self._waits_since = 0.0
        self._is_reading = self._wants_reading = True
        self._is_raw_full = self._is_full = False
        self._backlog = Backlog()
        self._high, self._low = _UNSENT_BYTES_HIGH, _UNSENT_BYTES_HIGH // 4
        self._pump_is_due = self._read_is_due = False
        self.address = ""
        self.quiet_since = 0.0
        self.goes_first = end.goes_first
        self.secured: asyncio.Future[None] = context.loop.create_future()
        """Done when the handshake is; its exception is why there is none."""

    # The raw transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast("asyncio.Transport", transport)
        self._raw.set_write_buffer_limits(high=_UNSENT_BYTES_HIGH)
        name = transport.get_extra_info("peername")
        self.address = str(name[0]) if isinstance(name, tuple) else ""
        self._wait_for_peer()
        self._timer = self._context.timers.call_after(HANDSHAKE_MS, self._time_out)
        self._link.connection_made(cast("asyncio.Transport", self))
        if not self._is_reading:
            self._context.loop.call_soon(self._pause_again)
        if not self._end.is_server and not transport.is_closing():
            self._take_place()
            self._begin()

    def connection_lost(self, error: Exception | None) -> None:
        was_open, self._phase = self._phase is _OPEN, Phase.CLOSED
        self._end_handshake()
        self._turns.leave(self)
        self._raw = None
        self._later = b""
        self._backlog.clear()
        failure = self._error or error
        if not self.secured.done():
            if self._end.is_server:
                self.secured.cancel()
            else:
                self.secured.set_exception(failure or ConnectionResetError("the connection ended amid the handshake"))
                self.secured.exception()  # whoever waited may be gone, which is no news
        if not self._step_runs:
            self._ssl = None
        self._link.connection_lost(failure if not was_open or self._error is not None else error)

    def eof_received(self) -> bool:
        transport = self._raw
        return transport is not None and not self._context.departures.close_now(transport)

    def get_buffer(self, _size_hint: int) -> memoryview:
        return self._target

    def buffer_updated(self, count: int) -> None:
        received = self._target[:count]
        if self._phase is _OPEN:
            if self._is_reading and self._records.is_only(received, count):
                self._decrypt_only(received)
                return
            end = self._cut_of_turn(received)
            if end < count:
                self._later = bytes(received[end:])
                received = received[:end]
            self._incoming.write(received)
            self._decrypt()
        elif self._phase is Phase.CONNECTING:
            self._take_of_handshake(received)

    def pause_writing(self) -> None:
        self._is_raw_full = True

    def resume_writing(self) -> None:
        self._is_raw_full = False
        self._pump()

    # The handshake.

    def _take_of_handshake(self, received: memoryview) -> None:
        self._later += received
        self._handshake_bytes += len(received)
        if self._handshake_bytes > _HANDSHAKE_BYTES_MAX:
            self._fail(f"a handshake of more than {_HANDSHAKE_BYTES_MAX} bytes")
        else:
            self._go_on()

    def _go_on(self) -> None:
        """With the bytes that have come, unless who reads is not to go on, or has no place yet."""
        if not self._wants_reading:
            self._set_reading()
        elif self._has_place:
            self._begin()
        elif self._end.handshakes.enter(self):
            self.place_free()
        else:
            self._set_reading()

    def _take_place(self) -> None:
        self._has_place = True
        self._target = self._end.handshakes.received

    def place_free(self) -> None:
        self._take_place()
        self._wait_for_peer()  # that it has waited for us does not count
        self._begin()

    def _wait_for_peer(self) -> None:
        self._waits_since = self._context.loop.time()
        self.quiet_since = self._waits_since - self._waited_seconds * PATIENCE

    def _begin(self) -> None:
        """Has a step done with the bytes that have come."""
        if self._phase is not Phase.CONNECTING:
            return
        if self._ssl is None:
            end = self._end
            try:
                self._ssl = end.context.wrap_bio(
                    self._incoming, self._outgoing, server_side=end.is_server, server_hostname=self._server_name
                )
            except ValueError as error:  # a name that is none
                self._fail(str(error))
                return
        later = self._later
        if later:
            cut_at = self._records.cut(later, _RECORDS_PER_STEP)
            self._incoming.write(later[:cut_at])
            self._later = later[cut_at:]
        self._step_runs = True
        self._waited_seconds += self._context.loop.time() - self._waits_since
        self.quiet_since = math.inf
        self._set_reading()
        self._end.handshakes.work(self)

    def do_step(self) -> None:
        secured = self._ssl
        if secured is not None:
            self._is_complete = one_step(secured)

    def step_done(self, error: BaseException | None) -> None:
        self._step_runs = False
        if self._phase is not Phase.CONNECTING:
            self._ssl = None if self._phase is Phase.CLOSED else self._ssl
            return
        self._wait_for_peer()
        self._send_outgoing()
        if error is not None:
            if isinstance(error, asyncio.CancelledError | HostClosedError):
                self.abort()
            elif isinstance(error, OSError | ValueError):
                self._fail(as_words(error, is_server=self._end.is_server), error)
            else:
                self._context.logger.error("The handshake with %s failed", self._link.peer, exc_info=error)
                self.abort()
            return
        if self._is_complete:
            self._complete()
        elif self._later:
            self._begin()
        else:
            self._set_reading()

    def _complete(self) -> None:
        secured = self._ssl
        if secured is None:
            raise RuntimeError("a handshake that is complete, of nobody")
        if self._end.when_secured is not None:
            try:
                self._end.when_secured(self._link, secured.getpeercert(binary_form=True))
            except ValueError as error:
                self._fail(str(error))
                return
        self._phase = _OPEN
        self._records.begin()
        self._end_handshake()
        if not self.secured.done():
            self.secured.set_result(None)
        self._pump()
        if self._wants_reading:
            self._decrypt()  # what came with the last bytes of the handshake
        self._set_reading()

    def _end_handshake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._end.handshakes.leave(self):
            self._step_runs = False

    def _time_out(self) -> None:
        self._timer = None
        if self._phase is not Phase.CONNECTING:
            return
        if self._step_runs or not self._wants_reading:  # it waits for us
            self._timer = self._context.timers.call_after(HANDSHAKE_MS, self._time_out)
        elif self._handshake_bytes:
            self._fail(f"it was not complete within {HANDSHAKE_MS // 1000} s")
        else:
            self._context.logger.info("Closed the connection with %s: it said nothing", self._link.peer)
            self.abort()

    def evict(self) -> None:
        self._fail("it said nothing while others wait for its place")

    def _fail(self, why: str, error: BaseException | None = None) -> None:
        """A handshake that failed, or a connection whose peer sends what cannot be decrypted."""
        if self._phase is Phase.CLOSED:
            return
        is_handshake = self._phase is Phase.CONNECTING
        self._phase = Phase.CLOSING
        peer = self._link.peer
        self._error = AuthenticationFailedError(f"the TLS handshake with {peer} failed: {why}")
        self._error.__cause__ = error
        if error is not None:
            # Its frames know this connection and what OpenSSL holds for it: a cycle, which the collector finds late.
            error.__traceback__ = None
        if is_handshake and self._end.when_failed is not None:
            self._end.when_failed()
        if self._end.is_server:
            what = "Failed authentication with" if is_handshake else "Closed the connection with"
            self._context.logger.info("%s %s (SSL handshake failed: %s)", what, peer, why)
        self._end_handshake()
        self._backlog.clear()
        self._say_why(error)
        if self._raw is not None:
            if self._raw.get_write_buffer_size() > _UNSENT_BYTES_HIGH:  # it does not read
                self._raw.abort()
            else:
                self._raw.close()

    # Received bytes.

    def _cut_of_turn(self, received: Buffer) -> int:
        """How many of the bytes OpenSSL is given in this turn: records of its own share, and of what all have."""
        records, turns = self._records, self._turns
        end = records.cut(received, min(RECORDS_PER_TURN, turns.left))
        if records.small:
            turns.spend(records.small)
        return end

    def _decrypt_only(self, received: memoryview) -> None:
        """Like `_decrypt`, of one record that has come whole and alone, as most do: nothing has to be looked for."""
        secured, link = self._ssl, self._link
        if secured is None:
            return
        self._incoming.write(received)
        target = link.get_buffer(-1)
        size = len(target)
        try:
            count = cast("int", secured.read(size, target))
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            count = 0
        except ssl.SSLError as error:
            self._fail(as_words(error, is_server=self._end.is_server), error)
            return
        self._records.carry(count)
        if count:
            link.buffer_updated(count)
        if not 0 < count < size:
            self._decrypt()  # it may have more, or was none of data

    def _decrypt(self) -> None:
        secured, link, incoming = self._ssl, self._link, self._incoming
        is_dry = is_over = False
        data_bytes = 0
        while secured is not None and not is_dry and self._wants_reading and self._phase is _OPEN:
            target = link.get_buffer(-1)
            size, filled = len(target), 0
            try:
                while filled < size and not is_dry:
                    # Into the buffer, of which the stubs know nothing: it returns the count then.
                    count = cast("int", secured.read(size - filled, target[filled:] if filled else target))
                    filled += count
                    is_over = not count
                    # What it gives at a time is what is left of one record: one that had room is read whole.
                    is_dry = is_over or not (incoming.pending or (filled == size and secured.pending()))
            except ssl.SSLWantReadError:
                is_dry = True
            except ssl.SSLZeroReturnError:
                is_dry = is_over = True
            except ssl.SSLError as error:
                self._fail(as_words(error, is_server=self._end.is_server), error)
                return
            if filled:
                data_bytes += filled
                link.buffer_updated(filled)
        if not self._records.carry_data(data_bytes, is_all=is_dry):
            link.fail("most of the TLS records that it sends carry no data")
        if self._outgoing.pending:
            self._send_outgoing()
            if self._raw is not None and self._raw.get_write_buffer_size() > _UNSENT_OF_PROTOCOL_MAX + TURN_BYTES:
                link.fail("it does not read what TLS has to say to it")
        if is_over:
            self.close()
        elif self._later and self._wants_reading:
            self._read_in_next_turn()

    def _read_in_next_turn(self) -> None:
        if self._phase is _OPEN and not self._read_is_due:
            self._read_is_due = True
            self._turns.wait(self)
            self._set_reading()

    def read_on(self) -> None:
        self._read_is_due = False
        if self._phase is _OPEN and self._wants_reading:
            later = self._later
            if later and not self._incoming.pending:
                end = self._cut_of_turn(later)
                self._incoming.write(later[:end])
                self._later = later[end:]
            self._decrypt()
        self._set_reading()

    def _pause_again(self) -> None:
        """As the link's: uvloop begins to read when `connection_made` is over."""
        if self._raw is not None and not self._is_reading and not self._raw.is_closing():
            self._raw.pause_reading()

    def _set_reading(self) -> None:
        raw = self._raw
        if raw is None or raw.is_closing():
            return
        if self._phase is Phase.CONNECTING:
            # Not while a thread has OpenSSL's buffers, nor before there is a place, nor for who is not let in yet.
            wanted = self._wants_reading and not self._step_runs and (self._has_place or not self._handshake_bytes)
        else:
            wanted = self._phase is _OPEN and self._wants_reading and not (self._read_is_due or self._later)
        if wanted is not self._is_reading:
            self._is_reading = wanted
            if wanted:
                raw.resume_reading()
            else:
                raw.pause_reading()

    # The link's calls, which takes this for its transport.

    def pause_reading(self) -> None:
        self._wants_reading = False
        self._set_reading()

    def resume_reading(self) -> None:
        self._wants_reading = True
        if self._phase is _OPEN:
            self._read_in_next_turn()  # there may be bytes that came before it paused
        elif self._phase is Phase.CONNECTING:
            if self._step_runs:
                return
            self._wait_for_peer()
            if self._later:
                self._go_on()
            else:
                self._set_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._raw is None else self._raw.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self._high, self._low = high, low
        if self._raw is not None and high < _UNSENT_BYTES_HIGH:
            self._raw.set_write_buffer_limits(high, low)  # which tells of it then

    def get_write_buffer_size(self) -> int:
        return self._backlog.size_bytes + (0 if self._raw is None else self._raw.get_write_buffer_size())

    def is_closing(self) -> bool:
        return self._phase in (Phase.CLOSING, Phase.CLOSED) or self._raw is None or self._raw.is_closing()

    def write(self, data: Buffer) -> None:
        raw = self._raw
        is_held_up = self._is_raw_full or self._backlog.size_bytes or self._phase is not _OPEN
        if is_held_up or raw is None or len(data) > _AT_ONCE_BYTES_MAX:
            self.writelines((data,))
        elif data and self._encrypt(data):
            # Nothing waits, so that it need not: this is most of what is written.
            raw.write(self._outgoing.read())
            if self._is_raw_full:
                self._tell_level()

    def writelines(self, buffers: Iterable[Buffer]) -> None:
        """Takes the buffers, which must not change any more; what is not encrypted at once is not copied."""
        if self._phase is not _OPEN and self._phase is not Phase.CONNECTING:
            return
        self._backlog.add(buffers)
        if not self._pump_is_due:
            self._pump()

    def close(self) -> None:
        """Closes when all has left."""
        if self._phase is _OPEN:
            self._phase = Phase.CLOSING
            self._set_raw_paused()
            self._pump()
        elif self._phase is Phase.CONNECTING:
            self.abort()

    def abort(self) -> None:
        if self._phase is not Phase.CLOSED:
            self._phase = Phase.CLOSING
            self._backlog.clear()
            if self._raw is not None:
                self._raw.abort()

    # Sent bytes.

    def _set_raw_paused(self) -> None:
        if self._raw is not None and self._is_reading and not self._raw.is_closing():
            self._is_reading = False
            self._raw.pause_reading()

    def _pump(self) -> None:
        """Encrypts what waits as far as the peer reads, and no more than a turn's share."""
        self._pump_is_due = False
        if self._ssl is None or self._step_runs or self._phase in (Phase.CONNECTING, Phase.CLOSED):
            return
        left = TURN_BYTES
        backlog = self._backlog
        while backlog.size_bytes and left > 0 and not self._is_raw_full:
            left -= backlog.give(self._encrypt, PIECE_BYTES)
            self._send_outgoing()
        if backlog.size_bytes:
            if not self._is_raw_full:
                self._pump_is_due = True
                self._context.loop.call_soon(self._pump)
        elif self._phase is Phase.CLOSING and self._error is None:
            self._say_goodbye()
        self._tell_level()

    def _encrypt(self, data: Buffer) -> int:
        """How many of the bytes were taken, all of them where they fit into one record; none if it is over with it."""
        secured = self._ssl
        if secured is None:
            return 0
        try:
            return secured.write(data)
        except ssl.SSLError as error:
            self._link.fail(f"it cannot be written to: {as_words(error, is_server=self._end.is_server)}")
            self._backlog.clear()
            return 0

    def _tell_level(self) -> None:
        if self._phase is not _OPEN and self._phase is not Phase.CLOSING:
            return
        size = self.get_write_buffer_size()
        if not self._is_full and size > self._high:
            self._is_full = True
            self._link.pause_writing()
        elif self._is_full and size <= self._low:
            self._is_full = False
            self._link.resume_writing()

    def _say_goodbye(self) -> None:
        secured, raw = self._ssl, self._raw
        if secured is None or raw is None:
            return
        with contextlib.suppress(ssl.SSLError):  # the peer's goodbye is not waited for
            secured.unwrap()
        self._send_outgoing()
        raw.close()

    def _send_outgoing(self) -> None:
        if self._outgoing.pending and self._raw is not None and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    def _say_why(self, error: BaseException | None) -> None:
        """OpenSSL's alert, unless the peer would not read it."""
        told = self._end.to_plain_http
        if told and getattr(error, "reason", None) == PLAIN_HTTP and self._raw is not None:
            self._raw.write(told)
        else:
            self._send_outgoing()
