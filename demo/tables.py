"""The result as a table for people: which carrier is how late."""

from __future__ import annotations

import math
from typing import Any

from rich import box
from rich.table import Table


def by_airline(delays: Any) -> Any:
    """The daily rows (`demo.expected.COLUMNS`) as sums and means per airline, the latest first.

    Means are minutes per flight that departed, arrived, or departed in rain; NaN where there is none.
    """
    sums = delays.groupby("airline").sum(numeric_only=True)
    return sums.assign(
        departure_delay=sums.departure_delay_minutes / sums.departed,
        arrival_delay=sums.arrival_delay_minutes / sums.arrived,
        rain_delay=sums.rain_delay_minutes / sums.departed_in_rain,
        cancelled_percent=100 * sums.cancelled / sums.flights,
    ).sort_values("departure_delay", ascending=False)


def table_of(delays: Any) -> Table:
    """The table that the run ends with."""
    title = "Carriers by mean delay at departure, in minutes (rain is also snow)"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("Carrier", no_wrap=True)
    for heading in ("Flights", "Cancelled", "Departure", "in rain", "Arrival"):
        table.add_column(heading, justify="right", no_wrap=True)
    for airline, row in by_airline(delays).iterrows():
        table.add_row(
            str(airline),
            f"{int(row.flights):,}",
            f"{row.cancelled_percent:.1f}%",
            *(_minutes(value) for value in (row.departure_delay, row.rain_delay, row.arrival_delay)),
        )
    return table


def totals_of(delays: Any) -> tuple[str, ...]:
    """The sums over everything, in lines."""
    sums = delays.sum(numeric_only=True)
    departure, arrival = int(sums.departure_delay_minutes), int(sums.arrival_delay_minutes)
    inches = int(sums.precipitation_hundredths) / 100
    return (
        f"{int(sums.flights):,} flights, {int(sums.cancelled):,} cancelled; {int(sums.miles):,} miles",
        f"{departure:,} minutes late at departure, {arrival:,} at arrival; {inches:,.2f} inches of rain",
    )


def _minutes(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"
