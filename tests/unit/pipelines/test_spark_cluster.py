"""Where Spark works: what options say, and what a session is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.java import Java
from barnabas.pipelines.session import SparkOptions, spark_settings
from barnabas.pipelines.shared_files import refuse_unshared_files
from barnabas.pipelines.spark_cluster import SparkCluster, memory_bytes, spark_cluster
from tests.unit.pipelines.made_pipelines import made_pipeline


@pytest.mark.parametrize(
    ("master", "setting"),
    [(None, "local[*, 3]"), ("local", "local[1, 3]"), ("local[4]", "local[4, 3]"), ("local[*]", "local[*, 3]")],
)
def test_a_local_master_tries_tasks_again_as_a_cluster_does(master: str | None, setting: str) -> None:
    cluster = spark_cluster(master)
    assert cluster.address == "127.0.0.1"
    assert cluster.settings(3, (Path("a.jar"),), ("-Da=b",)) == {"spark.master": setting}


def test_executors_get_the_jars_and_javas_options_and_what_was_asked_for() -> None:
    cluster = spark_cluster("spark://127.0.0.1:7077,other:7078", None, "1g", "2g", 3, 6)
    assert cluster.address == "127.0.0.1"
    assert cluster.settings(3, (Path("/jars/a.jar"), Path("/jars/b.jar")), ("-Da=b", "-Dc=d")) == {
        "spark.master": "spark://127.0.0.1:7077,other:7078",
        "spark.task.maxFailures": "4",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.jars": "/jars/a.jar,/jars/b.jar",
        "spark.executor.extraJavaOptions": "-Da=b -Dc=d",
        "spark.executor.memory": "2g",
        "spark.executor.cores": "3",
        "spark.cores.max": "6",
    }
    assert SparkCluster("spark://host:1", driver_host="10.0.0.1").address == "10.0.0.1"
    assert (memory_bytes("512m"), memory_bytes("2GB")) == (512 << 20, 2 << 30)


@pytest.mark.parametrize("master", ["sc://host", "sc://host:15002", "sc://[::1]:1/;use_ssl=true", "sc://10.0.0.1:9/"])
def test_a_server_of_spark_connect_has_a_spark_that_is_there_already(master: str) -> None:
    cluster = spark_cluster(master)
    assert (cluster.is_connect, cluster.is_local, cluster.is_here) == (True, False, False)
    assert not spark_cluster("spark://host:1").is_connect


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("sc://host:15002/;token=abc",), "must be sc://HOST:PORT"),
        (("sc://host:15002/;session_id=a",), "must be sc://HOST:PORT"),
        (("sc://host:15002", None, None, "2g"), "are the Spark Connect server's to say"),
        (("yarn",), "is for spark-submit"),
        (("k8s://https://host",), "is for spark-submit"),
        (("spark://host",), "must be local, "),
        (("local[0]",), "must be local, "),
        (("spark://host:1", None, "two"), '--driver-memory "two" must be'),
        (("local[2]", None, None, "2g"), "are for a cluster"),
    ],
)
def test_what_no_run_can_be_on_is_refused_with_what_to_do(options: tuple[Any, ...], told: str) -> None:
    with pytest.raises(PipelineError, match=told.replace("[", r"\[")):
        spark_cluster(*options)


class FakeSession:
    """Executors that write the first `seen` of their files where this machine sees them."""

    def __init__(self, seen: int) -> None:
        self.sparkContext = type("Context", (), {"defaultParallelism": 2})
        self.seen = seen
        self.tasks = 0

    def range(self, _: int, tasks: int, numPartitions: int) -> FakeSession:  # noqa: N803  # Spark's
        self.tasks = numPartitions
        return self

    def selectExpr(self, _: str) -> FakeSession:  # noqa: N802  # Spark's
        return self

    @property
    def write(self) -> FakeSession:
        return self

    def text(self, path: str) -> None:
        directory = Path(path.removeprefix("file://"))
        directory.mkdir()
        for number in range(min(self.seen, self.tasks)):
            (directory / f"part-{number}").write_text(f"{number}\n")


def test_executors_whose_files_are_not_here_are_found_before_the_first_batch(tmp_path: Path) -> None:
    pipeline = made_pipeline(tmp_path)
    session: Any = FakeSession(seen=100)
    refuse_unshared_files(session, pipeline)
    session = FakeSession(seen=3)
    with pytest.raises(PipelineError, match="must be on a file system that all machines have"):
        refuse_unshared_files(session, pipeline)
    assert {path.name for path in tmp_path.iterdir()} == {"state"}
    assert not list((tmp_path / "state").iterdir())


def test_times_are_utc_for_workers_in_python_wherever_they_are(tmp_path: Path) -> None:
    """Else UDFs and state have those of the machine's zone, and an hour that its summer leaves out is another."""
    java = Java(tmp_path / "java", 17, is_from_package=False)
    settings = spark_settings(SparkOptions(java, (), tmp_path, "x"), tmp_path)
    assert {settings["spark.executorEnv.TZ"], settings["spark.sql.session.timeZone"]} == {"UTC"}
