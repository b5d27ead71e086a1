"""`barnabas user`: what brokers are told, and what nobody is shown."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import click
import pytest
from click.testing import CliRunner

from barnabas.api.alter_user_scram_credentials import ITERATIONS_ALTERED_MAX
from barnabas.cli import user
from barnabas.cli.main import main
from barnabas.client import user_admin
from barnabas.client.user_admin import NewCredential, UserCredential
from barnabas.sasl.scram_mechanisms import ITERATIONS_MIN, ScramMechanism
from tests.support.command_runs import Done
from tests.unit.cli.fake_cluster import FakeCluster

Barnabas = Callable[..., Done]
PASSWORD = "péss wörd"
SALT = bytes(range(32))


class FakeUsers:
    def __init__(self) -> None:
        self.known: dict[tuple[str, int], NewCredential] = {}


@pytest.fixture
def users(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> FakeUsers:
    fake = FakeUsers()

    class Admin:
        def __init__(self, client: SimpleNamespace) -> None:
            assert client.cluster.cluster_id == "cluster-1"

        async def __aenter__(self) -> Self:
            cluster.check()
            return self

        async def __aexit__(self, *_error: object) -> None: ...

        async def describe_users(self, names: Iterable[str] | None = None) -> list[UserCredential]:
            wanted = None if names is None else set(names)
            return [
                UserCredential(name, mechanism, known.iterations)
                for (name, mechanism), known in sorted(fake.known.items())
                if wanted is None or name in wanted
            ]

        async def set_credentials(self, credentials: Iterable[NewCredential]) -> None:
            fake.known |= {(each.user, each.mechanism): each for each in credentials}

        async def delete_credentials(self, credentials: Iterable[tuple[str, int]]) -> None:
            for each in credentials:
                del fake.known[each]

    monkeypatch.setattr(user_admin, "UserAdmin", Admin)
    monkeypatch.setattr(user, "_entropy", lambda _client: SALT)
    monkeypatch.delenv("BARNABAS_USER_PASSWORD", raising=False)
    return fake


def check(users: FakeUsers, name: str, password: str, iterations: int, *mechanisms: int) -> None:
    """The user can log in with the password, by these mechanisms and no other."""
    assert [number for who, number in users.known if who == name] == [*mechanisms]
    for number in mechanisms:
        hash_name = {1: "sha256", 2: "sha512"}[number]
        told = users.known[name, number]
        assert told.salted_password == hashlib.pbkdf2_hmac(hash_name, password.encode(), SALT, iterations)
        assert (told.salt, told.iterations) == (SALT, iterations)


def test_a_password_comes_from_the_environment(
    users: FakeUsers, barnabas: Barnabas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BARNABAS_USER_PASSWORD", PASSWORD)
    done = barnabas("user", "set", "ann")
    assert done.rows == ["User Mechanism Iterations", "ann SCRAM-SHA-256 4096", "ann SCRAM-SHA-512 4096"]
    check(users, "ann", PASSWORD, 4096, 1, 2)
    assert PASSWORD not in done.output + done.errors


def test_a_password_is_the_first_line_of_a_file(users: FakeUsers, barnabas: Barnabas, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(f"{PASSWORD}\r\nanother line\n".encode())
    options = ("--password-file", str(file), "--mechanism", "scram-sha-512", "--iterations", "8192")
    done = barnabas("user", "set", "ann", *options, "--json")
    assert done.document == {"credentials": [{"user": "ann", "mechanism": "SCRAM-SHA-512", "iterations": 8192}]}
    check(users, "ann", PASSWORD, 8192, 2)


def test_a_password_is_read_from_standard_input(users: FakeUsers) -> None:
    done = CliRunner().invoke(main, ["user", "set", "ann", "--password-file", "-"], input=f"{PASSWORD}\n")
    assert done.exit_code == 0, done.stderr
    check(users, "ann", PASSWORD, 4096, 1, 2)


def test_a_person_is_asked_twice_and_sees_nothing(users: FakeUsers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user, "_is_terminal", lambda: True)
    done = CliRunner().invoke(main, ["user", "set", "ann"], input=f"{PASSWORD}\n{PASSWORD}\n")
    assert done.exit_code == 0, done.stderr
    assert PASSWORD not in done.output
    assert "Password of ann" in done.stderr
    check(users, "ann", PASSWORD, 4096, 1, 2)
    done = CliRunner().invoke(main, ["user", "set", "bob"], input=f"{PASSWORD}\nother\n\n")
    assert done.exit_code != 0
    assert ("bob", 1) not in users.known


@pytest.mark.parametrize(
    ("error", "status", "said"), [(KeyboardInterrupt, 130, "interrupted"), (EOFError, 2, "no password was given")]
)
def test_who_gives_no_password_at_the_question_ends_the_command(
    users: FakeUsers,
    barnabas: Barnabas,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    status: int,
    said: str,
) -> None:
    def ask(*_arguments: object, **_options: object) -> str:
        try:
            raise error
        except error:
            raise click.Abort from None  # as click.prompt does

    monkeypatch.setattr(user, "_is_terminal", lambda: True)
    monkeypatch.setattr(click, "prompt", ask)
    done = barnabas("user", "set", "ann")
    assert (done.status, users.known) == (status, {})
    assert said in done.errors


def test_standard_input_that_is_closed_has_no_password(
    users: FakeUsers, barnabas: Barnabas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user, "_standard_input", lambda: None)
    for arguments in (("set", "ann"), ("set", "ann", "--password-file", "-")):
        assert barnabas("user", *arguments).status == 2
    assert users.known == {}


def test_a_password_on_the_command_line_is_taken_when_asked_for(users: FakeUsers, barnabas: Barnabas) -> None:
    assert barnabas("user", "set", "ann", "--password", PASSWORD).status == 0
    check(users, "ann", PASSWORD, 4096, 1, 2)


def test_users_are_listed_and_deleted(users: FakeUsers, barnabas: Barnabas) -> None:
    for name in ("ann", "bob"):
        assert barnabas("user", "set", name, "--password", "x").status == 0
    assert len(barnabas("user", "list").rows) == 5
    assert barnabas("user", "list", "bob").rows[1:] == ["bob SCRAM-SHA-256 4096", "bob SCRAM-SHA-512 4096"]
    done = barnabas("user", "delete", "ann", "--mechanism", "SCRAM-SHA-256")
    assert done.output == "Deleted user ann: SCRAM-SHA-256.\n"
    assert [*users.known] == [("ann", 2), ("bob", 1), ("bob", 2)]
    assert barnabas("user", "delete", "ann", "--json").document == {"user": "ann", "deleted": ["SCRAM-SHA-512"]}
    gone = barnabas("user", "delete", "ann")
    assert (gone.status, gone.output) == (4, "")
    assert "`barnabas user list` shows which there are" in gone.errors
    assert barnabas("user", "delete", "ann", "--if-exists").status == 0
    missing = barnabas("user", "list", "ann", "bob")
    assert missing.status == 4
    assert len(missing.rows) == 3


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (("set", "ann"), 2, "give the password by --password-file"),
        (("set", "", "--password", "x"), 2, "a user needs a name"),
        (("set", "ann", "--password", ""), 2, "the password is empty"),
        (("set", "ann", "--password", "secret", "--password-file", "f"), 2, "not both"),
        (("set", "ann", "--password", "secret", "--iterations", "4095"), 2, "4096<=x<=16384"),
        (("set", "ann", "--password", "secret", "--iterations", "16385"), 2, "4096<=x<=16384"),
        (("set", "ann", "--password", "secret", "--mechanism", "PLAIN"), 2, "'PLAIN' is not one of"),
        (("set", "ann", "--password-file", "no-such-file"), 4, "no-such-file: there is no such file"),
        (("set", "ann", "--password-file", "/dev/zero"), 1, "longer than 65536 bytes"),
    ],
)
def test_what_makes_no_sense_is_refused_and_shows_no_password(
    users: FakeUsers, barnabas: Barnabas, arguments: tuple[str, ...], status: int, expected: str
) -> None:
    done = barnabas("user", *arguments)
    assert (done.status, users.known) == (status, {})
    assert expected in " ".join(done.errors.split())
    assert "secret" not in done.errors


def test_no_credential_shows_what_it_holds() -> None:
    assert repr(NewCredential("ann", 1, 4096, b"s", b"x")) == "NewCredential(user='ann', mechanism=1, iterations=4096)"


def test_limits_and_mechanisms_are_those_of_the_brokers() -> None:
    assert (user.ITERATIONS_MIN, user.ITERATIONS_MAX) == (ITERATIONS_MIN, ITERATIONS_ALTERED_MAX)
    assert {each.value: each.number for each in ScramMechanism} == user.MECHANISMS
