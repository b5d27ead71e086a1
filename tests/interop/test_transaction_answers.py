"""The same random requests about transactions, in every version, to a broker of ours and to one of Apache Kafka."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from barnabas.wire.api_keys import ApiKey
from barnabas.wire.messages import ApiVersionsRequest
from tests.interop.answers.transactions import VERSIONS, TransactionRun, Walk
from tests.support.apache_kafka import ApacheKafkaBroker
from tests.support.broker_process import BrokerProcess
from tests.support.wire_calls import call
from tests.support.zookeeper import ZooKeeperServer

STEPS: Final = 120
USUAL_SEEDS: Final = 12
FIRST_SEED, END_SEED = map(int, os.environ.get("BARNABAS_ANSWERS_SEEDS", f"0:{USUAL_SEEDS}").split(":"))
_DIFFERENCES_SHOWN: Final = 5
_runs = itertools.count()
Ports = tuple[int, int]
"""Ours, theirs."""


@pytest.fixture(scope="module")
def ports(
    kafka_broker: ApacheKafkaBroker, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ports]:
    overrides = {
        "offsets.topic.num.partitions": 3,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 3,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
    }
    directory, chroot = tmp_path_factory.mktemp("ours"), f"{zookeeper_server.address}/transaction-answers"
    ours = BrokerProcess(directory, 0, chroot, overrides=overrides)
    ours.start()
    try:
        yield ours.port, kafka_broker.port
    finally:
        ours.stop()


def test_both_have_the_same_versions(ports: Ports) -> None:
    ours, theirs = (
        {
            ApiKey(each.api_key): (each.min_version, each.max_version)
            for each in call(port, ApiKey.API_VERSIONS, 0, ApiVersionsRequest()).api_keys
            if each.api_key in VERSIONS
        }
        for port in ports
    )
    assert ours == theirs
    assert {key: VERSIONS[key][1] for key in VERSIONS} == {key: theirs[key][1] for key in VERSIONS}


@pytest.mark.parametrize("seed", range(FIRST_SEED, END_SEED))
def test_answers_are_alike(ports: Ports, seed: int) -> None:
    walk = Walk(seed).draw(STEPS)
    prefix = f"x{next(_runs)}-"
    runs = [TransactionRun(port, prefix) for port in ports]

    def transcript(run: TransactionRun) -> list[object]:
        run.prepare()
        return run.transcript(walk)

    with ThreadPoolExecutor(2) as pool:
        ours, theirs = pool.map(transcript, runs)
    found = [
        f"{number}: {asked}\n  Kafka: {of_theirs}\n  ours:  {of_ours}"
        for number, (asked, of_ours, of_theirs) in enumerate(zip(walk, ours, theirs, strict=True))
        if of_ours != of_theirs
    ]
    assert not found, f"seed {seed}:\n" + "\n".join(found[:_DIFFERENCES_SHOWN])
