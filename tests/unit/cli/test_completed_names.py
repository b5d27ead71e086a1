"""What a shell is given for a command's options and arguments."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.shell_completion import CompletionItem

from barnabas.cli import completed_names, connection
from barnabas.cli.completed_files import complete_files
from barnabas.cli.completed_names import (
    complete_brokers,
    complete_groups,
    complete_principals,
    complete_topics,
)
from barnabas.cli.config_resources import complete_configs, complete_settings, parse_resource
from barnabas.cli.main import main
from barnabas.cli.shells import SHELLS
from barnabas.client.admin import ConfigEntry, GroupListing
from barnabas.client.errors import NoBrokerError
from tests.unit.cli.fake_cluster import BROKERS, FakeCluster, partition, topic

if TYPE_CHECKING:
    from barnabas.client.access import Access
    from barnabas.kernel.host import Host

Completing = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completed(complete: Completing, incomplete: str, **parameters: object) -> list[str]:
    parameter = click.Argument(["names"])
    context = click.Context(click.Command("x"))
    context.params |= parameters
    return [str(item.value) for item in complete(context, parameter, incomplete)]


def test_topics_groups_and_brokers_are_completed(cluster: FakeCluster) -> None:
    cluster.add(*(topic(name, partition(1)) for name in ("flights", "airlines", "flaps")))
    cluster.listings = [
        GroupListing(name, "consumer", "Stable", "classic", 1) for name in ("readers", "a\nb", "r2", "-x", "ä ö")
    ]
    assert completed(complete_topics, "fl") == ["flaps", "flights"]
    assert completed(complete_groups, "") == ["r2", "readers", "ä ö"]
    assert completed(complete_brokers, "") == ["1", "2", "3"]
    found = complete_brokers(click.Context(click.Command("x")), click.Argument(["names"]), "2")
    assert [(item.value, item.help) for item in found] == [("2", "host-2:9092")]


def test_configs_are_those_of_the_resource(cluster: FakeCluster) -> None:
    cluster.add(topic("flights", partition(1)))
    cluster.configs["flights"] = [
        ConfigEntry(name, "1", 5, is_read_only=False, is_sensitive=False)
        for name in ("retention.ms", "retention.bytes", "segment.ms")
    ]
    resource = parse_resource("topic:flights")
    assert completed(complete_configs, "ret", resource=resource) == ["retention.bytes", "retention.ms"]
    assert completed(complete_settings, "seg", resource=resource) == ["segment.ms="]
    assert completed(complete_settings, "segment.ms=", resource=resource) == []
    assert completed(complete_configs, "ret") == []


def test_what_is_left_out_of_many_names_does_not_change_what_they_have_in_common(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completed_names, "_COMPLETIONS_MAX", 3)
    cluster.add(*(topic(name, partition(1)) for name in ("aa-1", "aa-2", "aa-3", "aa-4", "ab")))
    assert completed(complete_topics, "a") == ["aa-1", "aa-2", "ab"]


def test_files_are_the_shells_business() -> None:
    (item,) = complete_files(click.Context(click.Command("x")), click.Argument(["names"]), "pl")
    assert (item.value, item.type) == ("pl", "file")
    assert completed(complete_principals, "U") == ["User:"]
    assert completed(complete_principals, "x") == []


@pytest.mark.parametrize("complete", [complete_topics, complete_groups])
def test_a_shell_gets_no_error_where_the_cluster_does_not_answer(
    cluster: FakeCluster, complete: Completing, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.error = NoBrokerError("nobody is there")
    assert completed(complete, "") == []
    assert capsys.readouterr() == ("", "")


def completions(monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """What bash is answered for a line."""
    monkeypatch.setenv("_BARNABAS_LINE", line)
    monkeypatch.setenv("_BARNABAS_BREAKS", " \t\n\"'@><=;|&(:")
    return SHELLS["bash"](main, {}, "barnabas", "_BARNABAS_COMPLETE").complete().splitlines()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("barnabas group describe rea", ["plain,readers"]),
        ("barnabas consume x --group=rea", ["plain,readers"]),
        ("barnabas consume x --group rea", ["plain,readers"]),
        ("barnabas group describe 'my", ["plain,my group"]),
        ("barnabas group describe my", ["plain,my\\ group"]),
        ("barnabas group describe it", ["plain,it\\'s"]),
        ("barnabas group describe 'it", []),
        ('barnabas group describe "it', ["plain,it's"]),
        ("barnabas group describe wow", ["plain,wow\\!"]),
        ("barnabas group describe 'wow", ["plain,wow!"]),
        ('barnabas group describe "wow', []),
        ("barnabas config get topic:fl", ["plain,flights"]),
        ("barnabas config get 'topic:fl", ["plain,topic:flights"]),
        ("barnabas config get to", ["part,topic:"]),
        ("barnabas config get broker:2", ["plain,2"]),
        ("barnabas acl list group:rea", ["plain,readers"]),
        ("barnabas log-dirs describe --broker ", ["plain,1", "plain,2", "plain,3"]),
        ("barnabas reassign plan --drain 3", ["plain,3"]),
        ("barnabas reassign execute pl", ["file,pl"]),
        ("barnabas topic list --command-config a", ["file,a"]),
        ("barnabas topic list > ou", ["file,ou"]),
        ("barnabas nothing fl", []),
        ("barnabas consume --no-such-option fl", ["plain,flights"]),
    ],
)
def test_a_line_is_completed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, line: str, expected: list[str]
) -> None:
    cluster.add(topic("flights", partition(1)))
    cluster.listings = [
        GroupListing(name, "consumer", "Stable", "classic", 1) for name in ("readers", "my group", "it's", "wow!")
    ]
    assert completions(monkeypatch, line) == expected


def test_the_login_of_a_profile_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    login = tmp_path / "login.properties"
    login.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="secret";\n'
    )
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(f'[prod]\nbootstrap-server = "a.example:9092"\ncommand-config = "{login}"\n')
    monkeypatch.setenv("BARNABAS_PROFILES", str(profiles))
    seen: list[tuple[str, bool]] = []

    @contextlib.asynccontextmanager
    async def connected(_host: Host, bootstrap: str, access: Access, **_options: Any) -> AsyncIterator[Any]:
        seen.append((bootstrap, access.login is not None))
        yield SimpleNamespace(cluster=SimpleNamespace(brokers=BROKERS))

    monkeypatch.setattr(connection, "_connected", connected)
    asked = "barnabas log-dirs describe"
    assert completions(monkeypatch, f"{asked} --profile prod --broker 2") == ["plain,2"]
    monkeypatch.setenv("BARNABAS_COMMAND_CONFIG", str(login))
    assert completions(monkeypatch, f"{asked} -b other --broker 2") == ["plain,2"]
    monkeypatch.setenv("BARNABAS_PROFILE", "prod")
    assert completions(monkeypatch, f"{asked} --broker 2") == ["plain,2"]
    monkeypatch.delenv("BARNABAS_COMMAND_CONFIG")
    assert completions(monkeypatch, f"{asked} -b other --broker 2") == ["plain,2"]
    assert seen == [("a.example:9092", True), ("other:9092", True), ("a.example:9092", True), ("other:9092", False)]


def test_nothing_of_another_cluster_is_completed_for_a_profile_that_is_not_there(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster.add(topic("flights", partition(1)))
    profiles = tmp_path / "profiles.toml"
    profiles.write_text('[prod]\nbootstrap-server = "a.example:9092"\n')
    monkeypatch.setenv("BARNABAS_PROFILES", str(profiles))
    asked = "barnabas topic describe"
    assert completions(monkeypatch, f"{asked} --profile prod fl") == ["plain,flights"]
    assert completions(monkeypatch, f"{asked} --profile pord fl") == []
    monkeypatch.setenv("BARNABAS_PROFILE", "pord")
    assert completions(monkeypatch, f"{asked} fl") == []
    assert completions(monkeypatch, f"{asked} --profile prod fl") == ["plain,flights"]
    assert completions(monkeypatch, f"{asked} -b other:9092 fl") == ["plain,flights"]
    monkeypatch.delenv("BARNABAS_PROFILE")
    profiles.write_text("[")
    assert completions(monkeypatch, f"{asked} --profile prod fl") == []


def test_a_broker_that_takes_connections_and_says_nothing_is_waited_for_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(completed_names, "COMPLETION_TIMEOUT_MS", 100)
    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.monotonic()
        line = f"barnabas topic describe -b 127.0.0.1:{server.getsockname()[1]} fl"
        assert completions(monkeypatch, line) == []
        # Other commands wait for ten; a busy machine takes seconds for what it does besides.
        assert time.monotonic() - began < connection.CONNECT_TIMEOUT_MS / 1_000 * 0.8
