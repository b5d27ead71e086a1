"""`barnabas up --secure`: real clients come in by the files that it made, and nobody comes in without."""

from __future__ import annotations

import base64
import datetime as dt
import os
import shlex
import ssl
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka
import kafka.errors
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from barnabas.cli.doctor_findings import State
from barnabas.cli.doctor_security import check_security, secured_directories
from barnabas.coordination.client import Client
from barnabas.coordination.digest_login import DigestUser
from barnabas.coordination.errors import CoordinationError, NoAuthError
from barnabas.coordination.protocol import OPEN_ACL
from barnabas.coordination.session_settings import ClientSettings
from barnabas.kernel.real_host import RealHost, run
from barnabas.kernel.real_key_files import load_chain
from barnabas.tls.contexts import client_context
from barnabas.tls.settings import TlsSettings
from barnabas.tls.stores import read_stores
from tests.support.barnabas_up import SOURCE, STOP_SECONDS, Up

RECORDS = 50
TOPIC = "flights"
SECRETS = ("admin", "broker", "client", "console", "coordinator", "metrics")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    directory = tmp_path_factory.mktemp("secure") / "data of mine"
    started = Up(directory, 2, "--secure", "--metrics-port", "0", "--console", "--console-port", "0")
    assert command(started, f"topic create {TOPIC}").returncode == 0
    yield started
    assert started.stop() == 0
    assert started.errors() == ""


def directory(up: Up) -> Path:
    return up.directory / "security"


def password(up: Up, user: str) -> str:
    return (directory(up) / f"{user}.password").read_text().strip()


def librdkafka(up: Up, user: str = "client", **more: object) -> dict[str, Any]:
    """As a program reads the file."""
    lines = Path(up.said["security"]["users"][user]["librdkafka"]).read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {**found, "log_level": 0, **more}


def produce(config: dict[str, Any], topic: str = TOPIC, records: int = RECORDS) -> list[KafkaError]:
    failures: list[KafkaError] = []
    producer = Producer({**config, "enable.idempotence": True, "message.timeout.ms": 20_000})
    for number in range(records):
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(30) == 0
    return failures


def consume(config: dict[str, Any], group: str, records: int = RECORDS) -> list[int]:
    consumer = Consumer({**config, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    found: list[int] = []
    for _ in range(200):
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(int(message.value() or b"-1"))
        if len(found) >= records:
            break
    consumer.commit(asynchronous=False)
    consumer.close()
    return sorted(found)


def command(up: Up, line: str, user: str = "client", given: str = "") -> subprocess.CompletedProcess[str]:
    """A command by the profile."""
    return subprocess.run(
        [sys.executable, "-m", "barnabas.cli", *shlex.split(line)],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "BARNABAS_PROFILES": up.said["security"]["profiles"],
            "BARNABAS_PROFILE": user,
        },
    )


def test_clients_come_in_by_the_files_that_it_made(up: Up) -> None:
    assert produce(librdkafka(up)) == []
    assert consume(librdkafka(up), "one") == list(range(RECORDS))
    consumer = kafka.KafkaConsumer(
        TOPIC,
        bootstrap_servers=up.bootstrap_servers.split(","),
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="client",
        sasl_plain_password=password(up, "client"),
        ssl_cafile=up.said["security"]["authority"],
        group_id="two",
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    try:
        assert sorted(int(next(consumer).value) for _ in range(RECORDS)) == list(range(RECORDS))
    finally:
        consumer.close()


def test_commands_come_in_by_the_profile_and_secrets_and_certificates_are_well(up: Up) -> None:
    assert command(up, "topic create made --partitions 2 --replication-factor 2").returncode == 0
    assert command(up, "produce made", given="a\nb\n").returncode == 0
    assert sorted(command(up, "consume made --from earliest --until-end").stdout.split()) == ["a", "b"]
    assert command(up, "cluster health", "admin").stdout.startswith("All is well: 2 brokers")
    # What `barnabas doctor` adds for it; the whole of it looks for Java too.
    assert [str(directory(up))] == list(secured_directories([str(up.directory), str(up.directory / "broker-1/data")]))
    findings = check_security(str(directory(up)), dt.datetime.now(dt.UTC))
    assert [finding.state for finding in findings] == [State.OK, State.OK]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("topic delete flights", "TOPIC_AUTHORIZATION_FAILED"),
        ("acl list", "CLUSTER_AUTHORIZATION_FAILED"),
        ("user list", "CLUSTER_AUTHORIZATION_FAILED"),
        ("config set topic:flights retention.ms=1", "TOPIC_AUTHORIZATION_FAILED"),
        ("user set admin --password-file -", "CLUSTER_AUTHORIZATION_FAILED"),
    ],
)
def test_the_client_may_not_administer(up: Up, line: str, code: str) -> None:
    done = command(up, line, given="another password\n" * 2)
    assert done.returncode != 0
    assert code in done.stderr


def test_the_client_may_not_write_what_is_the_clusters_own(up: Up) -> None:
    # By the name that Apache Kafka's own administration has, which brokers let write internal topics.
    failures = produce(librdkafka(up, **{"client.id": "__admin_client"}), "__consumer_offsets", 1)
    assert [failure.code() for failure in failures] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]


@pytest.mark.parametrize(
    "changed",
    [
        {"sasl.password": "wrong"},
        {"sasl.username": "admin"},
        {"sasl.mechanism": "PLAIN"},
        {"security.protocol": "PLAINTEXT"},
        {"security.protocol": "SSL"},
        {"ssl.ca.location": "probe"},
    ],
)
def test_nobody_comes_in_without_login_and_certificates(up: Up, changed: dict[str, str]) -> None:
    config = librdkafka(up, **changed)
    if "sasl" not in config["security.protocol"].lower():
        config = {name: value for name, value in config.items() if not name.startswith("sasl.")}
    with pytest.raises(KafkaException):
        AdminClient({**config, "error_cb": lambda _: None}).list_topics(timeout=2)


def test_nobody_reads_credentials_or_becomes_the_controller_at_the_coordinator(up: Up) -> None:
    authority = up.said["security"]["authority"]
    settings = TlsSettings(truststore_type="PEM", truststore_location=authority)
    context = client_context(settings, read_stores(settings, lambda path: Path(path).read_bytes()), load_chain)
    address = up.said["coordinator"]["address"]

    async def tried(host: RealHost, login: DigestUser | None) -> list[Exception | None]:
        client = Client(host, ClientSettings(address, login=login, tls=context))
        outcomes: list[Exception | None] = []
        try:
            await client.connect(10_000)
            for work in (
                lambda: client.get_data("/config/users/client"),
                lambda: client.create("/mine"),
                lambda: client.set_data("/brokers/ids", b""),
                lambda: client.set_acl("/", OPEN_ACL),
            ):
                try:
                    await work()
                    outcomes.append(None)
                except CoordinationError as error:
                    outcomes.append(error)
        finally:
            await client.close()
        return outcomes

    async def main(host: RealHost) -> None:
        assert [type(each) for each in await tried(host, None)] == [NoAuthError] * 4
        with pytest.raises(CoordinationError):
            await tried(host, DigestUser("broker", "wrong"))
        plain = Client(host, ClientSettings(address, session_timeout_ms=2_000))
        try:
            with pytest.raises((CoordinationError, TimeoutError)):
                await plain.connect(2_000)
        finally:
            await plain.close()

    run(main, name="test")


def test_metrics_and_console_want_a_login_and_speak_tls(up: Up) -> None:
    context = ssl.create_default_context(cafile=up.said["security"]["authority"])

    def get(url: str, login: str = "") -> tuple[int, str, str]:
        headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, headers=headers), context=context, timeout=20
            ) as answer:
                return answer.status, answer.url, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, url, ""

    for broker in up.said["brokers"]:
        url = f"https://127.0.0.1:{broker['metrics_port']}"
        assert get(f"{url}/metrics")[0] == 401
        assert "brokerstate 3.0" in get(f"{url}/metrics", f"metrics:{password(up, 'metrics')}")[2]
        assert get(f"{url}/readyz")[0] == 200
    status, url, page = get(up.said["console"]["url"])
    assert (status, url.rpartition("/")[2].partition("?")[0]) == (200, "login")
    assert "broker" not in page.lower()


def test_secrets_are_in_files_of_this_user_alone_and_nowhere_else(up: Up) -> None:
    secrets = {user: password(up, user) for user in SECRETS}
    assert len(set(secrets.values())) == len(SECRETS)
    assert all(len(secret) == 64 for secret in secrets.values())
    for process_id in [up.process.pid, up.said["console"]["process_id"], *up.process_ids]:
        for name in ("cmdline", "environ"):
            shown = Path(f"/proc/{process_id}/{name}").read_bytes().decode(errors="replace")
            assert not [user for user, secret in secrets.items() if secret in shown]
    assert not [user for user, secret in secrets.items() if secret in str(up.said)]
    holders = set()
    for path in [up.directory, *up.directory.rglob("*")]:
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path
        if path.is_file():
            data = path.read_bytes().decode(errors="replace")
            holders |= {path.name for secret in secrets.values() if secret in data}
    assert holders == {
        *(f"{user}.password" for user in SECRETS),
        *(f"{user}{end}" for user in ("admin", "client") for end in (".properties", ".librdkafka.properties")),
        *("brokers.jaas", "coordinator.jaas", "server.properties"),
    }


def test_a_cluster_that_is_killed_and_started_again_keeps_what_it_has_and_makes_again_what_is_broken(
    tmp_path: Path,
) -> None:
    up = Up(tmp_path / "data", 1, "--secure")
    kept = {path: path.read_bytes() for path in directory(up).iterdir()}
    try:
        assert produce(librdkafka(up)) == []
        assert command(up, "user set client --password-file -", "admin", "another password\n").returncode == 0
        assert (
            command(up, "acl remove 'topic:*' --principal User:client --operation create --execute", "admin").returncode
            == 0
        )
    finally:
        up.kill()
    (directory(up) / "broker-1.pem").write_bytes(kept[directory(up) / "broker-1.pem"][:300])
    (directory(up) / "console.logins").write_bytes(b"")
    (directory(up) / "admin.password.tmp").write_bytes(b"half")
    again = Up(tmp_path / "data", 1, "--secure")
    try:
        now = {path: path.read_bytes() for path in kept}
        different = {path.name for path in kept if now[path] != kept[path]}
        # Ports are free ones, so clients have another address.
        addressed = {"profiles.toml", *(f"{user}{end}" for user in ("admin", "client") for end in ENDS)}
        assert {"broker-1.pem", "console.logins"} <= different <= {"broker-1.pem", "console.logins", *addressed}
        with pytest.raises(KafkaException):
            AdminClient({**librdkafka(again), "error_cb": lambda _: None}).list_topics(timeout=2)
        mine = librdkafka(again, **{"sasl.password": "another password"})
        assert consume(mine, "one") == list(range(RECORDS))
        rules = command(again, "acl list", "admin").stdout
        assert "write" in rules
        assert "create" not in rules
    finally:
        assert again.stop() == 0
    opened = Up(tmp_path / "data", 1, wait=False)
    assert opened.process.wait(STOP_SECONDS) == 1
    opened.stop()
    assert "was made with --secure" in opened.errors()


ENDS = (".properties", ".librdkafka.properties")
