"""A broker of ours and one of Apache Kafka 3.9.1 on one ZooKeeper: they log in at each other by SCRAM, by credentials
that Kafka's `kafka-configs` wrote before either ran; clients log in at both; and both answer every login alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import (
    ApiVersionsRequest,
    DescribeUserScramCredentialsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from tests.support.apache_kafka import (
    CONFIG_COMMAND,
    CONSOLE_CONSUMER,
    CONSOLE_PRODUCER,
    run_tool,
    tool_run,
)
from tests.support.sasl_cluster import (
    MECHANISMS,
    PASSWORD,
    USER,
    confluent,
    in_properties,
    login_module,
)
from tests.support.sasl_pair import (
    BROKERS_PASSWORD,
    OURS,
    PATIENCE_SECONDS,
    THEIRS,
    Pair,
    Sent,
    Wire,
    authenticate,
    error_only,
    handshake,
    scram,
)
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, create_topic, leaders, metadata


@pytest.fixture(scope="module")
def pair(oracle_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    brokers = Pair(tmp_path_factory.mktemp("sasl"))
    try:
        brokers.start()
        yield brokers
    finally:
        brokers.stop()


# Brokers and clients.


def test_brokers_serve_each_other_whoever_leads_and_whoever_is_the_controller(pair: Pair, tmp_path: Path) -> None:
    from confluent_kafka import Producer

    before = pair.controller()
    for number in range(2):
        topic = f"both-{number}"
        create_topic(pair.ports[pair.controller()], topic, 2, 2)
        for port in pair.ports.values():
            wait_until(
                lambda: sorted(leaders(port, topic).values()) == [OURS, THEIRS],  # noqa: B023 - called in this turn
                "each leads a partition",
                PATIENCE_SECONDS,
            )
        producer = Producer(confluent(pair.sasl_servers, "SCRAM-SHA-512", acks="all"))
        errors: list[Any] = []
        for partition in (0, 1):
            producer.produce(
                topic, b"x", partition=partition, on_delivery=lambda error, _, told=errors: told.append(error)
            )
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert errors == [None, None]
        if number == 0:  # the same again, with the other one as the controller
            broker = pair.brokers[before]
            broker.stop()
            other = OURS + THEIRS - before
            wait_until(
                lambda: metadata(pair.ports[other]).controller_id == other,  # noqa: B023 - called in this turn
                "the other is the controller",
                PATIENCE_SECONDS,
            )
            broker.start()
            pair.wait_until_whole()
            assert pair.controller() == other


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_javas_tools_log_in_at_either(pair: Pair, tmp_path: Path, mechanism: str) -> None:
    topic = f"java-{mechanism}"
    create_topic(pair.ports[pair.controller()], topic, 2, 2)
    config = tmp_path / "client.properties"
    config.write_text(properties(mechanism, PASSWORD))
    lines = "".join(f"{number}\n" for number in range(20))
    servers = ("--bootstrap-server", pair.sasl_servers, "--topic", topic)
    run_tool(CONSOLE_PRODUCER, [*servers, "--producer.config", config], standard_input=lines)
    output = run_tool(
        CONSOLE_CONSUMER,
        [*servers, "--consumer.config", config, "--from-beginning", "--max-messages", "20", "--timeout-ms", "30000"],
    )
    assert sorted(map(int, output.split())) == list(range(20))


def test_a_credential_that_one_writes_is_the_others_at_once(pair: Pair) -> None:
    for writer, reader in ((OURS, THEIRS), (THEIRS, OURS)):
        user, password = f"written-by-{writer}", f"secret of {writer}"
        # The tool asks the controller, whoever it was told of.
        added = f"SCRAM-SHA-256=[iterations=4096,password={password}]"
        users = ("--entity-type", "users", "--entity-name", user)
        server = ("--bootstrap-server", f"127.0.0.1:{pair.ports[writer]}")
        run_tool(CONFIG_COMMAND, [*server, "--alter", *users, "--add-config", added])
        for broker_id in (reader, writer):
            wait_until(
                lambda: scram(pair.sasl_ports[broker_id], "SCRAM-SHA-256", user, password) is None,  # noqa: B023
                f"broker {broker_id} lets {user} in",
                PATIENCE_SECONDS,
            )
        for port in pair.ports.values():
            asked = DescribeUserScramCredentialsRequest.UserName(name=user)
            request = DescribeUserScramCredentialsRequest(users=[asked])
            (described,) = call(port, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, request).results
            assert [(info.mechanism, info.iterations) for info in described.credential_infos] == [(1, 4096)]
        run_tool(CONFIG_COMMAND, [*server, "--alter", *users, "--delete-config", "SCRAM-SHA-256"])
        for broker_id in (reader, writer):
            wait_until(
                lambda: scram(pair.sasl_ports[broker_id], "SCRAM-SHA-256", user, password) is not None,  # noqa: B023
                f"broker {broker_id} knows {user} no more",
                PATIENCE_SECONDS,
            )


def test_a_java_client_is_told_of_a_wrong_password_alike(pair: Pair, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    said = {}
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        config.write_text(properties(mechanism, "wrong"))
        for broker_id, port in pair.sasl_ports.items():
            command = ["--bootstrap-server", f"127.0.0.1:{port}", "--describe", "--entity-type", "users"]
            run = tool_run(CONFIG_COMMAND, [*command, "--command-config", config])
            assert run.status != 0
            said[mechanism, broker_id] = [
                line for line in (run.output + run.errors).splitlines() if "Caused by" in line
            ]
        assert said[mechanism, OURS] == said[mechanism, THEIRS]
        assert any("SaslAuthenticationException: Authentication failed" in line for line in said[mechanism, OURS])


def properties(mechanism: str, password: str) -> str:
    jaas = in_properties(login_module(mechanism, username=USER, password=password))
    return f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n"


# Answers, one by one.


RIGHT = f"\0{USER}\0{PASSWORD}".encode()
VERSIONS = Sent(ApiVersionsRequest(), 0, error_only)
KNOWN = Sent(MetadataRequest(topics=[]), 4, lambda answer: len(answer.brokers))
PROOF = b"c=biws,r=abc,p=" + b"A" * 43 + b"="

# Not alike, on purpose: a login that is repeated by a mechanism that there is not is answered with those that are, and
# Kafka closes; a request amid a login that is none of a login's is not read, and Kafka answers ILLEGAL_SASL_STATE.
CASES: Final[dict[str, list[Sent]]] = {
    **{f"plain v{version}": [VERSIONS, handshake(), authenticate(RIGHT, version), KNOWN] for version in range(3)},
    "plain without versions": [handshake(), authenticate(RIGHT), KNOWN],
    "plain without headers": [handshake(version=0), Sent(RIGHT), KNOWN],
    "plain as oneself": [handshake(), authenticate(USER.encode() + RIGHT), KNOWN],
    "plain as another": [handshake(), authenticate(b"bob" + RIGHT)],
    "plain wrong": [handshake(), authenticate(b"\0alice\0wrong")],
    "plain wrong v0": [handshake(), authenticate(b"\0alice\0wrong", 0)],
    "plain wrong without headers": [handshake(version=0), Sent(b"\0alice\0wrong")],
    "plain unknown user": [handshake(), authenticate(b"\0nobody\0secret")],
    "plain no user": [handshake(), authenticate(b"\0\0secret")],
    "plain no password": [handshake(), authenticate(b"\0alice\0")],
    "plain nothing": [handshake(), authenticate(b"")],
    "plain two tokens": [handshake(), authenticate(b"alice\0secret")],
    "plain four tokens": [handshake(), authenticate(b"\0alice\0secret\0")],
    "plain no text": [handshake(), authenticate(b"\0alice\0\xff\xfe")],
    "scram garbage": [handshake("SCRAM-SHA-256"), authenticate(b"garbage")],
    "scram nothing": [handshake("SCRAM-SHA-256"), authenticate(b"")],
    "scram unknown user": [handshake("SCRAM-SHA-256"), authenticate(b"n,,n=nobody,r=abc")],
    "scram channel": [handshake("SCRAM-SHA-256"), authenticate(b"p=tls-unique,,n=alice,r=abc")],
    "scram as another": [handshake("SCRAM-SHA-256"), authenticate(b"n,a=bob,n=alice,r=abc")],
    "scram token": [handshake("SCRAM-SHA-256"), authenticate(b"n,,n=nobody,r=abc,tokenauth=true")],
    "scram bad name": [handshake("SCRAM-SHA-256"), authenticate(b"n,,n=al=ice,r=abc")],
    "scram other nonce": [handshake("SCRAM-SHA-512"), authenticate(b"n,,n=alice,r=abc"), authenticate(PROOF)],
    "scram bad proof": [handshake("SCRAM-SHA-512"), authenticate(b"n,,n=alice,r=abc"), authenticate(b"p=x")],
    "no such mechanism": [VERSIONS, handshake("GSSAPI")],
    "no mechanism": [handshake("")],
    "authenticate first": [authenticate(RIGHT)],
    "metadata first": [KNOWN],
    "metadata after versions": [VERSIONS, KNOWN],
    "versions twice": [VERSIONS, VERSIONS],
    "handshake twice": [handshake(), Sent(SaslHandshakeRequest(mechanism="PLAIN"), 1, error_only)],
    "versions amid": [handshake(), VERSIONS],
    "versions refused": [
        Sent(ApiVersionsRequest(client_software_name="!", client_software_version="1"), 3, error_only),
        VERSIONS,
        handshake(),
        authenticate(RIGHT),
        KNOWN,
    ],
    "again": [handshake(), authenticate(RIGHT), handshake(), authenticate(RIGHT), KNOWN],
    "again too soon": [
        *(handshake(), authenticate(RIGHT), handshake(), authenticate(RIGHT)),
        *(Sent(SaslHandshakeRequest(mechanism="PLAIN"), 1, error_only), KNOWN),
    ],
    "again wrong": [handshake(), authenticate(RIGHT), handshake(), authenticate(b"\0alice\0wrong")],
    "again as another": [
        *(handshake(), authenticate(RIGHT), handshake()),
        authenticate(f"\0broker\0{BROKERS_PASSWORD}".encode()),
    ],
    "again by another mechanism": [
        *(handshake(), authenticate(RIGHT), handshake("SCRAM-SHA-256"), authenticate(b"n,,n=alice,r=abc")),
    ],
    "authenticate amid requests": [
        *(handshake(), authenticate(RIGHT), KNOWN),
        Sent(SaslAuthenticateRequest(auth_bytes=RIGHT), 2, lambda answer: (answer.error_code, answer.error_message)),
        KNOWN,
    ],
    "garbage": [Sent(b"\xff" * 40)],
    "too short": [Sent(b"\0")],
}


def play(port: int, case: list[Sent], seconds: float) -> list[Any]:
    """The answers, and whether the connection is open so long after the last one."""
    wire = Wire(port)
    try:
        answers = [wire.say(sent) for sent in case]
        return [*answers, answers[-1] != "closed" and wire.is_open(seconds)]
    finally:
        wire.close()


def play_at_both(ports: dict[int, int], case: list[Sent]) -> tuple[list[Any], list[Any]]:
    """Once more, with more patience, where they differ: on a busy machine either may close a connection later."""

    def played(seconds: float) -> tuple[list[Any], list[Any]]:
        with ThreadPoolExecutor(2) as both:
            ours, theirs = both.map(lambda broker_id: play(ports[broker_id], case, seconds), (OURS, THEIRS))
        return ours, theirs

    ours, theirs = played(0.5)
    return (ours, theirs) if ours == theirs else played(10.0)


@pytest.mark.parametrize("name", CASES)
def test_logins_are_answered_alike(pair: Pair, name: str) -> None:
    ours, theirs = play_at_both(pair.sasl_ports, CASES[name])
    assert ours == theirs


@pytest.mark.parametrize("case", [[handshake()], [authenticate(RIGHT)]], ids=["handshake", "authenticate"])
def test_listeners_without_a_login_answer_alike(pair: Pair, case: list[Sent]) -> None:
    ours, theirs = play_at_both(pair.ports, case)
    assert ours == theirs


@pytest.mark.parametrize("mechanism", MECHANISMS[1:])
@pytest.mark.parametrize(("user", "password"), [(USER, PASSWORD), (USER, "wrong"), ("nobody", PASSWORD)])
def test_our_end_of_scram_is_understood_alike(pair: Pair, mechanism: str, user: str, password: str) -> None:
    ours, theirs = (scram(pair.sasl_ports[broker_id], mechanism, user, password) for broker_id in (OURS, THEIRS))
    assert ours == theirs
    assert (ours is None) == ((user, password) == (USER, PASSWORD))
