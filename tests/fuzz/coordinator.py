"""Targets `coordinator-files` and `coordinator-frames`: what the coordinator has on disk, and ZooKeeper's protocol."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

from barnabas.coordination.embedded import log
from barnabas.coordination.embedded.log import CorruptDataError, pack_record, read_log
from barnabas.coordination.embedded.sessions import StoredSession
from barnabas.coordination.embedded.snapshot import SnapshotImage, load_snapshot
from barnabas.coordination.embedded.tree import ZnodeTree
from barnabas.coordination.errors import MalformedFrameError
from barnabas.coordination.jute import Reader, pack_strings
from barnabas.coordination.protocol import (
    Acl,
    AuthPacket,
    ConnectRequest,
    ConnectResponse,
    EventType,
    Id,
    KeeperState,
    Permission,
    WatcherEvent,
    pack_acls,
    read_acls,
    read_multi_header,
    read_stat,
)

_SNAPSHOT_HEAD: Final = struct.Struct("!8sIQQ")
_CHUNK: Final = struct.Struct("!BII")
_CHUNK_CHECKED: Final = struct.Struct("!BI")
_GIVEN_CHUNK: Final = struct.Struct("!BH")
"""Before the contents of each chunk of an input: kind and length."""
_LOG_HEAD: Final = struct.Struct("!8sI8sQ")
_BATCH_CHECKED: Final = struct.Struct("!IIQ")
_CRC: Final = struct.Struct("!I")


def check_coordinator_files(data: bytes) -> bool:
    """A byte that chooses, then a snapshot or a transaction log; or the contents of one, which is put around them with
    the checksums that no fuzzer guesses.
    """
    if not data:
        return False
    try:
        _FILE_CHECKS[data[0] % len(_FILE_CHECKS)](data[1:])
    except CorruptDataError:
        return False
    return True


def _check_snapshot(data: bytes) -> None:
    tree, sessions, highest = load_snapshot("a snapshot", data)
    again, sessions_again, highest_again = load_snapshot("written again", _written(tree, sessions, highest))
    if (again.nodes, again.ttls_ms, again.containers, again.zxid) != (
        tree.nodes,
        tree.ttls_ms,
        tree.containers,
        tree.zxid,
    ):
        raise AssertionError("a snapshot has another tree when it is written again")
    if (sessions_again, highest_again) != (sessions, highest):
        raise AssertionError("a snapshot has other sessions when it is written again")


def _written(tree: ZnodeTree, sessions: list[StoredSession], highest_session_id: int) -> bytes:
    return b"".join(SnapshotImage(tree, sessions, highest_session_id).slices())


def _check_chunks(data: bytes) -> None:
    parts = [_SNAPSHOT_HEAD.pack(b"BNBSSNP\n", 1, 7, 9)]
    position = 0
    while position + _GIVEN_CHUNK.size <= len(data):
        kind, length = _GIVEN_CHUNK.unpack_from(data, position)
        position += _GIVEN_CHUNK.size
        parts.append(_chunk(kind, data[position : position + length]))
        position += length
    _check_snapshot(b"".join(parts))


def _chunk(kind: int, contents: bytes) -> bytes:
    crc = zlib.crc32(contents, zlib.crc32(_CHUNK_CHECKED.pack(kind, len(contents))))
    return _CHUNK.pack(kind, len(contents), crc) + contents


def _check_log(data: bytes) -> None:
    contents = read_log("a log", data)
    if contents is not None:
        if contents.good_bytes > len(data):
            raise AssertionError("a log has more good bytes than bytes")
        list(contents.records())


def _check_batch(data: bytes) -> None:
    """Two bytes for the number of records, and the records."""
    count = int.from_bytes(data[:2], "big")
    _check_log(_log_file(count, data[2:]))


def _log_file(count: int, records: bytes) -> bytes:
    head = _LOG_HEAD.pack(b"BNBSTXN\n", log._FILE_VERSION, b"saltsalt", 1)
    checked = _BATCH_CHECKED.pack(len(records), count, 1)
    crc = zlib.crc32(records, zlib.crc32(checked, zlib.crc32(b"saltsalt")))
    return head + _CRC.pack(zlib.crc32(head)) + b"BNBb" + _CRC.pack(crc) + checked + records


_FILE_CHECKS: Final = (_check_snapshot, _check_chunks, _check_log, _check_batch)


def coordinator_seeds() -> list[bytes]:
    tree = ZnodeTree()
    for path in ("/brokers", "/brokers/ids"):
        tree.create(path, b"{}", pack_acls([Acl(Permission.ALL, Id("world", "anyone"))]), 1, 2)
    tree.create("/brokers/ids/1", b"{}", pack_acls([]), 2, 2, owner=5)
    tree.create("/timed", None, pack_acls([]), 3, 2, ttl_ms=50)
    snapshot = _written(tree, [StoredSession(5, 6_000, b"p" * 16)], 8)
    given = bytearray()
    position = _SNAPSHOT_HEAD.size
    while position < len(snapshot):
        kind, length, _ = _CHUNK.unpack_from(snapshot, position)
        position += _CHUNK.size
        given += _GIVEN_CHUNK.pack(kind, length) + snapshot[position : position + length]
        position += length
    records = pack_record(1, 2, 3, 1, b"body") + pack_record(2, 2, 3, -11, b"")
    return [
        b"\x00" + snapshot,
        b"\x01" + bytes(given),
        b"\x02" + _log_file(2, records),
        b"\x03\x00\x02" + records,
    ]


def check_coordinator_frames(data: bytes) -> bool:
    """A byte that chooses the kind of frame, then the frame."""
    if not data:
        return False
    read, pack = _FRAMES[data[0] % len(_FRAMES)]
    reader = Reader(data[1:])
    try:
        value = read(reader)
    except MalformedFrameError:
        return False
    if reader.position > len(data) - 1:
        raise AssertionError(f"{reader.position} bytes were read of {len(data) - 1}")
    if (again := read(Reader(pack(value)))) != value:
        raise AssertionError(f"{value} is {again} when it was written and read")
    return True


def _pack_stat(stat: Any) -> bytes:
    from barnabas.coordination.protocol import STAT

    return STAT.pack(*stat)


def _pack_multi_header(header: Any) -> bytes:
    from barnabas.coordination.protocol import MULTI_HEADER

    return MULTI_HEADER.pack(*header)


_FRAMES: Final[tuple[tuple[Callable[[Reader], Any], Callable[[Any], bytes]], ...]] = (
    (ConnectRequest.read, ConnectRequest.pack),
    (ConnectResponse.read, ConnectResponse.pack),
    (WatcherEvent.read, WatcherEvent.pack),
    (AuthPacket.read, AuthPacket.pack),
    (read_acls, pack_acls),
    (read_stat, _pack_stat),
    (read_multi_header, _pack_multi_header),
    (Reader.strings, pack_strings),
)


def frame_seeds() -> list[bytes]:
    frames = [
        ConnectRequest(1, 6_000, 0, b"p" * 16).pack(),
        ConnectResponse(6_000, 5, b"p" * 16).pack(),
        WatcherEvent(EventType.NODE_CREATED, KeeperState.SYNC_CONNECTED, "/a").pack(),
        AuthPacket("digest", b"user:password").pack(),
        pack_acls([Acl(Permission.ALL, Id("world", "anyone"))]),
        bytes(68),
        bytes(9),
        pack_strings(["a", "", "bc"]),
    ]
    return [bytes([kind]) + each for kind, each in enumerate(frames)]
