"""`barnabas log dump` on files that Apache Kafka wrote, held against what its own DumpLogSegments says of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.cli.audit import command as audit_command
from barnabas.cli.log import command
from tests.support.apache_kafka import DUMP_LOG_SEGMENTS, ApacheKafkaBroker, run_tool
from tests.support.waiting import wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_SECONDS = 90.0
TOPIC = "dumped"


@pytest.fixture(scope="module")
def partition_directory(kafka_broker: ApacheKafkaBroker) -> Path:
    """A partition with several segments: all codecs, keys and headers, transactions that ended both ways."""
    _create(kafka_broker, TOPIC, {"segment.bytes": "20000", "index.interval.bytes": "500"})
    for codec in CODECS:
        settings = {"bootstrap.servers": kafka_broker.address, "compression.type": codec, "enable.idempotence": True}
        producer = Producer(settings)
        for number in range(300):
            value = f"{codec} value {number}".encode() if number % 7 else None
            producer.produce(
                TOPIC, value, key=f"key {number}", headers={"codec": codec}, timestamp=1_700_000_000_000 + number
            )
            if number % 50 == 49:
                producer.flush(TIMEOUT_SECONDS)
        assert producer.flush(TIMEOUT_SECONDS) == 0
    producer = Producer({"bootstrap.servers": kafka_broker.address, "transactional.id": "dumped"})
    producer.init_transactions(TIMEOUT_SECONDS)
    for commits in (True, False, False):
        producer.begin_transaction()
        producer.produce(TOPIC, b"in a transaction")
        if commits:
            producer.commit_transaction(TIMEOUT_SECONDS)
        else:
            producer.flush(TIMEOUT_SECONDS)
            producer.abort_transaction(TIMEOUT_SECONDS)
    # The end of the last transaction is acknowledged before its marker is written, and nothing may come later.
    written = 300 * len(CODECS) + 6
    wait_until(lambda: _end_offset(kafka_broker) == written, "all markers are written", TIMEOUT_SECONDS)
    directory = kafka_broker.log_directory / f"{TOPIC}-0"
    assert len(list(directory.glob("*.log"))) > 1
    return directory


def _end_offset(broker: ApacheKafkaBroker) -> int:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "unused"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=TIMEOUT_SECONDS)[1])
    finally:
        consumer.close()


def _create(broker: ApacheKafkaBroker, topic: str, configs: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, 1, 1, config=configs)])[topic].result(TIMEOUT_SECONDS)
    wait_until((broker.log_directory / f"{topic}-0").exists, f"the directory of {topic}", TIMEOUT_SECONDS)


def dump(*arguments: object) -> list[dict[str, Any]]:
    result = CliRunner().invoke(command, ["dump", "--json", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def oracle(paths: list[Path], *options: str) -> str:
    return run_tool(DUMP_LOG_SEGMENTS, ["--files", ",".join(map(str, paths)), *options])


def fields_of(line: str) -> dict[str, str]:
    """`name: value name: value`, as the tool prints it."""
    return dict(re.findall(r"(\w+): (\S+)", line))


def batches_of(dumped: str) -> Iterator[tuple[Any, ...]]:
    for line in dumped.splitlines():
        if not line.startswith("baseOffset: "):
            continue
        found = fields_of(line)
        time_name = next(name for name in ("CreateTime", "LogAppendTime") if name in found)
        yield (
            *(int(found[name]) for name in ("position", "size", "magic", "baseOffset", "lastOffset", "count")),
            *(int(found[name]) for name in ("partitionLeaderEpoch", "producerId", "producerEpoch")),
            *(int(found[name]) for name in ("baseSequence", "lastSequence", "crc")),
            *(found[name] == "true" for name in ("isTransactional", "isControl", "isvalid")),
            found["compresscodec"],
            time_name,
            int(found[time_name]),
        )


OUR_BATCH = (
    "position", "size_bytes", "magic", "base_offset", "last_offset", "records", "partition_leader_epoch", "producer_id",
    "producer_epoch", "base_sequence", "last_sequence", "crc", "is_transactional", "is_control", "is_crc_valid",
    "codec", "timestamp_type", "max_timestamp_ms",
)  # fmt: skip


def test_batches_are_what_apache_kafka_says(partition_directory: Path) -> None:
    logs = sorted(partition_directory.glob("*.log"))
    expected = list(batches_of(oracle(logs)))
    found = [tuple(each[name] for name in OUR_BATCH) for each in dump(*logs) if each["type"] == "batch"]
    assert found == expected
    assert {each[15] for each in found} == set(CODECS)
    assert sum(each[13] for each in found) == 3


def test_records_are_what_apache_kafka_says(partition_directory: Path) -> None:
    logs = sorted(partition_directory.glob("*.log"))
    expected = []
    for line in oracle(logs, "--print-data-log").splitlines():
        data = re.match(r"\| offset: (\d+) \w+: (-?\d+) keySize: (-?\d+) valueSize: (-?\d+) ", line)
        if data is not None:
            key = re.search(r" key: (.*?)(?: payload: |$)", line)
            value = re.search(r" payload: (.*)$", line)
            expected.append((int(data[1]), int(data[2]), key and key[1], value and value[1]))
    found = [
        (each["offset"], each["timestamp_ms"], each["key"], each["value"])
        for each in dump("--records", *logs)
        if each["type"] == "record" and "decoded" not in each
    ]
    plain = [each for each in expected if each[0] in {offset for offset, *_ in found}]
    assert len(found) == 300 * len(CODECS) + 3
    assert [(*each[:2], each[2] or None, each[3] or None) for each in plain] == found


def test_indexes_are_what_apache_kafka_says_and_fit_their_logs(partition_directory: Path) -> None:
    for suffix, pattern, names in (
        ("index", r"^offset: (\d+) position: (\d+)", ("offset", "position")),
        ("timeindex", r"^timestamp: (\d+) offset: (\d+)", ("timestamp_ms", "offset")),
        (
            "txnindex",
            r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)",
            ("producer_id", "first_offset", "last_offset", "last_stable_offset"),
        ),
    ):
        paths = sorted(partition_directory.glob(f"*.{suffix}"))
        dumped = oracle(paths)
        # Where an index of the running broker has no entries, the tool takes the zeros for one.
        zeros = {(int(path.stem), 0) for path in paths} | {(0, int(path.stem)) for path in paths}
        expected = [tuple(map(int, found)) for found in re.findall(pattern, dumped, re.MULTILINE)]
        found = dump("--verify", *paths)
        entries = [tuple(each[name] for name in names) for each in found if each["type"] == "entry"]
        assert entries == [each for each in expected if each not in zeros]
        assert len(entries) >= 2
        assert [each["mismatches"] for each in found if each["type"] == "verified"] == [0] * len(paths)


def test_a_producer_snapshot_is_what_apache_kafka_says(partition_directory: Path) -> None:
    paths = sorted(partition_directory.glob("*.snapshot"))
    dumped = oracle(paths)
    expected = [
        (
            int(found["producerId"]),
            int(found["producerEpoch"]),
            int(found["coordinatorEpoch"]),
            int(found["lastTimestamp"]),
        )
        for found in map(fields_of, dumped.splitlines())
        if "producerId" in found
    ]
    entries = [
        (each["producer_id"], each["epoch"], each["coordinator_epoch"], each["timestamp_ms"])
        for each in dump(*paths)
        if each["type"] == "producer"
    ]
    assert len(entries) >= 3
    assert len(entries) >= len(CODECS)
    assert sorted(entries) == sorted(expected)


def test_committed_offsets_of_apache_kafka_are_decoded(
    kafka_broker: ApacheKafkaBroker, partition_directory: Path
) -> None:
    consumer = Consumer(
        {"bootstrap.servers": kafka_broker.address, "group.id": "dumped", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    wait_until(lambda: bool(consumer.consume(1, 0.2)), "a record", TIMEOUT_SECONDS)
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 17)], asynchronous=False)
    consumer.close()
    directories = sorted(kafka_broker.log_directory.glob("__consumer_offsets-*"))
    decoded = [each["decoded"] for each in dump("--records", *directories) if "decoded" in each]
    assert {"group": "dumped", "topic": TOPIC, "partition": 0} in [
        each["key"]
        for each in decoded
        if each["type"] == "offset" and each["value"] is not None and each["value"]["offset"] == 17
    ]
    groups = [each["value"] for each in decoded if each["type"] == "group" and each["key"] == {"group": "dumped"}]
    assigned = [member["assignment"] for group in groups if group for member in group["members"]]
    assert {"topic": TOPIC, "partitions": [0]} in [each["assigned_partitions"][0] for each in assigned]


def test_transactions_of_apache_kafka_are_decoded(kafka_broker: ApacheKafkaBroker, partition_directory: Path) -> None:
    directories = sorted(kafka_broker.log_directory.glob("__transaction_state-*"))
    decoded = [each["decoded"] for each in dump("--records", *directories) if "decoded" in each]
    ours = [each["value"] for each in decoded if each["key"] == {"transactional_id": "dumped"}]
    assert all(each["producer_id"] >= 0 for each in ours)
    assert [{"topic": TOPIC, "partition_ids": [0]}] in [each["transaction_partitions"] for each in ours]


def test_the_whole_log_directory_of_a_running_broker(
    kafka_broker: ApacheKafkaBroker, partition_directory: Path
) -> None:
    found = dump(kafka_broker.log_directory)
    assert {"type": "entry", "broker_id": 0} .items() <= next(
        each for each in found if each["type"] == "entry" and "broker_id" in each
    ).items()  # fmt: skip
    assert f"{TOPIC}-0" in [each["directory"] for each in found if each["type"] == "partition"]
    kinds = {each["kind"] for each in found if each["type"] == "file"}
    assert {"meta_properties", "recovery_points", "high_watermarks", "log_start_offsets"} <= kinds
    dump("--verify", "--records", partition_directory)


def test_an_audit_finds_nothing_wrong_with_what_apache_kafka_wrote(
    kafka_broker: ApacheKafkaBroker, partition_directory: Path
) -> None:
    result = CliRunner().invoke(audit_command, ["--json", str(kafka_broker.log_directory)])
    assert result.exit_code == 0, result.output
    found = {(each["topic"], each["partition"]): each for each in map(json.loads, result.stdout.splitlines()[:-1])}
    audited = found[TOPIC, 0]
    assert audited["replicas"][0]["segments"] == len(list(partition_directory.glob("*.log")))
    assert audited["replicas"][0]["records"] > 300 * len(CODECS)
