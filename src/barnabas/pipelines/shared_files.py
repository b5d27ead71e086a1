"""Whether the executors of a cluster see the directories of a run as the driver does.

What executors write the driver renames and reads. Where each machine has a disk of its own under that path, Spark finds
no files of the others, calls the batch well, and its rows are lost. So a run looks before its first batch.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.pipelines.definition import Pipeline, PipelineError, TableSink
from barnabas.pipelines.spark_internals import default_parallelism
from barnabas.pipelines.state_directory import spark_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_OF_A_CORE: Final = 2
_PROBE: Final = ".barnabas-probe-"


def refuse_unshared_files(session: SparkSession, pipeline: Pipeline) -> None:
    """Has executors write into the state directory and beside each table, and looks for that here.

    Raises PipelineError at the line of the state or the table where it is not.
    """
    places = {pipeline.state_directory: pipeline.state_line}
    for sink in pipeline.sinks:
        if isinstance(sink, TableSink) and sink.directory is not None:
            places.setdefault(sink.directory.parent, sink.line)
    for place, line in places.items():
        place.mkdir(parents=True, exist_ok=True)
        if not _is_shared(session, place):
            raise pipeline.error(
                f"what the executors of the cluster write into {place} is not there on this machine: on a cluster "
                "state and tables must be on a file system that all machines have under the same path; name such a "
                "directory",
                line,
            )


def _is_shared(session: SparkSession, place: Path) -> bool:
    from pyspark.errors import PySparkException

    probe = place / f"{_PROBE}{uuid.uuid4().hex}"
    try:
        tasks = max(2, _TASKS_OF_A_CORE * default_parallelism(session))
        numbers = session.range(0, tasks, numPartitions=tasks)
        numbers.selectExpr("CAST(id AS STRING)").write.text(spark_path(probe))
        written = [part.read_text(encoding="utf-8").split() for part in probe.glob("part-*")]
        return sorted(int(number) for part in written for number in part) == list(range(tasks))
    except PySparkException as error:
        if any(words in str(error) for words in ("FileNotFound", "Permission denied", "Mkdirs failed")):
            return False
        raise
    except OSError as error:
        raise PipelineError(f"{place} cannot be used: {error.strerror or error}") from error
    finally:
        shutil.rmtree(probe, ignore_errors=True)
