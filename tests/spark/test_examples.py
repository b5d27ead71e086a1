"""The worked examples of docs/examples, on three days of real flights: one cluster and one Spark session for all.

What is expected is counted from the records, without Spark.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from pyarrow import dataset

from barnabas.pipelines.connector import jars_of
from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.java import find_java
from barnabas.pipelines.progress import Progress, RunSummary
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.runner import run_pipeline_in
from barnabas.pipelines.session import SparkOptions, spark_session
from barnabas.pipelines.sinks import settings_of
from barnabas.testing import KafkaCluster
from examples.load import Loaded, load, records
from tests.spark.test_pipeline_table_command import rows_of

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DAYS = 3
Row = dict[str, Any]


@dataclass
class Told:
    """What a run says."""

    lines: list[str] = field(default_factory=list)
    batches: list[Progress] = field(default_factory=list)
    summary: RunSummary | None = None

    def said(self, line: str) -> None:
        self.lines.append(line)

    def batch(self, progress: Progress) -> None:
        self.batches.append(progress)

    def ended(self, summary: RunSummary) -> None:
        self.summary = summary


@dataclass
class Place:
    """A cluster with the topics, a session, and a folder with the examples."""

    servers: str
    spark: Any
    folder: Path

    def run(self, name: str) -> Told:
        """`barnabas pipeline run NAME.yaml --once`."""
        told = Told()
        pipeline = read_pipeline(self.folder / f"{name}.yaml")
        run_pipeline_in(self.spark.newSession(), pipeline, RunOptions(self.servers, once=True), told)
        return told

    def table(self, name: str, *key: str) -> list[Row]:
        """Of a Parquet table the newest row of each key."""
        rows = dataset.dataset(self.folder / "out" / name, partitioning="hive").to_table().to_pylist()
        newest = {tuple(row[column] for column in key): row for row in sorted(rows, key=lambda row: row["batch_id"])}
        return [{column: value for column, value in row.items() if column != "batch_id"} for row in newest.values()]

    def topic(self, name: str) -> list[tuple[Row, Row]]:
        """Keys and values of the committed records."""
        settings = {"bootstrap.servers": self.servers, "group.id": "test", "auto.offset.reset": "earliest"}
        consumer = Consumer({**settings, "enable.partition.eof": True})
        found = []
        partitions = len(consumer.list_topics(name, timeout=60).topics[name].partitions)
        consumer.subscribe([name])
        while partitions:
            message = consumer.poll(60)
            assert message is not None
            if message.error():
                partitions -= 1
            else:
                found.append((json.loads(message.key()), json.loads(message.value())))
        consumer.close()
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("examples")
    for path in EXAMPLES.glob("*.yaml"):
        shutil.copy(path, folder)
    pipelines = [read_pipeline(path) for path in sorted(folder.glob("*.yaml"))]
    java = find_java()
    jars = dict.fromkeys(jar for pipeline in pipelines for jar in jars_of(pipeline, java, None, print))
    settings = {name: value for pipeline in pipelines for name, value in settings_of(pipeline).items()}
    options = SparkOptions(java, tuple(jars), folder, "examples", is_short=True, settings=tuple(settings.items()))
    with KafkaCluster() as cluster, spark_session(options) as spark:
        counts = load(cluster.bootstrap_servers, DAYS)
        assert counts["flights"] == counts["departures"] == len(flights())
        yield Place(cluster.bootstrap_servers, spark, folder)


def all_records() -> list[Loaded]:
    if not _RECORDS:
        _RECORDS.extend(records(DAYS))
    return _RECORDS


_RECORDS: list[Loaded] = []


def flights() -> list[Row]:
    return [each.value for each in all_records() if each.topic == "flights" and each.value is not None]


def time_of(row: Row) -> dt.datetime:
    return dt.datetime.fromisoformat(row["time_hour"])


def test_windowed_delays(place: Place) -> None:
    expected: dict[tuple[str, dt.datetime], list[int | None]] = {}
    for row in flights():
        departure = time_of(row) + dt.timedelta(minutes=row["minute"])
        for hours in range(3):
            start = departure.replace(minute=0) - dt.timedelta(hours=hours)
            expected.setdefault((row["origin"], start), []).append(row["dep_delay"])
    told = place.run("windowed_delays")
    assert len(told.batches) > 1
    found = {
        (row["origin"], row["window_start"]): row for row in place.table("windowed-delays", "origin", "window_start")
    }
    assert found.keys() == expected.keys()
    for key, delays in expected.items():
        known = [delay for delay in delays if delay is not None]
        assert (found[key]["flights"], found[key]["departed"], found[key]["minutes"], found[key]["longest"]) == (
            *(len(delays), len(known), sum(known)),
            max(known, default=None),
        )
    newest = {(key["origin"], key["window_start"]): value for key, value in place.topic("delays-by-hour")}
    assert len(newest) == len(expected)
    assert sum(value["minutes"] for value in newest.values()) == sum(row["minutes"] for row in found.values())


def test_enrichment(place: Place) -> None:
    values = [(each.topic, each.value) for each in all_records() if each.value is not None]
    names = {value["carrier"]: value["name"] for topic, value in values if topic == "airlines"}
    weather = {(value["origin"], value["time_hour"]): value for topic, value in values if topic == "weather"}
    place.run("enrichment")
    found = place.table("enrichment", "carrier", "flight", "origin", "time_hour")
    assert len(found) == len(flights())
    assert {row["airline"] for row in found} == {names[row["carrier"]] for row in flights()}
    precip = [weather.get((row["origin"], row["time_hour"]), {}).get("precip") for row in flights()]
    rain = sum((Decimal(str(inches)) for inches in precip if inches is not None), Decimal())
    assert sum((row["precip"] for row in found if row["precip"] is not None), Decimal()) == rain
    assert len(place.topic("flights-enriched")) == len(found)


def test_a_change_stream_becomes_a_table(place: Place) -> None:
    expected: dict[str, Row] = {}
    for each in all_records():
        if each.topic == "flight-changes":
            expected.pop(each.key, None)
            if each.value is not None:
                expected[each.key] = {"dep_delay": None, "arr_delay": None, **each.value}
    place.run("flight_status")
    found = {row.pop("flight"): row for row in rows_of(place.folder / "out" / "flight-status")}
    assert found == expected
    assert {row["status"] for row in found.values()} == {"departed", "arrived"}


def test_dead_letters_are_mended_and_replayed(place: Place) -> None:
    all_of, departed = Counter(row["carrier"] for row in flights()), Counter[str]()
    for row in flights():
        departed[row["carrier"]] += row["dep_delay"] is not None
    cancelled = sum(all_of.values()) - sum(departed.values())
    assert cancelled > 10
    place.run("dead_letters")
    found = {row["carrier"]: row for row in place.table("dead-letters", "carrier")}
    assert {carrier: row["flights"] for carrier, row in found.items()} == dict(+departed)

    assert f"{cancelled} " in replayed(place, "--dry-run")
    path = place.folder / "dead_letters.yaml"
    path.write_text(path.read_text().replace("dep_delay INT ", "dep_delay STRING "))
    replayed(place)
    place.run("dead_letters")
    found = {row["carrier"]: row for row in place.table("dead-letters", "carrier")}
    assert {carrier: row["flights"] for carrier, row in found.items()} == dict(all_of)
    assert {carrier: row["departed"] for carrier, row in found.items()} == {name: departed[name] for name in all_of}


def replayed(place: Place, *options: str) -> str:
    return command_of("replay", "dead-letters", "--bootstrap-server", place.servers, *options)


def command_of(*arguments: str, seconds: float = 60) -> str:
    """What `barnabas pipeline ...` says."""
    command = [sys.executable, "-P", "-m", "barnabas.cli", "pipeline", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.night("a Spark of its own, 30 s of processor time; found nothing yet: test_pipeline_backfill by day")
@pytest.mark.timeout(600)  # a Spark of its own, on a busy machine
def test_a_backfill_after_a_bug(place: Place) -> None:
    """By the command: the mended table takes the place of the wrong one, which is kept."""
    place.run("days")
    wrong = {(row["origin"], row["day"]): row["flights"] for row in place.table("days", "origin", "day")}
    with pytest.raises(PipelineError, match=r"step by_day was changed \(sql\).*barnabas pipeline backfill"):
        place.run("days_mended")
    file = str(place.folder / "days_mended.yaml")
    done = command_of("backfill", file, "--bootstrap-server", place.servers, seconds=400)
    assert f"the old one is kept: {place.folder / 'out' / 'days~before'}\n" in done
    expected = Counter((row["origin"], dt.date(row["year"], row["month"], row["day"])) for row in flights())
    for table, counts in (("days", expected), ("days~before", wrong)):
        found = {(row["origin"], row["day"]): row["flights"] for row in place.table(table, "origin", "day")}
        assert found == counts
    assert max(day for _, day in wrong) == dt.date(2013, 1, 4)
    assert place.run("days_mended").batches == []
    assert f"removed {place.folder / 'out' / 'days~before'}\n" in command_of("backfill", file, "--discard-old")
