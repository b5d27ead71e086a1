"""The cluster of a pipeline: what its file says of it, and what the command line does."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from barnabas.cli.connection import ask_cluster, with_ports
from barnabas.cli.profiles import is_on_command_line

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.pipelines.definition import Pipeline

Result = TypeVar("Result")


def bootstrap_of(pipeline: Pipeline, bootstrap: str) -> str:
    """The brokers that the command line names, or else the pipeline's file, or else the environment or the default."""
    context = click.get_current_context(silent=True)
    named = pipeline.cluster.bootstrap_servers
    if not named or (context is not None and is_on_command_line(context, "bootstrap")):
        return bootstrap
    return with_ports(named)


def ask_cluster_of(pipeline: Pipeline, bootstrap: str, body: Callable[[Client], Coroutine[Any, Any, Result]]) -> Result:
    """What `ask_cluster` does, with the login of the pipeline's file. Raises PipelineError for one that cannot be."""
    from barnabas.pipelines.cluster_access import access_of_pipeline

    return ask_cluster(bootstrap, body, access_of_pipeline(pipeline))
