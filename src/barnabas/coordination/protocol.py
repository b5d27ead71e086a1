"""ZooKeeper's wire protocol, sans I/O: what client and server must agree on.

Every message is a frame: a 32-bit length, then that many bytes. The first frame of a connection is a
`ConnectRequest`, answered by a `ConnectResponse`; after that a client's frame is a `REQUEST_HEADER` and a body, a
server's a `REPLY_HEADER` and, when the error is 0, a body. The layout of bodies is that of `zookeeper.jute` in
ZooKeeper 3.8; primitives are in `jute`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from barnabas.coordination.errors import MalformedFrameError
from barnabas.coordination.jute import INT, Reader, pack_boolean, pack_buffer, pack_int, pack_string

LENGTH = INT
# Servers refuse longer requests unless their `jute.maxbuffer` is raised; the value is ZooKeeper's default for it.
REQUEST_BYTES_MAX = 0xFFFFF
PASSWORD_BYTES = 16
ANY_VERSION = -1


class OpCode(enum.IntEnum):
    """The operations of ZooKeeper 3.8."""

    NOTIFICATION = 0
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
    ERROR = -1


# The xids of requests that are not answered in the order of the others. A client's own xids are positive.
XID_NOTIFICATION = -1
XID_PING = -2
XID_AUTH = -4
XID_SET_WATCHES = -8
XID_SASL = -9
"""Of our own: servers take any."""


class Permission(enum.IntFlag):
    """What an entry of an access control list allows."""

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31


class CreateMode(enum.IntEnum):
    """The flags of a create request."""

    PERSISTENT = 0
    EPHEMERAL = 1
    PERSISTENT_SEQUENTIAL = 2
    EPHEMERAL_SEQUENTIAL = 3
    CONTAINER = 4
    PERSISTENT_WITH_TTL = 5
    PERSISTENT_SEQUENTIAL_WITH_TTL = 6

    @property
    def is_ephemeral(self) -> bool:
        return self in {CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL}

    @property
    def is_sequential(self) -> bool:
        return self in {
            CreateMode.PERSISTENT_SEQUENTIAL,
            CreateMode.EPHEMERAL_SEQUENTIAL,
            CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL,
        }

    @property
    def has_ttl(self) -> bool:
        return self in {CreateMode.PERSISTENT_WITH_TTL, CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL}


class EventType(enum.IntEnum):
    """What happened to a watched znode."""

    NONE = -1
    NODE_CREATED = 1
    NODE_DELETED = 2
    NODE_DATA_CHANGED = 3
    NODE_CHILDREN_CHANGED = 4
    DATA_WATCH_REMOVED = 5
    CHILD_WATCH_REMOVED = 6
    PERSISTENT_WATCH_REMOVED = 7


class KeeperState(enum.IntEnum):
    """The state of the connection that a watch event carries."""

    UNKNOWN = -1
    DISCONNECTED = 0
    NO_SYNC_CONNECTED = 1
    SYNC_CONNECTED = 3
    AUTH_FAILED = 4
    CONNECTED_READ_ONLY = 5
    SASL_AUTHENTICATED = 6
    CLOSED = 7
    EXPIRED = -112


class WatcherType(enum.IntEnum):
    """Which watches CHECK_WATCHES and REMOVE_WATCHES mean."""

    CHILDREN = 1
    DATA = 2
    ANY = 3


class AddWatchMode(enum.IntEnum):
    """The lasting watches of ADD_WATCH."""

    PERSISTENT = 0
    PERSISTENT_RECURSIVE = 1


@dataclass(frozen=True, slots=True)
class Id:
    """Who: a scheme (`world`, `auth`, `digest`, `ip`, `x509`, `sasl`) and a name in it."""

    scheme: str
    id: str


@dataclass(frozen=True, slots=True)
class Acl:
    """One entry of an access control list; `permissions` are bits of `Permission`, kept as they came."""

    permissions: int
    id: Id


ANYONE = Id("world", "anyone")
# "auth" stands for every identity that the session has; the server puts those in its place.
AUTHENTICATED = Id("auth", "")
OPEN_ACL = (Acl(int(Permission.ALL), ANYONE),)
CREATOR_ALL_ACL = (Acl(int(Permission.ALL), AUTHENTICATED),)
READ_ACL = (Acl(int(Permission.READ), ANYONE),)


def pack_acls(acls: Iterable[Acl]) -> bytes:
    """A vector of ACL entries."""
    entries = [pack_int(acl.permissions) + pack_string(acl.id.scheme) + pack_string(acl.id.id) for acl in acls]
    return pack_int(len(entries)) + b"".join(entries)


def read_acls(reader: Reader) -> tuple[Acl, ...]:
    """A vector of ACL entries; null reads as none."""
    return tuple([Acl(reader.integer(), Id(reader.string(), reader.string())) for _ in range(reader.count(12))])


class Stat(NamedTuple):
    """What ZooKeeper tells about a znode. A tuple, because 100,000 of them are made while a controller loads its
    context.
    """

    czxid: int  # of its creation
    mzxid: int  # of the last change of its data
    ctime_ms: int
    mtime_ms: int
    version: int  # changes of the data
    cversion: int  # changes of the children
    aversion: int  # changes of the ACL
    ephemeral_owner: int  # session id, 0 for a znode that outlives its session
    data_length: int
    num_children: int
    pzxid: int  # of the last change of the children

    def pack(self) -> bytes:
        return STAT.pack(*self)


STAT = struct.Struct("!qqqqiiiqiiq")


def read_stat(reader: Reader) -> Stat:
    return Stat._make(reader.structure(STAT))


REQUEST_HEADER = struct.Struct("!ii")  # xid, op code
FRAMED_REQUEST_HEADER = struct.Struct("!iii")  # frame length, xid, op code
REPLY_HEADER = struct.Struct("!iqi")  # xid, zxid, error code
FRAMED_REPLY_HEADER = struct.Struct("!iiqi")  # frame length, xid, zxid, error code


def read_request_header(reader: Reader) -> tuple[int, int]:
    """Xid and op code; the op code may be one that `OpCode` does not have."""
    xid, op_code = reader.structure(REQUEST_HEADER)
    return xid, op_code


def read_reply_header(reader: Reader) -> tuple[int, int, int]:
    """Xid, zxid and error code."""
    xid, zxid, code = reader.structure(REPLY_HEADER)
    return xid, zxid, code


# In front of every operation and every result of a multi: op code, done, error code. The one that is done ends the
# list.
MULTI_HEADER = struct.Struct("!i?i")
MULTI_END = MULTI_HEADER.pack(-1, True, -1)


def read_multi_header(reader: Reader) -> tuple[int, bool, int]:
    """Op code, whether the list ends here, and error code."""
    op_code, done, code = reader.structure(MULTI_HEADER)
    return op_code, bool(done), code


_CONNECT_REQUEST = struct.Struct("!iqiq")
_CONNECT_RESPONSE = struct.Struct("!iiq")


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """The first frame of a client. `session_id` is 0 for a new session; `read_only` is None when the client is older
    than 3.4 and did not say.
    """

    last_zxid_seen: int
    timeout_ms: int
    session_id: int
    password: bytes = field(repr=False)
    read_only: bool | None = False
    protocol_version: int = 0

    def pack(self) -> bytes:
        """The frame without its length."""
        head = _CONNECT_REQUEST.pack(self.protocol_version, self.last_zxid_seen, self.timeout_ms, self.session_id)
        tail = b"" if self.read_only is None else pack_boolean(self.read_only)
        return head + pack_buffer(self.password) + tail

    @classmethod
    def read(cls, reader: Reader) -> ConnectRequest:
        protocol_version, last_zxid_seen, timeout_ms, session_id = reader.structure(_CONNECT_REQUEST)
        password = reader.buffer() or b""
        read_only = reader.boolean() if reader.remaining else None
        return cls(last_zxid_seen, timeout_ms, session_id, password, read_only, protocol_version)


@dataclass(frozen=True, slots=True)
class ConnectResponse:
    """The first frame of a server. A `timeout_ms` of 0 says that the session has expired; `read_only` is None when
    the byte is left out, for clients older than 3.4.
    """

    timeout_ms: int
    session_id: int
    password: bytes = field(repr=False)
    read_only: bool | None = False
    protocol_version: int = 0

    def pack(self) -> bytes:
        """The frame without its length."""
        head = _CONNECT_RESPONSE.pack(self.protocol_version, self.timeout_ms, self.session_id)
        tail = b"" if self.read_only is None else pack_boolean(self.read_only)
        return head + pack_buffer(self.password) + tail

    @classmethod
    def read(cls, reader: Reader) -> ConnectResponse:
        protocol_version, timeout_ms, session_id = reader.structure(_CONNECT_RESPONSE)
        password = reader.buffer() or b""
        read_only = reader.boolean() if reader.remaining else None
        return cls(timeout_ms, session_id, password, read_only, protocol_version)


@dataclass(frozen=True, slots=True)
class WatcherEvent:
    """The body of a notification."""

    type: EventType
    state: KeeperState
    path: str

    def pack(self) -> bytes:
        return pack_int(self.type) + pack_int(self.state) + pack_string(self.path)

    @classmethod
    def read(cls, reader: Reader) -> WatcherEvent:
        type_number, state_number = reader.integer(), reader.integer()
        try:
            return cls(EventType(type_number), KeeperState(state_number), reader.string())
        except ValueError as error:
            raise MalformedFrameError(f"a watch event has an unknown type or state: {error}") from None


@dataclass(frozen=True, slots=True)
class AuthPacket:
    """The body of an AUTH request: credentials of a scheme, `user:password` for digest."""

    scheme: str
    auth: bytes
    type: int = 0

    def pack(self) -> bytes:
        return pack_int(self.type) + pack_string(self.scheme) + pack_buffer(self.auth)

    @classmethod
    def read(cls, reader: Reader) -> AuthPacket:
        number, scheme, auth = reader.integer(), reader.string(), reader.buffer()
        return cls(scheme, auth or b"", number)


def frame(body: bytes) -> bytes:
    """`body` with its length in front."""
    return LENGTH.pack(len(body)) + body
