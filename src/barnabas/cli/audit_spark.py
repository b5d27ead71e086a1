"""`barnabas audit --spark`: the same pieces of work as tasks of a Spark job, where one machine would read for days.

That is remote storage, which all executors reach; they need this package, and what fsspec needs for the URL. The logs
of brokers are on the brokers' machines, where a disk is the bound, and no executor is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from barnabas.cli.audit_places import Audited
from barnabas.cli.audit_work import Result, audit_one
from barnabas.cli.connection import CommandError
from barnabas.cli.output import counted, say
from barnabas.log.inspection.replica_comparison import PartitionAudit
from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.java import find_java
from barnabas.pipelines.spark_extra import require_spark_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def audit_on_spark(partitions: Sequence[Audited], master: str, *, compares: bool) -> list[Result]:
    """Starts a session at `master`, or takes that of spark-submit. Raises CommandError."""
    if not partitions:
        return []  # only small files that make no sense, which are told of; Spark refuses a job without tasks
    try:
        require_spark_extra()
        os.environ.setdefault("JAVA_HOME", str(find_java().executable.parent.parent))
        if master.startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    except PipelineError as error:
        raise CommandError(str(error)) from None
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    say(f"Audits {counted(len(partitions), 'partition')} on Spark at {master}.")
    session = None
    try:
        builder = SparkSession.builder.master(master).appName("barnabas audit")
        # What fails is said by us, in a line, and not by Spark in a hundred.
        builder = builder.config("spark.log.level", "OFF")
        builder = builder.config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
        session = builder.getOrCreate()
        return audit_with(session, partitions, compares=compares)
    except (PySparkException, Py4JError) as error:
        raise CommandError(f"Spark at {master}: {_reason(str(error))}") from error
    finally:
        if session is not None:
            session.stop()


def _reason(text: str) -> str:
    """The line of a stack trace that says what went wrong: the last error of Python in it, or the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason was given"]
    return next(
        (line for line in reversed(lines) if line.split(":")[0].endswith("Error") and " at " not in line), lines[0]
    )


def audit_with(session: SparkSession, partitions: Sequence[Audited], *, compares: bool) -> list[Result]:
    """A task for each partition, the largest first; what comes back is bounded as its findings are."""
    ordered = sorted(partitions, key=lambda each: -each.size_bytes)
    tasks = session.sparkContext.parallelize(ordered, len(ordered))
    audits = tasks.map(partial(_on_executor, compares=compares)).collect()
    return [Result(each, audit) for each, audit in zip(ordered, audits, strict=True)]


def _on_executor(audited: Audited, *, compares: bool) -> PartitionAudit:
    return audit_one(audited, lambda _read_bytes: None, compares=compares)
