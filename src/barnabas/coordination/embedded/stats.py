"""The Stat of a znode, kept packed as it travels: 68 bytes instead of eleven objects, and nothing to encode on a read.

ZooKeeper counts the creations of children and shows `2 * creations - children`, which is the number of changes (every
creation that is no longer there was followed by a deletion). Only what is shown is kept; the count of creations, from
which sequential names come, is computed back from it. 32-bit numbers wrap as Java's do.
"""

from __future__ import annotations

import struct

from barnabas.coordination.protocol import STAT

NO_OWNER = bytes(8)
INT_MAX = 0x7FFFFFFF

_INT = struct.Struct("!i")
_LONG = struct.Struct("!q")
_OWNER = slice(44, 52)
_VERSION_AT = 32
_AVERSION_AT = 40
_OWNER_AT = 44
_MTIME_AT = 24
_CHILDREN_AT = 36
# cversion, aversion, owner, data length, children, pzxid
_CHILDREN_FIELDS = struct.Struct("!iiqiiq")
_DATA_FIELDS = struct.Struct("!qqqqi")  # czxid, mzxid, ctime, mtime, version
_LENGTH_AT = 52


def wrap(value: int) -> int:
    """The 32-bit integer that Java would have."""
    return ((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def new_stat(zxid: int, time_ms: int, owner: int, length: int) -> bytes:
    """The stat of a znode that is created now; `owner` is a session id, 0 for none."""
    return STAT.pack(zxid, zxid, time_ms, time_ms, 0, 0, 0, owner, length, 0, zxid)


def built_in_stat(children: int, aversion: int = 0) -> bytes:
    """The stat of a znode that is there before the first transaction and never counted the creation of its children."""
    return STAT.pack(0, 0, 0, 0, 0, -children, aversion, 0, 0, children, 0)


def version_of(stat: bytes) -> int:
    version: int = _INT.unpack_from(stat, _VERSION_AT)[0]
    return version


def aversion_of(stat: bytes) -> int:
    aversion: int = _INT.unpack_from(stat, _AVERSION_AT)[0]
    return aversion


def owner_of(stat: bytes) -> int:
    """The session id that owns the znode, 0 for one that is not ephemeral."""
    owner: int = _LONG.unpack_from(stat, _OWNER_AT)[0]
    return owner


def modified_ms_of(stat: bytes) -> int:
    modified_ms: int = _LONG.unpack_from(stat, _MTIME_AT)[0]
    return modified_ms


def is_ephemeral(stat: bytes) -> bool:
    return stat[_OWNER] != NO_OWNER


def creations_of(stat: bytes) -> int:
    """How many children were ever created: the number in the name of the next sequential child."""
    cversion, _, _, _, children, _ = _CHILDREN_FIELDS.unpack_from(stat, _CHILDREN_AT)
    creations: int = ((cversion + children) & 0xFFFFFFFF) >> 1
    return creations


def with_child_created(stat: bytes, zxid: int) -> bytes:
    """The parent's stat after a creation. The count of creations stays at its maximum once it is reached, and then
    pzxid stays too: so does ZooKeeper.
    """
    cversion, aversion, owner, length, children, pzxid = _CHILDREN_FIELDS.unpack_from(stat, _CHILDREN_AT)
    creations = ((cversion + children) & 0xFFFFFFFF) >> 1
    children += 1
    if creations < INT_MAX:
        creations += 1
        pzxid = zxid
    cversion = 2 * creations - children
    if cversion > INT_MAX:
        cversion = wrap(cversion)
    return stat[:_CHILDREN_AT] + _CHILDREN_FIELDS.pack(cversion, aversion, owner, length, children, pzxid)


def with_child_deleted(stat: bytes, zxid: int) -> bytes:
    """The parent's stat after a deletion."""
    cversion, aversion, owner, length, children, pzxid = _CHILDREN_FIELDS.unpack_from(stat, _CHILDREN_AT)
    return stat[:_CHILDREN_AT] + _CHILDREN_FIELDS.pack(
        wrap(cversion + 1), aversion, owner, length, children - 1, max(zxid, pzxid)
    )


def with_data(stat: bytes, zxid: int, time_ms: int, length: int) -> bytes:
    """The stat after the data were set."""
    czxid, _, ctime_ms, _, version = _DATA_FIELDS.unpack_from(stat)
    version = version + 1 if version < INT_MAX else wrap(version + 1)
    return (
        _DATA_FIELDS.pack(czxid, zxid, ctime_ms, time_ms, version)
        + stat[_CHILDREN_AT:_LENGTH_AT]
        + _INT.pack(length)
        + stat[_LENGTH_AT + 4 :]
    )


def with_length(stat: bytes, length: int) -> bytes:
    """The stat after the server itself changed the data, which counts as no change (quota statistics)."""
    return stat[:_LENGTH_AT] + _INT.pack(length) + stat[_LENGTH_AT + 4 :]


def with_acl_changed(stat: bytes) -> bytes:
    aversion = wrap(aversion_of(stat) + 1)
    return stat[:_AVERSION_AT] + _INT.pack(aversion) + stat[_OWNER_AT:]
