"""A query of a run, as the run knows it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from barnabas.pipelines.definition import Query
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
