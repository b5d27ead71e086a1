"""What `barnabas up --secure` keeps: secrets, users and ACLs, whatever it is killed amid, and what operators change."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from barnabas.coordination.client import Client
from barnabas.coordination.digest_login import DigestUser
from barnabas.coordination.embedded.config import CoordinatorConfig
from barnabas.coordination.embedded.server import EmbeddedCoordinator
from barnabas.coordination.errors import NoAuthError
from barnabas.coordination.layout.configs import EntityConfig
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.host import Host
from barnabas.kernel.real_files import RealFiles
from barnabas.kernel.real_host import real_host
from barnabas.kernel.timers import Timers
from barnabas.sasl.scram_mechanisms import ScramCredential, ScramMechanism
from barnabas.security.login_files import read_users
from barnabas.server import cluster_certificates, cluster_users, secured_cluster
from barnabas.server.cluster_plan import ClusterPlan
from barnabas.server.cluster_security import ClusterSecurityError
from barnabas.server.cluster_users import client_acls, write_users
from barnabas.server.secured_cluster import SecuredCluster

Run = Callable[[Coroutine[Any, Any, Any]], Any]
USERS = ("admin", "broker", "client", "console", "coordinator", "metrics")
LOGGER = logging.getLogger("tests")


class KilledError(BaseException):
    """kill -9."""


class DyingFiles(RealFiles):
    """Dies before the call of that number that changes something."""

    def __init__(self, dies_at: int) -> None:
        self.calls = 0
        self.dies_at = dies_at

        def dying(call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*arguments: Any, **named: Any) -> Any:
                self.calls += 1
                if self.calls == self.dies_at:
                    raise KilledError
                return call(*arguments, **named)

            return called

        for name in ("rename", "unlink", "write", "pwrite", "fsync", "fsync_directory", "make_directories"):
            setattr(self, name, dying(getattr(self, name)))


class FakeHost:
    """What preparing needs of a host."""

    def __init__(self, files: RealFiles) -> None:
        import os

        self.files = files
        self.entropy = os.urandom
        self.clock = self

    def time_ms(self) -> int:
        return 1_790_000_000_000


def prepared(directory: Path, files: RealFiles) -> dict[str, str]:
    """The secrets after the files were made."""
    host: Any = FakeHost(files)
    cluster: Any = SecuredCluster(host, ClusterPlan(data_directory=str(directory), secure=True), lambda _: None)
    cluster._prepare()
    cluster._settle()
    return dict(cluster._passwords)


def test_whoever_is_killed_while_files_are_made_finds_them_whole_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Hashes are made as ever, and cost less.
    monkeypatch.setattr("barnabas.security.login_files._COST", 2)
    whole = DyingFiles(-1)
    prepared(tmp_path / "whole", whole)
    names = {path.name for path in (tmp_path / "whole" / "security").iterdir()}
    assert whole.calls > 60
    # Some of each kind of call, since a file takes four or five.
    for number in range(1, whole.calls + 1, 7):
        directory = tmp_path / str(number)
        with pytest.raises(KilledError):
            prepared(directory, DyingFiles(number))
        passwords = prepared(directory, RealFiles())
        security = directory / "security"
        assert {path.name for path in security.iterdir()} >= names
        assert {path.name for path in security.iterdir()} - names <= {f"{name}.tmp" for name in names}
        assert passwords == {user: (security / f"{user}.password").read_text().strip() for user in USERS}
        assert passwords == prepared(directory, RealFiles()), "and they are kept"
        for what in ("console", "metrics"):
            (user,) = read_users((security / f"{what}.logins").read_text()).values()
            assert user.password.is_of(passwords[what])
        assert passwords["coordinator"] in (security / "brokers.jaas").read_text()
        assert cluster_certificates.days_left((security / "broker-1.pem").read_bytes(), _now()) is not None


def test_a_password_of_an_operators_is_taken_and_one_that_would_need_quoting_is_refused(tmp_path: Path) -> None:
    passwords = prepared(tmp_path, RealFiles())
    path = tmp_path / "security" / "admin.password"
    path.write_text("An-operators.own_1\n")
    assert prepared(tmp_path, RealFiles()) == passwords | {"admin": "An-operators.own_1"}
    for text in ('";/*aaaaaaaaaaaaaaaaaaaa', "short"):
        path.write_text(text)
        with pytest.raises(ClusterSecurityError, match=r"admin\.password: a password .* remove the file") as caught:
            prepared(tmp_path, RealFiles())
        assert text not in str(caught.value)
    path.write_text("")
    assert len(prepared(tmp_path, RealFiles())["admin"]) == 64


def _now() -> Any:
    import datetime as dt

    return dt.datetime.now(dt.UTC)


async def with_coordinator(directory: Path, work: Callable[[Host, ClientSettings], Coroutine[Any, Any, None]]) -> None:
    async with real_host("test", asyncio.get_running_loop()) as host:
        config = CoordinatorConfig(str(directory), host="127.0.0.1", port=0, passwords={"broker": "digest"})
        coordinator = EmbeddedCoordinator(host, config)
        await coordinator.start()
        try:
            await work(host, ClientSettings(f"127.0.0.1:{coordinator.port}", login=DigestUser("broker", "digest")))
        finally:
            await coordinator.stop()


async def passwords_are(host: Host, settings: ClientSettings, wanted: dict[str, str | None]) -> None:
    client = Client(host, settings)
    await client.connect()
    try:
        for user, password in wanted.items():
            path = f"/config/users/{user}"
            if password is None:
                assert await client.exists(path) is None
                continue
            text = EntityConfig.decode((await client.get_data(path)).data, path).config["SCRAM-SHA-512"]
            kept = ScramCredential.decode(ScramMechanism.SHA_512, text)
            assert kept == ScramCredential.of_password(ScramMechanism.SHA_512, password, kept.salt, kept.iterations)
    finally:
        await client.close()


async def write(host: Host, settings: ClientSettings, passwords: dict[str, str], *new: str) -> None:
    people = {user: passwords[user] for user in ("admin", "client")}
    await write_users(host, settings, passwords["broker"], people, frozenset(new), LOGGER)


async def rules(host: Host, settings: ClientSettings) -> set[str]:
    client = Client(host, settings)
    await client.connect()
    try:
        found = set()
        for root in ("/kafka-acl", "/kafka-acl-extended/prefixed"):
            for kind in (await client.get_children(root)).names:
                for name in (await client.get_children(f"{root}/{kind}")).names:
                    found.add(f"{kind}:{name}")
        return found
    finally:
        await client.close()


def test_what_operators_change_stays_and_what_is_new_is_written(run: Run, tmp_path: Path) -> None:
    first = {"broker": "b" * 20, "admin": "a" * 20, "client": "c" * 20}
    second = {user: password.upper() for user, password in first.items()}

    async def work(host: Host, settings: ClientSettings) -> None:
        await write(host, settings, first)
        await passwords_are(host, settings, dict(first))
        assert await rules(host, settings) == {"Topic:*", "Group:*", "TransactionalId:*", "Topic:__"}
        client = Client(host, settings)
        await client.connect()
        await client.delete("/config/users/client")
        await client.delete("/kafka-acl/Group/*")
        await client.close()
        # The admin has another password, and the file has that of before: it must not come back.
        await write(host, settings, second)
        await passwords_are(host, settings, {"broker": second["broker"], "admin": first["admin"], "client": None})
        assert await rules(host, settings) == {"Topic:*", "TransactionalId:*", "Topic:__"}
        # One whose secret is new, since the files were lost.
        await write(host, settings, second, "admin")
        await passwords_are(host, settings, {"broker": second["broker"], "admin": second["admin"], "client": None})

    run(with_coordinator(tmp_path, work))


def test_whoever_is_killed_before_the_brokers_user_is_there_writes_all_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords = {"broker": "b" * 20, "admin": "a" * 20, "client": "c" * 20}
    users: Any = cluster_users._Users
    written = users.write

    async def work(host: Host, settings: ClientSettings) -> None:
        for dies_at in ("admin", "client", "broker"):

            async def dying(self: Any, user: str, password: str, dies_at: str = dies_at) -> None:
                if user == dies_at:
                    raise OSError("killed")
                await written(self, user, password)

            monkeypatch.setattr(users, "write", dying)
            with pytest.raises(OSError, match="killed"):
                await write(host, settings, passwords)
        monkeypatch.setattr(users, "write", written)
        await write(host, settings, passwords)
        await passwords_are(host, settings, dict(passwords))
        assert await rules(host, settings) == {"Topic:*", "Group:*", "TransactionalId:*", "Topic:__"}

    run(with_coordinator(tmp_path, work))


@pytest.mark.parametrize("planted", ["/config", "/zookeeper/quota/mine", None])
def test_whoever_comes_to_a_new_coordinator_before_it_is_closed_makes_no_user_of_the_clusters(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str | None
) -> None:
    """It listens for a moment with a root that is anybody's. What is there by then is known for another's."""
    cluster: Any = SecuredCluster(
        FakeHost(RealFiles()),  # type: ignore[arg-type]
        ClusterPlan(data_directory=str(tmp_path), secure=True),
        lambda _: None,
    )
    monkeypatch.setattr(cluster, "_context", lambda: None)
    cluster._prepare()
    cluster._passwords["coordinator"] = "digest"

    async def work(host: Host, settings: ClientSettings) -> None:
        cluster._host = host
        other = Client(host, dataclasses.replace(settings, login=None))
        await other.connect()
        try:
            if planted is not None:
                await other.create(planted, b"")
                for _ in range(2):
                    with pytest.raises(ClusterSecurityError, match=f"somebody has made '{planted}' there"):
                        await cluster.write_users(settings.connect)
                return
            for _ in range(2):  # the second time, the cluster's own znodes are there
                await cluster.write_users(settings.connect)
                for path in (
                    "/mine",
                    "/zookeeper/mine",
                    "/zookeeper/quota/mine",
                    "/consumers/mine",
                    "/config/users/mine",
                ):
                    with pytest.raises(NoAuthError):
                        await other.create(path, b"")
        finally:
            await other.close()

    run(with_coordinator(tmp_path / "coordinator", work))


def test_the_first_client_has_rules_about_no_cluster_and_no_user() -> None:
    assert {binding.pattern.resource_type.name for binding in client_acls()} == {"TOPIC", "GROUP", "TRANSACTIONAL_ID"}
    assert {binding.entry.principal for binding in client_acls()} == {"User:client"}
    rules = {
        (binding.pattern.name, binding.entry.operation.name, binding.entry.permission_type.name)
        for binding in client_acls()
    }
    assert rules == {
        ("*", "READ", "ALLOW"),
        ("*", "WRITE", "ALLOW"),
        ("*", "CREATE", "ALLOW"),
        ("*", "DESCRIBE_CONFIGS", "ALLOW"),
        ("__", "ALL", "DENY"),
    }


@pytest.mark.parametrize(
    "name",
    [
        "authorizer.class.name",
        "super.users",
        "ssl.keystore.location",
        "zookeeper.set.acl",
        "listener.name.sasl_ssl.ssl.truststore.location",
        "listener.name.sasl_ssl.sasl.enabled.mechanisms",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config",
        "ssl.endpoint.identification.algorithm",
        "listener.name.sasl_ssl.ssl.endpoint.identification.algorithm",
        "zookeeper.ssl.endpoint.identification.algorithm",
    ],
)
def test_what_keeps_a_cluster_closed_cannot_be_overridden(name: str) -> None:
    ClusterPlan(overrides={name: "x"})
    with pytest.raises(ValueError, match=f"{name} cannot be overridden with --secure"):
        ClusterPlan(overrides={name: "x"}, secure=True)


@pytest.mark.parametrize(
    ("there", "secure", "says"),
    [
        ({"coordinator", "security"}, False, "was made with --secure"),
        ({"coordinator"}, True, "was made without --secure"),
        ({"coordinator", "security"}, True, None),
        ({"security"}, True, None),
        (set(), True, None),
        ({"coordinator"}, False, None),
    ],
)
def test_a_cluster_stays_as_closed_as_it_was_made(there: set[str], secure: bool, says: str | None) -> None:
    plan = ClusterPlan(data_directory="/d", secure=secure)
    refusal = plan.refusal(lambda path: path.removeprefix("/d/") in there)
    assert (refusal is None) if says is None else (says in str(refusal))


def test_certificates_are_made_anew_once_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(secured_cluster, "RENEWED_EVERY_MS", 5)
    told: list[str] = []

    async def work() -> None:
        async with real_host("test", asyncio.get_running_loop()) as host:
            cluster = SecuredCluster(host, ClusterPlan(data_directory=str(tmp_path), secure=True), told.append)
            await cluster.prepare()
            store, authority = tmp_path / "security" / "broker-1.pem", tmp_path / "security" / "authority.key"
            before, kept = store.read_bytes(), authority.read_bytes()
            timers = Timers(host.loop)
            renewing = asyncio.create_task(cluster.renew_daily(timers))
            try:
                await asyncio.sleep(0.1)
                assert store.read_bytes() == before
                monkeypatch.setattr(cluster_certificates, "RENEWED_DAYS", cluster_certificates.DAYS + 1)
                async with asyncio.timeout(60):
                    while store.read_bytes() == before:
                        await asyncio.sleep(0.01)
                assert authority.read_bytes() == kept
                assert not told
                authority.parent.rename(tmp_path / "elsewhere")
                async with asyncio.timeout(60):
                    while not told:
                        await asyncio.sleep(0.01)
                assert not renewing.done()
            finally:
                renewing.cancel()
                timers.close()

    run(work())
    assert told[0].startswith("certificates cannot be made anew: ")
