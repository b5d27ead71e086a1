"""A pipeline made in Python, for tests that are not about reading files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from barnabas.pipelines.cluster_identity import ClusterIdentity
from barnabas.pipelines.definition import Column, ParquetSink, Pipeline, ReadMode, Source, Step, TopicSink, Watermark

IDENTITY = ClusterIdentity("cluster", {"flights": "f1", "airlines": "a1", "delays": "d1"})


def made_pipeline(directory: Path, **changes: Any) -> Pipeline:
    """Flights joined with airlines and counted by day, into a topic and a table below `directory`."""
    parts: dict[str, Any] = {
        "name": "delays",
        "path": directory / "delays.yaml",
        "state_directory": directory / "state",
        "sources": (flights(), airlines()),
        "steps": (timed(), by_day()),
        "sinks": (
            TopicSink("delays", "by_day", line=30, from_line=31, key=("carrier",), key_line=32),
            ParquetSink(directory / "table", "by_day", line=33, from_line=34, key=("carrier",), key_line=35),
        ),
    }
    return Pipeline(**{**parts, **changes})


def flights(**changes: Any) -> Source:
    columns = (Column("carrier", "STRING"), Column("time", "TIMESTAMP"))
    schema = "carrier STRING, time TIMESTAMP"
    parts: dict[str, Any] = {"name": "flights", "topic": "flights", "schema": schema, "columns": columns}
    return Source(**{**parts, "line": 3, "topic_line": 4, "schema_line": 5, **changes})


def airlines() -> Source:
    columns = (Column("carrier", "STRING"), Column("name", "STRING"))
    return Source("airlines", "airlines", "carrier STRING, name STRING", columns, 6, 7, 8, read=ReadMode.TABLE)


def timed(sql: str = "SELECT * FROM flights JOIN airlines USING (carrier)", delay_ms: int = 3_600_000) -> Step:
    return Step("timed", sql, 10, ((11, 6),), Watermark("time", delay_ms, 12), reads=("flights", "airlines"))


def by_day() -> Step:
    return Step(
        "by_day", "SELECT carrier, COUNT(*) AS flights FROM timed GROUP BY carrier", 20, ((21, 6),), reads=("timed",)
    )
