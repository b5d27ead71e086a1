"""Write requests: the checks of each, in ZooKeeper's order, and the transaction that results.

Every write request takes the next zxid, also one that fails: then the transaction is an ERROR, which changes nothing.
A transaction is self-contained (final paths, resolved access control lists), so that replaying needs no check. Its body
is jute: CREATE `path, data, acl, flags, ttl (only with flag 5)`; DELETE `path`; SET_DATA `path, data`; SET_ACL `path,
acl`; CHECK nothing; MULTI a count and, for each, `op code, buffer`; ERROR a code; CREATE_SESSION `timeout, password`;
CLOSE_SESSION nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.coordination.embedded import access
from barnabas.coordination.embedded.stats import (
    aversion_of,
    creations_of,
    is_ephemeral,
    version_of,
)
from barnabas.coordination.embedded.tree import ROOT, SPECIAL_PATHS, ZnodeTree
from barnabas.coordination.embedded.turn_budget import PIECE_ELEMENTS, Work
from barnabas.coordination.errors import (
    BadArgumentsError,
    BadVersionError,
    ErrorCode,
    KeeperError,
    MalformedFrameError,
    MarshallingError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ReconfigDisabledError,
    UnimplementedError,
)
from barnabas.coordination.jute import INT, LONG, NULL, Reader, pack_buffer, pack_int, pack_string
from barnabas.coordination.paths import validate_path
from barnabas.coordination.protocol import (
    ANY_VERSION,
    MULTI_END,
    MULTI_HEADER,
    CreateMode,
    Id,
    OpCode,
    Permission,
)

TTL_MS_MAX = 0xFFFFFFFFFF
SHORT_MULTI_BYTES_MAX = 16 * 1024
"""A multi of so many bytes is done at once: some 400 operations at most."""
_OPERATIONS_PER_PIECE = 200
_MODES = frozenset(map(int, CreateMode))
_EPHEMERAL_MODES = frozenset(int(mode) for mode in CreateMode if mode.is_ephemeral)
_SEQUENTIAL_MODES = frozenset(int(mode) for mode in CreateMode if mode.is_sequential)
_TTL_MODES = frozenset(int(mode) for mode in CreateMode if mode.has_ttl)
_CREATE_OPERATIONS = frozenset({OpCode.CREATE, OpCode.CREATE2, OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL})
_MULTI_RESULT = {int(op_code): MULTI_HEADER.pack(op_code, False, 0) for op_code in OpCode}
# Plain integers where every request comes by: the members of an enumeration are slower to reach.
_CREATE_PLAIN = int(OpCode.CREATE)
_CREATE_CONTAINER = int(OpCode.CREATE_CONTAINER)
_CREATE_TTL = int(OpCode.CREATE_TTL)
_SET_DATA = int(OpCode.SET_DATA)
_KEPT_CONTAINER = int(CreateMode.CONTAINER)
_KEPT_TTL = int(CreateMode.PERSISTENT_WITH_TTL)
_READ = int(Permission.READ)
_WRITE = int(Permission.WRITE)
_CREATE = int(Permission.CREATE)
_DELETE = int(Permission.DELETE)
_ADMIN = int(Permission.ADMIN)


@dataclass(frozen=True, slots=True)
class Requester:
    """On whose behalf a transaction is made."""

    session_id: int
    identities: tuple[Id, ...]


class Outcome(NamedTuple):
    """What a write request came to: the reply's code and body, and the transaction to log; `op_code` is None when there
    is none.
    """

    code: int
    reply: bytes
    op_code: int | None
    body: bytes


class _NoTransactionError(Exception):
    """A multi that creates without any access control list: the one malformed write that takes no zxid in ZooKeeper."""


def read_text(reader: Reader) -> str:
    """A string as Java reads it: bytes that are not UTF-8 become U+FFFD; null is of no use to any request."""
    data = reader.buffer()
    if data is None:
        raise MalformedFrameError("a path is null")
    return data.decode(errors="replace")


class Transactions:
    """Checks write requests against the tree and applies them to it.

    The tree is changed at once; the caller must not show that to anybody before the transaction is durable.
    """

    def __init__(self, tree: ZnodeTree, *, extended_types: bool = False, schemes: frozenset[str] = frozenset()) -> None:
        """`schemes` are those of access control that logins of the server have."""
        self._tree = tree
        self._schemes = schemes
        self._extended_types = extended_types
        self._handlers: dict[int, Callable[[int, Reader, Requester, int], tuple[int, bytes, bytes]]] = {
            OpCode.CREATE: self._create,
            OpCode.CREATE2: self._create,
            OpCode.CREATE_CONTAINER: self._create,
            OpCode.CREATE_TTL: self._create,
            OpCode.DELETE: self._delete,
            OpCode.SET_DATA: self._set_data,
            OpCode.SET_ACL: self._set_acl,
            OpCode.CHECK: self._check,
            OpCode.MULTI: self._multi,
            OpCode.RECONFIG: self._reconfig,
            OpCode.DELETE_CONTAINER: self._delete_container,
        }
        # What a multi may hold.
        self._parts = {
            int(op_code): self._handlers[op_code]
            for op_code in (*_CREATE_OPERATIONS, OpCode.DELETE, OpCode.SET_DATA, OpCode.CHECK)
        }

    def perform(self, op_code: int, reader: Reader, requester: Requester, time_ms: int) -> Outcome:
        """Carries out one write request whose body begins at the reader; `op_code` must be that of a write."""
        self._tree.zxid += 1
        try:
            op_code, body, reply = self._handlers[op_code](op_code, reader, requester, time_ms)
        except KeeperError as error:
            return Outcome(error.code, b"", OpCode.ERROR, pack_int(error.code))
        except _NoTransactionError:
            self._tree.zxid -= 1
            return Outcome(ErrorCode.MARSHALLING_ERROR, b"", None, b"")
        except (MalformedFrameError, struct.error):
            code = ErrorCode.MARSHALLING_ERROR
            return Outcome(code, b"", OpCode.ERROR, pack_int(code))
        return Outcome(0, reply, op_code, body)

    def _create(self, op_code: int, reader: Reader, requester: Requester, time_ms: int) -> tuple[int, bytes, bytes]:
        path = read_text(reader)
        data = reader.buffer()
        acl, requested = self._read_acl(reader)
        flags = reader.integer()
        ttl_ms = reader.long() if op_code == _CREATE_TTL else -1
        container = op_code == _CREATE_CONTAINER
        with_ttl = op_code == _CREATE_TTL
        self._check_mode(path, flags, ttl_ms, with_ttl=with_ttl)
        cut = path.rfind("/")
        if cut < 0 or "\0" in path:
            raise BadArgumentsError(path)
        parent_path = path[:cut] or ROOT
        if acl is None:
            acl = access.resolve(path, requested, requester.identities, self._schemes)
        tree = self._tree
        parent = tree.nodes.get(parent_path)
        if parent is None:
            raise NoNodeError(parent_path)
        if parent[2] is not access.OPEN and not access.allowed(parent[2], _CREATE, requester.identities):
            raise NoAuthError(parent_path)
        if flags in _SEQUENTIAL_MODES:
            path = f"{path}{creations_of(parent[1]):010d}"
        validate_path(path)
        if path in tree.nodes:
            raise NodeExistsError(path)
        if is_ephemeral(parent[1]):
            raise NoChildrenForEphemeralsError(path)
        owner = requester.session_id if flags in _EPHEMERAL_MODES and not container else 0
        stat = tree.create(
            path,
            data,
            acl,
            tree.zxid,
            time_ms,
            owner=owner,
            container=container,
            ttl_ms=ttl_ms if with_ttl else 0,
        )
        packed_path = pack_string(path)
        kept = _KEPT_CONTAINER if container else _KEPT_TTL if with_ttl else owner != 0
        body = packed_path + pack_buffer(data) + acl + pack_int(kept) + (LONG.pack(ttl_ms) if with_ttl else b"")
        reply = packed_path if op_code == _CREATE_PLAIN else packed_path + stat
        return _CREATE_PLAIN, body, reply

    def _check_mode(self, path: str, flags: int, ttl_ms: int, *, with_ttl: bool) -> None:
        if flags not in _MODES:
            raise BadArgumentsError(path)
        if flags in _TTL_MODES:
            if not self._extended_types:
                raise UnimplementedError(path)
            if not 0 < ttl_ms <= TTL_MS_MAX:
                raise BadArgumentsError(path)
        elif with_ttl:
            raise BadArgumentsError(path)

    def _read_acl(self, reader: Reader) -> tuple[bytes | None, list[tuple[int, str | None, str | None]]]:
        """The list when it is the open one, which needs no resolving, or the entries that were asked for."""
        if reader.data.startswith(access.OPEN, reader.position):
            reader.position += len(access.OPEN)
            return access.OPEN, []
        return None, access.read_requested(reader)

    def _delete(self, _op: int, reader: Reader, requester: Requester, _time_ms: int) -> tuple[int, bytes, bytes]:
        path = read_text(reader)
        version = reader.integer()
        tree = self._tree
        cut = path.rfind("/")
        if cut < 0 or "\0" in path or path in SPECIAL_PATHS:
            raise BadArgumentsError(path)
        parent = tree.nodes.get(path[:cut] or ROOT)
        if parent is None:
            raise NoNodeError(path)
        if not access.allowed(parent[2], _DELETE, requester.identities):
            raise NoAuthError(path)
        node = tree.nodes.get(path)
        if node is None:
            raise NoNodeError(path)
        if version not in {ANY_VERSION, version_of(node[1])}:
            raise BadVersionError(path)
        if node[3] is not None:
            raise NotEmptyError(path)
        tree.delete(path, tree.zxid)
        return OpCode.DELETE, pack_string(path), b""

    def _delete_container(self, _op: int, reader: Reader, _by: Requester, _time_ms: int) -> tuple[int, bytes, bytes]:
        """Sent by the server itself, for containers and znodes with a time to live; clients may send it too, with the
        path unframed, and it deletes nothing but those.
        """
        path = reader.data[reader.position : reader.end].decode(errors="replace")
        tree = self._tree
        if path.rfind("/") < 0 or "\0" in path or path in SPECIAL_PATHS:
            raise BadArgumentsError(path)
        node = tree.nodes.get(path)
        if node is None:
            raise NoNodeError(path)
        if node[3] is not None:
            raise NotEmptyError(path)
        if path not in tree.containers and path not in tree.ttls_ms:
            raise BadVersionError(path)
        tree.delete(path, tree.zxid)
        return OpCode.DELETE, pack_string(path), b""

    def _set_data(self, _op: int, reader: Reader, requester: Requester, time_ms: int) -> tuple[int, bytes, bytes]:
        path = read_text(reader)
        data = reader.buffer()
        version = reader.integer()
        tree = self._tree
        node = tree.nodes.get(path)
        if node is None:
            validate_path(path)
            raise NoNodeError(path)
        if node[2] is not access.OPEN and not access.allowed(node[2], _WRITE, requester.identities):
            raise NoAuthError(path)
        if version not in {ANY_VERSION, version_of(node[1])}:
            raise BadVersionError(path)
        stat = tree.set_data(path, data, tree.zxid, time_ms)
        return _SET_DATA, pack_string(path) + pack_buffer(data), stat

    def _set_acl(self, _op: int, reader: Reader, requester: Requester, _time_ms: int) -> tuple[int, bytes, bytes]:
        path = read_text(reader)
        acl, requested = self._read_acl(reader)
        version = reader.integer()
        validate_path(path)
        if acl is None:
            acl = access.resolve(path, requested, requester.identities, self._schemes)
        node = self._tree.nodes.get(path)
        if node is None:
            raise NoNodeError(path)
        if not access.allowed(node[2], _ADMIN, requester.identities):
            raise NoAuthError(path)
        if version not in {ANY_VERSION, aversion_of(node[1])}:
            raise BadVersionError(path)
        stat = self._tree.set_acl(path, acl)
        return OpCode.SET_ACL, pack_string(path) + acl, stat

    def _check(self, _op: int, reader: Reader, requester: Requester, _time_ms: int) -> tuple[int, bytes, bytes]:
        path = read_text(reader)
        version = reader.integer()
        validate_path(path)
        node = self._tree.nodes.get(path)
        if node is None:
            raise NoNodeError(path)
        if not access.allowed(node[2], _READ, requester.identities):
            raise NoAuthError(path)
        if version not in {ANY_VERSION, version_of(node[1])}:
            raise BadVersionError(path)
        # Outside of a multi, ZooKeeper 3.8 fails to send its answer, and the client waits for ever; ours gets the stat.
        return OpCode.CHECK, b"", node[1]

    def _reconfig(self, _op: int, reader: Reader, _by: Requester, _time_ms: int) -> tuple[int, bytes, bytes]:
        for _ in range(3):
            reader.buffer()
        reader.long()
        raise ReconfigDisabledError

    def perform_multi(self, reader: Reader, requester: Requester, time_ms: int) -> Work[Outcome]:
        """`perform` for a long multi; nobody may look at the tree before it is done, and closing it undoes nothing."""
        tree = self._tree
        tree.zxid += 1
        try:
            op_code, body, reply = yield from self._multi_work(reader, requester, time_ms)
        except KeeperError as error:
            return Outcome(error.code, b"", OpCode.ERROR, pack_int(error.code))
        except _NoTransactionError:
            tree.zxid -= 1
            return Outcome(ErrorCode.MARSHALLING_ERROR, b"", None, b"")
        except (MalformedFrameError, struct.error):
            code = ErrorCode.MARSHALLING_ERROR
            return Outcome(code, b"", OpCode.ERROR, pack_int(code))
        return Outcome(0, reply, op_code, body)

    def _multi(self, _op: int, reader: Reader, requester: Requester, time_ms: int) -> tuple[int, bytes, bytes]:
        work = self._multi_work(reader, requester, time_ms)
        while True:
            try:
                next(work)
            except StopIteration as stop:
                result: tuple[int, bytes, bytes] = stop.value
                return result

    def _multi_work(self, reader: Reader, requester: Requester, time_ms: int) -> Work[tuple[int, bytes, bytes]]:
        operations = yield from self._read_multi(reader)
        tree = self._tree
        changes_before = len(tree.changes)
        tree.journal = []
        results: list[bytes] = []
        bodies: list[bytes] = []
        try:
            for number, (op_code, start) in enumerate(operations, 1):
                if number % _OPERATIONS_PER_PIECE == 0:
                    yield PIECE_ELEMENTS
                part = Reader(reader.data, start, reader.end)
                try:
                    logged, body, reply = self._parts[op_code](op_code, part, requester, time_ms)
                except BaseException as error:
                    for number_undone, undo in enumerate(reversed(tree.journal), 1):
                        if number_undone % _OPERATIONS_PER_PIECE == 0:
                            yield PIECE_ELEMENTS
                        undo()
                    del tree.changes[changes_before:]
                    if not isinstance(error, KeeperError):
                        raise
                    return OpCode.ERROR, pack_int(error.code), _failed(len(operations), len(results), error.code)
                results.append(_multi_result(op_code, reply))
                bodies.append(pack_int(logged) + pack_buffer(body))
        finally:
            tree.journal = None
        return OpCode.MULTI, pack_int(len(bodies)) + b"".join(bodies), b"".join(results) + MULTI_END

    def _read_multi(self, reader: Reader) -> Work[list[tuple[int, int]]]:
        """Op code and start of the body of each operation, after a check of the whole: a multi that cannot be read, or
        that mixes reads with writes, fails as a whole before anything is tried.
        """
        operations: list[tuple[int, int]] = []
        while True:
            op_code, done, _ = reader.structure(MULTI_HEADER)
            if done:
                return operations
            start = reader.position
            if op_code in _CREATE_OPERATIONS:
                op_code = _skip_create(op_code, reader)
            elif op_code in {OpCode.DELETE, OpCode.CHECK}:
                read_text(reader)
                reader.integer()
            elif op_code == OpCode.SET_DATA:
                read_text(reader)
                reader.buffer()
                reader.integer()
            else:
                raise MarshallingError
            operations.append((op_code, start))
            if len(operations) % (4 * _OPERATIONS_PER_PIECE) == 0:
                yield PIECE_ELEMENTS


def _skip_create(op_code: int, reader: Reader) -> int:
    """Reads over a create of a multi; returns its op code, which the flags decide as well as the one that was sent."""
    read_text(reader)
    reader.buffer()
    without_acl = reader.data.startswith(NULL, reader.position)
    access.read_requested(reader)
    flags = reader.integer()
    if op_code == _CREATE_TTL:
        reader.long()
        if flags not in _MODES or flags in _TTL_MODES:
            return op_code
        op_code = _CREATE_PLAIN
    elif flags not in _MODES:
        raise MarshallingError
    elif without_acl:
        raise _NoTransactionError
    elif flags in _TTL_MODES:
        raise MarshallingError
    return _CREATE_CONTAINER if flags == _KEPT_CONTAINER else op_code


def _multi_result(op_code: int, reply: bytes) -> bytes:
    if op_code in {OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL}:
        op_code = OpCode.CREATE2
    if op_code == OpCode.CHECK:
        reply = b""
    return _MULTI_RESULT[op_code] + reply


def _failed(count: int, failed: int, code: int) -> bytes:
    """The results of a multi whose operation number `failed` failed: OK for those before, which were undone, and
    RUNTIME_INCONSISTENCY for those after, which were not tried.
    """
    codes = [0] * failed + [code] + [int(ErrorCode.RUNTIME_INCONSISTENCY)] * (count - failed - 1)
    return b"".join([MULTI_HEADER.pack(OpCode.ERROR, False, each) + INT.pack(each) for each in codes]) + MULTI_END


def replay(tree: ZnodeTree, op_code: int, body: bytes, zxid: int, time_ms: int, session_id: int) -> None:
    """Applies a logged transaction to the tree; sessions are the caller's. Raises when it does not fit the tree."""
    reader = Reader(body)
    if op_code == OpCode.MULTI:
        for _ in range(reader.count(8)):
            part = reader.integer()
            replay(tree, part, reader.buffer() or b"", zxid, time_ms, session_id)
    elif op_code == OpCode.CREATE:
        path = reader.string()
        data = reader.buffer()
        start = reader.position
        for _ in range(reader.count(12)):
            reader.integer()
            reader.buffer()
            reader.buffer()
        acl = reader.data[start : reader.position]
        kept = reader.integer()
        tree.create(
            path,
            data,
            access.OPEN if acl == access.OPEN else acl,
            zxid,
            time_ms,
            owner=session_id if kept == CreateMode.EPHEMERAL else 0,
            container=kept == CreateMode.CONTAINER,
            ttl_ms=reader.long() if kept == CreateMode.PERSISTENT_WITH_TTL else 0,
        )
    elif op_code == OpCode.SET_DATA:
        tree.set_data(reader.string(), reader.buffer(), zxid, time_ms)
    elif op_code == OpCode.DELETE:
        tree.delete(reader.string(), zxid)
    elif op_code == OpCode.SET_ACL:
        tree.set_acl(reader.string(), body[reader.position :])
    elif op_code == OpCode.CLOSE_SESSION:
        tree.close_session(session_id, zxid)
    elif op_code not in {OpCode.CHECK, OpCode.ERROR, OpCode.CREATE_SESSION}:
        raise MalformedFrameError(f"a transaction has the unknown op code {op_code}")
    tree.zxid = zxid
    tree.changes.clear()
