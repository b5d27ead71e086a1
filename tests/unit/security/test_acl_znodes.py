"""Rules in znodes: Kafka's words, both ways; and what cannot be read opens nothing."""

from __future__ import annotations

import json

import pytest

from barnabas.coordination.layout.acls import acls_path
from barnabas.security.acl_rules import AclRules
from barnabas.security.acl_znodes import DENY_ALL, encode_entries, pattern_of, read_entries, resource_of
from barnabas.security.acls import (
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)

PATH = "/kafka-acl/Topic/orders"
KAFKAS = (
    b'{"version":1,"acls":[{"host":"10.0.0.1","permissionType":"Deny","operation":"AlterConfigs","principal":"User:a"},'
    b'{"host":"*","permissionType":"Allow","operation":"Read","principal":"User:CN=b,OU=c"}]}'
)
ENTRIES = frozenset(
    {
        AccessControlEntry("User:a", "10.0.0.1", AclOperation.ALTER_CONFIGS, AclPermissionType.DENY),
        AccessControlEntry("User:CN=b,OU=c", "*", AclOperation.READ, AclPermissionType.ALLOW),
    }
)


def test_reads_what_kafka_writes_and_writes_what_kafka_reads() -> None:
    assert read_entries(KAFKAS, PATH) == (ENTRIES, None)
    written, kafkas = json.loads(encode_entries(ENTRIES)), json.loads(KAFKAS)
    for payload in (written, kafkas):
        payload["acls"].sort(key=lambda acl: acl["principal"])
    assert written == kafkas


def test_every_operation_is_read_again() -> None:
    entries = frozenset(
        AccessControlEntry("User:a", "*", operation, permission)
        for operation in set(AclOperation) - {AclOperation.ANY}
        for permission in (AclPermissionType.ALLOW, AclPermissionType.DENY)
    )
    assert read_entries(encode_entries(entries), PATH) == (entries, None)
    assert encode_entries(sorted(entries)) == encode_entries(sorted(entries, reverse=True))


def test_a_znode_without_data_has_no_rules() -> None:
    assert read_entries(b"", PATH) == (frozenset(), None)
    assert read_entries(None, PATH) == (frozenset(), None)


def test_words_of_a_newer_kafka_permit_nothing() -> None:
    data = KAFKAS.replace(b'"Read"', b'"Teleport"').replace(b'"Deny"', b'"Perhaps"')
    entries, damage = read_entries(data, PATH)
    assert damage is None
    assert {(e.operation, e.permission_type) for e in entries} == {
        (AclOperation.ALTER_CONFIGS, AclPermissionType.UNKNOWN),
        (AclOperation.UNKNOWN, AclPermissionType.ALLOW),
    }


@pytest.mark.parametrize(
    "data",
    [
        b"garbage",
        b"\xff",
        b"[]",
        b"{}",
        KAFKAS[:-1],
        KAFKAS.replace(b'"version":1', b'"version":2'),
        KAFKAS.replace(b"User:a", b"a"),
        KAFKAS.replace(b'"host":"*",', b""),
        KAFKAS.replace(b'"Read"', b"3"),
        b'{"version":1,"acls":{}}',
        b'{"version":1,"acls":[1]}',
    ],
)
def test_what_cannot_be_read_denies_all(data: bytes) -> None:
    entries, damage = read_entries(data, PATH)
    assert entries == {DENY_ALL}
    assert damage is not None
    assert damage.startswith(PATH)
    rules = AclRules(super_users={"User:root"}, allow_everyone_if_no_acl_found=True)
    rules.replace(ResourcePattern(ResourceType.TOPIC, "orders"), entries)
    for operation in AclOperation:
        assert not rules.authorize("User:a", "10.0.0.1", operation, ResourceType.TOPIC, "orders")
    assert rules.authorize("User:root", "10.0.0.1", AclOperation.READ, ResourceType.TOPIC, "orders")


@pytest.mark.parametrize("pattern_type", [PatternType.LITERAL, PatternType.PREFIXED])
@pytest.mark.parametrize("resource_type", sorted(set(ResourceType) - {ResourceType.UNKNOWN, ResourceType.ANY}))
def test_every_pattern_has_its_path(resource_type: ResourceType, pattern_type: PatternType) -> None:
    pattern = ResourcePattern(resource_type, "a b", pattern_type)
    root = "/kafka-acl" if pattern_type is PatternType.LITERAL else "/kafka-acl-extended/prefixed"
    assert acls_path(resource_of(pattern)) == f"{root}/{resource_type.spelling}/a b"
    assert pattern_of(resource_of(pattern)) == pattern
