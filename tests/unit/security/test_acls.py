"""The words of ACLs: spellings, what a rule must be, and which rules a filter picks."""

from __future__ import annotations

import pytest

from barnabas.security.acls import (
    AccessControlEntry,
    AccessControlEntryFilter,
    AclBinding,
    AclBindingError,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
    check_binding,
)

ENTRY = AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)
TOPIC = ResourcePattern(ResourceType.TOPIC, "orders")
PREFIX = ResourcePattern(ResourceType.TOPIC, "ord", PatternType.PREFIXED)
ALL_TOPICS = ResourcePattern(ResourceType.TOPIC, "*")
GROUP = ResourcePattern(ResourceType.GROUP, "orders")
PATTERNS = {"topic": TOPIC, "prefix": PREFIX, "all": ALL_TOPICS, "group": GROUP}


@pytest.mark.parametrize("enumeration", [ResourceType, PatternType, AclOperation, AclPermissionType])
def test_spellings_are_read_in_any_case(enumeration: type[ResourceType]) -> None:
    for member in enumeration:
        for spelling in (member.spelling, member.spelling.upper(), member.spelling.lower()):
            assert enumeration.of(spelling) is member


def test_spellings_are_kafkas() -> None:
    assert AclOperation.ALTER_CONFIGS.spelling == "AlterConfigs"
    assert ResourceType.TRANSACTIONAL_ID.spelling == "TransactionalId"
    assert AclPermissionType.DENY.spelling == "Deny"


@pytest.mark.parametrize("spelling", ["", "Reed", "ALTER_CONFIGS", "read "])
def test_what_is_no_spelling_is_unknown(spelling: str) -> None:
    assert AclOperation.of(spelling) is AclOperation.UNKNOWN


def test_a_rule_of_any_resource_and_operation_can_be_kept() -> None:
    for resource_type in set(ResourceType) - {ResourceType.UNKNOWN, ResourceType.ANY}:
        for operation in set(AclOperation) - {AclOperation.UNKNOWN, AclOperation.ANY}:
            check_binding(AclBinding(ResourcePattern(resource_type, "x"), ENTRY._replace(operation=operation)))


@pytest.mark.parametrize(
    "binding",
    [
        AclBinding(TOPIC._replace(resource_type=ResourceType.ANY), ENTRY),
        AclBinding(TOPIC._replace(resource_type=ResourceType.UNKNOWN), ENTRY),
        AclBinding(TOPIC._replace(pattern_type=PatternType.MATCH), ENTRY),
        AclBinding(TOPIC._replace(pattern_type=PatternType.ANY), ENTRY),
        AclBinding(TOPIC, ENTRY._replace(operation=AclOperation.ANY)),
        AclBinding(TOPIC, ENTRY._replace(operation=AclOperation.UNKNOWN)),
        AclBinding(TOPIC, ENTRY._replace(permission_type=AclPermissionType.ANY)),
        AclBinding(TOPIC, ENTRY._replace(permission_type=AclPermissionType.UNKNOWN)),
        AclBinding(TOPIC._replace(name="a/b"), ENTRY),
        AclBinding(TOPIC, ENTRY._replace(principal="alice")),
        AclBinding(TOPIC, ENTRY._replace(principal="")),
    ],
    ids=str,
)
def test_what_no_rule_has_is_refused(binding: AclBinding) -> None:
    with pytest.raises(AclBindingError):
        check_binding(binding)


@pytest.mark.parametrize(
    ("resource_type", "name", "pattern_type", "picked"),
    [
        (ResourceType.ANY, None, PatternType.ANY, {"topic", "prefix", "all", "group"}),
        (ResourceType.TOPIC, None, PatternType.ANY, {"topic", "prefix", "all"}),
        (ResourceType.ANY, "orders", PatternType.ANY, {"topic", "group"}),
        (ResourceType.TOPIC, "orders", PatternType.LITERAL, {"topic"}),
        (ResourceType.TOPIC, "orders", PatternType.PREFIXED, set()),
        (ResourceType.TOPIC, "ord", PatternType.PREFIXED, {"prefix"}),
        (ResourceType.TOPIC, "ord", PatternType.LITERAL, set()),
        (ResourceType.TOPIC, "ord", PatternType.ANY, {"prefix"}),
        (ResourceType.TOPIC, "orders", PatternType.MATCH, {"topic", "prefix", "all"}),
        (ResourceType.TOPIC, "ordinary", PatternType.MATCH, {"prefix", "all"}),
        (ResourceType.TOPIC, "or", PatternType.MATCH, {"all"}),
        (ResourceType.ANY, "orders", PatternType.MATCH, {"topic", "prefix", "all", "group"}),
        (ResourceType.TOPIC, "*", PatternType.ANY, {"all"}),
        (ResourceType.TOPIC, "*", PatternType.MATCH, {"all"}),
        (ResourceType.TOPIC, None, PatternType.PREFIXED, {"prefix"}),
        (ResourceType.USER, None, PatternType.ANY, set()),
        (ResourceType.UNKNOWN, None, PatternType.ANY, set()),
        (ResourceType.TOPIC, None, PatternType.UNKNOWN, set()),
    ],
)
def test_a_filter_picks_patterns(
    resource_type: ResourceType, name: str | None, pattern_type: PatternType, picked: set[str]
) -> None:
    filter_ = ResourcePatternFilter(resource_type, name, pattern_type)
    assert {key for key, pattern in PATTERNS.items() if filter_.matches(pattern)} == picked
    named = filter_.named_patterns()
    if named is not None:
        assert {key for key, pattern in PATTERNS.items() if pattern in named} == picked


@pytest.mark.parametrize(
    ("filter_", "picks"),
    [
        (AccessControlEntryFilter(), True),
        (AccessControlEntryFilter("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW), True),
        (AccessControlEntryFilter("User:*"), False),
        (AccessControlEntryFilter(None, "10.0.0.1"), False),
        (AccessControlEntryFilter(operation=AclOperation.ALL), False),
        (AccessControlEntryFilter(permission_type=AclPermissionType.DENY), False),
    ],
)
def test_a_filter_picks_entries_that_say_the_same(filter_: AccessControlEntryFilter, picks: bool) -> None:
    assert filter_.matches(ENTRY) is picks
    assert AclBindingFilter(ResourcePatternFilter(), filter_).matches(AclBinding(TOPIC, ENTRY)) is picks
    assert not AclBindingFilter(ResourcePatternFilter(ResourceType.USER), filter_).matches(AclBinding(TOPIC, ENTRY))
