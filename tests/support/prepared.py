"""What suites need once and `make test` does not, ahead of them: jars of Apache Kafka, of S3Proxy and for Spark, and
kafkajs, which are fetched, and archives of classes for Java, which are made.

`python -m tests.support.prepared` waits for the network for minutes, and for a processor: `.ci/run` has it beside
`make test`. What could not be had is told, and the suite that needs it tries again; who needs what is just being
fetched waits for that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from typing import NoReturn

from barnabas.pipelines.definition import PipelineError
from tests.clients.drivers import kafkajs
from tests.support import java_archives, spark_archive
from tests.support.apache_kafka_jars import S3PROXY, JarsMissing, apache_kafka_jars
from tests.support.java import JavaMissing
from tests.support.spark import jars_of_tables

# What is needed first comes first.
FETCHED: tuple[tuple[str, Callable[[], object]], ...] = (
    ("Apache Kafka", apache_kafka_jars),
    ("kafkajs", lambda: kafkajs.reason_to_skip() or kafkajs.directory()),
    ("jars for Spark", jars_of_tables),
    ("S3Proxy", lambda: apache_kafka_jars(S3PROXY)),
)
MADE: tuple[tuple[str, Callable[[], object]], ...] = (
    ("classes of Apache Kafka", java_archives.make_archives),
    ("classes of Spark", spark_archive.make),
)
# They compute, and tests beside them have the processors first.
MADE_NICENESS = 19


def main() -> None:
    signal.signal(signal.SIGTERM, _end)
    _try_each(FETCHED)
    os.nice(MADE_NICENESS)
    _try_each(MADE)


def _try_each(wanted: tuple[tuple[str, Callable[[], object]], ...]) -> None:
    for name, have in wanted:
        try:
            have()
        except (JarsMissing, JavaMissing, PipelineError, OSError, subprocess.SubprocessError) as error:
            print(f"{name}: not prepared, what needs it will try: {error}", file=sys.stderr, flush=True)


def _end(_number: int, _frame: types.FrameType | None) -> NoReturn:
    """With what was started."""
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
