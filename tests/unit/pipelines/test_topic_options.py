"""Options of a source and of a topic that is written: which there are, and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from barnabas.client.settings import ClientSettings, ProducerSettings
from barnabas.pipelines.definition import Option, Pipeline, PipelineError, TopicSink
from barnabas.pipelines.outbox_options import OF_CLIENT as NAMES_OF_CLIENT
from barnabas.pipelines.outbox_options import batch_bytes, client_options, producer_settings
from barnabas.pipelines.query_errors import failure_of
from barnabas.pipelines.sources import KafkaOptions
from barnabas.pipelines.state_definition import definition_of
from barnabas.pipelines.topic_options import (
    EXACT_OPTIONS,
    OF_CLIENT,
    OPTIONS_MAX,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    resolved_options,
)
from barnabas.wire.compression_types import Compression, CompressionType
from tests.unit.pipelines.pipeline_files import read_flights

TOO_LARGE = "Caused by: RecordTooLargeException: 70 bytes is larger than max.request.size"
LEAST = "    delivery: at_least_once\n"


def with_options(directory: Path, of_source: str = "", of_sink: str = "", delivery: str = "") -> Pipeline:
    given = [("    topic: flights\n", f"    topic: flights\n    options: {{{of_source}}}\n")]
    given.append(("  - topic: delays\n", f"  - topic: delays\n    options: {{{of_sink}}}\n{delivery}"))
    return read_flights(directory, *given)


def topic_of(pipeline: Pipeline) -> TopicSink:
    sink = pipeline.sinks[0]
    assert isinstance(sink, TopicSink)
    return sink


def test_options_count_before_those_that_a_run_has_by_itself(tmp_path: Path) -> None:
    pipeline = with_options(
        tmp_path,
        "minPartitions: 1_000, kafka.check.crcs: false, kafka.client.rack: west, fetchOffset.numRetries: '3'",
        "kafka.compression.type: ZSTD, kafka.buffer.memory: 100, kafka.batch.size: 99, kafka.max.request.size: 70",
        LEAST,
    )
    kafka = KafkaOptions("host:1")
    reading, writing = kafka.reading_of(pipeline.sources[0]), kafka.writing_to(topic_of(pipeline))
    assert {name: value for name, value in reading.items() if kafka.reading.get(name) != value} == {
        "minPartitions": "1000",
        "kafka.check.crcs": "false",
        "kafka.client.rack": "west",
        "fetchOffset.numRetries": "3",
    }
    assert {name: value for name, value in writing.items() if kafka.writing.get(name) != value} == {
        "kafka.compression.type": "zstd",
        "kafka.buffer.memory": "100",
        "kafka.batch.size": "99",
        "kafka.max.request.size": "70",
        "topic": "delays",
    }
    assert kafka.reading_of(pipeline.sources[1]) == kafka.reading
    told = failure_of(pipeline, "by_hour", TOO_LARGE, Path("log"))
    assert (told.line, "kafka.max.request.size in the options of topic delays (70)" in told.message) == (25, True)


def test_a_longer_answer_is_waited_for_by_the_admin_client_too(tmp_path: Path) -> None:
    """Java refuses to make one whose calls may take less than an answer."""
    reading = KafkaOptions("host:1").reading_of(
        with_options(tmp_path, "kafka.request.timeout.ms: 20000, kafka.fetch.max.wait.ms: 9000").sources[0]
    )
    assert (reading["kafka.request.timeout.ms"], reading["kafka.default.api.timeout.ms"]) == ("20000", "20000")


def test_our_own_producer_has_the_settings_of_kafkas_under_their_names(tmp_path: Path) -> None:
    of_sink = (
        "kafka.compression.type: gzip, kafka.compression.gzip.level: -1, kafka.compression.zstd.level: 5, "
        "kafka.batch.size: 900, kafka.linger.ms: 20, kafka.max.request.size: 700, "
        "kafka.max.in.flight.requests.per.connection: 2, kafka.delivery.timeout.ms: 9000, "
        "kafka.request.timeout.ms: 8000, kafka.retry.backoff.ms: 7, kafka.retry.backoff.max.ms: 70, "
        "kafka.metadata.max.age.ms: 700"
    )
    pipeline = with_options(tmp_path, of_sink=of_sink)
    sink = topic_of(pipeline)
    settings = producer_settings(sink, batch_bytes(sink), 5_000_000)
    assert settings == ProducerSettings(
        compression=Compression(CompressionType.GZIP, -1),
        batch_bytes=700,
        linger_ms=20,
        request_bytes_max=700,
        in_flight_max=2,
        delivery_timeout_ms=9_000,
        max_block_ms=5_000_000,
        buffer_bytes_max=settings.buffer_bytes_max,
    )
    of_client: dict[str, Any] = dict(client_options(pipeline))
    assert of_client == {
        "request_timeout_ms": 8_000,
        "retry_backoff_ms": 7,
        "retry_backoff_ms_max": 70,
        "metadata_max_age_ms": 700,
    }
    ClientSettings(bootstrap_servers=("host:1",), **of_client)
    assert NAMES_OF_CLIENT.keys() == OF_CLIENT
    plain = topic_of(read_flights(tmp_path))
    assert producer_settings(plain, batch_bytes(plain), 60_000).compression == Compression()
    # As with Kafka's producer 0 is a batch for each record; and nothing lives longer than its transaction.
    alone = topic_of(with_options(tmp_path, of_sink="kafka.batch.size: 0, kafka.delivery.timeout.ms: 70000"))
    assert (batch_bytes(alone), producer_settings(alone, 1, 60_000).delivery_timeout_ms) == (1, 60_000)


def test_no_option_is_a_part_of_the_state(tmp_path: Path) -> None:
    before = definition_of(read_flights(tmp_path))
    changed = with_options(tmp_path, "minPartitions: 8", "kafka.linger.ms: 1")
    assert definition_of(changed) == before


def test_an_option_may_be_named_and_is_looked_at_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = with_options(
        tmp_path,
        "kafka.client.rack: 'rack-${env:RACK}', minPartitions: '${file:many}', kafka.request.timeout.ms: 1000",
        "kafka.linger.ms: '${env:LINGER}'",
    )
    assert topic_of(pipeline).options == (Option("kafka.linger.ms", "${env:LINGER}"),)
    monkeypatch.setenv("RACK", "west")
    monkeypatch.setenv("LINGER", "5")
    (tmp_path / "many").write_text("12\n")
    found = resolved_options(pipeline)
    assert [option.value for option in found.sources[0].options] == ["rack-west", "12", "1000"]
    assert topic_of(found).options[0].value == "5"
    for name, value, message in (
        ("LINGER", "soon", r':25: kafka\.linger\.ms "\$\{env:LINGER\}" must be a whole number'),
        ("RACK", "a\nb", r":5: kafka\.client\.rack must be a text of 1 to 250 characters"),
        ("RACK", None, r":5: \$\{env:RACK\}: the variable RACK is not set"),
    ):
        with monkeypatch.context() as changed:
            changed.delenv(name) if value is None else changed.setenv(name, value)
            with pytest.raises(PipelineError, match=message):
                resolved_options(pipeline)
    (tmp_path / "many").write_text("0")
    with pytest.raises(PipelineError, match=r':5: minPartitions "\$\{file:many\}" must be'):
        resolved_options(pipeline)
    late = with_options(tmp_path, "kafka.fetch.max.wait.ms: '${env:LINGER}', kafka.request.timeout.ms: 1000")
    monkeypatch.setenv("LINGER", "1000")
    with pytest.raises(PipelineError, match=r":5: kafka\.fetch\.max\.wait\.ms must be less than"):
        resolved_options(late)


def test_what_a_reference_stands_for_is_not_shown_where_it_is_no_such_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong name of a variable may name a password."""
    monkeypatch.setenv("LOGIN", "hunter2")
    for of_source, of_sink in (
        ("kafka.check.crcs: '${env:LOGIN}'", ""),
        ("", "kafka.compression.type: '${env:LOGIN}'"),
    ):
        with pytest.raises(PipelineError, match=r'"\$\{env:LOGIN\}" is not known; there is: ') as caught:
            resolved_options(with_options(tmp_path, of_source, of_sink))
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("of_sink", "told"),
    [
        ("kafka.buffer.memory: 9000", "kafka.buffer.memory must be no less than kafka.batch.size (16384)"),
        (
            "kafka.buffer.memory: 9000, kafka.batch.size: 9001",
            "kafka.buffer.memory must be no less than kafka.batch.size (9001)",
        ),
        ("kafka.batch.size: 70_000_000", "kafka.batch.size must be no more than kafka.buffer.memory (67108864)"),
        ("kafka.send.buffer.bytes: 0", "kafka.send.buffer.bytes must be -1, the system's own, or at least 1"),
        ("kafka.receive.buffer.bytes: 0", "kafka.receive.buffer.bytes must be -1, the system's own, or at least 1"),
    ],
)
def test_what_no_producer_of_kafka_could_send_with_is_refused(tmp_path: Path, of_sink: str, told: str) -> None:
    """It would be told in a task: by an IllegalArgumentException for each record, or each connection."""
    with pytest.raises(PipelineError) as caught:
        with_options(tmp_path, of_sink=of_sink, delivery=LEAST)
    assert (caught.value.line, told in caught.value.message) == (25, True)
    with_options(tmp_path, of_sink="kafka.batch.size: 70_000_000")  # our own takes the smaller of both


def test_time_outs_of_the_greatest_length_are_what_kafkas_clients_take(tmp_path: Path) -> None:
    with_options(
        tmp_path,
        "kafka.request.timeout.ms: 2147483647",
        "kafka.request.timeout.ms: 2147483647, kafka.linger.ms: 2147483647",
    )
    # Java's sum is bounded by its largest whole number.
    with_options(tmp_path, of_sink="kafka.linger.ms: 2147483647, kafka.delivery.timeout.ms: 2147483647")
    with pytest.raises(PipelineError, match=r"kafka\.delivery\.timeout\.ms must be no less than .* \(2147483647\)"):
        with_options(tmp_path, of_sink="kafka.linger.ms: 2147483647, kafka.delivery.timeout.ms: 2147483646")


def test_topics_of_one_producer_may_have_the_same_options(tmp_path: Path) -> None:
    text = "    options: {kafka.linger.ms: 3}\n"
    pipeline = read_flights(
        tmp_path,
        ("  - topic: delays\n", f"  - topic: delays\n{text}"),
        ("  - parquet: out/delays\n", f"  - topic: others\n{text}"),
    )
    same = (Option("kafka.linger.ms", "3"),)
    assert [sink.options for sink in pipeline.sinks if isinstance(sink, TopicSink)] == [same, same]
    # What Spark writes is nobody else's matter.
    read_flights(
        tmp_path,
        ("  - topic: delays\n", f"  - topic: delays\n{text}"),
        ("  - parquet: out/delays\n", f"  - topic: others\n{LEAST}"),
    )


@pytest.mark.parametrize(
    "name",
    [
        *("subscribe", "subscribePattern", "assign", "startingOffsets", "startingOffsetsByTimestamp"),
        *("startingTimestamp", "endingOffsets", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
        *("failOnDataLoss", "includeHeaders", "groupIdPrefix", "kafka.group.id", "kafka.group.instance.id"),
        *("kafka.enable.auto.commit", "kafka.auto.offset.reset", "kafka.isolation.level", "kafka.key.deserializer"),
        *("kafka.value.deserializer", "kafka.bootstrap.servers", "kafka.security.protocol", "kafka.sasl.jaas.config"),
        *("kafka.ssl.keystore.password", "kafka.interceptor.classes", "kafka.session.timeout.ms", "FAILONDATALOSS"),
        *("acks", "kafka.enable.idempotence", "kafka.transactional.id", "kafka.transaction.timeout.ms", "topic"),
        *("kafka.key.serializer", "kafka.value.serializer", "kafka.partitioner.class", "kafka.partitioner.ignore.keys"),
    ],
)
def test_what_a_run_is_made_of_is_refused_with_what_says_it(tmp_path: Path, name: str) -> None:
    refused = 0
    for of_source, of_sink, line in ((f"{name}: x", "", 5), ("", f"{name}: x", 25)):
        with pytest.raises(PipelineError) as caught:
            with_options(tmp_path, of_source, of_sink)
        assert caught.value.line == line
        refused += "is the run's own to set: " in caught.value.message
    assert refused >= 1
    assert name not in {**SOURCE_OPTIONS, **SINK_OPTIONS}


def test_all_that_our_producer_knows_kafkas_knows_and_there_is_a_bound_on_their_number(tmp_path: Path) -> None:
    assert EXACT_OPTIONS.keys() < SINK_OPTIONS.keys()
    many = ", ".join(f"kafka.{number}: 1" for number in range(OPTIONS_MAX + 1))
    with pytest.raises(PipelineError, match=r"flights\.options: there are more than 100 options"):
        with_options(tmp_path, many)
