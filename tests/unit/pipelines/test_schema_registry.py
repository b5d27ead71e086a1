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

from barnabas.pipelines import schema_registry
from barnabas.pipelines.definition import Pipeline, PipelineError, PipelineUnreachableError, TopicSink
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.schema_registry import ask_registry, learn_unknown, register_schemas
from barnabas.pipelines.writer_schemas import UNKNOWN_SCHEMA

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
    for number, expected in ((11, COMPACT[1]), (12, None), (13, None), (14, None)):
        assert learn_unknown(made, f"[USER_RAISED_EXCEPTION] {UNKNOWN_SCHEMA}s:{number} SQLSTATE: P0001")
        assert source.writers.by_id[number] == expected
    before = list(Registry.asked)
    assert learn_unknown(made, f"{UNKNOWN_SCHEMA}s:14")
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
            "schema_id, the id that stands before each record, is missing$",
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
