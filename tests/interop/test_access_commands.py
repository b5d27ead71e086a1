"""`barnabas acl` and `barnabas user` against an unmodified Apache Kafka 3.9.1 with and without an authorizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.access_command_suite import AUTHORIZED, AccessCommandSuite
from tests.support.apache_kafka import ApacheKafkaBroker
from tests.support.command_suite import barnabas
from tests.support.ports import free_port
from tests.support.sasl_cluster import listener_properties
from tests.support.zookeeper import ZooKeeperServer


class Addresses(NamedTuple):
    plain: str
    login: str


@pytest.fixture(scope="module")
def addresses(
    oracle_jars: Path, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Addresses]:
    port, sasl_port = free_port(), free_port()
    overrides = listener_properties(port, sasl_port, **AUTHORIZED)
    connect = f"{zookeeper_server.address}/access"
    broker = ApacheKafkaBroker(tmp_path_factory.mktemp("access"), connect, 1, port=port, overrides=overrides)
    try:
        broker.start()
        yield Addresses(f"127.0.0.1:{port}", f"127.0.0.1:{sasl_port}")
    finally:
        broker.kill()


class TestOnApacheKafka(AccessCommandSuite):
    @pytest.fixture
    def bootstrap(self, addresses: Addresses) -> str:
        return addresses.plain

    @pytest.fixture
    def login_bootstrap(self, addresses: Addresses) -> str:
        return addresses.login


def test_a_cluster_without_an_authorizer_says_what_to_set(kafka_broker: ApacheKafkaBroker) -> None:
    for arguments in (("list",), ("add", "topic:t", "--principal", "User:x", "--operation", "read")):
        done = barnabas(kafka_broker.address, "acl", *arguments)
        assert (done.status, done.output) == (1, "")
        assert "set authorizer.class.name" in done.errors
