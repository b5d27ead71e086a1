"""Profiles: what a name stands for, and what is stronger than it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from barnabas.cli.command_config import access_of_command
from barnabas.cli.connection import BOOTSTRAP_VARIABLE, bootstrap_option
from barnabas.cli.profiles import complete_profiles
from barnabas.sasl.mechanisms import Login
from tests.support.command_runs import Done

Barnabas = Callable[..., Done]
LOGIN = (
    "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="{}" password="secret";\n'
)


@click.command(name="ask")
@bootstrap_option
def ask(bootstrap: str) -> None:
    login = access_of_command().login
    click.echo(f"{bootstrap} {login.username if isinstance(login, Login) else 'nobody'}")


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "configs" / "profiles.toml"
    monkeypatch.setenv("BARNABAS_PROFILES", str(path))
    for name in (BOOTSTRAP_VARIABLE, "BARNABAS_COMMAND_CONFIG", "BARNABAS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return path


@pytest.fixture
def logins(tmp_path: Path) -> dict[str, str]:
    """Files of properties, by user."""
    found = {}
    for user in ("ann", "bob"):
        path = tmp_path / f"{user}.properties"
        path.write_text(LOGIN.format(user))
        found[user] = str(path)
    return found


def asked(*arguments: str) -> str:
    done = CliRunner().invoke(ask, arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout.strip()


def test_a_profile_is_kept_listed_and_forgotten(barnabas: Barnabas, logins: dict[str, str], file: Path) -> None:
    assert barnabas("profile", "list").errors.startswith(f"There is no profile in {file}")
    assert barnabas("profile", "set", "prod", "-b", "a, b:9093", "--command-config", logins["ann"]).status == 0
    assert barnabas("profile", "set", "here", "-b", "[::1]").status == 0
    assert barnabas("profile", "list", "--json").document == {
        "profiles": [
            {"name": "here", "bootstrap_server": "[::1]:9092", "command_config": None},
            {"name": "prod", "bootstrap_server": "a:9092,b:9093", "command_config": logins["ann"]},
        ]
    }
    assert "secret" not in file.read_text()
    assert barnabas("profile", "delete", "here").status == 0
    assert barnabas("profile", "delete", "here").status == 4
    assert [row.split()[0] for row in barnabas("profile", "list").rows] == ["Profile", "prod"]


def test_a_profile_stands_for_brokers_and_login(barnabas: Barnabas, logins: dict[str, str]) -> None:
    barnabas("profile", "set", "prod", "-b", "a", "--command-config", logins["ann"])
    barnabas("profile", "set", "open", "-b", "c")
    assert asked() == "127.0.0.1:9092 nobody"
    assert asked("--profile", "prod") == "a:9092 ann"
    assert asked("-b", "d", "--profile", "prod") == "d:9092 ann"
    assert asked("--profile", "prod", "--command-config", logins["bob"]) == "a:9092 bob"
    assert asked("--profile", "open") == "c:9092 nobody"


def test_what_the_environment_names(
    barnabas: Barnabas, logins: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    barnabas("profile", "set", "prod", "-b", "a", "--command-config", logins["ann"])
    barnabas("profile", "set", "open", "-b", "c")
    monkeypatch.setenv("BARNABAS_PROFILE", "prod")
    assert asked() == "a:9092 ann"
    assert asked("-b", "d") == "d:9092 nobody"
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "e")
    assert asked() == "e:9092 nobody"
    assert asked("--profile", "prod") == "a:9092 ann"
    monkeypatch.setenv("BARNABAS_COMMAND_CONFIG", logins["bob"])
    assert asked() == "e:9092 bob"
    # A login is not shown to another cluster than the one it is for.
    assert asked("--profile", "open") == "c:9092 nobody"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[prod", "profiles.toml: "),
        ("[prod]\nbootstrap-server = 1\n", "profile 'prod' has no bootstrap-server"),
        ("prod = 1\n", "profile 'prod' has no bootstrap-server"),
        ('[prod]\nbootstrap-server = "a"\nlogin = "x"\n', "profile 'prod' has 'login'"),
        ('[prod]\nbootstrap-server = "a"\ncommand-config = 1\n', "is no text"),
        ('[other]\nbootstrap-server = "a"\n', "there is no profile 'prod'"),
        ("", "there are: none yet"),
        ("\udcff", "profiles.toml: "),
    ],
)
def test_a_file_or_a_name_that_is_wrong_is_told(file: Path, barnabas: Barnabas, content: str, expected: str) -> None:
    file.parent.mkdir()
    file.write_bytes(content.encode(errors="surrogateescape"))
    done = barnabas("topic", "list", "--profile", "prod")
    assert (done.status, done.output) == (2, "")
    assert expected in " ".join(done.errors.split())


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (("a b", "-b", "h"), 2, "is no name of a profile"),
        (("", "-b", "h"), 2, "is no name of a profile"),
        (("x",), 2, "Missing option"),
        (("x", "-b", "h:port"), 2, "is not the address of a broker"),
        (("x", "-b", "h", "--command-config", "/no/such"), 4, "there is no such file"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    file: Path, barnabas: Barnabas, arguments: tuple[str, ...], status: int, expected: str
) -> None:
    done = barnabas("profile", "set", *arguments)
    assert done.status == status
    assert expected in done.errors
    assert not file.exists()


def test_names_are_completed(barnabas: Barnabas, file: Path) -> None:
    for name in ("prod", "pre"):
        barnabas("profile", "set", name, "-b", "a")
    context = click.Context(ask)
    assert [each.value for each in complete_profiles(context, ask.params[0], "pr")] == ["pre", "prod"]
    file.write_text("[")
    assert complete_profiles(context, ask.params[0], "") == []


@pytest.mark.parametrize("name", ["a\x7fb", 'q"\\.properties', "tab\tnew\nline", "\u00e9\U0001f600"])
def test_a_file_of_any_name_can_be_kept(barnabas: Barnabas, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("")
    assert barnabas("profile", "set", "odd", "-b", "a", "--command-config", str(path)).status == 0
    (found,) = barnabas("profile", "list", "--json").document["profiles"]
    assert found["command_config"] == str(path)


def test_a_name_that_is_no_text_is_refused(barnabas: Barnabas, tmp_path: Path, file: Path) -> None:
    path = tmp_path / "a\udcff"
    path.write_text("")
    done = barnabas("profile", "set", "odd", "-b", "a", "--command-config", str(path))
    assert done.status == 1
    assert "is no UTF-8" in done.errors
    assert not file.exists()


def test_a_link_to_the_file_stays_one_and_its_mode_too(barnabas: Barnabas, tmp_path: Path, file: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.touch(0o600)
    real.chmod(0o600)
    file.parent.mkdir()
    file.symlink_to(real)
    assert barnabas("profile", "set", "here", "-b", "a").status == 0
    assert file.is_symlink()
    assert "here" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o600


def test_who_has_no_home_is_told_of_the_variable(barnabas: Barnabas, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(_class: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("BARNABAS_PROFILES")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Path, "home", classmethod(nowhere))
    for arguments in (("profile", "list"), ("profile", "set", "x", "-b", "a"), ("topic", "list", "--profile", "x")):
        done = barnabas(*arguments)
        assert done.status in (1, 2)
        assert "BARNABAS_PROFILES" in " ".join(done.errors.split())


def test_a_full_disk_is_told_with_the_file(barnabas: Barnabas, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    done = barnabas("profile", "set", "here", "-b", "a")
    assert (done.status, done.errors) == (1, f"barnabas profile set: {file}: No space left on device\n")
