"""Tiered storage in an object store: S3Proxy, through fsspec and s3fs; and what a store does on a bad day."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from barnabas.cli.log import command as log_command
from barnabas.kernel.real_files import RealFiles
from barnabas.tiered.object_names import ObjectKind, parse_object_name
from barnabas.tiered.spark_source import SegmentsDataSource
from barnabas.tiered.storage import RemoteStore, open_store
from tests.support.broker_process import BrokerCluster, broker_cluster
from tests.support.by_night import by_night
from tests.support.s3_server import BUCKET, S3Server, Weather, s3_server
from tests.support.spark import spark_session
from tests.support.tiered_topics import (
    CONFIGS,
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST_TIERED,
    any_port,
    offset,
    produce,
    read,
    wait_until_tiered,
)
from tests.support.waiting import wait_until
from tests.support.wire_calls import create_topic, delete_topic, leader_port, leaders

RECORDS = 600
"""Three segments and an active one: a process copies each, which imports s3fs first, a second or more."""
TIERED = {**CONFIGS, "local.retention.bytes": "20000"}
KILLED_RECORDS = 3_000
"""More than a segment of the topic whose leader is killed."""
AGAIN = "half a minute or more, and no commit says that it has found anything"
LARGE_BYTES = 12 * 1024 * 1024
"""More than s3fs sends at a time, so that a multipart upload begins."""
_WRITER = """
import sys
from barnabas.kernel.real_files import RealFiles
from barnabas.tiered.storage import open_store, put_file
put_file(open_store(RealFiles(), sys.argv[1], sys.argv[2]), "flights-0/killed.log", RealFiles(), sys.argv[3])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        # Its first answers take seconds where others compute, and clients here have a second's patience.
        options = {**running.options, "config_kwargs": {**running.options["config_kwargs"], "read_timeout": 60}}
        patient = open_store(RealFiles(), f"s3://{BUCKET}/first", json.dumps(options))
        patient.put("answers", [bytes(LARGE_BYTES)])
        patient.delete(["answers"])
        yield running


@pytest.fixture
def store(server: S3Server) -> Iterator[RemoteStore]:
    server.door.weather = Weather.FAIR
    yield open_store(RealFiles(), f"s3://{BUCKET}/store", json.dumps(server.options))
    server.door.weather = Weather.FAIR


def test_objects_are_written_whole_read_in_parts_and_deleted(store: RemoteStore) -> None:
    large = os.urandom(LARGE_BYTES)
    store.put("flights-0/a.log", [large[: LARGE_BYTES // 3], large[LARGE_BYTES // 3 :]])
    store.put("flights-0/b.txnindex", [])
    assert store.size("flights-0/a.log") == LARGE_BYTES
    assert store.read("flights-0/a.log", LARGE_BYTES - 10, 100) == large[-10:]
    assert store.read("flights-0/a.log", 5_000_000, 1_000_000) == large[5_000_000:6_000_000]
    assert store.read_all("flights-0/b.txnindex") == b""
    assert store.names("flights-0") == ["flights-0/a.log", "flights-0/b.txnindex"]
    assert store.names("other") == []
    store.put("flights-0/a.log", [b"new"])
    assert store.read_all("flights-0/a.log") == b"new"
    store.delete(["flights-0/a.log", "flights-0/missing.log", "flights-0/b.txnindex"])
    assert store.names("flights-0") == []
    for call in (lambda: store.read("flights-0/a.log", 0, 1), lambda: store.size("flights-0/a.log")):
        with pytest.raises(FileNotFoundError):
            call()


@pytest.mark.parametrize("size_bytes", [100, LARGE_BYTES])
def test_a_write_that_fails_leaves_no_object(store: RemoteStore, size_bytes: int) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x" * size_bytes
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        store.put("failed-0/a.log", chunks())
    assert store.names("failed-0") == []


def test_a_writer_that_is_killed_leaves_no_object(server: S3Server, store: RemoteStore, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(os.urandom(LARGE_BYTES))
    server.door.weather = Weather.TRICKLE
    before = server.door.bytes_sent
    url, options = f"s3://{BUCKET}/store", json.dumps(server.options)
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, url, options, str(tmp_path / "local")])
    try:
        wait_until(lambda: server.door.bytes_sent > before + 100_000, "the upload is under way", 60.0)
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()
    server.door.weather = Weather.FAIR
    assert store.names("flights-0") == []


@pytest.mark.parametrize("weather", [Weather.REFUSES, Weather.BREAKS, Weather.STANDS])
def test_a_bad_day_of_the_server_is_an_error_in_bounded_time(
    server: S3Server, store: RemoteStore, weather: Weather
) -> None:
    store.put("day-0/a.log", [b"x" * 100_000])
    # It tries some ten requests five times each.
    config = {**server.options["config_kwargs"], "connect_timeout": 0.5, "read_timeout": 0.25}
    options = {**server.options, "config_kwargs": config}
    impatient = open_store(RealFiles(), f"s3://{BUCKET}/store", json.dumps(options))
    server.door.weather = weather
    began = time.monotonic()
    with pytest.raises(OSError):
        impatient.put("day-0/b.log", [b"x" * 100_000])
    if weather is not Weather.BREAKS:  # a read is a short request
        with pytest.raises(OSError):
            impatient.read("day-0/a.log", 0, 100_000)
    assert time.monotonic() - began < 60
    server.door.weather = Weather.FAIR

    def is_read() -> bool:
        try:
            return store.read("day-0/a.log", 99_990, 100) == b"x" * 10
        except OSError:
            return False  # all that has stood is passed on first

    wait_until(is_read, "what was written is read", 30.0)
    store.delete(["day-0/a.log", "day-0/b.log"])


@pytest.fixture(scope="module")
def cluster(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    overrides = {
        "remote.log.storage.system.enable": "true",
        "barnabas.remote.storage.url": f"s3://{BUCKET}/brokers",
        "barnabas.remote.storage.options": json.dumps(server.options),
        "offsets.topic.replication.factor": 2,
        "rlmm.config.remote.log.metadata.topic.num.partitions": 1,
        "rlmm.config.remote.log.metadata.topic.replication.factor": 2,
        "remote.log.manager.task.interval.ms": 200,
        "log.retention.check.interval.ms": 200,
        "log.initial.task.delay.ms": 200,
        "replica.lag.time.max.ms": 5_000,
    }
    with broker_cluster(tmp_path_factory.mktemp("tiered"), 2, overrides=overrides) as running:
        yield running


def objects(server: S3Server, topic: str) -> list[Path]:
    return [path for path in (server.objects / "brokers").glob(f"{topic}-*/*") if parse_object_name(path.name)]


def check_that_nothing_is_half(server: S3Server, topic: str) -> None:
    """Each attempt to copy a segment has all of its objects, and each segment is there once."""
    found = objects(server, topic)
    kinds = Counter(path.name.rpartition(".")[0] for path in found)
    assert set(kinds.values()) == {len(ObjectKind)}, kinds
    starts = Counter(path.name[:20] for path in found if path.suffix == ".log")
    assert set(starts.values()) == {1}, starts


@pytest.mark.timeout(900)
def test_segments_are_copied_read_by_clients_and_deleted_with_their_topic(
    server: S3Server, cluster: BrokerCluster
) -> None:
    server.door.weather = Weather.FAIR
    topic = "flights"
    create_topic(any_port(cluster), topic, 1, 2, **TIERED)
    produce(cluster, topic, 0, RECORDS)
    local_start = wait_until_tiered(cluster, topic, RECORDS // 2)
    port = leader_port(any_port(cluster), topic)
    assert offset(port, topic, EARLIEST) == 0
    assert offset(port, topic, LATEST_TIERED) >= local_start - 1
    read(cluster, topic, 0, RECORDS)
    wait_until(lambda: _is_whole(server, topic), "no copy is under way", 60.0, cluster.log_tails)
    delete_topic(port, topic)
    wait_until(lambda: not objects(server, topic), "the objects are deleted with the topic", 60.0, cluster.log_tails)


@pytest.mark.timeout(900)
def test_a_leader_that_dies_in_the_middle_of_an_upload_leaves_nothing_half(
    server: S3Server, cluster: BrokerCluster
) -> None:
    server.door.weather = Weather.TRICKLE
    topic = "killed"
    create_topic(any_port(cluster), topic, 1, 2, **{**CONFIGS, "segment.bytes": "200000", "local.retention.bytes": "1"})
    before = server.door.bytes_sent
    produce(cluster, topic, 0, KILLED_RECORDS)
    killed = leaders(any_port(cluster), topic)[0]
    wait_until(lambda: server.door.bytes_sent > before + 50_000, "an upload is under way", 60.0, cluster.log_tails)
    cluster.brokers[killed].kill()
    wait_until(lambda: leaders(any_port(cluster), topic).get(0, killed) not in (killed, -1), "another leads", 60.0)
    server.door.weather = Weather.FAIR
    wait_until_tiered(cluster, topic, 750)
    read(cluster, topic, 0, KILLED_RECORDS)
    cluster.brokers[killed].start()
    wait_until(lambda: _is_whole(server, topic), "nothing half is left", 60.0, cluster.log_tails)
    read(cluster, topic, 0, KILLED_RECORDS)


def _is_whole(server: S3Server, topic: str) -> bool:
    try:
        check_that_nothing_is_half(server, topic)
    except AssertionError:
        return False
    return True


@pytest.mark.timeout(900)
@pytest.mark.parametrize("weather", [Weather.REFUSES, *by_night(AGAIN, Weather.STANDS)])
def test_what_the_store_refuses_or_lets_wait_is_copied_and_read_later(
    server: S3Server, cluster: BrokerCluster, weather: Weather
) -> None:
    server.door.weather = Weather.FAIR
    topic = weather.name.lower()
    create_topic(any_port(cluster), topic, 1, 2, **TIERED)
    produce(cluster, topic, 0, RECORDS)
    local_start = wait_until_tiered(cluster, topic, RECORDS // 2)
    server.door.weather = weather
    began = time.monotonic()
    produce(cluster, topic, RECORDS, 2 * RECORDS)
    read(cluster, topic, RECORDS, 2 * RECORDS)
    assert time.monotonic() - began < 60, "what is local waits for the store"
    port = leader_port(any_port(cluster), topic)
    assert offset(port, topic, EARLIEST_LOCAL) <= RECORDS, "what could not be copied stays here"
    server.door.weather = Weather.FAIR
    assert wait_until_tiered(cluster, topic, RECORDS) > local_start
    read(cluster, topic, 0, 2 * RECORDS)
    wait_until(lambda: _is_whole(server, topic), "nothing half is left", 90.0, cluster.log_tails)
    cluster.check_that_none_exited_by_itself()


@pytest.fixture(scope="module")
def stored(server: S3Server, cluster: BrokerCluster) -> Iterator[int]:
    """The topic `stored` in the bucket, all of it that may be there: how many records."""
    server.door.weather = Weather.FAIR
    create_topic(any_port(cluster), "stored", 1, 2, **TIERED)
    produce(cluster, "stored", 0, RECORDS)

    def end() -> int:
        """Behind the last copy; 0 while segments are to be copied yet, or a copy is under way."""
        active = max(
            int(path.stem)
            for broker in cluster.brokers.values()
            for path in broker.directory.glob("data/stored-0/*.log")
        )
        copied = offset(leader_port(any_port(cluster), "stored"), "stored", LATEST_TIERED) + 1
        return copied if copied == active and _is_whole(server, "stored") else 0

    yield wait_until(end, "all segments but the active one are copied", 60.0, cluster.log_tails)
    server.door.weather = Weather.FAIR


def dump(server: S3Server, *arguments: str) -> Result:
    options = ("--storage-options", json.dumps(server.options))
    return CliRunner().invoke(log_command, ["dump", *options, *arguments])


def test_the_files_in_the_store_are_shown_without_brokers(server: S3Server, stored: int) -> None:
    url = f"s3://{BUCKET}/brokers"
    shown = dump(server, "--json", url)
    assert shown.exit_code == 0, shown.output
    (partition,) = (
        each
        for each in map(json.loads, shown.stdout.splitlines())
        if each["type"] == "partition" and each["directory"].startswith("stored-")
    )
    shown = dump(server, "--json", "--records", "--verify", f"{url}/{partition['directory']}")
    assert shown.exit_code == 0, shown.output
    found = [json.loads(line) for line in shown.stdout.splitlines()]
    offsets = [each["offset"] for each in found if each["type"] == "record"]
    assert offsets == [*range(stored)]
    assert {each["mismatches"] for each in found if each["type"] == "verified"} == {0}
    assert sum(each["type"] == "file" for each in found) == partition["segments"] * len(ObjectKind)
    assert not dump(server, url, "--records").exception
    server.door.weather = Weather.REFUSES
    refused = dump(server, f"{url}/{partition['directory']}")
    assert refused.exit_code == 1
    assert "Traceback" not in refused.output
    assert "SlowDown" in refused.output or "later" in refused.output, refused.output
    server.door.weather = Weather.FAIR


@pytest.mark.night(AGAIN)
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_spark_reads_the_store_without_brokers(server: S3Server, stored: int, tmp_path: Path) -> None:
    with spark_session(tmp_path, "segments") as spark:
        spark.dataSource.register(SegmentsDataSource)

        def read_stored(**options: str) -> Any:
            reader = spark.read.format("barnabas_segments").option("topic", "stored")
            return reader.options(**options).load(f"s3://{BUCKET}/brokers")

        rows = read_stored(**{"storage.options": json.dumps(server.options)})
        found = rows.selectExpr("partition", "offset", "int(trim(string(value)))").collect()
        assert sorted(map(tuple, found)) == [(0, number, number) for number in range(stored)]
        server.door.weather = Weather.REFUSES
        with pytest.raises(Exception, match=r"SlowDown|later"):
            read_stored(**{"storage.options": json.dumps(server.options)}).count()
