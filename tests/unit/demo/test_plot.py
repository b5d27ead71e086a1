from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from demo import plot, tables
from demo.expected import MEASURES
from tests.unit.demo.frames import daily_rows


def many(*, airlines: dict[str, int], minutes: dict[str, int]) -> Any:
    """A frame: a year with so many flights a day of each airline, each so late."""
    import pandas as pd

    days = pd.date_range("2013-01-01", "2013-12-31").date
    rows = [
        dict.fromkeys(MEASURES, 0)
        | {"carrier": name, "airline": name, "origin": "JFK", "day": day, "flights": count, "departed": count}
        | {"arrived": count, "departure_delay_minutes": count * minutes[name], "departed_in_rain": count // 2}
        for name, count in airlines.items()
        for day in days
    ]
    return pd.DataFrame(rows)


def test_the_last_day_is_in_the_last_week() -> None:
    weeks = plot.by_week(many(airlines={"A": 10}, minutes={"A": 5}))
    assert weeks.week.tolist() == list(range(52))
    assert weeks.departed.tolist() == [70] * 51 + [80]


def test_highlights_only_large_airlines_and_none_twice() -> None:
    delays = many(airlines={"A": 100, "B": 50, "small": 2}, minutes={"A": 5, "B": 20, "small": 90})
    assert [(name, what) for name, what, _colour in plot.highlighted(delays)] == [
        ("B", "most delayed"),
        ("A", "most punctual"),
    ]


@pytest.mark.filterwarnings("error")
def test_draws_a_picture_of_a_size_that_fits_a_page(tmp_path: Path) -> None:
    path = tmp_path / "delays.png"
    plot.draw(many(airlines={"A": 100, "B": 50, "small": 2}, minutes={"A": 5, "B": 20, "small": 90}), path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert 10_000 < len(content) < 200_000


def test_draws_also_without_a_large_airline(tmp_path: Path) -> None:
    plot.draw(daily_rows(), tmp_path / "delays.png")
    assert (tmp_path / "delays.png").stat().st_size > 1_000


def test_means_are_of_those_that_flew() -> None:
    rows = tables.by_airline(daily_rows())
    assert rows.index.tolist() == ["American", "SkyWest"]
    assert rows.departure_delay.tolist() == [47 / 3, 1.0]
    assert rows.cancelled_percent.tolist() == [25.0, 0.0]


def test_says_the_sums() -> None:
    assert tables.totals_of(daily_rows()) == (
        "5 flights, 1 cancelled; 4,631 miles",
        "48 minutes late at departure, 35 at arrival; 0.53 inches of rain",
    )
