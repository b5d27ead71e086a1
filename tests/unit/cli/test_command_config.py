"""`--command-config`: what is read of it, and what is refused without showing a secret."""

from __future__ import annotations

import ssl
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from barnabas.cli.command_config import (
    Access,
    access_of_command,
    command_config_option,
    read_access,
    seen_by_command,
)
from barnabas.cli.connection import bootstrap_option, exiting, run_with_client
from barnabas.client.client import Client
from barnabas.link.errors import AuthenticationFailedError
from barnabas.sasl.mechanisms import Login
from tests.support.certificates import client_certificate, shared_authority

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SECRET = "hush-hush"
GOOD = (
    "bootstrap.servers=elsewhere:9092\n"
    "security.protocol=SASL_PLAINTEXT\n"
    "sasl.mechanism=SCRAM-SHA-512\n"
    f'sasl.jaas.config={SCRAM} required username="alice" \\\n  password="{SECRET}";\n'
)


def write(directory: Path, text: str) -> str:
    path = directory / "client.properties"
    path.write_text(text)
    return str(path)


def test_a_login_is_read_as_kafkas_commands_read_it(tmp_path: Path) -> None:
    assert read_access(write(tmp_path, GOOD)) == Access(Login("SCRAM-SHA-512", "alice", SECRET))


@pytest.mark.parametrize("text", ["", "security.protocol=plaintext\nclient.id=x\n"])
def test_where_none_is_wanted_there_is_none(tmp_path: Path, text: str) -> None:
    assert read_access(write(tmp_path, text)) == Access()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GOOD.replace("security.protocol=SASL_PLAINTEXT\n", ""), "no security.protocol=SASL_PLAINTEXT"),
        (GOOD.replace("=SASL_PLAINTEXT", "=SSL"), "no security.protocol=SASL_SSL"),
        (GOOD.replace("=SASL_PLAINTEXT", "=TLS"), "must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, not TLS"),
        (f"{GOOD}ssl.truststore.location=x\n", "no security.protocol=SASL_SSL"),
        (f"security.protocol=SSL\nssl.keystore.password={SECRET}\n", "no ssl.keystore.location"),
        ("security.protocol=SSL\nssl.truststore.location=/nowhere\n", "/nowhere cannot be read: No such file"),
        ("security.protocol=SSL\nssl.endpoint.identification.algorithm=x\n", "must be https, or empty"),
        (GOOD.replace("sasl.mechanism=SCRAM-SHA-512\n", ""), "lacks sasl.mechanism"),
        ("security.protocol=SASL_PLAINTEXT\n", r"lacks sasl.mechanism and sasl.jaas.config"),
        (GOOD.replace("SCRAM-SHA-512", "GSSAPI"), "must be one of PLAIN"),
        (GOOD.replace('";', '"'), "lacks the semicolon"),
        (GOOD.replace("SCRAM-SHA-512", "PLAIN"), "the login module of PLAIN is"),
        ("\\u00zz", "client.properties"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refusal:
        read_access(write(tmp_path, text))
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_command_says_what_is_wrong_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_variable: bool
) -> None:
    @click.command(name="work")
    @bootstrap_option
    def work(bootstrap: str) -> None:
        async def body(_client: Client) -> None:
            raise AssertionError("not reached")

        run_with_client(bootstrap, body)

    path = write(tmp_path, GOOD.replace("SCRAM-SHA-512", "GSSAPI"))
    arguments = []
    if by_variable:
        monkeypatch.setenv("BARNABAS_COMMAND_CONFIG", path)
    else:
        arguments = ["--command-config", path]
    result = CliRunner().invoke(work, arguments)
    assert result.exit_code == 2
    assert "--command-config or BARNABAS_COMMAND_CONFIG" in result.stderr
    assert "GSSAPI" in result.stderr
    assert SECRET not in result.stderr
    missing = CliRunner().invoke(work, ["--command-config", str(tmp_path / "nothing")])
    assert (missing.exit_code, "there is no such file" in missing.stderr) == (4, True)


def test_a_login_that_is_refused_ends_a_command_with_a_line() -> None:
    @click.command(name="work")
    def work() -> None:
        with exiting():
            raise AuthenticationFailedError(
                "h:1 refuses the login: Authentication failed: Invalid username or password"
            )

    result = CliRunner().invoke(work)
    assert result.exit_code == 1
    assert result.stderr == (
        "work: h:1 refuses the login: Authentication failed: Invalid username or password; check --command-config or "
        "BARNABAS_COMMAND_CONFIG\n"
    )


def test_tls_is_read_as_kafkas_commands_read_it(tmp_path: Path) -> None:
    store = client_certificate().both
    text = (
        f"security.protocol=SSL\nssl.keystore.type=PEM\nssl.keystore.location={store}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={shared_authority().certificate}\n"
        "ssl.enabled.protocols=TLSv1.2, TLSv1.3\n"
    )
    login, context = read_access(write(tmp_path, text))
    assert login is None
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    _, unchecked = read_access(write(tmp_path, f"{text}ssl.endpoint.identification.algorithm=\nssl.protocol=TLSv1.2\n"))
    assert unchecked is not None
    assert not unchecked.check_hostname
    assert unchecked.verify_mode is ssl.CERT_REQUIRED
    assert unchecked.maximum_version is ssl.TLSVersion.TLSv1_2
    both = read_access(write(tmp_path, GOOD.replace("=SASL_PLAINTEXT", "=SASL_SSL")))
    assert both.login is not None
    assert both.tls is not None


@pytest.mark.parametrize(("text", "said"), [(GOOD, " that this login may see"), ("security.protocol=PLAINTEXT\n", "")])
def test_who_logs_in_is_told_that_there_may_be_more(tmp_path: Path, text: str, said: str) -> None:
    @click.command
    @command_config_option
    def command() -> None:
        assert seen_by_command() == ""
        access_of_command()
        click.echo(f"none{seen_by_command()}", nl=False)

    assert seen_by_command() == ""
    assert CliRunner().invoke(command, ["--command-config", write(tmp_path, text)]).output == f"none{said}"
