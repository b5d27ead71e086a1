"""A query of a run, as the run knows it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from barnabas.pipelines.definition import Pipeline, Query, ReadMode
from barnabas.pipelines.plan import OutputMode
from barnabas.pipelines.progress import Totals
from barnabas.pipelines.sinks import BatchWriter


class RunningQuery:
    """One query of a run, through however many starts."""

    def __init__(self, query: Query, mode: OutputMode, writer: BatchWriter, totals: Totals, topics: frozenset[str]):
        self.query = query
        self.mode = mode
        self.writer = writer
        self.totals = totals
        self.topics = topics
        self.handle: Any = None
        self.restarts = 0
        self.last_batch_id = -1
        self.offsets: Mapping[str, Mapping[int, int]] = {}
        self.lag: Mapping[str, int] = {}
        self.is_done = False
        self.has_told_of_refused = False
        self.worked_at = time.monotonic()
        self.ended_at: float | None = None
        self.bounded = writer.bounded
        self.is_last_alone = False

    def works(self) -> None:
        """It has finished a batch, or has asked the brokers and found nothing new: failures count from here on."""
        self.restarts, self.worked_at = 0, time.monotonic()


def offsets_passed(pipeline: Pipeline, queries: Collection[RunningQuery]) -> dict[str, dict[int, int]]:
    """By topic and partition the offset that every query which reads the topic has passed."""
    passed: dict[str, dict[int, int]] = {}
    for topic in {source.topic for source in pipeline.sources if source.read is ReadMode.STREAM}:
        readers = [running.offsets.get(topic) for running in queries if topic in running.topics]
        known = [offsets for offsets in readers if offsets is not None]
        if known and len(known) == len(readers):
            partitions = set(known[0]).intersection(*known)
            passed[topic] = {number: min(offsets[number] for offsets in known) for number in partitions}
    return passed
