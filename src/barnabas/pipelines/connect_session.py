"""A session in a Spark that is there already, by Spark Connect: its server has the driver, we are a client.

Killed with kill -9, a client leaves its session, with queries that wait for batches to be done and commands that are
under way. So a run notes its session in the state, and the next one ends it, before it looks at what was done. What a
server does that cannot be asked any more counts for nothing: its batches wait for a run that is over, and what it
writes has a name of its run (`being-written`) that nobody takes for a batch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import re
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from barnabas.pipelines.connect_batches import send_by_value, signs_of_life
from barnabas.pipelines.connect_waiting import OVER
from barnabas.pipelines.definition import (
    ConsoleSink,
    ParquetSink,
    Pipeline,
    PipelineError,
    PipelineUnreachableError,
    ReadMode,
    SourceFormat,
    TopicSink,
)
from barnabas.pipelines.durable_files import write_json
from barnabas.pipelines.run_options import RunOptions
from barnabas.pipelines.session import HIDDEN_NAMES, settings_at_any_time
from barnabas.pipelines.spark_cluster import SparkCluster
from barnabas.pipelines.spark_extra import pyspark_version
from barnabas.pipelines.spark_messages import spark_message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTE: Final = "connect.json"
"""In the state: the session of the last run."""
KAFKA_PACKAGE: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_PACKAGES: Final = ("grpc", "grpc_status", "pandas", "pyarrow")
_CONNECT_SECONDS_MAX: Final = 5.0
_LEFT_SECONDS_MAX: Final = 60.0
_POLL_SECONDS: Final = 0.2
_PATIENCE_SECONDS: Final = 10.0
"""So long a server may be silent, all requests together; pyspark would wait for ten minutes, with each of them."""
_RETRY_MS_MAX: Final = 2_000
_HAS_ENDED: Final = ("SESSION_CLOSED", "SESSION_NOT_FOUND", "SESSION_CHANGED")
_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"
_USER: Final = "barnabas"
_ELSEWHERE: Final = "run it with --master spark://HOST:PORT"


def refuse_what_connect_has_not(pipeline: Pipeline, options: RunOptions) -> None:
    """Raises PipelineError, at the line of the file, for what a run needs the driver's own process for."""
    why = "cannot be used through Spark Connect, whose clients do not reach Spark's process"
    for sink in pipeline.sinks:
        if not isinstance(sink, TopicSink | ParquetSink | ConsoleSink):
            raise pipeline.error(f"{sink.target} {why}: run it with --master spark://HOST:PORT", sink.line)
    formats = [(source.format, source.key_format, source.line) for source in pipeline.sources]
    formats += [(sink.format, sink.key_format, sink.line) for sink in pipeline.sinks if isinstance(sink, TopicSink)]
    for form, key_format, line in formats:
        if {form, *([] if key_format is None else [key_format.format])} & {SourceFormat.AVRO, SourceFormat.PROTOBUF}:
            message = f"Avro and Protocol Buffers are not there yet through Spark Connect: {_ELSEWHERE}"
            raise pipeline.error(message, line)
    for source in pipeline.sources:
        if source.read is ReadMode.TABLE:
            message = f"topics as tables are not there yet through Spark Connect: {_ELSEWHERE}"
            raise pipeline.error(message, source.line)
    for step in pipeline.steps:
        if step.python is not None:
            raise pipeline.error(
                f"functions of Python are not there yet through Spark Connect: {_ELSEWHERE}", step.line
            )
    if options.offsets is not None or options.finish is not None or not options.commits_offsets:
        raise PipelineError(f"ranges of offsets, and backfill, are not there yet through Spark Connect: {_ELSEWHERE}")
    if pipeline.jars:
        message = "jars are the server's through Spark Connect: start it with them, and leave `jars` out"
        raise pipeline.error(message, pipeline.line)


@contextlib.contextmanager
def connect_session(
    pipeline: Pipeline, cluster: SparkCluster, state: Path, settings: dict[str, str], hidden: tuple[str, ...]
) -> Iterator[SparkSession]:
    """A session of the run's own at the server of `cluster.master`, for as long as the block lasts.

    `settings` are those of the pipeline, `hidden` the names of options whose values nobody is to see. Raises
    PipelineError for a server that is not as a run needs it.
    """
    session_id = str(uuid.uuid4())
    write_json(state / NOTE, {"master": cluster.master, "session": session_id})
    with _connected(cluster.master, session_id) as session:
        _refuse_other_server(pipeline, session, hidden)
        _apply(pipeline, session, settings)
        yield session
    (state / NOTE).unlink(missing_ok=True)


def end_left_session(state: Path, cluster: SparkCluster, say: Callable[[str], None]) -> None:
    """Ends what a run that was killed has left at its server. The run has the state's lock.

    Raises PipelineUnreachableError where nobody is at the server of this run, and PipelineError where what was left
    does not end.
    """
    require_connect_extra()
    if not _is_reached(cluster.master):
        raise PipelineUnreachableError(
            f"nobody answers at {cluster.master}: start the Spark Connect server, or correct --master"
        )
    try:
        note = json.loads((state / NOTE).read_text(encoding="utf-8"))
        master, session_id = str(note["master"]), str(note["session"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if master != cluster.master and not _is_reached(master):
        say(f"warning: nobody answers at {master}, where the last run was: what it left there waits in vain")
    else:
        try:
            with _connected(master, session_id) as session:
                _end(session, master)
        except PipelineUnreachableError as error:
            if not any(sign in error.message for sign in _HAS_ENDED):
                raise
    (state / NOTE).unlink(missing_ok=True)


def require_connect_extra(is_installed: Callable[[str], bool] | None = None) -> None:
    """Raises PipelineError, which says what to install, when a package is not there."""
    found = is_installed or (lambda package: importlib.util.find_spec(package) is not None)
    if not all(found(package) for package in _PACKAGES):
        raise PipelineError("Spark Connect needs packages that are not installed: pip install 'barnabas[connect]'")


def address_of(master: str) -> tuple[str, int]:
    """Of `sc://host:port/;...`."""
    place = master.removeprefix("sc://").split("/", 1)[0]
    host, _, port = place.rpartition(":") if re.search(r":\d+$", place) else (place, "", "15002")
    return host.strip("[]"), int(port)


def is_silence(error: Exception) -> bool:
    """Whether an error of a session says that its server is gone, or was started again without the session."""
    text = f"{type(error).__name__} {error}"
    return any(sign in text for sign in (*_HAS_ENDED, "RetriesExceeded", "RETRIES_EXCEEDED", "UNAVAILABLE"))


def _is_reached(master: str) -> bool:
    try:
        with socket.create_connection(address_of(master), _CONNECT_SECONDS_MAX):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def _connected(master: str, session_id: str) -> Iterator[Any]:
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession

    class Patience(DefaultPolicy):  # type: ignore[misc]  # pyspark's types are not followed
        """Asks again as long as the server was not silent for so long."""

        silent_since: float | None = None

        def heard(self) -> None:
            self.silent_since = None

        def can_retry(self, e: BaseException) -> bool:
            if not super().can_retry(e):
                return False
            now = time.monotonic()
            self.silent_since = now if self.silent_since is None else self.silent_since
            return now - self.silent_since < _PATIENCE_SECONDS

    send_by_value()
    separator = "" if "/" in master.removeprefix("sc://") else "/"
    # What it says, such as that a server is gone, is told by exceptions too.
    logging.getLogger("pyspark.sql.connect").setLevel(logging.CRITICAL)
    with _mode(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pyspark")
        address = f"{master}{separator};user_id={_USER};session_id={session_id}"
        session = SparkSession.builder.remote(address).create()
        try:
            patience = Patience(max_retries=None, max_backoff=_RETRY_MS_MAX)
            session.client.set_retry_policies([patience])
            try:
                session.version  # noqa: B018  # asks the server
            except PySparkException as error:
                session.release_session_on_close = False  # there is none
                reason = f"{error.getErrorClass() or ''} {spark_message(error)}".strip()
                raise PipelineUnreachableError(f"{master} gives no session: {reason}") from error
            with signs_of_life(session, patience.heard):
                yield session
        finally:
            session.streams.close()
            session.stop()


def _end(session: Any, master: str) -> None:
    from pyspark.errors import PySparkException

    deadline = time.monotonic() + _LEFT_SECONDS_MAX
    try:
        session.conf.set(OVER, "true")
        session.interruptAll()
        while active := session.streams.active:
            for query in active:
                if not query.status["isTriggerActive"]:
                    query.stop()
            if time.monotonic() > deadline:
                names = ", ".join(str(query.name) for query in active)
                raise PipelineError(f"queries that the last run has left at {master} do not end ({names}): restart it")
            time.sleep(_POLL_SECONDS)
    except PySparkException as error:
        raise PipelineError(
            f"what the last run has left at {master} cannot be ended: {spark_message(error)}"
        ) from error


def _refuse_other_server(pipeline: Pipeline, session: Any, hidden: tuple[str, ...]) -> None:
    from pyspark.errors import PySparkException

    if session.version != pyspark_version():
        message = f"the Spark Connect server is Spark {session.version}, and this is pyspark {pyspark_version()}"
        raise PipelineError(f"{message}: both must be of one version")
    try:
        options = {"kafka.bootstrap.servers": "nobody:1", "subscribe": "none"}
        session.readStream.format("kafka").options(**options).load().schema  # noqa: B018  # asks the server
    except PySparkException as error:
        package = f"{KAFKA_PACKAGE}:{pyspark_version()}"
        message = f"the Spark Connect server cannot read topics ({spark_message(error)}): start it with {package}"
        raise PipelineError(f"{message} among its packages") from error
    shown = session.conf.get("spark.redaction.regex", "")
    open_names = [name for name in hidden if re.search(HIDDEN_NAMES, name) and not re.search(shown, name)]
    if open_names:
        message = f"the Spark Connect server would show {open_names[0]} on its pages and in its events"
        raise pipeline.error(f'{message}: start it with --conf "spark.redaction.regex={HIDDEN_NAMES}"', pipeline.line)


def _apply(pipeline: Pipeline, session: Any, settings: dict[str, str]) -> None:
    from pyspark.errors import PySparkException

    for name, value in {**settings_at_any_time(), **settings}.items():
        try:
            session.conf.set(name, value)
        except PySparkException as error:
            if session.conf.get(name, "") != value:
                message = (
                    f"{name} cannot be set through Spark Connect ({spark_message(error)}): start the server with it"
                )
                raise pipeline.error(message, pipeline.line) from error


@contextlib.contextmanager
def _mode() -> Iterator[None]:
    """Has `pyspark.sql.functions` make columns of Connect's."""
    before = os.environ.get(_MODE)
    os.environ[_MODE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_MODE]
        else:
            os.environ[_MODE] = before
