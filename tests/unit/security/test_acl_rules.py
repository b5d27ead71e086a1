"""Decisions by ACLs: Kafka's cases one by one, and any ACLs against a model that goes through all of them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barnabas.security import acl_rules
from barnabas.security.acl_rules import AclRules
from barnabas.security.acls import (
    AccessControlEntry,
    AccessControlEntryFilter,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

ALICE = "User:alice"
HOST = "10.0.0.1"
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
TOPIC = ResourceType.TOPIC
ONE_OPERATION = sorted(set(AclOperation) - {AclOperation.UNKNOWN, AclOperation.ANY, AclOperation.ALL})


def entry(
    operation: AclOperation = AclOperation.READ,
    permission: AclPermissionType = ALLOW,
    *,
    principal: str = ALICE,
    host: str = "*",
) -> AccessControlEntry:
    return AccessControlEntry(principal, host, operation, permission)


def topic(name: str) -> ResourcePattern:
    return ResourcePattern(TOPIC, name)


def prefix(name: str) -> ResourcePattern:
    return ResourcePattern(TOPIC, name, PatternType.PREFIXED)


def rules(acls: dict[ResourcePattern, set[AccessControlEntry]], *, open_: bool = False) -> AclRules:
    result = AclRules(super_users={"User:root"}, allow_everyone_if_no_acl_found=open_)
    for pattern, entries in acls.items():
        result.replace(pattern, entries)
    return result


def reads(of: AclRules, name: str, *, principal: str = ALICE, host: str = HOST) -> bool:
    return of.authorize(principal, host, AclOperation.READ, TOPIC, name)


@pytest.mark.parametrize(
    "pattern", [topic("orders"), topic("*"), prefix("o"), prefix("orders")], ids=["literal", "wildcard", "o", "whole"]
)
def test_every_kind_of_pattern_allows_and_denies(pattern: ResourcePattern) -> None:
    assert reads(rules({pattern: {entry()}}), "orders")
    assert not reads(rules({pattern: {entry()}, topic("orders"): {entry(permission=DENY)}}), "orders")
    assert not reads(rules({topic("orders"): {entry()}, pattern: {entry(permission=DENY)}}), "orders")


@pytest.mark.parametrize("pattern", [topic("order"), topic("orders2"), prefix("orders2"), prefix("rders"), prefix("")])
def test_other_patterns_do_nothing(pattern: ResourcePattern) -> None:
    assert not reads(rules({pattern: {entry()}}), "orders")
    assert reads(rules({pattern: {entry(permission=DENY)}, topic("orders"): {entry()}}), "orders")
    assert not rules({ResourcePattern(ResourceType.GROUP, "orders"): {entry()}}).authorize(
        ALICE, HOST, AclOperation.READ, TOPIC, "orders"
    )


def test_hosts_and_principals_are_the_same_or_all() -> None:
    assert reads(rules({topic("a"): {entry(host=HOST)}}), "a")
    assert not reads(rules({topic("a"): {entry(host="10.0.0.2")}}), "a")
    assert reads(rules({topic("a"): {entry(principal="User:*")}}), "a")
    assert not reads(rules({topic("a"): {entry(principal="Group:alice")}}), "a")
    assert not reads(rules({topic("a"): {entry(), entry(permission=DENY, principal="User:*", host=HOST)}}), "a")
    assert reads(rules({topic("a"): {entry(), entry(permission=DENY, principal="User:*", host="10.0.0.2")}}), "a")


def test_super_users_are_asked_for_nothing() -> None:
    for_all = entry(AclOperation.ALL, DENY, principal="User:*")
    assert reads(rules({topic("*"): {for_all}}), "a", principal="User:root")
    assert rules({topic("*"): {for_all}}).authorize_by_resource_type("User:root", HOST, AclOperation.WRITE, TOPIC)
    assert not reads(rules({}), "a", principal="Group:root")


def test_without_an_acl_on_the_resource_the_config_decides() -> None:
    assert not reads(rules({}), "a")
    assert reads(rules({}, open_=True), "a")
    assert reads(rules({topic("b"): {entry()}, prefix("b"): {entry()}}, open_=True), "a")
    others = entry(principal="User:bob")
    for pattern in (topic("a"), topic("*"), prefix("a")):
        assert not reads(rules({pattern: {others}}, open_=True), "a")


IMPLIED = {
    AclOperation.READ: {AclOperation.DESCRIBE},
    AclOperation.WRITE: {AclOperation.DESCRIBE},
    AclOperation.DELETE: {AclOperation.DESCRIBE},
    AclOperation.ALTER: {AclOperation.DESCRIBE},
    AclOperation.ALTER_CONFIGS: {AclOperation.DESCRIBE_CONFIGS},
    AclOperation.ALL: set(ONE_OPERATION),
}


@pytest.mark.parametrize("asked", ONE_OPERATION)
@pytest.mark.parametrize("given_", [AclOperation.ALL, *ONE_OPERATION])
def test_an_operation_allows_what_it_implies_and_denies_only_itself(given_: AclOperation, asked: AclOperation) -> None:
    allowed = rules({topic("a"): {entry(given_)}})
    assert allowed.authorize(ALICE, HOST, asked, TOPIC, "a") is (asked is given_ or asked in IMPLIED.get(given_, ()))
    denied = rules({topic("a"): {entry(AclOperation.ALL), entry(given_, DENY)}})
    assert denied.authorize(ALICE, HOST, asked, TOPIC, "a") is (given_ not in (asked, AclOperation.ALL))
    by_type = allowed.authorize_by_resource_type(ALICE, HOST, asked, TOPIC)
    assert by_type is (given_ in (asked, AclOperation.ALL))


def test_rules_of_unknown_words_permit_nothing() -> None:
    unknown = {entry(AclOperation.UNKNOWN), entry(permission=AclPermissionType.UNKNOWN)}
    assert not reads(rules({topic("a"): unknown}), "a")
    assert not reads(rules({topic("a"): unknown}, open_=True), "a")


def test_the_epoch_changes_with_every_change_only() -> None:
    of = rules({})
    epochs = [of.epoch]
    for entries in ({entry()}, {entry(), entry(permission=DENY)}, {entry()}, set()):
        of.replace(topic("a"), entries)
        epochs.append(of.epoch)
        of.replace(topic("a"), entries)
        assert of.epoch == epochs[-1]
    assert len(set(epochs)) == len(epochs)
    assert of.patterns() == ()


def test_by_resource_type_takes_one_operation_and_one_type() -> None:
    with pytest.raises(ValueError, match="ANY is not one operation"):
        rules({}).authorize_by_resource_type(ALICE, HOST, AclOperation.ANY, TOPIC)
    with pytest.raises(ValueError, match="UNKNOWN is not one type"):
        rules({}).authorize_by_resource_type(ALICE, HOST, AclOperation.READ, ResourceType.UNKNOWN)


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ({}, False),
        ({topic("a"): {entry()}}, True),
        ({topic("a"): {entry()}, topic("*"): {entry(permission=DENY)}}, False),
        ({topic("a"): {entry(), entry(permission=DENY, principal="User:*")}}, False),
        ({topic("a"): {entry()}, prefix("a"): {entry(permission=DENY)}}, False),
        ({topic("ab"): {entry()}, prefix("a"): {entry(permission=DENY)}}, False),
        ({topic("ab"): {entry()}, prefix("b"): {entry(permission=DENY)}}, True),
        ({topic("*"): {entry()}, prefix("a"): {entry(permission=DENY)}}, True),
        ({prefix("a"): {entry()}, topic("a"): {entry(permission=DENY)}}, True),
        ({prefix("ab"): {entry()}, prefix("a"): {entry(permission=DENY)}}, False),
        ({prefix("a"): {entry()}, prefix("ab"): {entry(permission=DENY)}}, True),
    ],
)
def test_by_resource_type(acls: dict[ResourcePattern, set[AccessControlEntry]], allowed: bool) -> None:
    assert rules(acls).authorize_by_resource_type(ALICE, HOST, AclOperation.READ, TOPIC) is allowed
    denied_everywhere = acls.get(topic("*"), set()) >= {entry(permission=DENY)}
    as_open = rules(acls, open_=True).authorize_by_resource_type(ALICE, HOST, AclOperation.READ, TOPIC)
    assert as_open is not denied_everywhere


# Against the model. Names are few and short, so that patterns meet.

PRINCIPALS = [ALICE, "User:bob", "User:*"]
HOSTS = [HOST, "10.0.0.2", "*"]
OPERATIONS = [AclOperation.ALL, AclOperation.READ, AclOperation.DESCRIBE, AclOperation.ALTER_CONFIGS]
FRESH = "~"
_names = st.text("ab*", min_size=1, max_size=3)
_patterns = st.builds(
    ResourcePattern,
    st.sampled_from([TOPIC, ResourceType.GROUP]),
    _names,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
)
_entries = st.builds(
    AccessControlEntry,
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS),
    st.sampled_from([ALLOW, DENY]),
)
_changes = st.lists(st.tuples(_patterns, st.sets(_entries, max_size=3)), max_size=12)


def covers(pattern: ResourcePattern, resource_type: ResourceType, name: str) -> bool:
    if pattern.resource_type is not resource_type:
        return False
    if pattern.pattern_type is PatternType.PREFIXED:
        return name.startswith(pattern.name)
    return pattern.name in (name, "*")


def model(acls: list[AclBinding], open_: bool, principal: str, host: str, operation: AclOperation, name: str) -> bool:
    """KIP-11 word for word."""
    applying = [acl.entry for acl in acls if covers(acl.pattern, TOPIC, name)]
    if not applying:
        return open_
    mine = [e for e in applying if e.principal in (principal, "User:*") and e.host in (host, "*")]
    if any(e.permission_type is DENY and e.operation in (operation, AclOperation.ALL) for e in mine):
        return False
    return any(
        e.permission_type is ALLOW
        and (e.operation in (operation, AclOperation.ALL) or operation in IMPLIED.get(e.operation, ()))
        for e in mine
    )


@given(_changes, st.booleans(), st.sampled_from([*OPERATIONS[1:], AclOperation.DESCRIBE_CONFIGS]))
@example([(prefix("a"), {entry()}), (prefix("b"), {entry()}), (prefix("b"), set())], False, AclOperation.READ)
@example([(topic("a"), {entry()}), (topic("a"), set())], False, AclOperation.READ)
def test_decisions_are_those_of_the_model(
    changes: list[tuple[ResourcePattern, set[AccessControlEntry]]], open_: bool, operation: AclOperation
) -> None:
    of = rules({}, open_=open_)
    for pattern, entries in changes:
        of.replace(pattern, entries)
    last = dict(changes)
    acls = [AclBinding(pattern, e) for pattern, entries in last.items() for e in entries]
    names = {pattern.name for pattern, _ in changes}
    questions = {"", FRESH, "a", "aba"} | names | {name + FRESH for name in names}
    for principal in (ALICE, "User:carol"):
        for host in (HOST, "10.0.0.3"):
            answers = {}
            for name in sorted(questions):
                answers[name] = of.authorize(principal, host, operation, TOPIC, name)
                assert answers[name] is model(acls, open_, principal, host, operation, name), name
            if not open_ and operation in (AclOperation.READ, AclOperation.ALTER_CONFIGS):
                some = any(allowed for name, allowed in answers.items() if name != "*")
                assert of.authorize_by_resource_type(principal, host, operation, TOPIC) is some


@given(
    st.dictionaries(
        st.builds(
            ResourcePattern, st.just(TOPIC), _names, st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED])
        ),
        st.sampled_from([ALLOW, DENY]),
        max_size=10,
    )
)
@example({prefix("a"): DENY, prefix("b"): DENY, topic("a"): ALLOW})
@example({prefix("a"): DENY, prefix("aa"): DENY, topic("ab"): ALLOW})
@example({prefix("*"): DENY, topic("*"): ALLOW})
@example({prefix("aa"): ALLOW, prefix("b"): ALLOW, prefix("a"): DENY})
def test_some_resource_is_allowed_if_one_is_found(permissions: dict[ResourcePattern, AclPermissionType]) -> None:
    of = rules({pattern: {entry(permission=permission)} for pattern, permission in permissions.items()})
    # Of names that the rules tell apart, one each: `*` itself is no resource, and behind a prefix there is always one
    # more name that no rule has.
    names = {pattern.name for pattern in permissions}
    some = any(reads(of, name) for name in {FRESH} | names - {"*"} | {name + FRESH for name in names})
    assert of.authorize_by_resource_type(ALICE, HOST, AclOperation.READ, TOPIC) is some


@given(
    _changes,
    st.builds(
        AclBindingFilter,
        st.builds(
            ResourcePatternFilter,
            st.sampled_from([ResourceType.ANY, TOPIC, ResourceType.USER]),
            st.none() | _names,
            st.sampled_from(list(PatternType)),
        ),
        st.builds(
            AccessControlEntryFilter,
            st.none() | st.sampled_from(PRINCIPALS),
            st.none() | st.sampled_from(HOSTS),
            st.sampled_from([AclOperation.ANY, *OPERATIONS]),
            st.sampled_from([AclPermissionType.ANY, ALLOW, DENY]),
        ),
    ),
)
def test_a_filter_finds_the_acls_that_it_matches(
    changes: list[tuple[ResourcePattern, set[AccessControlEntry]]], filter_: AclBindingFilter
) -> None:
    of = rules({})
    for pattern, entries in changes:
        of.replace(pattern, entries)
    acls = {AclBinding(pattern, e) for pattern, entries in dict(changes).items() for e in entries}
    found = list(of.matching(filter_))
    assert len(set(found)) == len(found)
    assert set(found) == {acl for acl in acls if filter_.matches(acl)}


def test_changes_while_acls_are_listed_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_rules, "_LOOKED_AT_PER_PIECE", 1)
    of = rules({topic(name): {entry()} for name in "abc"})
    listing = of.matching_in_pieces(AclBindingFilter())
    first = next(listing)
    for name in "abcd":
        of.replace(topic(name), ())
    assert first == [(topic("a"), [entry()])]
    assert not any(listing)
