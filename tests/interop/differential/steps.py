"""What a differential run does: steps that are plain data, the same for every server, and random ones from a seed."""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support import raw_zookeeper as raw
from tests.support.raw_zookeeper import Acl, Operation, Request

# A path that begins with this belongs below the run's own root.
BELOW_ROOT = "~"


class _LastZxidBeforeDrop:
    """Stands for what a client names in SetWatches: the last zxid that it had seen on the connection it lost."""

    def __repr__(self) -> str:
        return "LAST_ZXID_BEFORE_DROP"


LAST_ZXID_BEFORE_DROP = _LastZxidBeforeDrop()


@dataclass(frozen=True, slots=True)
class Call:
    """A request yet to be encoded: one of `raw_zookeeper`'s builders and its arguments, nested calls among them."""

    build: Callable[..., Request]
    arguments: tuple[Any, ...]

    def request(self, root: str, last_zxid_before_drop: int) -> Request:
        """The encoded request, with paths below `root`."""

        def resolve(argument: Any) -> Any:
            match argument:
                case Call():
                    return argument.request(root, last_zxid_before_drop)
                case _LastZxidBeforeDrop():
                    return last_zxid_before_drop
                case str() if argument.startswith(BELOW_ROOT):
                    return root + argument.removeprefix(BELOW_ROOT)
                case list():
                    return [resolve(entry) for entry in argument]
                case _:
                    return argument

        return self.build(*map(resolve, self.arguments))

    def __str__(self) -> str:
        shown = ", ".join(
            f"[{', '.join(map(str, argument))}]" if isinstance(argument, list) else _shown(argument)
            for argument in self.arguments
        )
        return f"{self.build.__name__}({shown})"


def _shown(argument: Any) -> str:
    match argument:
        case Call():
            return str(argument)
        case Operation():
            return argument.name
        case bytes() if len(argument) > 40:
            return f"<{len(argument)} bytes>"
        case _:
            return repr(argument)


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests of one session in one write; the replies are awaited together."""

    session: int
    calls: tuple[Call, ...]

    def __str__(self) -> str:
        return f"session {self.session}: " + "; ".join(map(str, self.calls))


@dataclass(frozen=True, slots=True)
class Drop:
    """The session's connection goes away without a word."""

    session: int


@dataclass(frozen=True, slots=True)
class Reattach:
    """The session comes back on a new connection."""

    session: int


@dataclass(frozen=True, slots=True)
class Renew:
    """The session is closed (its ephemeral znodes go) and a new one takes its place."""

    session: int


Step = Batch | Drop | Reattach | Renew


def call(build: Callable[..., Request], *arguments: Any) -> Call:
    """`Call` with the arguments as they would be given to the builder."""
    return Call(build, arguments)


def digest_identity(name: str, password: str) -> str:
    """The identity of the digest scheme: `name:base64(sha1(name:password))`."""
    return f"{name}:{base64.b64encode(hashlib.sha1(f'{name}:{password}'.encode()).digest()).decode()}"


SESSIONS = 3
_ALICE = digest_identity("alice", "wonder")
_BOB = digest_identity("bob", "builder")
_NAMES = ("a", "b")
_BAD_PATHS = ("", "a", "~/a/", "~//a", "~/a/./b", "~/a/../b", "~/a\x00b", "~/\x01", "~/a\uf8ff", "~/.", "~/..")
_ACL_LISTS: tuple[tuple[Acl, ...] | None, ...] = (
    raw.WORLD_ALL,
    (Acl(1, "world", "anyone"),),
    (Acl(31, "auth", ""),),
    (Acl(31, "digest", _ALICE),),
    (Acl(15, "digest", _ALICE), Acl(1, "world", "anyone")),
    (Acl(3, "digest", _BOB), Acl(16, "digest", _ALICE)),
    (Acl(31, "ip", "127.0.0.1"),),
    (Acl(31, "ip", "10.0.0.0/8"), Acl(9, "world", "anyone")),
    (Acl(31, "world", "anyone"), Acl(31, "world", "anyone")),
    (Acl(0, "world", "anyone"),),
    (),
    None,
    (Acl(31, "nonsense", "x"),),
    (Acl(31, "digest", "no-colon"),),
    (Acl(31, "world", "someone"),),
    (Acl(31, "ip", "300.1.1.1"),),
)
_CREDENTIALS = (b"alice:wonder", b"bob:builder", b"alice:wrong", b"nocolon", b"")


@dataclass(slots=True)
class Generator:
    """Random steps over a small set of paths, so that they meet."""

    random: random.Random
    dropped: set[int] = field(default_factory=set)

    def steps(self, count: int) -> list[Step]:
        """`count` steps of several sessions."""
        return [self._step() for _ in range(count)]

    def _step(self) -> Step:
        session = self.random.randrange(SESSIONS)
        roll = self.random.random()
        if session in self.dropped and roll < 0.5:
            self.dropped.remove(session)
            return Reattach(session)
        if roll < 0.03:
            self.dropped.add(session)
            return Drop(session)
        if roll < 0.06:
            return Reattach(session)
        if roll < 0.08:
            self.dropped.discard(session)
            return Renew(session)
        if roll < 0.11:
            # Alone in its batch: ZooKeeper answers it at once, past the requests that are still in its pipeline.
            return Batch(session, (call(raw.authentication, "digest", self.random.choice(_CREDENTIALS)),))
        calls: list[Call] = []
        for _ in range(self.random.choice((1, 1, 1, 1, 2, 4, 8))):
            calls.append(self._call())
            # Requests in ZooKeeper's pipeline behind a new access control list meet the old or the new one by chance.
            if calls[-1].build is raw.set_acl:
                break
        return Batch(session, tuple(calls))

    def _call(self) -> Call:
        roll = self.random.random()
        if roll < 0.45:
            return self._write()
        if roll < 0.75:
            return self._read()
        if roll < 0.85:
            return self._multi()
        return self._special()

    def _write(self) -> Call:
        path = self._path()
        match self.random.randrange(12):
            case 0 | 1 | 2 | 3 | 4 | 5:
                return self._create()
            case 6:
                return call(raw.delete, path, self._version())
            case 7 | 8 | 9:
                return call(raw.set_data, path, self._data(), self._version())
            case 10:
                return call(raw.set_acl, path, self._acls(), self._version())
            case _:
                return call(raw.create, path, self._data(), 4, self._acls(), Operation.CREATE_CONTAINER)

    def _create(self) -> Call:
        flags = self.random.choices((0, 1, 2, 3, 4, 5, 6, 7, -1), (30, 12, 6, 4, 2, 1, 1, 1, 1))[0]
        operation = self.random.choice((Operation.CREATE, Operation.CREATE2))
        if flags in {5, 6} and self.random.random() < 0.5:
            return call(raw.create, self._path(), self._data(), flags, self._acls(), Operation.CREATE_TTL, 3_600_000)
        return call(raw.create, self._path(), self._data(), flags, self._acls(), operation)

    def _read(self) -> Call:
        watch = self.random.random() < 0.5
        match self.random.randrange(9):
            case 0 | 1:
                return call(raw.read, Operation.EXISTS, self._path(), watch)
            case 2 | 3:
                return call(raw.read, Operation.GET_DATA, self._path(), watch)
            case 4:
                return call(raw.read, Operation.GET_CHILDREN, self._path(), watch)
            case 5:
                return call(raw.read, Operation.GET_CHILDREN2, self._path(), watch)
            case 6:
                return call(raw.on_path, Operation.GET_ACL, self._path())
            case 7:
                return call(raw.on_path, Operation.GET_EPHEMERALS, self.random.choice((self._path(), "/", "~")))
            case _:
                return call(raw.on_path, Operation.GET_ALL_CHILDREN_NUMBER, self._path())

    def _multi(self) -> Call:
        length = self.random.choice((0, 1, 2, 3, 5))
        if self.random.random() < 0.3:
            inner = [self._multi_read_part() for _ in range(length)]
            return call(raw.multi, inner, Operation.MULTI_READ)
        return call(raw.multi, [self._multi_part() for _ in range(length)])

    def _multi_part(self) -> Call:
        roll = self.random.random()
        if roll < 0.2:
            return call(raw.check, self._path(), self._version())
        if roll < 0.23:
            return self._multi_read_part()
        while True:
            part = self._write()
            # ZooKeeper has no multi of set_acl and closes the connection, with what is behind it in the pipeline.
            if part.build is not raw.set_acl:
                return part

    def _multi_read_part(self) -> Call:
        operation = self.random.choice((Operation.GET_DATA, Operation.GET_CHILDREN))
        return call(raw.read, operation, self._path(), False)

    def _special(self) -> Call:
        match self.random.randrange(10):
            case 0 | 1 | 2:
                return call(raw.watches, Operation.ADD_WATCH, self._path(), self.random.choice((0, 1, 1, 0, 2)))
            case 3 | 4:
                operation = self.random.choice((Operation.REMOVE_WATCHES, Operation.CHECK_WATCHES))
                return call(raw.watches, operation, self._path(), self.random.choice((1, 2, 3, 3, 0)))
            case 5:
                return call(raw.on_path, Operation.SYNC, self._path())
            case 6 | 7:
                return call(raw.set_watches, LAST_ZXID_BEFORE_DROP, *(self._some_paths() for _ in range(3)))
            case 8:
                return call(raw.set_watches, LAST_ZXID_BEFORE_DROP, *(self._some_paths() for _ in range(5)))
            case _:
                return call(raw.Request, Operation.WHO_AM_I, b"")

    def _path(self) -> str:
        roll = self.random.random()
        if roll < 0.03:
            return self.random.choice(_BAD_PATHS)
        if roll < 0.06:
            return "~"
        path = "~"
        for _ in range(self.random.choice((1, 1, 1, 1, 1, 2, 2, 3))):
            suffix = f"{self.random.randrange(4):010}" if self.random.random() < 0.08 else ""
            path += f"/{self.random.choice(_NAMES)}{suffix}"
        return path

    def _some_paths(self) -> list[str]:
        # No client watches the empty path, and ZooKeeper has odd events for it.
        return [self._path() or "~" for _ in range(self.random.choice((0, 1, 2)))]

    def _version(self) -> int:
        return self.random.choices((-1, 0, 1, 2, 5, -2), (50, 15, 10, 5, 2, 1))[0]

    def _data(self) -> bytes | None:
        roll = self.random.random()
        if roll < 0.03:
            return None
        if roll < 0.06:
            return self.random.randbytes(20_000)
        return self.random.randbytes(self.random.randrange(12))

    def _acls(self) -> Sequence[Acl] | None:
        return raw.WORLD_ALL if self.random.random() < 0.88 else self.random.choice(_ACL_LISTS)


def random_steps(seed: int, count: int) -> list[Step]:
    """The steps of one seed."""
    return Generator(random.Random(seed)).steps(count)
