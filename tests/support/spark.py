"""Spark sessions for tests and benchmarks that use Spark alone: with Spark's Kafka connector, as pipelines have it, and
with what tables need besides.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from barnabas.pipelines import session
from barnabas.pipelines.connector import DELTA, ICEBERG, avro, kafka_connector, resolve_connector
from barnabas.pipelines.definition import NamedJar
from barnabas.pipelines.delta_sink import DELTA_SETTINGS
from barnabas.pipelines.jar_sets import resolve_jars
from barnabas.pipelines.java import find_java
from barnabas.pipelines.named_jars import jar_set_of

DRIVERS = ("com.h2database:h2:2.3.232", "org.xerial:sqlite-jdbc:3.46.1.3", "org.postgresql:postgresql:42.7.7")
"""Of databases, for JDBC."""


@contextlib.contextmanager
def spark_session(directory: Path, name: str = "tests") -> Iterator[Any]:
    """A session in a Java process of its own; its log goes into `directory`.

    Raises PipelineError when there is no Java, no connector, or no Spark.
    """
    java = find_java()
    jars = resolve_connector(java, None, _say)
    with session.spark_session(session.SparkOptions(java, jars, directory, name)) as made:
        yield made


@contextlib.contextmanager
def spark_of_tables(directory: Path) -> Iterator[Any]:
    """The same with Delta Lake, Iceberg, Avro and JDBC, and one partition for each shuffle."""
    java = find_java()
    settings = {**DELTA_SETTINGS, "spark.sql.shuffle.partitions": "1"}
    settings["spark.sql.extensions"] += ",org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    options = session.SparkOptions(
        java, jars_of_tables(), directory, "tables", is_short=True, settings=tuple(settings.items())
    )
    with session.spark_session(options) as made:
        yield made


def jars_of_tables() -> tuple[Path, ...]:
    """Fetched first where they are missing."""
    java = find_java()
    sets = (kafka_connector(), avro(), DELTA, ICEBERG, *(jar_set_of(NamedJar(each, None, 1), ()) for each in DRIVERS))
    return sum((resolve_jars(each, java, None, _say) for each in sets), ())


def _say(line: str) -> None:
    print(line, file=sys.__stderr__, flush=True)
