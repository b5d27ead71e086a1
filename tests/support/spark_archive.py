"""An archive of Spark's classes (AppCDS), with which every Java of the tests with Spark starts in half the time.

`python -m tests.support.spark_archive` makes it in the cache of the project, where it is missing. It is of Spark's own
jars, which stand first in every class path, and so it serves sessions with whatever jars, where that of a user is of
all jars of a session.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from barnabas.pipelines.case_verdicts import judge
from barnabas.pipelines.cases import read_cases
from barnabas.pipelines.class_archive import VARIABLE, ArchiveUse, ClassArchive, archive_of, class_path_of, make_archive
from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.java import find_java
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.session import SparkOptions, spark_session
from tests.support.apache_kafka_jars import CACHE_DIRECTORY

JAVA_VARIABLE = "JAVA_TOOL_OPTIONS"
"""Java takes these before those of its command, which win."""

# What most tests have Spark load.
PIPELINE = """\
name: classes
sources:
  flights: {topic: flights, schema: "carrier STRING, delay INT, fare DECIMAL(10, 2), time TIMESTAMP"}
  airlines: {topic: airlines, read: table, schema: "carrier STRING, name STRING"}
steps:
  - name: named
    sql: SELECT f.*, a.name FROM flights AS f LEFT JOIN airlines AS a ON a.carrier = f.carrier
    watermark: {column: time, delay: 1 hour}
  - name: by_hour
    sql: |
      SELECT name, window.start AS hour, avg(delay) AS delay, sum(fare) AS fares, count(*) AS flights
      FROM named GROUP BY name, window(time, '1 hour')
sinks:
  - {topic: delays, from: by_hour, key: [name, hour]}
  - {parquet: out, from: by_hour, key: [name, hour]}
"""
TESTS = """\
tests:
  - name: one
    given:
      airlines: [{_key: UA, carrier: UA, name: United}]
      flights: [{carrier: UA, delay: 5, fare: 1.10, time: 2013-01-01T05:00:00Z}, {_value: nonsense}]
    then: [{flights: [{carrier: UA, delay: 7, fare: 1.10, time: 2013-01-01T07:00:00Z}]}]
    expect: {by_hour: [{flights: 1}, {flights: 1}]}
    dead_letters: [{value: nonsense}]
"""


def archive() -> ClassArchive | None:
    """Where it is, or would be; None without a Java."""
    try:
        java = find_java()
    except PipelineError:
        return None
    # The product's own name has Java and all jars, and the times of both.
    of_user = archive_of(java, ())
    return None if of_user is None else ClassArchive(CACHE_DIRECTORY / of_user.path.name, class_path_of(()), java)


def java_options() -> str:
    """For JAVA_TOOL_OPTIONS: the archive, where it is there, and the compiler for programs that live for a minute."""
    found = archive()
    shared = "" if found is None or not found.path.is_file() else f'-Xshare:auto "-XX:SharedArchiveFile={found.path}" '
    return f"{shared}-Xlog:disable -XX:TieredStopAtLevel=1"


def make() -> None:
    """Makes it where it is missing, in a minute; says why not where it cannot be made."""
    wanted = archive()
    if wanted is None or wanted.path.is_file():
        return
    print("storing Spark's classes for the tests (once, a minute) ...", file=sys.stderr, flush=True)
    CACHE_DIRECTORY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        classes = Path(work) / "loaded"
        _run(wanted, Path(work), classes)
        with _environment({VARIABLE: ArchiveUse.MAKE.value}):
            make_archive(wanted, classes, lambda line: print(line, file=sys.stderr, flush=True))


def _run(wanted: ClassArchive, directory: Path, classes: Path) -> None:
    """A pipeline in a Spark that notes its classes."""
    path, tests = directory / "classes.yaml", directory / "classes.test.yaml"
    path.write_text(PIPELINE)
    tests.write_text(TESTS)
    pipeline = read_pipeline(path)
    options = SparkOptions(wanted.java, (), directory / "logs", "classes", is_short=True)
    # A user's archive of the same jars, where there is one, would have nothing noted.
    noting = {VARIABLE: ArchiveUse.OFF.value, JAVA_VARIABLE: f'"-XX:DumpLoadedClassList={classes}"'}
    with _environment(noting), spark_session(options) as session:
        verdicts = judge(session, pipeline, read_cases(pipeline, tests), options.log_path, lambda _verdict: None)
    assert all(verdict.has_passed for verdict in verdicts), verdicts


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


if __name__ == "__main__":
    make()
