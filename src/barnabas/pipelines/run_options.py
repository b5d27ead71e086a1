"""How a pipeline is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.pipelines.offset_ranges import OffsetRange
from barnabas.pipelines.progress import ShownRows
from barnabas.pipelines.spark_cluster import LOCAL_CLUSTER, SparkCluster
from barnabas.pipelines.state_directory import StateDirectory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run: brokers as `host:port,...`; `once` ends when what was there at the start is done.

    `jars_directory` has Spark's Kafka connector on machines that cannot fetch it. `notes_classes` as SparkOptions has
    it. `offsets` is the part of the topics that is read: then the run ends with it. Without `commits_offsets` the group
    of the pipeline is left alone. `finish` is called with Spark when all is done. `cluster` is where Spark works.
    `show` is given what sinks `console` show, on the thread of the progress.
    """

    bootstrap_servers: str
    once: bool
    jars_directory: Path | None = None
    notes_classes: bool = False
    access: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """How Spark comes in at the brokers: options of its connector. A run makes them of the pipeline's `cluster`."""
    offsets: OffsetRange | None = None
    commits_offsets: bool = True
    finish: Callable[[SparkSession, StateDirectory], None] | None = None
    cluster: SparkCluster = LOCAL_CLUSTER
    show: Callable[[ShownRows], None] = lambda _rows: None

    @property
    def is_bounded(self) -> bool:
        """Whether the run has an end that is known when it begins."""
        return self.once or (self.offsets is not None and bool(self.offsets.ends))
