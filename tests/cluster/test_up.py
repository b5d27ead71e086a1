"""`barnabas up`: processes that real clients use, that stop in bounded time and come back."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import kafka
import pytest
from confluent_kafka import Consumer, Producer

from tests.support.barnabas_up import READY_SECONDS, SOURCE, Up, is_running
from tests.support.waiting import wait_until
from tests.support.wire_calls import metadata
from tests.unit.pipelines.pipeline_files import FLIGHTS

RECORDS = 300
TOPIC = "flights"


def page_at(url: str) -> bytes:
    """What is there, also where that is not found."""
    try:
        with urllib.request.urlopen(url, timeout=60) as page:
            return bytes(page.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.read()


def produce(bootstrap_servers: str) -> None:
    """By confluent-kafka, idempotent, acks of all."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "log_level": 0})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%d" % number, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(60) == 0
    assert failures == []


def consume_by_confluent(bootstrap_servers: str, group: str) -> list[int]:
    """In a group, until everything is there; commits."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            # A coordinator that is killed right after a member has left may take that with it: it expires then.
            "session.timeout.ms": 6_000,
            "log_level": 0,
        }
    )
    consumer.subscribe([TOPIC])
    found: list[int] = []
    deadline = time.monotonic() + 60
    while len(found) < RECORDS and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(int(message.value() or b"-1"))
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def consume_by_kafka_python(bootstrap_servers: str, group: str) -> list[int]:
    consumer = kafka.KafkaConsumer(
        TOPIC,
        bootstrap_servers=bootstrap_servers.split(","),
        group_id=group,
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
    )
    found: list[int] = []
    for message in consumer:
        found.append(int(message.value))
        if len(found) == RECORDS:
            break
    consumer.close()
    return found


@pytest.mark.parametrize("brokers", [1, 3])
def test_clients_produce_and_consume_in_groups_as_soon_as_it_is_ready(tmp_path: Path, brokers: int) -> None:
    up = Up(tmp_path / "data", brokers, "--metrics-port", "0")
    try:
        assert len(up.said["brokers"]) == brokers
        for port in up.ports:
            assert len(metadata(port).brokers) == brokers
        produce(up.bootstrap_servers)
        assert consume_by_confluent(up.bootstrap_servers, "one") == list(range(RECORDS))
        assert consume_by_kafka_python(up.bootstrap_servers, "two") == list(range(RECORDS))
        assert all(metrics_of(broker["metrics_port"]) for broker in up.said["brokers"])
    finally:
        status = up.stop()
    assert status == 0
    assert up.errors() == ""
    assert not any(is_running(process_id) for process_id in up.process_ids)
    for broker in up.said["brokers"]:
        log = Path(broker["log"]).read_text()
        assert "Controlled shutdown completed" in log or brokers == broker["id"]
        assert " ERROR " not in log


@pytest.mark.parametrize("brokers", [1, 2])
def test_transactions_need_no_more_brokers_than_there_are(tmp_path: Path, brokers: int) -> None:
    up = Up(tmp_path / "data", brokers)
    try:
        producer = Producer({"bootstrap.servers": up.bootstrap_servers, "transactional.id": "t", "log_level": 0})
        producer.init_transactions(30)
        producer.begin_transaction()
        for number in range(RECORDS):
            producer.produce(TOPIC, str(number).encode())
        producer.commit_transaction(30)
        assert consume_by_confluent(up.bootstrap_servers, "one") == list(range(RECORDS))
    finally:
        assert up.stop() == 0


def metrics_of(port: int) -> bool:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return "kafka_server_kafkaserver_brokerstate 3.0" in text and "kafka_controller_kafkacontroller_" in text


def test_what_was_written_is_there_after_a_stop_and_a_start_on_the_same_ports(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", 3)
    try:
        produce(up.bootstrap_servers)
    finally:
        assert up.stop(signal.SIGINT) == 0
    again = Up(tmp_path / "data", 3)
    try:
        assert consume_by_confluent(again.bootstrap_servers, "one") == list(range(RECORDS))
    finally:
        assert again.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--override", "no-equals-sign"], "KEY=VALUE"),
        (["--brokers", "3", "--port", "65534"], "exceed 65535"),
        (["--override", "log.retention.hours=soon", "--port", "0"], "log.retention.hours"),
    ],
)
def test_says_what_is_wrong_and_leaves_nothing_running(tmp_path: Path, arguments: list[str], problem: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "barnabas.cli", "up", "--data", str(tmp_path / "data"), *arguments],
        capture_output=True,
        text=True,
        timeout=READY_SECONDS,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        check=False,
    )
    assert done.returncode in {1, 2}
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


def test_a_console_comes_and_goes_with_the_cluster(tmp_path: Path) -> None:
    file = tmp_path / "delays.yaml"
    file.write_text(FLIGHTS)
    options = ("--console-port", "0", "--console-allow-changes", "--console-pipeline", str(file))
    up = Up(tmp_path / "data", 1, "--console", *options)
    try:
        console = up.said["console"]
        with urllib.request.urlopen(console["url"], timeout=60) as page:
            assert b"This console may change the cluster" in page.read()
        wait_until(lambda: b"What delays does" in page_at(f"{console['url']}pipelines/delays"), "it has the graph")
        # One that was killed comes back on its port, and nobody else notices.
        os.kill(console["process_id"], signal.SIGKILL)
        wait_until(lambda: "console runs again" in up.errors(), "the console is started again")
        with urllib.request.urlopen(console["url"], timeout=60) as page:
            assert b"Barnabas console" in page.read()
        assert is_running(up.process_ids[1])
        assert "broker-1" not in up.errors()
    finally:
        assert up.stop() == 0
    assert not any(map(is_running, up.process_ids))
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(console["url"], timeout=60)


def test_a_console_whose_port_is_taken_is_told_of_and_the_cluster_runs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        up = Up(tmp_path / "data", 1, "--console", "--console-port", str(port), "--no-restart")
        try:
            assert up.said["console"]["url"] is None
            assert f"it cannot listen at 127.0.0.1:{port}" in up.errors()
            produce(up.bootstrap_servers)
        finally:
            assert up.stop() == 0
