"""One Spark session whose driver is on this machine: UTC, quiet, and nothing left behind.

with spark_session(SparkOptions(find_java(), jars, log_directory, "delays")) as session:
    session.sql("SELECT 1").show()
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.pipelines.class_archive import ArchiveUse, archive_of, archive_use
from barnabas.pipelines.definition import Pipeline, PipelineError, SparkEndedError
from barnabas.pipelines.file_secrets import spark_settings_of_file
from barnabas.pipelines.java import Java
from barnabas.pipelines.jvm import AVRO_OPTIONS, LOG_NAME, JvmOptions, running_jvm
from barnabas.pipelines.spark_cluster import LOCAL_CLUSTER, SUBMITTED_VARIABLE, SparkCluster, is_submitted, memory_bytes
from barnabas.pipelines.spark_extra import pyspark_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MEBIBYTE = 1024 * 1024
_MEMORY_BYTES_MIN = 640 * _MEBIBYTE
_MEMORY_BYTES_MAX = 4096 * _MEBIBYTE
_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
# A task that fails is tried again, as on a cluster: what a broker's end has broken may be whole a moment later.
_TASK_ATTEMPTS_MAX = 3
# Spark asks the brokers so often for new records when a query has no trigger; its default is 10 ms.
_POLLING_DELAY_MS = 100
_GATEWAY_VARIABLES = (SUBMITTED_VARIABLE, "PYSPARK_GATEWAY_SECRET")
_STOP_TIMEOUT_SECONDS = 10
HIDDEN_NAMES = (
    "(?i)secret|password|passphrase|token|access[.]?key|credential|jaas|(keystore|account|private|encryption)[.]?key"
    "|[.]sas[.]"
)
"""Which settings and options Spark shows without their values, in logs, events and on its pages."""
EXECUTOR_OPTIONS = (*AVRO_OPTIONS, "-Dfile.encoding=UTF-8", "-Duser.timezone=UTC")
"""For Java on the machines of a cluster."""


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """What a session needs: a Java, the jars besides Spark's own, a directory of its own for logs, and a name.

    `kept_open` are descriptors that Spark's process is to have, such as that of a lock that lasts as long as it does.
    `is_short` is for what is done in a minute, as a check. With `notes_classes` a session without an archive of
    classes notes them, for `make_archive`. `settings` are those of Spark that a pipeline needs or has, `cluster` is
    where it works.
    """

    java: Java
    jars: tuple[Path, ...]
    log_directory: Path
    name: str
    kept_open: tuple[int, ...] = ()
    is_short: bool = False
    notes_classes: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    cluster: SparkCluster = LOCAL_CLUSTER

    @property
    def log_path(self) -> Path:
        """Where Spark's warnings and errors are."""
        return self.log_directory / LOG_NAME


@contextlib.contextmanager
def spark_session(options: SparkOptions, stop: threading.Event | None = None) -> Iterator[SparkSession]:
    """A session that lives as long as the block, in a Java process of its own, which is gone afterwards.

    One at a time in a process. Signals keep the handlers they had. Raises PipelineError when Spark does not start,
    RunStopped when `stop` is set before its process is there.
    """
    pyspark_version()
    if options.cluster.is_connect:
        raise PipelineError("only `barnabas pipeline run` goes through Spark Connect: name another --master")
    if is_submitted():
        with submitted_session(options) as session:
            yield session
        return
    memory = options.cluster.driver_memory
    jvm = JvmOptions(
        options.java,
        options.jars,
        options.log_directory,
        driver_memory_bytes() if memory is None else memory_bytes(memory),
        options.kept_open,
        options.is_short,
        archive_of(options.java, options.jars),
        options.notes_classes and archive_use() is ArchiveUse.MAKE,
        options.cluster.address,
    )
    try:
        jvm.log_directory.mkdir(parents=True, exist_ok=True)
        with running_jvm(jvm, stop, _import_pyspark) as (port, secret), _environment(port, secret):
            session = _started(options, jvm)
            # A process that this one starts has a Spark of its own, and is not taken for one by spark-submit.
            for name in _GATEWAY_VARIABLES:
                del os.environ[name]
            try:
                yield session
            finally:
                _stop(session)
    except OSError as error:
        raise PipelineError(f"Spark cannot be started: {error}") from error


def spark_settings(options: SparkOptions, scratch_directory: Path) -> dict[str, str]:
    """Every setting of Spark's that is not its default."""
    return {
        **options.cluster.settings(_TASK_ATTEMPTS_MAX, options.jars, EXECUTOR_OPTIONS),
        "spark.driver.bindAddress": options.cluster.address,
        "spark.driver.host": options.cluster.address,
        "spark.local.dir": str(scratch_directory),
        **session_settings(options),
        "spark.sql.warehouse.dir": str(scratch_directory / "warehouse"),
        **dict(options.settings),
    }


def session_settings(options: SparkOptions) -> dict[str, str]:
    """Those that do not depend on where Spark works, nor on this machine."""
    return {
        "spark.app.name": f"barnabas pipeline {options.name}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        # Workers in Python take a time without a zone, of rows and of state, for one of their own.
        "spark.executorEnv.TZ": "UTC",
        **settings_at_any_time(),
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.redaction.regex": HIDDEN_NAMES,
        "spark.sql.redaction.options.regex": f"{HIDDEN_NAMES}|(?i)url",
    }


def settings_at_any_time() -> dict[str, str]:
    """Those of them that a session takes also from a Spark that was started without."""
    return {
        "spark.sql.session.timeZone": "UTC",
        # Spark's 200 would cost a small query tens of seconds. State is kept in so many parts for good.
        "spark.sql.shuffle.partitions": str(shuffle_partitions()),
        # Spark's own form, INT96, has no statistics, and is deprecated.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.streaming.pollingDelay": f"{_POLLING_DELAY_MS}ms",
        # A batch that is cut short is interrupted first; what does not heed that ends with the process.
        "spark.sql.streaming.stopTimeout": f"{_STOP_TIMEOUT_SECONDS}s",
    }


def apply_settings(session: SparkSession, pipeline: Pipeline) -> None:
    """Gives a session, of a Spark that was perhaps started for another version of the pipeline, the settings of its
    file. Raises PipelineError for one that Spark takes at its start only, and that it was started without.
    """
    from pyspark.errors import PySparkException

    for name, value in spark_settings_of_file(pipeline):
        try:
            session.conf.set(name, value)
        except PySparkException:
            if session.sparkContext.getConf().get(name) != value:
                message = f"{name} counts from the start of Spark, and this one was started without: start it again"
                raise pipeline.error(message) from None


@contextlib.contextmanager
def submitted_session(options: SparkOptions) -> Iterator[SparkSession]:
    """A session in the process that spark-submit has started: master, memory and jars are its own options' to say."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    _quieten_pyspark()
    conf = SparkConf()
    ours = {**session_settings(options), **dict(options.settings)}
    for name, value in ours.items():
        conf.setIfMissing(name, value)
    given = conf.get("spark.executor.extraJavaOptions", "")
    conf.set("spark.executor.extraJavaOptions", " ".join(filter(None, [*EXECUTOR_OPTIONS, given])))
    with _signals_kept():
        context = SparkContext(conf=conf)
    java = context._jvm.java  # noqa: SLF001
    for option in AVRO_OPTIONS:
        java.lang.System.setProperty(*option.removeprefix("-D").split("=", 1))
    session = SparkSession(context)
    try:
        yield session
    finally:
        session.stop()


@contextlib.contextmanager
def looking_after_spark(log_path: Path) -> Iterator[None]:
    """Raises SparkEndedError when what the block asks Spark for finds its process gone."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError:
        raise  # it is there, and says so
    except (Py4JError, ConnectionError) as error:
        raise SparkEndedError(f"Spark's process ended unexpectedly ({error}); {log_path} may say why") from error


def shuffle_partitions() -> int:
    """The number of cores that this process may use, at least two."""
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    return max(2, len(affinity(0)) if affinity is not None else os.cpu_count() or 1)


def driver_memory_bytes() -> int:
    """A quarter of the memory of the machine, or of the container, between 640 MiB and 4 GiB."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in _CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            total = min(total, int(limit.read_text()))
    return min(max(total // 4, _MEMORY_BYTES_MIN), _MEMORY_BYTES_MAX)


def _started(options: SparkOptions, jvm: JvmOptions) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    _quieten_pyspark()
    try:
        settings = SparkConf(loadDefaults=False).setAll(list(spark_settings(options, jvm.scratch_directory).items()))
        with _signals_kept():
            context = SparkContext(conf=settings)
        return SparkSession(context)
    except (Py4JError, OSError) as error:
        raise PipelineError(f"Spark did not start: {error}; {jvm.log_path} may say more") from error


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """SparkContext takes SIGINT for itself, to cancel its jobs: by a call to Java, which fails amid another. So nothing
    else is asked of Java in the block.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _import_pyspark() -> None:
    """What takes a second, and can be done while Java starts."""
    import pyspark.sql.streaming  # noqa: F401


def _quieten_pyspark() -> None:
    """Keeps pyspark and py4j from printing each error as a page of JSON, or of Python, besides raising it."""
    from pyspark.logger import PySparkLogger

    # Without a handler Python prints what is logged, such as that a call was cut short by Ctrl-C.
    logging.getLogger("py4j").addHandler(logging.NullHandler())
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _stop(session: SparkSession) -> None:
    """Stops the session, in a process that may be gone, and makes pyspark forget that process."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001  # pyspark has no public way to let go of its gateway
    with contextlib.suppress(Py4JError, OSError):
        session.stop()
    with contextlib.suppress(Py4JError, OSError):
        gateway.shutdown()
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001


@contextlib.contextmanager
def _environment(port: int, secret: str) -> Iterator[None]:
    """What pyspark reads of the environment, and nothing of what someone has set there for another Spark."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(("SPARK_", "PYSPARK_")):
            del os.environ[name]
    os.environ.update(
        dict(zip(_GATEWAY_VARIABLES, (str(port), secret), strict=True)),
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
    )
    try:
        yield
    finally:
        for name in list(os.environ):
            if name.startswith(("SPARK_", "PYSPARK_")):
                del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if name.startswith(("SPARK_", "PYSPARK_"))})
