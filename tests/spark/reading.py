"""Reading by Spark's Kafka source as its guide shows it: the same options for a batch and for a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Spark asks for the end of a partition behind its own fetch that waits for more: half a second for each otherwise.
FETCH_WAIT_MS = "20"
# Java's admin client waits so long for a broker that was killed before Spark asks anew; it would be a minute.
DEAD_BROKER_TIMEOUT_MS = "5000"
# What a test that fails is to wait for at most.
POLL_TIMEOUT_MS = "20000"
RUN_SECONDS = 180


class Source:
    """Spark's Kafka source on one cluster. Options are given as the guide names them."""

    def __init__(self, spark: Any, bootstrap_servers: str, directory: Path) -> None:
        """Checkpoints that a test does not name are made in `directory`."""
        self.spark = spark
        self._directory = directory
        self._options = {
            "kafka.bootstrap.servers": bootstrap_servers,
            "kafka.fetch.max.wait.ms": FETCH_WAIT_MS,
            "kafka.request.timeout.ms": DEAD_BROKER_TIMEOUT_MS,
            "kafka.default.api.timeout.ms": DEAD_BROKER_TIMEOUT_MS,
            "kafkaConsumer.pollTimeoutMs": POLL_TIMEOUT_MS,
        }
        self._queries = 0

    def batch(self, options: Mapping[str, str]) -> Any:
        """A frame of what `spark.read` gives."""
        return self.spark.read.format("kafka").options(**self._options, **options).load()

    def values(self, options: Mapping[str, str]) -> list[str]:
        """The values that a batch reads, as text, sorted by topic, partition and offset."""
        frame = self.batch(options).selectExpr("topic", "partition", "offset", "string(value) AS value")
        return [row.value for row in sorted(frame.collect())]

    def stream(self, options: Mapping[str, str]) -> Any:
        """A frame of what `spark.readStream` gives."""
        return self.spark.readStream.format("kafka").options(**self._options, **options).load()

    def stream_to_its_end(self, options: Mapping[str, str], checkpoint: Path | None = None) -> Collected:
        """Runs a query with `availableNow` to its end, and gives what it read."""
        collected = self._start(options, checkpoint, {"availableNow": True})
        try:
            assert collected.query.awaitTermination(RUN_SECONDS), f"the query did not end within {RUN_SECONDS} s"
        finally:
            collected.query.stop()
        return collected

    @contextmanager
    def streaming(self, options: Mapping[str, str]) -> Iterator[Collected]:
        """A query that runs until the end of the block, without a pause between its batches."""
        collected = self._start(options, None, {"processingTime": "0 seconds"})
        try:
            yield collected
        finally:
            collected.query.stop()

    def _start(self, options: Mapping[str, str], checkpoint: Path | None, trigger: Mapping[str, Any]) -> Collected:
        self._queries += 1
        rows: list[Any] = []
        writer = (
            self.stream(options)
            .selectExpr("topic", "partition", "offset", "string(value) AS value")
            .writeStream.foreachBatch(lambda batch, _number: rows.extend(batch.collect()))
            .option("checkpointLocation", str(checkpoint or self._directory / f"query-{self._queries}"))
            .trigger(**trigger)
        )
        return Collected(writer.start(), rows)


class Collected:
    """A streaming query and what it has read so far."""

    def __init__(self, query: Any, rows: list[Any]) -> None:
        self.query = query
        self._rows = rows

    def values(self) -> list[str]:
        """All values, as text, sorted by topic, partition and offset."""
        return [row.value for row in sorted(self._rows)]

    def values_when_idle(self) -> list[str]:
        """As `values`, once everything that the topics hold has been processed. Raises what ended the query."""
        self.query.processAllAvailable()
        return self.values()

    def batch_sizes(self) -> list[int]:
        """How many records each batch with records has read."""
        return [progress["numInputRows"] for progress in self.query.recentProgress if progress["numInputRows"]]


def as_json(topic: str, *by_partition: int) -> str:
    """An offset, or a timestamp, for each partition from 0 on, as the options want it."""
    return json.dumps({topic: {str(partition): each for partition, each in enumerate(by_partition)}})
