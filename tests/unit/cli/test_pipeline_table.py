"""`barnabas pipeline table`: the file that it writes, once, and what it refuses. Brokers and Spark are played."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from barnabas.cli import pipeline as commands
from barnabas.cli import pipeline_infer, pipeline_table
from barnabas.pipelines.cases import GivenRecord
from barnabas.pipelines.definition import DeltaSink, Framing, IcebergSink, PipelineError, SourceFormat, Tombstones
from barnabas.pipelines.progress import RunSummary
from barnabas.pipelines.reading import read_pipeline
from tests.unit.pipelines.test_debezium_envelopes import ENVELOPE, KEY, envelope_descriptors
from tests.unit.pipelines.test_protobuf_messages import descriptors
from tests.unit.pipelines.test_schema_registry import Registry

VALUE = b'{"id": 1, "carrier": "UA", "at": "2013-01-01T05:00:00Z"}'


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files of the pipelines that were run."""
    files: list[Path] = []

    def run(path: Path, *_: object, **__: object) -> RunSummary:
        files.append(path)
        return RunSummary("x", False, 0, 0, 0, 0, {}, 0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "_run", run)
    monkeypatch.setattr(pipeline_table, "sample_of", lambda *_: [GivenRecord("", None, VALUE, 0, 0, 0)])
    return files


@pytest.fixture
def registry() -> Iterator[str]:
    """The address of a registry that answers as its class says."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    Registry.answers, Registry.asked = {}, []
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def call(*arguments: str) -> Result:
    return CliRunner().invoke(commands.command, ["table", *arguments], catch_exceptions=False)


def test_the_file_that_is_written_is_yaml(ran: list[Path], tmp_path: Path) -> None:
    result = call("flights", "out/flights", "--file", "flights.py", "--once")
    assert (result.exit_code, ran, list(tmp_path.iterdir())) == (1, [], [])
    assert "--file flights.py: the pipeline that is written is YAML, so name it flights.yaml" in result.output


def test_a_topic_becomes_a_table_with_the_schema_of_a_sample(ran: list[Path], tmp_path: Path) -> None:
    result = call("flights", "out/flights", "--once")
    assert (result.exit_code, ran) == (0, [Path("flights.table.yaml")])
    assert "the schema, from 1 record: id BIGINT, carrier STRING, at TIMESTAMP" in result.output
    pipeline = read_pipeline(ran[0])
    (source,), (sink,) = pipeline.sources, pipeline.sinks
    assert (pipeline.name, source.topic, source.tombstones) == ("flights-table", "flights", Tombstones.DROP)
    assert isinstance(sink, DeltaSink)
    assert (sink.directory, sink.from_view, sink.key) == (tmp_path / "out" / "flights", "records", ())
    # The same again goes on with the file, whatever the records are by now.
    before = ran[0].read_text()
    assert call("flights", "out/flights").exit_code == 0
    assert (ran[0].read_text(), len(ran)) == (before, 2)


def test_a_table_at_a_url_names_what_spark_lacks_for_it(ran: list[Path], tmp_path: Path) -> None:
    for _ in range(2):
        assert call("flights", "s3a://bucket/lake/flights/", "--kind", "iceberg").exit_code == 0
    pipeline = read_pipeline(ran[0])
    (sink,) = pipeline.sinks
    assert isinstance(sink, IcebergSink)
    assert (sink.directory, sink.url, sink.table) == (None, "s3a://bucket/lake/flights", "")
    (jar,) = pipeline.jars
    assert jar.coordinates.startswith("org.apache.hadoop:hadoop-aws:3.")
    result = call("flights", "s3a://bucket/lake/others", "--kind", "iceberg")
    assert (result.exit_code, "flights.table.yaml is there already" in result.output) == (1, True)
    # A file: URL is a path.
    assert call("others", f"file://{tmp_path}/o").exit_code == 0
    (sink,) = read_pipeline(ran[-1]).sinks
    assert isinstance(sink, DeltaSink)
    assert (sink.directory, read_pipeline(ran[-1]).jars) == (tmp_path / "o", ())


def test_a_compacted_topic_becomes_a_table_whose_rows_go_with_their_keys(ran: list[Path]) -> None:
    assert call("flights", "t", "--kind", "iceberg", "--key", "_key", "--partition-by", "carrier").exit_code == 0
    (source,), (sink,) = read_pipeline(ran[0]).sources, read_pipeline(ran[0]).sinks
    assert (source.tombstones, source.requires_key) == (Tombstones.KEEP, True)
    assert isinstance(sink, IcebergSink)
    assert sink.key == ("_key",)
    assert (sink.rows.delete, sink.rows.partition_by) == ("_deleted", ("carrier",))


def test_records_in_avro_have_the_schema_of_a_file(ran: list[Path], tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "f.avsc").write_text('{"type":"record","name":"F","fields":[{"name":"yes","type":"int"}]}')
    file = str(tmp_path / "inner" / "t.yaml")
    result = call("flights", "t", "--schema-file", "f.avsc", "--confluent", "--key", "yes", "--file", file)
    assert result.exit_code == 0, result.output
    (source,), (sink,) = read_pipeline(ran[0]).sources, read_pipeline(ran[0]).sinks
    assert (source.format, source.framing) == (SourceFormat.AVRO, Framing.CONFLUENT)
    # The table is where the command was given, and not beside the file.
    assert isinstance(sink, DeltaSink)
    assert (sink.directory, sink.key, sink.rows.delete) == (tmp_path / "t", ("yes",), None)


def test_keys_have_a_format_of_their_own(ran: list[Path], tmp_path: Path) -> None:
    (tmp_path / "air.desc").write_bytes(descriptors())
    (tmp_path / "key.avsc").write_text('"long"')
    keys = ["--key", "_key", "--confluent", "--key-schema-file"]
    arguments = ["flights", "t", "--schema-file", "air.desc", "--message", "air.Flight", *keys, "key.avsc"]
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    (source,) = read_pipeline(ran[0]).sources
    assert (source.format, source.framing, source.message) == (SourceFormat.PROTOBUF, Framing.CONFLUENT, "air.Flight")
    assert source.key_format is not None
    assert (source.key_format.format, source.key_format.type) == (SourceFormat.AVRO, "BIGINT")
    assert source.key_format.framing is Framing.CONFLUENT
    # The same command goes on with it, another does not.
    assert call(*arguments).exit_code == 0
    assert call(*arguments[:-2]).exit_code == 1
    result = call("o", "u", *keys, "air.desc", "--key-message", "air.Flight")
    assert result.exit_code == 0, result.output
    (source,) = read_pipeline(ran[-1]).sources
    assert source.key_format is not None
    assert (source.format, source.key_format.message) == (SourceFormat.JSON, "air.Flight")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["flights", "t", "--message", "a"], "--message is of a descriptor set"),
        (["flights", "t", "--key-message", "a"], "--key-message is of a descriptor set: --key-schema-file"),
        (["flights", "t", "--key-schema-file", "none.avsc"], "none.avsc does not exist"),
        (
            ["flights", "t", "--debezium", "--key", "id", "--schema", "a INT"],
            "in their schema (--schema-file",
        ),
        (
            ["flights", "t", "--debezium", "--key", "id", "--schema-file", "none.avsc"],
            "none.avsc cannot be read:",
        ),
        (["flights", "t", "--registry", "https://me:hush@host"], "--registry https://host must be http:// or https://"),
        (["flights", "t", "--registry", "http://host", "--schema", "a INT"], "leave --csv and --schema out"),
        (["flights", "t", "--csv"], "lines of CSV have no names: say their columns by --schema"),
        (["flights", "t", "--confluent"], "need the schema that they were written with: --schema-file AVSC"),
        (["flights", "t", "--schema", "a INT", "--schema-file", "x"], "say the same: give one of them"),
        (["flights", "t", "--csv", "--schema", "a INT", "--confluent"], "give one of them"),
        (["flights", "t", "--schema", "a INTT"], '"INTT" is not a type; did you mean "INT"?'),
        (["flights", "t", "--key", "idd"], 'key "idd" is not a column of records; did you mean "id"'),
        (["flights", "t", "--schema-file", "none.avsc"], "none.avsc does not exist"),
        (["fl ights", "t"], '"fl ights" cannot be a topic'),
        (["flights", "s3://bucket"], '"s3://bucket" is neither a directory nor a URL of a table'),
        (["flights", "s3a://a:b@bucket/t"], "has a URL with a login"),
        (["flights", "file://host/t"], "is no path of this machine: write file:///path"),
        (["flights", "hdfs:///t", "--kind", "parquet"], "Delta and Iceberg tables may be at URLs"),
        (["flights", "t", "--file", "none/x.yaml"], "the directory none does not exist: create it first"),
        (["flights", "a.b.c", "--kind", "iceberg"], "names the catalog a, which `spark` does not have"),
        (["flights", "t", "--kind", "parquet", "--partition-by", "id"], "partition_by is for Delta and Iceberg tables"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_no_file(
    ran: list[Path], tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = call(*arguments)
    assert (result.exit_code, ran) == (1, [])
    assert message in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["flights", "other"],
        ["flights", "t", "--kind", "iceberg"],
        ["flights", "t", "--key", "id"],
        ["others", "t"],
        ["flights", "t", "--partition-by", "carrier"],
        ["flights", "t", "--csv", "--schema", "id BIGINT, carrier STRING, at TIMESTAMP"],
    ],
)
def test_a_file_that_does_something_else_is_left_alone(ran: list[Path], arguments: list[str]) -> None:
    assert call("flights", "t", "--file", "x.yaml").exit_code == 0
    before = ran[0].read_text()
    result = call(*arguments, "--file", "x.yaml")
    assert (result.exit_code, ran[1:]) == (1, [])
    assert "x.yaml is there already, and keeps another table or in another way (delta /" in result.output
    assert ran[0].read_text() == before


def test_a_schema_that_is_given_is_that_of_the_file_or_refused(ran: list[Path]) -> None:
    assert call("flights", "t", "--schema", "id BIGINT, at TIMESTAMP", "--partition-by", "id").exit_code == 0
    assert call("flights", "t", "--schema", "id bigint,at  TIMESTAMP", "--partition-by", "id").exit_code == 0
    assert call("flights", "t", "--partition-by", "id").exit_code == 0
    for other, message in (
        ("id BIGINT", "there already, with another schema (`id` BIGINT, `at` TIMESTAMP): change it there"),
        ("id BIGINTT", '--schema: "BIGINTT" is not a type'),
    ):
        result = call("flights", "t", "--schema", other, "--partition-by", "id")
        assert (result.exit_code, len(ran)) == (1, 3)
        assert message in result.output


def test_a_topic_without_objects_needs_a_schema(ran: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[Any] = [GivenRecord("", None, b"5", 0, 0, 0)]
    monkeypatch.setattr(pipeline_table, "sample_of", lambda *_: records)
    result = call("flights", "t")
    assert result.exit_code == 1
    assert "no record of the topic flights is a JSON object that could tell the columns: give them by" in result.output


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_changes_of_a_database_are_a_table_of_its_rows(
    ran: list[Path], monkeypatch: pytest.MonkeyPatch, is_wrapped: bool
) -> None:
    changes: list[dict[str, Any]] = [
        {"before": None, "after": {"id": 1, "from": "JFK"}, "op": "c", "source": {"table": "flights"}},
        {"before": {"id": 1, "from": "JFK"}, "after": None, "op": "d"},
    ]
    values = [json.dumps({"schema": {}, "payload": each} if is_wrapped else each).encode() for each in changes]
    records = [GivenRecord("", None, value, 0, 0, 0) for value in [*values, None, b"5"]]
    monkeypatch.setattr(pipeline_table, "sample_of", lambda *_: records)
    result = call("flights", "t", "--debezium", "--key", "id")
    assert result.exit_code == 0, result.output
    assert "the columns, from 2 changes: id BIGINT, from STRING" in result.output
    pipeline = read_pipeline(ran[0])
    (step,), (sink,) = pipeline.steps, pipeline.sinks
    at = "payload." if is_wrapped else ""
    lines = step.sql.split("\n")
    assert lines[1].startswith(f"  coalesce({at}after.`id`, from_json(_key, '`id` BIGINT').`id`, from_json(")
    assert f".`id`, nullif({at}before.`id`, 0), if({at}op = 'd', raise_error(" in lines[1]
    assert lines[2:7] == [
        f"  {at}after.`from` AS `from`,",
        f"  {at}op = 'd' AS _deleted,",
        "  _partition,",
        "  _offset,",
        "  _timestamp",
    ]
    assert isinstance(sink, DeltaSink)
    assert (sink.from_view, sink.key, sink.rows.delete, sink.rows.newest_by) == (
        "changes",
        ("id",),
        "_deleted",
        ("_partition", "_offset", "_timestamp"),
    )
    assert call("flights", "t", "--debezium", "--key", "id").exit_code == 0
    assert "is there already" in call("flights", "t", "--key", "id").output


@pytest.mark.parametrize("key", [{"id": 1}, {"schema": {}, "payload": {"id": 1}}, 1, "Struct{id=1}", None])
def test_rows_that_are_known_by_more_than_their_records_are_told(
    ran: list[Path], monkeypatch: pytest.MonkeyPatch, key: object
) -> None:
    value = json.dumps({"before": None, "after": {"id": 1, "email": "a"}, "op": "c"}).encode()
    written = None if key is None else json.dumps(key).encode()
    monkeypatch.setattr(pipeline_table, "sample_of", lambda *_: [GivenRecord("", written, value, 0, 0, 0)])
    result = call("shop", "t", "--debezium", "--key", "id", "--key", "email")
    assert (result.exit_code, len(ran)) == (0, 1), result.output
    is_told = "warning: the key of the records has no email (it has id), so that a row which" in result.output
    assert is_told == isinstance(key, dict)
    ran[0].unlink()
    assert "warning" not in call("shop", "t", "--debezium", "--key", "id").output


OTHERWISE = (
    "  ELSE raise_error(concat('a change has an op that this file does not know: see what it does to rows, and add a "
    "line for it to the step. op ', op))"
)


def test_changes_in_avro_have_the_columns_of_their_schema_and_the_keys_of_theirs(ran: list[Path]) -> None:
    Path("envelope.avsc").write_text(ENVELOPE)
    Path("key.avsc").write_text(KEY)
    arguments = ["shop", "t", "--debezium", "--key", "id", "--schema-file", "envelope.avsc", "--confluent"]
    result = call(*arguments, "--key-schema-file", "key.avsc")
    assert result.exit_code == 0, result.output
    assert "the columns, from envelope.avsc: id INT, full_name STRING, born DATE, total DECIMAL(10, 2)" in result.output
    pipeline = read_pipeline(ran[0])
    (source,), (step,) = pipeline.sources, pipeline.steps
    assert (source.format, source.framing) == (SourceFormat.AVRO, Framing.CONFLUENT)
    assert source.key_format is not None
    assert (source.key_format.type, source.key_format.framing) == ("STRUCT<`id`: INT>", Framing.CONFLUENT)
    assert "warning" not in result.output
    lines = step.sql.split("\n")
    assert lines[1].startswith("  coalesce(after.`id`, _key.`id`, nullif(before.`id`, 0), if(op = 'd', raise_error('a ")
    assert lines[2:6] == [
        "  after.`full_name` AS `full_name`,",
        "  after.`born` AS `born`,",
        "  after.`total` AS `total`,",
        "  op = 'd' AS _deleted,",
    ]
    where = lines[lines.index("WHERE CASE") + 1 :]
    assert [line.partition(" THEN ")[0] for line in where] == [
        "  WHEN op = 'd'",
        "  WHEN op IN ('c', 'r', 'u') AND after IS NULL",
        "  WHEN op = 'u' AND (before.`id` <> after.`id`)",
        "  WHEN op IN ('c', 'r', 'u')",
        "  WHEN op = 'm'",
        "  WHEN op = 't'",
        "  WHEN nullif(op, '') IS NULL",
        OTHERWISE,
        "END",
        "",
    ]
    assert [line.partition(" THEN ")[2][:40] for line in where[:7]] == [
        "TRUE",
        "raise_error('a change that puts a row (o",
        "raise_error('an update (op u) has anothe",
        "TRUE",
        "FALSE",
        "raise_error('the database has truncated ",
        "raise_error('a record is no envelope of ",
    ]
    assert call(*arguments, "--key-schema-file", "key.avsc").exit_code == 0
    assert "is there already" in call(*arguments).output
    ran[0].unlink()
    arguments[4] = "full_name"
    told = call(*arguments, "--key-schema-file", "key.avsc").output
    assert "warning: the key of the records has no full_name (it has id)" in told


def test_changes_in_protobuf_are_known_by_the_message(ran: list[Path]) -> None:
    Path("shop.desc").write_bytes(envelope_descriptors())
    result = call("shop", "t", "--debezium", "--key", "ID", "--schema-file", "shop.desc", "--message", "air.Envelope")
    assert result.exit_code == 0, result.output
    (source,), (step,) = read_pipeline(ran[0]).sources, read_pipeline(ran[0]).steps
    assert (source.format, source.message) == (SourceFormat.PROTOBUF, "air.Envelope")
    # Keys without a format may be JSON.
    assert "coalesce(after.`id`, from_json(_key, '`id` INT').`id`, " in step.sql


def test_changes_whose_schema_has_no_rows_are_refused(ran: list[Path], tmp_path: Path) -> None:
    Path("row.avsc").write_text(json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}))
    Path("envelope.avsc").write_text(ENVELOPE)
    for file, key, told in (
        ("row.avsc", "id", "row.avsc is no envelope of Debezium: it has no after that is a record (it has id)"),
        ("envelope.avsc", "idd", "--key idd is no column of the rows in envelope.avsc; it has: id, full_name"),
    ):
        result = call("shop", "t", "--debezium", "--key", key, "--schema-file", file)
        assert (result.exit_code, ran, told in result.output) == (1, [], True), result.output
    assert not (tmp_path / "shop.table.yaml").exists()


def test_a_registry_gives_the_schemas_of_values_and_keys(ran: list[Path], tmp_path: Path, registry: str) -> None:
    value, key = (f"/subjects/shop-{part}/versions/latest" for part in ("value", "key"))
    Registry.answers |= {value: (200, {"id": 7, "schema": ENVELOPE}), key: (200, {"id": 8, "schema": KEY})}
    arguments = ["shop", "t", "--debezium", "--key", "id", "--registry", registry]
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    pipeline = read_pipeline(ran[0])
    assert pipeline.registry.url == registry
    (source,) = pipeline.sources
    assert (source.subject, source.framing) == ("shop-value", Framing.CONFLUENT)
    assert source.key_format is not None
    assert (source.key_format.subject, source.key_format.type) == ("shop-key", "STRUCT<`id`: INT>")
    assert (tmp_path / "shop.value.avsc").read_text() == ENVELOPE
    # It goes on without asking, and another registry is another pipeline.
    asked = len(Registry.asked)
    assert (call(*arguments).exit_code, len(Registry.asked)) == (0, asked)
    assert "is there already" in call(*arguments[:-1], "http://other:1").output
    # Each record a row needs no schema of the keys.
    Registry.answers |= {"/subjects/plain-value/versions/latest": (200, {"id": 9, "schema": KEY})}
    assert call("plain", "u", "--registry", registry + "/").exit_code == 0
    assert read_pipeline(ran[-1]).sources[0].key_format is None
    assert "/subjects/plain-key/versions/latest" not in Registry.asked


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((404, {}), "has no schema of shop-value: give one by --schema-file"),
        (
            (200, {"id": 7, "schemaType": "PROTOBUF", "schema": "x"}),
            "has shop-value as PROTOBUF: give a",
        ),
        ((200, ["what"]), "has shop-value as None"),
        ((200, {"id": 7, "schema": "{"}), "shop.value.avsc is not JSON"),
        ((403, {"message": "no"}), "refuses /subjects/shop-value/versions/latest: 403 Forbidden (no)"),
    ],
)
def test_what_a_registry_does_not_give_is_told(
    ran: list[Path], registry: str, answer: tuple[int, Any], told: str
) -> None:
    Registry.answers["/subjects/shop-value/versions/latest"] = answer
    result = call("shop", "t", "--debezium", "--key", "id", "--registry", registry)
    assert (result.exit_code, ran, told in result.output) == (1, [], True), result.output


def test_a_schema_that_stands_there_is_not_written_over(ran: list[Path], registry: str) -> None:
    Registry.answers["/subjects/shop-value/versions/latest"] = (200, {"id": 7, "schema": ENVELOPE})
    Path("shop.value.avsc").write_text(KEY)
    result = call("shop", "t", "--debezium", "--key", "id", "--registry", registry)
    assert (result.exit_code, ran) == (1, [])
    assert "shop.value.avsc is there with another schema" in result.output
    assert Path("shop.value.avsc").read_text() == KEY


@pytest.mark.parametrize("arguments", [[], ["--key", "_key"], ["--key", "id", "--kind", "parquet"]])
def test_changes_need_the_key_of_their_rows(ran: list[Path], arguments: list[str]) -> None:
    result = call("flights", "t", "--debezium", *arguments)
    assert (result.exit_code, ran) == (1, [])
    assert "give its columns by --key COLUMN" in result.output


def test_a_schema_is_frozen_in_a_file_which_only_gets_columns_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [VALUE]
    monkeypatch.setattr(
        pipeline_infer, "sample_of", lambda *_: [GivenRecord("", None, each, 0, 0, 0) for each in values]
    )
    path = tmp_path / "flights.ddl"

    def infer() -> Result:
        return CliRunner().invoke(commands.command, ["infer", "flights", str(path)], catch_exceptions=False)

    assert "is written, with id, carrier, at, from 1 record" in infer().output
    assert path.read_text() == "`id` BIGINT,\n`carrier` STRING,\n`at` TIMESTAMP\n"
    # Another type is none for who reads the table; a column that is gone stays.
    values[:] = [b'{"id": "text", "seats": 1}']
    assert "has more columns: seats, from 1 record" in infer().output
    assert path.read_text() == "`id` BIGINT,\n`carrier` STRING,\n`at` TIMESTAMP,\n`seats` BIGINT\n"
    assert "it is left as it is" in infer().output
    pipeline = tmp_path / "x.yaml"
    source = "{topic: flights, schema_file: flights.ddl}"
    pipeline.write_text(f"name: x\nsources: {{s: {source}}}\nsinks: [{{topic: o, from: s}}]\n")
    assert [column.name for column in read_pipeline(pipeline).sources[0].columns] == ["id", "carrier", "at", "seats"]
    pipeline.write_text(pipeline.read_text().replace("flights.ddl", "flights.ddl, schema: a INT"))
    with pytest.raises(PipelineError, match="schema and schema_file say the same"):
        read_pipeline(pipeline)
    path.write_text("nonsense")
    result = infer()
    assert (result.exit_code, path.read_text()) == (1, "nonsense")
    assert "the file that is there is no schema" in result.output
    pipeline.write_text(pipeline.read_text().replace(", schema: a INT", ""))
    with pytest.raises(PipelineError, match=r"x\.yaml:2: sources\.s: schema_file \S+flights\.ddl"):
        read_pipeline(pipeline)
    values[:] = [b"5"]
    path.unlink()
    assert "no record of the topic flights is a JSON object" in infer().output
    assert not path.exists()
