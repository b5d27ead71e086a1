"""What docs/operating.md, acls.md, coordinator.md and console.md tell people to type or to write into files, on servers
of ours: every block as it stands, with ports, hosts, files and passwords of the test in the places of theirs.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from barnabas.wire.messages import CreateDelegationTokenRequest
from tests.support import identity_provider
from tests.support.certificates import broker_certificate, client_certificate, shared_authority
from tests.support.documented import READY_SECONDS, Folder, blocks_of, placed, said
from tests.support.ports import free_port
from tests.support.processes import ServerProcess
from tests.support.sasl_cluster import login_module
from tests.support.sasl_pair import Sent, Wire, log_in
from tests.support.waiting import wait_until
from tests.support.zookeeper import four_letter_word

PAGES = ("operating.md", "acls.md", "coordinator.md", "console.md", "clients.md", "coming-from-kafka.md")
_taken: set[tuple[str, str]] = set()


def block(page: str, first: str) -> str:
    """The one block of a page with this first line."""
    (found,) = [each for each in blocks_of(page) if each.startswith(f"{first}\n")]
    _taken.add((page, first))
    return found


UP = block("operating.md", "barnabas up --brokers 3 --data data")
SECURE = block("operating.md", "pip install 'barnabas[tls]'")
SECURE_SAYS = block("operating.md", "Clients come in as the user client (or as admin, who may do everything):")
BROKER = block("operating.md", "barnabas broker server.properties --override broker.id=2 --metrics-port 9102")
ADDING = block("operating.md", "barnabas reassign plan --onto 4 --throttle 50MiB --save onto-4.json")
TIERED = block("operating.md", "remote.log.storage.system.enable=true")
LOGINS = block("operating.md", "listeners=PLAINTEXT://127.0.0.1:9092,LOGIN://0.0.0.0:9093")
USER = block("operating.md", "barnabas user set alice --bootstrap-server HOST:9092")
TOKEN = block("operating.md", "sasl.mechanism=SCRAM-SHA-512")
OAUTH = block("operating.md", "sasl.enabled.mechanisms=OAUTHBEARER")
TLS = block("operating.md", "listeners=SSL://0.0.0.0:9093")
KEYSTORE = block(
    "operating.md", "barnabas config set broker:1 listener.name.ssl.ssl.keystore.location=/etc/barnabas/broker-1.pem"
)
SECRET = block("operating.md", "password.encoder.secret=...")
STORED_KEY = block("operating.md", "barnabas config set broker:1 listener.name.ssl.ssl.keystore.type=PEM \\")
STORE = "/etc/barnabas/broker-1.pem"
ACLS = block("acls.md", "authorizer.class.name=kafka.security.authorizer.AclAuthorizer")
CLIENT_LOGIN = block("operating.md", "Client {")
COORDINATOR = block("coordinator.md", "barnabas coordinator --data coordinator --port 2181")
SERVER_LOGIN = block("coordinator.md", "Server {")
CONSOLE = block("console.md", "$ barnabas console -b 127.0.0.1:9092")
CONSOLE_LOGINS = block("console.md", "$ barnabas console --new-login ada")

ELSEWHERE = {
    ("operating.md", "useradd --system --no-create-home barnabas"): "it changes the machine, and wants systemd: "
    "tests/unit/tools/test_service_units.py has systemd verify the units and runs their commands",
    ("operating.md", "docker build -f contrib/oci/Containerfile -t barnabas ."): "minutes: tests/oci builds the image, "
    "and runs it, by buildah, every night",
    ("operating.md", "docker compose -f contrib/oci/compose.yaml up --build --detach --wait"): "as above",
    ("operating.md", "scrape_configs:"): "tests/unit/tools/test_alert_rules.py: promtool takes it",
    ("operating.md", "scheme: https"): "as above",
    ("operating.md", "from barnabas.tiered.spark_source import SegmentsDataSource"): "Spark: tests/spark runs it",
}
"""Blocks that are not run here, and where instead or why not."""


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the coordinator that the brokers below share, each with a chroot of its own."""
    folder, port = Folder(tmp_path_factory.mktemp("coordinator")), free_port()
    server = folder.serve("coordinator", placed(COORDINATOR, {"2181": port}))
    try:
        said(server, "ready on")
        yield f"127.0.0.1:{port}"
        assert server.stop() == 0
        # Besides, the machine may be slow, of which there are warnings.
        assert server.log_path.read_text().count("barnabas coordinator: ") == 1
    finally:
        folder.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    try:
        yield made
    finally:
        made.close()


def base(zookeeper: str, broker_id: int = 1) -> str:
    """The lines that a broker's file has besides those of a block."""
    return f"broker.id={broker_id}\nzookeeper.connect={zookeeper}\nlog.dirs=data\noffsets.topic.replication.factor=1\n"


def wait_until_ready(server: ServerProcess, metrics_port: int) -> None:
    def is_ready() -> bool:
        assert server.is_running, server.log_tail()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/readyz", timeout=60):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return False

    wait_until(is_ready, f"{server.name} is ready", READY_SECONDS, server.log_tail)


@contextlib.contextmanager
def broker(folder: Folder, properties: str) -> Iterator[ServerProcess]:
    """A broker with this file, which serves."""
    folder.write("server.properties", properties)
    port = free_port()
    server = folder.serve("broker", f"barnabas broker server.properties --metrics-port {port}")
    wait_until_ready(server, port)
    yield server
    assert server.stop() == 0, server.log_tail()


def test_every_block_of_these_pages_is_run_here_or_it_is_said_where() -> None:
    there = {(page, each.partition("\n")[0]) for page in PAGES for each in blocks_of(page)}
    assert there == _taken | ELSEWHERE.keys()
    assert not _taken & ELSEWHERE.keys()


def test_a_broker_runs_from_its_file_and_gives_partitions_to_a_new_one(coordinator: str, folder: Folder) -> None:
    ports = free_port(), free_port()
    listeners = [f"listeners=PLAINTEXT://127.0.0.1:{port}\n" for port in ports]
    folder.write("server.properties", base(coordinator) + listeners[0])
    metrics_port = free_port()
    wait_until_ready(folder.serve("broker-2", placed(BROKER, {"9102": metrics_port})), metrics_port)
    assert "imok" in four_letter_word(int(coordinator.rpartition(":")[2]), "ruok")
    servers = {"BARNABAS_BOOTSTRAP_SERVERS": f"127.0.0.1:{ports[0]}"}
    folder.run("barnabas topic create flights --partitions 2 --replication-factor 1", **servers)
    other = Folder(folder.directory / "other")
    try:
        with broker(other, base(coordinator, 4) + listeners[1]):
            folder.run(ADDING, **servers)
            before = json.loads((folder.directory / "before.json").read_text())
            assert {tuple(each["replicas"]) for each in before["partitions"]} == {(2,)}
            described, _ = folder.run("barnabas topic describe flights --json", **servers)
            assert 4 in {each["leader"] for each in json.loads(described)["topics"][0]["partitions"]}
    finally:
        other.close()


def test_clients_log_in_by_password_and_by_token(coordinator: str, folder: Folder) -> None:
    plain, login = free_port(), free_port()
    places = {"9092": plain, "9093": login, "0.0.0.0": "127.0.0.1", "broker-1.example.com": "localhost"}
    own = base(f"{coordinator}/logins") + "delegation.token.secret.key=of all brokers\n"

    def properties(name: str, *lines: str) -> dict[str, str]:
        file = folder.write(name, "\n".join(["security.protocol=SASL_PLAINTEXT", *lines]))
        return {"BARNABAS_COMMAND_CONFIG": str(file), "BARNABAS_BOOTSTRAP_SERVERS": f"localhost:{login}"}

    def by(mechanism: str, password: str) -> dict[str, str]:
        module = login_module(mechanism, username="alice", password=password)
        return properties(f"{mechanism}.properties", f"sasl.mechanism={mechanism}", f"sasl.jaas.config={module}")

    with broker(folder, own + placed(LOGINS, places)):
        folder.run("barnabas topic create flights --replication-factor 1", **by("PLAIN", "..."))
        ours, kafkas = USER.splitlines()
        assert kafkas.startswith("kafka-configs.sh "), "of Kafka, by tests/interop/test_sasl.py"
        folder.run(placed(ours, {"HOST:9092": f"localhost:{plain}"}), BARNABAS_USER_PASSWORD="alice's own")
        assert "flights" in folder.run("barnabas topic list", **by("SCRAM-SHA-512", "alice's own"))[0]
        wire = Wire(login)
        assert log_in(wire, "SCRAM-SHA-512", "alice", "alice's own") is None
        made = wire.say(Sent(CreateDelegationTokenRequest(max_lifetime_ms=-1), 3, lambda answer: answer))
        wire.close()
        hmac = base64.b64encode(bytes(made.hmac)).decode()
        token = placed(TOKEN, {"TOKENID": made.token_id, "HMAC": hmac})
        assert "flights" in folder.run("barnabas topic list", **properties("token.properties", token))[0]


def test_clients_come_in_by_tokens_of_an_identity_provider(
    coordinator: str, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, login = free_port(), free_port()
    places = {"9092": plain, "9093": login, "0.0.0.0": "127.0.0.1", "broker-1.example.com": "localhost"}
    monkeypatch.setattr(identity_provider, "ISSUER", "https://idp.example.com")
    with identity_provider.identity_provider() as provider:
        provider.secrets["broker"] = "..."
        tokens = placed(OAUTH, {"https://idp.example.com/": f"{provider.address}/"})
        with broker(folder, base(f"{coordinator}/tokens") + placed(LOGINS, places) + tokens):
            client = {"security.protocol": "SASL_PLAINTEXT", **identity_provider.client_properties(provider)}
            folder.write("client.properties", "".join(f"{name}={value}\n" for name, value in client.items()))
            command = "barnabas topic create made --replication-factor 1"
            assert "made" in folder.run(f"{command} -b localhost:{login} --command-config client.properties")[0]


def test_brokers_have_acls_and_deny_what_none_allows(coordinator: str, folder: Folder) -> None:
    plain, login = free_port(), free_port()
    places = {"9092": plain, "9093": login, "0.0.0.0": "127.0.0.1", "broker-1.example.com": "localhost"}
    acls = placed(ACLS, {"super.users=": "super.users=User:ANONYMOUS;User:broker"})
    module = login_module("PLAIN", username="alice", password="...")
    login_lines = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={module}"
    alice = f"-b localhost:{login} --command-config {folder.write('alice.properties', login_lines)}"
    anybody = {"BARNABAS_BOOTSTRAP_SERVERS": f"localhost:{plain}"}
    with broker(folder, base(f"{coordinator}/acls") + placed(LOGINS, places) + acls):
        folder.run("barnabas topic create flights --partitions 1 --replication-factor 1", **anybody)
        status, words = folder.typed(f"barnabas produce flights {alice}")
        assert (status, "TOPIC_AUTHORIZATION_FAILED" in words) == (1, True), words
        folder.run("barnabas acl add topic:flights --producer --principal User:alice", **anybody)
        assert "1 record" in folder.run(f"barnabas produce flights {alice}", "one\n")[1]


class TlsPlaces:
    """Where the files and ports of the page's listener with TLS are, and a client of it."""

    def __init__(self, folder: Folder) -> None:
        authority, self.port = shared_authority(), free_port()
        self.store = folder.directory / "broker-1.pem"
        self.here: dict[str, object] = {
            STORE: self.store,
            "/etc/barnabas/authority.pem": authority.certificate,
            "0.0.0.0": "127.0.0.1",
            "broker-1.example.com": "localhost",
            "9093": self.port,
        }
        lines = ["security.protocol=SSL", f"ssl.truststore.location={authority.certificate}", "ssl.truststore.type=PEM"]
        client = [*lines, f"ssl.keystore.location={client_certificate().both}", "ssl.keystore.type=PEM"]
        self.variables = {
            "BARNABAS_BOOTSTRAP_SERVERS": f"localhost:{self.port}",
            "BARNABAS_COMMAND_CONFIG": str(folder.write("client.properties", "\n".join(client))),
        }

    def shown(self) -> str:
        """The broker's certificate."""
        return ssl.get_server_certificate(("127.0.0.1", self.port)).strip()


def test_a_client_comes_in_by_its_certificate_and_a_broker_gets_another(coordinator: str, folder: Folder) -> None:
    places = TlsPlaces(folder)
    shutil.copy(broker_certificate().both, places.store)
    with broker(folder, base(f"{coordinator}/tls") + placed(TLS, places.here)):
        assert places.shown() == broker_certificate().certificate.read_text().strip()
        renewed = shared_authority().sign()
        shutil.copy(renewed.both, places.store)
        folder.run(placed(KEYSTORE, {STORE: places.store}), **places.variables)
        assert places.shown() == renewed.certificate.read_text().strip()


def test_a_broker_gets_a_key_that_zookeeper_keeps(coordinator: str, folder: Folder) -> None:
    places, first, stored = TlsPlaces(folder), broker_certificate(), shared_authority().sign()
    keys = f"ssl.keystore.key={_in_a_line(first.key)}\nssl.keystore.certificate.chain={_in_a_line(first.certificate)}"
    inline = placed(TLS, {f"ssl.keystore.location={STORE}": keys, **places.here})
    with broker(folder, base(f"{coordinator}/stored") + inline + placed(SECRET, {"...": "of this test"})):
        assert places.shown() == first.certificate.read_text().strip()
        folder.write("broker-1.key", stored.key.read_text())
        folder.write("broker-1.crt", stored.certificate.read_text())
        folder.run(STORED_KEY, **places.variables)
        assert places.shown() == stored.certificate.read_text().strip()


def _in_a_line(pem: Path) -> str:
    """As a properties file has it."""
    return pem.read_text().strip().replace("\n", "\\n")


def test_brokers_log_in_at_the_coordinator_and_have_remote_storage(folder: Folder) -> None:
    port, listener = free_port(), free_port()
    folder.write("coordinator.login", SERVER_LOGIN)
    login = folder.write("broker.login", CLIENT_LOGIN)
    server = folder.serve(
        "coordinator", f"barnabas coordinator --data of-it --port {port} --login-file coordinator.login"
    )
    said(server, "ready on")
    (folder.directory / "tier").mkdir()
    own = [
        base(f"127.0.0.1:{port}"),
        f"listeners=PLAINTEXT://127.0.0.1:{listener}\n",
        f"zookeeper.set.acl=true\nbarnabas.zookeeper.login.config={login}\n",
        "rlmm.config.remote.log.metadata.topic.replication.factor=1\n",
    ]
    with broker(folder, "".join(own) + placed(TIERED, {"/mnt/tier": folder.directory / "tier"})):
        create = "barnabas topic create old --replication-factor 1 --config remote.storage.enable=true"
        folder.run(create, BARNABAS_BOOTSTRAP_SERVERS=f"127.0.0.1:{listener}")
        client = KazooClient(f"127.0.0.1:{port}")
        client.start(60)
        try:
            acls, _ = client.get_acls("/brokers/topics/old")
        finally:
            client.stop()
            client.close()
    assert "sasl:kafka" in {f"{each.id.scheme}:{each.id.id}" for each in acls}


def stopped(server: ServerProcess) -> int:
    """The exit status after a Ctrl-C that only the one process hears; its own children are its own to stop."""
    os.kill(server.process_id, signal.SIGINT)
    wait_until(lambda: not server.is_running, f"{server.name} has stopped", READY_SECONDS, server.log_tail)
    status = server.exit_status
    assert status is not None
    return status


def test_a_cluster_has_a_console_and_that_has_logins(folder: Folder) -> None:
    up = folder.serve("up", placed(UP, {"barnabas up": "barnabas up --port 0"}))
    found = re.search(r"bootstrap servers +([^\s,]+)", said(up, "Ctrl-C stops everything."))
    assert found is not None
    port = free_port()
    command, output = placed(CONSOLE, {"127.0.0.1:9092": found[1], "8090": port}).splitlines()
    console = folder.serve("console", f"{command.removeprefix('$ ')} --port {port}")
    said(console, f"{output}\n")
    assert stopped(console) == 0
    ada, vi, with_logins = (line.removeprefix("$ ") for line in CONSOLE_LOGINS.splitlines())
    lines = [folder.run(each, given="correct horse\n")[0] for each in (ada, vi)]
    folder.write("console.logins", "".join(lines))
    guarded = folder.serve("guarded", f"{placed(with_logins, {'127.0.0.1:9092': found[1]})} --port {port}")
    said(guarded, f"http://127.0.0.1:{port}/")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/topics", timeout=60) as answer:
        assert "/login" in answer.geturl()
    assert stopped(up) == 0, up.log_tail()


def test_a_secured_cluster_says_how_clients_come_in_and_so_they_do(folder: Folder) -> None:
    install, command = SECURE.splitlines()
    assert install.startswith("pip install "), "it is there, or tests would not run"
    up = folder.serve("up", placed(command, {"barnabas up": "barnabas up --port 0"}))
    words = said(up, "Ctrl-C stops everything.")
    says = placed(SECURE_SAYS, {"/home/me/data": folder.directory / "data"})
    assert says in words
    (export,) = re.findall(r"^  commands +(export .*)$", says, re.MULTILINE)
    assert "made" in folder.run(f"{export}\nbarnabas topic create made\nbarnabas topic list")[0]
    (kcat,) = re.findall(r"^  librdkafka +(kcat .*)$", says, re.MULTILINE)
    if shutil.which("kcat") is not None:
        assert 'topic "made"' in folder.run(f"{kcat} -L")[0]
    assert stopped(up) == 0, up.log_tail()
