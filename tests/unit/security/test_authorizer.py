"""Decisions are those of the rules; denials of what was asked for are logged; hosts are written as Java does."""

from __future__ import annotations

import logging

import pytest

from barnabas.security.acl_rules import AclRules
from barnabas.security.acls import (
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    ResourcePattern,
    ResourceType,
)
from barnabas.security.authorizer import Authorizer, acl_host
from tests.unit.network.serving import Lines

ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")


def authorizer_of(*entries: AccessControlEntry) -> tuple[Authorizer, Lines]:
    lines = Lines()
    logger = logging.getLogger(f"kafka.authorizer.logger of {id(lines)}")
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    rules = AclRules()
    rules.replace(ORDERS, entries)
    return Authorizer(rules, logger), lines


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:db8::ff00:42", "2001:db8:0:0:0:0:ff00:42"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("", ""),
        ("no:address", "no:address"),
    ],
)
def test_hosts_are_written_as_java_does(address: str, host: str) -> None:
    assert acl_host(address) == host


@pytest.mark.parametrize("address", ["10.0.0.1", "::ffff:10.0.0.1"])
def test_a_rule_is_for_its_host(address: str) -> None:
    entry = AccessControlEntry("User:alice", "10.0.0.1", AclOperation.WRITE, AclPermissionType.ALLOW)
    authorizer, _ = authorizer_of(entry)
    asked = (AclOperation.WRITE, ResourceType.TOPIC, "orders")
    assert authorizer.authorize("User:alice", address, *asked)
    assert not authorizer.authorize("User:alice", "10.0.0.2", *asked)
    assert not authorizer.authorize("User:bob", address, *asked)
    assert authorizer.authorize_by_resource_type("User:alice", address, AclOperation.WRITE, ResourceType.TOPIC)
    assert not authorizer.authorize_by_resource_type("User:bob", address, AclOperation.WRITE, ResourceType.TOPIC)


def test_what_is_denied_is_logged_unless_it_is_found_out_quietly() -> None:
    authorizer, lines = authorizer_of()
    asked = ("User:alice", "10.0.0.1", AclOperation.DESCRIBE_CONFIGS, ResourceType.TRANSACTIONAL_ID, "a\nb")
    assert not authorizer.authorize(*asked, quietly=True)
    assert lines.lines == []
    assert not authorizer.authorize(*asked)
    (line,) = lines.lines
    assert "User:alice is Denied Operation = DescribeConfigs from host = 10.0.0.1" in line
    assert "TransactionalId:LITERAL:'a\\nb'" in line


def test_the_epoch_is_that_of_the_rules() -> None:
    authorizer, _ = authorizer_of()
    before = authorizer.epoch
    authorizer.rules.replace(ORDERS, [AccessControlEntry("User:a", "*", AclOperation.READ, AclPermissionType.ALLOW)])
    assert authorizer.epoch > before
