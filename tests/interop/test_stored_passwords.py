"""Keys and passwords in dynamic configs: what Apache Kafka 3.9.1 has encrypted in ZooKeeper we read, and the reverse.

Broker 5 is now ours, now Apache Kafka's, with the same configs; its key is in ZooKeeper. Broker 1, ours, is there all
the time, and the controller.
"""

from __future__ import annotations

import json
import random
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.config.keys import Password
from barnabas.security.password_encoder import Encoded, PasswordEncoder, PasswordEncoderSettings
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from tests.support.apache_kafka import CONFIG_COMMAND, ApacheKafkaBroker, run_tool
from tests.support.apache_kafka_jars import class_path
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority, Certified
from tests.support.java_gateway import JavaProcess
from tests.support.ports import free_port
from tests.support.raw_zookeeper import Operation, RawSession, read
from tests.support.waiting import wait_until
from tests.support.wire_calls import brokers_known_at, call
from tests.support.zookeeper import ZooKeeperServer

BROKER: Final = 5
PATIENCE_SECONDS: Final = 90.0
PREFIX: Final = "listener.name.tls.ssl.keystore."
ALGORITHMS: Final = [
    ("AES/CBC/PKCS5Padding", 128),
    ("AES/CBC/PKCS5Padding", 256),
    ("AES/CFB/PKCS5Padding", 192),
    ("AES/CFB/NoPadding", 128),
    ("AES/OFB/PKCS5Padding", 128),
    ("AES/OFB/NoPadding", 128),
    ("AES/CTR/NoPadding", 256),
    ("AES/GCM/NoPadding", 128),
    ("DES/CBC/PKCS5Padding", 64),
    ("DESede/CBC/PKCS5Padding", 192),
]
KEY_FACTORIES: Final = [None, *(f"PBKDF2WithHmacSHA{bits}" for bits in (1, 224, 256, 384, 512))]
PASSWORDS: Final = ["", "x", "sixteen letters.", "pässwörd 😀", "with:colons, commas=", "p" * 3000]


@pytest.fixture(scope="module")
def java(oracle_jars: Path) -> Iterator[Any]:
    process = JavaProcess(class_path())
    try:
        yield process.jvm
    finally:
        process.kill()


@pytest.mark.parametrize(("cipher", "key_bits"), ALGORITHMS)
def test_each_reads_what_the_other_has_encoded(java: Any, cipher: str, key_bits: int) -> None:
    rng = random.Random(key_bits)
    for number, key_factory in enumerate(KEY_FACTORIES):
        secret = ("secret", "gehäim 😀", "s" * 200)[number % 3]
        iterations = rng.randrange(1024, 3000)
        theirs = java.org.apache.kafka.security.PasswordEncoder.encrypting(
            java.org.apache.kafka.common.config.types.Password(secret), key_factory, cipher, key_bits, iterations
        )
        settings = PasswordEncoderSettings(
            key_factory=key_factory, cipher=cipher, key_bits=key_bits, iterations=iterations
        )
        ours = PasswordEncoder(Password(secret), settings)
        for password in PASSWORDS:
            of_theirs = theirs.encode(java.org.apache.kafka.common.config.types.Password(password))
            assert ours.decode(Encoded.parse(of_theirs)) == password
            of_ours = ours.encode(password, rng.randbytes)
            assert theirs.decode(of_ours).value() == password
            assert {pair.partition(":")[0] for pair in of_ours.split(",")} == {
                pair.partition(":")[0] for pair in of_theirs.split(",")
            }


class Taken:
    """Broker 5, now of one kind and now of the other."""

    def __init__(self, directory: Path) -> None:
        self.zookeeper = ZooKeeperServer(directory / "zookeeper")
        self.zookeeper.start()
        self._directory = directory
        self._authority = Authority(directory / "authority")
        self.port, self.tls_port = free_port(), free_port()
        self._in_its_file = self.certified()
        self.other = BrokerProcess(directory / "1", 1, self.zookeeper.address)
        self.other.start()
        self.broker: BrokerProcess | ApacheKafkaBroker | None = None
        self._starts = 0

    def certified(self) -> Certified:
        return self._authority.sign("/O=Castle/CN=broker")

    def start(self, *, ours: bool, **encoder: object) -> BrokerProcess | ApacheKafkaBroker:
        """Starts it; `encoder` are its configs `password.encoder.*`."""
        self.stop()
        self._starts += 1
        directory = self._directory / f"start-{self._starts}"
        listeners = f"PLAINTEXT://127.0.0.1:{self.port},TLS://127.0.0.1:{self.tls_port}"
        overrides: dict[str, object] = {
            "listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL",
            "zookeeper.session.timeout.ms": 6_000,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": in_one_line(self._in_its_file.key),
            "ssl.keystore.certificate.chain": in_one_line(self._in_its_file.certificate),
            **{f"password.encoder.{name.replace('_', '.')}": value for name, value in encoder.items()},
        }
        address = self.zookeeper.address
        self.broker = (
            BrokerProcess(directory, BROKER, address, overrides=overrides, port=self.port)
            if ours
            else ApacheKafkaBroker(directory, address, BROKER, overrides=overrides, port=self.port)
        )
        self.broker.start()
        wait_until(lambda: BROKER in brokers_known_at(self.other.port), "it is in the cluster", PATIENCE_SECONDS)
        return self.broker

    def stop(self) -> None:
        if self.broker is not None:
            self.broker.stop()
            self.broker = None
            wait_until(lambda: BROKER not in brokers_known_at(self.other.port), "it is gone", PATIENCE_SECONDS)

    def kill(self) -> None:
        for broker in (self.broker, self.other):
            if broker is not None:
                broker.kill()
        self.zookeeper.kill()

    def shows(self, certified: Certified | None) -> None:
        """Waits until it comes by this certificate; None for that of its file."""
        expected = ssl.PEM_cert_to_DER_cert((certified or self._in_its_file).certificate.read_text())

        def is_shown() -> bool:
            found = ssl.get_server_certificate(("127.0.0.1", self.tls_port), timeout=10)
            return ssl.PEM_cert_to_DER_cert(found) == expected

        wait_until(is_shown, "it shows the certificate", PATIENCE_SECONDS)

    def alter(self, configs: dict[str, str]) -> Any:
        """Sets these; returns the code and the message."""
        alterable = IncrementalAlterConfigsRequest.AlterableConfig
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=4,
            resource_name=str(BROKER),
            configs=[alterable(name=name, config_operation=0, value=value) for name, value in configs.items()],
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        (answer,) = call(self.port, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
        return answer.error_code, answer.error_message

    def described(self) -> dict[str, tuple[str | None, bool]]:
        """What of its stores was set dynamically: value, and whether it is secret."""
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=4, resource_name=str(BROKER), configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
        (answer,) = call(self.port, ApiKey.DESCRIBE_CONFIGS, 3, request).results
        return {
            config.name: (config.value, config.is_sensitive)
            for config in answer.configs
            if config.name.startswith(PREFIX) and config.config_source == 2
        }

    def stored(self) -> dict[str, str]:
        session = RawSession(self.zookeeper.port)
        session.connect()
        try:
            data = session.call(read(Operation.GET_DATA, f"/config/brokers/{BROKER}")).body[0]
            configs: dict[str, str] = json.loads(data)["config"]
            return configs
        finally:
            session.close()


def in_one_line(path: Path) -> str:
    return " ".join(path.read_text().split("\n")).strip()


def key_of(certified: Certified) -> dict[str, str]:
    return {
        f"{PREFIX}type": "PEM",
        f"{PREFIX}key": certified.key.read_text(),
        f"{PREFIX}certificate.chain": certified.certificate.read_text(),
    }


@pytest.fixture
def taken(oracle_jars: Path, tmp_path: Path) -> Iterator[Taken]:
    made = Taken(tmp_path)
    try:
        yield made
    finally:
        made.kill()


def test_a_broker_of_either_kind_goes_on_with_the_keys_that_the_other_has_stored(taken: Taken, tmp_path: Path) -> None:
    by_tool, by_ours, by_theirs, last = (taken.certified() for _ in range(4))
    # Before its first start, as Kafka's documentation has it.
    configs = {name: " ".join(value.split("\n")).strip() for name, value in key_of(by_tool).items()}
    file = tmp_path / "added.properties"
    encoder = {"password.encoder.secret": "first", "password.encoder.iterations": "8192"}
    file.write_text("".join(f"{name}={value}\n" for name, value in {**configs, **encoder}.items()))
    arguments = ["--zookeeper", taken.zookeeper.address, "--alter", "--entity-type", "brokers", "--entity-name"]
    run_tool(CONFIG_COMMAND, [*arguments, str(BROKER), "--add-config-file", file])
    assert "iterations:8192" in taken.stored()[f"{PREFIX}key"]

    taken.start(ours=True, secret="first")
    taken.shows(by_tool)
    assert taken.alter(key_of(by_ours)) == (0, None)
    taken.shows(by_ours)
    of_ours = taken.described()

    taken.start(ours=False, secret="first")
    taken.shows(by_ours)
    assert taken.described() == of_ours
    assert taken.alter(key_of(by_theirs)) == (0, None)
    taken.shows(by_theirs)
    before = taken.stored()

    # The secret is exchanged at a start of ours, and of theirs.
    taken.start(ours=True, secret="second", old_secret="first")
    taken.shows(by_theirs)
    wait_until(lambda: taken.stored()[f"{PREFIX}key"] != before[f"{PREFIX}key"], "it is encoded anew", PATIENCE_SECONDS)
    of_ours_again = taken.stored()
    taken.start(ours=False, secret="third", old_secret="second")
    taken.shows(by_theirs)
    assert taken.stored()[f"{PREFIX}key"] != of_ours_again[f"{PREFIX}key"]
    taken.start(ours=True, secret="third")
    taken.shows(by_theirs)
    assert taken.alter(key_of(last)) == (0, None)
    taken.shows(last)


@pytest.mark.night("a minute with six starts of brokers, and no commit says that it has found anything")
def test_with_another_secret_or_none_both_kinds_say_so_and_go_on(taken: Taken) -> None:
    """And both refuse a password in the same words where there is no secret."""
    stored = taken.certified()
    taken.start(ours=False, secret="first")
    assert taken.alter(key_of(stored)) == (0, None)
    taken.shows(stored)
    before = taken.stored()
    refusals = {}
    for ours in (False, True):
        for encoder in [{"secret": "mistyped"}, {}] if ours else [{}]:
            broker = taken.start(ours=ours, **encoder)
            taken.shows(None)
            path = broker.log_path if isinstance(broker, BrokerProcess) else broker.process.log_path
            assert f"Dynamic password config {PREFIX}key could not be decoded, ignoring" in path.read_text()
        refusals[ours] = taken.alter({"listener.name.other.ssl.key.password": "hunter2"})
        if ours:
            # What cannot be read is not lost by a change of something else. Apache Kafka's broker drops it.
            assert taken.alter({"log.cleaner.threads": "1"}) == (0, None)
            assert {**taken.stored(), "log.cleaner.threads": "1"} == {**before, "log.cleaner.threads": "1"}
    assert refusals[True][0] == refusals[False][0]
    assert refusals[True][1].startswith(refusals[False][1])
    taken.start(ours=True, secret="first")
    taken.shows(stored)
