"""The ACLs of a cluster, and what follows from them: Kafka's `AclAuthorizer` without its ZooKeeper.

Invariant: nothing is allowed that no rule allows. An operation is allowed to a super user; else, where ACLs apply to
the resource, if none of them denies it and one allows it; else by `allow.everyone.if.no.acl.found`. That a rule denies
READ does not deny DESCRIBE, while one that allows READ allows DESCRIBE too.

A decision costs a few look-ups in sets, however many ACLs there are: patterns are found by name, prefixes by each
length that some prefix has. Sources: KIP-11, KIP-290, KIP-679 (`authorize_by_resource_type`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from barnabas.security.acls import (
    WILDCARD_HOST,
    WILDCARD_PRINCIPAL,
    WILDCARD_RESOURCE,
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)

Entries = frozenset[AccessControlEntry]
_Key = tuple[ResourceType, PatternType, AccessControlEntry]
NO_ENTRIES: Final[Entries] = frozenset()
_LOOKED_AT_PER_PIECE: Final = 4096
"""Patterns and entries."""
_ALLOWED_BY: Final = {
    AclOperation.DESCRIBE: (
        AclOperation.DESCRIBE,
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.ALL,
    ),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS, AclOperation.ALL),
}
"""Which operations an ACL may allow to allow these; all others are allowed by themselves and ALL."""


class AclRules:
    """The ACLs that are known, by pattern; `epoch` changes with every change, so that decisions can be kept by it."""

    def __init__(self, *, super_users: Iterable[str] = (), allow_everyone_if_no_acl_found: bool = False) -> None:
        self.epoch = 0
        self._super_users = frozenset(super_users)
        self._open = allow_everyone_if_no_acl_found
        self._entries: dict[ResourcePattern, Entries] = {}
        self._prefix_lengths: dict[ResourceType, Counter[int]] = {}
        """How many prefixes of each length there are."""
        self._names: dict[_Key, set[str]] = {}
        """The names of the patterns that have an entry; the index of `authorize_by_resource_type`."""

    def entries(self, pattern: ResourcePattern) -> Entries:
        return self._entries.get(pattern, NO_ENTRIES)

    def patterns(self) -> tuple[ResourcePattern, ...]:
        """All patterns with entries."""
        return tuple(self._entries)

    def replace(self, pattern: ResourcePattern, entries: Iterable[AccessControlEntry]) -> None:
        """`entries` are all that hold for `pattern` from now on; without any, it is unknown again."""
        before, after = self.entries(pattern), frozenset(entries)
        if before == after:
            return
        self.epoch += 1
        kind = pattern.resource_type, pattern.pattern_type
        for entry in before - after:
            names = self._names[*kind, entry]
            names.remove(pattern.name)
            if not names:
                del self._names[*kind, entry]
        for entry in after - before:
            self._names.setdefault((*kind, entry), set()).add(pattern.name)
        if not after:
            del self._entries[pattern]
        else:
            self._entries[pattern] = after
        if pattern.pattern_type is PatternType.PREFIXED and bool(before) != bool(after):
            self._count_prefix(pattern, 1 if after else -1)

    def matching(self, filter_: AclBindingFilter) -> Iterator[AclBinding]:
        """The ACLs that `filter_` picks; those of one pattern follow each other."""
        for found in self.matching_in_pieces(filter_):
            for pattern, entries in found:
                for entry in entries:
                    yield AclBinding(pattern, entry)

    def matching_in_pieces(
        self, filter_: AclBindingFilter
    ) -> Iterator[list[tuple[ResourcePattern, list[AccessControlEntry]]]]:
        """The patterns that have ACLs which `filter_` picks, with these. After each piece, which may be empty, others
        can have their turn: a snapshot of the patterns is gone through, and a pattern that has changed meanwhile is as
        it is when its turn comes.
        """
        found: list[tuple[ResourcePattern, list[AccessControlEntry]]] = []
        looked_at = 0
        named = filter_.pattern.named_patterns()
        for pattern in self.patterns() if named is None else named:
            looked_at += 1
            if filter_.pattern.matches(pattern):
                entries = self.entries(pattern)
                looked_at += len(entries)
                if picked := [entry for entry in sorted(entries) if filter_.entry.matches(entry)]:
                    found.append((pattern, picked))
            if looked_at >= _LOOKED_AT_PER_PIECE:
                yield found
                found, looked_at = [], 0
        yield found

    def authorize(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether `principal`, calling from the address `host`, may do `operation` with one resource."""
        if principal in self._super_users:
            return True
        found = self._applying(resource_type, name)
        if not found:
            return self._open
        if _any_has(found, _keys(principal, host, (operation, AclOperation.ALL), AclPermissionType.DENY)):
            return False
        allowed_by = _ALLOWED_BY.get(operation, (operation, AclOperation.ALL))
        return _any_has(found, _keys(principal, host, allowed_by, AclPermissionType.ALLOW))

    def authorize_by_resource_type(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Whether there is at least one resource of the type, existing or not, with which `operation` is allowed.

        As in Kafka, no operation implies another here, and with `allow.everyone.if.no.acl.found` all is allowed but
        what is denied for every name.
        """
        if operation in (AclOperation.UNKNOWN, AclOperation.ANY):
            raise ValueError(f"{operation.name} is not one operation")
        if resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
            raise ValueError(f"{resource_type.name} is not one type of resource")
        if principal in self._super_users:
            return True
        operations = operation, AclOperation.ALL
        denials = _keys(principal, host, operations, AclPermissionType.DENY)
        denied = self._named(resource_type, PatternType.LITERAL, denials)
        if any(WILDCARD_RESOURCE in names for names in denied):
            return False
        if self._open:
            return True
        denied_prefixes = _Prefixes(self._named(resource_type, PatternType.PREFIXED, denials))
        permits = _keys(principal, host, operations, AclPermissionType.ALLOW)
        for names in self._named(resource_type, PatternType.PREFIXED, permits):
            if not all(denied_prefixes.covers(prefix) for prefix in names):
                return True
        for names in self._named(resource_type, PatternType.LITERAL, permits):
            if WILDCARD_RESOURCE in names:
                return True
            for name in names:
                if not any(name in others for others in denied) and not denied_prefixes.covers(name):
                    return True
        return False

    def _applying(self, resource_type: ResourceType, name: str) -> list[Entries]:
        """The entries of all patterns that cover the resource; empty where no pattern does."""
        get = self._entries.get
        patterns = [
            ResourcePattern(resource_type, name, PatternType.LITERAL),
            ResourcePattern(resource_type, WILDCARD_RESOURCE, PatternType.LITERAL),
        ]
        size = len(name)
        for length in self._prefix_lengths.get(resource_type, ()):
            if 0 < length <= size:  # An empty prefix covers nothing, as in Kafka.
                patterns.append(ResourcePattern(resource_type, name[:length], PatternType.PREFIXED))
        return [entries for pattern in patterns if (entries := get(pattern))]

    def _count_prefix(self, pattern: ResourcePattern, change: int) -> None:
        lengths = self._prefix_lengths.setdefault(pattern.resource_type, Counter())
        length = len(pattern.name)
        lengths[length] += change
        if not lengths[length]:
            del lengths[length]

    def _named(
        self, resource_type: ResourceType, pattern_type: PatternType, entries: Iterable[AccessControlEntry]
    ) -> list[set[str]]:
        return [names for entry in entries if (names := self._names.get((resource_type, pattern_type, entry)))]


class _Prefixes:
    """Whether a name starts with one of many prefixes, in a time that grows with their number's logarithm.

    Invariant: `_shortest` is sorted, and none of it starts with another of it. So all of it that lies between a prefix
    and a name that starts with it would start with that prefix too, and there is none: the last one not above the name
    is the only one that can cover it.
    """

    def __init__(self, sets: Iterable[set[str]]) -> None:
        self._shortest: list[str] = []
        for prefix in sorted(set().union(*sets)):
            # An empty prefix covers nothing, as in Kafka.
            if prefix and not (self._shortest and prefix.startswith(self._shortest[-1])):
                self._shortest.append(prefix)

    def covers(self, name: str) -> bool:
        index = bisect_right(self._shortest, name)
        return index > 0 and name.startswith(self._shortest[index - 1])


def _keys(
    principal: str, host: str, operations: Iterable[AclOperation], permission: AclPermissionType
) -> list[AccessControlEntry]:
    """All entries that would fit."""
    return [
        AccessControlEntry(whose, where, operation, permission)
        for operation in operations
        for whose in (principal, WILDCARD_PRINCIPAL)
        for where in (host, WILDCARD_HOST)
    ]


def _any_has(found: Iterable[Entries], keys: Iterable[AccessControlEntry]) -> bool:
    return any(not entries.isdisjoint(keys) for entries in found)
