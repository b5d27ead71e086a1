"""Archives of loaded classes (AppCDS), with which the JVMs of Apache Kafka and ZooKeeper start in half the time.

`python -m tests.support.java_archives` makes what is missing in the cache of the project: a server runs once, does a
little of everything and leaves an archive when it ends. Where there is none, or Java has changed, they start without.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.apache_kafka_jars import CACHE_DIRECTORY, KAFKA_VERSION, apache_kafka_jars
from tests.support.java import java


def archive_path(program: str, version: str = KAFKA_VERSION) -> Path:
    """Where the archive of `program` (`kafka`, `zookeeper`) of that version of Apache Kafka is."""
    return CACHE_DIRECTORY / f"apache-kafka-{version}-{program}.jsa"


def start_options(program: str, version: str = KAFKA_VERSION) -> tuple[str, ...]:
    """What java takes to use the archive; nothing where there is none."""
    path = archive_path(program, version)
    return (f"-XX:SharedArchiveFile={path}", "-Xlog:disable", "-Xlog:all=error") if path.exists() else ()


def make_archives() -> None:
    """Makes those that are missing, or older than the jars or than Java."""
    from tests.support.apache_kafka import SMALL_HEAP_OPTIONS, ApacheKafkaBroker
    from tests.support.zookeeper import FAST_START_OPTIONS, ZooKeeperServer

    kafka, zookeeper = archive_path("kafka"), archive_path("zookeeper")
    if _is_current(kafka) and _is_current(zookeeper):
        return
    print("archiving the classes of Apache Kafka and ZooKeeper (once, some 15 s) ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as work:
        directory = Path(work)
        archives = [directory / "kafka.jsa", directory / "zookeeper.jsa"]
        coordinator = ZooKeeperServer(
            directory / "zookeeper", java_options=(*FAST_START_OPTIONS, f"-XX:ArchiveClassesAtExit={archives[1]}")
        )
        broker = ApacheKafkaBroker(
            directory / "kafka",
            coordinator.address,
            java_options=(*SMALL_HEAP_OPTIONS, f"-XX:ArchiveClassesAtExit={archives[0]}"),
        )
        try:
            coordinator.start()
            broker.start()
            _use(broker.address)
            broker.process.stop(120.0)
            coordinator.process.stop(60.0)
        except (OSError, RuntimeError, TimeoutError, subprocess.SubprocessError) as error:
            print(f"no archive could be made, servers start without: {error}", file=sys.stderr)
        finally:
            broker.kill()
            coordinator.kill()
        for made, path in zip(archives, (kafka, zookeeper), strict=True):
            if made.exists():
                _place(made, path)
            else:
                print(f"{path.name}: this Java has made none; servers start without", file=sys.stderr)


def _is_current(path: Path) -> bool:
    made_from = (apache_kafka_jars(), Path(java().executable).resolve())
    return path.exists() and all(path.stat().st_mtime > each.stat().st_mtime for each in made_from)


def _place(made: Path, path: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as new:
        new.write(made.read_bytes())
    Path(new.name).replace(path)  # a JVM that starts now maps the whole of one or of the other


def _use(address: str) -> None:
    """Topics, records, a group: what most tests do."""

    def barnabas(*arguments: str, text: str | None = None) -> None:
        command = [sys.executable, "-m", "barnabas.cli", *arguments, "--bootstrap-server", address]
        subprocess.run(command, input=text, text=True, check=True, timeout=60.0, stdout=subprocess.DEVNULL)

    barnabas("topic", "create", "archived", "--partitions", "2")
    barnabas("produce", "archived", text="a\nb\n")
    barnabas("consume", "archived", "--group", "archived", "--from", "earliest", "--max", "2")
    barnabas("topic", "delete", "archived")


if __name__ == "__main__":
    make_archives()
