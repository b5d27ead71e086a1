"""Requests that change nothing: reads of the tree, and watches."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from barnabas.coordination.embedded import access
from barnabas.coordination.embedded.transactions import read_text
from barnabas.coordination.embedded.tree import Znode, ZnodeTree, child_names
from barnabas.coordination.embedded.turn_budget import PIECE_ELEMENTS, Work
from barnabas.coordination.embedded.watches import Watcher, Watches, WatchMode
from barnabas.coordination.errors import (
    BadArgumentsError,
    KeeperError,
    MalformedFrameError,
    MarshallingError,
    NoAuthError,
    NoNodeError,
    NoWatcherError,
    ThrottledOpError,
)
from barnabas.coordination.jute import INT, NULL, Reader, pack_int, pack_string, pack_strings
from barnabas.coordination.protocol import (
    MULTI_END,
    MULTI_HEADER,
    AddWatchMode,
    Id,
    OpCode,
    Permission,
    WatcherType,
)

if TYPE_CHECKING:
    from barnabas.coordination.embedded.config import CoordinatorConfig

_READ = int(Permission.READ)
_ADMIN = int(Permission.ADMIN)
_GET_DATA = int(OpCode.GET_DATA)
_GET_CHILDREN = int(OpCode.GET_CHILDREN)
_DATA_RESULT = MULTI_HEADER.pack(OpCode.GET_DATA, False, 0)
_CHILDREN_RESULT = MULTI_HEADER.pack(OpCode.GET_CHILDREN, False, 0)
_SMALL_BYTES = 1024
_PARTS_PER_PIECE = 5_000
_PATHS_PER_PIECE = PIECE_ELEMENTS // 10
_MULTI_READ_HEADER = struct.Struct("!i?ii")  # op code, done, error code, length of the path
_WATCH_MODES = {
    int(AddWatchMode.PERSISTENT): WatchMode.PERSISTENT,
    int(AddWatchMode.PERSISTENT_RECURSIVE): WatchMode.PERSISTENT_RECURSIVE,
}
_WATCHER_TYPES = {int(kind): kind for kind in WatcherType}


class Client(Watcher, Protocol):
    """The connection that asks: it may be a watcher."""

    @property
    def session_id(self) -> int: ...
    @property
    def identities(self) -> tuple[Id, ...]: ...


class Reads:
    """Answers requests that take no zxid. What is long comes as work, whose answer is of the moment of the request."""

    def __init__(
        self, tree: ZnodeTree, watches: Watches, config: CoordinatorConfig, spend: Callable[[int], object]
    ) -> None:
        """`spend` is told of the elements that an answer took beside its bytes."""
        self._spend = spend
        self._tree = tree
        self._watches = watches
        self._watches_max = config.watches_max
        self._watch_path_bytes_max = config.watch_path_bytes_max
        self._multi_read_bytes_max = config.unread_bytes_max
        self.handlers: dict[int, Callable[[Reader, Client], bytes | Work[bytes]]] = {
            OpCode.EXISTS: self._exists,
            OpCode.GET_DATA: self._get_data,
            OpCode.GET_ACL: self._get_acl,
            OpCode.GET_CHILDREN: self._get_children,
            OpCode.GET_CHILDREN2: self._get_children2,
            OpCode.SYNC: self._sync,
            OpCode.CHECK_WATCHES: self._check_watches,
            OpCode.REMOVE_WATCHES: self._remove_watches,
            OpCode.MULTI_READ: self._short_multi_read,
            OpCode.SET_WATCHES: self._set_watches,
            OpCode.SET_WATCHES2: self._set_watches2,
            OpCode.GET_EPHEMERALS: self._get_ephemerals,
            OpCode.GET_ALL_CHILDREN_NUMBER: self._get_all_children_number,
            OpCode.ADD_WATCH: self._add_watch,
            OpCode.WHO_AM_I: self._who_am_i,
        }

    def _readable(self, path: str, client: Client) -> Znode:
        node = self._tree.nodes.get(path)
        if node is None:
            node = self._tree.get(path)
        if node[2] is not access.OPEN and not access.allowed(node[2], _READ, client.identities):
            raise NoAuthError(path)
        return node

    def _make_room_for_watches(self, path_bytes: int, count: int = 1) -> None:
        watches = self._watches
        if watches.count + count > self._watches_max or watches.path_bytes + path_bytes > self._watch_path_bytes_max:
            raise ThrottledOpError

    def _get_data(self, reader: Reader, client: Client) -> bytes:
        path = read_text(reader)
        watch = reader.boolean()
        node = self._tree.nodes.get(path)
        if node is None or node[2] is not access.OPEN:
            node = self._readable(path, client)
        if watch:
            self._make_room_for_watches(len(path))
            self._watches.data.add(path, client)
        data = node[0]
        return NULL + node[1] if data is None else INT.pack(len(data)) + data + node[1]

    def _exists(self, reader: Reader, client: Client) -> bytes:
        path = read_text(reader)
        watch = reader.boolean()
        if "\0" in path:
            raise BadArgumentsError(path)
        try:
            stat = self._readable(path, client)[1]
        except NoNodeError:
            if watch:
                self._make_room_for_watches(len(path))
                self._watches.data.add(path, client)
            raise
        if watch:
            self._make_room_for_watches(len(path))
            self._watches.data.add(path, client)
        return stat

    def _list(self, reader: Reader, client: Client) -> Znode:
        path = read_text(reader)
        watch = reader.boolean()
        node = self._readable(path, client)
        if watch:
            self._make_room_for_watches(len(path))
            self._watches.children.add(path, client)
        return node

    def _get_children(self, reader: Reader, client: Client) -> bytes | Work[bytes]:
        return self._packed(child_names(self._list(reader, client)), b"")

    def _get_children2(self, reader: Reader, client: Client) -> bytes | Work[bytes]:
        node = self._list(reader, client)
        return self._packed(child_names(node), node[1])

    def _packed(self, names: list[str], behind: bytes, prefix: str = "") -> bytes | Work[bytes]:
        """The names that begin so, as jute has them, and some bytes behind."""
        if len(names) > PIECE_ELEMENTS:
            return _pack_in_pieces(names, behind, prefix)
        self._spend(len(names))
        return pack_strings([name for name in names if name.startswith(prefix)] if prefix else names) + behind

    def _get_acl(self, reader: Reader, client: Client) -> bytes:
        path = read_text(reader)
        _, stat, acl, _ = self._tree.get(path)
        if not access.allowed(acl, access.READ_OR_ADMIN, client.identities):
            raise NoAuthError(path)
        if not access.allowed(acl, _ADMIN, client.identities):
            acl = access.with_digests_hidden(acl)
        return acl + stat

    def _sync(self, reader: Reader, _client: Client) -> bytes:
        return pack_string(read_text(reader))

    def _short_multi_read(self, reader: Reader, client: Client) -> bytes | Work[bytes]:
        """What is left of it, where few paths have very many children, must run alone."""
        work = self.multi_read(reader, client)
        left = PIECE_ELEMENTS
        while left > 0:
            try:
                elements = next(work)
            except StopIteration as stop:
                result: bytes = stop.value
                return result
            self._spend(elements)
            left -= elements
        return work

    def multi_read(self, reader: Reader, client: Client) -> Work[bytes]:
        """One result for each read; a read that fails does not keep the others from succeeding.

        A controller that starts reads 100,000 znodes this way, so the reader's methods are written out here.
        """
        parts: list[bytes] = []
        next_yield = _PARTS_PER_PIECE
        unspent = 0  # names, which short requests may have very many of
        room_bytes = self._multi_read_bytes_max
        data, position, end = reader.data, reader.position, reader.end
        nodes = self._tree.nodes
        while end - position >= _MULTI_READ_HEADER.size:
            op_code, done, _, length = _MULTI_READ_HEADER.unpack_from(data, position)
            if done:
                break
            if len(parts) >= next_yield:
                next_yield = len(parts) + _PARTS_PER_PIECE
                yield PIECE_ELEMENTS
            start = position + _MULTI_READ_HEADER.size
            position = start + length + 1  # the path, and whether to watch, which a multi does not
            if length < 0 or position > end or (op_code != _GET_DATA and op_code != _GET_CHILDREN):
                raise MarshallingError
            path = data[start : position - 1].decode(errors="replace")
            node = nodes.get(path)
            if node is None or node[2] is not access.OPEN:
                try:
                    node = self._readable(path, client)
                except KeeperError as error:
                    parts += (MULTI_HEADER.pack(OpCode.ERROR, False, error.code), pack_int(error.code))
                    continue
            contents = node[0]
            if op_code == _GET_CHILDREN:
                children = child_names(node)
                if len(children) > PIECE_ELEMENTS:
                    names = yield from _pack_in_pieces(children, b"", "")
                else:
                    names = pack_strings(children)
                    unspent += len(children)
                    if unspent >= PIECE_ELEMENTS:
                        yield unspent
                        unspent = 0
                parts += (_CHILDREN_RESULT, names)
                room_bytes -= len(names)
                if room_bytes < 0:
                    raise ThrottledOpError
            elif contents is None:
                parts += (_DATA_RESULT, NULL, node[1])
            else:
                length = len(contents)
                if length > _SMALL_BYTES:
                    # Small ones cannot add up to much within the bound on requests.
                    room_bytes -= length
                    if room_bytes < 0:
                        raise ThrottledOpError
                parts += (_DATA_RESULT, INT.pack(length), contents, node[1])
        else:
            reader.position = position
            if not reader.structure(MULTI_HEADER)[1]:
                raise MarshallingError
        if unspent:
            yield unspent
        parts.append(MULTI_END)
        return b"".join(parts)

    def _get_ephemerals(self, reader: Reader, client: Client) -> bytes | Work[bytes]:
        prefix = reader.buffer()
        text = "" if prefix is None else prefix.decode(errors="replace")
        owned = list(self._tree.ephemerals.get(client.session_id, ()))
        return self._packed(owned, b"", "" if text.strip() in {"", "/"} else text)

    def _get_all_children_number(self, reader: Reader, client: Client) -> bytes | Work[bytes]:
        path = read_text(reader)
        self._readable(path, client)
        count = self._tree.descendant_count(path, PIECE_ELEMENTS // 4)
        return _count_below(path, list(self._tree.nodes)) if count is None else pack_int(count)

    def _who_am_i(self, _reader: Reader, client: Client) -> bytes:
        users = [
            pack_string(each.scheme) + pack_string(each.id.split(":")[0] if each.scheme == "digest" else each.id)
            for each in client.identities
        ]
        return pack_int(len(users)) + b"".join(users)

    def _set_watches(self, reader: Reader, client: Client) -> bytes | Work[bytes]:
        relative_zxid = reader.long()
        return self._set_again(client, relative_zxid, [reader.strings() for _ in range(3)])

    def _set_watches2(self, reader: Reader, client: Client) -> bytes | Work[bytes]:
        relative_zxid = reader.long()
        return self._set_again(client, relative_zxid, [reader.strings() for _ in range(5)])

    def _set_again(self, client: Client, relative_zxid: int, paths: list[list[str]]) -> bytes | Work[bytes]:
        path_bytes = sum([len(path) for group in paths for path in group])
        count = sum(map(len, paths))
        self._make_room_for_watches(path_bytes, count)
        if count <= _PATHS_PER_PIECE:
            self._watches.set_again(self._tree, client, relative_zxid, *paths)
            return b""
        return self._set_again_in_pieces(client, relative_zxid, paths)

    def _set_again_in_pieces(self, client: Client, relative_zxid: int, paths: list[list[str]]) -> Work[bytes]:
        """What changes meanwhile fires: where a path has had its turn, by its watch, and otherwise when it has it."""
        for number, group in enumerate(paths):
            for start in range(0, len(group), _PATHS_PER_PIECE):
                pieces: list[list[str]] = [[], [], [], [], []]
                pieces[number] = group[start : start + _PATHS_PER_PIECE]
                self._watches.set_again(self._tree, client, relative_zxid, *pieces)
                yield PIECE_ELEMENTS
        return b""

    def _add_watch(self, reader: Reader, client: Client) -> bytes:
        path = read_text(reader)
        mode = _WATCH_MODES.get(reader.integer())
        if mode is None:
            raise MarshallingError(path)
        self._make_room_for_watches(2 * len(path), 2)
        self._watches.add(path, client, mode)
        return pack_int(0)

    def _check_watches(self, reader: Reader, _client: Client) -> bytes:
        path, kind = _read_watcher(reader)
        if path and "/" not in path:
            raise MarshallingError(path)
        if not self._watches.contains(path, kind):
            raise NoWatcherError(path)
        return b""

    def _remove_watches(self, reader: Reader, client: Client) -> bytes:
        path, kind = _read_watcher(reader)
        if not self._watches.remove(path, kind, client):
            raise NoWatcherError(path)
        return b""


def _pack_in_pieces(names: list[str], behind: bytes, prefix: str) -> Work[bytes]:
    count = 0
    parts = [b""]
    for start in range(0, len(names), PIECE_ELEMENTS):
        piece = names[start : start + PIECE_ELEMENTS]
        if prefix:
            piece = [name for name in piece if name.startswith(prefix)]
        count += len(piece)
        parts.append(pack_strings(piece)[INT.size :])
        yield PIECE_ELEMENTS
    parts[0] = pack_int(count)
    parts.append(behind)
    return b"".join(parts)


def _count_below(path: str, paths: list[str]) -> Work[bytes]:
    """How many of the paths lie below one that is not the root."""
    prefix = f"{path}/"
    count = 0
    for start in range(0, len(paths), PIECE_ELEMENTS):
        count += sum([each.startswith(prefix) for each in paths[start : start + PIECE_ELEMENTS]])
        yield PIECE_ELEMENTS
    return pack_int(count)


def _read_watcher(reader: Reader) -> tuple[str, WatcherType]:
    path = read_text(reader)
    number = reader.integer()
    kind = _WATCHER_TYPES.get(number)
    if kind is None:
        raise MalformedFrameError(f"{number} is not a kind of watcher")
    return path, kind
