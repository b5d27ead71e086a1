"""A Spark standalone cluster of the installed pyspark: a master and workers, each a process on loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from barnabas.pipelines.java import find_java
from barnabas.pipelines.spark_extra import pyspark_directory
from tests.support.ports import free_port
from tests.support.waiting import wait_until

WORKERS = 2
START_SECONDS_MAX = 180.0
_VECTOR = "--add-modules=jdk.incubator.vector"
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


@dataclass(frozen=True, slots=True)
class StandaloneCluster:
    """`master` is its address; `directory` has what its processes say, and their work."""

    master: str
    directory: Path
    java_home: Path

    def executors(self) -> list[int]:
        """Process ids of the executors that run now."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    command = (entry / "cmdline").read_bytes()
                    status = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if EXECUTOR.encode() in command and self.master[8:].encode() in _environment_of(entry, command):
                        found += [int(entry.name)] if status != "Z" else []
        return found

    def kill_executor(self) -> int:
        """kill -9 of one."""
        process_id = self.executors()[0]
        os.kill(process_id, signal.SIGKILL)
        return process_id


def _environment_of(entry: Path, command: bytes) -> bytes:
    return command + (entry / "environ").read_bytes()


@contextlib.contextmanager
def standalone_cluster(directory: Path) -> Iterator[StandaloneCluster]:
    """Runs as long as the block. Each worker offers one core and a gigabyte."""
    java_home = _java_home(directory)
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as processes:
        options: tuple[str, ...] = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        log = processes.enter_context(_running(directory / "master", java_home, master, _MASTER, *options))
        wait_until(lambda: "I have been elected leader" in log.read_text(), "a master", START_SECONDS_MAX)
        for number in range(WORKERS):
            place = directory / f"worker-{number}"
            options = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g", master)
            processes.enter_context(
                _running(place, java_home, master, _WORKER, "--work-dir", str(place / "work"), *options)
            )
        registered = "Registering worker 127.0.0.1"
        wait_until(lambda: log.read_text().count(registered) == WORKERS, "workers", START_SECONDS_MAX)
        yield StandaloneCluster(master, directory, java_home)


@contextlib.contextmanager
def _running(place: Path, java_home: Path, master: str, *command: str) -> Iterator[Path]:
    place.mkdir(parents=True)
    log = place / "log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment |= {
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(pyspark_directory()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(place / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "BARNABAS_TEST_MASTER": master,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(pyspark_directory() / "bin" / "spark-class"), *command], env=environment, stdout=output, stderr=output
        )
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _java_home(directory: Path) -> Path:
    """That of the Java that pipelines have; where it lacks the module that Spark's launcher asks for, one that leaves
    that out of its arguments.
    """
    java = find_java().executable.resolve()
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True).stdout
    if "jdk.incubator.vector" in modules:
        return java.parent.parent
    home = directory / "java"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(
        "#!/bin/bash\n"
        'arguments=()\nfor each in "$@"; do\n'
        f'  [ "$each" = "{_VECTOR}" ] || arguments+=("$each")\n'
        f'done\nexec "{java}" "${{arguments[@]}}"\n'
    )
    program.chmod(0o755)
    return home
