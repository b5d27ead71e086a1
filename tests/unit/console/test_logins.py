"""The console of brokers that want a login."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.sasl.mechanisms import Login
from tests.support.command_runs import run_barnabas
from tests.support.running_console import RunningConsole
from tests.support.sasl_cluster import PASSWORD, USER, SaslCluster, in_properties, login_module, sasl_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslCluster]:
    """One broker."""
    with sasl_cluster(tmp_path_factory.mktemp("logins"), 1) as running:
        yield running


def test_the_console_logs_in(cluster: SaslCluster) -> None:
    with RunningConsole(cluster.sasl_servers, Login("PLAIN", USER, PASSWORD)) as console:
        console.wait_for("/", "All is well.", "Brokers 1")
        console.wait_for("/controller", "Barnabas", "Epoch")
        console.wait_for("/groups", "No group.")


def test_without_a_login_the_pages_say_that_nobody_answers(cluster: SaslCluster) -> None:
    with RunningConsole(cluster.sasl_servers) as console:
        console.wait_for("/", "No broker answers at 127.0.0.1")


@pytest.mark.parametrize(
    ("password", "status", "said"),
    [
        (
            "wrong",
            1,
            "refuses the login: Authentication failed: Invalid username or password",
        ),
        ("", 2, "--command-config"),
    ],
)
def test_a_login_that_is_refused_ends_the_command(
    cluster: SaslCluster, tmp_path: Path, password: str, status: int, said: str
) -> None:
    jaas = in_properties(login_module("PLAIN", username=USER, password=password))
    config = tmp_path / "client.properties"
    config.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={jaas}\n")
    done = run_barnabas("console", "--port", "0", "-b", cluster.sasl_servers, "--command-config", str(config))
    assert done.status == status
    assert said in done.errors
