"""The jars of Apache Kafka 3.9.1 and of its ZooKeeper 3.8.4, fetched once into the project's cache.

They are oracles for the tests and are never shipped.

`python -m tests.support.apache_kafka_jars` fetches them and prints where they are.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.java import java
from tests.support.processes import tail

KAFKA_VERSION = "3.9.1"
ZOOKEEPER_VERSION = "3.8.4"
CACHE_DIRECTORY = Path(__file__).resolve().parents[2] / ".cache"

_DEPENDENCIES = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.slf4j", "slf4j-reload4j", "1.7.36"),
)
_EXPECTED_JARS = (
    f"kafka_2.13-{KAFKA_VERSION}.jar",
    f"kafka-clients-{KAFKA_VERSION}.jar",
    f"kafka-tools-{KAFKA_VERSION}.jar",
    f"zookeeper-{ZOOKEEPER_VERSION}.jar",
    "slf4j-reload4j-1.7.36.jar",
)
# Ivy's own defaults name the repository: Maven Central and nothing beside it.
_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""
_FETCH_TIMEOUT_SECONDS = 600
_ATTEMPTS = 2


class JarsMissing(RuntimeError):
    """The jars are not in the cache and could not be fetched, with the reason."""


def apache_kafka_jars() -> Path:
    """The directory that holds the jars; fetches them first when the cache is empty (about 60 MB, one to two minutes).

    Safe to call from several processes at once: one fetches, the others wait for it. Raises `JarsMissing` or
    `JavaMissing`.
    """
    directory = CACHE_DIRECTORY / f"apache-kafka-{KAFKA_VERSION}"
    if directory.is_dir():
        return directory
    CACHE_DIRECTORY.mkdir(exist_ok=True)
    with _locked(directory.with_name(f"{directory.name}.lock")):
        if not directory.is_dir():
            _fetch(directory)
    return directory


def class_path() -> str:
    """What `java -cp` takes to see all of Apache Kafka and ZooKeeper."""
    return f"{apache_kafka_jars()}/*"


def _fetch(directory: Path) -> None:
    print(
        f"fetching Apache Kafka {KAFKA_VERSION} into {directory} (once, about 60 MB) ...",
        file=sys.__stderr__,
        flush=True,
    )
    # Ivy's own cache is kept until all has arrived, so that an interrupted fetch goes on where it was.
    ivy_cache = directory.with_name("ivy")
    with tempfile.TemporaryDirectory(dir=CACHE_DIRECTORY, prefix="fetching-") as work:
        arrived = _run_ivy(Path(work), ivy_cache)
        missing = [jar for jar in _EXPECTED_JARS if not (arrived / jar).exists()]
        if missing:
            raise JarsMissing(f"Ivy reported success without {', '.join(missing)}; remove {ivy_cache} and try again")
        arrived.rename(directory)
    shutil.rmtree(ivy_cache, ignore_errors=True)
    print(f"fetched {len(list(directory.iterdir()))} jars", file=sys.__stderr__, flush=True)


def _run_ivy(work: Path, ivy_cache: Path) -> Path:
    settings, module, arrived, log = work / "settings.xml", work / "ivy.xml", work / "jars", work / "ivy.log"
    settings.write_text(_IVY_SETTINGS)
    wanted = "".join(
        f'<dependency org="{org}" name="{name}" rev="{rev}" conf="default"/>' for org, name, rev in _DEPENDENCIES
    )
    module.write_text(
        '<ivy-module version="2.0"><info organisation="barnabas" module="apache-kafka"/>'
        f"<dependencies>{wanted}</dependencies></ivy-module>"
    )
    command: list[str | Path] = [
        java().executable,
        *java().trust_options,
        *("-jar", str(_ivy_jar())),
        *("-settings", str(settings)),
        *("-cache", str(ivy_cache)),
        *("-ivy", str(module)),
        *("-types", "jar", "bundle"),
        *("-confs", "default"),
        *("-retrieve", f"{arrived}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    for attempt in range(_ATTEMPTS):
        with log.open("wb") as output:
            try:
                status = subprocess.run(
                    command, stdout=output, stderr=subprocess.STDOUT, timeout=_FETCH_TIMEOUT_SECONDS, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                status = None
        if status == 0:
            return arrived
        if attempt + 1 == _ATTEMPTS:
            reason = f"not within {_FETCH_TIMEOUT_SECONDS} s" if status is None else f"exit status {status}"
            raise JarsMissing(
                f"Ivy could not fetch Apache Kafka {KAFKA_VERSION} from Maven Central: {reason}\n{tail(log)}"
            )
    raise AssertionError("unreachable")


def _ivy_jar() -> Path:
    package = importlib.util.find_spec("pyspark")
    found = sorted(Path(package.origin).parent.glob("jars/ivy-*.jar")) if package is not None and package.origin else []
    if not found:
        raise JarsMissing(
            "fetching needs the Ivy that pyspark brings: install pyspark==4.0.0 into this environment with pip"
        )
    return found[-1]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    print(apache_kafka_jars())
