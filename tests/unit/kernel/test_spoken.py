"""`barnabas.kernel.spoken`."""

from __future__ import annotations

import pytest

from barnabas.kernel.spoken import spoken_ms


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0.4, "0 ms"), (20, "20 ms"), (999.4, "999 ms"), (999.6, "1 s"), (8_169.64, "8 s"), (30_000, "30 s")],
)
def test_times_are_told_without_fractions(milliseconds: float, text: str) -> None:
    assert spoken_ms(milliseconds) == text
