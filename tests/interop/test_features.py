"""UpdateFeatures and Envelope, answered as by Apache Kafka 3.9.1: by the controller, by others, and not at all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import ApiVersionsRequest, EnvelopeRequest, UpdateFeaturesRequest
from tests.support.apache_kafka import apache_kafka_broker
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until
from tests.support.wire_calls import brokers_known_at, call, metadata
from tests.support.zookeeper import ZooKeeperServer

BROKER_IDS: Final = (1, 2)
LEVELS: Final = (1, 0, -5)
UPGRADE_TYPES: Final = {0: (False, True), 1: (0, 1, 2, 3, 9)}
"""What an update may do, in each version."""
Ports = dict[str, dict[int, int]]


@pytest.fixture(scope="module")
def ports(
    oracle_jars: Path, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ports]:
    """The ports of two brokers of each kind, by kind and id."""
    address, directory = zookeeper_server.address, tmp_path_factory.mktemp("features")
    ours = [BrokerProcess(directory / f"ours-{each}", each, f"{address}/features-ours") for each in BROKER_IDS]
    with (
        apache_kafka_broker(directory / "theirs-1", f"{address}/features-theirs", 1) as first,
        apache_kafka_broker(directory / "theirs-2", f"{address}/features-theirs", 2) as second,
    ):
        try:
            for broker in ours:
                broker.start()
            ports = {
                "ours": {broker.broker_id: broker.port for broker in ours},
                "theirs": {1: first.port, 2: second.port},
            }
            for kind in ports.values():
                for port in kind.values():
                    wait_until(lambda: len(brokers_known_at(port)) == len(BROKER_IDS), "both are known")  # noqa: B023
            yield ports
        finally:
            for broker in ours:
                broker.stop()


def request(version: int, *updates: tuple[str, int, int | bool], **fields: Any) -> UpdateFeaturesRequest:
    field = "upgrade_type" if version else "allow_downgrade"
    keys = [
        UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, **cast("Any", {field: kind}))
        for name, level, kind in updates
    ]
    return UpdateFeaturesRequest(feature_updates=keys, **fields)


def answers(ports: Ports, version: int, asked: UpdateFeaturesRequest, *, controller: bool = True) -> list[Any]:
    """What Apache Kafka answers, and what ours does: codes, whether there is a message, and the same by feature."""
    found = []
    for kind in ("theirs", "ours"):
        by_id = ports[kind]
        controller_id = metadata(by_id[1]).controller_id
        (other_id,) = set(by_id) - {controller_id}
        answer = call(by_id[controller_id if controller else other_id], ApiKey.UPDATE_FEATURES, version, asked)
        results = sorted((each.feature, each.error_code, bool(each.error_message)) for each in answer.results)
        found.append((answer.error_code, bool(answer.error_message), results))
    return found


@pytest.mark.parametrize("version", UPGRADE_TYPES)
def test_every_update_is_answered_as_by_apache_kafka(ports: Ports, version: int) -> None:
    for name, level, kind in itertools.product(("x", "metadata.version", ""), LEVELS, UPGRADE_TYPES[version]):
        theirs, ours = answers(ports, version, request(version, (name, level, kind)))
        assert ours == theirs, (name, level, kind)


def test_several_updates_are_answered_each_by_itself(ports: Ports) -> None:
    for updates in ((), (("b", 1, 1), ("a", 0, 3), ("b", 0, 3), ("c", 0, 0)), (("x", 1, 1), ("x", 2, 1))):
        theirs, ours = answers(ports, 1, request(1, *updates, validate_only=True))
        assert ours == theirs, updates


@pytest.mark.parametrize("updates", [(), (("x", 1, 1),)])
def test_only_the_controller_answers(ports: Ports, updates: tuple[tuple[str, int, int], ...]) -> None:
    theirs, ours = answers(ports, 1, request(1, *updates), controller=False)
    assert ours == theirs
    assert theirs[0] != 0


@pytest.mark.parametrize("kind", ["theirs", "ours"])
def test_a_forwarded_request_is_advertised_and_closes_its_connection(ports: Ports, kind: str) -> None:
    port = ports[kind][1]
    versions = {
        each.api_key: each.max_version for each in call(port, ApiKey.API_VERSIONS, 0, ApiVersionsRequest()).api_keys
    }
    assert (versions[ApiKey.UPDATE_FEATURES], versions[ApiKey.ENVELOPE]) == (1, 0)
    with pytest.raises(ConnectionError, match="closed"):
        call(port, ApiKey.ENVELOPE, 0, EnvelopeRequest(request_data=b"x", client_host_address=b"\x7f\0\0\1"))
