"""`barnabas acl`: what it asks for, shows, decides and refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

import pytest

from barnabas.cli.acl_words import KINDS, OPERATIONS, ResourceArgument
from barnabas.client import acl_admin
from barnabas.client.acl_admin import Acl
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
from barnabas.wire.errors import ErrorCode, KafkaError
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import FakeCluster

Barnabas = Callable[..., Done]
TOPIC, GROUP, CLUSTER = int(ResourceType.TOPIC), int(ResourceType.GROUP), int(ResourceType.CLUSTER)
LITERAL, PREFIXED = int(PatternType.LITERAL), int(PatternType.PREFIXED)
ALLOW, DENY = int(AclPermissionType.ALLOW), int(AclPermissionType.DENY)
READ, WRITE, DESCRIBE, ALL = (
    int(each) for each in (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALL)
)
ANN = "User:ann"
HEADINGS = "Resource Pattern Principal Host Permission Operation"


class FakeAcls:
    """What brokers have, picked by the filters of the server."""

    def __init__(self) -> None:
        self.known: set[Acl] = set()
        self.created: list[list[Acl]] = []
        self.meanwhile: list[Acl] = []
        """Somebody else adds these after the first question."""
        self.error: KafkaError | None = None

    def matching(self, filter_: Acl) -> list[Acl]:
        if self.error is not None:
            raise self.error
        picks = AclBindingFilter(
            ResourcePatternFilter(
                ResourceType(filter_.resource_type), filter_.resource_name, PatternType(filter_.pattern_type)
            ),
            AccessControlEntryFilter(
                *(filter_.principal, filter_.host),
                *(AclOperation(filter_.operation), AclPermissionType(filter_.permission_type)),
            ),
        )
        return sorted(acl for acl in self.known if picks.matches(_binding(acl)))


def _binding(acl: Acl) -> AclBinding:
    assert acl.resource_name is not None
    assert acl.principal is not None
    assert acl.host is not None
    return AclBinding(
        ResourcePattern(ResourceType(acl.resource_type), acl.resource_name, PatternType(acl.pattern_type)),
        AccessControlEntry(
            acl.principal, acl.host, AclOperation(acl.operation), AclPermissionType(acl.permission_type)
        ),
    )


@pytest.fixture
def acls(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> FakeAcls:
    fake = FakeAcls()

    class Admin:
        def __init__(self, _client: object) -> None: ...

        async def __aenter__(self) -> Self:
            cluster.check()
            return self

        async def __aexit__(self, *_error: object) -> None: ...

        async def describe_acls(self, filter_: Acl) -> list[Acl]:
            found = fake.matching(filter_)
            fake.known.update(fake.meanwhile)
            return found

        async def create_acls(self, wanted: Iterable[Acl]) -> None:
            fake.created.append(list(wanted))
            fake.known.update(fake.created[-1])

        async def delete_acls(self, filters: Iterable[Acl]) -> list[Acl]:
            gone = {acl for each in filters for acl in fake.matching(each)}
            fake.known -= gone
            return sorted(gone)

    monkeypatch.setattr(acl_admin, "AclAdmin", Admin)
    return fake


def of(
    resource: str,
    operation: int = READ,
    principal: str = ANN,
    *,
    host: str = "*",
    pattern: int = LITERAL,
    permission: int = ALLOW,
) -> Acl:
    word, _, name = resource.partition(":")
    return Acl(int(KINDS[word]), name or "kafka-cluster", pattern, principal, host, operation, permission)


def test_acls_are_added_once_and_listed(acls: FakeAcls, barnabas: Barnabas) -> None:
    arguments = ("acl", "add", "topic:t", "--principal", ANN, "--operation", "read", "--operation", "Write")
    tried = barnabas(*arguments, "--dry-run")
    assert acls.created == []
    assert tried.rows == [
        f"{HEADINGS} State",
        "topic:t literal User:ann * allow read new",
        "topic:t literal User:ann * allow write new",
    ]
    assert "Nothing was added" in tried.errors
    assert barnabas(*arguments).status == 0
    assert acls.created == [[of("topic:t"), of("topic:t", WRITE)]]
    again = barnabas(*arguments, "--operation", "describe", "--json").document
    assert [each["operation"] for each in again["added"]] == ["describe"]
    assert [each["operation"] for each in again["existing"]] == ["read", "write"]
    assert acls.created[1:] == [[of("topic:t", DESCRIBE)]]
    assert barnabas("acl", "list", "--operation", "read").rows == [
        HEADINGS,
        "topic:t literal User:ann * allow read",
    ]
    assert barnabas("acl", "list", "topic:t", "--operation", "write", "--json").document == {
        "acls": [
            {
                "resource_type": "topic",
                "resource_name": "t",
                "pattern_type": "literal",
                "principal": ANN,
                "host": "*",
                "operation": "write",
                "permission": "allow",
            }
        ]
    }


def test_each_operation_on_each_resource_for_each_principal_from_each_address(
    acls: FakeAcls, barnabas: Barnabas
) -> None:
    done = barnabas(
        *("acl", "add", "topic:a", "group:b", "--deny", "--prefixed", "--operation", "read", "--operation", "all"),
        *("--principal", ANN, "--principal", "User:*", "--host", "10.0.0.1", "--host", "::1"),
    )
    assert done.status == 0, done.errors
    assert acls.known == {
        of(resource, operation, principal, host=host, pattern=PREFIXED, permission=DENY)
        for resource in ("topic:a", "group:b")
        for operation in (READ, ALL)
        for principal in (ANN, "User:*")
        for host in ("10.0.0.1", "::1")
    }


def test_the_cluster_has_no_prefix(acls: FakeAcls, barnabas: Barnabas) -> None:
    done = barnabas("acl", "add", "cluster", "--prefixed", "--operation", "alter", "--principal", ANN)
    assert done.status == 0, done.errors
    assert acls.known == {of("cluster", int(AclOperation.ALTER))}


def test_a_producer_gets_what_it_needs(acls: FakeAcls, barnabas: Barnabas) -> None:
    barnabas("acl", "add", "topic:t", "transactional-id:x", "--producer", "--idempotent", "--principal", ANN)
    assert acls.known == {
        *(of("topic:t", each) for each in (WRITE, DESCRIBE, int(AclOperation.CREATE))),
        *(of("transactional-id:x", each) for each in (WRITE, DESCRIBE)),
        of("cluster", int(AclOperation.IDEMPOTENT_WRITE)),
    }


def test_a_consumer_gets_what_it_needs(acls: FakeAcls, barnabas: Barnabas) -> None:
    barnabas("acl", "add", "topic:t", "group:g", "--consumer", "--principal", ANN)
    assert acls.known == {of("topic:t", READ), of("topic:t", DESCRIBE), of("group:g", READ)}


def test_what_would_go_is_shown_and_goes_when_told(acls: FakeAcls, barnabas: Barnabas) -> None:
    acls.known = {of("topic:t"), of("topic:t", WRITE, "User:bob"), of("topic:t", pattern=PREFIXED), of("group:g")}
    shown = barnabas("acl", "remove", "topic:t", "--principal", ANN)
    assert shown.rows == [HEADINGS, "topic:t literal User:ann * allow read"]
    assert "Nothing was removed: add --execute to remove 1 ACL." in shown.errors
    assert len(acls.known) == 4
    done = barnabas("acl", "remove", "topic:t", "--principal", ANN, "--execute")
    assert (done.status, done.errors) == (0, "1 ACL removed.\n")
    assert acls.known == {of("topic:t", WRITE, "User:bob"), of("topic:t", pattern=PREFIXED), of("group:g")}
    assert barnabas("acl", "remove", "topic:t", "--prefixed", "--execute").status == 0
    assert barnabas("acl", "remove", "--all", "--execute", "--json").document["is_executed"] is True
    assert acls.known == set()


def test_what_is_added_after_it_was_shown_stays(acls: FakeAcls, barnabas: Barnabas) -> None:
    acls.known = {of("topic:t")}
    acls.meanwhile = [of("topic:t", WRITE)]
    assert barnabas("acl", "remove", "topic:t", "--execute").status == 0
    assert acls.known == {of("topic:t", WRITE)}


def test_matching_shows_all_that_hold_for_a_resource(acls: FakeAcls, barnabas: Barnabas) -> None:
    acls.known = {of("topic:flights"), of("topic:fl", pattern=PREFIXED), of("topic:*"), of("topic:flight")}
    rows = barnabas("acl", "list", "topic:flights", "--matching").rows[1:]
    assert [row.split()[0] for row in rows] == ["topic:*", "topic:fl", "topic:flights"]


@pytest.mark.parametrize(
    ("known", "host", "status", "reason", "deciding"),
    [
        ([], None, 1, "no_acl", 0),
        ([of("topic:t", WRITE, "User:bob")], None, 1, "nothing_allows", 0),
        ([of("topic:t")], None, 0, "allowed", 1),
        ([of("topic:t", DESCRIBE)], None, 1, "nothing_allows", 0),
        ([of("topic:t", ALL), of("topic:*"), of("topic:t", WRITE)], None, 0, "allowed", 2),
        ([of("topic:t"), of("topic:", permission=DENY, pattern=PREFIXED)], None, 0, "allowed", 1),
        ([of("topic:t"), of("topic:t", ALL, "User:*", permission=DENY)], None, 1, "denied", 1),
        ([of("topic:t", host="10.0.0.1")], None, 1, "nothing_allows", 0),
        ([of("topic:t", host="10.0.0.1")], "10.0.0.1", 0, "allowed", 1),
        ([of("topic:t"), of("topic:t", host="10.0.0.1", permission=DENY)], "10.0.0.1", 1, "denied", 1),
        ([of("topic:t"), of("topic:t", host="10.0.0.1", permission=DENY)], "10.0.0.2", 0, "allowed", 1),
    ],
)
def test_what_acls_mean_for_a_principal(
    acls: FakeAcls,
    barnabas: Barnabas,
    known: list[Acl],
    host: str | None,
    status: int,
    reason: str,
    deciding: int,
) -> None:
    acls.known = {*known}
    arguments = ("acl", "check", ANN, "read", "topic:t", *(() if host is None else ("--host", host)))
    done = barnabas(*arguments, "--json")
    assert done.status == status
    assert f'"reason":"{reason}"' in done.output
    assert done.output.count("resource_type") - done.output.partition("elsewhere")[2].count("resource_type") == deciding
    told = barnabas(*arguments)
    assert told.rows[0] == ("allowed" if status == 0 else "not allowed")
    assert "User:ann read topic:t" in told.errors


def test_reading_implies_describing_and_a_denied_read_does_not_deny_it(acls: FakeAcls, barnabas: Barnabas) -> None:
    acls.known = {of("topic:t")}
    assert barnabas("acl", "check", ANN, "describe", "topic:t").status == 0
    acls.known = {of("topic:t", DESCRIBE), of("topic:t", permission=DENY)}
    assert barnabas("acl", "check", ANN, "describe", "topic:t").status == 0


def test_addresses_that_decide_otherwise_are_told(acls: FakeAcls, barnabas: Barnabas) -> None:
    acls.known = {of("topic:t"), of("topic:t", host="10.0.0.1", permission=DENY), of("topic:t", WRITE, host="10.0.0.9")}
    done = barnabas("acl", "check", ANN, "read", "topic:t")
    assert "It may be otherwise from 10.0.0.1: ask again" in done.errors
    assert "10.0.0.1" not in barnabas("acl", "check", ANN, "read", "topic:t", "--host", "10.0.0.2").errors


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("add", "topic:t", "--operation", "read"), "Missing option '--principal'"),
        (("add", "topic:t", "--principal", ANN), "name what is meant"),
        (("add", "topic:t", "--principal", ANN, "--producer", "--operation", "read"), "name what is meant"),
        (("add", "topic:t", "--principal", "ann", "--operation", "read"), "such as User:alice, and not 'ann'"),
        (("add", "t", "--principal", ANN, "--operation", "read"), "'t' is no resource of ACLs"),
        (("add", "topic:", "--principal", ANN, "--operation", "read"), "'topic:' is no resource of ACLs"),
        (("add", "cluster:x", "--principal", ANN, "--operation", "alter"), "'cluster:x' is no resource of ACLs"),
        (("add", "group:g", "--principal", ANN, "--operation", "write"), "a group has no write: it has read, delete"),
        (("add", "topic:t", "--principal", ANN, "--consumer"), "is about a group too"),
        (("add", "group:g", "--principal", ANN, "--consumer"), "name at least one, as topic:NAME"),
        (("add", "topic:t", "group:g", "--principal", ANN, "--producer"), "group:g is nothing that"),
        (("add", "topic:t", "--principal", ANN, "--producer", "--deny"), "deny single operations"),
        (("add", "topic:t", "--principal", ANN, "--operation", "read", "--idempotent"), "goes with --producer"),
        (("remove",), "say which ACLs"),
        (("remove", "--execute"), "say which ACLs"),
        (("remove", "topic:t", "--all"), "say which ACLs"),
        (("list", "--prefixed"), "about RESOURCE: name one"),
        (("list", "topic:t", "--prefixed", "--matching"), "--prefixed or --matching, not both"),
        (("check", ANN, "write", "group:g"), "a group has no write"),
        (("check", "ann", "read", "group:g"), "such as User:alice"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(
    acls: FakeAcls, barnabas: Barnabas, arguments: tuple[str, ...], expected: str
) -> None:
    acls.error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "asked")
    done = barnabas("acl", *arguments)
    assert (done.status, acls.created) == (2, [])
    assert expected in " ".join(done.errors.split())


def test_a_name_with_a_slash_is_refused(acls: FakeAcls, barnabas: Barnabas) -> None:
    done = barnabas("acl", "add", "group:a/b", "--principal", ANN, "--operation", "read")
    assert (done.status, acls.created) == (2, [])
    assert "has no slash" in done.errors


def test_a_cluster_without_an_authorizer_says_so(acls: FakeAcls, barnabas: Barnabas) -> None:
    acls.error = KafkaError(ErrorCode.SECURITY_DISABLED, "ACLs: no authorizer is configured")
    done = barnabas("acl", "list")
    assert done.status == 1
    assert "authorizer.class.name" in done.errors


def test_every_operation_is_one_that_some_resource_has() -> None:
    assert set(OPERATIONS.values()) == set(AclOperation) - {AclOperation.UNKNOWN, AclOperation.ANY}


def test_resources_are_completed() -> None:
    found = ResourceArgument().shell_complete(None, None, "t")  # type: ignore[arg-type]
    assert [each.value for each in found] == ["topic:", "transactional-id:", "token:"]
