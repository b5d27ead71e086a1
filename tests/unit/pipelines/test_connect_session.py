"""Spark Connect before a session: what a run by it cannot have, which is told at its line, and who is at the server."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from barnabas.pipelines import connect_session
from barnabas.pipelines.connect_session import (
    NOTE,
    address_of,
    end_left_session,
    is_silence,
    refuse_what_connect_has_not,
    require_connect_extra,
)
from barnabas.pipelines.definition import PipelineError, PipelineUnreachableError
from barnabas.pipelines.offset_ranges import OffsetRange
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.spark_cluster import spark_cluster

OPTIONS = RunOptions("host:1", once=True)
SOURCES = 'sources: {flights: {topic: flights, schema: "id INT, carrier STRING"}}\n'
SINKS = """\
sinks:
  - {topic: copies, from: flights}
  - {parquet: copies, from: flights}
  - {console: 5, from: flights}
"""


def read(directory: Path, text: str) -> object:
    path = directory / "flights.yaml"
    path.write_text(f"name: flights\n{text}")
    return read_pipeline(path)


def test_topics_parquet_and_the_console_are_written_by_connect(tmp_path: Path) -> None:
    refuse_what_connect_has_not(read(tmp_path, SOURCES + SINKS), OPTIONS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SOURCES + SINKS + "  - {delta: lake, from: flights}\n", r":7: .*lake cannot be used through Spark Connect"),
        (
            SOURCES.replace("}}", "}, names: {topic: names, read: table, schema: 'carrier STRING'}}") + SINKS,
            "topics as tables",
        ),
        (SOURCES + SINKS + "jars: [some:jar:1]\n", "jars are the server's"),
        (SOURCES.replace("topic:", "format: avro, topic:").replace("id INT, carrier STRING", "id INT") + SINKS, "Avro"),
    ],
)
def test_what_needs_the_process_of_spark_is_refused_at_its_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(PipelineError, match=told):
        refuse_what_connect_has_not(read(tmp_path, text), OPTIONS)  # type: ignore[arg-type]


def test_a_range_is_refused(tmp_path: Path) -> None:
    options = RunOptions("host:1", once=True, offsets=OffsetRange({}, {"flights": {0: 1}}))
    with pytest.raises(PipelineError, match="ranges of offsets"):
        refuse_what_connect_has_not(read(tmp_path, SOURCES + SINKS), options)  # type: ignore[arg-type]


def test_addresses() -> None:
    assert address_of("sc://host") == ("host", 15002)
    assert address_of("sc://host:1/;use_ssl=true") == ("host", 1)
    assert address_of("sc://[::1]:7") == ("::1", 7)


def test_says_what_to_install() -> None:
    with pytest.raises(PipelineError, match=r"pip install 'barnabas\[connect\]'"):
        require_connect_extra(lambda package: package != "grpc")


def test_nobody_at_the_server_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect_session, "require_connect_extra", lambda: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        master = f"sc://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PipelineUnreachableError, match=f"nobody answers at {master}"):
            end_left_session(tmp_path, spark_cluster(master), print)


def test_a_run_at_a_server_that_is_silent_now_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it left there waits in vain, and what it writes has names of its own."""
    monkeypatch.setattr(connect_session, "require_connect_extra", lambda: None)
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        left = f"sc://127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / NOTE).write_text(json.dumps({"master": left, "session": "some"}))
        end_left_session(tmp_path, spark_cluster(f"sc://127.0.0.1:{server.getsockname()[1]}"), said.append)
    assert said == [f"warning: nobody answers at {left}, where the last run was: what it left there waits in vain"]
    assert not (tmp_path / NOTE).exists()


def test_what_says_that_a_server_is_gone() -> None:
    assert is_silence(ValueError("[INVALID_HANDLE.SESSION_NOT_FOUND] ..."))
    assert is_silence(type("RetriesExceeded", (Exception,), {})())
    assert not is_silence(ValueError("[TABLE_OR_VIEW_NOT_FOUND]"))
