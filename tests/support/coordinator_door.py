"""A door between brokers and their coordinator that stops one of them at a write that a test names.

Brokers connect to the door's port. It hands everything through, until a write is what was asked for: then the broker
that sent it hears nothing any more, and nothing more of it is handed on. So the test can kill its process just there.
Or the write is only late: it waits in the door, with all that its broker asks for behind it, while its session lives.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.support.raw_zookeeper import Decoder, Operation

_WRITES = frozenset({Operation.CREATE, Operation.CREATE2, Operation.SET_DATA, Operation.DELETE})
_HEADER = struct.Struct(">i")
_PING_XID = -2


@dataclass(frozen=True, slots=True)
class Write:
    """A write in a request, by itself or in a multi; `data` is empty for a deletion."""

    operation: int
    path: str
    data: bytes = b""


@dataclass(slots=True)
class Stop:
    """Where a broker is to be stopped: before its write reaches the coordinator, or when it was done and the answer is
    on its way.
    """

    matches: Callable[[Write], bool]
    is_behind: bool
    reached: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class Delay(Stop):
    """Where a write is late; `release` sends it on, and `answered` is set with its answer."""

    release: Callable[[], None] = lambda: None
    answered: threading.Event = field(default_factory=threading.Event)


class CoordinatorDoor:
    """One port before the coordinator's. Every connection has two threads, which end with it."""

    def __init__(self, coordinator_port: int) -> None:
        self._coordinator_port = coordinator_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._stop: Stop | None = None
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, name="door", daemon=True).start()

    def stop_at(self, matches: Callable[[Write], bool], *, is_behind: bool) -> Stop:
        """Stops the first broker that sends a write like this; `reached` is set then. There is one stop at a time."""
        with self._lock:
            self._stop = Stop(matches, is_behind)
            return self._stop

    def delay(self, matches: Callable[[Write], bool]) -> Delay:
        """Has the first write like this wait for `release`; like a stop it is the only one."""
        delay = Delay(matches, is_behind=False)
        with self._lock:
            self._stop = delay
        return delay

    def close(self) -> None:
        with self._lock:
            sockets = [self._listener, *self._sockets]
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                broker, _ = self._listener.accept()
            except OSError:
                return
            try:
                coordinator = socket.create_connection(("127.0.0.1", self._coordinator_port), 10.0)
            except OSError:
                broker.close()
                continue
            coordinator.settimeout(None)
            with self._lock:
                self._sockets += [broker, coordinator]
            _Connection(self, broker, coordinator).start()

    def take(self, writes: list[Write]) -> Stop | None:
        """The stop, if one of the writes is what it waits for; nobody else is stopped then."""
        with self._lock:
            stop = self._stop
            if stop is None or not any(map(stop.matches, writes)):
                return None
            self._stop = None
            return stop


class _Connection:
    def __init__(self, door: CoordinatorDoor, broker: socket.socket, coordinator: socket.socket) -> None:
        self._door = door
        self._broker = broker
        self._coordinator = coordinator
        self._lock = threading.Lock()
        self._last_answer: tuple[int, Stop] | None = None
        """The request whose answer is not handed on, nor anything behind it."""
        self._late: list[bytes] | None = None
        """What waits for `Delay.release`; None while nothing does."""
        self._delayed: tuple[int, Delay] | None = None

    def start(self) -> None:
        for target in (self._to_coordinator, self._to_broker):
            threading.Thread(target=target, name="door", daemon=True).start()

    def _to_coordinator(self) -> None:
        is_first, is_stopped = True, False
        for frame in _frames(self._broker):
            # The first frame of a connection asks for a session.
            stop = None if is_first or is_stopped else self._door.take(_writes_of(frame))
            is_first = False
            if isinstance(stop, Delay):
                self._delay(frame, stop)
            elif stop is not None:
                is_stopped = True
                if stop.is_behind:
                    with self._lock:
                        self._last_answer = _HEADER.unpack_from(frame)[0], stop
                    _send(self._coordinator, frame)
                else:
                    stop.reached.set()
            elif not is_stopped and not self._is_late(frame):
                _send(self._coordinator, frame)
        self._end()

    def _delay(self, frame: bytes, delay: Delay) -> None:
        with self._lock:
            self._late = [frame]
            self._delayed = _HEADER.unpack_from(frame)[0], delay
        delay.release = self._release
        delay.reached.set()

    def _is_late(self, frame: bytes) -> bool:
        with self._lock:
            if self._late is None or _HEADER.unpack_from(frame)[0] == _PING_XID:
                return False
            self._late.append(frame)
            return True

    def _release(self) -> None:
        with self._lock:
            for frame in self._late or ():
                _send(self._coordinator, frame)
            self._late = None

    def _to_broker(self) -> None:
        is_first = True
        for frame in _frames(self._coordinator):
            with self._lock:
                last = self._last_answer
            if last is not None and not is_first and _HEADER.unpack_from(frame)[0] == last[0]:
                last[1].reached.set()
                # The broker is to be killed, and hears nothing any more until then.
                for _ in _frames(self._coordinator):
                    pass
                break
            delayed = self._delayed
            if delayed is not None and not is_first and _HEADER.unpack_from(frame)[0] == delayed[0]:
                delayed[1].answered.set()
            is_first = False
            _send(self._broker, frame)
        self._end()

    def _end(self) -> None:
        for each in (self._broker, self._coordinator):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _send(to: socket.socket, frame: bytes) -> None:
    with contextlib.suppress(OSError):
        to.sendall(_HEADER.pack(len(frame)) + frame)


def _frames(source: socket.socket) -> Iterator[bytes]:
    """Until the connection ends."""
    with contextlib.suppress(OSError), source.makefile("rb") as stream:
        while len(header := stream.read(_HEADER.size)) == _HEADER.size:
            (length,) = _HEADER.unpack(header)
            frame = stream.read(length)
            if len(frame) < length:
                return
            yield frame


def _writes_of(frame: bytes) -> list[Write]:
    decoder = Decoder(frame)
    _, operation = decoder.unpack("ii")
    if operation in _WRITES:
        return [_write_of(operation, decoder)]
    if operation != Operation.MULTI:
        return []
    writes: list[Write] = []
    while True:
        part, is_over, _ = decoder.unpack("i?i")
        if is_over:
            return writes
        if part in _WRITES:
            writes.append(_write_of(part, decoder))
        elif part == Operation.CHECK:
            decoder.text()
            decoder.number()
        else:
            raise ValueError(f"no broker is known to send operation {part} in a multi")


def _write_of(operation: int, decoder: Decoder) -> Write:
    path = decoder.text() or ""
    if operation == Operation.DELETE:
        decoder.number()
        return Write(operation, path)
    data = decoder.buffer() or b""
    if operation != Operation.SET_DATA:
        decoder.acls()
    decoder.number()
    return Write(operation, path, data)
