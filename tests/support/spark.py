"""A Spark session with Spark's Kafka connector, as pipelines have it, for tests and benchmarks that use Spark alone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from barnabas.pipelines import session
from barnabas.pipelines.connector import resolve_connector
from barnabas.pipelines.java import find_java


@contextlib.contextmanager
def spark_session(directory: Path, name: str = "tests") -> Iterator[Any]:
    """A session in a Java process of its own; its log goes into `directory`.

    Raises PipelineError when there is no Java, no connector, or no Spark.
    """
    java = find_java()
    jars = resolve_connector(java, None, lambda line: print(line, file=sys.__stderr__, flush=True))
    with session.spark_session(session.SparkOptions(java, jars, directory, name)) as made:
        yield made
