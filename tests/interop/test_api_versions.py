"""ApiVersions, beside Apache Kafka 3.9.1 in ZooKeeper mode: all of its APIs, in just its versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.wire.api_keys import OWN_APIS, ApiKey
from barnabas.wire.messages import ApiVersionsRequest
from tests.support.apache_kafka import apache_kafka_broker
from tests.support.broker_process import BrokerProcess
from tests.support.wire_calls import call
from tests.support.zookeeper import ZooKeeperServer

API_COUNT: Final = 62
REQUEST_VERSIONS: Final = range(5)
Ports = tuple[int, int]


@pytest.fixture(scope="module")
def ports(
    oracle_jars: Path, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ports]:
    """Of a broker of ours, and of Apache Kafka's."""
    address, directory = zookeeper_server.address, tmp_path_factory.mktemp("api-versions")
    ours = BrokerProcess(directory / "ours", 1, f"{address}/api-versions-ours")
    with apache_kafka_broker(directory / "theirs", f"{address}/api-versions-theirs", 1) as theirs:
        ours.start()
        try:
            yield ours.port, theirs.port
        finally:
            ours.stop()


def asked(port: int, version: int) -> Any:
    request = ApiVersionsRequest(client_software_name="tests", client_software_version="1")
    return call(port, ApiKey.API_VERSIONS, version, request)


@pytest.mark.parametrize("version", REQUEST_VERSIONS)
def test_both_have_the_same_apis_in_the_same_versions(ports: Ports, version: int) -> None:
    ours, theirs = (
        {each.api_key: (each.min_version, each.max_version) for each in asked(port, version).api_keys} for port in ports
    )
    assert len(theirs) == API_COUNT
    assert {key: versions for key, versions in ours.items() if key not in OWN_APIS} == theirs


@pytest.mark.parametrize("version", REQUEST_VERSIONS)
def test_both_say_the_same_beside_that(ports: Ports, version: int) -> None:
    ours, theirs = (asked(port, version) for port in ports)
    for each in (ours, theirs):
        each.api_keys = []
    assert str(ours) == str(theirs)
