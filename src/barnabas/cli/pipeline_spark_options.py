"""Options that say where Spark works, and what `spark-submit` needs to be given."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from barnabas.pipelines.spark_cluster import SparkCluster


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What was given, as it was."""

    master: str | None
    driver_host: str | None
    driver_memory: str | None
    executor_memory: str | None
    executor_cores: int | None
    cores: int | None

    def cluster(self) -> SparkCluster:
        """What that means. Raises PipelineError."""
        from barnabas.pipelines.spark_cluster import spark_cluster

        return spark_cluster(
            self.master, self.driver_host, self.driver_memory, self.executor_memory, self.executor_cores, self.cores
        )


_OPTIONS = (
    click.option(
        "--master", "--remote", metavar="URL", help="Where Spark works: local[*], spark://HOST:PORT or sc://HOST:PORT."
    ),
    click.option("--driver-host", metavar="ADDRESS", help="The address by which executors reach this machine."),
    click.option("--driver-memory", metavar="SIZE", help="Memory of Spark's process here, such as 2g."),
    click.option("--executor-memory", metavar="SIZE", help="Memory of each executor on a cluster; 1g."),
    click.option("--executor-cores", type=click.IntRange(1, 10_000), metavar="N", help="Cores of each executor."),
    click.option("--cores", type=click.IntRange(1, 1_000_000), metavar="N", help="Cores of all executors together."),
)


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command these options, as `cluster: ClusterOptions`."""

    @functools.wraps(command)
    def called(*arguments: Any, **named: Any) -> None:
        names = ("master", "driver_host", "driver_memory", "executor_memory", "executor_cores", "cores")
        command(*arguments, cluster=ClusterOptions(*(named.pop(name) for name in names)), **named)

    for option in reversed(_OPTIONS):
        called = option(called)
    return called


def jars_line(path: Path, jars_directory: Path | None, say: Callable[[str], None]) -> str:
    """The jars of the pipeline of a file, as `--jars` of spark-submit takes them. Raises PipelineError."""
    from barnabas.pipelines.connector import jars_of
    from barnabas.pipelines.java import find_java
    from barnabas.pipelines.reading import read_pipeline
    from barnabas.pipelines.spark_extra import require_spark_extra

    require_spark_extra()
    return ",".join(str(jar.resolve()) for jar in jars_of(read_pipeline(path), find_java(), jars_directory, say))


def submit_script() -> Path:
    """The Python file that spark-submit is to start."""
    return Path(__file__).parent / "spark_submit" / "run_pipeline.py"
