"""What `barnabas pipeline` sees to before a run: the file, directories and topics, and by Spark names and types."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.cli.connection import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP_SERVER
from barnabas.cli.output import say
from barnabas.cli.pipeline_cluster import ask_cluster_of, bootstrap_of

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.pipelines.definition import Pipeline


def read_before_spark(path: Path, bootstrap: str) -> tuple[Pipeline, str]:
    """The pipeline of a file, once all that can be known before Spark starts is right, and its brokers."""
    from barnabas.pipelines.advice import advice_on
    from barnabas.pipelines.backfill import refuse_half_replaced
    from barnabas.pipelines.reading import read_pipeline
    from barnabas.pipelines.spark_extra import require_spark_extra
    from barnabas.pipelines.topic_options import resolved_options

    require_spark_extra()
    pipeline = read_pipeline(path)
    bootstrap = bootstrap_of(pipeline, bootstrap)
    for line in advice_on(pipeline):
        say(f"warning: {line}")
    refuse_half_replaced(pipeline)
    resolved_options(pipeline)
    return checked_before_spark(pipeline, bootstrap), bootstrap


def checked_before_spark(pipeline: Pipeline, bootstrap: str) -> Pipeline:
    """Sees that directories, functions of Python and topics of a pipeline are right."""
    from barnabas.client.admin import Admin
    from barnabas.pipelines.cluster_check import check_cluster
    from barnabas.pipelines.cluster_identity import identity_of
    from barnabas.pipelines.machine_check import check_directories
    from barnabas.pipelines.python_functions import load_functions
    from barnabas.pipelines.state_directory import StateDirectory

    check_directories(pipeline)
    load_functions(pipeline)

    async def topics(client: Client) -> None:
        async with Admin(client) as admin:
            await check_cluster(pipeline, admin, _bootstrap_words(bootstrap))
            identity = await identity_of(pipeline, client.cluster.cluster_id, admin)
        StateDirectory(pipeline.state_directory).check_identity(pipeline, identity)

    ask_cluster_of(pipeline, bootstrap, topics)
    return pipeline


def check_by_spark(pipeline: Pipeline, jars_directory: Path | None) -> None:
    """Has Spark see whether names and types of a pipeline are right; it reads no topic."""
    import tempfile

    from barnabas.pipelines.connector import jars_of
    from barnabas.pipelines.java import find_java
    from barnabas.pipelines.jvm import LOG_NAME
    from barnabas.pipelines.plan import check_with_spark
    from barnabas.pipelines.session import SparkOptions, looking_after_spark, spark_session
    from barnabas.pipelines.sinks import settings_of
    from barnabas.pipelines.store_check import refuse_unknown_stores

    java = find_java()
    jars = jars_of(pipeline, java, jars_directory, say)
    say("Spark looks at names and types ...")
    with tempfile.TemporaryDirectory(prefix="barnabas-check-") as logs:
        options = SparkOptions(
            java,
            jars,
            log_directory=Path(logs),
            name=pipeline.name,
            is_short=True,
            settings=tuple(settings_of(pipeline).items()),
        )
        with spark_session(options) as session, looking_after_spark(Path(logs) / LOG_NAME):
            check_with_spark(pipeline, session)
            refuse_unknown_stores(session, pipeline, pipeline.sinks)


def _bootstrap_words(bootstrap: str) -> str:
    """What a command that is proposed needs to reach the same cluster."""
    if bootstrap in (DEFAULT_BOOTSTRAP_SERVER, os.environ.get(BOOTSTRAP_VARIABLE)):
        return ""
    return f"--bootstrap-server {bootstrap}"
