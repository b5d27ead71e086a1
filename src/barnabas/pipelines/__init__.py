"""Pipelines on Spark: topics, SQL steps and sinks in a YAML file, checked before they run, once or continuously.

Spark, sqlglot and PyYAML come with `barnabas[spark]`; nothing here imports them before it is called.
"""
