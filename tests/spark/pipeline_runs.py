"""Runs of a pipeline over batches of records that are files, in a Spark that is there; and how a run is killed between
two of its steps. What `test_pipeline_tables` has in its files.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from barnabas.pipelines.case_run import RECORDS_SCHEMA, record_line
from barnabas.pipelines.cases import GivenRecord
from barnabas.pipelines.cluster_identity import ClusterIdentity
from barnabas.pipelines.definition import Pipeline, Query, Source
from barnabas.pipelines.plan import check_views, create_views, rows_to_write, rows_with_order
from barnabas.pipelines.reading import read_pipeline
from barnabas.pipelines.sinks import BatchWriter, check_tables, held_tables, settings_of, writers_of
from barnabas.pipelines.sources import KafkaOptions, decoded
from barnabas.pipelines.state_directory import StateDirectory, spark_path

PIPELINE = """\
name: flights
sources:
  flights: {{topic: flights, schema: "id INT, carrier STRING, op STRING, at TIMESTAMP"}}
steps:
  - {{name: changes, sql: "SELECT id, carrier, at, op = 'd' AS gone, _offset FROM flights"}}
sinks:
  - {{{sink}}}
"""
APPENDED = "from: flights, partition_by: carrier"
KEYED = "from: changes, key: id, delete: gone, newest_by: [at, _offset]"
HADOOP = "spark.hadoop."
NAMES = (f"lake{number}" for number in itertools.count())
Row = dict[str, Any]


class KilledError(Exception):
    """Stands for the end of a run between two of its steps."""


class Runs:
    """Runs of a pipeline over batches of records, each run in a session of its own, as after a kill."""

    def __init__(self, spark: Any, directory: Path, sink: str) -> None:
        self.spark = spark
        self.directory = directory
        self.records = directory / "records"
        self.records.mkdir()
        self._offset = 0
        self._files = 0
        self.pipeline = self.having(sink)

    def having(self, sink: str, text: str = PIPELINE) -> Pipeline:
        return self.reading(text.format(sink=sink))

    def reading(self, text: str) -> Pipeline:
        path = self.directory / "flights.yaml"
        path.write_text(text)
        self.pipeline = read_pipeline(path)
        return self.pipeline

    def add(self, rows: Sequence[Row]) -> None:
        """One more batch."""
        self.give(
            GivenRecord("", str(row.get("id")).encode(), json.dumps(row).encode(), 0, self._offset + number, 0)
            for number, row in enumerate(rows)
        )

    def give(self, records: Iterable[GivenRecord]) -> None:
        """The same, of records as they are."""
        path = self.records / f"{self._files:06}.json"
        with path.open("w") as file:
            for given in records:
                file.write(json.dumps(record_line("flights", given)) + "\n")
                self._offset += 1
        os.utime(path, (1_000_000 + self._files, 1_000_000 + self._files))
        self._files += 1

    @property
    def state(self) -> StateDirectory:
        return StateDirectory(self.pipeline.state_directory)

    def run(self, *, killed_after: int | None = None) -> None:
        """To the end of what is there, or to the end of a batch that Spark does not hear of."""
        pipeline, state, session = self.pipeline, self.state, self.session()
        state.directory.mkdir(parents=True, exist_ok=True)
        check_tables(pipeline, state, state.check_definition(pipeline)[0])
        state_id, _ = state.take_definition(pipeline, ClusterIdentity("cluster"))

        def frame_of(source: Source) -> Any:
            reader = session.readStream.schema(RECORDS_SCHEMA).option("maxFilesPerTrigger", 1)
            return decoded(reader.json(spark_path(self.records)), source)

        create_views(pipeline, session, frame_of)
        modes = check_views(pipeline, session)
        with held_tables(pipeline, state, state_id):
            for query in pipeline.queries:
                self._query(session, query, state_id, modes[query.from_view].value, killed_after)

    def session(self) -> Any:
        """A new one, with the settings that the pipeline needs."""
        session = self.spark.newSession()
        for name, value in settings_of(self.pipeline).items():
            if name.startswith(("spark.sql.catalog.barnabas", "spark.sql.catalog.lake", HADOOP)):
                session.conf.set(name.removeprefix(HADOOP), value)
        return session

    def _query(self, session: Any, query: Query, state_id: str, mode: str, killed_after: int | None) -> None:
        writers = writers_of(self.pipeline, query, KafkaOptions("unused:1"))
        for each in writers:
            each.recover(rows_to_write(self.pipeline, session, query), self.state, state_id)
        writer = BatchWriter(query, writers, self.state, threading.Event())

        def write(frame: Any, batch_id: int) -> None:
            writer(frame, batch_id)
            if batch_id == killed_after:
                raise KilledError

        started = (
            rows_with_order(self.pipeline, session, query)
            .writeStream.outputMode(mode)
            .option("checkpointLocation", spark_path(self.state.checkpoint(query.from_view)))
            .foreachBatch(write)
            .trigger(availableNow=True)
            .start()
        )
        try:
            started.awaitTermination()
        except Exception:
            if writer.error is not None:
                raise writer.error from None
            if killed_after is None:
                raise
        else:
            assert killed_after is None

    def table(self) -> list[tuple[Any, ...]]:
        """The rows, without their times."""
        (sink,) = self.pipeline.sinks
        kind, path = sink.target.split(" ", 1)
        rows = self.session().read.format(kind).load(path).drop("at").collect()
        return sorted((tuple(row) for row in rows), key=lambda row: (row[0] is not None, row))


def mount(name: str, directory: Path) -> str:
    """The settings of a pipeline's file by which `viewfs://NAME/tables` is that directory, in braces that are doubled:
    a file system of Hadoop's with names of its own, as that of a store.
    """
    directory.mkdir(exist_ok=True)
    return f"spark: {{{{{HADOOP}fs.viewfs.mounttable.{name}.link./tables: 'file://{directory}'}}}}\n"


def runs_at(spark: Any, directory: Path, kind: str, how: str) -> Runs:
    """Of a table at a URL that nobody has used; its files are in `store` of the directory."""
    runs, name = Runs(spark, directory, "topic: unused, from: flights"), next(NAMES)
    runs.having(f"{kind}: 'viewfs://{name}/tables/flights/', {how}", PIPELINE + mount(name, directory / "store"))
    return runs


def uncommit(runs: Runs, kind: str, table: Path) -> None:
    """What is there when a run is killed before the last commit has its name: its files, and no commit of them."""
    if kind == "delta":
        newest = max((table / "_delta_log").glob("*.json"))
        newest.rename(newest.with_name(f".{newest.name}.0.tmp"))
        newest.with_suffix(".crc").unlink(missing_ok=True)
        runs.spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    else:
        metadata = table / "metadata"
        newest = max(metadata.glob("v*.metadata.json"), key=lambda path: int(path.name[1:].partition(".")[0]))
        version = int(newest.name[1:].partition(".")[0])
        newest.rename(metadata / "0.metadata.json")
        (metadata / "version-hint.text").write_text(str(version - 1))
    for checksum in table.rglob(".*.crc"):
        checksum.unlink()


def row(number: int | None, carrier: str = "UA", op: str = "u", minute: int = 0) -> Row:
    return {"id": number, "carrier": carrier, "op": op, "at": f"2013-01-01T05:{minute:02}:00Z"}
