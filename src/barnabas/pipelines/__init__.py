"""Pipelines on Spark: topics, steps in SQL or Python, and sinks, checked before they run, once or continuously.

A pipeline is a YAML file, or a Python file with a function under `@pipeline`. Spark, sqlglot and PyYAML come with
`barnabas[spark]`; nothing here imports them before it is called.
"""

from barnabas.pipelines.decorator import pipeline

__all__ = ["pipeline"]
