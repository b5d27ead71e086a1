"""Records that do not fit: letters of a source that several queries read, and of a table that has a batch before they
are written, where the schema is changed in between; and records that are gone. One broker, and one Spark for all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyarrow import dataset

from barnabas.pipelines.dead_letters import LetterWriter
from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.progress import Progress, RunSummary
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.runner import run_pipeline, run_pipeline_in

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

TEXT, NUMBER = "delay STRING", "delay INT"
VALUES = [b'{"delay": 1}', b'{"delay": "late"}', b"nonsense", b'{"delay": 2}']
"""The second is one of the schema TEXT, and of NUMBER it is not; the third is of neither."""
PIPELINE = """\
name: {name}
sources:
  flights: {{topic: {name}, schema: "{schema}"}}
steps:
  - {{name: first, sql: "SELECT _offset AS at FROM flights"}}
  - {{name: second, sql: "SELECT _offset AS at, 1 AS one FROM flights"}}
sinks:
  - {{parquet: first, from: first}}
"""


class Told:
    """What a run tells."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.batches: list[Progress] = []

    def said(self, line: str) -> None:
        self.lines.append(line)

    def batch(self, progress: Progress) -> None:
        self.batches.append(progress)

    def ended(self, summary: RunSummary) -> None: ...


class Flights:
    """A pipeline over a topic of one partition, with VALUES."""

    def __init__(self, spark: Any, brokers: str, directory: Path) -> None:
        self.spark, self.brokers, self.directory = spark, brokers, directory
        self.name = directory.name
        self.admin = AdminClient({"bootstrap.servers": brokers})
        (made,) = self.admin.create_topics([NewTopic(self.name, 1, 1)]).values()
        made.result(60)
        producer = Producer({"bootstrap.servers": brokers})
        for value in VALUES:
            producer.produce(self.name, value)
        assert producer.flush(60) == 0

    def run(self, schema: str, text: str = PIPELINE) -> None:
        path = self.directory / "flights.yaml"
        path.write_text(text.format(name=self.name, schema=schema))
        run_pipeline_in(self.spark.newSession(), read_pipeline(path), RunOptions(self.brokers, once=True), Told())

    def rows(self, table: str) -> list[int]:
        found = dataset.dataset(self.directory / table, partitioning="hive").to_table(["at"])
        return sorted(found.column("at").to_pylist())

    def letters(self) -> list[int]:
        """The offsets of the records that have letters."""
        topic = f"{self.name}.dlq"
        if topic not in self.admin.list_topics(timeout=60).topics:
            return []
        reader = Consumer({"bootstrap.servers": self.brokers, "group.id": "unused"})
        place = TopicPartition(topic, 0, 0)
        reader.assign([place])
        end = reader.get_watermark_offsets(place, timeout=60)[1]
        found: list[int] = []
        while reader.position([place])[0].offset < end:
            message = reader.poll(1)
            if message is not None and message.error() is None:
                found.append(int(dict(message.headers() or [])["barnabas.error.offset"] or b""))
        reader.close()
        return sorted(found)


@pytest.fixture
def flights(spark_with_tables: Any, brokers: str, tmp_path: Path) -> Flights:
    return Flights(spark_with_tables, brokers, tmp_path)


def test_what_one_query_leaves_out_has_a_letter_also_where_the_other_has_taken_it_by_the_schema_of_before(
    flights: Flights,
) -> None:
    flights.run(TEXT)
    assert (flights.rows("first"), flights.letters()) == ([0, 1, 3], [2])
    # It begins where its source does, far behind the first.
    flights.run(NUMBER, PIPELINE + "  - {{parquet: second, from: second}}\n")
    assert (flights.rows("first"), flights.rows("second")) == ([0, 1, 3], [0, 3])
    assert flights.letters() == [1, 2], "one for each record that a query lacks"


def test_a_table_that_has_a_batch_before_its_letters_waits_for_them_with_the_schema_of_the_batch(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PIPELINE.replace("parquet: first", "delta: first")

    def killed(_writer: object, _batch_id: int) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(LetterWriter, "write", killed)
        with pytest.raises(PipelineError, match="killed"):
            flights.run(NUMBER, text)
    with pytest.raises(
        PipelineError, match=r"flights.yaml:3: batch 0 of first is in its table as the schema was before"
    ):
        flights.run(TEXT, text)
    assert flights.letters() == []
    flights.run(NUMBER, text)
    assert flights.letters() == [1, 2]
    flights.run(TEXT, text)
    log = (flights.directory / "first" / "_delta_log").glob("*.json")
    added = [json.loads(line) for path in log for line in path.read_text().splitlines() if '"add"' in line]
    assert sum(json.loads(each["add"]["stats"])["numRecords"] for each in added) == 2


def test_a_record_that_does_not_fit_ends_the_run_where_its_source_says_so_and_is_named(flights: Flights) -> None:
    (made,) = flights.admin.create_topics([NewTopic(f"{flights.name}-out", 1, 1)]).values()
    made.result(60)
    text = PIPELINE.replace('"{schema}"', '"{schema}", on_error: fail') + "  - {{topic: {name}-out, from: first}}\n"
    with pytest.raises(PipelineError, match=rf"flights.yaml:3: .*topic {flights.name}, partition 0, offset 1"):
        flights.run(NUMBER, text)
    assert list((flights.directory / "first").glob("batch_id=*")) == []
    reader = Consumer({"bootstrap.servers": flights.brokers, "group.id": "unused"})
    assert reader.get_watermark_offsets(TopicPartition(f"{flights.name}-out", 0), timeout=60) == (0, 0)
    reader.close()
    assert flights.letters() == []


def test_records_that_are_gone_before_they_are_read_stop_a_run_or_are_counted(
    spark_with_tables: Any, brokers: str, tmp_path: Path
) -> None:
    admin, producer = AdminClient({"bootstrap.servers": brokers}), Producer({"bootstrap.servers": brokers})
    (made,) = admin.create_topics([NewTopic("fading", 2, 1)]).values()
    made.result(60)
    path, options = tmp_path / "fading.yaml", RunOptions(brokers, once=True)
    source = "  numbers:\n    topic: fading\n    schema: number INT"
    path.write_text(f"name: fading\nsources:\n{source}\nsinks:\n  - {{parquet: table, from: numbers}}\n")

    def run(told: Told) -> RunSummary:
        return run_pipeline_in(spark_with_tables.newSession(), read_pipeline(path), options, told)

    def numbers() -> list[int]:
        return sorted(dataset.dataset(tmp_path / "table", partitioning="hive").to_table()["number"].to_pylist())

    def produce(*values: int) -> None:
        for number in values:
            producer.produce("fading", json.dumps({"number": number}), partition=1)
        assert producer.flush(30) == 0

    produce(0, 1, 2)
    summary = run(Told())
    assert (numbers(), summary.records_lost) == ([0, 1, 2], 0)
    produce(3, 4, 5, 6)
    (done,) = admin.delete_records([TopicPartition("fading", 1, 5)]).values()
    assert done.result(30).low_watermark == 5
    told = Told()
    lost = r"fading.yaml:3: the topic \"fading\" has lost 2 records \(offsets 3 to 4 of partition 1\)"
    with pytest.raises(PipelineError, match=f"{lost}.*set `allow_data_loss: true` at source numbers"):
        run_pipeline(read_pipeline(path), options, told)
    assert told.lines == [], "Spark is not started for that"
    path.write_text(path.read_text().replace(source, f"{source}\n    allow_data_loss: true"))
    told = Told()
    summary = run(told)
    assert (summary.records_lost, summary.rows_in) == (2, 2)
    assert told.batches[-1].totals.records_lost == 2
    assert numbers() == [0, 1, 2, 5, 6]
