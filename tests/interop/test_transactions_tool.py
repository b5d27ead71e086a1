"""`kafka-transactions` of Apache Kafka 3.9.1, against a broker of ours and one of Apache Kafka's: the same output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.wire import catalogue
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.record_builder import RecordBatchBuilder
from tests.support.apache_kafka import apache_kafka_broker, tool_run
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until
from tests.support.wire_calls import call, create_topic, leaders
from tests.support.wire_messages import to_message
from tests.support.wire_values import Tree
from tests.support.zookeeper import ZooKeeperServer

TOOL: Final = "org.apache.kafka.tools.TransactionsCommand"
TOPIC: Final = "orders"
BROKER_ID: Final = 0
NOW_MS: Final = 1_700_000_000_000
OVERRIDES: Final = {
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    # With it no transaction can hang.
    "transaction.partition.verification.enable": "false",
    "log.retention.ms": -1,
    "log.message.timestamp.before.max.ms": 2**63 - 1,
}
HANGING_OFFSET: Final = 1
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
                _prepare(port)
            yield ours.port, theirs.port
        finally:
            ours.stop()


def _ask(port: int, key: ApiKey, version: int, tree: Tree) -> Any:
    return call(port, key, version, to_message(catalogue.request(key), tree))


def _prepare(port: int) -> None:
    """A transaction that is open, one that has ended, and in partition 1 one of which its coordinator knows nothing."""
    create_topic(port, TOPIC, 2, 1)
    wait_until(lambda: len(leaders(port, TOPIC)) == 2, "the topic is there")
    for name in ("open", "ended"):
        wait_until(
            lambda: _ask(port, ApiKey.FIND_COORDINATOR, 2, {"key": name, "key_type": 1}).error_code == 0,  # noqa: B023
            "there is a coordinator",
        )
    producers = {}
    for name in ("open", "ended", "hanging"):
        tree = {"transactional_id": name if name != "hanging" else None, "transaction_timeout_ms": 60_000}

        def given() -> bool:
            producers[name] = _ask(port, ApiKey.INIT_PRODUCER_ID, 1, tree)  # noqa: B023
            return bool(producers[name].error_code == 0)  # noqa: B023

        wait_until(given, f"{name} has a producer id")
    for name, partition in (("open", 0), ("ended", 1)):
        who = {
            f"v3_and_below_producer_{each}": getattr(producers[name], f"producer_{each}") for each in ("id", "epoch")
        }
        topics = [{"name": TOPIC, "partitions": [partition]}]
        added = {"v3_and_below_transactional_id": name, **who, "v3_and_below_topics": topics}
        answer = _ask(port, ApiKey.ADD_PARTITIONS_TO_TXN, 3, added)
        assert answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    ended = {"transactional_id": "ended", "committed": True}
    ended |= {each: getattr(producers["ended"], each) for each in ("producer_id", "producer_epoch")}
    assert _ask(port, ApiKey.END_TXN, 3, ended).error_code == 0

    def is_complete() -> bool:
        (state,) = _ask(port, ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["ended"]}).transaction_states
        return bool(state.transaction_state == "CompleteCommit")

    wait_until(is_complete, "the transaction has ended")
    for name, partition in (("open", 0), ("hanging", 1)):
        batch = RecordBatchBuilder(
            producer_id=producers[name].producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        batch.append(NOW_MS, None, b"value")
        data = [{"name": TOPIC, "partition_data": [{"index": partition, "records": bytes(batch.build())}]}]
        produced: Tree = {"transactional_id": name, "acks": -1, "timeout_ms": 30_000, "topic_data": data}
        (topic,) = _ask(port, ApiKey.PRODUCE, 8, produced).responses
        assert topic.partition_responses[0].error_code == 0


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
