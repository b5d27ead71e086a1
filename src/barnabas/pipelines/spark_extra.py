"""Whether the packages of `barnabas[spark]` are installed, asked before anything imports them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Final

from barnabas.pipelines.definition import PipelineError

PACKAGES: Final = ("yaml", "sqlglot", "pyspark", "pyarrow")


def require_spark_extra(is_installed: Callable[[str], bool] | None = None) -> None:
    """Raises PipelineError, which says what to install, when a package is not there."""
    found = is_installed or (lambda package: importlib.util.find_spec(package) is not None)
    if not all(found(package) for package in PACKAGES):
        raise PipelineError("pipelines run on Spark, which is not installed: pip install 'barnabas[spark]'")
