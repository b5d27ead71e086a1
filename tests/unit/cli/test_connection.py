"""Errors become one line that says what to do, and the exit status of the contract."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from barnabas.cli import connection
from barnabas.cli.connection import (
    CommandError,
    ExitStatus,
    bootstrap_option,
    exiting,
    run_with_client,
    with_ports,
)
from barnabas.cli.required_topics import topics_at_start
from barnabas.client.client import Client
from barnabas.client.cluster import Cluster, TopicInfo
from barnabas.client.errors import ClientTimeoutError, NoBrokerError
from barnabas.link.errors import ConnectionLostError, RequestTimeoutError, UnsupportedVersionError
from barnabas.wire.codec import encode
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import MetadataRequest
from barnabas.wire.primitives import ZERO_UUID, EncodeError, ProtocolError
from tests.unit.cli.fake_cluster import partition, topic


def ended(error: BaseException | None, interrupted: ExitStatus = ExitStatus.INTERRUPTED) -> tuple[int, str]:
    """The status and the errors of a command that ends so."""

    @click.command(name="work")
    def work() -> None:
        with exiting(interrupted=interrupted):
            click.echo("some output")
            if error is not None:
                raise error

    result = CliRunner().invoke(work)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (CommandError("the disk is full; make room"), 1, "the disk is full; make room"),
        (CommandError("no such group", ExitStatus.MISSING), 4, "no such group"),
        (KafkaError(ErrorCode.INVALID_CONFIG, "x: no such config."), 1, "x: no such config (INVALID_CONFIG)"),
        (KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic x"), 4, "topic x: "),
        (KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "users: "), 1, "users: The principal lacks an ACL"),
        (
            KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "ACLs: Request Request(processor=2) is not authorized."),
            1,
            "ACLs: The principal lacks an ACL that allows this operation on the cluster (CLUSTER_AUTHORIZATION_FAILED)",
        ),
        (KafkaError(ErrorCode.GROUP_ID_NOT_FOUND), 4, ErrorCode.GROUP_ID_NOT_FOUND.message.rstrip(".")),
        (KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), 1, "(CLUSTER_AUTHORIZATION_FAILED)"),
        (ClientTimeoutError("describing x was not done"), 3, "describing x was not done; check that"),
        (RequestTimeoutError("no answer from h:1"), 3, "no answer from h:1; check that"),
        (TimeoutError(), 3, "no answer came in time"),
        (NoBrokerError("broker 3 is not known now"), 3, "broker 3 is not known now; check that"),
        (ConnectionLostError("lost"), 3, "lost; check that"),
        (UnsupportedVersionError("API 19 is wanted"), 1, "API 19 is wanted; the broker is too old"),
        (ProtocolError("a frame of 1 GB"), 1, "is that the address of a Kafka broker?"),
        (FileNotFoundError(2, "No such file", "a.log"), 4, "a.log: there is no such file or directory"),
        (
            FileExistsError(17, "File exists", "plan.json"),
            1,
            "plan.json: there is such a file already; choose another name, or remove it",
        ),
        (PermissionError(13, "Permission denied", "a.log"), 1, "a.log: Permission denied"),
        (OSError(28, "No space left on device"), 1, "the output cannot be written: No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_every_error_is_one_line_and_a_status(error: BaseException, status: int, line: str) -> None:
    found, errors = ended(error)
    assert found == status
    (said,) = errors.splitlines()
    assert said.startswith("work: ")
    assert line in said


def test_what_a_broker_says_cannot_make_a_second_line_or_play_with_the_terminal() -> None:
    _, errors = ended(KafkaError(ErrorCode.POLICY_VIOLATION, "no: never\n\x1b[2Jwork: all is well"))
    assert errors == "work: no: never\\n\\x1b[2Jwork: all is well (POLICY_VIOLATION)\n"


@pytest.mark.parametrize(
    ("name", "line"),
    [("a\udcffb", "a\\udcffb is no UTF-8, and so no name"), ("a" * 40_000, "a string of 40000 bytes; at most 32767")],
)
def test_a_name_that_cannot_be_sent_is_wrong_usage(name: str, line: str) -> None:
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])
    with pytest.raises(EncodeError) as found:
        encode(request, 12)
    status, errors = ended(found.value)
    assert (status, len(errors.splitlines())) == (2, 1)
    assert line in errors


def test_another_request_that_cannot_be_written_is_a_mistake_of_ours() -> None:
    with pytest.raises(EncodeError):
        ended(EncodeError("MetadataRequest version 12: topics: 7 is no list"))


def test_what_went_well_says_nothing() -> None:
    assert ended(None) == (0, "")


def test_a_reader_that_has_enough_is_no_error() -> None:
    assert ended(BrokenPipeError()) == (0, "")


def test_an_interruption_may_be_the_usual_end() -> None:
    assert ended(KeyboardInterrupt(), ExitStatus.DONE) == (0, "")


def test_a_mistake_of_ours_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        ended(ZeroDivisionError())


@pytest.mark.parametrize(
    ("bootstrap", "complaint"),
    [
        ("localhost:", "'localhost:' is not the address of a broker: it must be host:port"),
        ("localhost:x", "'localhost:x' is not the address of a broker: it must be host:port"),
        (" , ", "bootstrap_servers is empty"),
    ],
)
def test_a_wrong_address_is_wrong_usage(bootstrap: str, complaint: str) -> None:
    @click.command()
    @bootstrap_option
    def work(bootstrap: str) -> None:
        async def body(_client: Client) -> None: ...

        run_with_client(bootstrap, body)

    result = CliRunner().invoke(work, ["--bootstrap-server", bootstrap])
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert "BARNABAS_BOOTSTRAP_SERVERS" in result.stderr


@pytest.mark.parametrize(
    ("bootstrap", "addresses"),
    [
        ("localhost", "localhost:9092"),
        (" a , b:1,", "a:9092,b:1"),
        ("[::1]", "[::1]:9092"),
        ("[::1]:5,10.0.0.1", "[::1]:5,10.0.0.1:9092"),
        ("", ""),
    ],
)
def test_an_address_without_a_port_has_kafkas(bootstrap: str, addresses: str) -> None:
    @click.command()
    @bootstrap_option
    def work(bootstrap: str) -> None:
        click.echo(bootstrap)

    assert with_ports(bootstrap) == addresses
    result = CliRunner().invoke(work, ["-b", bootstrap])
    assert (result.exit_code, result.stdout) == (0, f"{addresses}\n")


def test_topics_are_asked_for_with_the_first_request_but_for_names_that_none_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[set[str]] = []

    async def start(client: Client, _timeout_ms: float) -> None:
        asked.append(set(client.metadata._topics))

    async def body(_client: Client) -> None: ...

    monkeypatch.setattr(Client, "start", start)
    with pytest.raises(SystemExit) as found:
        run_with_client("127.0.0.1:1", body, topics=["flights", "b\udcff", "x" * 300])
    assert (found.value.code, asked) == (0, [{"flights"}])


def test_topics_that_a_client_knows_from_its_start_are_not_asked_for_again() -> None:
    known = topic("flights", partition(1))
    refused = TopicInfo(
        "closed", ZERO_UUID, is_internal=False, partitions={}, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    client: Any = SimpleNamespace(cluster=Cluster(topics={"flights": known, "closed": refused}))
    assert asyncio.run(topics_at_start(client, ["flights"])) == {"flights": known}
    for names in (["flights", "closed"], ["missing"]):
        with pytest.raises(AttributeError, match="host"):  # a broker would be asked
            asyncio.run(topics_at_start(client, names))


def test_nobody_at_the_address_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command(name="work")
    @bootstrap_option
    def work(bootstrap: str) -> None:
        async def body(_client: Client) -> None: ...

        run_with_client(bootstrap, body)

    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_MS", 300)
    result = CliRunner().invoke(work, env={"BARNABAS_BOOTSTRAP_SERVERS": "127.0.0.1:1,127.0.0.1:2"})
    assert result.exit_code == 3
    (line,) = result.stderr.splitlines()
    assert line.startswith("work: no broker answers at any of 127.0.0.1:1, 127.0.0.1:2 (no connection to 127.0.0.1:")
    assert line.endswith(
        "start one with `barnabas up`, or name others with --bootstrap-server or BARNABAS_BOOTSTRAP_SERVERS"
    )


def test_the_client_is_not_loaded_by_the_modules_of_commands() -> None:
    program = (
        "import importlib, sys\n"
        "from barnabas.cli.main import COMMANDS\n"
        "for name in ('topic', 'group', 'cluster', 'controller'):\n"
        "    importlib.import_module(COMMANDS[name][0])\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('barnabas.', 'asyncio', 'rich'))))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    # Constants of the protocol, what facts are made by, and the keys of a login load nothing.
    alone = {"barnabas.wire.sentinels", "barnabas.kernel.facts", "barnabas.client.access"}
    loaded = set(done.stdout.split()) - alone - {name.rpartition(".")[0] for name in alone}
    assert all(name.startswith("barnabas.cli.") for name in loaded - {"barnabas.cli"}), done.stdout
