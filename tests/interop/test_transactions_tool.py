"""`kafka-transactions` of Apache Kafka 3.9.1, against a broker of ours and one of Apache Kafka's: the same output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.support.apache_kafka import apache_kafka_broker, tool_run
from tests.support.broker_process import BrokerProcess
from tests.support.hanging_transactions import HANGING_OFFSET, OVERRIDES, TOPIC, prepare
from tests.support.transaction_command_suite import TransactionCommandSuite
from tests.support.zookeeper import ZooKeeperServer

TOOL: Final = "org.apache.kafka.tools.TransactionsCommand"
BROKER_ID: Final = 0
_LOG_LINE: Final = re.compile(r"^\[\d{4}-\d\d-\d\d [\d:,]+\] ")
_TIMES: Final = ("LastTimestamp", "TransactionDurationMs", "CurrentTransactionStartTimeMs", "Duration(min)")
Ports = tuple[int, int]
"""Ours, theirs."""


@pytest.fixture(scope="module")
def ports(
    oracle_jars: Path, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ports]:
    address, directory = zookeeper_server.address, tmp_path_factory.mktemp("tool")
    ours = BrokerProcess(directory / "ours", BROKER_ID, f"{address}/tool-ours", overrides=OVERRIDES)
    with apache_kafka_broker(directory / "theirs", f"{address}/tool-theirs", BROKER_ID, overrides=OVERRIDES) as theirs:
        ours.start()
        try:
            for port in (ours.port, theirs.port):
                prepare(port)
            yield ours.port, theirs.port
        finally:
            ours.stop()


def said(ports: Ports, *arguments: str) -> list[tuple[int, list[list[str]], list[str]]]:
    """The status, the cells and the errors of both; times are left out."""

    def one(port: int) -> tuple[int, list[list[str]], list[str]]:
        run = tool_run(TOOL, ["--bootstrap-server", f"127.0.0.1:{port}", *arguments])
        cells = [_LOG_LINE.sub("", line).split() for line in run.output.splitlines() if line.strip()]
        hidden = [number for number, name in enumerate(cells[0] if cells else []) if name in _TIMES]
        for line in cells[1:]:
            for number in hidden:
                line[number] = "<time>"
        errors = [line for line in run.errors.splitlines() if line and not line.startswith(("\tat ", "Caused by"))]
        return run.status, [*cells[:1], *sorted(cells[1:])], errors

    with ThreadPoolExecutor(2) as both:
        return list(both.map(one, ports))


def test_transactions_are_listed_described_and_found_and_a_hanging_one_is_aborted(ports: Ports) -> None:
    partition = ("--topic", TOPIC, "--partition")
    found = {}
    for name, arguments in {
        "list": ("list",),
        "list long ones": ("list", "--duration-filter", "60000"),
        "describe open": ("describe", "--transactional-id", "open"),
        "describe ended": ("describe", "--transactional-id", "ended"),
        "describe unknown": ("describe", "--transactional-id", "nobody"),
        "producers": ("describe-producers", *partition, "0"),
        "producers of an ended one": ("describe-producers", *partition, "1"),
        "hanging": ("find-hanging", *partition, "1"),
        "hanging on the broker": ("find-hanging", "--broker-id", "0"),
        "abort what is not there": ("abort", *partition, "1", "--start-offset", "77"),
        "abort": ("abort", *partition, "1", "--start-offset", str(HANGING_OFFSET)),
        "hanging no more": ("find-hanging", *partition, "1"),
        "producers at the end": ("describe-producers", *partition, "1"),
    }.items():
        ours, theirs = said(ports, *arguments)
        assert ours == theirs, name
        found[name] = theirs
    assert len(found["hanging"][1]) == 2, "the hanging one under the heading"
    assert len(found["hanging no more"][1]) == 1
    assert found["abort"][0] == 0


class TestCommandsOnApacheKafka(TransactionCommandSuite):
    @pytest.fixture
    def bootstrap(
        self, oracle_jars: Path, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[str]:
        connect = f"{zookeeper_server.address}/transaction-commands"
        directory = tmp_path_factory.mktemp("transaction-commands")
        with apache_kafka_broker(directory, connect, BROKER_ID, overrides=OVERRIDES) as broker:
            prepare(broker.port)
            yield broker.address
