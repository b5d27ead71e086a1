"""A pipeline's file for tests, and ways to change a part of it."""

from __future__ import annotations

from pathlib import Path

from barnabas.pipelines.definition import Pipeline
from barnabas.pipelines.reading import read_pipeline

FLIGHTS = """\
name: delays
sources:
  flights:
    topic: flights
    schema: carrier STRING, delay DOUBLE, time TIMESTAMP
  airlines:
    topic: airlines
    read: table
    schema: carrier STRING, name STRING
steps:
  - name: named
    sql: |
      SELECT f.carrier, a.name, f.delay, f.time
      FROM flights AS f
      JOIN airlines AS a ON a.carrier = f.carrier
    watermark: {column: time, delay: 1 hour}
  - name: by_hour
    sql: |
      SELECT name, window.start AS hour, avg(delay) AS delay
      FROM named
      GROUP BY name, window(time, '1 hour')
sinks:
  - topic: delays
    from: by_hour
    key: [name, hour]
  - parquet: out/delays
    from: by_hour
    key: [name, hour]
"""


def flights(directory: Path, *changes: tuple[str, str]) -> Path:
    """The file with pieces of its text replaced; each must be there once."""
    text = FLIGHTS
    for old, new in changes:
        if text.count(old) != 1:
            raise ValueError(f"{old!r} is there {text.count(old)} times")
        text = text.replace(old, new)
    path = directory / "delays.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def read_flights(directory: Path, *changes: tuple[str, str]) -> Pipeline:
    """The same, read."""
    return read_pipeline(flights(directory, *changes))
