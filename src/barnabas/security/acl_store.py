"""The ACLs of a cluster in ZooKeeper, as Kafka's `AclAuthorizer` keeps them: read into `AclRules`, and changed.

Invariant: a change of a pattern's rules and its announcement are one transaction, against the version that was read, so
that no broker is left with rules that it was not told of, and no change by another broker is overwritten. Kafka's
broker writes the announcement after the change; other brokers see the same.

A pattern is read or changed by one task at a time, so that what is read later stays; who has many to change lets others
in between two of them, since a rule that another broker has taken away must not hold here until a long request ends. No
turn has more than some thousand rules or filters to look at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from barnabas.coordination.errors import (
    BadVersionError,
    ConnectionLossError,
    CoordinationError,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
)
from barnabas.coordination.layout.acls import (
    EXTENDED_ACL_CHANGES_PATH,
    EXTENDED_ACLS_PATH,
    LITERAL_ACL_CHANGES_PATH,
    AclPatternType,
    AclResource,
    AclResourceType,
    acl_change_path,
    acls_path,
    acls_root_path,
    acls_type_path,
    encode_acl_change,
)
from barnabas.coordination.operations import Create, Delete, GetData, SetData, ZnodeData
from barnabas.coordination.ports import Store
from barnabas.coordination.protocol import CreateMode
from barnabas.kernel.host import Host
from barnabas.kernel.timers import Timers
from barnabas.kernel.turns import in_turns, yield_to_loop
from barnabas.security.acl_rules import NO_ENTRIES, AclRules, Entries
from barnabas.security.acl_znodes import ReadEntries, encode_entries, pattern_of, read_in_steps, resource_of
from barnabas.security.acls import (
    AclBinding,
    AclBindingError,
    AclBindingFilter,
    PatternType,
    ResourcePattern,
    check_binding,
)

UPDATES_MAX: Final = 11
"""How often a change is tried while others change the same rules; as in Kafka."""
ENTRIES_MAX: Final = 16_384
"""How many rules a pattern can have at most: shorter ones than would fit into a znode there are not."""
_CHANGED: Final = (BadVersionError, NoNodeError)
_BACKOFF_MS: Final = 100
_JITTER_MS: Final = 50
_READ_AT_ONCE: Final = 32
"""Each may have a MiB, and a reply of the coordinator has a bound."""
_LOOKED_AT_PER_TURN: Final = 4096
_Change = Callable[[Entries], Awaitable[Entries]]
"""Makes of all rules of a pattern those that are to be."""


class AclUpdateError(Exception):
    """A change that did not come through, since others changed the same rules all the time. It can be tried again."""


class AclDeletion(NamedTuple):
    """A rule that a filter picked; `error` says why it is still there."""

    binding: AclBinding
    error: Exception | None = None


class _Pieces:
    """Gives way to the loop after each piece of work that is long in sum."""

    def __init__(self) -> None:
        self._done = 0

    async def add(self, work: int) -> None:
        """So many rules or filters were looked at, or are about to be."""
        self._done += work
        if self._done >= _LOOKED_AT_PER_TURN:
            self._done = 0
            await yield_to_loop()


def _adding(bindings: Sequence[AclBinding], indexes: Iterable[int]) -> _Change:
    added = frozenset(bindings[index].entry for index in indexes)

    async def change(entries: Entries) -> Entries:
        after = entries | added
        if len(after) > ENTRIES_MAX:
            raise AclBindingError(
                f"one resource or prefix can have {ENTRIES_MAX} ACLs, which is what a znode can hold, and this would "
                f"be {len(after)}; use groups of principals, or prefixed patterns"
            )
        return after

    return change


class AclStore:
    """Keeps `rules` as ZooKeeper has them whenever it is told to read, and changes both."""

    def __init__(
        self,
        host: Host,
        store: Store,
        rules: AclRules,
        *,
        timers: Timers,
        logger: logging.Logger,
        takes_prefixed: bool = True,
    ) -> None:
        """`takes_prefixed` says that every broker knows prefixed patterns: whether `inter.broker.protocol.version` is
        2.0-IV1 or newer.
        """
        self._host = host
        self._store = store
        self._rules = rules
        self._timers = timers
        self._logger = logger
        self._takes_prefixed = takes_prefixed
        self._one_at_a_time = asyncio.Lock()

    async def create_paths(self) -> None:
        """Makes the znodes that all others are below, where they are missing. Raises `CoordinationError`."""
        paths = [EXTENDED_ACLS_PATH]
        for pattern_type in AclPatternType:
            paths.append(acls_root_path(pattern_type))
            paths += [acls_type_path(pattern_type, resource_type) for resource_type in AclResourceType]
        paths += [LITERAL_ACL_CHANGES_PATH, EXTENDED_ACL_CHANGES_PATH]
        creations = [Create(path, b"") for path in paths]
        for outcome in await self._store.submit(creations):
            if isinstance(outcome, CoordinationError) and not isinstance(outcome, NodeExistsError):
                raise outcome

    async def load(self) -> None:
        """Reads all rules. Raises `CoordinationError`; what was read until then holds, and the rest as before."""
        async with self._one_at_a_time:
            gone = dict.fromkeys(self._rules.patterns())
            every = await self._patterns()
            for start in range(0, len(every), _READ_AT_ONCE):
                for pattern in await self._take(every[start : start + _READ_AT_ONCE]):
                    gone.pop(pattern, None)
            await self._remove(gone)

    async def refresh(self, patterns: Iterable[ResourcePattern]) -> None:
        """Reads the rules of these patterns, as after their announcement. Raises `CoordinationError`."""
        every = list(dict.fromkeys(patterns))
        for start in range(0, len(every), _READ_AT_ONCE):
            async with self._one_at_a_time:
                some = every[start : start + _READ_AT_ONCE]
                found = set(await self._take(some))
                await self._remove(pattern for pattern in some if pattern not in found)

    async def create(self, bindings: Sequence[AclBinding]) -> list[Exception | None]:
        """Adds rules; returns for each why it could not be, in order."""
        outcomes: list[Exception | None] = [None] * len(bindings)
        by_pattern: dict[ResourcePattern, list[int]] = {}
        pieces = _Pieces()
        for index, binding in enumerate(bindings):
            await pieces.add(1)
            try:
                self._check(binding)
            except AclBindingError as error:
                outcomes[index] = error
            else:
                by_pattern.setdefault(binding.pattern, []).append(index)
        for pattern, indexes in by_pattern.items():
            try:
                await self._update(pattern, _adding(bindings, indexes))
            except (CoordinationError, AclUpdateError, AclBindingError) as error:
                for index in indexes:
                    outcomes[index] = error
        return outcomes

    async def delete(self, filters: Sequence[AclBindingFilter]) -> list[list[AclDeletion]]:
        """Removes what the filters pick; returns it for each filter, in order. What several pick is the first one's.

        Rules that this broker has not heard of yet are found by filters that name their pattern, by others not.
        """
        deletions: list[list[AclDeletion]] = [[] for _ in filters]
        pieces = _Pieces()
        patterns = dict.fromkeys(self._rules.patterns())
        by_name: dict[ResourcePattern, list[int]] = {}
        others: list[int] = []
        for index, filter_ in enumerate(filters):
            await pieces.add(1)
            named = filter_.pattern.named_patterns()
            if named is None:
                others.append(index)
            for pattern in named or ():
                by_name.setdefault(pattern, []).append(index)
                patterns[pattern] = None
        for pattern in patterns:
            picking = list(by_name.get(pattern, ()))
            for index in others:
                await pieces.add(1)
                if filters[index].pattern.matches(pattern):
                    picking.append(index)
            await pieces.add(1)
            if picking:
                picking.sort()
                for index, deletion in await self._delete(pattern, filters, picking):
                    deletions[index].append(deletion)
        return deletions

    async def _delete(
        self, pattern: ResourcePattern, filters: Sequence[AclBindingFilter], picking: Sequence[int]
    ) -> list[tuple[int, AclDeletion]]:
        """What the filters at the indexes `picking` remove from one pattern, with the index of the first."""
        picked: list[tuple[int, AclBinding]] = []

        async def without_picked(entries: Entries) -> Entries:
            picked.clear()
            pieces = _Pieces()
            for entry in sorted(entries):
                for index in picking:
                    await pieces.add(1)
                    if filters[index].entry.matches(entry):
                        picked.append((index, AclBinding(pattern, entry)))
                        break
            return entries - {binding.entry for _, binding in picked}

        error: Exception | None = None
        try:
            await self._update(pattern, without_picked)
        except (CoordinationError, AclUpdateError) as failure:
            error = failure
            if not picked:
                # Not even read: what is known of it is what stays.
                await without_picked(self._rules.entries(pattern))
        return [(index, AclDeletion(binding, error)) for index, binding in picked]

    async def _update(self, pattern: ResourcePattern, change: _Change) -> None:
        """Puts what `change` makes of a pattern's rules in their place; it is called anew for each attempt.

        Raises `CoordinationError` and `AclUpdateError`, and what `change` does.
        """
        async with self._one_at_a_time:
            await self._update_alone(pattern, change)

    async def _update_alone(self, pattern: ResourcePattern, change: _Change) -> None:
        resource = resource_of(pattern)
        path = acls_path(resource)
        found: ZnodeData | None = None
        for _ in range(UPDATES_MAX):
            try:
                found = await self._find(path)
                before = (await self._read(found, path)).entries
                after = await change(before)
                if after != before:
                    await self._store.multi([self._write(path, found, after), self._announcement(resource)])
                    self._logger.info("Updated ACLs for %s", path)
            except MultiFailedError as failure:
                if failure.index or not isinstance(failure.error, _CHANGED if found else NodeExistsError):
                    raise failure.error from None
                self._logger.debug("The ACLs of %s were changed meanwhile; trying again", path)
            except ConnectionLossError:
                # Whether it happened shows when it is read again; its announcement happened with it.
                if self._store.state.is_final:
                    raise
            else:
                self._rules.replace(pattern, after)
                return
            await self._timers.sleep(_BACKOFF_MS + self._host.random.random() * _JITTER_MS)
        raise AclUpdateError(
            f"the ACLs of {path} could not be changed in {UPDATES_MAX} attempts, since others change them or the "
            "connection to ZooKeeper does not last; try again"
        )

    def _check(self, binding: AclBinding) -> None:
        check_binding(binding)
        if binding.pattern.pattern_type is PatternType.PREFIXED and not self._takes_prefixed:
            raise AclBindingError(
                "an ACL of a prefixed pattern needs inter.broker.protocol.version=2.0 or newer: brokers before would "
                "not know it"
            )

    def _write(self, path: str, found: ZnodeData | None, entries: Entries) -> Create | SetData | Delete:
        if found is None:
            return Create(path, encode_entries(entries))
        if entries:
            return SetData(path, encode_entries(entries), found.stat.version)
        return Delete(path, found.stat.version)

    def _announcement(self, resource: AclResource) -> Create:
        path = acl_change_path(resource.pattern_type)
        return Create(path, encode_acl_change(resource), mode=CreateMode.PERSISTENT_SEQUENTIAL)

    async def _find(self, path: str) -> ZnodeData | None:
        try:
            return await self._store.perform(GetData(path))
        except NoNodeError:
            return None

    async def _take(self, patterns: Sequence[ResourcePattern]) -> list[ResourcePattern]:
        """Reads the rules of some patterns; returns those that have a znode."""
        taken: list[ResourcePattern] = []
        pieces = _Pieces()
        paths = [acls_path(resource_of(pattern)) for pattern in patterns]
        for pattern, path, found in zip(patterns, paths, await self._store.get_many(paths), strict=True):
            if isinstance(found, NoNodeError):
                continue
            if isinstance(found, CoordinationError):
                raise found
            entries = (await self._read(found, path)).entries
            self._rules.replace(pattern, entries)
            taken.append(pattern)
            await pieces.add(1 + len(entries))
        return taken

    async def _remove(self, patterns: Iterable[ResourcePattern]) -> None:
        pieces = _Pieces()
        for pattern in patterns:
            await pieces.add(1 + len(self._rules.entries(pattern)))
            self._rules.replace(pattern, NO_ENTRIES)

    async def _read(self, found: ZnodeData | None, path: str) -> ReadEntries:
        read = await in_turns(read_in_steps(found.data if found else None, path))
        if read.damage is not None:
            self._logger.error(
                "All is denied that these ACLs are about, until the znode is mended, or its rule that denies all is "
                "deleted: %s",
                read.damage,
            )
        return read

    async def _patterns(self) -> list[ResourcePattern]:
        """All patterns that have a znode."""
        kinds: list[tuple[AclPatternType, AclResourceType]] = []
        for pattern_type in AclPatternType:
            (names,) = await self._names([acls_root_path(pattern_type)])
            for name in sorted(names):
                try:
                    kinds.append((pattern_type, AclResourceType(name)))
                except ValueError:
                    self._logger.warning("ACLs of an unknown type of resource are ignored: %s", name)
        children = await self._names([acls_type_path(*kind) for kind in kinds])
        patterns: list[ResourcePattern] = []
        pieces = _Pieces()
        for (pattern_type, resource_type), names in zip(kinds, children, strict=True):
            for name in sorted(names):
                patterns.append(pattern_of(AclResource(resource_type, name, pattern_type)))
                await pieces.add(1)
        return patterns

    async def _names(self, paths: Sequence[str]) -> list[list[str]]:
        """The children of each; none where there is no such znode."""
        result: list[list[str]] = []
        for found in await self._store.get_children_names_of_many(paths):
            if isinstance(found, NoNodeError):
                result.append([])
            elif isinstance(found, CoordinationError):
                raise found
            else:
                result.append(found)
        return result
