"""The shifts of an airline at an airport: its flights from one long pause to the next, told as they come.

A processor in Python keeps a shift for each airline and airport, and a timer ends it: docs/examples/shifts.md.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from barnabas.pipelines import pipeline

PAUSE = timedelta(hours=4)
ROW = "carrier STRING, origin STRING, began TIMESTAMP, flights INT, is_over BOOLEAN"


class Shifts(StatefulProcessor):
    """Keeps the shift that goes on, for each airline and airport."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called in each task, before its first row."""
        self.handle = handle
        self.shift = handle.getValueState("shift", "began TIMESTAMP, last TIMESTAMP, flights INT")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """All rows of a batch that are of one airline and airport, in any order."""
        shift: tuple[Any, Any, int] = self.shift.get() or (None, None, 0)
        began, last, flights = shift
        for time in sorted(time for frame in rows for time in frame["time_hour"]):
            if began is None or time - last > PAUSE:
                if began is not None:
                    yield row(key, began, flights, is_over=True)
                began, last, flights = time, time, 0
            last, flights = max(last, time), flights + 1
        self.shift.update((began, last, flights))
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(int((last + PAUSE).timestamp() * 1000))
        yield row(key, began, flights, is_over=False)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """The watermark has passed the end of the pause."""
        began, _, flights = self.shift.get()
        self.shift.clear()
        yield row(key, began, flights, is_over=True)

    def close(self) -> None:
        """Called when the task ends."""


def row(key: Any, began: Any, flights: int, *, is_over: bool) -> pd.DataFrame:
    """One row of the result."""
    carrier, origin = key
    return pd.DataFrame(
        {"carrier": [carrier], "origin": [origin], "began": [began], "flights": [flights], "is_over": [is_over]}
    )


@pipeline(
    sources={
        "flights": {
            "topic": "flights",
            "schema": "carrier STRING, origin STRING, time_hour TIMESTAMP",
            "max_records_per_batch": 2_000,
        }
    },
    steps=[{"name": "timed", "sql": "SELECT * FROM flights", "watermark": {"column": "time_hour", "delay": "1 hour"}}],
    sinks=[{"parquet": "out/shifts", "key": ["carrier", "origin", "began"]}],
)
def shifts(timed: DataFrame) -> DataFrame:
    """One row for each shift, written again when it has changed."""
    return timed.groupBy("carrier", "origin").transformWithStateInPandas(
        statefulProcessor=Shifts(), outputStructType=ROW, outputMode="Update", timeMode="EventTime"
    )
