"""Pipelines by their groups, their dead letters, and their own files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest

from barnabas.cli.console_pipelines import reader_of
from barnabas.client.cluster import Cluster, PartitionInfo, TopicInfo
from barnabas.console import pipelines as console_pipelines
from barnabas.console.pipelines import Letters, letters_of, pipeline_of
from barnabas.pipelines import definition
from barnabas.pipelines.definition import Pipeline
from barnabas.pipelines.progress import Progress, Totals
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.state_directory import RunEnd, StateDirectory
from barnabas.testing import KafkaCluster
from barnabas.wire.topics import TopicPartition
from tests.support.running_console import RunningConsole
from tests.unit.console.test_pages import checked
from tests.unit.pipelines.pipeline_files import FLIGHTS

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of pipeline delays, which has done a batch."""
    file = tmp_path_factory.mktemp("pipelines") / "delays.yaml"
    file.write_text(FLIGHTS)
    pipeline = read_pipeline(file)
    state = StateDirectory(pipeline.state_directory)
    with state.locked(pipeline):
        state.begin()
        state.add_progress(_progress().to_json())
    state.end(RunEnd.DONE)
    return file


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """A broker; pipeline delays has read a part of flights, and sent three dead letters, of which one is gone."""
    with KafkaCluster() as running:
        for topic in ("flights", "delays.dlq", "strange.dlq"):
            running.create_topic(topic, partitions=2)
        servers = {"bootstrap.servers": running.bootstrap_servers, "log_level": 0}
        producer = confluent_kafka.Producer(servers)
        for number in range(30):
            producer.produce("flights", f"{number}", partition=0)
        for number in range(3):
            producer.produce("delays.dlq", f"{number}", partition=1)
        producer.produce("strange.dlq", "1", partition=0)
        producer.flush()
        admin = confluent_kafka.admin.AdminClient(servers)
        first = confluent_kafka.TopicPartition("delays.dlq", 1, 1)
        for future in admin.delete_records([first]).values():
            future.result(20)
        for group in ("barnabas-pipeline-delays", "barnabas-pipeline-..", f"barnabas-pipeline-{EVIL}"):
            commit(running, group, 20)
        yield running


@pytest.fixture(scope="module")
def console(cluster: KafkaCluster, path: Path) -> Iterator[RunningConsole]:
    """Its console, which was told of the file, and of one that is none."""
    files = reader_of([path, path.parent / "none.yaml"])
    with RunningConsole(cluster.bootstrap_servers, read_files=files) as running:
        running.wait_for("/pipelines", "stopped", without="not known yet")
        yield running


def commit(cluster: KafkaCluster, group: str, offset: int) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "log_level": 0}
    )
    consumer.commit(offsets=[confluent_kafka.TopicPartition("flights", 0, offset)], asynchronous=False)
    consumer.close()


def _progress() -> Progress:
    return Progress(
        query="by_hour",
        batch_id=3,
        time_ms=int(time.time() * 1_000),
        duration_ms=10,
        rows_in=5,
        rows_out=2,
        rows_per_second=500.0,
        lag={"flights": 1},
        offsets={"flights": {0: 9}},
        watermark_ms=1_700_000_000_000,
        state_rows=6,
        state_bytes=700,
        rows_dropped_by_watermark=1,
        totals=Totals(4, 20, 8, 1, 0, 0, 3),
    )


def test_the_names_are_those_that_pipelines_use(path: Path) -> None:
    assert definition.GROUP_PREFIX == console_pipelines.GROUP_PREFIX
    assert definition.LETTERS_SUFFIX == console_pipelines.LETTERS_SUFFIX
    pipeline: Pipeline = read_pipeline(path)
    assert pipeline_of(pipeline.group_id) == pipeline.name == "delays"


@pytest.mark.parametrize(
    "group_id",
    ["readers", "barnabas-pipeline-", "barnabas-pipeline-..", "barnabas-pipeline-a/b", "barnabas-pipeline-é"],
)
def test_groups_that_are_no_pipelines(group_id: str) -> None:
    assert pipeline_of(group_id) is None


@pytest.mark.parametrize("address", ["/pipelines", "/pipelines/delays"])
def test_a_page_is_well_formed(console: RunningConsole, address: str) -> None:
    answer = console.get(address)
    assert answer.status == 200
    assert all(console.get(each).status == 200 for each in checked(answer.text).links if not each.startswith("#"))
    assert EVIL not in answer.text


def test_all_pipelines_with_lag_and_letters(console: RunningConsole) -> None:
    said = console.wait_for("/pipelines", "1 pipeline", "delays", without="not known yet").words
    assert "\u25cf" in said or "\u25b2" in said
    assert "10 \u25b2 2" in said
    assert "Other topics that are named as dead letters" in said
    assert "strange.dlq" in said
    assert "none.yaml cannot be read" in said
    assert "--pipeline" in said


def test_one_pipeline_with_its_batches_and_what_is_in_no_result(console: RunningConsole) -> None:
    said = console.wait_for("/pipelines/delays", "by_hour", "2 of 3 ever").words
    assert "State \u25b2 stopped" in said
    assert "Lag 10 records" in said
    assert "3 not of the schema" in said
    assert "1 too late" in said
    assert "2023-11-14 22:13:20 UTC" in said
    assert "flights 1 10" in said
    assert "What delays does: topics, steps, results" in said
    assert "watermark: time, 1 hour" in said


def test_how_fast_it_reads_is_seen_by_its_group(cluster: KafkaCluster, console: RunningConsole) -> None:
    console.wait_for("/pipelines/delays", "Reads 0 records / s")
    commit(cluster, "barnabas-pipeline-delays", 30)
    console.wait_for("/pipelines/delays", "Lag 0 records")
    chart = console.get("/pipelines/delays").text
    assert "Records read: delays" in chart


def test_why_a_pipeline_failed_is_shown(path: Path, console: RunningConsole) -> None:
    state = StateDirectory(read_pipeline(path).state_directory)
    state.end(RunEnd.FAILED, f"a record is not JSON: {EVIL}")
    answer = console.wait_for("/pipelines/delays", "failed", "a record is not JSON")
    assert EVIL not in answer.text
    state.end(RunEnd.DONE)


@pytest.mark.parametrize(
    "address", ["/pipelines/none", "/pipelines/delays/0", "/pipelines/%2e%2e", "/pipelines/%3Cb%3E"]
)
def test_what_is_not_there(console: RunningConsole, address: str) -> None:
    assert console.get(address).status == 404


def test_without_files_the_page_says_what_is_not_known(cluster: KafkaCluster) -> None:
    with RunningConsole(cluster.bootstrap_servers) as console:
        said = console.wait_for("/pipelines", "delays", "not known").words
        assert "barnabas console --pipeline FILE" in said
        assert "which the console was not told of" in console.get("/pipelines/delays").words
        assert "Process" not in console.get("/pipelines/delays").words


def test_letters_are_counted_only_where_all_is_known() -> None:
    info = PartitionInfo(leader_id=1, leader_epoch=0, replicas=(1,), isr=(1,), offline_replicas=())
    topic = TopicInfo(name="a.dlq", topic_id=bytes(16), is_internal=False, partitions={0: info, 1: info})
    cluster = Cluster(cluster_id="c", controller_id=1, brokers={}, topics={"a.dlq": topic})
    first, second = TopicPartition("a.dlq", 0), TopicPartition("a.dlq", 1)
    assert letters_of("b", cluster, {}, {}) is None
    assert letters_of("a", cluster, {first: 5}, {first: 1}) == Letters("a.dlq", None, None)
    assert letters_of("a", cluster, {first: 5, second: 2}, {first: 1}) == Letters("a.dlq", None, 7)
    assert letters_of("a", cluster, {first: 5, second: 2}, {first: 1, second: 2}) == Letters("a.dlq", 4, 7)
