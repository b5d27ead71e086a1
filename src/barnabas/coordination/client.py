"""The client: a session with a ZooKeeper ensemble or with the embedded coordinator, with a method for each
operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from barnabas.coordination.errors import ConnectionLossError, CoordinationError, NodeExistsError, UnimplementedError
from barnabas.coordination.operations import (
    Check,
    CountDescendants,
    Create,
    Created,
    Delete,
    Exists,
    GetAcl,
    GetChildren,
    GetData,
    GetEphemerals,
    Multi,
    MultiGetChildrenNames,
    MultiGetData,
    MultiGetWritten,
    MultiRead,
    Operation,
    SetAcl,
    SetData,
    Sync,
    Watcher,
    WrittenData,
    ZnodeAcl,
    ZnodeChildren,
    ZnodeData,
)
from barnabas.coordination.paths import parent_of
from barnabas.coordination.protocol import ANY_VERSION, OPEN_ACL, Acl, CreateMode, Stat
from barnabas.coordination.session import Session

Answer = TypeVar("Answer")
# Measured: more paths in one request do not make reading faster, and delay what other sessions ask of the server.
MULTI_READ_PATHS = 100


class Client(Session):
    """One session. Make it, `await connect()`, use it, `await close()`.

    Operations under way when a connection breaks fail with `ConnectionLossError`: they may have happened, and the
    caller must find out. Operations that find no connection wait for one, and those that find no room for it; after
    a session's time-out without a connection they fail with `NotSentError`. Once the session is over all fail with
    `SessionExpiredError`, `AuthFailedError` or `ClientClosedError`, and a new client must be made.

    Operations of one call are sent in order; calls that overlap share the room in turns. Watchers and answers
    arrive in the order of the wire: a watcher is called before anybody sees an answer that the server gave after
    the change. A watcher is called exactly once: with its event, or, with the type NONE, when the session is over.
    """

    _multi_read_known: bool | None = None
    """None until a server has shown whether it knows multiRead."""

    async def perform(self, operation: Operation[Answer]) -> Answer:
        """Sends one operation and returns its answer, or raises its error."""
        outcome = (await self.submit((operation,)))[0]
        if isinstance(outcome, CoordinationError):
            raise outcome
        answer: Answer = outcome
        return answer

    async def create(
        self,
        path: str,
        data: bytes | None = b"",
        *,
        acl: tuple[Acl, ...] = OPEN_ACL,
        mode: CreateMode = CreateMode.PERSISTENT,
        ttl_ms: int = 0,
    ) -> str:
        """Makes a znode and returns its path, which ends with a number if the znode is sequential."""
        return (await self.perform(Create(path, data, acl, mode, ttl_ms=ttl_ms))).path

    async def create_with_stat(
        self,
        path: str,
        data: bytes | None = b"",
        *,
        acl: tuple[Acl, ...] = OPEN_ACL,
        mode: CreateMode = CreateMode.PERSISTENT,
    ) -> tuple[str, Stat]:
        """Makes a znode and returns its path and its stat, whose `czxid` is Kafka's broker epoch (create2,
        ZooKeeper 3.5).
        """
        created: Created = await self.perform(Create(path, data, acl, mode, with_stat=True))
        if created.stat is None:
            raise UnimplementedError(path, "create2 needs ZooKeeper 3.5")
        return created.path, created.stat

    async def ensure_path(self, path: str, *, acl: tuple[Acl, ...] = OPEN_ACL) -> None:
        """Makes the znode, and those above it, where they are missing, without data."""
        ancestors = []
        while path != "/":
            ancestors.append(path)
            path = parent_of(path)
        outcomes = await self.submit([Create(ancestor, None, acl) for ancestor in reversed(ancestors)])
        for outcome in outcomes:
            if isinstance(outcome, CoordinationError) and not isinstance(outcome, NodeExistsError):
                raise outcome

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.perform(Delete(path, version))

    async def set_data(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> Stat:
        return await self.perform(SetData(path, data, version))

    async def get_data(self, path: str, watcher: Watcher | None = None) -> ZnodeData:
        return await self.perform(GetData(path, watcher))

    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        """The stat, or None where there is no znode."""
        return await self.perform(Exists(path, watcher))

    async def get_children(self, path: str, watcher: Watcher | None = None) -> ZnodeChildren:
        return await self.perform(GetChildren(path, watcher))

    async def get_acl(self, path: str) -> ZnodeAcl:
        return await self.perform(GetAcl(path))

    async def set_acl(self, path: str, acl: tuple[Acl, ...], version: int = ANY_VERSION) -> Stat:
        return await self.perform(SetAcl(path, acl, version))

    async def sync(self, path: str = "/") -> None:
        """Returns when the server has caught up with its leader."""
        await self.perform(Sync(path))

    async def get_ephemerals(self, prefix: str = "/") -> list[str]:
        return await self.perform(GetEphemerals(prefix))

    async def count_descendants(self, path: str) -> int:
        return await self.perform(CountDescendants(path))

    async def multi(self, operations: Sequence[Create | Delete | SetData | Check]) -> list[Any]:
        """Does all or nothing. Returns the answers in order, or raises `MultiFailedError`."""
        return await self.perform(Multi(tuple(operations)))

    async def get_many(self, paths: Sequence[str]) -> list[ZnodeData | CoordinationError]:
        """Reads many znodes; data or error of each, in order. By multiRead where the server has it (ZooKeeper 3.6),
        else by a read for each.
        """
        return await self._read_many([MultiGetData(chunk) for chunk in _chunks(paths)])

    async def get_written_of_many(self, paths: Sequence[str]) -> list[WrittenData | CoordinationError]:
        """`get_many` with no more of the stats than tells of the last write, in two thirds of the time."""
        return await self._read_many([MultiGetWritten(chunk) for chunk in _chunks(paths)])

    async def get_children_names_of_many(self, paths: Sequence[str]) -> list[list[str] | CoordinationError]:
        """The names of the children of many znodes; names or error of each, in order."""
        return await self._read_many([MultiGetChildrenNames(chunk) for chunk in _chunks(paths)])

    async def _read_many(self, reads: Sequence[MultiRead[Any]]) -> list[Any]:
        if self._multi_read_known is False:
            return await self.submit([single for read in reads for single in read.singly()])
        outcomes: list[Any] = []
        for read, answers in zip(reads, await self.submit(reads), strict=True):
            if isinstance(answers, list):
                self._multi_read_known = True
                outcomes.extend(answers)
            elif isinstance(answers, UnimplementedError) or self._may_not_know_multi_read(answers):
                if isinstance(answers, UnimplementedError):
                    self._multi_read_known = False
                outcomes.extend(await self.submit(read.singly()))
            else:
                outcomes.extend([answers] * len(read.paths))
        return outcomes

    def _may_not_know_multi_read(self, error: CoordinationError) -> bool:
        # Some servers drop the connection at an operation that they do not know. A read may be repeated.
        return self._multi_read_known is None and isinstance(error, ConnectionLossError)


def _chunks(paths: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(paths[start : start + MULTI_READ_PATHS]) for start in range(0, len(paths), MULTI_READ_PATHS)]
