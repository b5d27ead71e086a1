"""Where Spark's work is done: on this machine, or on a cluster; and what a session needs to be told for that.

On a cluster the driver is still here: it asks for executors, gives them its jars, and must be reached by them. Rows are
written by executors and put in their place by the driver, so that state and tables are where all of them see the same
files under the same path (`shared_files`).
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from barnabas.pipelines.definition import PipelineError

LOOPBACK: Final = "127.0.0.1"
SUBMITTED_VARIABLE: Final = "PYSPARK_GATEWAY_PORT"
"""What spark-submit sets for the Python program that it has started."""

_LOCAL: Final = re.compile(r"local(\[(\*|[1-9]\d{0,3})\])?")
_STANDALONE: Final = re.compile(
    r"spark://([^\s,/:]+|\[[0-9a-fA-F:]+\]):(\d{1,5})(,([^\s,/:]+|\[[0-9a-fA-F:]+\]):\d{1,5})*"
)
_CONNECT: Final = re.compile(r"sc://([^\s,/:;]+|\[[0-9a-fA-F:]+\])(:\d{1,5})?(/(;use_ssl=(true|false))?)?")
_MEMORY: Final = re.compile(r"[1-9]\d{0,6}[kmgt]b?", re.IGNORECASE)
# A machine that nobody has to reach: the system only says by which of its addresses it would be.
_PORT: Final = 9


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A master as Spark names it, and what is asked of it; what is None is Spark's or ours to choose."""

    master: str = "local[*]"
    driver_host: str | None = None
    driver_memory: str | None = None
    executor_memory: str | None = None
    executor_cores: int | None = None
    cores: int | None = None

    @property
    def is_connect(self) -> bool:
        """Whether Spark is one that is there already, behind a server of Spark Connect."""
        return self.master.startswith("sc://")

    @property
    def is_local(self) -> bool:
        """Whether all is done in one process here."""
        return self.master.startswith("local")

    @property
    def is_here(self) -> bool:
        """Whether Spark is this process's own, with all its work: executors elsewhere have no files of this process."""
        return self.is_local and not is_submitted()

    @property
    def address(self) -> str:
        """By which the executors reach this machine: that of the way to the master, unless it is given."""
        if self.is_local:
            return LOOPBACK
        return self.driver_host or _own_address(self.master)

    def settings(self, task_attempts: int, jars: tuple[Path, ...], executor_options: tuple[str, ...]) -> dict[str, str]:
        """Of Spark. A local task is tried again as often as on a cluster. Jars reach executors through the driver."""
        if self.is_local:
            match = _LOCAL.fullmatch(self.master)
            cores = "1" if match is None or match[2] is None else match[2]
            return {"spark.master": f"local[{cores}, {task_attempts}]"}
        asked = {
            "spark.executor.memory": self.executor_memory,
            "spark.executor.cores": self.executor_cores,
            "spark.cores.max": self.cores,
        }
        return {
            "spark.master": self.master,
            "spark.task.maxFailures": str(task_attempts + 1),
            # What is looked at first (`shared_files`) is to be looked at by all of them.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.jars": ",".join(str(jar.resolve()) for jar in jars),
            "spark.executor.extraJavaOptions": " ".join(executor_options),
            **{name: str(value) for name, value in asked.items() if value is not None},
        }


LOCAL_CLUSTER: Final = SparkCluster()
"""All cores of this machine."""


def spark_cluster(
    master: str | None,
    driver_host: str | None = None,
    driver_memory: str | None = None,
    executor_memory: str | None = None,
    executor_cores: int | None = None,
    cores: int | None = None,
) -> SparkCluster:
    """What the options of a command say. Raises PipelineError, with what to do, for a master that it cannot be."""
    chosen = (master or "local[*]").strip()
    if chosen.startswith("sc://"):
        if not _CONNECT.fullmatch(chosen):
            raise PipelineError(
                f'--master "{chosen}" must be sc://HOST:PORT, or sc://HOST:PORT/;use_ssl=true: sessions and users are '
                "named by the run, and a token is not there yet"
            )
        if driver_host or driver_memory or executor_memory or executor_cores or cores:
            message = "--driver-host, --driver-memory, --executor-memory, --executor-cores and --cores"
            raise PipelineError(f"{message} are the Spark Connect server's to say, which has started its Spark")
        return SparkCluster(chosen)
    if chosen.startswith(("yarn", "k8s://", "mesos://")):
        raise PipelineError(
            f"--master {chosen} is for spark-submit, which prepares its containers: spark-submit --master {chosen} "
            '--jars "$(barnabas pipeline jars FILE)" "$(barnabas pipeline submit-script)" run FILE'
        )
    if not _LOCAL.fullmatch(chosen) and not _STANDALONE.fullmatch(chosen):
        raise PipelineError(
            f'--master "{chosen}" must be local, local[4], local[*], spark://HOST:PORT or sc://HOST:PORT'
        )
    for option, memory in (("--driver-memory", driver_memory), ("--executor-memory", executor_memory)):
        if memory is not None and not _MEMORY.fullmatch(memory):
            raise PipelineError(f'{option} "{memory}" must be a number and a unit, such as 512m or 2g')
    cluster = SparkCluster(chosen, driver_host, driver_memory, executor_memory, executor_cores, cores)
    if cluster.is_local and (executor_memory or executor_cores or cores or driver_host):
        message = "--executor-memory, --executor-cores, --cores and --driver-host are for a cluster"
        raise PipelineError(f"{message}: name its --master, or say local[N] for N cores")
    return cluster


def is_submitted() -> bool:
    """Whether spark-submit has started this process."""
    return SUBMITTED_VARIABLE in os.environ


def memory_bytes(text: str) -> int:
    """Of `512m`, `2g` and the like."""
    unit = text.lower().rstrip("b")[-1]
    return int(text.lower().rstrip("b")[:-1]) << {"k": 10, "m": 20, "g": 30, "t": 40}[unit]


def _own_address(master: str) -> str:
    match = _STANDALONE.fullmatch(master)
    host = "" if match is None else match[1].strip("[]")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, _PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as way:
            way.connect(address)
            return str(way.getsockname()[0])
    except OSError as error:
        raise PipelineError(
            f"there is no way to the master {master} ({error.strerror or error}): correct --master, or name the "
            "address by which executors reach this machine with --driver-host"
        ) from error
