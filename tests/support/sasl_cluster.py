"""Brokers that ask for logins, and what clients of several kinds need to log in there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.broker_process import BrokerProcess, Brokers, EmbeddedOfBrokers
from tests.support.ports import free_port
from tests.support.retention import RETENTION_DOES_NOT_RUN

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USER, PASSWORD = "alice", 'al"ice\\s secret, =1'
"""Of every mechanism; it takes care in every syntax."""


def quoted(text: str) -> str:
    """As a value in a login module."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def in_properties(text: str) -> str:
    """As a value in a file of properties."""
    return text.replace("\\", "\\\\")


def login_module(mechanism: str, **options: str) -> str:
    """For `sasl.jaas.config`."""
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    return f"{module} required {' '.join(f'{name}={quoted(value)}' for name, value in options.items())};"


def listener_properties(port: int, sasl_port: int, **more: object) -> dict[str, object]:
    """Of a broker, ours or Apache Kafka's, with a listener for all and one that asks for a login, by which brokers
    speak to each other.
    """
    plain = login_module(
        "PLAIN", username="broker", password="brokers' own", user_broker="brokers' own", user_alice=PASSWORD
    )
    scram = login_module("SCRAM-SHA-256", username="broker", password="brokers' own")
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{sasl_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{sasl_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
        "inter.broker.listener.name": "LOGIN",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": in_properties(plain),
        "listener.name.login.scram-sha-256.sasl.jaas.config": in_properties(scram),
        "listener.name.login.scram-sha-512.sasl.jaas.config": in_properties(scram),
        "offsets.topic.num.partitions": 2,
        "offsets.topic.replication.factor": 1,
        **RETENTION_DOES_NOT_RUN,
        **more,
    }


class SaslCluster(Brokers):
    """Brokers of ours. Each has `port` for all, and `sasl_ports[id]` for who logs in."""

    def __init__(self, directory: Path, count: int, overrides: Mapping[str, object]) -> None:
        self.coordinator = EmbeddedOfBrokers(directory / "coordinator")
        self.sasl_ports = {broker_id: free_port() for broker_id in range(1, count + 1)}
        self.brokers = {}
        for broker_id, sasl_port in self.sasl_ports.items():
            port = free_port()
            self.brokers[broker_id] = BrokerProcess(
                directory / f"broker-{broker_id}",
                broker_id,
                self.coordinator.address,
                port=port,
                overrides=listener_properties(port, sasl_port, **dict(overrides)),
            )

    @property
    def plain_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    @property
    def sasl_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.sasl_ports.values())


@contextlib.contextmanager
def sasl_cluster(directory: Path, count: int, **overrides: object) -> Iterator[SaslCluster]:
    cluster = SaslCluster(directory, count, overrides)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def confluent(
    servers: str, mechanism: str, password: str = PASSWORD, user: str = USER, **more: object
) -> dict[str, Any]:
    """The configuration of a client of confluent-kafka."""
    return {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        **more,
    }
