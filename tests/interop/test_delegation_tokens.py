"""Delegation tokens in a cluster of ours and of Apache Kafka 3.9.1, with an authorizer: both answer all requests alike,
and the tokens that one makes are used, renewed and expired at the other.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from kazoo.client import KazooClient
from py4j.protocol import Py4JJavaError

from barnabas.security.acls import AclOperation, AclPermissionType, PatternType, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    MetadataRequest,
    RenewDelegationTokenRequest,
)
from tests.support.apache_kafka import CONSOLE_CONSUMER, CONSOLE_PRODUCER, run_tool
from tests.support.apache_kafka_jars import class_path
from tests.support.java_gateway import JavaProcess
from tests.support.sasl_cluster import in_properties, login_module
from tests.support.sasl_pair import OURS, PATIENCE_SECONDS, SESSION_MS, THEIRS, Pair, Sent, Wire, log_in, scram
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, create_topic

DELEGATION_TOKEN_COMMAND: Final = "org.apache.kafka.tools.DelegationTokenCommand"
PASSWORDS = {user: f"{user}s own" for user in ("alice", "bob", "carol", "dora", "root")}
LIFETIME_MS, EXPIRY_MS = 3_600_000, 600_000
SLACK_MS = 20_000
FOREVER = 2**62
ANSWERS_IN_TIME = ["NONE", "DELEGATION_TOKEN_EXPIRED", "DELEGATION_TOKEN_NOT_FOUND"]
TOKENS_TRIED = 20
OWNERS_SINCE = 3
TOKEN_SECONDS, SENDING_SECONDS = 12, 26
STRINGS = "org.apache.kafka.common.serialization"
BOTH = (OURS, THEIRS)
Kind = CreateDelegationTokenRequest.CreatableRenewers
Owner = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner


@pytest.fixture(scope="module")
def pair(oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    brokers = Pair(
        tmp_path_factory.mktemp("tokens"),
        passwords=PASSWORDS,
        overrides={
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:broker;User:ANONYMOUS;User:root",
            "delegation.token.secret.key": "what all brokers share",
            "delegation.token.max.lifetime.ms": LIFETIME_MS,
            "delegation.token.expiry.time.ms": EXPIRY_MS,
            "delegation.token.expiry.check.interval.ms": 1000,
        },
    )
    try:
        brokers.start()
        allow(brokers, "User:dora", AclOperation.CREATE_TOKENS, ResourceType.USER, "User:alice")
        allow(brokers, "User:dora", AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:bob")
        allow(brokers, "User:alice", AclOperation.ALL, ResourceType.TOPIC, "alices")
        allow(brokers, "User:alice", AclOperation.ALL, ResourceType.GROUP, "*")
        yield brokers
    finally:
        brokers.stop()


def allow(pair: Pair, principal: str, operation: AclOperation, kind: ResourceType, name: str) -> None:
    creation = CreateAclsRequest.AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=PatternType.LITERAL,
        principal=principal,
        host="*",
        operation=operation,
        permission_type=AclPermissionType.ALLOW,
    )
    (result,) = call(pair.ports[OURS], ApiKey.CREATE_ACLS, 3, CreateAclsRequest(creations=[creation])).results
    assert result.error_code == 0, result


# Said to either.


class User:
    """Somebody who has logged in at a broker, by a password or a token."""

    def __init__(self, port: int, name: str, password: str = "", *, is_token: bool = False) -> None:
        self._wire = Wire(port)
        assert log_in(self._wire, "SCRAM-SHA-256", name, password or PASSWORDS[name], is_token=is_token) is None
        self.lifetime_ms = self._wire.lifetime_ms

    def ask(self, message: Any, version: int) -> Any:
        return self._wire.say(Sent(message, version, lambda answer: answer))

    def create(self, version: int = 3, **fields: Any) -> Any:
        fields = {"renewers": [], "max_lifetime_ms": -1, **fields}
        if version < OWNERS_SINCE:
            fields = {name: value for name, value in fields.items() if not name.startswith("owner")}
        return self.ask(CreateDelegationTokenRequest(**fields), version)

    def renew(self, hmac: bytes, period_ms: int = -1, version: int = 2) -> Any:
        return self.ask(RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms), version)

    def expire(self, hmac: bytes, period_ms: int = -1, version: int = 2) -> Any:
        return self.ask(ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms), version)

    def describe(self, owners: list[str] | None = None, version: int = 3) -> Any:
        asked = None if owners is None else [Owner(principal_type="User", principal_name=name) for name in owners]
        return self.ask(DescribeDelegationTokenRequest(owners=asked), version)

    def close(self) -> None:
        self._wire.close()


def as_user(pair: Pair, broker_id: int, name: str) -> closing[User]:
    return closing(User(pair.sasl_ports[broker_id], name))


def code(answer: Any) -> str:
    return answer if answer == "closed" else ErrorCode.for_code(answer.error_code).name


def created(answer: Any) -> Any:
    """What both must say alike: times as distances, secrets as lengths."""
    if answer == "closed":
        return answer
    return (
        code(answer),
        (answer.principal_type, answer.principal_name),
        (answer.token_requester_principal_type, answer.token_requester_principal_name),
        answer.expiry_timestamp_ms - answer.issue_timestamp_ms,
        answer.max_timestamp_ms - answer.issue_timestamp_ms,
        answer.issue_timestamp_ms if answer.issue_timestamp_ms < 0 else "now",
        len(answer.token_id),
        len(answer.hmac),
    )


def user(name: str) -> Any:
    return Kind(principal_type="User", principal_name=name)


CREATIONS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "for oneself": ("alice", {}),
    "for oneself by name": ("alice", {"owner_principal_type": "User", "owner_principal_name": "alice"}),
    "for the empty name": ("alice", {"owner_principal_type": "User", "owner_principal_name": ""}),
    "for another": ("alice", {"owner_principal_type": "User", "owner_principal_name": "bob"}),
    "for another who allows it": ("dora", {"owner_principal_type": "User", "owner_principal_name": "alice"}),
    "for another kind": ("root", {"owner_principal_type": "Group", "owner_principal_name": "alice"}),
    "for no kind": ("root", {"owner_principal_type": None, "owner_principal_name": "alice"}),
    "with renewers": ("alice", {"renewers": [user("bob"), user("carol")]}),
    "with the same renewer twice": ("alice", {"renewers": [user("bob"), user("bob")]}),
    "with a renewer that is no user": ("alice", {"renewers": [Kind(principal_type="Group", principal_name="x")]}),
    "for another with a renewer that is no user": (
        "alice",
        {
            "owner_principal_type": "User",
            "owner_principal_name": "bob",
            "renewers": [Kind(principal_type="Group", principal_name="x")],
        },
    ),
    "short": ("alice", {"max_lifetime_ms": 1000}),
    "longer than the usual time": ("alice", {"max_lifetime_ms": EXPIRY_MS + 1}),
    "as long as it may": ("alice", {"max_lifetime_ms": FOREVER}),
    "of no time": ("alice", {"max_lifetime_ms": 0}),
    "of negative time": ("alice", {"max_lifetime_ms": -FOREVER}),
}


@pytest.mark.parametrize("what", CREATIONS)
@pytest.mark.parametrize("version", range(4))
def test_creations_are_answered_alike(pair: Pair, what: str, version: int) -> None:
    name, fields = CREATIONS[what]
    answers = []
    for broker_id in BOTH:
        with as_user(pair, broker_id, name) as asking:
            answers.append(created(asking.create(version, **fields)))
    assert answers[0] == answers[1]


def told(answer: Any, now: Any) -> Any:
    """A code, and which of some times from now an expiry is near to."""
    distance = answer.expiry_timestamp_ms - now
    near = [end for end in (0, 100_000, EXPIRY_MS, LIFETIME_MS) if abs(distance - end) < SLACK_MS]
    return code(answer), near or answer.expiry_timestamp_ms


def lives(pair: Pair, broker_id: int) -> list[Any]:
    """What may be done with tokens and what not, in a row."""
    answers: list[Any] = []
    with (
        as_user(pair, broker_id, "alice") as alice,
        as_user(pair, broker_id, "bob") as bob,
        as_user(pair, broker_id, "carol") as carol,
        as_user(pair, broker_id, "dora") as dora,
        as_user(pair, broker_id, "root") as root,
    ):
        token = alice.create(renewers=[user("bob")])
        hmac, now = bytes(token.hmac), token.issue_timestamp_ms

        def say(answer: Any) -> None:
            answers.append(told(answer, now))

        for version in range(3):
            say(alice.renew(hmac, -1, version))
            say(alice.expire(hmac, 100_000, version))
        say(bob.renew(hmac, 100_000))
        say(bob.renew(hmac, LIFETIME_MS * 2))
        say(carol.renew(hmac))
        say(carol.expire(hmac))
        say(root.renew(hmac))
        say(root.expire(hmac))
        say(alice.renew(b"no hmac"))
        say(alice.renew(b""))
        say(alice.expire(b"no hmac"))
        say(alice.renew(hmac, 0))
        say(alice.renew(hmac, 100_000))
        say(bob.expire(hmac))
        say(bob.expire(hmac))
        say(alice.renew(hmac))
        # Who has asked for it on behalf of another may not renew it.
        others = dora.create(owner_principal_type="User", owner_principal_name="alice")
        hmac = bytes(others.hmac)
        say(dora.renew(hmac))
        say(dora.expire(hmac))
        say(alice.renew(hmac, 100_000))
        say(alice.expire(hmac, FOREVER // 2**20))
        say(alice.expire(hmac))
    return answers


def test_renewals_and_expiries_are_answered_alike(pair: Pair) -> None:
    ours, theirs = lives(pair, OURS), lives(pair, THEIRS)
    assert ours == theirs
    assert {answer[0] for answer in ours} >= {"NONE", "DELEGATION_TOKEN_OWNER_MISMATCH", "DELEGATION_TOKEN_NOT_FOUND"}


def test_an_expired_token_is_not_renewed_and_is_deleted_by_the_controller(pair: Pair) -> None:
    """Whichever of both is that. It may delete a token before anybody has asked for it after its time: another is
    made then, since one of them has to be refused as expired.
    """
    for broker_id in BOTH:
        with as_user(pair, broker_id, "alice") as alice:
            said = [until_deleted(alice)]
            while "DELEGATION_TOKEN_EXPIRED" not in said[-1]:
                assert len(said) < TOKENS_TRIED, said
                said.append(until_deleted(alice))
        for answers in said:
            assert [answer for answer in ANSWERS_IN_TIME if answer in answers] == answers


def until_deleted(alice: User) -> list[str]:
    """What renewals of a token of one second are answered in turn, each answer once where it is as the one before."""
    hmac = bytes(alice.create(max_lifetime_ms=1000).hmac)
    said: list[str] = []

    def gone() -> bool:
        answer = code(alice.renew(hmac))
        if [answer] != said[-1:]:
            said.append(answer)
        return answer == "DELEGATION_TOKEN_NOT_FOUND"

    wait_until(gone, "it is deleted", PATIENCE_SECONDS)
    return said


def test_what_is_seen_of_tokens_is_alike(pair: Pair) -> None:
    made: dict[str, str] = {}
    with (
        as_user(pair, OURS, "alice") as alice,
        as_user(pair, THEIRS, "bob") as bob,
        as_user(pair, OURS, "dora") as dora,
    ):
        made["alice's"] = alice.create(renewers=[user("carol")]).token_id
        made["bob's"] = bob.create().token_id
        made["dora's for alice"] = dora.create(owner_principal_type="User", owner_principal_name="alice").token_id
    names = {token_id: name for name, token_id in made.items()}
    allow(pair, "User:bob", AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, made["dora's for alice"])

    def seen(broker_id: int, who: str, owners: list[str] | None, version: int) -> Any:
        with as_user(pair, broker_id, who) as asking:
            answer = asking.describe(owners, version)
        shown = [
            (
                names[token.token_id],
                (token.principal_type, token.principal_name),
                (token.token_requester_principal_type, token.token_requester_principal_name),
                token.max_timestamp - token.issue_timestamp,
                token.expiry_timestamp - token.issue_timestamp,
                bytes(token.hmac),
                [(renewer.principal_type, renewer.principal_name) for renewer in token.renewers],
            )
            for token in answer.tokens
            if token.token_id in names
        ]
        return code(answer), sorted(shown)

    for broker_id in BOTH:
        wait_until(lambda: len(seen(broker_id, "root", None, 3)[1]) == 3, "all are known", PATIENCE_SECONDS)  # noqa: B023
    found: dict[str, int] = {}
    for who in ("alice", "bob", "carol", "dora", "root"):
        for owners in (None, [], ["alice"], ["bob"], ["carol"], ["alice", "bob", "bob"], ["nobody"], [who]):
            for version in range(4):
                ours, theirs = (seen(broker_id, who, owners, version) for broker_id in BOTH)
                assert ours == theirs, (who, owners, version)
                found[f"{who} {owners}"] = len(ours[1])
    assert found["alice None"] == 2
    assert found["bob None"] == 2
    assert found["carol None"] == 1
    assert found["dora None"] == 2
    assert found["root None"] == 3
    assert not found["root []"]


REQUESTS: Final[dict[str, tuple[Any, int]]] = {
    f"{type(message).SCHEMA.name} v{version}": (message, version)
    for message, versions in (
        (CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 4),
        (RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=-1), 3),
        (ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=-1), 3),
        (DescribeDelegationTokenRequest(owners=None), 4),
    )
    for version in range(versions)
}


@pytest.mark.parametrize("what", REQUESTS)
def test_nobody_handles_tokens_who_is_not_known_or_known_by_a_token(pair: Pair, what: str) -> None:
    message, version = REQUESTS[what]
    answers: dict[str, list[Any]] = {"unknown": [], "by token": []}
    for broker_id in BOTH:
        with closing(Wire(pair.ports[broker_id])) as wire:
            answers["unknown"].append(wire.say(Sent(message, version)))
        with as_user(pair, broker_id, "alice") as alice:
            token = alice.create()
        with closing(by_token(pair, broker_id, token)) as alice:
            answers["by token"].append(repr(alice.ask(message, version)))
    for ours, theirs in answers.values():
        assert ours == theirs
        assert "error_code=64" in ours


def by_token(pair: Pair, broker_id: int, token: Any) -> User:
    return User(pair.sasl_ports[broker_id], token.token_id, password(token), is_token=True)


def password(token: Any) -> str:
    return base64.b64encode(bytes(token.hmac)).decode()


def test_a_token_of_one_logs_in_at_the_other_and_is_renewed_and_expired_there(pair: Pair) -> None:
    for maker, other in (BOTH, BOTH[::-1]):
        with as_user(pair, maker, "alice") as alice:
            token = alice.create()
        port = pair.sasl_ports[other]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            wait_until(
                lambda: scram(port, mechanism, token.token_id, password(token), is_token=True) is None,  # noqa: B023
                f"it logs in at {other}",
                PATIENCE_SECONDS,
            )
        with closing(by_token(pair, other, token)) as using:
            # The session ends with the token, or when all sessions do.
            assert EXPIRY_MS - SLACK_MS < using.lifetime_ms <= min(EXPIRY_MS, SESSION_MS)
            assert using.ask(MetadataRequest(topics=[]), 4).brokers
        with as_user(pair, other, "alice") as alice:
            assert code(alice.renew(bytes(token.hmac), 100_000)) == "NONE"
            assert code(alice.expire(bytes(token.hmac))) == "NONE"
        wait_until(
            lambda: (
                scram(
                    pair.sasl_ports[maker],  # noqa: B023
                    "SCRAM-SHA-256",
                    token.token_id,  # noqa: B023
                    password(token),  # noqa: B023
                    is_token=True,
                )
                is not None
            ),
            "its maker knows it no more",
            PATIENCE_SECONDS,
        )


def test_a_token_of_very_many_renewers_is_used_and_renewed_at_ours(pair: Pair) -> None:
    """Apache Kafka has no bound but the size of a znode."""
    names = [f"somebody-{number}" for number in range(20_000)]
    with as_user(pair, THEIRS, "alice") as alice:
        token = alice.create(renewers=[user(name) for name in names])
    assert code(token) == "NONE"
    wait_until(lambda: told_end(pair, OURS, token) == token.expiry_timestamp_ms, "ours knows it", PATIENCE_SECONDS)
    with as_user(pair, OURS, "alice") as alice:
        (told,) = [each for each in alice.describe().tokens if each.token_id == token.token_id]
        assert [renewer.principal_name for renewer in told.renewers] == names
        with closing(by_token(pair, OURS, token)) as using:
            assert using.ask(MetadataRequest(topics=[]), 4).brokers
        end = alice.renew(bytes(token.hmac), 100_000).expiry_timestamp_ms
    wait_until(lambda: told_end(pair, THEIRS, token) == end, "theirs knows that it is renewed", PATIENCE_SECONDS)
    with as_user(pair, THEIRS, "alice") as alice:
        assert code(alice.expire(bytes(token.hmac))) == "NONE"
    wait_until(lambda: told_end(pair, OURS, token) is None, "ours knows that it is gone", PATIENCE_SECONDS)


def told_end(pair: Pair, broker_id: int, token: Any) -> int | None:
    """Until when a broker says that the token holds; None where it does not know it."""
    with as_user(pair, broker_id, "alice") as alice:
        ends = [each.expiry_timestamp for each in alice.describe().tokens if each.token_id == token.token_id]
    return ends[0] if ends else None


def test_a_token_whose_owner_is_no_user_lets_nobody_in_at_ours(pair: Pair) -> None:
    """At theirs it is the user of that name, who may be somebody else (0033)."""
    with as_user(pair, THEIRS, "root") as root:
        token = root.create(owner_principal_type="Group", owner_principal_name="alice")
    assert code(token) == "NONE"
    for broker_id, lets_in in ((THEIRS, True), (OURS, False)):
        with as_user(pair, broker_id, "root") as root:
            wait_until(
                lambda: token.token_id in [each.token_id for each in root.describe().tokens],
                "it is known",
                PATIENCE_SECONDS,
            )
        refusal = scram(pair.sasl_ports[broker_id], "SCRAM-SHA-256", token.token_id, password(token), is_token=True)
        assert (refusal is None) is lets_in


def test_a_wrong_token_is_refused_alike(pair: Pair) -> None:
    with as_user(pair, OURS, "alice") as alice:
        token = alice.create()
    secret = password(token)
    cases: dict[str, Callable[[int], Any]] = {
        "wrong hmac": lambda port: scram(port, "SCRAM-SHA-256", token.token_id, "A" * 88, is_token=True),
        "no such token": lambda port: scram(port, "SCRAM-SHA-256", "x" * 22, secret, is_token=True),
        "owner's name": lambda port: scram(port, "SCRAM-SHA-256", "alice", PASSWORDS["alice"], is_token=True),
        "not said to be a token": lambda port: scram(port, "SCRAM-SHA-256", token.token_id, secret),
    }
    for broker_id in BOTH:
        port = pair.sasl_ports[broker_id]
        wait_until(
            lambda: scram(port, "SCRAM-SHA-256", token.token_id, secret, is_token=True) is None,  # noqa: B023
            "it is known",
            PATIENCE_SECONDS,
        )
    for name, case in cases.items():
        ours, theirs = (case(pair.sasl_ports[broker_id]) for broker_id in BOTH)
        assert ours == theirs, name
        assert ours is not None, name


def test_znodes_are_alike(pair: Pair) -> None:
    found = {}
    for broker_id in BOTH:
        with as_user(pair, broker_id, "dora") as dora:
            token = dora.create(
                owner_principal_type="User", owner_principal_name="alice", renewers=[user("bob"), user("ca rol*")]
            )
        data = znode(pair, f"/delegation_token/tokens/{token.token_id}")
        fields = json.loads(data)
        assert fields.pop("tokenId") == token.token_id
        assert fields.pop("issueTimestamp") == token.issue_timestamp_ms
        assert fields.pop("expiryTimestamp") == token.expiry_timestamp_ms
        assert fields.pop("maxTimestamp") == token.max_timestamp_ms
        found[broker_id] = fields
    assert found[OURS] == found[THEIRS]


def znode(pair: Pair, path: str) -> bytes:
    client = KazooClient(pair.zookeeper.address)
    client.start()
    try:
        data: bytes = client.get(path)[0]
    finally:
        client.stop()
        client.close()
    return data


def test_kafkas_tool_and_clients_use_tokens_at_either(pair: Pair, tmp_path: Path) -> None:
    create_topic(pair.ports[pair.controller()], "alices", 2, 2)
    for broker_id in BOTH:
        server = ["--bootstrap-server", f"127.0.0.1:{pair.sasl_ports[broker_id]}"]
        config = properties(tmp_path / f"{broker_id}.properties", username="alice", password=PASSWORDS["alice"])
        tool: list[str | Path] = [*server, "--command-config", config]
        output = run_tool(
            DELEGATION_TOKEN_COMMAND,
            [*tool, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob"],
        )
        token_id, hmac, owner = output.splitlines()[-1].split()[:3]
        assert owner == "User:alice"
        for using in BOTH:
            wait_until(
                lambda: scram(pair.sasl_ports[using], "SCRAM-SHA-256", token_id, hmac, is_token=True) is None,  # noqa: B023
                "both know it",
                PATIENCE_SECONDS,
            )
        owners = ("--owner-principal", "User:alice")
        assert token_id in run_tool(DELEGATION_TOKEN_COMMAND, [*tool, "--describe", *owners])
        # Without owners it asks for those of nobody.
        assert "Total number of tokens : 0" in run_tool(DELEGATION_TOKEN_COMMAND, [*tool, "--describe"])
        run_tool(DELEGATION_TOKEN_COMMAND, [*tool, "--renew", "--renew-time-period", "-1", "--hmac", hmac])
        config = properties(
            tmp_path / f"token-{broker_id}.properties", username=token_id, password=hmac, tokenauth="true"
        )
        topic: list[str | Path] = ["--bootstrap-server", pair.sasl_servers, "--topic", "alices"]
        run_tool(CONSOLE_PRODUCER, [*topic, "--producer.config", config], standard_input=f"by {broker_id}\n")
        output = run_tool(
            CONSOLE_CONSUMER,
            [
                *topic,
                *("--consumer.config", config, "--from-beginning"),
                *("--max-messages", str(BOTH.index(broker_id) + 1), "--timeout-ms", "30000"),
            ],
        )
        assert f"by {broker_id}" in output
        run_tool(DELEGATION_TOKEN_COMMAND, [*tool, "--expire", "--expiry-time-period", "-1", "--hmac", hmac])


@pytest.mark.night("half a minute for Java's clients as long as a token holds, and nothing found when it was written")
def test_javas_producer_goes_on_while_its_token_is_renewed_and_no_longer(pair: Pair) -> None:
    """It logs in again before its session is over, with the token that it has."""
    create_topic(pair.ports[pair.controller()], "while-it-holds", 2, 2)
    allow(pair, "User:alice", AclOperation.ALL, ResourceType.TOPIC, "while-it-holds")
    java = JavaProcess(class_path())
    try:
        with ThreadPoolExecutor(4) as threads:
            runs = {
                (broker_id, is_renewed): threads.submit(sent_for_seconds, java, pair, broker_id, is_renewed)
                for broker_id in BOTH
                for is_renewed in (True, False)
            }
            seconds = {which: run.result() for which, run in runs.items()}
    finally:
        java.kill()
    for broker_id in BOTH:
        assert seconds[broker_id, True] >= SENDING_SECONDS
        # Whoever has a second left cannot log in again (KIP-368).
        assert TOKEN_SECONDS - 2 < seconds[broker_id, False] < TOKEN_SECONDS + 2


def sent_for_seconds(java: JavaProcess, pair: Pair, broker_id: int, is_renewed: bool) -> float:
    """How long a producer of Java's sends by a token without a failure, `SENDING_SECONDS` at most."""
    clients = java.jvm.org.apache.kafka.clients.producer
    with as_user(pair, broker_id, "alice") as alice:
        settings = {
            "bootstrap.servers": f"127.0.0.1:{pair.sasl_ports[broker_id]}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "enable.idempotence": "false",
            "delivery.timeout.ms": "6000",
            "request.timeout.ms": "3000",
            **{f"{each}.serializer": f"{STRINGS}.StringSerializer" for each in ("key", "value")},
        }

        def made(**login: str) -> Any:
            module = login_module("SCRAM-SHA-256", **login)
            made = clients.KafkaProducer(java.properties({**settings, "sasl.jaas.config": module}))
            made.send(clients.ProducerRecord("while-it-holds", "x")).get()
            return made

        made(username="alice", password=PASSWORDS["alice"]).close()  # what a JVM does for the first time takes long
        token = alice.create()
        began_at = time.monotonic()
        assert code(alice.expire(bytes(token.hmac), TOKEN_SECONDS * 1000)) == "NONE"
        producer = made(username=token.token_id, password=password(token), tokenauth="true")
        renewals = 0
        while (now := time.monotonic() - began_at) < SENDING_SECONDS:
            if is_renewed and now > renewals * TOKEN_SECONDS / 3:
                renewals += 1
                assert code(alice.renew(bytes(token.hmac), TOKEN_SECONDS * 1000)) == "NONE"
            try:
                producer.send(clients.ProducerRecord("while-it-holds", "x")).get()
            except Py4JJavaError:
                break
            time.sleep(0.05)
        producer.close(java.jvm.java.time.Duration.ofSeconds(0))
    return now


def properties(path: Path, **options: str) -> Path:
    jaas = in_properties(login_module("SCRAM-SHA-256", **options))
    path.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={jaas}\n")
    return path
