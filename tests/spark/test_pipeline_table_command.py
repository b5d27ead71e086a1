"""`barnabas pipeline table` as users run it: real brokers, real Spark, and a `kill -9` as soon as a commit is there, in
a table at a URL, which no lock keeps.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyarrow import parquet

from barnabas.cli.pipeline_table import SourceOptions, written_file
from barnabas.testing import KafkaCluster
from tests.spark.pipeline_process import java_processes
from tests.spark.pipeline_runs import mount
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.timeout(1_200),
    pytest.mark.night("three whole runs, 80 s of processor time; found nothing yet: test_pipeline_tables by day"),
]

ROWS = 2_000
URL = "viewfs://numbers/tables/table"
RUN_SECONDS_MAX = 400.0


@pytest.fixture
def servers() -> Iterator[str]:
    with KafkaCluster() as cluster:
        cluster.create_topic("numbers", partitions=3)
        yield cluster.bootstrap_servers


def write(servers: str, records: Sequence[tuple[int, dict[str, Any] | None]]) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for key, value in records:
        producer.produce("numbers", None if value is None else json.dumps(value), key=str(key))
        producer.poll(0)
    assert producer.flush(60) == 0


def command(directory: Path, servers: str, *arguments: str) -> list[str]:
    table = ["pipeline", "table", "numbers", URL, "--file", str(directory / "numbers.yaml")]
    return [sys.executable, "-P", "-m", "barnabas.cli", *table, "--bootstrap-server", servers, *arguments]


def run(directory: Path, servers: str, *arguments: str) -> str:
    done = subprocess.run(
        command(directory, servers, "--once", *arguments),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def rows_of(table: Path) -> list[dict[str, Any]]:
    """The rows of a Delta table, by its log: what was added and is not removed. It is short enough to have no
    checkpoint.
    """
    files: dict[str, None] = {}
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "remove" in action:
                files.pop(action["remove"]["path"], None)
            if "add" in action:
                assert "deletionVector" not in action["add"]
                files[action["add"]["path"]] = None
    return [row for path in files for row in parquet.ParquetFile(table / path).read().to_pylist()]


def test_a_compacted_topic_is_a_table_although_spark_is_killed_at_its_commit(servers: str, tmp_path: Path) -> None:
    write(servers, [(number % 500, {"number": number, "text": "x"}) for number in range(ROWS)])
    # What the command would write, with what the file system needs.
    file = written_file("numbers", URL, "delta", ["_key"], [], SourceOptions(), tmp_path / "numbers.yaml", servers)
    assert "number BIGINT, text STRING" in file.read_text()
    mounted = mount("numbers", tmp_path).replace("{{", "{").replace("}}", "}")
    file.write_text(file.read_text() + mounted)
    run(tmp_path, servers, "--key", "_key")
    expected = {str(key): ROWS - 500 + key for key in range(500)}
    assert {row["_key"]: row["number"] for row in rows_of(tmp_path / "table")} == expected
    assert len(rows_of(tmp_path / "table")) == 500

    write(
        servers, [*((key, None) for key in range(10)), *((key, {"number": -key, "text": "y"}) for key in range(5, 20))]
    )
    # The table was made, taken, and got a batch; the next run takes it.
    commit = tmp_path / "table" / "_delta_log" / f"{4:020}.json"
    assert not commit.with_name(f"{3:020}.json").exists()
    with subprocess.Popen(command(tmp_path, servers, "--key", "_key"), stderr=subprocess.DEVNULL) as running:
        try:
            wait_until(commit.exists, "the commit of the second batch", RUN_SECONDS_MAX)
        finally:
            running.kill()
    wait_until(lambda: java_processes(tmp_path) == [], "Java is gone with the process that started it")
    run(tmp_path, servers, "--key", "_key")
    for key in range(20):
        expected.pop(str(key), None)
    expected |= {str(key): -key for key in range(5, 20)}
    found = rows_of(tmp_path / "table")
    assert {row["_key"]: row["number"] for row in found} == expected
    assert len(found) == len(expected)
