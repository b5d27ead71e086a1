"""Snapshots: the whole state at one transaction, so that older logs can go.

A snapshot is the file `snapshot.<zxid, 16 hexadecimal digits>`, written under a temporary name, synced and then
renamed. Layout, big-endian:

    file    magic `BNBSSNP` and a line feed, version (4 bytes), zxid (8), highest session id so far (8), then chunks
    chunk   kind (1), length (4), CRC-32 of kind, length and contents (4), contents
    kind 1  sessions: id (8), time-out in ms (4), password (16), each
    kind 2  access control lists, in jute, each behind its length (4); znodes refer to them by number
    kind 3  znodes, parents before children: length of path (4), of data (4, -1 for null), number of the list (4), what
            it is (1: 0 plain, 1 container, 2 with a time to live), path, data, stat (68), time to live in ms (8, only
            kind 2)
    kind 4  the end: number of znodes (8)

Encoding is cut into slices of a fraction of a millisecond each, because the loop serves requests in between.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice

from barnabas.coordination.embedded.access import OPEN
from barnabas.coordination.embedded.log import CorruptDataError
from barnabas.coordination.embedded.sessions import StoredSession
from barnabas.coordination.embedded.tree import Znode, ZnodeTree
from barnabas.coordination.errors import NoNodeError
from barnabas.coordination.jute import LONG
from barnabas.coordination.protocol import PASSWORD_BYTES, STAT

FILE_PREFIX = "snapshot."
TEMPORARY_NAME = "snapshot.tmp"
ZNODES_PER_SLICE = 512
_MAGIC = b"BNBSSNP\n"
_VERSION = 1
_HEADER = struct.Struct("!8sIQQ")
_CHUNK_HEADER = struct.Struct("!BII")
_CHUNK_CHECKED = struct.Struct("!BI")
_SESSION = struct.Struct(f"!qi{PASSWORD_BYTES}s")
_ZNODE = struct.Struct("!IiIB")
_COUNT = struct.Struct("!Q")
_LENGTH = struct.Struct("!I")
_SESSIONS, _LISTS, _ZNODES, _END = 1, 2, 3, 4
_PLAIN, _CONTAINER, _TTL = 0, 1, 2


def file_name(zxid: int) -> str:
    return f"{FILE_PREFIX}{zxid:016x}"


class SnapshotImage:
    """The state to write, fixed at the moment this is made, without a copy: the tree preserves the old value of what
    changes until the last slice is made or `close` is called. A tree has one image at a time.
    """

    def __init__(self, tree: ZnodeTree, sessions: Sequence[StoredSession], highest_session_id: int) -> None:
        if tree.preserved is not None:
            raise RuntimeError("another image of the tree is in use")
        self.zxid = tree.zxid
        self._tree = tree
        self._preserved: dict[str, Znode | None] = {}
        tree.preserved = self._preserved
        self._paths = list(tree.nodes)
        self._containers = dict(tree.containers)
        self._ttls_ms = dict(tree.ttls_ms)
        self._sessions = sessions
        self._highest_session_id = highest_session_id

    def close(self) -> None:
        """Lets the tree forget what it preserved."""
        if self._tree.preserved is self._preserved:
            self._tree.preserved = None

    def slices(self) -> Iterator[bytes]:
        """The file's bytes, piece by piece."""
        yield _HEADER.pack(_MAGIC, _VERSION, self.zxid, self._highest_session_id)
        if self._sessions:
            yield _chunk(
                _SESSIONS, b"".join(_SESSION.pack(each.id, each.timeout_ms, each.password) for each in self._sessions)
            )
        numbers: dict[bytes, int] = {}
        for start in range(0, len(self._paths), ZNODES_PER_SLICE):
            batch = self._paths[start : start + ZNODES_PER_SLICE]
            known = len(numbers)
            encoded = self._encode(batch, numbers)
            if len(numbers) > known:
                fresh = list(islice(numbers, known, None))
                yield _chunk(_LISTS, b"".join(_LENGTH.pack(len(acl)) + acl for acl in fresh))
            yield encoded
        self.close()
        yield _chunk(_END, _COUNT.pack(len(self._paths)))

    def _encode(self, batch: list[str], numbers: dict[bytes, int]) -> bytes:
        parts: list[bytes] = []
        nodes = self._tree.nodes
        preserved = self._preserved
        for path in batch:
            node = preserved.get(path)
            # A path that has nothing preserved has not changed: every path of the image existed when it was made.
            data, stat, acl, _ = nodes[path] if node is None else node
            number = numbers.get(acl)
            if number is None:
                number = numbers[acl] = len(numbers)
            ttl_ms = self._ttls_ms.get(path)
            kind = _TTL if ttl_ms is not None else _CONTAINER if path in self._containers else _PLAIN
            name = path.encode()
            length = -1 if data is None else len(data)
            parts += (_ZNODE.pack(len(name), length, number, kind), name, data or b"", stat)
            if ttl_ms is not None:
                parts.append(LONG.pack(ttl_ms))
        return _chunk(_ZNODES, b"".join(parts))


def _chunk(kind: int, contents: bytes) -> bytes:
    crc = zlib.crc32(contents, zlib.crc32(_CHUNK_CHECKED.pack(kind, len(contents))))
    return _CHUNK_HEADER.pack(kind, len(contents), crc) + contents


def load_snapshot(path: str, data: bytes) -> tuple[ZnodeTree, list[StoredSession], int]:
    """The tree, the sessions and the highest session id of a snapshot. Raises `CorruptDataError`, also for contents
    that no snapshot of ours has although their checksums are right.
    """
    try:
        return _load(path, data)
    except (struct.error, UnicodeDecodeError, IndexError, NoNodeError) as error:
        raise CorruptDataError(f"{path}: a chunk has contents that cannot be read ({error!r})") from None


def _load(path: str, data: bytes) -> tuple[ZnodeTree, list[StoredSession], int]:
    if len(data) < _HEADER.size:
        raise CorruptDataError(f"{path}: too short for a snapshot")
    magic, version, zxid, highest_session_id = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptDataError(f"{path}: not a snapshot of this program")
    if version != _VERSION:
        raise CorruptDataError(f"{path}: version {version} of a snapshot, where this program reads {_VERSION}")
    tree = ZnodeTree()
    sessions: list[StoredSession] = []
    lists: list[bytes] = []
    count = 0
    position = _HEADER.size
    while True:
        kind, contents, position = _read_chunk(path, data, position)
        if kind == _SESSIONS:
            sessions = [StoredSession(*fields) for fields in _SESSION.iter_unpack(contents)]
        elif kind == _LISTS:
            lists.extend(_read_lists(contents))
        elif kind == _ZNODES:
            count += _restore(tree, lists, contents)
        elif kind == _END:
            break
        else:
            raise CorruptDataError(f"{path}: an unknown kind of chunk, {kind}")
    (expected,) = _COUNT.unpack(contents)
    if count != expected or len(tree.nodes) != expected:
        raise CorruptDataError(f"{path}: {count} znodes instead of {expected}")
    tree.zxid = zxid
    return tree, sessions, highest_session_id


def _read_chunk(path: str, data: bytes, position: int) -> tuple[int, bytes, int]:
    start = position + _CHUNK_HEADER.size
    if start > len(data):
        raise CorruptDataError(f"{path}: ends at byte {len(data)} without its end mark")
    kind, length, crc = _CHUNK_HEADER.unpack_from(data, position)
    contents = data[start : start + length]
    if len(contents) != length or crc != zlib.crc32(contents, zlib.crc32(_CHUNK_CHECKED.pack(kind, length))):
        raise CorruptDataError(f"{path}: the bytes at {position} are damaged")
    return kind, contents, start + length


def _read_lists(contents: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(contents):
        (length,) = _LENGTH.unpack_from(contents, position)
        position += _LENGTH.size
        acl = contents[position : position + length]
        position += length
        _check_end(position, contents)
        yield OPEN if acl == OPEN else acl


def _check_end(position: int, contents: bytes) -> None:
    if position > len(contents):
        raise IndexError(f"{position} bytes in a chunk of {len(contents)}")


def _restore(tree: ZnodeTree, lists: list[bytes], contents: bytes) -> int:
    position = 0
    count = 0
    restore = tree.restore
    unpack = _ZNODE.unpack_from
    while position < len(contents):
        path_length, data_length, number, kind = unpack(contents, position)
        start = position + _ZNODE.size
        after_path = start + path_length
        after_data = after_path + max(data_length, 0)
        position = after_data + STAT.size
        data = None if data_length < 0 else contents[after_path:after_data]
        ttl_ms = 0
        if kind == _TTL:
            ttl_ms = LONG.unpack_from(contents, position)[0]
            position += LONG.size
        _check_end(position, contents)
        node = (data, contents[after_data : after_data + STAT.size], lists[number], None)
        restore(contents[start:after_path].decode(), node, container=kind == _CONTAINER, ttl_ms=ttl_ms)
        count += 1
    return count
