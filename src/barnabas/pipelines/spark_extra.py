"""The packages of `barnabas[spark]`: whether they are installed, asked before anything imports them, and where."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Final

from barnabas.pipelines.definition import PipelineError

PACKAGES: Final = ("yaml", "sqlglot", "pyspark", "pyarrow")
_NOT_INSTALLED: Final = "pipelines run on Spark, which is not installed: pip install 'barnabas[spark]'"


def require_spark_extra(is_installed: Callable[[str], bool] | None = None) -> None:
    """Raises PipelineError, which says what to install, when a package is not there."""
    found = is_installed or (lambda package: importlib.util.find_spec(package) is not None)
    if not all(found(package) for package in PACKAGES):
        raise PipelineError(_NOT_INSTALLED)


def pyspark_version() -> str:
    """The installed pyspark's version. Raises PipelineError, with the remedy, where there is none."""
    import importlib.metadata  # which loads all of `email`

    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError as error:
        raise PipelineError(_NOT_INSTALLED) from error


def pyspark_directory() -> Path:
    """Where pyspark is installed: its `jars` are Spark's. Raises PipelineError, with the remedy."""
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise PipelineError(_NOT_INSTALLED)
    return Path(package.origin).parent
