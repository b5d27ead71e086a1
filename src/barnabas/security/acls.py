"""ACLs: which principal may, or may not, do what with which resource, from which host; and filters that pick them.

Codes and names are those of the protocol and of the znodes; a name that this version does not know is UNKNOWN, as in
Kafka, and permits nothing. Sources: KIP-11, KIP-140 (codes), KIP-290 (prefixed patterns, MATCH).
"""

from __future__ import annotations

import enum
import functools
from typing import Final, NamedTuple, Self

WILDCARD_RESOURCE: Final = "*"
WILDCARD_HOST: Final = "*"
WILDCARD_PRINCIPAL: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""


class _Spelled(enum.IntEnum):
    """An enumeration whose names are spelled in pascal case in ZooKeeper: `AlterConfigs`."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """A code that this version does not know is UNKNOWN."""
        return cls(0) if isinstance(value, int) else None

    @property
    def spelling(self) -> str:
        return _spellings(type(self))[self]

    @classmethod
    def of(cls, spelling: str) -> Self:
        """The member of that name, in any case and without underscores; UNKNOWN where there is none."""
        return cls(_by_spelling(cls).get(spelling.upper(), 0))


@functools.cache
def _spellings(kind: type[_Spelled]) -> dict[int, str]:
    return {member: "".join(word.capitalize() for word in member.name.split("_")) for member in kind}


@functools.cache
def _by_spelling(kind: type[_Spelled]) -> dict[str, int]:
    return {member.name.replace("_", ""): int(member) for member in kind}


class ResourceType(_Spelled):
    """What an ACL is about; ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Spelled):
    """How the name of a pattern is meant. ANY and MATCH are for filters: ANY takes patterns of that very name, MATCH
    takes all that cover a resource of that name.
    """

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_Spelled):
    """What is done with a resource; the code is also the number of its bit (KIP-430). ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class AclPermissionType(_Spelled):
    """What an ACL does for whom it fits; ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_RESOURCES: Final = frozenset(ResourceType) - {ResourceType.UNKNOWN, ResourceType.ANY}
_PATTERNS: Final = frozenset({PatternType.LITERAL, PatternType.PREFIXED})
_OPERATIONS: Final = frozenset(AclOperation) - {AclOperation.UNKNOWN, AclOperation.ANY}
_PERMISSIONS: Final = frozenset({AclPermissionType.DENY, AclPermissionType.ALLOW})


class ResourcePattern(NamedTuple):
    """The resource of that name, or all whose names start with it (PREFIXED); the literal `*` means all."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL


class AccessControlEntry(NamedTuple):
    """One rule of a pattern: `principal` is `TYPE:NAME`, and `User:*` is everybody; `host` is an address, or `*`.

    A tuple, since decisions look such tuples up in sets.
    """

    principal: str
    host: str
    operation: AclOperation
    permission_type: AclPermissionType


class AclBinding(NamedTuple):
    """A rule and what it is about."""

    pattern: ResourcePattern
    entry: AccessControlEntry


class AclBindingError(ValueError):
    """An ACL that cannot be; the message says why."""


def check_principal(text: str) -> str:
    """`text`, which is `TYPE:NAME`; raises `AclBindingError` where it is not."""
    if ":" not in text:
        raise AclBindingError(f"a principal is written TYPE:NAME, as in User:alice, but this one is {text!r}")
    return text


def check_binding(binding: AclBinding) -> None:
    """Raises `AclBindingError` for an ACL that must not be kept: values that no rule has, or a name with a slash,
    which would be two znodes.
    """
    pattern, entry = binding
    if (
        pattern.resource_type not in _RESOURCES
        or pattern.pattern_type not in _PATTERNS
        or entry.operation not in _OPERATIONS
        or entry.permission_type not in _PERMISSIONS
    ):
        raise AclBindingError(
            "an ACL names one type of resource, LITERAL or PREFIXED, one operation or ALL, and ALLOW or DENY; this one "
            f"has {pattern.resource_type.name}, {pattern.pattern_type.name}, {entry.operation.name}, "
            f"{entry.permission_type.name}"
        )
    if "/" in pattern.name:
        raise AclBindingError(f"the name of a resource has no slash, but this one is {pattern.name!r}")
    check_principal(entry.principal)


class ResourcePatternFilter(NamedTuple):
    """Picks patterns; a `name` of None is any."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY

    def matches(self, pattern: ResourcePattern) -> bool:
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return self.name == pattern.name
        if pattern.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name in (self.name, WILDCARD_RESOURCE)

    def named_patterns(self) -> tuple[ResourcePattern, ...] | None:
        """All patterns that can match, known or not; None where they are not given by the filter alone."""
        if self.resource_type not in _RESOURCES or self.name is None:
            return None
        if self.pattern_type in _PATTERNS:
            return (ResourcePattern(self.resource_type, self.name, self.pattern_type),)
        if self.pattern_type is not PatternType.ANY:
            return None
        return (
            ResourcePattern(self.resource_type, self.name, PatternType.LITERAL),
            ResourcePattern(self.resource_type, self.name, PatternType.PREFIXED),
        )


class AccessControlEntryFilter(NamedTuple):
    """Picks entries; None and ANY are any. `*` and `User:*` pick only entries that say so."""

    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission_type: AclPermissionType = AclPermissionType.ANY

    def matches(self, entry: AccessControlEntry) -> bool:
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission_type in (AclPermissionType.ANY, entry.permission_type)
        )


class AclBindingFilter(NamedTuple):
    """Picks ACLs by both."""

    pattern: ResourcePatternFilter = ResourcePatternFilter()
    entry: AccessControlEntryFilter = AccessControlEntryFilter()

    def matches(self, binding: AclBinding) -> bool:
        return self.pattern.matches(binding.pattern) and self.entry.matches(binding.entry)
