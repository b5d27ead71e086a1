"""A schema registry, as Confluent's answers: what is learned of it, and what a run hears when it cannot be."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from google.protobuf import descriptor_pb2, text_format

from barnabas.pipelines import schema_registry
from barnabas.pipelines.definition import Pipeline, PipelineError, PipelineUnreachableError, RunStopped, TopicSink
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.schema_registry import ask_registry, learn_unknown, register_schemas
from barnabas.pipelines.writer_schemas import (
    REFERENCED_CHARACTERS_MAX,
    REFERENCED_MAX,
    UNKNOWN_SCHEMA,
    Referenced,
    WriterSchemas,
)
from tests.unit.pipelines.test_protobuf_messages import descriptors

ONE = json.dumps({"type": "record", "name": "F", "fields": [{"name": "id", "type": "int"}]})
TWO = json.dumps(
    {"type": "record", "name": "F", "fields": [*json.loads(ONE)["fields"], {"name": "b", "type": "int", "default": 0}]}
)
COMPACT = [json.dumps(json.loads(each), separators=(",", ":")) for each in (ONE, TWO)]
FILE = """\
name: x
registry: {{url: "http://127.0.0.1:{port}", username: alice, password: "${{env:REGISTRY_PASSWORD}}"}}
sources:
  s: {{topic: flights, format: avro, framing: confluent, schema_file: f.avsc}}
  other: {{topic: o, format: avro, framing: confluent, schema_file: f.avsc, subject: strange/one}}
sinks: [{{topic: out, from: s}}]
"""


class Registry(BaseHTTPRequestHandler):
    """Answers by path: a status and JSON, or bytes as they are."""

    answers: ClassVar[dict[str, tuple[int, Any]]] = {}
    asked: ClassVar[list[str]] = []
    logins: ClassVar[set[str | None]] = set()
    posted: ClassVar[list[tuple[str, Any, str]]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.logins.add(self.headers["Authorization"])
        status, content = self.answers.get(self.path, (404, {"error_code": 40401, "message": "not found"}))
        if isinstance(content, list) and content and isinstance(content[0], tuple):
            status, content = content.pop(0) if len(content) > 1 else content[0]
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.posted.append((self.path, given, self.headers["Content-Type"]))
        status, content = self.answers.get(f"POST {self.path}", (404, {}))
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    base = "/subjects/flights-value/versions"
    Registry.answers = {
        base: (200, [1, 3]),
        f"{base}/1": (200, {"subject": "flights-value", "id": 7, "version": 1, "schema": ONE}),
        f"{base}/3": (200, {"subject": "flights-value", "id": 9, "version": 3, "schema": TWO}),
        f"{base}/latest": (200, {"subject": "flights-value", "id": 9, "version": 3, "schema": TWO}),
        "/schemas/ids/11": (200, {"schema": TWO}),
        "/schemas/ids/12": (200, {"schema": "message M {}", "schemaType": "PROTOBUF"}),
        "/schemas/ids/13": (200, {"schema": ONE, "references": [{"name": "x"}]}),
    }
    Registry.asked, Registry.logins, Registry.posted = [], set(), []
    monkeypatch.setenv("REGISTRY_PASSWORD", "hush")
    monkeypatch.setattr(schema_registry, "_PAUSE_SECONDS", 0.0)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def pipeline(directory: Path, port: int) -> Pipeline:
    (directory / "f.avsc").write_text(TWO)
    path = directory / "x.yaml"
    path.write_text(FILE.format(port=port))
    return read_pipeline(path)


def test_all_schemas_of_a_subject_are_learned_and_others_when_they_are_met(
    registry: ThreadingHTTPServer, tmp_path: Path
) -> None:
    made = pipeline(tmp_path, registry.server_port)
    source, other = made.sources
    assert source.writers is not None
    assert not source.writers.was_asked
    ask_registry(made)
    assert source.writers.by_id == {7: COMPACT[0], 9: COMPACT[1]}
    # Of a subject that is not there everything is learned when it is met.
    assert (other.writers is not None and other.writers.was_asked and other.writers.by_id) == {}
    assert "/subjects/strange%2Fone/versions" in Registry.asked
    assert Registry.logins == {"Basic " + base64.b64encode(b"alice:hush").decode()}
    assert "hush" not in repr(made)
    assert not source.writers.is_careful
    for number, expected in ((11, COMPACT[1]), (12, None), (13, None), (14, None)):
        assert learn_unknown(made, f"[USER_RAISED_EXCEPTION] {UNKNOWN_SCHEMA}s:{number} SQLSTATE: P0001")
        assert source.writers.by_id.get(number) == expected
        assert source.writers.is_settled(number)
        # What the registry does not have is garbage, and a query does not end by the next of that kind.
        assert source.writers.is_careful is (number > 11)
    before = list(Registry.asked)
    # A failure that names what is known is one of its own: a record's bytes may have these words.
    for number in (7, 11, 14):
        assert not learn_unknown(made, f"barnabas-bad-record: {UNKNOWN_SCHEMA}s:{number}")
    assert Registry.asked == before
    assert not learn_unknown(made, "a broker is gone")


def test_a_registry_that_hangs_over_or_refuses_is_told_in_one_line(
    registry: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pipeline(tmp_path, registry.server_port)
    base = "/subjects/flights-value/versions"
    Registry.answers[base] = (0, [(500, {}), (503, {}), (200, [])])
    ask_registry(made)
    Registry.answers[base] = (500, {"error_code": 50001})
    with pytest.raises(PipelineUnreachableError, match=r"x\.yaml:2: the schema registry http://\S+ does not .*500 Int"):
        ask_registry(made)
    Registry.answers[base] = (401, {})
    with pytest.raises(PipelineError, match=r"x\.yaml:2: .* refuses /subjects/flights-value/versions: 401") as error:
        ask_registry(made)
    assert "hush" not in str(error.value)
    Registry.answers[base] = (200, b"<html>")
    with pytest.raises(PipelineError, match="does not answer with JSON"):
        ask_registry(made)
    Registry.answers[base] = (200, list(range(1_001)))
    with pytest.raises(PipelineError, match="more than 1000 versions"):
        ask_registry(made)
    Registry.answers[base] = (200, b" " * (2 * 1024 * 1024 + 1))
    with pytest.raises(PipelineError, match="answers with more than"):
        ask_registry(made)
    registry.server_close()
    monkeypatch.setattr(schema_registry, "ANSWER_SECONDS_MAX", 0.2)
    with pytest.raises(PipelineUnreachableError, match="does not answer"):
        ask_registry(made)


def test_the_schema_of_a_topic_that_is_written_is_registered_once(
    registry: ThreadingHTTPServer, tmp_path: Path
) -> None:
    (tmp_path / "f.avsc").write_text(TWO)
    sink = "topic: out, from: s, format: avro, schema_file: f.avsc, framing: confluent"
    path = tmp_path / "x.yaml"
    path.write_text(FILE.replace("topic: out, from: s", sink).format(port=registry.server_port))
    made = read_pipeline(path)
    (written,) = made.sinks
    assert isinstance(written, TopicSink)
    assert written.registered is not None
    Registry.answers["POST /subjects/out-value/versions"] = (409, {"error_code": 409, "message": "incompatible: b"})
    with pytest.raises(PipelineError, match=r"x\.yaml:2: .* refuses .*: 409 Conflict \(incompatible: b\)"):
        register_schemas(made)
    Registry.answers["POST /subjects/out-value/versions"] = (200, {"id": 70_000})
    for _ in range(2):
        register_schemas(made)
    assert Registry.posted[1:] == [
        ("/subjects/out-value/versions", {"schema": COMPACT[1]}, "application/vnd.schemaregistry.v1+json")
    ]
    assert written.registered.schema_id == 70_000


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("http://127", "http://bob@127", "without a login"),
        ("${{env:REGISTRY_PASSWORD}}", "hush", "password is a secret"),
        ("username: alice, ", "", "belong together"),
        ("from: s", "from: s, format: csv", "a topic is written as json, avro or protobuf, not csv"),
        ("from: s", "from: s, schema_id: 5", "schema_id is for `framing: confluent`"),
        (
            "from: s",
            "from: s, format: protobuf, schema_file: f.avsc, message: F, framing: confluent",
            "is no descriptor set",
        ),
        ("confluent, schema_file: f.avsc, subject", "none, schema_file: f.avsc, subject", "subject is for"),
    ],
)
def test_what_cannot_be_is_told_when_it_is_read(tmp_path: Path, old: str, new: str, message: str) -> None:
    (tmp_path / "f.avsc").write_text(TWO)
    assert old in FILE
    (tmp_path / "x.yaml").write_text(FILE.replace(old, new).format(port=1))
    with pytest.raises(PipelineError, match=message):
        read_pipeline(tmp_path / "x.yaml")


PROTO = """\
name: x
registry: {{url: "http://127.0.0.1:{port}"}}
sources:
  s:
    topic: flights
    format: protobuf
    framing: confluent
    schema_file: air.desc
    message: air.Flight
    other_messages: drop
    key_format: {{format: avro, framing: confluent, schema_file: key.avsc}}
sinks:
  - topic: out
    from: s
    key: id
    format: protobuf
    framing: confluent
    schema_file: air.desc
    message: air.Flight
    key_format: {{format: avro, framing: confluent, schema_file: key.avsc}}
"""


def proto_pipeline(directory: Path, port: int, text: str = PROTO, content: bytes = b"") -> Pipeline:
    (directory / "air.desc").write_bytes(content or descriptors())
    (directory / "key.avsc").write_text('"int"')
    path = directory / "p.yaml"
    path.write_text(text.format(port=port))
    return read_pipeline(path)


def test_schemas_of_protocol_buffers_are_known_by_the_places_of_the_message_and_keys_by_their_own(
    registry: ThreadingHTTPServer, tmp_path: Path
) -> None:
    made = proto_pipeline(tmp_path, registry.server_port)
    (source,) = made.sources
    text = 'syntax = "proto3"; package air; import "x.proto"; message Head {} message Flight { int32 id = 1; }'
    proto = {"schemaType": "PROTOBUF", "references": [{"name": "x.proto", "subject": "x", "version": 1}]}
    base = "/subjects/flights-value/versions"
    Registry.answers[base] = (200, [1, 3])
    Registry.answers[f"{base}/1"] = (200, {"id": 7, "schema": text, **proto})
    Registry.answers[f"{base}/3"] = (200, {"id": 9, "schema": "message Elsewhere {}", **proto})
    Registry.answers["/subjects/flights-key/versions"] = (200, [1, 2])
    Registry.answers["/subjects/flights-key/versions/1"] = (200, {"id": 3, "schema": '"int"'})
    Registry.answers["/subjects/flights-key/versions/2"] = (200, {"id": 4, "schema": "message K {}", **proto})
    ask_registry(made)
    assert source.key_format is not None
    assert source.writers is not None
    assert source.key_format.writers is not None
    assert source.writers.by_id == {7: "[[1]]", 9: "[]"}
    assert source.key_format.writers.by_id == {3: '"int"'}
    # A version that nobody can read is not yet a record that has it.
    assert not source.key_format.writers.is_careful
    # What the text imports is not asked for: a circle of references leads nowhere.
    assert not any("x" in asked.split("/")[2:3] for asked in Registry.asked)
    Registry.answers["/schemas/ids/5"] = (200, {"schema": '"long"'})
    assert learn_unknown(made, f"{UNKNOWN_SCHEMA}s.key:5")
    assert source.key_format.writers.by_id == {3: '"int"', 5: '"long"'}
    assert not learn_unknown(made, f"{UNKNOWN_SCHEMA}t.key:5")
    for number, schema in ((21, "message A {"), (22, "{" * 100_000), (23, "AAAA"), (24, "")):
        Registry.answers[f"/schemas/ids/{number}"] = (200, {"schema": schema, "schemaType": "PROTOBUF"})
        assert learn_unknown(made, f"{UNKNOWN_SCHEMA}s:{number}")
        assert number not in source.writers.by_id


def test_a_schema_of_avro_that_names_types_of_others_is_read_with_those(
    registry: ThreadingHTTPServer, tmp_path: Path
) -> None:
    made = pipeline(tmp_path, registry.server_port)
    source, other = made.sources

    def referring(name: str, version: object = 2) -> list[dict[str, object]]:
        return [{"name": name, "subject": f"of/{name}", "version": version}]

    def schema(name: str, *types: object) -> str:
        fields = [{"name": f"c{number}", "type": kind} for number, kind in enumerate(types)]
        return json.dumps({"type": "record", "name": name, "fields": fields})

    def answer(name: str, text: str, **more: object) -> None:
        Registry.answers[f"/subjects/of%2F{name}/versions/2"] = (200, {"id": 1, "schema": text, **more})

    base = "/subjects/flights-value/versions"
    Registry.answers[base] = (200, [1, 2])
    Registry.answers[f"{base}/1"] = (200, {"id": 7, "schema": schema("F", "B"), "references": referring("B")})
    Registry.answers[f"{base}/2"] = (200, {"id": 8, "schema": schema("F", "B", "int"), "references": referring("B")})
    answer("B", schema("B", "C"), references=referring("C"))
    answer("C", schema("C", "long"), references=referring("B"))  # a circle
    ask_registry(made)
    assert source.writers is not None
    inner = json.loads(source.writers.by_id[7])["fields"][0]["type"]
    assert (inner["name"], inner["fields"][0]["type"]["fields"][0]["type"]) == ("B", "long")
    assert len(json.loads(source.writers.by_id[8])["fields"]) == 2
    assert len([path for path in Registry.asked if "/of%2F" in path]) == 2, "each once"
    # What is none, is gone, or is too much makes records that do not fit; nobody asks without end.
    references = [{"name": f"t{number}", "subject": "of/C", "version": number} for number in range(1_000)]
    for number, named in enumerate(([{"name": "x"}], 7, referring("gone"), referring("B", "latest"), references), 20):
        Registry.answers[f"/schemas/ids/{number}"] = (200, {"schema": schema("F", "B"), "references": named})
        assert learn_unknown(made, f"{UNKNOWN_SCHEMA}s:{number}")
        assert number not in source.writers.by_id
        source.writers.is_careful = False
    assert len(Registry.asked) < 20 + schema_registry.REFERENCES_MAX
    asked = len(Registry.asked)
    for number, (subject, version) in enumerate(
        (("\ud800", 1), ("", 1), ("x" * 5_000, 1), ("B", 0), ("B", 10**12)), 40
    ):
        named = [{"name": "x", "subject": subject, "version": version}]
        Registry.answers[f"/schemas/ids/{number}"] = (200, {"schema": schema("F", "B"), "references": named})
        assert learn_unknown(made, f"{UNKNOWN_SCHEMA}s:{number}")
        assert number not in source.writers.by_id
        source.writers.is_careful = False
    assert len(Registry.asked) == asked + 5, "none of these is asked for"
    # While a registry does not answer, nobody says that it has none.
    Registry.answers["/subjects/of%2FB/versions/2"] = (503, {})
    Registry.answers["/schemas/ids/30"] = (200, {"schema": schema("F", "B"), "references": referring("B")})
    with pytest.raises(PipelineUnreachableError):
        learn_unknown(made, f"{UNKNOWN_SCHEMA}other:30")
    assert other.writers is not None
    assert not other.writers.is_settled(30)


@pytest.mark.parametrize(
    "text",
    [
        '{"type": ["null"]}',
        '{"type": {"type": "record", "name": "a", "fields": [{"name": "x", "type": "int"}]}}',
        '{"type": "record", "name": "a", "fields": [{"name": "\\ud800", "type": "int"}]}',
    ],
)
def test_a_schema_of_another_shape_makes_records_that_do_not_fit(
    registry: ThreadingHTTPServer, tmp_path: Path, text: str
) -> None:
    made = pipeline(tmp_path, registry.server_port)
    Registry.answers["/schemas/ids/14"] = (200, {"schema": text})
    assert learn_unknown(made, f"{UNKNOWN_SCHEMA}s:14")
    assert made.sources[0].writers is not None
    assert 14 not in made.sources[0].writers.by_id


def test_no_more_schemas_are_asked_for_than_one_may_refer_to_by_others(
    registry: ThreadingHTTPServer, tmp_path: Path
) -> None:
    made, most = pipeline(tmp_path, registry.server_port), schema_registry.REFERENCES_MAX
    for number in range(2 * most):  # each names the next, and itself
        named = [{"name": "x", "subject": f"T{each}", "version": 1} for each in (number, number + 1)]
        text = json.dumps({"type": "enum", "name": f"T{number}", "symbols": ["A"]})
        Registry.answers[f"/subjects/T{number}/versions/1"] = (200, {"schema": text, "references": named})
    first = [{"name": "x", "subject": "T0", "version": 1}]
    Registry.answers["/schemas/ids/14"] = (200, {"schema": ONE, "references": first})
    assert learn_unknown(made, f"{UNKNOWN_SCHEMA}s:14")
    assert made.sources[0].writers is not None
    assert 14 not in made.sources[0].writers.by_id
    assert len(Registry.asked) == 1 + most


def test_what_is_kept_of_others_is_bounded_by_its_length() -> None:
    writers, text = WriterSchemas(), "x" * (REFERENCED_CHARACTERS_MAX // 4)
    for number in range(20):
        writers.keep_referenced(("s", number), Referenced(text, ()))
    kept = [number for number in range(20) if writers.referenced_at(("s", number)) is not None]
    assert kept == [16, 17, 18, 19]
    for number in range(20, 20 + 2 * REFERENCED_MAX):
        writers.keep_referenced(("s", number), Referenced(None, None))
    assert [writers.referenced_at(("s", number)) is None for number in (19, 219, 220)] == [True, True, False]
    writers.keep_referenced(("s", 999), Referenced(text, ()))
    assert writers.referenced_at(("s", 998)) is None
    assert writers.referenced_at(("s", 999)) is not None


def test_a_run_that_is_told_to_stop_asks_for_no_more_schemas_that_one_refers_to(
    registry: ThreadingHTTPServer, tmp_path: Path
) -> None:
    made = pipeline(tmp_path, registry.server_port)
    base = "/subjects/flights-value/versions"
    references = [{"name": f"T{number}", "subject": f"T{number}", "version": 1} for number in range(40)]
    for number in range(40):
        text = json.dumps({"type": "enum", "name": f"T{number}", "symbols": ["A"]})
        Registry.answers[f"/subjects/T{number}/versions/1"] = (200, {"schema": text})
    Registry.answers[f"{base}/1"] = (200, {"id": 7, "schema": ONE, "references": references})

    def refuse() -> None:
        if any("/T1/" in asked for asked in Registry.asked):
            raise RunStopped

    with pytest.raises(RunStopped):
        ask_registry(made, refuse)
    assert len(Registry.asked) == 4


def test_a_run_that_is_told_to_stop_asks_for_no_more_versions(registry: ThreadingHTTPServer, tmp_path: Path) -> None:
    made = pipeline(tmp_path, registry.server_port)

    def refuse() -> None:
        if any("/versions/" in asked for asked in Registry.asked):
            raise RunStopped

    with pytest.raises(RunStopped):
        ask_registry(made, refuse)
    assert len([asked for asked in Registry.asked if "/versions/" in asked]) == 1


def test_a_schema_of_protocol_buffers_is_registered_behind_the_files_that_it_imports(
    registry: ThreadingHTTPServer, tmp_path: Path
) -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors())
    text_format.Parse('name: "in/x.proto" package: "x" message_type { name: "X" }', files.file.add())
    importing = 'name: "y.proto" dependency: "in/x.proto" dependency: "google/protobuf/timestamp.proto"'
    text_format.Parse(
        f'{importing} message_type {{ name: "Y" field {{ name: "id" number: 1 type: TYPE_INT32 }} }}', files.file.add()
    )
    text = PROTO.replace("message: air.Flight\n    key_format", "message: Y\n    key_format", 2)
    made = proto_pipeline(tmp_path, registry.server_port, text, files.SerializeToString())
    (sink,) = made.sinks
    assert isinstance(sink, TopicSink)
    x, main = "/subjects/in%2Fx.proto", "/subjects/out-value/versions"
    Registry.answers[f"POST {x}/versions"] = (200, {"id": 40})
    Registry.answers[f"POST {x}"] = (200, {"id": 40, "version": 3})
    Registry.answers[f"POST {main}"] = (200, {"id": 41})
    Registry.answers["POST /subjects/out-key/versions"] = (200, {"id": 42})
    for _ in range(2):
        register_schemas(made)
    assert [path for path, _, _ in Registry.posted] == [f"{x}/versions", x, main, "/subjects/out-key/versions"]
    given = Registry.posted[2][1]
    assert given["schemaType"] == "PROTOBUF"
    assert given["references"] == [{"name": "in/x.proto", "subject": "in/x.proto", "version": 3}]
    assert descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(given["schema"])).name == "y.proto"
    assert Registry.posted[3][1] == {"schema": '"int"'}
    assert sink.registered is not None
    assert sink.key_format is not None
    assert sink.key_format.registered is not None
    assert (sink.registered.schema_id, sink.key_format.registered.schema_id) == (41, 42)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "    other_messages: drop\n",
            "    other_messages: keep\n",
            'other_messages "keep" is not known; there is: refuse, drop',
        ),
        (
            "    framing: confluent\n    schema_file: air.desc\n    message: air.Flight\n    other",
            "    schema_file: air.desc\n    message: air.Flight\n    other",
            "other_messages is for `framing: confluent`",
        ),
        (
            "{{format: avro, framing",
            "{{format: json, framing",
            "a key has the format avro or protobuf, not json: without `key_format` a key is text",
        ),
        ("    key: id\n", "", "key_format is for topics with a `key`"),
        (
            "    key: id\n",
            "    key: [id, carrier]\n",
            r"the key's schema is one value \(INT\), and `key` has 2 columns",
        ),
        (
            "avro, framing: confluent, schema_file: key.avsc",
            "avro, framing: confluent, schema_file: none.avsc",
            "does not exist: it is the .avsc",
        ),
        (
            "avro, framing: confluent, schema_file: key.avsc",
            "avro, subject: x, schema_file: key.avsc",
            "subject is for `framing",
        ),
        (
            "avro, framing: confluent, schema_file: key.avsc",
            "protobuf, message: air.Nothing, schema_file: air.desc",
            "has no message air.Nothing",
        ),
        (
            'registry: {{url: "http://127.0.0.1:{port}"}}\n',
            "",
            "schema_id, the id that stands before each record, is missing; or name a `registry`",
        ),
    ],
)
def test_what_cannot_be_of_messages_and_keys_is_told_when_it_is_read(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in PROTO
    with pytest.raises(PipelineError, match=message):
        proto_pipeline(tmp_path, 1, PROTO.replace(old, new))


class Elsewhere(BaseHTTPRequestHandler):
    """Sends all to another place, where there is one; else answers drop by drop. What is not a subject is no list."""

    place: ClassVar[str] = ""
    logins: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.logins.append(self.headers["Authorization"])
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer()

    def _answer(self) -> None:
        is_sent = self.place and self.path.startswith("/subjects")
        self.send_response(302 if is_sent else 200)
        self.send_header("Location", self.place)
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(0 if self.place else 100):
                self.wfile.write(b" ")
                time.sleep(0.05)
            self.wfile.write(b'["v1"]')

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def elsewhere() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    Elsewhere.logins, Elsewhere.place = [], ""
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_login_is_not_given_to_whomever_a_registry_sends_to(
    registry: ThreadingHTTPServer, elsewhere: ThreadingHTTPServer, tmp_path: Path
) -> None:
    made = pipeline(tmp_path, elsewhere.server_port)
    Elsewhere.place = f"http://127.0.0.1:{registry.server_port}/subjects/flights-value/versions?token=hush"
    with pytest.raises(
        PipelineError, match=r"sends /subj\S+ to another place: http://127.0.0.1:\d+/\S+; name"
    ) as error:
        ask_registry(made)
    assert "hush" not in str(error.value)
    assert Registry.asked == []
    # Other paths of the same host are its own matter.
    Elsewhere.place = "/elsewhere"
    with pytest.raises(PipelineError, match="none that are a list of numbers"):
        ask_registry(made)
    assert len(Elsewhere.logins) == 3
    assert None not in Elsewhere.logins
    # What is to be registered would be asked for there, and not given.
    with pytest.raises(PipelineError, match="sends /subjects/x/versions to another place"):
        schema_registry._get(made, "/subjects/x/versions", {"schema": ONE})


def test_an_answer_that_comes_drop_by_drop_is_none(
    elsewhere: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "hush")
    monkeypatch.setattr(schema_registry, "ANSWER_SECONDS_MAX", 0.2)
    monkeypatch.setattr(schema_registry, "_PAUSE_SECONDS", 0.0)
    with pytest.raises(PipelineUnreachableError, match="timed out"):
        ask_registry(pipeline(tmp_path, elsewhere.server_port))
    assert len(Elsewhere.logins) == 3


@pytest.mark.parametrize(
    ("path", "answer", "message"),
    [
        ("", {"versions": [1]}, "none that are a list of numbers"),
        ("", ["1/../../x"], "none that are a list of numbers"),
        ("", b"[" * 100_000, "does not answer with JSON"),
        ("/1", {"schema": ONE}, "gives version 1 of flights-value no id"),
        ("/1", [7], "gives version 1 of flights-value no id"),
        ("/1", {"schema": ONE, "id": "7"}, "gives version 1 of flights-value no id"),
    ],
)
def test_answers_of_another_form_are_told_in_one_line(
    registry: ThreadingHTTPServer, tmp_path: Path, path: str, answer: Any, message: str
) -> None:
    Registry.answers[f"/subjects/flights-value/versions{path}"] = (200, answer)
    with pytest.raises(PipelineError, match=message):
        ask_registry(pipeline(tmp_path, registry.server_port))
