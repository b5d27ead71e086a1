"""Tables that are read from topics and read on while a run lasts: what is new is enough, and a batch that comes again
sees what it saw. One broker, and one Spark for all.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyarrow import dataset

from barnabas.pipelines import table_versions
from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.parquet_sink import ParquetWriter
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.runner import run_pipeline_in
from barnabas.pipelines.sources import KafkaOptions
from barnabas.pipelines.table_parts import TableParts
from barnabas.pipelines.table_versions import TableVersion, VersionFiles
from barnabas.pipelines.topic_looks import looking
from tests.support.waiting import wait_until
from tests.support.whole_tables import table_frame

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]


class KilledError(Exception):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def spark(spark_with_tables: Any) -> Any:
    return spark_with_tables


class Airlines:
    """The topic of the table, and that of flights, of one test."""

    def __init__(self, brokers: str, directory: Path) -> None:
        self.brokers = brokers
        self.airlines, self.flights = f"airlines-{directory.name}", f"flights-{directory.name}"
        self.admin = AdminClient({"bootstrap.servers": brokers})
        self.create(self.airlines)
        self.create(self.flights)
        self.connect()
        path = directory / "names.yaml"
        path.write_text(
            f"""\
name: names
sources:
  flights: {{topic: {self.flights}, schema: "id INT, carrier STRING"}}
  airlines: {{topic: {self.airlines}, read: table, schema: "carrier STRING, name STRING"}}
steps:
  - name: sizes
    sql: SELECT COUNT(*) AS many FROM airlines
  - name: named
    sql: |
      SELECT f.id, a.name, s.many
      FROM flights f LEFT JOIN airlines a ON a.carrier = f.carrier CROSS JOIN sizes s
sinks:
  - {{parquet: out, from: named}}
"""
        )
        self.pipeline = read_pipeline(path)

    def connect(self) -> None:
        """By a producer that knows of the partitions that there are now."""
        self._producer = Producer({"bootstrap.servers": self.brokers})

    def create(self, topic: str) -> None:
        for made in self.admin.create_topics([NewTopic(topic, 1, 1, config={"retention.ms": "-1"})]).values():
            made.result(30)

    def name(self, carrier: str, name: str | None, partition: int = 0) -> None:
        value = None if name is None else json.dumps({"carrier": carrier, "name": name})
        self._producer.produce(self.airlines, value, carrier, partition=partition)
        assert self._producer.flush(30) == 0

    def fly(self, number: int, carrier: str) -> None:
        self._producer.produce(self.flights, json.dumps({"id": number, "carrier": carrier}))
        assert self._producer.flush(30) == 0

    def rows(self) -> dict[int, tuple[str | None, int]]:
        found = dataset.dataset(self.pipeline.sinks[0].directory, partitioning="hive").to_table().to_pylist()  # type: ignore[union-attr]
        rows = {row["id"]: (row["name"], row["many"]) for row in found}
        assert len(rows) == len(found)
        return rows


class Script:
    """A run's progress: after each batch that has rows the next step is done; a run without an end ends behind them."""

    def __init__(self, steps: Sequence[Callable[[], None]], *, has_end: bool) -> None:
        self._has_end = has_end
        self.stop = threading.Event()
        self.lines: list[str] = []
        self._steps = list(steps)

    def said(self, line: str) -> None:
        self.lines.append(line)

    def batch(self, progress: Any) -> None:
        if not progress.alone.rows_out:
            return
        if self._steps:
            self._steps.pop(0)()
        elif not self._has_end:
            self.stop.set()

    def ended(self, summary: Any) -> None: ...


def run(spark: Any, topics: Airlines, *steps: Callable[[], None], once: bool = False) -> Script:
    script = Script(steps, has_end=once)
    run_pipeline_in(spark.newSession(), topics.pipeline, RunOptions(topics.brokers, once), script, script.stop)
    return script


def test_a_batch_sees_what_was_written_to_the_table_before_its_records(
    spark: Any, brokers: str, tmp_path: Path
) -> None:
    topics = Airlines(brokers, tmp_path)
    topics.name("UA", "United")
    topics.name("DL", "Delta")
    topics.fly(1, "UA")

    def changed() -> None:
        topics.name("UA", "United Airlines")
        topics.name("AA", "American")
        topics.fly(2, "UA")
        topics.fly(3, "AA")

    def deleted() -> None:
        topics.name("DL", None)
        topics.fly(4, "DL")

    def unchanged() -> None:
        topics.fly(5, "UA")

    script = run(spark, topics, changed, deleted, unchanged)
    united = "United Airlines"
    assert topics.rows() == {1: ("United", 2), 2: (united, 3), 3: ("American", 3), 4: (None, 2), 5: (united, 2)}
    assert not [line for line in script.lines if line.startswith("warning")]
    # Read whole once, and on from there.
    assert len([line for line in script.lines if line.startswith("reading topic")]) == 1


def test_a_batch_that_comes_again_sees_the_table_as_it_was_also_where_the_topic_has_lost_that(
    spark: Any, brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = Airlines(brokers, tmp_path)
    topics.name("UA", "United")
    topics.fly(1, "UA")

    def changed() -> None:
        topics.name("UA", "United Airlines")
        topics.fly(2, "UA")

    commit = ParquetWriter.commit

    def killed(writer: ParquetWriter, batch_id: int, offsets: Any) -> None:
        if batch_id == 1:
            raise KilledError
        commit(writer, batch_id, offsets)

    with monkeypatch.context() as patched, pytest.raises(PipelineError, match="named failed"):
        patched.setattr(ParquetWriter, "commit", killed)
        run(spark, topics, changed)
    topics.name("UA", "Continental")
    (done,) = topics.admin.delete_records([TopicPartition(topics.airlines, 0, 2)]).values()
    done.result(30)
    topics.fly(3, "UA")
    run(spark, topics, once=True)
    assert topics.rows() == {1: ("United", 1), 2: ("United Airlines", 1), 3: ("Continental", 1)}
    # What nobody will see again is gone.
    assert len(list((topics.pipeline.state_directory / "read" / "parts").iterdir())) == 1


@pytest.mark.night("seventeen tables, 75 s; found nothing yet: what a batch sees of changes is by day")
def test_what_is_new_makes_the_same_table_as_all_records_together(
    spark: Any, brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through parts of changes, their merging and their end in the base; with a partition more."""
    monkeypatch.setattr(table_versions, "CHANGES_MIN", 12)
    topics = Airlines(brokers, tmp_path)
    source, kafka, session = topics.pipeline.sources[1], KafkaOptions(brokers), spark.newSession()
    parts = TableParts(session, kafka, VersionFiles(tmp_path / "read"))
    shapes: list[tuple[int, int]] = []
    with looking(topics.pipeline, brokers) as looks:
        version = parts.whole(source, looks.look(source.topic))
        assert parts.frame(source, version).collect() == []
        for step in range(14):
            changes(topics, step)
            version = parts.newer(source, version, looks.look(source.topic))
            parts.read(source, version)
            if step in {7, 10, 13}:
                assert rows_of(parts.frame(source, version)) == rows_of(table_frame(session, source, kafka)), step
            parts.keep_only({source.name: [version]})
            shapes.append((version.base.rows, len(version.deltas)))
        same = parts.newer(source, version, looks.look(source.topic))
    assert same == version
    # Merged once they were nine, and part of the base once they were thirteen rows.
    assert max(deltas for _, deltas in shapes) == table_versions.DELTAS_MAX
    assert any(later < earlier for (_, earlier), (_, later) in itertools.pairwise(shapes))
    assert shapes[-1][0] > 0
    assert len(list((tmp_path / "read" / "parts").iterdir())) == 1 + shapes[-1][1]


def changes(topics: Airlines, step: int) -> None:
    topics.name(f"C{step % 5}", f"name {step}")
    if step % 4 == 3:
        topics.name(f"C{(step - 2) % 5}", None)
    if step == 6:
        for done in topics.admin.create_partitions([NewPartitions(topics.airlines, 2)]).values():
            done.result(30)
        topics.connect()
    if step > 8:
        topics.name("C1", f"moved {step}", 1)


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    return sorted((row.carrier, row.name, row._key, row._partition, row._offset) for row in frame.collect())


def test_records_of_an_open_transaction_are_not_in_the_table_until_it_is_committed(
    spark: Any, brokers: str, tmp_path: Path
) -> None:
    topics = Airlines(brokers, tmp_path)
    topics.name("UA", "United")
    source = topics.pipeline.sources[1]
    parts = TableParts(spark.newSession(), KafkaOptions(brokers), VersionFiles(tmp_path / "read"))
    producer = Producer({"bootstrap.servers": brokers, "transactional.id": "names"})
    producer.init_transactions(30)

    def names(version: TableVersion) -> list[str]:
        return sorted(row.name for row in parts.frame(source, version).collect())

    with looking(topics.pipeline, brokers) as looks:

        def is_told_of() -> bool:
            """Whether the marker is there: a transaction ends for its producer before it does for readers."""
            return looks.look(source.topic).ends != version.offsets

        version = parts.whole(source, looks.look(source.topic))
        producer.begin_transaction()
        producer.produce(source.topic, json.dumps({"carrier": "DL", "name": "Delta"}), "DL")
        producer.flush(30)
        assert looks.look(source.topic).ends == version.offsets
        producer.commit_transaction(30)
        wait_until(is_told_of, "the commit is seen")
        version = parts.newer(source, version, looks.look(source.topic))
        assert names(version) == ["Delta", "United"]
        producer.begin_transaction()
        producer.produce(source.topic, json.dumps({"carrier": "AA", "name": "American"}), "AA")
        producer.flush(30)
        producer.abort_transaction(30)
        wait_until(is_told_of, "the abort is seen")
        later = parts.newer(source, version, looks.look(source.topic))
    assert names(later) == ["Delta", "United"]
    assert later.parts == version.parts
    assert later.offsets != version.offsets
