"""Runs by tokens (OAUTHBEARER) over records of a registry's schemas, in both parts, with garbage among them, by two
queries; and a replay of what did not fit, once the registry knows more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyarrow import dataset

from barnabas.pipelines import schema_learning
from barnabas.pipelines.definition import Framing, PipelineUnreachableError
from barnabas.pipelines.progress import Progress, RunSummary
from barnabas.pipelines.protobuf_decoding import framed_content, value_reader
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.runner import run_pipeline
from barnabas.pipelines.schema_learning import MISSES_MAX
from tests.support.identity_provider import (
    AUDIENCE,
    CLIENT_ID,
    CLIENT_SECRET,
    ISSUER,
    VALIDATOR_HANDLER,
    IdentityProvider,
    identity_provider,
)
from tests.support.sasl_cluster import sasl_cluster
from tests.unit.pipelines.test_protobuf_messages import descriptors
from tests.unit.pipelines.test_schema_registry import Registry

pytestmark = [
    pytest.mark.timeout(1_200),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.night("three Sparks, 501 s of 7,721 of all tests; has found 4882a02f, whose own test is by day"),
]

NUMBER = {"name": "id", "type": "int"}
ONE = json.dumps({"type": "record", "name": "F", "fields": [NUMBER]})
CARRIER = {"name": "carrier", "type": "string", "default": "?"}
TWO = json.dumps({"type": "record", "name": "F", "fields": [NUMBER, CARRIER]})
FILE = """\
name: guarded
cluster:
  security.protocol: SASL_PLAINTEXT
  sasl.mechanism: OAUTHBEARER
  sasl.oauthbearer.token.endpoint.url: {tokens}
  sasl.username: {user}
  sasl.password: ${{file:../secret}}
registry: {{url: "http://127.0.0.1:{registry}"}}
sources:
  flights:
    topic: flights
    max_records_per_batch: 80
    format: avro
    framing: confluent
    schema_file: two.avsc
    key_format: {{format: avro, framing: confluent, schema_file: key.avsc}}
steps:
  - {{name: keyed, sql: "SELECT _key AS bytes, id, carrier FROM flights"}}
sinks:
  - topic: out
    from: keyed
    key: id
    format: protobuf
    framing: confluent
    schema_file: air.desc
    message: air.Flight
    key_format: {{format: avro, framing: confluent, schema_file: key.avsc}}
  - {{parquet: all, from: flights}}
spark:
  spark.eventLog.enabled: true
  spark.eventLog.dir: file://{events}
"""
GARBAGE = [b"\0" + (2**31 + 7 * number).to_bytes(4, "big") + b"what" for number in range(150)]


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


@pytest.fixture
def registry() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    Registry.answers = {
        "/subjects/flights-value/versions": (200, [1]),
        "/subjects/flights-value/versions/1": (200, {"id": 7, "schema": ONE}),
        "/subjects/flights-key/versions": (200, [1]),
        "/subjects/flights-key/versions/1": (200, {"id": 3, "schema": '"int"'}),
        "/schemas/ids/9": (200, {"schema": TWO}),
        "POST /subjects/out-value/versions": (200, {"id": 41}),
        "POST /subjects/out-key/versions": (200, {"id": 42}),
    }
    Registry.asked, Registry.posted = [], []
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def records_of(servers: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    reader = Consumer({"bootstrap.servers": servers, "group.id": "reader"})
    place = TopicPartition(topic, 0, 0)
    reader.assign([place])
    end = reader.get_watermark_offsets(place, timeout=60)[1]
    found = []
    while reader.position([place])[0].offset < end:
        message = reader.poll(1)
        if message is not None and message.error() is None:
            found.append((message.key(), message.value()))
    reader.close()
    return found


def replayed(servers: str) -> None:
    command = [sys.executable, "-P", "-m", "barnabas.cli", "pipeline", "replay", "guarded", "--bootstrap-server"]
    done = subprocess.run([*command, servers], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def of_cluster(provider: IdentityProvider) -> dict[str, Any]:
    return {
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": provider.keys_address,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "listener.name.login.oauthbearer.sasl.server.callback.handler.class": VALIDATOR_HANDLER,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
    }


def test_a_run_by_tokens_reads_what_a_registry_knows_has_few_questions_about_garbage_and_takes_back_what_is_mended(
    registry: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_learning, "MISSES_PER_SECOND", 0.05)  # on a machine that is busy it lasts
    place, events = tmp_path / "place", tmp_path / "place" / "events"
    events.mkdir(parents=True)
    (tmp_path / "secret").write_text(CLIENT_SECRET + "\n")
    for name, content in (("two.avsc", TWO), ("key.avsc", '"int"')):
        (place / name).write_text(content)
    (place / "air.desc").write_bytes(descriptors())
    key = b"\0\0\0\0\3"
    records: list[tuple[bytes | None, bytes]]
    records = [(key + b"\2", b"\0\0\0\0\7\2"), (key + b"\4", b"\0\0\0\0\7\4"), (b"\0\0\0\0\5\2", b"\0\0\0\0\7\6")]
    records += [(None, each) for each in GARBAGE]
    records += [(key + b"\x08", b"\0\0\0\0\x09\x08\4UA"), (None, b"\0\0\0\0\7\x0a")]
    with identity_provider() as provider, sasl_cluster(tmp_path / "cluster", 1, **of_cluster(provider)) as cluster:
        servers = cluster.plain_servers
        admin = AdminClient({"bootstrap.servers": servers})
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in ("flights", "out")]).values():
            made.result(60)
        producer = Producer({"bootstrap.servers": servers})
        for of, value in records:
            producer.produce("flights", value, key=of)
        assert producer.flush(60) == 0
        path = place / "guarded.yaml"
        given = {"tokens": provider.token_address, "user": CLIENT_ID, "registry": registry.server_port}
        path.write_text(FILE.format(**given, events=events))
        told = Told()
        pipeline = read_pipeline(path)
        summary = run_pipeline(pipeline, RunOptions(cluster.sasl_servers, once=True), told)
        asked = list(Registry.asked)
        written, letters = records_of(servers, "out"), records_of(servers, "guarded.dlq")
        assert provider.asked.count("/token") >= 2
        # One that cannot be asked ends the run in one line, and nothing of the batch is lost: it is there once it can.
        producer.produce("flights", b"\0\0\0\0\x0a\x0c", key=key + b"\x0c")
        assert producer.flush(60) == 0
        Registry.answers["/schemas/ids/10"] = (503, {})
        with pytest.raises(PipelineUnreachableError, match=r"guarded\.yaml:8: the schema registry \S+ does not answer"):
            run_pipeline(read_pipeline(path), RunOptions(cluster.sasl_servers, once=True), Told())
        assert len(records_of(servers, "out")) == len(written)
        # Letters are the records, to the byte: sent back they fit, as far as the registry knows their schemas by now.
        replayed(servers)
        Registry.answers["/schemas/ids/10"] = (200, {"schema": ONE})
        Registry.answers["/schemas/ids/5"] = (200, {"schema": '"int"'})
        mended = run_pipeline(read_pipeline(path), RunOptions(cluster.sasl_servers, once=True), Told())
        written, letters_then = records_of(servers, "out"), records_of(servers, "guarded.dlq")
    # Each query counts.
    assert (summary.rows_in, summary.records_refused) == (2 * len(records), 2 * (len(GARBAGE) + 1))
    assert (mended.rows_in, mended.records_refused) == (2 * (len(letters) + 1), 2 * len(GARBAGE))
    read = value_reader(descriptors(), "air.Flight", Framing.NONE)
    rows = []
    for key_bytes, written_value in written:
        found = framed_content(written_value or b"")
        assert found is not None
        assert found[:2] == (41, [1])
        rows.append((key_bytes, (read(found[2]) or ())[:3]))
    head = b"\0\0\0\0\x2a"
    assert [(of, row[0], row[1], int(row[2])) for of, row in rows] == [
        (head + b"\2", 1, "?", 1),
        (head + b"\4", 2, "?", 2),
        (head + b"\x08", 4, "UA", 4),
        (head + b"\x0a", 5, "?", 0),
        (head + b"\x0c", 6, "?", 6),
        (head + b"\6", 3, "?", 1),
    ]
    table = dataset.dataset(place / "all", partitioning="hive").to_table().to_pylist()
    assert sorted((row["id"], row["carrier"]) for row in table) == sorted((row[0], row[1]) for _, row in rows)
    # One for each record, although two queries have left it out.
    garbage: list[tuple[bytes | None, bytes]] = [(None, each) for each in GARBAGE]
    assert sorted(letters, key=str) == sorted([records[2], *garbage], key=str)
    assert sorted(letters_then, key=str) == sorted([records[2], *garbage, *garbage], key=str)
    assert MISSES_MAX <= sum(each.startswith("/schemas/ids/") for each in asked) < len(GARBAGE)
    assert len(set(asked)) == len(asked)
    assert not any("goes on from its checkpoint" in line for line in told.lines)
    shown = [str(each) for each in place.rglob("*") if each.is_file() and CLIENT_SECRET.encode() in each.read_bytes()]
    assert (shown, [line for line in told.lines if CLIENT_SECRET in line]) == ([], [])
