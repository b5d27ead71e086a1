"""Operations on znodes as values: what a client sends, and how it reads the answer.

An operation is frozen and can be made, kept and compared anywhere (a controller's effects are such values);
`Client.perform` and `Client.submit` carry them out. `Operation[R]` answers with an `R`. Paths are those that the
user of a client sees, below its chroot.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from barnabas.coordination.errors import (
    ErrorCode,
    KeeperError,
    MalformedFrameError,
    MultiFailedError,
    RuntimeInconsistencyError,
    error_for,
)
from barnabas.coordination.jute import FALSE, INT, LONG, NAMES_PER_STEP, TRUE, Reader, pack_buffer, pack_string
from barnabas.coordination.paths import validate_path, validate_paths
from barnabas.coordination.protocol import (
    ANY_VERSION,
    MULTI_END,
    MULTI_HEADER,
    OPEN_ACL,
    STAT,
    Acl,
    CreateMode,
    OpCode,
    Stat,
    WatcherEvent,
    pack_acls,
    read_acls,
    read_multi_header,
    read_stat,
)
from barnabas.kernel.steps import Steps, at_once

Answer = TypeVar("Answer")
# Called once, with what happened to the znode, or with an event of type NONE and the state that ended the session.
Watcher = Callable[[WatcherEvent], None]


class ZnodeData(NamedTuple):
    """The data of a znode; None is ZooKeeper's null, which a znode made without data has."""

    data: bytes | None
    stat: Stat


class ZnodeChildren(NamedTuple):
    """The names of a znode's children, in no order, and its stat."""

    names: list[str]
    stat: Stat


class WrittenData(NamedTuple):
    """The data of a znode, and of its stat what tells of their last write."""

    data: bytes | None
    version: int
    mzxid: int


class ZnodeAcl(NamedTuple):
    """The access control list of a znode and its stat, whose `aversion` a `SetAcl` is compared with."""

    acl: tuple[Acl, ...]
    stat: Stat


class Created(NamedTuple):
    """The path of a new znode, with its number when it is a sequential one; the stat when it was asked for."""

    path: str
    stat: Stat | None


class Operation(Generic[Answer]):
    """One request of ZooKeeper's."""

    __slots__ = ()
    path: str

    @property
    def op_code(self) -> int:
        """One of `OpCode`."""
        raise NotImplementedError

    @property
    def weight(self) -> int:
        """How many operations it counts for when the client bounds those in flight."""
        return 1

    def body(self, chroot: str) -> bytes:
        """The request's body. Raises `BadArgumentsError` for a path or a value that ZooKeeper would not take."""
        raise NotImplementedError

    def read(self, reader: Reader, chroot: str, /) -> Answer:
        """The answer, from the reply's body. Raises `MalformedFrameError`."""
        raise NotImplementedError

    def read_in_steps(self, _reader: Reader, _chroot: str, /) -> Steps[Answer] | None:
        """`read` of a long body; None where that takes no longer than another's."""
        return None


def below(chroot: str, path: str) -> bytes:
    """The path as the server sees it, packed."""
    validate_path(path)
    if chroot:
        path = chroot if path == "/" else chroot + path
    return pack_string(path)


def without_chroot(chroot: str, path: str) -> str:
    """The path as the user sees it; one outside the chroot stays as it is."""
    if not chroot or not path.startswith(chroot):
        return path
    rest = path[len(chroot) :]
    if not rest:
        return "/"
    return rest if rest[0] == "/" else path


@dataclass(frozen=True, slots=True)
class Create(Operation[Created]):
    """Makes a znode. `with_stat` asks for its stat too (create2, ZooKeeper 3.5); `ttl_ms` is for the modes that
    have one.
    """

    path: str
    data: bytes | None = b""
    acl: tuple[Acl, ...] = OPEN_ACL
    mode: CreateMode = CreateMode.PERSISTENT
    with_stat: bool = False
    ttl_ms: int = 0

    @property
    def op_code(self) -> int:
        if self.mode.has_ttl:
            return OpCode.CREATE_TTL
        if self.mode is CreateMode.CONTAINER:
            return OpCode.CREATE_CONTAINER
        return OpCode.CREATE2 if self.with_stat else OpCode.CREATE

    def body(self, chroot: str) -> bytes:
        validate_path(self.path, sequential=self.mode.is_sequential)
        acl = _OPEN_ACL_BYTES if self.acl is OPEN_ACL else pack_acls(self.acl)
        path = pack_string(chroot + self.path)
        body = path + pack_buffer(self.data) + acl + INT.pack(self.mode)
        return body + LONG.pack(self.ttl_ms) if self.mode.has_ttl else body

    def read(self, reader: Reader, chroot: str, /) -> Created:
        path = without_chroot(chroot, reader.string())
        return Created(path, None if self.op_code == OpCode.CREATE else read_stat(reader))


_OPEN_ACL_BYTES = pack_acls(OPEN_ACL)


@dataclass(frozen=True, slots=True)
class Delete(Operation[None]):
    """Deletes a znode that has no children, if its data has this version."""

    op_code = OpCode.DELETE
    path: str
    version: int = ANY_VERSION

    def body(self, chroot: str) -> bytes:
        return below(chroot, self.path) + INT.pack(self.version)

    def read(self, _reader: Reader, _chroot: str, /) -> None:
        return None


@dataclass(frozen=True, slots=True)
class SetData(Operation[Stat]):
    """Replaces the data of a znode, if it has this version."""

    op_code = OpCode.SET_DATA
    path: str
    data: bytes | None
    version: int = ANY_VERSION

    def body(self, chroot: str) -> bytes:
        return below(chroot, self.path) + pack_buffer(self.data) + INT.pack(self.version)

    def read(self, reader: Reader, _chroot: str, /) -> Stat:
        return read_stat(reader)


@dataclass(frozen=True, slots=True)
class Check(Operation[None]):
    """Fails a multi unless the data of the znode has this version. Only for multis."""

    op_code = OpCode.CHECK
    path: str
    version: int

    def body(self, chroot: str) -> bytes:
        return below(chroot, self.path) + INT.pack(self.version)

    def read(self, _reader: Reader, _chroot: str, /) -> None:
        return None


@dataclass(frozen=True, slots=True)
class WatchableRead(Operation[Answer]):
    """A read that can leave a watcher at the znode, which is called once."""

    path: str
    watcher: Watcher | None = None

    def body(self, chroot: str) -> bytes:
        return below(chroot, self.path) + (FALSE if self.watcher is None else TRUE)


@dataclass(frozen=True, slots=True)
class GetData(WatchableRead[ZnodeData]):
    """Reads a znode. The watcher hears of the next change of the data, or of the deletion."""

    op_code = OpCode.GET_DATA

    def read(self, reader: Reader, _chroot: str, /) -> ZnodeData:
        return ZnodeData(reader.buffer(), read_stat(reader))


@dataclass(frozen=True, slots=True)
class Exists(WatchableRead[Stat | None]):
    """The stat of a znode, None where there is none. The watcher hears of creation, deletion or the next change of
    data.
    """

    op_code = OpCode.EXISTS

    def read(self, reader: Reader, _chroot: str, /) -> Stat | None:
        return read_stat(reader)


@dataclass(frozen=True, slots=True)
class GetChildren(WatchableRead[ZnodeChildren]):
    """The children of a znode. The watcher hears of the next child made or deleted, or of the deletion of the znode."""

    op_code = OpCode.GET_CHILDREN2

    def read(self, reader: Reader, _chroot: str, /) -> ZnodeChildren:
        return ZnodeChildren(reader.strings(), read_stat(reader))

    def read_in_steps(self, reader: Reader, _chroot: str, /) -> Steps[ZnodeChildren]:
        names = yield from reader.strings_in_steps()
        return ZnodeChildren(names, read_stat(reader))


@dataclass(frozen=True, slots=True)
class GetChildrenNames(WatchableRead[list[str]]):
    """The names of the children alone; unlike `GetChildren` it can be part of a `MultiRead`."""

    op_code = OpCode.GET_CHILDREN

    def read(self, reader: Reader, _chroot: str, /) -> list[str]:
        return reader.strings()

    def read_in_steps(self, reader: Reader, _chroot: str, /) -> Steps[list[str]]:
        return reader.strings_in_steps()


@dataclass(frozen=True, slots=True)
class GetAcl(Operation[ZnodeAcl]):
    """The access control list of a znode."""

    op_code = OpCode.GET_ACL
    path: str

    def body(self, chroot: str) -> bytes:
        return below(chroot, self.path)

    def read(self, reader: Reader, _chroot: str, /) -> ZnodeAcl:
        return ZnodeAcl(read_acls(reader), read_stat(reader))


@dataclass(frozen=True, slots=True)
class SetAcl(Operation[Stat]):
    """Replaces the access control list of a znode, if that has this version (`Stat.aversion`)."""

    op_code = OpCode.SET_ACL
    path: str
    acl: tuple[Acl, ...]
    version: int = ANY_VERSION

    def body(self, chroot: str) -> bytes:
        return below(chroot, self.path) + pack_acls(self.acl) + INT.pack(self.version)

    def read(self, reader: Reader, _chroot: str, /) -> Stat:
        return read_stat(reader)


@dataclass(frozen=True, slots=True)
class Sync(Operation[str]):
    """Lets the server catch up with the leader, so that later reads of this session see what was committed before."""

    op_code = OpCode.SYNC
    path: str

    def body(self, chroot: str) -> bytes:
        return below(chroot, self.path)

    def read(self, reader: Reader, chroot: str, /) -> str:
        return without_chroot(chroot, reader.string())


@dataclass(frozen=True, slots=True)
class GetEphemerals(Operation[list[str]]):
    """The paths of this session's ephemeral znodes that start with `path` (ZooKeeper 3.6)."""

    op_code = OpCode.GET_EPHEMERALS
    path: str = "/"

    def body(self, chroot: str) -> bytes:
        return below(chroot, self.path)

    def read(self, reader: Reader, chroot: str, /) -> list[str]:
        return [without_chroot(chroot, path) for path in reader.strings()]


@dataclass(frozen=True, slots=True)
class CountDescendants(Operation[int]):
    """The number of znodes below a znode, at any depth (getAllChildrenNumber, ZooKeeper 3.6)."""

    op_code = OpCode.GET_ALL_CHILDREN_NUMBER
    path: str

    def body(self, chroot: str) -> bytes:
        return below(chroot, self.path)

    def read(self, reader: Reader, _chroot: str, /) -> int:
        return reader.integer()


@dataclass(frozen=True, slots=True)
class Multi(Operation[list[Any]]):
    """Creates, deletions, replacements and checks that happen together or not at all.

    Answers with their answers in order. Failed, it raises `MultiFailedError`, which says which operation was at fault.
    """

    op_code = OpCode.MULTI
    operations: tuple[Create | Delete | SetData | Check, ...]

    @property
    def path(self) -> str:  # type: ignore[override]
        return self.operations[0].path if self.operations else "/"

    @property
    def weight(self) -> int:
        return len(self.operations)

    def body(self, chroot: str) -> bytes:
        return _pack_multi(self.operations, chroot)

    def read(self, reader: Reader, chroot: str, /) -> list[Any]:
        outcomes = _read_results(self.operations, reader, chroot)
        failed = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, KeeperError)]
        if not failed:
            return outcomes
        # All others were rolled back and say so.
        index = next(
            (index for index in failed if not isinstance(outcomes[index], RuntimeInconsistencyError)), failed[0]
        )
        raise MultiFailedError(index, outcomes[index], tuple(outcomes))


@dataclass(frozen=True, slots=True)
class MultiRead(Operation[list[Answer]]):
    """Reads many znodes in one request (multiRead, ZooKeeper 3.6); answers with answers or errors, in the order of
    `paths`.
    """

    paths: tuple[str, ...]

    op_code = OpCode.MULTI_READ

    @property
    def path(self) -> str:  # type: ignore[override]
        return self.paths[0] if self.paths else "/"

    @property
    def weight(self) -> int:
        return len(self.paths)

    def singly(self) -> list[Operation[Answer]]:
        """The same as one operation for each path, for servers that do not have multiRead."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class MultiGetData(MultiRead[ZnodeData]):
    """The data of many znodes."""

    def body(self, chroot: str) -> bytes:
        return _pack_reads(OpCode.GET_DATA, self.paths, chroot)

    def singly(self) -> list[Operation[ZnodeData]]:
        return [GetData(path) for path in self.paths]

    def read(self, reader: Reader, _chroot: str, /) -> list[Any]:
        outcomes: list[Any] = []
        data, position, end = reader.data, reader.position, reader.end
        unpack_head, head_bytes = _RESULT_HEAD.unpack_from, _RESULT_HEAD.size
        unpack_stat, stat_bytes = STAT.unpack_from, STAT.size
        new, append, get_data = tuple.__new__, outcomes.append, int(OpCode.GET_DATA)
        for path in self.paths:
            if position + head_bytes > end:
                raise MalformedFrameError("a multi has fewer results than operations")
            op_code, done, _, number = unpack_head(data, position)
            position += head_bytes
            if op_code == get_data and not done:
                after = position + number if number > 0 else position
                if number < -1 or after + stat_bytes > end:
                    raise MalformedFrameError(f"data of {number} bytes does not fit into the {end - position} left")
                found = None if number < 0 else data[position:after]
                append(new(ZnodeData, (found, new(Stat, unpack_stat(data, after)))))
                position = after + stat_bytes
            elif op_code == OpCode.ERROR and not done:
                append(error_for(number, path))
            else:
                raise MalformedFrameError(f"a multi answers a read with {op_code}")
        reader.position = position
        _read_end(reader)
        return outcomes


@dataclass(frozen=True, slots=True)
class _GetWritten(Operation[WrittenData]):
    op_code = OpCode.GET_DATA
    path: str

    def body(self, chroot: str) -> bytes:
        return below(chroot, self.path) + FALSE

    def read(self, reader: Reader, _chroot: str, /) -> WrittenData:
        data, stat = reader.buffer(), read_stat(reader)
        return WrittenData(data, stat.version, stat.mzxid)


@dataclass(frozen=True, slots=True)
class MultiGetWritten(MultiRead[WrittenData]):
    """The data of many znodes, and what tells of their last write. Loading a controller's context is this, so both
    directions are loops without calls, and no more of a stat is made than that.
    """

    def body(self, chroot: str) -> bytes:
        return _pack_reads(OpCode.GET_DATA, self.paths, chroot)

    def singly(self) -> list[Operation[WrittenData]]:
        return [_GetWritten(path) for path in self.paths]

    def read(self, reader: Reader, _chroot: str, /) -> list[Any]:
        outcomes: list[Any] = []
        data, head_at, end = reader.data, reader.position, reader.end
        unpack_head, head_bytes, stat_bytes = _RESULT_HEAD.unpack_from, _RESULT_HEAD.size, STAT.size
        unpack_write, unpack_next = _LAST_WRITE.unpack_from, _LAST_WRITE_AND_NEXT_HEAD.unpack_from
        new, append, get_data = tuple.__new__, outcomes.append, int(OpCode.GET_DATA)
        op_code, done, _, number = unpack_head(data, head_at) if head_at + head_bytes <= end else _NO_HEAD
        for path in self.paths:
            position = head_at + head_bytes
            if op_code == get_data and not done:
                after = position + number if number > 0 else position
                head_at = after + stat_bytes
                if number < -1 or head_at > end:
                    raise MalformedFrameError(f"data of {number} bytes does not fit into the {end - position} left")
                found = None if number < 0 else data[position:after]
                if head_at + head_bytes <= end:
                    mzxid, version, op_code, done, number = unpack_next(data, after)
                else:
                    (mzxid, version), (op_code, done, _, number) = unpack_write(data, after), _NO_HEAD
                append(new(WrittenData, (found, version, mzxid)))
            elif op_code == OpCode.ERROR and not done:
                append(error_for(number, path))
                head_at = position
                op_code, done, _, number = unpack_head(data, head_at) if head_at + head_bytes <= end else _NO_HEAD
            else:
                raise MalformedFrameError(f"a multi answers a read with {op_code}, or not at all")
        reader.position = head_at
        _read_end(reader)
        return outcomes


@dataclass(frozen=True, slots=True)
class MultiGetChildrenNames(MultiRead[list[str]]):
    """The names of the children of many znodes."""

    def body(self, chroot: str) -> bytes:
        return _pack_reads(OpCode.GET_CHILDREN, self.paths, chroot)

    def singly(self) -> list[Operation[list[str]]]:
        return [GetChildrenNames(path) for path in self.paths]

    def read(self, reader: Reader, chroot: str, /) -> list[Any]:
        return at_once(self.read_in_steps(reader, chroot))

    def read_in_steps(self, reader: Reader, _chroot: str, /) -> Steps[list[Any]]:
        outcomes: list[Any] = []
        left = NAMES_PER_STEP
        for path in self.paths:
            op_code, done, _ = read_multi_header(reader)
            if op_code == OpCode.GET_CHILDREN and not done:
                names = yield from reader.strings_in_steps()
                outcomes.append(names)
                left -= len(names)
                if left <= 0:
                    yield
                    left = NAMES_PER_STEP
            elif op_code == OpCode.ERROR and not done:
                outcomes.append(error_for(reader.integer(), path))
            else:
                raise MalformedFrameError(f"a multi answers a read with {op_code}")
        _read_end(reader)
        return outcomes


# The header of a multi's operation or result, and the length or the error code that follows it.
_RESULT_HEAD = struct.Struct("!i?ii")
# What `WrittenData` has of a stat, mzxid and version; by itself, and with the header of the next result.
_LAST_WRITE = struct.Struct("!8xq16xi32x")
_LAST_WRITE_AND_NEXT_HEAD = struct.Struct("!8xq16xi32xi?4xi")
_NO_HEAD = (int(OpCode.ERROR), True, 0, 0)
"""In place of one for which no bytes are left."""


def _pack_reads(op_code: OpCode, paths: tuple[str, ...], chroot: str) -> bytes:
    validate_paths(paths)
    encoded = [(chroot if path == "/" and chroot else chroot + path).encode() for path in paths]
    # Paths of one length have the same bytes in front.
    heads = {length: _RESULT_HEAD.pack(op_code, False, -1, length) for length in set(map(len, encoded))}
    return b"".join((*[heads[len(path)] + path + FALSE for path in encoded], MULTI_END))


def _read_end(reader: Reader) -> None:
    if not read_multi_header(reader)[1]:
        raise MalformedFrameError("a multi has more results than operations")


def _pack_multi(operations: Sequence[Operation[Any]], chroot: str) -> bytes:
    parts = []
    for operation in operations:
        parts.append(MULTI_HEADER.pack(operation.op_code, False, -1))
        parts.append(operation.body(chroot))
    parts.append(MULTI_END)
    return b"".join(parts)


def _read_results(operations: Sequence[Operation[Any]], reader: Reader, chroot: str) -> list[Any]:
    outcomes = [_read_result(operation, reader, chroot) for operation in operations]
    _read_end(reader)
    return outcomes


def _read_result(operation: Operation[Any], reader: Reader, chroot: str) -> Any:
    op_code, done, _ = read_multi_header(reader)
    if done:
        raise MalformedFrameError("a multi has fewer results than operations")
    if op_code == OpCode.ERROR:
        return _rolled_back_or(reader.integer(), operation.path)
    if isinstance(operation, Create) and op_code in _CREATIONS:
        # The header, not the operation, says whether a stat follows.
        path = without_chroot(chroot, reader.string())
        return Created(path, None if op_code == OpCode.CREATE else read_stat(reader))
    if op_code != operation.op_code:
        raise MalformedFrameError(f"a multi answers operation {operation.op_code} with {op_code}")
    return operation.read(reader, chroot)


_CREATIONS = frozenset({OpCode.CREATE, OpCode.CREATE2, OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL})


def _rolled_back_or(code: int, path: str) -> KeeperError:
    # Operations before the one that failed carry code 0, those after it RUNTIME_INCONSISTENCY; none of them happened.
    return RuntimeInconsistencyError(path) if code == ErrorCode.OK else error_for(code, path)
