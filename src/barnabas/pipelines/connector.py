"""Which jars a pipeline needs besides Spark's own: Spark's Kafka connector always, others by its formats and sinks.

Versions are exact: the connector's is that of the installed Spark, the others are built for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from barnabas.pipelines.definition import (
    DeltaSink,
    IcebergSink,
    NamedJar,
    Pipeline,
    PipelineError,
    Source,
    SourceFormat,
    TopicSink,
)
from barnabas.pipelines.ivy import Module
from barnabas.pipelines.jar_sets import SCALA_VERSION, JarSet, cache_root, cached_jars, resolve_jars
from barnabas.pipelines.java import Java
from barnabas.pipelines.named_jars import jar_set_of, named_jars
from barnabas.pipelines.spark_extra import pyspark_version

_CONNECTOR: Final = f"spark-sql-kafka-0-10_{SCALA_VERSION}"
_TOKEN_PROVIDER: Final = f"spark-token-provider-kafka-0-10_{SCALA_VERSION}"
# pyspark has the jars of these organisations already, at the versions that the connector was built with.
_ORGANISATIONS_AT_HAND: Final = (
    "com.github.luben",
    "com.google.code.findbugs",
    "org.apache.hadoop",
    "org.lz4",
    "org.scala-lang",
    "org.scala-lang.modules",
    "org.slf4j",
    "org.xerial.snappy",
)
_DELTA_VERSION: Final = "4.0.0"
_ICEBERG_VERSION: Final = "1.10.0"

_CLASSES: Final = {
    _CONNECTOR: "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    f"delta-spark_{SCALA_VERSION}": "io.delta.sql.DeltaSparkSessionExtension",
    f"iceberg-spark-runtime-4.0_{SCALA_VERSION}": "org.apache.iceberg.spark.SparkCatalog",
    f"spark-avro_{SCALA_VERSION}": "org.apache.spark.sql.avro.AvroFileFormat",
}
"""A class of each set of jars, by the artifact that has it."""

DELTA: Final = JarSet(
    title=f"Delta Lake {_DELTA_VERSION}",
    name=f"delta-spark_{SCALA_VERSION}-{_DELTA_VERSION}",
    size_mb=8,
    modules=(Module("io.delta", f"delta-spark_{SCALA_VERSION}", _DELTA_VERSION),),
    jars=((f"delta-spark_{SCALA_VERSION}", _DELTA_VERSION), ("delta-storage", _DELTA_VERSION)),
    # Spark has it.
    without_organisations=("org.antlr", "org.scala-lang"),
)
"""Delta Lake's tables."""

ICEBERG: Final = JarSet(
    title=f"Iceberg {_ICEBERG_VERSION}",
    name=f"iceberg-spark-runtime-4.0_{SCALA_VERSION}-{_ICEBERG_VERSION}",
    size_mb=45,
    modules=(Module("org.apache.iceberg", f"iceberg-spark-runtime-4.0_{SCALA_VERSION}", _ICEBERG_VERSION),),
    jars=((f"iceberg-spark-runtime-4.0_{SCALA_VERSION}", _ICEBERG_VERSION),),
)
"""Iceberg's tables."""


def kafka_connector() -> JarSet:
    """Spark's own connector for Kafka, at the installed Spark's version."""
    return JarSet(
        title=f"Spark's Kafka connector {pyspark_version()}",
        name=f"spark-{pyspark_version()}-kafka-connector",
        size_mb=10,
        modules=(Module("org.apache.spark", _CONNECTOR, pyspark_version()),),
        # Which versions Spark's connector asks for is what Ivy knows; in a directory any of these major versions will
        # do, which are those that it is compiled against.
        jars=(
            (_CONNECTOR, pyspark_version()),
            (_TOKEN_PROVIDER, pyspark_version()),
            ("kafka-clients", "3"),
            ("commons-pool2", "2"),
        ),
        without_organisations=_ORGANISATIONS_AT_HAND,
        without_modules=(f"spark-tags_{SCALA_VERSION}",),
    )


def avro() -> JarSet:
    """Spark's Avro, at the installed Spark's version."""
    artifact = f"spark-avro_{SCALA_VERSION}"
    return JarSet(
        title=f"Spark's Avro {pyspark_version()}",
        name=f"{artifact}-{pyspark_version()}",
        size_mb=1,
        modules=(Module("org.apache.spark", artifact, pyspark_version()),),
        jars=((artifact, pyspark_version()),),
        without_organisations=_ORGANISATIONS_AT_HAND,
        without_modules=(f"spark-tags_{SCALA_VERSION}",),
    )


def cache_directory() -> Path:
    """The connector's place in the user's cache, whether it is there or not.

    Raises PipelineError for a user without a home.
    """
    return cache_root() / kafka_connector().name


def cached_connector() -> tuple[Path, ...]:
    """The connector's jars in the cache; none where they were never fetched, or are damaged. Fetches nothing."""
    return cached_jars(kafka_connector())


def resolve_connector(
    java: Java, jars_directory: Path | None, say: Callable[[str], None], stop: threading.Event | None = None
) -> tuple[Path, ...]:
    """The jars that Spark needs beside its own to speak to Kafka; see `resolve_jars`."""
    return resolve_jars(kafka_connector(), java, jars_directory, say, stop)


def jar_sets_of(pipeline: Pipeline) -> tuple[JarSet, ...]:
    """What a pipeline needs beside the connector."""
    wanted: dict[str, JarSet] = {}
    if _has_avro(pipeline):
        wanted[avro().name] = avro()
    for sink in pipeline.sinks:
        if isinstance(sink, DeltaSink):
            wanted[DELTA.name] = DELTA
        elif isinstance(sink, IcebergSink):
            wanted[ICEBERG.name] = ICEBERG
    return tuple(wanted.values())


def _has_avro(pipeline: Pipeline) -> bool:
    written = (sink for sink in pipeline.sinks if isinstance(sink, TopicSink))
    topics: tuple[Source | TopicSink, ...] = (*pipeline.sources, *written)
    keys = (each.key_format.format for each in topics if each.key_format is not None)
    return SourceFormat.AVRO in {*(each.format for each in topics), *keys}


def jars_without_brokers(pipelines: Sequence[Pipeline], java: Java, say: Callable[[str], None]) -> tuple[Path, ...]:
    """What Spark needs for tests of pipelines, whose sinks are files: the jars of their formats; and the connector
    where it is there, so that the classes of Spark are those of a run; and the jars that they name.

    Raises PipelineError as `resolve_jars` does.
    """
    named = _named_jars(pipelines, java, None, say)
    needs_avro = any(_has_avro(each) for each in pipelines)
    found = resolve_jars(avro(), java, None, say) if needs_avro else ()
    return (*cached_connector(), *found, *named)


def jars_of(
    pipeline: Pipeline,
    java: Java,
    jars_directory: Path | None,
    say: Callable[[str], None],
    stop: threading.Event | None = None,
) -> tuple[Path, ...]:
    """All jars that a run of the pipeline needs beside Spark's own, the connector's first; see `resolve_jars`."""
    found = resolve_connector(java, jars_directory, say, stop)
    for wanted in jar_sets_of(pipeline):
        found += resolve_jars(wanted, java, jars_directory, say, stop)
    return found + _named_jars([pipeline], java, jars_directory, say, stop)


def _named_jars(
    pipelines: Sequence[Pipeline],
    java: Java,
    jars_directory: Path | None,
    say: Callable[[str], None],
    stop: threading.Event | None = None,
) -> tuple[Path, ...]:
    """Those that the pipelines' files name."""

    def resolve(named: NamedJar) -> tuple[Path, ...]:
        return resolve_jars(jar_set_of(named, _ORGANISATIONS_AT_HAND), java, jars_directory, say, stop)

    found = (jar for each in pipelines for jar in named_jars(each, resolve))
    return tuple(dict.fromkeys(found))


def refuse_missing_classes(pipeline: Pipeline, has: Callable[[str], bool]) -> None:
    """Raises PipelineError where a Spark that was started by others lacks what the pipeline needs; `has` looks for a
    class.
    """
    for needed in (kafka_connector(), *jar_sets_of(pipeline)):
        missing = [_CLASSES[name] for name, _ in needed.jars if name in _CLASSES and not has(_CLASSES[name])]
        if missing:
            raise PipelineError(
                f"spark-submit was not given {needed.title} ({missing[0]} is not there): add "
                f'--jars "$(barnabas pipeline jars {pipeline.path})" before the script'
            )
