"""Brokers of ours with TLS between them and for clients, and what clients of several kinds need to come in there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.broker_process import BrokerProcess, Brokers, EmbeddedOfBrokers
from tests.support.certificates import Authority, Certified
from tests.support.ports import free_port
from tests.support.retention import RETENTION_DOES_NOT_RUN
from tests.support.sasl_cluster import PASSWORD, USER, in_properties, login_module

STORE_PASSWORD = "of the store"


def pem_properties(certified: Certified | None, authority: Authority, prefix: str = "") -> dict[str, object]:
    """A key store, where there is one, and a trust store, of a broker or of a client."""
    key = {} if certified is None else {"ssl.keystore.type": "PEM", "ssl.keystore.location": certified.both}
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority.certificate}
    return {f"{prefix}{name}": value for name, value in (key | trust).items()}


def listener_properties(
    ports: Mapping[str, int], certified: Certified, authority: Authority, **more: object
) -> dict[str, object]:
    """Of a broker, ours or Apache Kafka's: PLAINTEXT for the test, INNER between brokers, CONTROL for the controller,
    SSL for clients with certificates, LOGIN for those that log in (SASL_SSL).
    """
    plain = login_module("PLAIN", username="broker", password="unused", user_alice=PASSWORD)
    where = ",".join(f"{name}://localhost:{port}" for name, port in ports.items())
    return {
        "listeners": where,
        "advertised.listeners": where,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INNER:SSL,CONTROL:SSL,SSL:SSL,LOGIN:SASL_SSL",
        "inter.broker.listener.name": "INNER",
        "control.plane.listener.name": "CONTROL",
        **pem_properties(certified, authority),
        "ssl.client.auth": "required",
        "listener.name.ssl.ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/,DEFAULT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": in_properties(plain),
        "offsets.topic.num.partitions": 2,
        "offsets.topic.replication.factor": 1,
        **RETENTION_DOES_NOT_RUN,
        **more,
    }


LISTENERS = ("PLAINTEXT", "INNER", "CONTROL", "SSL", "LOGIN")


class TlsCluster(Brokers):
    """Each broker has a port for each of `LISTENERS`."""

    def __init__(self, directory: Path, count: int, overrides: Mapping[str, object]) -> None:
        self.coordinator = EmbeddedOfBrokers(directory / "coordinator")
        self.authority = Authority(directory / "authority")
        self.other_authority = Authority(directory / "other-authority", "other")
        self.certificate = self.authority.sign("/O=Castle/CN=broker")
        self.alice = self.authority.sign("/C=DE/O=Castle, Inc./CN=alice", "DNS:alice")
        self.ports = {broker_id: {name: free_port() for name in LISTENERS} for broker_id in range(1, count + 1)}
        self._directory = directory
        self.brokers = {
            broker_id: BrokerProcess(
                directory / f"broker-{broker_id}",
                broker_id,
                self.coordinator.address,
                port=ports["PLAINTEXT"],
                overrides=listener_properties(ports, self.certificate, self.authority, **dict(overrides)),
            )
            for broker_id, ports in self.ports.items()
        }

    def servers(self, listener: str) -> str:
        return ",".join(f"localhost:{ports[listener]}" for ports in self.ports.values())

    def log(self, broker_id: int) -> str:
        return (self._directory / f"broker-{broker_id}" / "logs" / "server.log").read_text()

    def confluent(self, certified: Certified | None = None, **more: object) -> dict[str, Any]:
        """The configuration of a client of confluent-kafka, with a certificate."""
        shown = certified or self.alice
        return {
            "bootstrap.servers": self.servers("SSL"),
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "ssl.certificate.location": str(shown.certificate),
            "ssl.key.location": str(shown.key),
            **more,
        }

    def logging_in(self, **more: object) -> dict[str, Any]:
        """The same, with a password."""
        return {
            "bootstrap.servers": self.servers("LOGIN"),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            **more,
        }


@contextlib.contextmanager
def tls_cluster(directory: Path, count: int, **overrides: object) -> Iterator[TlsCluster]:
    cluster = TlsCluster(directory, count, overrides)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
