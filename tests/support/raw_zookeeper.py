"""A raw, synchronous ZooKeeper client for comparing servers byte by byte.

It shares no code with the product: it has its own encoder and decoder of ZooKeeper's wire protocol (jute), sends what
it is told to, malformed or not, and reports replies and watch events in the order in which they arrive. Replies are
decoded to plain values (tuples, strings, `Stat`) so that transcripts of two servers can be compared with `==`.
"""

from __future__ import annotations

import enum
import json
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

RECEIVE_TIMEOUT_SECONDS = 20.0
ANY_VERSION = -1

_PING_TRANSACTION = -2
_AUTHENTICATION_TRANSACTION = -4
_SET_WATCHES_TRANSACTION = -8
_NOTIFICATION_TRANSACTION = -1


class Operation(enum.IntEnum):
    """ZooKeeper's operation codes."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    DELETE_CONTAINER = 20
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CREATE_SESSION = -10
    CLOSE_SESSION = -11


class ConnectionLost(Exception):
    """The server closed the connection (or reset it) before what was awaited arrived."""


@dataclass(frozen=True, slots=True)
class Stat:
    """A znode's stat, as it came."""

    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_bytes: int
    children: int
    pzxid: int


@dataclass(frozen=True, slots=True)
class Acl:
    """One entry of an access control list."""

    permissions: int
    scheme: str
    identity: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One notification."""

    type: int
    state: int
    path: str
    zxid: int


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply: its header and its decoded body (None when the error code is not zero)."""

    xid: int
    zxid: int
    error: int
    body: Any


WORLD_ALL = (Acl(31, "world", "anyone"),)


class Encoder:
    """Builds one request, field by field."""

    def __init__(self) -> None:
        self.output = bytearray()

    def pack(self, layout: str, *values: Any) -> Encoder:
        self.output += struct.pack(f">{layout}", *values)
        return self

    def buffer(self, value: bytes | None) -> Encoder:
        if value is None:
            return self.pack("i", -1)
        self.pack("i", len(value))
        self.output += value
        return self

    def text(self, value: str | None) -> Encoder:
        return self.buffer(None if value is None else value.encode("utf-8", "surrogatepass"))

    def acls(self, value: Sequence[Acl] | None) -> Encoder:
        if value is None:
            return self.pack("i", -1)
        self.pack("i", len(value))
        for acl in value:
            self.pack("i", acl.permissions).text(acl.scheme).text(acl.identity)
        return self

    def texts(self, values: Sequence[str] | None) -> Encoder:
        if values is None:
            return self.pack("i", -1)
        self.pack("i", len(values))
        for value in values:
            self.text(value)
        return self


class Decoder:
    """Takes one reply apart, field by field."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._position = 0

    def unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f">{layout}", self._source, self._position)
        self._position += struct.calcsize(f">{layout}")
        return values

    def number(self) -> int:
        return int(self.unpack("i")[0])

    def buffer(self) -> bytes | None:
        length = self.number()
        if length < 0:
            return None
        value = self._source[self._position : self._position + length]
        if len(value) != length:
            raise ValueError("a buffer ends beyond its frame")
        self._position += length
        return value

    def text(self) -> str | None:
        value = self.buffer()
        return None if value is None else value.decode()

    def texts(self) -> tuple[str | None, ...]:
        return tuple(self.text() for _ in range(self.number()))

    def stat(self) -> Stat:
        return Stat(*self.unpack("qqqqiiiqiiq"))

    def acls(self) -> tuple[Acl, ...]:
        return tuple(Acl(self.number(), self.text() or "", self.text() or "") for _ in range(self.number()))

    def rest(self) -> bytes:
        return self._source[self._position :]


@dataclass(frozen=True, slots=True)
class Request:
    """One request: the operation code and the encoded body."""

    operation: int
    body: bytes


# ---- requests


def create(
    path: str,
    data: bytes | None = b"",
    flags: int = 0,
    acls: Sequence[Acl] | None = WORLD_ALL,
    operation: Operation = Operation.CREATE,
    ttl_ms: int = 0,
) -> Request:
    """`flags`: 0 persistent, 1 ephemeral, 2 sequential, 3 both, 4 container, 5 and 6 with a time to live."""
    encoder = Encoder().text(path).buffer(data).acls(acls).pack("i", flags)
    if operation is Operation.CREATE_TTL:
        encoder.pack("q", ttl_ms)
    return Request(operation, bytes(encoder.output))


def delete(path: str, version: int = ANY_VERSION) -> Request:
    return Request(Operation.DELETE, bytes(Encoder().text(path).pack("i", version).output))


def set_data(path: str, data: bytes | None, version: int = ANY_VERSION) -> Request:
    return Request(Operation.SET_DATA, bytes(Encoder().text(path).buffer(data).pack("i", version).output))


def set_acl(path: str, acls: Sequence[Acl] | None, version: int = ANY_VERSION) -> Request:
    return Request(Operation.SET_ACL, bytes(Encoder().text(path).acls(acls).pack("i", version).output))


def check(path: str, version: int) -> Request:
    return Request(Operation.CHECK, bytes(Encoder().text(path).pack("i", version).output))


def read(operation: Operation, path: str, watch: bool = False) -> Request:
    """EXISTS, GET_DATA, GET_CHILDREN or GET_CHILDREN2."""
    return Request(operation, bytes(Encoder().text(path).pack("?", watch).output))


def on_path(operation: Operation, path: str) -> Request:
    """GET_ACL, SYNC, GET_EPHEMERALS or GET_ALL_CHILDREN_NUMBER."""
    return Request(operation, bytes(Encoder().text(path).output))


def watches(operation: Operation, path: str, kind: int) -> Request:
    """REMOVE_WATCHES or CHECK_WATCHES (kind 1 children, 2 data, 3 any), ADD_WATCH (0 persistent, 1 recursive)."""
    return Request(operation, bytes(Encoder().text(path).pack("i", kind).output))


def multi(requests: Sequence[Request], operation: Operation = Operation.MULTI) -> Request:
    """MULTI or MULTI_READ of `requests`, in order."""
    encoder = Encoder()
    for request in requests:
        encoder.pack("i?i", request.operation, False, -1)
        encoder.output += request.body
    return Request(operation, bytes(encoder.pack("i?i", -1, True, -1).output))


def set_watches(relative_zxid: int, *paths: Sequence[str]) -> Request:
    """Data, exist and child watches, and for SET_WATCHES2 also persistent and recursive ones."""
    encoder = Encoder().pack("q", relative_zxid)
    for group in paths:
        encoder.texts(group)
    return Request(Operation.SET_WATCHES if len(paths) == 3 else Operation.SET_WATCHES2, bytes(encoder.output))


def authentication(scheme: str, credentials: bytes) -> Request:
    return Request(Operation.AUTH, bytes(Encoder().pack("i", 0).text(scheme).buffer(credentials).output))


# ---- replies


def _multi_body(decoder: Decoder) -> tuple[Any, ...]:
    results: list[Any] = []
    while True:
        operation, done, error = decoder.unpack("i?i")
        if done:
            return tuple(results)
        if operation == -1:
            results.append((operation, error, decoder.number()))
        else:
            results.append((operation, error, _BODIES[operation](decoder)))


_BODIES: dict[int, Callable[[Decoder], Any]] = {
    Operation.CREATE: lambda d: d.text(),
    Operation.CREATE2: lambda d: (d.text(), d.stat()),
    Operation.CREATE_CONTAINER: lambda d: (d.text(), d.stat()),
    Operation.CREATE_TTL: lambda d: (d.text(), d.stat()),
    Operation.DELETE: lambda d: None,
    Operation.CHECK: lambda d: None,
    Operation.EXISTS: lambda d: d.stat(),
    Operation.GET_DATA: lambda d: (d.buffer(), d.stat()),
    Operation.SET_DATA: lambda d: d.stat(),
    Operation.GET_ACL: lambda d: (d.acls(), d.stat()),
    Operation.SET_ACL: lambda d: d.stat(),
    Operation.GET_CHILDREN: lambda d: tuple(sorted(map(str, d.texts()))),
    Operation.GET_CHILDREN2: lambda d: (tuple(sorted(map(str, d.texts()))), d.stat()),
    Operation.SYNC: lambda d: d.text(),
    Operation.MULTI: _multi_body,
    Operation.MULTI_READ: _multi_body,
    Operation.GET_EPHEMERALS: lambda d: tuple(sorted(map(str, d.texts()))),
    Operation.GET_ALL_CHILDREN_NUMBER: lambda d: d.number(),
    Operation.WHO_AM_I: lambda d: tuple(sorted((str(d.text()), str(d.text())) for _ in range(d.number()))),
}


def _decode_body(operation: int, source: bytes) -> Any:
    decoder = Decoder(source)
    decode = _BODIES.get(operation)
    body = None if decode is None else decode(decoder)
    rest = decoder.rest()
    return (body, "and these bytes", rest) if rest else body


class RawSession:
    """One session on one connection at a time. Not thread-safe.

    Every message that arrives is either the reply to the oldest outstanding request or a watch event; both are kept in
    `arrivals`, in order, until `take_arrivals`.
    """

    def __init__(self, port: int, timeout_ms: int = 30_000) -> None:
        self._port = port
        self._requested_timeout_ms = timeout_ms
        self._connection: socket.socket | None = None
        self._received = bytearray()
        self._outstanding: deque[tuple[int, int]] = deque()
        self._next_xid = 1
        self.arrivals: list[Reply | WatchEvent] = []
        self.session_id = 0
        self.password = bytes(16)
        self.negotiated_timeout_ms = 0
        self.last_zxid = 0

    # ---- the connection

    def connect(self, last_zxid_seen: int | None = None) -> bool:
        """Opens a connection and asks for a session: a new one at first, later the same. False when it has expired."""
        self.open_socket()
        self._outstanding.clear()
        seen = self.last_zxid if last_zxid_seen is None else last_zxid_seen
        request = Encoder().pack("iqiq", 0, seen, self._requested_timeout_ms, self.session_id).buffer(self.password)
        self.send_frame(bytes(request.pack("?", False).output))
        answer = Decoder(self.receive_frame())
        _version, self.negotiated_timeout_ms, session_id = answer.unpack("iiq")
        password = answer.buffer() or b""
        if session_id == 0:
            self.drop()
            return False
        self.session_id, self.password = session_id, password
        return True

    def open_socket(self) -> None:
        """A connection without the session request, for those who want to send something else."""
        self.drop()
        self._connection = socket.create_connection(("127.0.0.1", self._port), timeout=RECEIVE_TIMEOUT_SECONDS)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received.clear()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def drop(self) -> None:
        """Closes the connection without a word; the session lives on at the server until it expires."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> Reply | None:
        """Closes the session; the reply, or None when the server just closed the connection."""
        try:
            reply = self.call(Request(Operation.CLOSE_SESSION, b""))
        except ConnectionLost:
            reply = None
        self.drop()
        return reply

    # ---- requests and replies

    def send(self, *requests: Request) -> None:
        """Sends the requests in one write, without waiting for replies."""
        output = bytearray()
        for request in requests:
            xid = self._xid_for(request.operation)
            self._outstanding.append((xid, request.operation))
            output += struct.pack(">iii", len(request.body) + 8, xid, request.operation) + request.body
        self.send_bytes(bytes(output))

    def receive(self) -> Reply:
        """The next reply; watch events before it only show in `arrivals`. Raises `ConnectionLost`."""
        while True:
            frame = self.receive_frame()
            xid, zxid, error = struct.unpack_from(">iqi", frame)
            if xid == _NOTIFICATION_TRANSACTION:
                kind, state, path = (decoder := Decoder(frame[16:])).number(), decoder.number(), decoder.text()
                self.arrivals.append(WatchEvent(kind, state, path or "", zxid))
                continue
            expected_xid, operation = self._outstanding.popleft() if self._outstanding else (None, Operation.PING)
            if xid != expected_xid:
                raise ValueError(f"a reply with xid {xid} where {expected_xid} was next (operation {operation})")
            if zxid > 0:
                self.last_zxid = max(self.last_zxid, zxid)
            reply = Reply(xid, zxid, error, None if error else _decode_body(operation, frame[16:]))
            self.arrivals.append(reply)
            return reply

    def call(self, request: Request) -> Reply:
        """One request and its reply."""
        self.send(request)
        return self.receive()

    def ping(self) -> None:
        """A round trip: every watch event that the server had for this session before it has arrived afterwards."""
        self.call(Request(Operation.PING, b""))
        self.arrivals.pop()

    def take_arrivals(self) -> tuple[Reply | WatchEvent, ...]:
        """The replies and events that have arrived and were not taken yet, in order."""
        arrivals, self.arrivals = tuple(self.arrivals), []
        return arrivals

    # ---- bytes

    def send_frame(self, body: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(body)) + body)

    def send_bytes(self, source: bytes) -> None:
        if self._connection is None:
            raise ConnectionLost("not connected")
        try:
            self._connection.sendall(source)
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def receive_frame(self) -> bytes:
        """The next frame without its length. Raises `ConnectionLost` at the end of the connection."""
        while len(self._received) < 4 or len(self._received) < 4 + (size := self._frame_bytes()):
            self._receive_more()
        frame = bytes(self._received[4 : 4 + size])
        del self._received[: 4 + size]
        return frame

    def receive_until_closed(self) -> bytes:
        """All that still comes until the server closes the connection."""
        try:
            while True:
                self._receive_more()
        except ConnectionLost:
            return bytes(self._received)

    def _frame_bytes(self) -> int:
        return int(struct.unpack_from(">i", self._received)[0])

    def _receive_more(self) -> None:
        if self._connection is None:
            raise ConnectionLost("not connected")
        try:
            chunk = self._connection.recv(262_144)
        except ConnectionError as error:
            raise ConnectionLost(str(error)) from error
        if not chunk:
            raise ConnectionLost("the server closed the connection")
        self._received += chunk

    def _xid_for(self, operation: int) -> int:
        special = {
            Operation.PING: _PING_TRANSACTION,
            Operation.AUTH: _AUTHENTICATION_TRANSACTION,
            Operation.SET_WATCHES: _SET_WATCHES_TRANSACTION,
            Operation.SET_WATCHES2: _SET_WATCHES_TRANSACTION,
        }
        if operation in special:
            return special[Operation(operation)]
        self._next_xid += 1
        return self._next_xid - 1


def read_json(address: str, path: str) -> Any:
    """What a znode holds as JSON, in a session of its own at the server on this machine; None where there is none."""
    session = RawSession(int(address.rpartition(":")[2]))
    session.connect()
    try:
        reply = session.call(read(Operation.GET_DATA, path))
        return None if reply.error else json.loads(reply.body[0])
    finally:
        session.close()
