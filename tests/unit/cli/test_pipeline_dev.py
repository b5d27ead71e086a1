"""`barnabas pipeline dev`: its samples, and what is shown when a file changes. Spark is played by the test."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner

from barnabas.cli.connection import ExitStatus, ask_cluster
from barnabas.cli.pipeline import command
from barnabas.cli.pipeline_dev import DevPlan, develop, sample
from barnabas.pipelines import connector, dev_session, java, session
from barnabas.pipelines.definition import Pipeline, PipelineError
from barnabas.pipelines.dev_session import Look, ViewRows
from barnabas.testing import KafkaCluster
from tests.unit.pipelines.pipeline_files import FLIGHTS, flights

TESTS = "tests: [{name: x, given: {flights: [{_value: a}, {_value: b}], airlines: [{_value: c}]}, error: x}]\n"


class FakeSession:
    """Keeps what it is given; each look is of one row."""

    kept: dict[str, list[bytes | None]]

    def __init__(self, *_: object) -> None:
        FakeSession.kept = {}
        self.looks = 0

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self.kept)

    def keep(self, topic: str, records: Any) -> None:
        self.kept[topic] = [record.value for record in records]

    def look(self, pipeline: Pipeline, views: tuple[str, ...], rows_max: int) -> Look:
        self.looks += 1
        if pipeline.name == "broken":
            raise PipelineError("Spark does not like it")
        self.checked = pipeline.name
        row = {"a": pipeline.name, "b": [1, None]}
        return Look(tuple(ViewRows(view, ("a", "b"), (row,), rows_max == 1) for view in views), {"flights": 2}, 0.5)

    def check(self, pipeline: Pipeline) -> None:
        assert self.checked == pipeline.name
        if pipeline.name == "late":
            raise PipelineError("no stream can do that")


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def no_session(_options: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(session, "spark_session", no_session)
    monkeypatch.setattr(dev_session, "DevSession", FakeSession)
    monkeypatch.setattr(java, "find_java", lambda: None)
    monkeypatch.setattr(connector, "jars_without_brokers", lambda *_: ())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "delays.test.yaml").write_text(TESTS)
    return flights(tmp_path)


def test_shows_the_rows_of_what_sinks_read_and_of_steps_that_are_named(path: Path) -> None:
    result = CliRunner().invoke(command, ["dev", str(path), "--from-tests", "--once", "--step", "NAMED"])
    assert result.exit_code == ExitStatus.DONE, result.stderr
    assert FakeSession.kept == {"flights": [b"a", b"b"], "airlines": [b"c"]}
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["by_hour", "(topic):", "1", "row"],
        ["a", "b"],
        ["delays", "[1,", "null]"],
        ["named:", "1", "row"],
        ["a", "b"],
        ["delays", "[1,", "null]"],
        "flights: 2 records of the sample do not fit the schema".split(),
        ["in", "0.5", "s"],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--step", "none"), '"none" (--step) is neither a step nor a source'), (("--records", "0"), "--records")],
)
def test_what_is_wrong_is_said_before_spark_starts(path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(command, ["dev", str(path), "--from-tests", *arguments])
    assert result.exit_code != ExitStatus.DONE
    assert message in result.stderr


def test_each_version_of_the_file_is_shown_and_a_fault_in_one_ends_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = iter(("name: late", "name: broken", "name: [", "name: better"))
    waits = iter(range(100))

    def edit(_seconds: float) -> None:
        if next(waits) % 2:
            return  # nothing changed
        version = next(versions, None)
        if version is None:
            raise KeyboardInterrupt
        path.unlink()
        path.write_text(FLIGHTS.replace("name: delays", version))

    monkeypatch.setattr(time, "sleep", edit)
    with pytest.raises(KeyboardInterrupt):
        develop(DevPlan(path, "", 100, 20, from_tests=True))
    shown = capsys.readouterr().out.split(f"--- {path}\n")[1:]
    assert [each.splitlines()[-1] for each in shown if each.strip()] == [
        "in 0.5 s",
        "no stream can do that",
        "Spark does not like it",
        shown[3].strip(),
        "in 0.5 s",
    ]
    assert "this is not YAML" in shown[3]
    assert "better" in shown[4]


def test_samples_are_the_newest_of_each_partition() -> None:
    with KafkaCluster() as cluster:
        topic = cluster.create_topic(partitions=2)
        empty = cluster.create_topic()
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
        for number in range(20):
            producer.produce(topic, str(number).encode(), f"k{number}".encode(), partition=number % 2)
        assert producer.flush(30) == 0

        async def read(client: Any) -> Any:
            return await sample(client, topic, 5), await sample(client, empty, 5), await sample(client, topic, 1000)

        few, none, all_of_it = ask_cluster(cluster.bootstrap_servers, read)
    assert [(record.partition, record.offset, record.value) for record in few] == [
        *((0, 7, b"14"), (0, 8, b"16"), (0, 9, b"18")),
        *((1, 7, b"15"), (1, 8, b"17"), (1, 9, b"19")),
    ]
    assert few[0].key == b"k14"
    assert none == []
    assert len(all_of_it) == 20
