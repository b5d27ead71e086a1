"""A first pipeline, as `barnabas pipeline init` writes it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from barnabas.pipelines.definition import PIPELINE_NAME, PipelineError, PipelineMissingError

DEFAULT_STEM: Final = "pipeline"
NAME_DEFAULT: Final = "revenue"

_EXAMPLE: Final = r"""
# A pipeline: orders of a topic are summed per shop and hour, into another topic and a table of Parquet files.
#
# Create the topics, and some orders to try it with:
#   barnabas topic create orders revenue --partitions 3
#   printf '%s\n' \
#     '{"shop": "Prague", "amount": 12.50, "time": "2025-03-01T09:05:00Z"}' \
#     '{"shop": "Brno", "amount": 7.25, "time": "2025-03-01T09:40:00Z"}' \
#     '{"shop": "Prague", "amount": 3.00, "time": "2025-03-01T10:10:00Z"}' | barnabas produce orders
#
# Check it, run it over the orders that are there now, and look at the result:
#   barnabas pipeline check FILE
#   barnabas pipeline run FILE --once
#   barnabas pipeline status FILE
#   barnabas consume revenue --until-end --format line
#
# Without --once it runs until Ctrl-C, and takes orders as they come.
name: NAME

# Each source is a topic that SQL sees as a table of this name, with the columns of the schema and with _key, _topic,
# _partition, _offset and _timestamp of the record.
sources:
  orders:
    topic: orders
    read: stream                # or table: the newest record of each key, as of each batch; for joins
    format: json
    schema: shop STRING, amount DECIMAL(10, 2), time TIMESTAMP
    starting: earliest          # or latest, or a time; later runs go on where the last one ended
    max_records_per_batch: 500000
    on_error: topic             # a record that does not fit the schema goes to the topic NAME.dlq; or skip, fail

# Each step is one query of Spark SQL over sources and earlier steps.
steps:
  # The watermark says how far behind the newest order another may be and still count. An order of more than a day
  # ahead of now does not; `ahead` says how much may be.
  - name: timed
    sql: SELECT shop, amount, time FROM orders
    watermark: {column: time, delay: 1 hour}

  - name: revenue_by_hour
    sql: |
      SELECT
        shop,
        window.start AS hour,
        COUNT(*) AS orders,
        SUM(amount) AS revenue
      FROM timed
      GROUP BY shop, window(time, '1 hour')

# An hour's row is rewritten whenever an order is added to it: the newest row of a key is the result.
sinks:
  - topic: revenue
    from: revenue_by_hour
    key: [shop, hour]
  - parquet: NAME-table         # a directory, beside this file unless it begins with /
    from: revenue_by_hour
    key: [shop, hour]

trigger: 5 seconds              # between the starts of two batches, without --once
# state: .barnabas/NAME         # what was read and computed so far, beside this file
"""


def example_text(path: Path) -> str:
    """The example for a file of that path: its commands name the file, and the pipeline has the file's name."""
    stem = path.name.split(".")[0]
    name = stem if PIPELINE_NAME.fullmatch(stem) and stem != DEFAULT_STEM else NAME_DEFAULT
    return _EXAMPLE.lstrip().replace("NAME", name).replace("FILE", shlex.quote(str(path)))


def write_example(path: Path) -> None:
    """Writes the example to a file that is not there yet.

    Raises PipelineError where it is, or cannot be written, PipelineMissingError without its directory.
    """
    if path.suffix == ".py":
        message = f"{path}: the first pipeline is YAML, so name it {path.with_suffix('.yaml')}; one in Python is in"
        raise PipelineError(f"{message} docs/pipelines.md, Pipelines in Python")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(example_text(path))
    except FileExistsError:
        raise PipelineError(f"{path} exists already: name another file, or remove it") from None
    except FileNotFoundError:
        raise PipelineMissingError(f"the directory {path.parent} does not exist: create it first") from None
    except OSError as error:
        raise PipelineError(f"{path} cannot be written: {error.strerror}") from None
