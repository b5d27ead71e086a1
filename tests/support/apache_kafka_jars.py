"""The jars of Apache Kafka 3.9.1 and of its ZooKeeper 3.8.4, fetched once into the project's cache; and those of
3.4.1, an older controller, of Kafka Streams 3.9.1, and of S3Proxy 2.6.0, where a test asks for them.

They are oracles for the tests and are never shipped.

`python -m tests.support.apache_kafka_jars` fetches them and prints where they are; `... 3.4.1` those of that version,
`... streams-3.9.1` those of Kafka Streams.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.ivy import LOG_NAME, IvyError, Module, locked, retrieve
from tests.support.java import java
from tests.support.processes import tail

KAFKA_VERSION = "3.9.1"
ZOOKEEPER_VERSION = "3.8.4"
CACHE_DIRECTORY = Path(__file__).resolve().parents[2] / ".cache"

OLD_KAFKA_VERSION = "3.4.1"
STREAMS = f"streams-{KAFKA_VERSION}"
"""Stands for Kafka Streams where a version is asked for."""
S3PROXY = "s3proxy-2.6.0"
"""Stands for S3Proxy, a server of S3's protocol, where a version is asked for."""
_LOGGING = Module("org.slf4j", "slf4j-reload4j", "1.7.36")
_MODULES = {
    KAFKA_VERSION: (
        Module("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
        Module("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
        _LOGGING,
    ),
    OLD_KAFKA_VERSION: (Module("org.apache.kafka", "kafka_2.13", OLD_KAFKA_VERSION), _LOGGING),
    STREAMS: (Module("org.apache.kafka", "kafka-streams", KAFKA_VERSION), _LOGGING),
    S3PROXY: (Module("org.gaul", "s3proxy", "2.6.0"),),
}
_EXPECTED_JARS = {
    KAFKA_VERSION: (
        f"kafka_2.13-{KAFKA_VERSION}.jar",
        f"kafka-clients-{KAFKA_VERSION}.jar",
        f"kafka-tools-{KAFKA_VERSION}.jar",
        f"zookeeper-{ZOOKEEPER_VERSION}.jar",
        "slf4j-reload4j-1.7.36.jar",
    ),
    OLD_KAFKA_VERSION: (
        f"kafka_2.13-{OLD_KAFKA_VERSION}.jar",
        f"kafka-clients-{OLD_KAFKA_VERSION}.jar",
        "slf4j-reload4j-1.7.36.jar",
    ),
    STREAMS: (f"kafka-streams-{KAFKA_VERSION}.jar", "rocksdbjni-7.9.2.jar", "slf4j-reload4j-1.7.36.jar"),
    S3PROXY: ("s3proxy-2.6.0.jar", "filesystem-2.7.0.jar", "jetty-server-11.0.24.jar"),
}
_ATTEMPTS = 2


class JarsMissing(RuntimeError):
    """The jars are not in the cache and could not be fetched, with the reason."""


def apache_kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """The directory that holds the jars; fetches them first when the cache is empty (about 60 MB, one to two minutes).
    `version` is that of Apache Kafka, or `STREAMS`, or `S3PROXY`.

    Safe to call from several processes at once: one fetches, the others wait for it. Raises `JarsMissing` or
    `JavaMissing`.
    """
    directory = CACHE_DIRECTORY / f"apache-kafka-{version}"
    if directory.is_dir():
        return directory
    CACHE_DIRECTORY.mkdir(exist_ok=True)
    with locked(directory.with_name(f"{directory.name}.lock"), lambda: _say("another process fetches it ...")):
        if not directory.is_dir():
            _fetch(directory, version)
    return directory


def class_path(version: str = KAFKA_VERSION) -> str:
    """What `java -cp` takes to see all of Apache Kafka and ZooKeeper."""
    return f"{apache_kafka_jars(version)}/*"


def _fetch(directory: Path, version: str) -> None:
    _say(f"fetching Apache Kafka {version} into {directory} (once, about 60 MB) ...")
    # Ivy's own cache is kept until all has arrived, so that an interrupted fetch goes on where it was.
    ivy_cache = directory.with_name(f"ivy-{version}")
    with tempfile.TemporaryDirectory(dir=CACHE_DIRECTORY, prefix="fetching-") as work:
        arrived = _retrieved(Path(work), ivy_cache, version)
        missing = [jar for jar in _EXPECTED_JARS[version] if not (arrived / jar).exists()]
        if missing:
            raise JarsMissing(f"Ivy reported success without {', '.join(missing)}; remove {ivy_cache} and try again")
        arrived.rename(directory)
    shutil.rmtree(ivy_cache, ignore_errors=True)
    _say(f"fetched {len(list(directory.iterdir()))} jars")


def _retrieved(work: Path, ivy_cache: Path, version: str) -> Path:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return retrieve(java(), _MODULES[version], work, ivy_cache)
        except PipelineError as error:
            raise JarsMissing(f"Apache Kafka is fetched by the Ivy that pyspark brings: {error}") from error
        except IvyError as error:
            if attempt == _ATTEMPTS:
                raise JarsMissing(
                    f"Ivy could not fetch Apache Kafka {version}: {error}\n{tail(work / LOG_NAME)}"
                ) from error
    raise AssertionError("unreachable")


def _say(line: str) -> None:
    print(line, file=sys.__stderr__, flush=True)


if __name__ == "__main__":
    print(apache_kafka_jars(*sys.argv[1:]))
