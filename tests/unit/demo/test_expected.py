from __future__ import annotations

from demo.expected import COLUMNS, expected_delays
from tests.unit.demo.frames import daily_rows, tables


def test_counts_what_a_person_counts() -> None:
    found = expected_delays(tables())
    assert list(found.columns) == list(COLUMNS)
    assert found.to_dict("records") == daily_rows().to_dict("records")
