"""A log directory that our cleaner has compacted, as Apache Kafka 3.9.1 finds it: its broker and its dump tool; and one
that Kafka's cleaner has compacted, with which ours goes on, and then Kafka again."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from barnabas.kernel.real_host import real_host
from barnabas.log.manager.log_cleaner import LogCleaner
from barnabas.log.partition.log_config import LogConfig, LogSettings
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.wire.compression_types import Compression, CompressionType
from barnabas.wire.control_records import ControlRecordType, EndTransactionMarker, end_transaction_batch
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.record_validation import AppendOrigin
from tests.support.apache_kafka import DUMP_LOG_SEGMENTS, TOPIC_COMMAND, ApacheKafkaBroker, run_tool
from tests.support.by_night import by_night
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperServer
from tests.unit.log.log_broker import LogBroker, log_broker
from tests.unit.log.verified import verified

CONFIG = LogConfig(
    cleanup_policy=("compact",),
    segment_bytes=8192,
    index_interval_bytes=256,
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=0,
    file_delete_delay_ms=0,
)
SETTINGS = LogSettings(cleaner_enable=False)
CODECS = (CompressionType.NONE, CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD)
BATCHES = 400
AGAIN = "15 s with two starts of Apache Kafka, and it has found nothing since it was written (c8aab658)"
KEYS = 60
Values = dict[bytes, bytes]


async def append(log: PartitionLog, number: int, now_ms: int, values: Values) -> None:
    """A batch of a producer that is plain, idempotent, transactional and committed, or transactional and aborted."""
    kind = number % 4
    builder = RecordBatchBuilder(
        producer_id=4000 + kind if kind else -1,
        producer_epoch=0 if kind else -1,
        base_sequence=number // 4 * 3 if kind else -1,
        is_transactional=kind > 1,
        compression=Compression(CODECS[number % len(CODECS)]),
    )
    for place in range(3):
        key = b"key-%d" % ((number * 7 + place * 11) % KEYS)
        value = None if (number + place) % 9 == 0 else b"%d" % number * 20
        builder.append(now_ms + number, key, value)
        if kind != 3:
            values.pop(key, None)
            if value is not None:
                values[key] = value
    with verified(log.producers, 4000 + kind):
        log.append_as_leader(builder.build(), 0)
    if kind > 1:
        end = EndTransactionMarker(ControlRecordType.ABORT if kind == 3 else ControlRecordType.COMMIT, 0)
        marker = end_transaction_batch(end, timestamp_ms=now_ms + number, producer_id=4000 + kind, producer_epoch=0)
        log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)


async def write_compacted(directory: Path, *, is_clean: bool) -> tuple[Values, int]:
    """The last value of each key, and where the log ends. Cleaned again and again, without any time for tombstones."""
    values: Values = {}
    async with (
        real_host("broker-0", asyncio.get_running_loop()) as host,
        log_broker(host, str(directory), config=CONFIG, settings=SETTINGS, is_clean=is_clean) as broker,
    ):
        log = broker.log()
        cleaner = LogCleaner(broker.manager, host, logging.getLogger("cleaner"))
        now_ms = host.clock.time_ms()
        for number in range(BATCHES):
            await append(log, number, now_ms, values)
            if number % 100 == 99:
                await broker.written(log)
                await log.flush()
                log.update_high_watermark(log.log_end_offset)
                assert await cleaner.clean_filthiest()
                assert log.first_dirty_offset
        await broker.manager.checkpoint_recovery_points()
        assert log.segments.first.size_bytes < CONFIG.segment_bytes
        return values, log.log_end_offset


def test_the_tool_for_dumps_finds_every_file_right(oracle_jars: Path, tmp_path: Path) -> None:
    values, _ = asyncio.run(write_compacted(tmp_path, is_clean=True))
    directory = tmp_path / "flights-0"
    logs = sorted(directory.glob("*.log"))
    dumped = run_tool(DUMP_LOG_SEGMENTS, ["--deep-iteration", "--print-data-log", "--files", ",".join(map(str, logs))])
    assert "isvalid: false" not in dumped
    assert "isvalid: true" in dumped
    assert re.search(r"deleteHorizonMs: OptionalLong\[\d", dumped), "no batch was ever rewritten for its tombstones"
    offsets = [int(found) for found in re.findall(r"\| offset: (\d+) ", dumped)]
    assert offsets == sorted(set(offsets))
    assert {key.decode() for key in values} <= set(re.findall(r" key: (key-\d+)", dumped))
    indexes = [*sorted(directory.glob("*.index")), *sorted(directory.glob("*.timeindex"))]
    dumped = run_tool(DUMP_LOG_SEGMENTS, ["--files", ",".join(map(str, indexes))])
    assert not re.search("mismatch|out of order|not found", dumped, re.IGNORECASE)


@pytest.mark.parametrize("is_clean", [False, *by_night(AGAIN, True)], ids=["unclean", "clean"])
def test_a_broker_starts_on_it_and_goes_on(
    oracle_jars: Path, zookeeper_server: ZooKeeperServer, tmp_path: Path, is_clean: bool
) -> None:
    kafka = ApacheKafkaBroker(tmp_path / "kafka", f"{zookeeper_server.address}/{tmp_path.name}")
    kafka.start()
    create = ["--create", "--topic", "flights", "--partitions", "1", "--config", "cleanup.policy=compact"]
    run_tool(TOPIC_COMMAND, ["--bootstrap-server", kafka.address, *create])
    theirs, ours = kafka.log_directory, tmp_path / "ours"
    wait_until((theirs / "flights-0").exists, "the partition is made")
    kafka.stop()
    values, end = asyncio.run(write_compacted(ours, is_clean=is_clean))
    shutil.copyfile(theirs / "flights-0" / "partition.metadata", ours / "flights-0" / "partition.metadata")
    shutil.rmtree(theirs / "flights-0")
    (ours / "flights-0").rename(theirs / "flights-0")
    names = ("recovery-point-offset-checkpoint", "cleaner-offset-checkpoint", ".kafka_cleanshutdown")
    for name in (*names, "log-start-offset-checkpoint"):
        (theirs / name).unlink(missing_ok=True)
        if (ours / name).exists():
            (ours / name).rename(theirs / name)
    (theirs / "replication-offset-checkpoint").write_text(f"0\n1\nflights 0 {end}\n")
    kafka.start()
    try:
        assert read_values(kafka, end) == values
        producer = Producer({"bootstrap.servers": kafka.address, "acks": "all"})
        producer.produce("flights", b"theirs", b"key-0")
        assert producer.flush(60.0) == 0
        assert read_values(kafka, end + 1) == values | {b"key-0": b"theirs"}
        lines = (kafka.directory / "server.log").read_text()
        # After a kill the active segment may have no index yet.
        complaints = [line for line in re.findall(r"(?:ERROR|WARN).*flights-0.*", lines) if "offset index" not in line]
        assert not complaints
    finally:
        kafka.stop()


def read_values(kafka: ApacheKafkaBroker, end: int) -> Values:
    """What a reader of committed data has at the end of the log."""
    values: Values = {}
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.address,
            "group.id": "check",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    partition = TopicPartition("flights", 0, OFFSET_BEGINNING)
    try:
        consumer.assign([partition])

        def is_complete() -> bool:
            for message in consumer.consume(1000, 0.5):
                assert message.error() is None
                values.pop(message.key(), None)
                if message.value() is not None:
                    values[message.key()] = message.value()
            return bool(consumer.position([partition])[0].offset >= end)

        wait_until(is_complete, f"everything below {end} is read", 60.0)
        return values
    finally:
        consumer.close()


def write_to(kafka: ApacheKafkaBroker, first: int, count: int, values: Values) -> None:
    """Batches as of `append`, by clients: what was aborted is not among the values."""
    plain = Producer({"bootstrap.servers": kafka.address, "enable.idempotence": True, "linger.ms": 0})
    transactional = Producer({"bootstrap.servers": kafka.address, "transactional.id": f"from {first}"})
    transactional.init_transactions(60)
    for number in range(first, first + count):
        kind = number % 4
        producer = transactional if kind > 1 else plain
        if kind > 1:
            transactional.begin_transaction()
        for place in range(3):
            key = b"key-%d" % ((number * 7 + place * 11) % KEYS)
            value = None if (number + place) % 9 == 0 else b"%d" % number * 20
            producer.produce("flights", value, key, partition=0)
            if kind != 3:
                values.pop(key, None)
                if value is not None:
                    values[key] = value
        assert producer.flush(60.0) == 0
        if kind == 2:
            transactional.commit_transaction(60)
        elif kind == 3:
            transactional.abort_transaction(60)


def cleaned_to(directory: Path) -> int:
    checkpoint = directory / "cleaner-offset-checkpoint"
    found = re.search(r"^flights 0 (\d+)$", checkpoint.read_text(), re.MULTILINE) if checkpoint.exists() else None
    return 0 if found is None else int(found[1])


async def go_on(directory: Path, wanted: Values) -> tuple[int, int]:
    """What our broker makes of it: the same values, before and after it has written and cleaned as well."""
    async with (
        real_host("broker-0", asyncio.get_running_loop()) as host,
        log_broker(host, str(directory), config=CONFIG, settings=SETTINGS) as broker,
    ):
        log = broker.log()
        before = log.first_dirty_offset
        assert 0 < before == cleaned_to(directory)
        log.update_high_watermark(log.log_end_offset)
        assert await committed_values(broker) == wanted
        now_ms = host.clock.time_ms()
        for number in range(100):
            await append(log, number, now_ms, wanted)
        await broker.written(log)
        await log.flush()
        log.update_high_watermark(log.log_end_offset)
        cleaner = LogCleaner(broker.manager, host, logging.getLogger("cleaner"))
        assert await cleaner.clean_filthiest()
        assert not cleaner.uncleanable
        assert log.first_dirty_offset > before
        assert await committed_values(broker) == wanted
        return log.log_end_offset, log.first_dirty_offset


async def committed_values(broker: LogBroker) -> Values:
    log = broker.log()
    aborted = [entry for segment in log.segments for entry in segment.transaction_index]
    values: Values = {}
    for segment in log.segments:
        for batch in segment.batches():
            is_aborted = batch.is_transactional and any(
                entry.producer_id == batch.producer_id and entry.first_offset <= batch.base_offset <= entry.last_offset
                for entry in aborted
            )
            if batch.is_control or is_aborted:
                continue
            for record in batch.records():
                assert record.key is not None
                values.pop(record.key, None)
                if record.value is not None:
                    values[record.key] = record.value
    return values


def test_ours_goes_on_with_what_kafka_has_cleaned_and_kafka_again(
    oracle_jars: Path, zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    kafka = ApacheKafkaBroker(
        tmp_path / "kafka",
        f"{zookeeper_server.address}/{tmp_path.name}",
        overrides={
            "log.cleaner.backoff.ms": 200,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "offsets.topic.num.partitions": 1,
        },
    )
    kafka.start()
    try:
        create = ["--create", "--topic", "flights", "--partitions", "1"]
        for name, value in {
            "cleanup.policy": "compact",
            "segment.bytes": 8192,
            "min.cleanable.dirty.ratio": 0.01,
            "delete.retention.ms": 0,
            "file.delete.delay.ms": 0,
        }.items():
            create += ["--config", f"{name}={value}"]
        run_tool(TOPIC_COMMAND, ["--bootstrap-server", kafka.address, *create])
        values: Values = {}
        write_to(kafka, 0, 200, values)
        wait_until(lambda: cleaned_to(kafka.log_directory) > 100, "Kafka has cleaned", 60.0)
        write_to(kafka, 200, 100, values)
    finally:
        kafka.stop()
    end, cleaned = asyncio.run(go_on(kafka.log_directory, values))
    assert cleaned_to(kafka.log_directory) == cleaned
    (kafka.log_directory / "replication-offset-checkpoint").write_text(f"0\n1\nflights 0 {end}\n")
    kafka.start()
    try:
        assert read_values(kafka, end) == values
        write_to(kafka, 300, 100, values)
        wait_until(lambda: cleaned_to(kafka.log_directory) > cleaned, "Kafka has cleaned again", 60.0)
        assert read_values(kafka, end) == values
        assert "uncleanable" not in (kafka.directory / "server.log").read_text()
    finally:
        kafka.stop()
