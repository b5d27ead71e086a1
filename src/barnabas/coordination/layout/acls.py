"""`/kafka-acl*`: who may do what, and the announcements of changes."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from barnabas.coordination.layout.payload import NO_EXTRA, Fields, LayoutError, decode_text, encode_json
from barnabas.kernel.steps import Steps, at_once, each

LITERAL_ACLS_PATH = "/kafka-acl"
EXTENDED_ACLS_PATH = "/kafka-acl-extended"
LITERAL_ACL_CHANGES_PATH = "/kafka-acl-changes"
EXTENDED_ACL_CHANGES_PATH = "/kafka-acl-extended-changes"
ACL_CHANGE_PREFIX = "acl_changes_"
VERSION = 1
_DECODED_PER_STEP: Final = 1024


class AclResourceType(enum.Enum):
    """What an ACL is about; the value is the znode's name, the name is what announcements say."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    TRANSACTIONAL_ID = "TransactionalId"
    DELEGATION_TOKEN = "DelegationToken"  # noqa: S105 - the name of a kind of resource
    USER = "User"


class AclPatternType(enum.Enum):
    """How the name of a resource is meant."""

    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


@dataclass(frozen=True, slots=True)
class AclResource:
    """A resource, or all whose names start with `name` when the pattern is PREFIXED; the literal `*` means all."""

    resource_type: AclResourceType
    name: str
    pattern_type: AclPatternType = AclPatternType.LITERAL


@dataclass(frozen=True, slots=True)
class AclEntry:
    """One rule: `User:alice`, `Allow` or `Deny`, a host or `*`, and `Read`, `ClusterAction`, `All`, ..., as Kafka
    spells them.
    """

    principal: str
    permission_type: str
    host: str
    operation: str


def acls_root_path(pattern_type: AclPatternType) -> str:
    if pattern_type is AclPatternType.LITERAL:
        return LITERAL_ACLS_PATH
    return f"{EXTENDED_ACLS_PATH}/{pattern_type.value.lower()}"


def acls_type_path(pattern_type: AclPatternType, resource_type: AclResourceType) -> str:
    return f"{acls_root_path(pattern_type)}/{resource_type.value}"


def acls_path(resource: AclResource) -> str:
    return f"{acls_type_path(resource.pattern_type, resource.resource_type)}/{resource.name}"


def acl_change_path(pattern_type: AclPatternType) -> str:
    """The path to create a sequential announcement at."""
    literal = pattern_type is AclPatternType.LITERAL
    return f"{LITERAL_ACL_CHANGES_PATH if literal else EXTENDED_ACL_CHANGES_PATH}/{ACL_CHANGE_PREFIX}"


@dataclass(frozen=True, slots=True)
class ResourceAcls:
    """Payload of `/kafka-acl/TYPE/NAME` and `/kafka-acl-extended/prefixed/TYPE/NAME`, version 1. A znode without
    data has no rules.
    """

    acls: tuple[AclEntry, ...]
    extra: Mapping[str, Any] = NO_EXTRA

    def encode(self) -> bytes:
        acls = [
            {
                "principal": entry.principal,
                "permissionType": entry.permission_type,
                "host": entry.host,
                "operation": entry.operation,
            }
            for entry in self.acls
        ]
        return encode_json({"acls": acls, "version": VERSION}, self.extra)

    @classmethod
    def decode(cls, data: bytes | None, path: str) -> ResourceAcls:
        return at_once(cls.decode_in_steps(data, path))

    @classmethod
    def decode_in_steps(cls, data: bytes | None, path: str) -> Steps[ResourceAcls]:
        """A znode may have more than ten thousand rules."""
        if not data:
            return cls(())
        fields = Fields.decode(data, path)
        yield
        version = fields.integer("version")
        if version != VERSION:
            raise fields.wrong("version", str(VERSION), version)
        acls = yield from each(_entry, fields.each_object("acls"), _DECODED_PER_STEP)
        return cls(tuple(acls), fields.rest())


def _entry(item: Fields) -> AclEntry:
    return AclEntry(item.text("principal"), item.text("permissionType"), item.text("host"), item.text("operation"))


def encode_acl_change(resource: AclResource) -> bytes:
    """Payload of a sequential `/kafka-acl-changes/acl_changes_*`, or of one below `/kafka-acl-extended-changes`
    when the pattern is not literal.
    """
    if resource.pattern_type is AclPatternType.LITERAL:
        return f"{resource.resource_type.name}:{resource.name}".encode()
    return encode_json(
        {
            "version": VERSION,
            "resourceType": resource.resource_type.name,
            "name": resource.name,
            "patternType": resource.pattern_type.value,
        }
    )


def decode_acl_change(data: bytes | None, path: str) -> AclResource:
    if path.startswith(f"{EXTENDED_ACL_CHANGES_PATH}/"):
        fields = Fields.decode(data, path)
        version = fields.integer("version")
        if version > VERSION:
            raise fields.wrong("version", f"at most {VERSION}", version)
        pattern = fields.text("patternType")
        if pattern not in AclPatternType.__members__:
            raise fields.wrong("patternType", "PREFIXED", pattern)
        return AclResource(
            _resource_type(fields.text("resourceType"), path), fields.text("name"), AclPatternType(pattern)
        )
    type_name, colon, name = decode_text(data, path).partition(":")
    if not colon:
        raise LayoutError(path, f"RESOURCETYPE:name was expected, but the data is {data!r}")
    return AclResource(_resource_type(type_name, path), name)


def _resource_type(name: str, path: str) -> AclResourceType:
    # Kafka takes the name of the type in upper case from its own announcements; brokers before 2.0 wrote it as in
    # paths.
    for resource_type in AclResourceType:
        if name.upper() in {resource_type.name, resource_type.value.upper()}:
            return resource_type
    raise LayoutError(
        path, f"{name!r} is not a type of resource; the types are {', '.join(AclResourceType.__members__)}"
    )
