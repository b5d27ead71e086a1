"""A pipeline whose brokers ask who comes: SASL_SSL, by the `cluster` of its file, and no secret in what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.pipelines.cluster_access import open_options, spark_access
from barnabas.pipelines.connector import jars_of
from barnabas.pipelines.java import find_java
from barnabas.pipelines.progress import Progress, RunSummary
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.runner import run_pipeline_in
from barnabas.pipelines.session import SparkOptions, spark_session
from barnabas.pipelines.sinks import settings_of
from barnabas.pipelines.sources import KafkaOptions
from tests.support.sasl_cluster import PASSWORD, USER
from tests.support.tls_cluster import TlsCluster, tls_cluster
from tests.support.whole_tables import table_frame

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

PIPELINE = """\
name: guarded
cluster:
  security.protocol: SASL_SSL
  sasl.mechanism: PLAIN
  sasl.username: {user}
  sasl.password: ${{file:../password}}
  ssl.truststore.type: PEM
  ssl.truststore.location: {authority}
sources:
  numbers: {{topic: numbers, schema: "n INT"}}
  names: {{topic: names, read: table, schema: "n INT, name STRING"}}
steps:
  - {{name: named, sql: "SELECT n, name FROM numbers JOIN names USING (n)"}}
sinks:
  - {{topic: named, from: named, key: n}}
  - {{parquet: out, from: named}}
spark:
  spark.eventLog.enabled: true
  spark.eventLog.dir: file://{events}
  spark.eventLog.buffer.kb: 1
"""


HIDDEN = b"secret, =1"
"""What no form of the password, escaped in whatever way, is without."""


class Told:
    """What a run tells."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def said(self, line: str) -> None:
        self.lines.append(line)

    def batch(self, progress: Progress) -> None:
        self.lines.append(json.dumps(progress.to_json()))

    def ended(self, summary: RunSummary) -> None:
        self.lines.append(repr(summary))


def fill(cluster: TlsCluster) -> None:
    producer = Producer(cluster.logging_in())
    for topic, values in (("numbers", ['{"n": 1}', '{"n": 2}', "nonsense"]), ("names", ['{"n": 1, "name": "one"}'])):
        for value in values:
            producer.produce(topic, value, key="k")
    assert producer.flush(60) == 0


def values_of(cluster: TlsCluster, topic: str) -> list[str]:
    reader = Consumer(cluster.logging_in(**{"group.id": "reader", "auto.offset.reset": "earliest"}))
    reader.subscribe([topic])
    try:
        message = reader.poll(60)
        assert message is not None
        return [(message.value() or b"").decode()]
    finally:
        reader.close()


def test_a_run_comes_in_by_the_files_login_and_shows_its_secret_nowhere(tmp_path: Path) -> None:
    place, events = tmp_path / "place", tmp_path / "place" / "events"
    events.mkdir(parents=True)
    (tmp_path / "password").write_text(PASSWORD + "\n")
    overrides = {"transaction.state.log.replication.factor": 1, "transaction.state.log.min.isr": 1}
    with tls_cluster(tmp_path / "cluster", 1, **overrides) as cluster:
        path = place / "guarded.yaml"
        path.write_text(PIPELINE.format(user=USER, authority=cluster.authority.certificate, events=events))
        pipeline, servers, told = read_pipeline(path), cluster.servers("LOGIN"), Told()
        admin = AdminClient(cluster.logging_in())
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in ("numbers", "names", "named")]).values():
            made.result(60)
        fill(cluster)
        java = find_java()
        with spark_access(pipeline) as access:
            options = SparkOptions(
                java,
                jars_of(pipeline, java, None, print),
                place / "logs",
                "guarded",
                access.descriptors,
                is_short=True,
                settings=tuple(settings_of(pipeline).items()),
            )
            with spark_session(options) as session:
                session.sparkContext.setLogLevel("INFO")
                summary = run_pipeline_in(session.newSession(), pipeline, RunOptions(servers, once=True), told)
                # And as a run that starts Spark itself has it: the secret is not among the options at all.
                names = table_frame(session, pipeline.sources[1], KafkaOptions(servers, access.options))
                assert [row.name for row in names.collect()] == ["one"]
                again = table_frame(session, pipeline.sources[1], KafkaOptions(servers, open_options(pipeline)))
                plans = [each._jdf.queryExecution().toString() for each in (names, again)]
        assert (summary.rows_in, summary.records_refused) == (3, 1)
        assert values_of(cluster, "named") == ['{"n":1,"name":"one"}']
        assert values_of(cluster, "guarded.dlq") == ["nonsense"]
    written = [each for each in place.rglob("*") if each.is_file()]
    assert any(each.parent.name.startswith("eventlog") or each.parent == events for each in written)
    shown = [str(each) for each in written if HIDDEN in each.read_bytes()]
    assert (shown, [text for text in (*told.lines, *plans, repr(pipeline)) if HIDDEN.decode() in text]) == ([], [])
    assert b"sasl" in b"".join(each.read_bytes() for each in (place / "logs").glob("*.log"))
