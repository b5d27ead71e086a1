"""Records of the internal topics against Apache Kafka 3.9.1, both ways.

What we write, Kafka's dump tool and its console formatters show with the same fields and values, in every version; and
what Kafka wrote for real groups and transactions, we read and write again to the same bytes, with the values that its
dump tool shows. The records of KIP-848 groups go one way only: Kafka in ZooKeeper mode never writes them, but its dump
tool knows them.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.kernel.ids import Uuid
from barnabas.wire import catalogue
from barnabas.wire.batch_formats import read_records
from barnabas.wire.classes import message_class
from barnabas.wire.codec import decode_prefixed, encode_prefixed
from barnabas.wire.record_builder import RecordBatchBuilder
from barnabas.wire.records import Record
from barnabas.wire.schema import Field, Message
from tests.support.apache_kafka import CONSOLE_CONSUMER, DUMP_LOG_SEGMENTS, ApacheKafkaBroker, run_tool
from tests.support.wire_messages import to_message, to_tree
from tests.support.wire_values import Shape, Tree, fields_of, is_tagged, make_tree

SEGMENT: Final = "00000000000000000000.log"
NOW_MS: Final = 1_700_000_000_000
MIXED_SEEDS: Final = 3
TRANSACTION_KEY: Final = "TransactionLogKey"
# Type of a record in __consumer_offsets, by the version that stands ahead of its key.
GROUP_KEYS: Final = {
    0: "OffsetCommitKey",
    1: "OffsetCommitKey",
    2: "GroupMetadataKey",
    3: "ConsumerGroupMetadataKey",
    4: "ConsumerGroupPartitionMetadataKey",
    5: "ConsumerGroupMemberMetadataKey",
    6: "ConsumerGroupTargetAssignmentMetadataKey",
    7: "ConsumerGroupTargetAssignmentMemberKey",
    8: "ConsumerGroupCurrentMemberAssignmentKey",
}
# TransactionState of Kafka by its number in a record, as the dump tool names it.
TRANSACTION_STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


@dataclass(frozen=True, slots=True)
class Pair:
    """Key and value of a record as trees with their versions; `value` is None for a tombstone."""

    key_name: str
    key_version: int
    key: Tree
    value_version: int
    value: Tree | None

    @property
    def key_schema(self) -> Message:
        return catalogue.message(self.key_name)

    @property
    def value_schema(self) -> Message:
        return catalogue.message(self.key_name.removesuffix("Key") + "Value")

    def encoded(self) -> tuple[bytes, bytes | None]:
        key = encode_prefixed(to_message(self.key_schema, self.key), self.key_version)
        if self.value is None:
            return key, None
        return key, encode_prefixed(to_message(self.value_schema, self.value), self.value_version)


def read_pair(record: Record, names: Mapping[int, str]) -> Pair:
    """A record as we read it. Raises `ProtocolError` if we cannot."""
    assert record.key is not None
    name = names[int.from_bytes(record.key[:2], "big")]
    key_version, key = decode_prefixed(message_class(name), record.key)
    if record.value is None:
        return Pair(name, key_version, to_tree(key, key_version), 0, None)
    value_version, value = decode_prefixed(message_class(name.removesuffix("Key") + "Value"), record.value)
    return Pair(name, key_version, to_tree(key, key_version), value_version, to_tree(value, value_version))


def generated_pairs(names: Mapping[int, str]) -> Iterator[Pair]:
    """Every type of record in every version of its value, in every shape, and a tombstone of each."""
    for key_version, name in names.items():
        key_schema, value_schema = catalogue.message(name), catalogue.message(name.removesuffix("Key") + "Value")
        for shape in Shape:
            for seed in range(MIXED_SEEDS if shape is Shape.MIXED else 1):
                key = make_tree(key_schema, key_version, shape, seed)
                for version in value_schema.versions:
                    yield Pair(name, key_version, key, version, make_tree(value_schema, version, shape, seed))
                yield Pair(name, key_version, key, 0, None)


def write_segment(directory: Path, pairs: Sequence[Pair]) -> Path:
    """A log segment that holds the pairs, in one batch."""
    builder = RecordBatchBuilder(partition_leader_epoch=0)
    for pair in pairs:
        builder.append(NOW_MS, *pair.encoded())
    segment = directory / SEGMENT
    segment.write_bytes(builder.build())
    return segment


# How Kafka's tools show messages.


def as_json(schema: Message, version: int, tree: Tree) -> Any:
    """A tree as Kafka's JSON converters show a message."""

    def single(field: Field, value: Any) -> Any:
        if field.type.is_struct:
            return structure(schema.structs[field.type.name].fields, value)
        if field.type.name == "uuid":
            return str(Uuid(value))
        return base64.b64encode(value).decode() if field.type.name == "bytes" else value

    def structure(fields: Sequence[Field], inner: Tree) -> Any:
        shown = {}
        for field in fields_of(fields, version):
            value = inner[field.name]
            if value is None and is_tagged(field, version):
                continue
            if value is not None:
                value = [single(field, each) for each in value] if field.type.is_array else single(field, value)
            shown[camel_case(field.name)] = value
        return shown

    return structure(schema.fields, tree)


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def dump(segment: Path, option: str) -> list[tuple[str, str]]:
    """Key and payload of every record in a segment, as the dump tool prints them; control records are left out."""
    shown = run_tool(DUMP_LOG_SEGMENTS, [option, "--files", segment])
    assert "isvalid: false" not in shown
    return [
        (match[1], match[2]) for match in re.finditer(r"^\| offset: .*? key: (.*) payload: (.*)$", shown, re.MULTILINE)
    ]


def shown_pair(pair: Pair) -> tuple[Any, Any]:
    """What the dump tool shows of a group's record."""
    key = {"type": str(pair.key_version), "data": as_json(pair.key_schema, pair.key_version, pair.key)}
    if pair.value is None:
        return key, "<DELETE>"
    return key, {"version": str(pair.value_version), "data": as_json(pair.value_schema, pair.value_version, pair.value)}


def parsed(key: str, payload: str) -> tuple[Any, Any]:
    return json.loads(key), payload if payload == "<DELETE>" else json.loads(payload)


@pytest.fixture(autouse=True)
def utf8_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools print UTF-8, whatever the locale of the machine."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dfile.encoding=UTF-8 -Dstdout.encoding=UTF-8 -Dsun.stdout.encoding=UTF-8")


def test_dump_tool_shows_the_group_records_that_we_write(oracle_jars: Path, tmp_path: Path) -> None:
    pairs = list(generated_pairs(GROUP_KEYS))
    shown = dump(write_segment(tmp_path, pairs), "--offsets-decoder")
    assert len(shown) == len(pairs)
    for (key, payload), pair in zip(shown, pairs, strict=True):
        assert parsed(key, payload) == shown_pair(pair), pair


def test_dump_tool_reads_the_consumer_protocol_that_we_write(oracle_jars: Path, tmp_path: Path) -> None:
    subscription, assignment = (catalogue.message(f"ConsumerProtocol{name}") for name in ("Subscription", "Assignment"))
    pairs, embedded = [], []
    for version in subscription.versions:
        for shape in (Shape.EMPTY, Shape.FULL, Shape.MIXED):
            trees = [make_tree(schema, version, shape) for schema in (subscription, assignment)]
            member = make_tree(catalogue.message("GroupMetadataValue"), 3, Shape.FULL)["members"][0]
            for schema, tree in zip((subscription, assignment), trees, strict=True):
                member[schema.name.removeprefix("ConsumerProtocol").lower()] = encode_prefixed(
                    to_message(schema, tree), version
                )
            value = make_tree(catalogue.message("GroupMetadataValue"), 3, Shape.FULL)
            pairs.append(
                Pair(
                    "GroupMetadataKey",
                    2,
                    {"group": "g"},
                    3,
                    {**value, "protocol_type": "consumer", "members": [member]},
                )
            )
            embedded.append([as_json(subscription, version, trees[0]), as_json(assignment, version, trees[1])])
    shown = [
        json.loads(payload)["data"]["members"][0]
        for _, payload in dump(write_segment(tmp_path, pairs), "--offsets-decoder")
    ]
    assert [[member["subscription"], member["assignment"]] for member in shown] == embedded


def shown_transaction(pair: Pair) -> tuple[str, str]:
    """What the dump tool shows of a transaction's record."""
    key = f"transaction_metadata::transactionalId={pair.key['transactional_id']}"
    if pair.value is None:
        return key, "<DELETE>"
    value = pair.value
    partitions = [
        f"{each['topic']}-{partition}"
        for each in value["transaction_partitions"] or ()
        for partition in each["partition_ids"]
    ]
    return key, (
        f"producerId:{value['producer_id']},producerEpoch:{value['producer_epoch']},"
        f"state={TRANSACTION_STATES[value['transaction_status']]},partitions=[{','.join(sorted(partitions))}],"
        f"txnLastUpdateTimestamp={value['transaction_last_update_timestamp_ms']},"
        f"txnTimeoutMs={value['transaction_timeout_ms']}"
    )


def transaction_pairs() -> Iterator[Pair]:
    """Every state of a transaction in both versions of the record, and a tombstone."""
    key = {"transactional_id": "transfer-é"}
    for version in catalogue.message("TransactionLogValue").versions:
        for state in range(len(TRANSACTION_STATES)):
            value = make_tree(catalogue.message("TransactionLogValue"), version, Shape.MIXED, state)
            value["transaction_status"] = state
            value["transaction_partitions"] = [{"topic": "orders", "partition_ids": [3]}] if state else None
            yield Pair(TRANSACTION_KEY, 0, key, version, value)
    yield Pair(TRANSACTION_KEY, 0, key, 0, None)


def sorted_partitions(payload: str) -> str:
    """A payload with its partitions sorted: Kafka keeps them in a hash set."""
    return re.sub(
        r"partitions=\[([^]]*)\]", lambda found: f"partitions=[{','.join(sorted(found[1].split(',')))}]", payload
    )


def test_dump_tool_shows_the_transaction_records_that_we_write(oracle_jars: Path, tmp_path: Path) -> None:
    pairs = list(transaction_pairs())
    shown = dump(write_segment(tmp_path, pairs), "--transaction-log-decoder")
    assert shown == [shown_transaction(pair) for pair in pairs]


FORMATTERS: Final = {
    "OffsetsMessageFormatter": {1: "OffsetCommitKey"},
    "GroupMetadataMessageFormatter": {2: "GroupMetadataKey"},
    "TransactionLogMessageFormatter": {0: TRANSACTION_KEY},
}


@pytest.mark.parametrize("formatter", FORMATTERS)
def test_console_formatters_show_the_records_that_we_write(kafka_broker: ApacheKafkaBroker, formatter: str) -> None:
    pairs = list(generated_pairs(FORMATTERS[formatter]))
    create_topic(kafka_broker, formatter, 1)
    producer = Producer({"bootstrap.servers": kafka_broker.address, "log_level": 0})
    for pair in pairs:
        key, value = pair.encoded()
        producer.produce(formatter, key=key, value=value)
    assert producer.flush(60) == 0
    arguments = ["--bootstrap-server", kafka_broker.address, "--topic", formatter, "--from-beginning"]
    arguments += ["--max-messages", str(len(pairs)), "--formatter", f"org.apache.kafka.tools.consumer.{formatter}"]
    shown = list(json_documents(run_tool(CONSOLE_CONSUMER, arguments)))
    assert shown == [formatted(pair) for pair in pairs]


def json_documents(text: str) -> Iterator[Any]:
    """The JSON documents that follow each other in `text`; the formatters end no lines."""
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        text = text[end:]
        yield document


def formatted(pair: Pair) -> dict[str, Any]:
    """What the console formatters show of a record."""
    value = None
    if pair.value is not None:
        data = as_json(pair.value_schema, pair.value_version, pair.value)
        value = {"version": pair.value_version, "data": data}
    key = {"version": pair.key_version, "data": as_json(pair.key_schema, pair.key_version, pair.key)}
    return {"key": key, "value": value}


def create_topic(broker: ApacheKafkaBroker, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)


# What Kafka writes.


@pytest.fixture(scope="module")
def written_by_kafka(kafka_broker: ApacheKafkaBroker) -> ApacheKafkaBroker:
    """The broker after a static and a dynamic group of librdkafka, one of the Java client, and three transactions."""
    create_topic(kafka_broker, "payments", 2)
    common = {"bootstrap.servers": kafka_broker.address, "log_level": 0}
    producer = Producer({**common, "transactional.id": "payer", "transaction.timeout.ms": 12_345})
    producer.init_transactions(60)
    for number in range(2):
        producer.begin_transaction()
        for partition in range(2):
            producer.produce("payments", b"paid", partition=partition)
        producer.flush(60)
        (producer.abort_transaction if number else producer.commit_transaction)(30)
    groups = {"static": {"group.instance.id": "till-1", "client.rack": "r1"}, "dynamic-é": {}}
    for group, options in groups.items():
        consumer = Consumer({**common, "group.id": group, "auto.offset.reset": "earliest", **options})
        consumer.subscribe(["payments"])
        found = consumer.consume(1, 60)
        assert found
        assert found[0].error() is None
        offsets = [TopicPartition("payments", 0, 1, metadata="till ☃"), TopicPartition("payments", 1, 2**40)]
        consumer.commit(offsets=offsets, asynchronous=False)
        if group == "static":
            producer.begin_transaction()
            producer.send_offsets_to_transaction(
                [TopicPartition("payments", 0, 2)], consumer.consumer_group_metadata(), 30
            )
            producer.commit_transaction(30)
        consumer.close()
    admin = AdminClient(common)
    admin.delete_consumer_groups(["dynamic-é"])["dynamic-é"].result(60)
    where = ["--bootstrap-server", kafka_broker.address, "--topic", "payments", "--group", "java"]
    run_tool(CONSOLE_CONSUMER, [*where, "--from-beginning", "--max-messages", "2"])
    return kafka_broker


def copied_segments(broker: ApacheKafkaBroker, topic: str, directory: Path) -> list[Path]:
    """The topic's segments as they are now: the broker goes on writing, when a static member expires for one."""
    copies = []
    for segment in sorted(broker.log_directory.glob(f"{topic}-*/{SEGMENT}")):
        copy = directory / segment.parent.name / SEGMENT
        copy.parent.mkdir()
        copies.append(Path(shutil.copyfile(segment, copy)))
    return copies


def read_and_write_again(segment: Path, names: Mapping[int, str]) -> list[Pair]:
    """What Kafka wrote, as we read it; fails if we would write it otherwise."""
    pairs = []
    for record in read_records(segment.read_bytes()):
        pair = read_pair(record, names)
        assert pair.encoded() == (record.key, record.value)
        pairs.append(pair)
    return pairs


def test_reads_and_writes_again_what_kafka_wrote_for_groups(
    written_by_kafka: ApacheKafkaBroker, tmp_path: Path
) -> None:
    kinds: Counter[str] = Counter()
    protocols: Counter[str] = Counter()
    for segment in copied_segments(written_by_kafka, "__consumer_offsets", tmp_path):
        pairs = read_and_write_again(segment, GROUP_KEYS)
        shown = dump(segment, "--offsets-decoder")
        for pair, (key, payload) in zip(pairs, shown, strict=True):
            kinds[pair.key_name + (" tombstone" if pair.value is None else "")] += 1
            expected_key, expected_payload = shown_pair(pair)
            for member in (pair.value or {}).get("members", ()):
                for name in ("Subscription", "Assignment"):
                    message = message_class(f"ConsumerProtocol{name}")
                    version, decoded = decode_prefixed(message, member[name.lower()])
                    assert encode_prefixed(decoded, version) == member[name.lower()]
                    protocols[f"{name} {member['client_id']}"] += 1
                    index = (pair.value or {})["members"].index(member)
                    converted = as_json(message.SCHEMA, version, to_tree(decoded, version))
                    expected_payload["data"]["members"][index][name.lower()] = converted
            assert parsed(key, payload) == (expected_key, expected_payload)
    assert set(kinds) == {
        "OffsetCommitKey",
        "OffsetCommitKey tombstone",
        "GroupMetadataKey",
        "GroupMetadataKey tombstone",
    }
    # The broker serves the whole run: other suites leave members of other clients in its groups.
    assert set(protocols) >= {
        *(f"{name} {client}" for name in ("Subscription", "Assignment") for client in ("rdkafka", "console-consumer"))
    }


def test_reads_and_writes_again_what_kafka_wrote_for_transactions(
    written_by_kafka: ApacheKafkaBroker, tmp_path: Path
) -> None:
    states = set()
    for segment in copied_segments(written_by_kafka, "__transaction_state", tmp_path):
        pairs = read_and_write_again(segment, {0: TRANSACTION_KEY})
        states |= {TRANSACTION_STATES[pair.value["transaction_status"]] for pair in pairs if pair.value is not None}
        shown = [(key, sorted_partitions(payload)) for key, payload in dump(segment, "--transaction-log-decoder")]
        assert shown == [shown_transaction(pair) for pair in pairs]
    assert states >= {"Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "PrepareAbort", "CompleteAbort"}
