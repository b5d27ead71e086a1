"""Whole log directories, handed from us to Apache Kafka 3.9.1 and back, after clean and unclean ends."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from barnabas.kernel.real_host import RealHost, real_host
from barnabas.log.partition.log_config import LogConfig
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.wire.compression_types import Compression, CompressionType
from tests.support.apache_kafka import DUMP_LOG_SEGMENTS, TOPIC_COMMAND, ApacheKafkaBroker, run_tool
from tests.support.by_night import by_night
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperServer
from tests.unit.log.log_broker import FLIGHTS, LogBroker, log_broker, records

CONFIG = LogConfig(segment_bytes=16_384, index_interval_bytes=512)
BATCHES = 600
AGAIN = "15 s with two starts of Apache Kafka, and no commit says that it has found anything"
FIRST_VALUES = [b"%d" % number * 40 for number in range(BATCHES)]
NOW_MS = 1_700_000_000_000


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.fixture
def kafka(oracle_jars: Path, zookeeper_server: ZooKeeperServer, tmp_path: Path) -> ApacheKafkaBroker:
    """A broker with a chroot and a directory of its own; not started."""
    return ApacheKafkaBroker(
        tmp_path / "kafka",
        f"{zookeeper_server.address}/{tmp_path.name}",
        overrides={"log.retention.ms": -1, "log.segment.bytes": 16_384, "log.index.interval.bytes": 512},
    )


async def append_all(broker: LogBroker, log: PartitionLog, values: list[bytes]) -> None:
    """Idempotent, in several codecs, as one producer in one epoch."""
    codecs = (CompressionType.NONE, CompressionType.GZIP, CompressionType.LZ4, CompressionType.ZSTD)
    for number, value in enumerate(values):
        data = records(
            value,
            timestamp_ms=NOW_MS + number,
            producer_id=4000,
            producer_epoch=0,
            base_sequence=number,
            compression=Compression(codecs[number % len(codecs)]),
        )
        log.append_as_leader(data, 0)
        if number % 50 == 0:
            await broker.written(log)
    await broker.written(log)


async def write_ours(directory: Path, *, is_clean: bool) -> None:
    async with (
        real_host("broker-0", asyncio.get_running_loop()) as host,
        log_broker(host, str(directory), config=CONFIG, is_clean=is_clean) as broker,
    ):
        log = broker.log()
        await append_all(broker, log, FIRST_VALUES)
        assert log.segment_count > 3


def start_with_topic(kafka: ApacheKafkaBroker) -> None:
    """The topic in ZooKeeper, with nothing of it on the disk."""
    kafka.start()
    run_tool(
        TOPIC_COMMAND, ["--bootstrap-server", kafka.address, "--create", "--topic", "flights", "--partitions", "1"]
    )
    wait_until((kafka.log_directory / "flights-0").exists, "the partition is made")
    kafka.stop()


def read_values(kafka: ApacheKafkaBroker, count: int) -> list[bytes]:
    """The first values of the topic, in order."""
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "check", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition("flights", 0, OFFSET_BEGINNING)])
        values: list[bytes] = []

        def is_complete() -> bool:
            for message in consumer.consume(1000, 0.5):
                assert message.error() is None
                assert message.offset() == len(values)
                values.append(message.value() or b"")
            return len(values) >= count

        wait_until(is_complete, f"{count} records are read", 60.0)
        return values
    finally:
        consumer.close()


def produce(kafka: ApacheKafkaBroker, values: list[bytes]) -> None:
    """Idempotent, in batches that are smaller than a segment."""
    producer = Producer(
        {"bootstrap.servers": kafka.address, "enable.idempotence": True, "acks": "all", "batch.size": 2000}
    )
    failures: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error)

    for value in values:
        producer.produce("flights", value, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(60.0) == 0
    assert not failures


@pytest.mark.parametrize("is_clean", [False, *by_night(AGAIN, True)], ids=["unclean", "clean"])
def test_kafka_starts_on_what_we_wrote(kafka: ApacheKafkaBroker, is_clean: bool) -> None:
    """Apache Kafka loads our directory, serves every record, goes on appending; and we read all of it again."""
    start_with_topic(kafka)
    ours = kafka.directory / "ours"
    run(write_ours(ours, is_clean=is_clean))
    theirs = kafka.log_directory
    shutil.copyfile(theirs / "flights-0" / "partition.metadata", ours / "flights-0" / "partition.metadata")
    shutil.rmtree(theirs / "flights-0")
    (ours / "flights-0").rename(theirs / "flights-0")
    (theirs / ".kafka_cleanshutdown").unlink()
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", ".kafka_cleanshutdown"):
        (theirs / name).unlink(missing_ok=True)
        if (ours / name).exists():
            (ours / name).rename(theirs / name)
    # Until a follower or a leader says so, nothing counts as committed.
    (theirs / "replication-offset-checkpoint").write_text(f"0\n1\nflights 0 {BATCHES}\n")
    kafka.start()
    try:
        assert read_values(kafka, BATCHES) == FIRST_VALUES
        produce(kafka, [b"theirs"] * 10)
        assert read_values(kafka, BATCHES + 10)[BATCHES:] == [b"theirs"] * 10
        lines = (kafka.directory / "server.log").read_text()
        assert not re.search(r"(ERROR|WARN).*flights-0", lines)
    finally:
        kafka.stop()
    run(check_ours(theirs, [*FIRST_VALUES, *[b"theirs"] * 10], was_clean=True))


@pytest.mark.parametrize("is_clean", [False, *by_night(AGAIN, True)], ids=["killed", "clean"])
def test_we_load_what_kafka_wrote(kafka: ApacheKafkaBroker, is_clean: bool) -> None:
    kafka.start()
    try:
        run_tool(
            TOPIC_COMMAND,
            ["--bootstrap-server", kafka.address, "--create", "--topic", "flights", "--partitions", "1"],
        )
        produce(kafka, FIRST_VALUES)
    finally:
        kafka.stop() if is_clean else kafka.kill()
    run(check_ours(kafka.log_directory, FIRST_VALUES, was_clean=is_clean))


async def check_ours(directory: Path, values: list[bytes], *, was_clean: bool) -> None:
    """We read everything, know the producer, and append."""
    async with (
        real_host("broker-0", asyncio.get_running_loop()) as host,
        log_broker(host, str(directory), config=CONFIG) as broker,
    ):
        await check_loaded(host, broker, values, was_clean=was_clean)


async def check_loaded(host: RealHost, broker: LogBroker, values: list[bytes], *, was_clean: bool) -> None:
    manager = broker.manager
    assert manager.directories[0].was_clean == was_clean
    log = manager.logs[FLIGHTS]
    assert log.topic_id is not None
    assert [record.value for record in await broker.records(log)] == values
    assert log.recovery_point == (len(values) if was_clean else 0)
    newest = max(log.producers, key=lambda entry: entry.last_offset or 0)
    assert newest.last_offset == len(values) - 1
    assert log.latest_epoch is not None
    found = await log.list_offset(host.clock.time_ms() - 600_000)
    assert found is not None
    result = log.append_as_leader(records(b"ours again"), log.latest_epoch + 1)
    assert result.first_offset == len(values)
    await broker.written(log)


def test_kafka_finds_every_file_that_we_wrote_right(oracle_jars: Path, tmp_path: Path) -> None:
    run(write_ours(tmp_path, is_clean=True))
    directory = tmp_path / "flights-0"
    logs = sorted(directory.glob("*.log"))
    assert len(logs) > 3
    dumped = run_tool(DUMP_LOG_SEGMENTS, ["--deep-iteration", "--files", ",".join(map(str, logs))])
    offsets = [int(found) for found in re.findall(r"\| offset: (\d+) ", dumped)]
    assert offsets == list(range(BATCHES))
    assert "isvalid: false" not in dumped
    indexes = [*sorted(directory.glob("*.index")), *sorted(directory.glob("*.timeindex"))]
    dumped = run_tool(DUMP_LOG_SEGMENTS, ["--files", ",".join(map(str, indexes))])
    assert not re.search("mismatch|out of order|not found", dumped, re.IGNORECASE)
    snapshots = sorted(directory.glob("*.snapshot"))
    assert [int(path.stem) for path in snapshots] == [*(int(path.stem) for path in logs[1:]), BATCHES]
    dumped = run_tool(DUMP_LOG_SEGMENTS, ["--files", ",".join(map(str, snapshots))])
    assert re.search(rf"producerId: 4000 .*lastSequence: {BATCHES - 1}\b", dumped)
